"""Dask: predict, evaluate, certify and fit on arrays and data frames that are larger than memory.

hcal works on Dask's chunks and partitions; Dask decides where they run and repeats what failed. The partial results
of the blocks are merged in an order that depends on the blocks alone, so that the result is the same to the last bit
with any number of workers. Every worker needs the same packages and access to the same files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hcal.certificates import Certificate, CertificateStream
from hcal.class_names import check_classes
from hcal.extras import load_extra
from hcal.fit_record import refuse_segments
from hcal.frames import AnyArray
from hcal.inputs import InputKind, to_probs
from hcal.io.sources import RowSource
from hcal.methods.base import Calibrator
from hcal.metrics.streaming import StreamingMetrics
from hcal.passes import P, WorkerDiedError, merged
from hcal.results import JsonObject
from hcal.rows import Rows

load_extra("hcal.integrations.dask", "distributed", "dask")

# Arrays and data frames are recognised by their attributes, so that a Runner need not import dask.array and
# dask.dataframe, which takes longer than distributed itself.
import dask  # noqa: E402
import distributed  # noqa: E402

__all__ = ["Runner", "certify", "evaluate", "predict_proba", "rows"]

#: How many partial results one task merges: enough to have few tasks, few enough for the memory of a worker.
_FAN_IN = 8
#: Pieces submitted for each thread of the cluster: no thread waits for work, and few results wait in memory.
_AHEAD = 2

S = TypeVar("S")
T = TypeVar("T")


def predict_proba(calibrator: Calibrator, scores: AnyArray) -> Any:
    """Return calibrated probabilities lazily: this adds one layer to the graph and computes nothing yet.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted. A copy (a few kilobytes) is sent with every task.
    scores : dask Array of shape (N, K), or (N,) for a binary score; or dask DataFrame of K columns

    Returns
    -------
    dask Array of shape (N, K), of the same rows a chunk and float width; or dask DataFrame with the index and
    divisions of ``scores``, its columns named by ``calibrator.classes_`` where the fit was given names.

    Examples
    --------
    >>> import dask.array, hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> p = predict_proba(cal, dask.array.from_array(np.tile([0.0, 2.0], (6, 1)), chunks=(3, 2)))
    >>> p.chunks, p.dtype.name, p[4:].compute().round(2).tolist()
    (((3, 3), (2,)), 'float64', [[0.25, 0.75], [0.25, 0.75]])
    """
    refuse_segments(calibrator, "a graph of blocks of scores")
    k = len(calibrator.classes_)  # raises if the calibrator is not fitted
    frame = hasattr(scores, "divisions") and scores.ndim == 2
    array = scores if frame else _rows_in_chunks(scores, "scores")
    found = _classes_of(array)
    if found == found and found != k:  # a size that Dask does not know yet is NaN
        raise ValueError(f"scores has {found} classes (columns), the calibrator was fitted on {k}")
    if frame:
        narrow = all(d.kind == "f" and d.itemsize <= 4 for d in scores.dtypes)
        names = scores.columns if calibrator.fit_.names is None else list(calibrator.fit_.names)
        meta = scores._meta.astype("float32" if narrow else "float64").set_axis(names, axis=1)
        return scores.map_partitions(partial(_predict_block, calibrator, meta), meta=meta)
    dtype = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)
    new: JsonObject = {
        "chunks": (array.chunks[0], (k,)),
        "dtype": dtype,
        "meta": np.empty((0, 0), dtype),
    }
    new |= {"new_axis": 1} if array.ndim == 1 else {}
    return array.map_blocks(partial(_predict_block, calibrator, np.empty((0, k), dtype)), **new)


def _predict_block(
    calibrator: Calibrator,
    empty: Any,
    block: Any,
    *,
    block_id: Any = None,
    partition_info: Any = None,
) -> Any:
    """Return the probabilities of one block; Dask passes its number by one of the last two arguments."""
    if not len(block):
        return empty
    number = block_id[0] if block_id else (partition_info or {}).get("number")
    return _said_where(calibrator.predict_proba, number, block)


# -- metrics and certificates ----------------------------------------------------------------------------------


def evaluate(
    probs: AnyArray,
    y: AnyArray,
    metrics: Iterable[str] | None = None,
    *,
    sample_weight: AnyArray = None,
    input: InputKind = "probs",
) -> StreamingMetrics:
    """Evaluate a predictor in one pass over its blocks.

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
        ``result()`` returns the values by name, ``bounds()`` how far each can be from the exact value.

    Examples
    --------
    >>> import dask.array
    >>> p = dask.array.from_array(np.tile([0.2, 0.8], (6, 1)), chunks=(3, 2))
    >>> y = dask.array.ones(6, dtype=int, chunks=3)
    >>> {name: round(value, 3) for name, value in evaluate(p, y, ["brier", "ece_ew"]).result().items()}
    {'brier': 0.08, 'ece_ew': 0.2}
    """
    whole, columns = _aligned(probs, y=y, sample_weight=sample_weight)
    empty = partial(
        StreamingMetrics, _classes_of(whole), None if metrics is None else tuple(metrics)
    )
    return _reduced(empty, input, whole, columns)


def certify(
    probs: AnyArray,
    y: AnyArray,
    *,
    by: AnyArray = None,
    positive: int = 1,
    input: InputKind = "probs",
    **options: Any,
) -> Certificate:
    """Certify a predictor in one pass over its blocks, from a fine histogram of its probabilities.

    Parameters
    ----------
    probs : dask Array of shape (N, K), or (N,) for P(class 1); or dask DataFrame of K columns
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1.
    by : dask Array or Series of shape (N,), optional
    positive, input
        As in :func:`hcal.certify`.
    **options
        Its ``confidence``, ``tolerance``, ``classes`` and ``assume``.

    Examples
    --------
    >>> import dask.array
    >>> p = dask.array.from_array(np.tile([0.2, 0.8], (600, 1)), chunks=(300, 2))
    >>> certify(p, dask.array.ones(600, dtype=int)).refuted
    True
    """
    whole, columns = _aligned(probs, y=y, by=by)
    empty = partial(CertificateStream, _classes_of(whole), positive=positive)
    return _reduced(empty, input, whole, columns).result(**options)


def _reduced(
    empty: Callable[[], P], input: InputKind, scores: AnyArray, columns: dict[str, Any]
) -> P:
    """Merge the partial results of all blocks in a tree, in the order of the blocks."""
    return _merged_in_tree(_per_block(partial(_part, empty, input), scores, columns), empty)


def _part(
    empty: Callable[[], Any], input: InputKind, number: int, scores: AnyArray, **rows: Any
) -> Any:
    made = empty()
    if len(scores):
        _said_where(lambda p: made.update(to_probs(p, input), **rows), number, scores)
    return made


# -- blocks ----------------------------------------------------------------------------------------------


def _rows_in_chunks(x: Any, what: str) -> Any:
    """Return a dask array of whole rows."""
    x = x.to_dask_array() if hasattr(x, "to_dask_array") else x
    if not hasattr(x, "numblocks"):
        raise TypeError(f"{what} must be a dask Array, DataFrame or Series, got {type(x).__name__}")
    return x if x.ndim == 1 or x.numblocks[1] == 1 else x.rechunk({1: -1})


def _classes_of(scores: AnyArray) -> Any:
    return 2 if scores.ndim == 1 else scores.shape[1]


def _aligned(scores: AnyArray, **columns: Any) -> tuple[Any, dict[str, Any]]:
    """Return the scores as a dask array of whole rows, and the columns that were given in its blocks."""
    whole = _rows_in_chunks(scores, "scores")
    given = {n: _rows_in_chunks(c, n) for n, c in columns.items() if c is not None}
    for name, column in given.items():
        if np.isnan(whole.shape[0]) or np.isnan(column.shape[0]):
            if column.numblocks[0] != whole.numblocks[0]:
                raise ValueError(
                    f"{name} has {column.numblocks[0]} blocks of unknown sizes, scores has "
                    f"{whole.numblocks[0]}: call compute_chunk_sizes() on both first"
                )
        elif column.shape[0] != whole.shape[0]:
            raise ValueError(f"{name} has {column.shape[0]} rows, scores has {whole.shape[0]}")
        else:
            given[name] = column.rechunk((whole.chunks[0],))
    return whole, given


def _per_block(
    function: Callable[..., Any], scores: AnyArray, columns: dict[str, Any]
) -> list[Any]:
    """Return, delayed, what ``function(number, scores, **columns)`` makes of every block."""
    work = dask.delayed(function, pure=False)
    blocks = {name: column.to_delayed().ravel() for name, column in columns.items()}
    whole = scores.to_delayed().ravel()
    return [
        work(i, block, **{name: b[i] for name, b in blocks.items()})
        for i, block in enumerate(whole)
    ]


def _said_where(function: Callable[[Any], T], number: int | None, block: Any) -> T:
    """Call the function; an error names rows of the block, so the number of the block is added to it."""
    try:
        return function(block)
    except ValueError as error:
        raise ValueError(f"block {number}: {error}" if number is not None else str(error)) from None


# -- sources ---------------------------------------------------------------------------------------------


class DaskSource(RowSource):
    """Rows in the blocks of Dask collections; partial results are merged in a tree, in the order of the blocks."""

    def add_up(self, update: Callable[[P, Rows], object], empty: Callable[[], P]) -> P:
        """Return the partial result of all rows; ``update`` adds a block of rows to one."""
        work = dask.delayed(partial(_add_block, update, empty), pure=False)
        return _merged_in_tree([work(block) for block in self.pieces], empty)


def rows(  # noqa: PLR0913
    scores: AnyArray,
    y: AnyArray,
    *,
    input: InputKind,
    sample_weight: AnyArray = None,
    groups: AnyArray = None,
    by: AnyArray = None,
    classes: Any = None,
) -> DaskSource:
    """Return Dask collections as a source of rows, for ``fit``, ``hcal.evaluate`` and ``hcal.certify``.

    Parameters
    ----------
    scores : dask Array of shape (N, K), or (N,) for a binary score; or dask DataFrame of K columns
    y : dask Array or Series of shape (N,)
        Integer labels 0..K−1, or names of classes.
    input : {"logits", "probs", "log_probs"}
        What ``scores`` holds.
    sample_weight, groups, by : dask Array or Series of shape (N,), optional
        As for ``fit`` and :func:`hcal.evaluate`. A group may have rows in several blocks.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns.

    Examples
    --------
    >>> import dask.array, hcal
    >>> z = dask.array.from_array(np.tile([0.0, 2.0], (4, 1)), chunks=(2, 2))
    >>> source = rows(z, dask.array.from_array(np.array([1, 1, 1, 0])), input="logits")
    >>> hcal.make_calibrator("ts").fit(source).predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """
    columns = {"y": y, "weight": sample_weight, "groups": groups, "by": by}
    whole, aligned = _aligned(scores, **columns)
    n_classes = _classes_of(whole)
    names = None if classes is None else check_classes(classes, n_classes)
    sizes = np.array(whole.chunks[0], dtype=float)
    known = bool(np.isfinite(sizes).all())
    # Where the sizes are not known, a block gets numbers that no other block has.
    starts = np.cumsum(np.append(0.0, np.nan_to_num(sizes, nan=2.0**32)))[:-1].astype(np.int64)
    make_rows = partial(_rows_of_block, input, names, starts.tolist())
    return DaskSource(
        _per_block(make_rows, whole, aligned),
        input,
        n_classes,
        names,
        n_rows=int(sizes.sum()) if known else None,
        title="Dask collections",
        grouped=groups is not None,
        segmented=by is not None,
    )


def _rows_of_block(
    kind: InputKind, names: Any, starts: list[int], number: int, scores: AnyArray, **columns: Any
) -> Rows | None:
    """Return the checked rows of a block; None if it has none."""
    if not len(scores):
        return None
    start = starts[number]
    options = {"input": kind, "classes": names, "start": 0, "complete": False}
    checked = _said_where(lambda block: Rows.of(block, **columns, **options), number, scores)
    return replace(checked, start=start)


def _add_block(
    update: Callable[[P, Rows], object], empty: Callable[[], P], block: Rows | None
) -> P:
    result = empty()
    if block is not None:
        update(result, block)
    return result


def _merged_in_tree(level: list[Any], empty: Callable[[], P]) -> P:
    merge = dask.delayed(merged, pure=False)
    while len(level) > 1:
        level = [
            merge(level[first : first + _FAN_IN], empty) for first in range(0, len(level), _FAN_IN)
        ]
    whole: P = level[0].compute()
    return whole


# -- pieces of work --------------------------------------------------------------------------------------


class Runner:
    """Run pieces of work on a Dask cluster and return the results in order; the option ``--scheduler`` uses it.

    If a worker dies, Dask runs its piece again on another one. It must therefore be safe to run a piece twice: one
    that writes a file writes it atomically, under a name that depends on the piece alone.

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
        """Yield ``function(piece)`` for every piece; only a few pieces for each thread are submitted ahead."""
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                with dask.config.set(
                    {"distributed.admin.large-graph-warning-threshold": "1 TiB"}
                ):  # pieces hold rows
                    waiting.append(self.client.submit(function, piece, pure=False))
                if len(waiting) >= max(1, _AHEAD * sum(self.client.nthreads().values())):
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

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
