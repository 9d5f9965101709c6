"""Dask: predict, evaluate, certify and fit on arrays and data frames that no machine holds.

Blocks are Dask's chunks and partitions; where they run, what is tried again and what is moved is Dask's.
What a block adds to an answer is merged in a tree whose shape follows from the blocks alone, so that one
worker and a hundred give the same bits. Code and files must be within reach of every worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hcal.calibrators.base import Calibrator
from hcal.calibrators.batches import fit_batches
from hcal.certificates import Certificate, CertificateStream
from hcal.certificates.event import TOLERANCE
from hcal.extras import missing
from hcal.inputs import InputKind
from hcal.integrations._dask_blocks import aligned, boxed, classes_of, per_block, rows_in_chunks, said_where
from hcal.io.blocks import Batch
from hcal.io.class_names import check_classes
from hcal.io.probabilities import to_probs
from hcal.metrics.streaming import StreamingMetrics
from hcal.passes import Partial, WorkerDiedError, merged

try:
    import dask
    import dask.array
    import dask.dataframe
    import distributed
except ImportError as error:
    package = (error.name or "dask").partition(".")[0]
    raise missing("hcal.integrations.dask", package, "dask") from None

__all__ = ["Runner", "certify", "evaluate", "fit", "predict_proba"]

#: Parts that one task merges: few tasks, and no worker holds many parts at once.
_FAN_IN = 8
#: Pieces a thread of the cluster has waiting: it never starves, and what is not yet used stays small.
_AHEAD = 2

Method = TypeVar("Method", bound=Calibrator)
S = TypeVar("S")
T = TypeVar("T")


def predict_proba(calibrator: Calibrator, scores: Any) -> Any:
    """Return calibrated probabilities, lazily: one layer of the graph, nothing is computed yet.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted. It travels with every task: a few kilobytes.
    scores : dask Array of shape (N, K), or (N,) for a binary score; or dask DataFrame of K columns

    Returns
    -------
    dask Array of shape (N, K), of the same rows a chunk and float width; or dask DataFrame with the index and
    divisions of ``scores``, its columns named by ``calibrator.classes_`` where the fit was given names.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> p = predict_proba(cal, dask.array.from_array(np.tile([0.0, 2.0], (6, 1)), chunks=(3, 2)))
    >>> p.chunks, p.dtype.name, p[4:].compute().round(2).tolist()
    (((3, 3), (2,)), 'float64', [[0.25, 0.75], [0.25, 0.75]])
    """
    k = len(calibrator.classes_)  # says so where nothing was fitted
    if isinstance(scores, dask.dataframe.DataFrame):
        _check_classes(len(scores.columns), k)
        meta = _frame_meta(calibrator, scores._meta)
        return scores.map_partitions(partial(_frame_block, calibrator, meta), meta=meta)
    array = rows_in_chunks(scores, "scores")
    _check_classes(2 if array.ndim == 1 else array.shape[1], k)
    dtype = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)
    new = {"new_axis": 1} if array.ndim == 1 else {}
    return array.map_blocks(
        partial(_array_block, calibrator, dtype),
        dtype=dtype,
        chunks=(array.chunks[0], (k,)),
        meta=np.empty((0, 0), dtype),
        **new,
    )


def _check_classes(found: Any, k: int) -> None:
    if found == found and found != k:  # a size that Dask does not know yet is NaN
        raise ValueError(f"scores has {found} classes (columns), the calibrator was fitted on {k}")


def _array_block(
    calibrator: Calibrator, dtype: Any, block: Any, block_id: tuple[int, ...] | None = None
) -> Any:
    if not len(block):
        return np.empty((0, calibrator.n_classes_), dtype)
    return said_where(calibrator.predict_proba, "block", block_id[0] if block_id else None, block)


def _frame_meta(calibrator: Calibrator, meta: Any) -> Any:
    """Return an empty frame as predictions come: float32 where all columns are narrow floats."""
    narrow = all(d.kind == "f" and d.itemsize <= 4 for d in meta.dtypes)
    names = meta.columns if calibrator.class_names_ is None else list(calibrator.class_names_)
    made = meta.iloc[:0].astype("float32" if narrow else "float64")
    return made.set_axis(names, axis=1)


def _frame_block(calibrator: Calibrator, meta: Any, block: Any, partition_info: Any = None) -> Any:
    if not len(block):
        return meta
    number = partition_info["number"] if partition_info else None
    return said_where(calibrator.predict_proba, "partition", number, block).set_axis(meta.columns, axis=1)


# -- what is added up ----------------------------------------------------------------------------------


def evaluate(
    probs: Any,
    y: Any,
    metrics: Iterable[str] | None = None,
    *,
    sample_weight: Any = None,
    input: InputKind = "probs",
) -> StreamingMetrics:
    """Evaluate a predictor in one pass over blocks.

    Parameters
    ----------
    probs : dask Array of shape (N, K), or (N,) for P(class 1); or dask DataFrame of K columns
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1.
    metrics : list of str, optional
        Any of ``hcal.metrics.streaming.NAMES``; all of them by default.
    sample_weight : dask Array or Series of shape (N,), optional
    input : {"probs", "logits", "log_probs"}
        What ``probs`` holds.

    Returns
    -------
    StreamingMetrics
        Its ``result()`` is the values by name, its ``bounds()`` how far each can be from the exact value.

    Examples
    --------
    >>> p = dask.array.from_array(np.tile([0.2, 0.8], (6, 1)), chunks=(3, 2))
    >>> y = dask.array.ones(6, dtype=int, chunks=3)
    >>> {name: round(value, 3) for name, value in evaluate(p, y, ["brier", "ece_ew"]).result().items()}
    {'brier': 0.08, 'ece_ew': 0.2}
    """
    whole, columns = aligned(probs, y=y, sample_weight=sample_weight)
    empty = partial(StreamingMetrics, classes_of(whole), None if metrics is None else tuple(metrics))
    found: StreamingMetrics = _reduced(empty, input, whole, columns).compute()[0]
    return found


def certify(
    probs: Any,
    y: Any,
    *,
    groups: Any = None,
    level: float = 0.95,
    tolerance: float = TOLERANCE,
    positive: int = 1,
    input: InputKind = "probs",
    classes: Any = None,
) -> Certificate:
    """Certify a predictor in one pass over blocks, from fine fixed bins of its claims.

    Parameters
    ----------
    probs : dask Array of shape (N, K), or (N,) for P(class 1); or dask DataFrame of K columns
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1.
    groups : dask Array or Series of shape (N,), optional
    level, tolerance, positive, input, classes
        As in :func:`hcal.certify`.

    Examples
    --------
    >>> p = dask.array.from_array(np.tile([0.2, 0.8], (600, 1)), chunks=(300, 2))
    >>> certify(p, dask.array.ones(600, dtype=int)).refuted
    True
    """
    whole, columns = aligned(probs, y=y, groups=groups)
    empty: Any = partial(CertificateStream, classes_of(whole), positive=positive)
    stream: CertificateStream = _reduced(empty, input, whole, columns).compute()[0]
    return stream.certify(level=level, tolerance=tolerance, classes=classes)


def _reduced(empty: Callable[[], Partial], input: InputKind, scores: Any, columns: dict[str, Any]) -> Any:
    """Return, delayed, what all blocks add up to: a tree of merges in the order of the blocks."""
    merge = dask.delayed(_merge, pure=False)
    level = per_block(partial(_part, empty, input), scores, columns)
    while len(level) > 1:
        level = [merge(level[at : at + _FAN_IN], empty) for at in range(0, len(level), _FAN_IN)]
    return level[0]


def _part(empty: Callable[[], Any], input: InputKind, scores: Any, *, number: int, **rows: Any) -> Any:
    made = empty()
    if len(scores):
        said_where(lambda p: made.update(to_probs(p, input), **rows), "block", number, scores)
    return made


def _merge(parts: Iterable[Any], empty: Callable[[], Partial]) -> Any:
    return boxed(merged((part[0] for part in parts), empty))


# -- fits ------------------------------------------------------------------------------------------------


def fit(
    calibrator: Method, scores: Any, y: Any, *, sample_weight: Any = None, classes: Any = None, **options: Any
) -> Method:
    """Fit a calibrator on the rows of a sample, drawn where the blocks are.

    Parameters
    ----------
    calibrator : Calibrator
    scores : dask Array of shape (N, K), or (N,) for a binary score; or dask DataFrame of K columns
        What the calibrator's ``input`` says.
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1.
    sample_weight : dask Array or Series of shape (N,), optional
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns.
    **options
        Of :func:`hcal.fit_batches`: ``sample_rows``, ``n_rows``.

    Examples
    --------
    >>> import hcal
    >>> z = dask.array.from_array(np.tile([0.0, 2.0], (4, 1)), chunks=(2, 2))
    >>> cal = fit(hcal.make_calibrator("ts"), z, dask.array.from_array(np.array([1, 1, 1, 0])))
    >>> cal.predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """
    whole, columns = aligned(scores, y=y, weight=sample_weight)
    sizes = np.nan_to_num(np.array(whole.chunks[0], dtype=float), nan=2.0**32)  # a start nobody else has
    starts = np.concatenate([[0.0], np.cumsum(sizes)])[:-1].astype(np.int64)
    pieces = per_block(partial(_batch, calibrator.input, starts), whole, columns)
    names = None if classes is None else check_classes(classes, classes_of(whole))
    return fit_batches(calibrator, pieces, run=_over_blocks, classes=names, **options)


def _batch(kind: InputKind, starts: Any, scores: Any, *, number: int, **rows: Any) -> Batch:
    return Batch(np.asarray(scores), kind, rows["y"], int(starts[number]), weight=rows.get("weight"))


def _over_blocks(function: Callable[[Any], T], pieces: Iterable[Any]) -> Iterator[T]:
    """Yield what a function makes of every delayed block, in their order: a pass."""
    work = dask.delayed(_unboxed, pure=False)
    found: tuple[T, ...] = dask.compute(*(work(function, piece) for piece in pieces))
    yield from found


def _unboxed(function: Callable[[Any], T], box: Any) -> T:
    return function(box[0])


# -- pieces of work --------------------------------------------------------------------------------------


class Runner:
    """Run pieces of work on the workers of a cluster, answers in the order of the pieces: ``--scheduler``.

    A piece whose worker dies is run again elsewhere, by Dask. A piece must therefore be harmless to run
    twice: what writes a file does so atomically, under a name that follows from the piece.

    Parameters
    ----------
    scheduler : str or distributed.Client
        The address of a scheduler, such as ``"tcp://10.0.0.1:8786"``, or a client of it.

    Examples
    --------
    >>> with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
    ...     with Runner(cluster.scheduler_address) as run:
    ...         list(run(abs, [-1, 2, -3]))
    [1, 2, 3]
    """

    def __init__(self, scheduler: str | distributed.Client) -> None:
        self._own = isinstance(scheduler, str)
        try:
            self.client = distributed.Client(scheduler) if isinstance(scheduler, str) else scheduler
        except (OSError, ValueError) as error:
            raise OSError(f"no Dask scheduler answers at {scheduler!r}: {error}") from None

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` of every piece; a few more than there are threads are on their way."""
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                waiting.append(self.client.submit(function, piece, pure=False))
                if len(waiting) >= max(1, _AHEAD * self.threads()):
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def threads(self) -> int:
        """How many pieces the cluster runs at once, as of now."""
        return sum(self.client.nthreads().values())

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self.client.close()


def _answer(future: Any) -> Any:
    try:
        return future.result()
    except distributed.KilledWorker as error:
        raise WorkerDiedError(
            f"workers died one after the other on a piece: too little memory? {error}"
        ) from None
    except CancelledError:
        raise OSError("the scheduler has gone, and the work with it") from None
