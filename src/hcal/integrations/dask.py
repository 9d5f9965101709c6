"""Dask: predict, evaluate, certify and fit on arrays and data frames that no machine holds.

Blocks are Dask's chunks and partitions; where they run, what is tried again and what is moved is Dask's.
What a block adds to an answer is merged in a tree whose shape follows from the blocks alone, so that one
worker and a hundred give the same bits. Code and files must be within reach of every worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hcal.calibrators.base import Calibrator
from hcal.certificates.result import Certificate
from hcal.certificates.run import TOLERANCE
from hcal.certificates.streaming import CertificateStream
from hcal.data.probabilities import to_probs
from hcal.inputs import InputKind
from hcal.metrics.streaming import StreamingMetrics
from hcal.runtime.extras import missing
from hcal.runtime.partial import Partial, merged

try:
    import dask
    import dask.array
    import dask.dataframe
    import distributed
except ImportError as error:
    raise missing("hcal.integrations.dask", error.name or "dask", "dask") from None

__all__ = ["Driver", "certify", "evaluate", "predict_proba"]

#: Parts that one task merges: few tasks, and no worker holds many parts at once.
_FAN_IN = 8
#: Pieces a thread of the cluster has waiting: it never starves, and what is not yet used stays small.
_AHEAD = 2

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
    array = _rows_in_chunks(scores, "scores")
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


def _rows_in_chunks(x: Any, what: str) -> Any:
    """Return a dask array of whole rows."""
    if isinstance(x, dask.dataframe.DataFrame | dask.dataframe.Series):
        x = x.to_dask_array()
    if not isinstance(x, dask.array.Array):
        raise TypeError(f"{what} must be a dask Array, DataFrame or Series, got {type(x).__name__}")
    if x.ndim not in (1, 2):
        raise ValueError(f"{what} must have one or two axes, got shape {x.shape}")
    return x if x.ndim == 1 or x.numblocks[1] == 1 else x.rechunk({1: -1})


def _array_block(
    calibrator: Calibrator, dtype: Any, block: Any, block_id: tuple[int, ...] | None = None
) -> Any:
    if not len(block):
        return np.empty((0, calibrator.n_classes_), dtype)
    return _said_where(calibrator.predict_proba, "block", block_id[0] if block_id else None, block)


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
    return _said_where(calibrator.predict_proba, "partition", number, block).set_axis(meta.columns, axis=1)


def _said_where(function: Callable[..., T], kind: str, number: int | None, *block: Any) -> T:
    """Call the function; rows that its complaint names are those of a block, so the block is named too."""
    try:
        return function(*block)
    except ValueError as error:
        raise ValueError(f"{kind} {number}: {error}" if number is not None else str(error)) from None


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
    whole, columns = _aligned(probs, y=y, sample_weight=sample_weight)
    empty = partial(StreamingMetrics, _classes_of(whole), None if metrics is None else tuple(metrics))
    found: StreamingMetrics = _reduced(empty, input, whole, columns).compute()[0]
    return found


def certify(
    probs: Any,
    y: Any,
    *,
    groups: Any = None,
    level: float = 0.95,
    assume: str | None = None,
    tolerance: float = TOLERANCE,
    positive: int = 1,
    input: InputKind = "probs",
) -> Certificate:
    """Certify a predictor in one pass over blocks, from fine fixed bins of its claims.

    Parameters
    ----------
    probs : dask Array of shape (N, K), or (N,) for P(class 1); or dask DataFrame of K columns
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1.
    groups : dask Array or Series of shape (N,), optional
    level, assume, tolerance, positive, input
        As in :func:`hcal.certify`.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> p = dask.array.from_array(np.tile([0.2, 0.8], (600, 1)), chunks=(300, 2))
    >>> certify(p, dask.array.ones(600, dtype=int)).refuted
    True
    """
    whole, columns = _aligned(probs, y=y, groups=groups)
    empty = partial(CertificateStream, _classes_of(whole), positive=positive)
    stream: CertificateStream = _reduced(empty, input, whole, columns).compute()[0]
    return stream.certify(level=level, assume=assume, tolerance=tolerance)


def _classes_of(probs: Any) -> int:
    if probs.ndim == 1:
        return 2
    if probs.shape[1] != probs.shape[1]:
        raise ValueError("the number of columns is not known: call compute_chunk_sizes() first")
    return int(probs.shape[1])


def _aligned(scores: Any, **columns: Any) -> tuple[Any, dict[str, Any]]:
    """Return the scores as a dask array of whole rows, and the columns that were given in its blocks."""
    whole = _rows_in_chunks(scores, "scores")
    given = {n: _rows_in_chunks(c, n) for n, c in columns.items() if c is not None}
    for name, column in given.items():
        if column.chunks[0] == whole.chunks[0]:
            continue
        if np.isnan(whole.shape[0]) or np.isnan(column.shape[0]):
            if column.numblocks[0] != whole.numblocks[0]:
                raise ValueError(
                    f"{name} has {column.numblocks[0]} blocks of unknown sizes, scores has "
                    f"{whole.numblocks[0]}: call compute_chunk_sizes() on both first"
                )
            continue
        if column.shape[0] != whole.shape[0]:
            raise ValueError(f"{name} has {column.shape[0]} rows, scores has {whole.shape[0]}")
        given[name] = column.rechunk((whole.chunks[0],))
    return whole, given


def _reduced(empty: Callable[[], Partial], input: InputKind, scores: Any, columns: dict[str, Any]) -> Any:
    """Return, delayed, what all blocks add up to: a tree of merges in the order of the blocks."""
    given = [c if c.ndim == scores.ndim else c[:, None] for c in columns.values()]
    parts = dask.array.map_blocks(
        partial(_part, empty, input, tuple(columns)),
        scores,
        *given,
        drop_axis=1 if scores.ndim == 2 else None,
        chunks=((1,) * scores.numblocks[0],),
        dtype=object,
        meta=np.empty(0, object),
    )
    merge = dask.delayed(_merge, pure=False)
    level = list(parts.to_delayed().ravel())
    while len(level) > 1:
        level = [merge(level[at : at + _FAN_IN], empty) for at in range(0, len(level), _FAN_IN)]
    return level[0]


def _part(
    empty: Callable[[], Any],
    input: InputKind,
    names: Sequence[str],
    scores: Any,
    *columns: Any,
    block_id: tuple[int, ...] = (0,),
) -> Any:
    """Return the part of one block, as an array of one object: what Dask's arrays are made of."""
    made = empty()
    if len(scores):
        rows = {name: column.ravel() for name, column in zip(names, columns, strict=True)}
        _said_where(lambda p: made.update(to_probs(p, input), **rows), "block", block_id[0], scores)
    return _boxed(made)


def _merge(parts: Iterable[Any], empty: Callable[[], Partial]) -> Any:
    return _boxed(merged((part[0] for part in parts), empty))


def _boxed(part: Any) -> Any:
    box = np.empty(1, object)
    box[0] = part
    return box


# -- pieces of work --------------------------------------------------------------------------------------


class Driver:
    """Run pieces of work on the workers of a Dask cluster, results in the order of the pieces.

    A piece whose worker dies is run again elsewhere, by Dask. A piece must therefore be harmless to run
    twice: what writes a file does so atomically, under a name that follows from the piece.

    Parameters
    ----------
    scheduler : str or distributed.Client
        The address of a scheduler, such as ``"tcp://10.0.0.1:8786"``, or a client of it.

    Examples
    --------
    >>> with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
    ...     with Driver(cluster.scheduler_address) as run:
    ...         list(run(abs, [-1, 2, -3]))
    [1, 2, 3]
    """

    def __init__(self, scheduler: str | distributed.Client) -> None:
        self._own = isinstance(scheduler, str)
        self.client = _connect(scheduler) if isinstance(scheduler, str) else scheduler

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` of every piece; a few more than there are threads are on their way.

        Parameters
        ----------
        function : callable
        pieces : iterable

        Yields
        ------
        object
        """
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                waiting.append(self.client.submit(function, piece, pure=False))
                if len(waiting) >= max(1, _AHEAD * self.threads()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def threads(self) -> int:
        """How many pieces the cluster runs at once, as of now."""
        return sum(self.client.nthreads().values())

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self.client.close()


def _connect(address: str) -> distributed.Client:
    try:
        return distributed.Client(address)
    except (OSError, ValueError) as error:
        raise OSError(f"no Dask scheduler answers at {address!r}: {error}") from None
