"""Dask: predict, evaluate, certify and fit on arrays and data frames that are larger than memory.

hcal works on Dask's chunks and partitions; Dask decides where they run and repeats what failed. The partial results
of the blocks are merged in an order that depends on the blocks alone, so that the result is the same to the last bit
with any number of workers. Every worker needs the same packages and access to the same files.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar, Unpack

import numpy as np

from hcal.certificates import Certificate, CertificateStream
from hcal.class_names import ClassName
from hcal.columns import ClassNames, Layout, names_of_classes, names_of_columns
from hcal.extras import load_extra
from hcal.fit_record import refuse_segments
from hcal.frames import AnyArray, ColumnName, to_numpy
from hcal.inputs import InputKind
from hcal.io.sources import RowSource
from hcal.methods.base import Calibrator
from hcal.metrics.streaming import StreamingMetrics
from hcal.numerics import NumpyArray
from hcal.passes import P, WorkerDiedError, merged
from hcal.rows import Rows

if TYPE_CHECKING:
    from dask.delayed import Delayed

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
T_co = TypeVar("T_co", covariant=True)


class DaskArray(Protocol):
    """What is used of a dask Array; a size that Dask does not know yet is NaN."""

    ndim: int
    shape: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    numblocks: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def rechunk(self, chunks: dict[int, int] | tuple[tuple[int, ...], ...]) -> DaskArray:
        """Return the array in other blocks."""

    def map_blocks(self, function: Callable[..., NumpyArray], **options: object) -> DaskArray:
        """Return what the function makes of every block, as an array."""

    def to_delayed(self) -> NumpyArray:
        """Return the delayed blocks."""


class ResultOptions(TypedDict, total=False):
    """The options of :meth:`hcal.certificates.CertificateStream.result`."""

    confidence: float
    tolerance: float
    classes: Iterable[ClassName] | None
    assume: str | None


class _Future(Protocol[T_co]):
    """The answer of a cluster that will come."""

    def result(self) -> T_co:
        """Wait for the answer."""

    def cancel(self) -> None:
        """Ask for it no longer."""


def predict_proba(calibrator: Calibrator, scores: AnyArray) -> AnyArray:
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
    frame = _is_frame(scores)
    array = scores if frame else _rows_in_chunks(scores, "scores")
    n_columns = 2 if array.ndim == 1 else array.shape[1]
    if n_columns == n_columns and n_columns != k:  # a size that Dask does not know yet is NaN
        raise ValueError(
            f"scores has {n_columns} classes (columns), the calibrator was fitted on {k}"
        )
    # The graph may be computed after the calibrator was fitted again.
    present = copy.copy(calibrator)
    if frame:
        narrow = all(d.kind == "f" and d.itemsize <= 4 for d in scores.dtypes)
        names = _ordered_columns(calibrator, scores)
        meta = scores._meta.astype("float32" if narrow else "float64").set_axis(names, axis=1)
        return scores.map_partitions(partial(_predict_block, present, meta), meta=meta)
    dtype = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)
    return array.map_blocks(
        partial(_predict_block, present, np.empty((0, k), dtype)),
        chunks=(array.chunks[0], (k,)),
        dtype=dtype,
        meta=np.empty((0, 0), dtype),
        new_axis=1 if array.ndim == 1 else None,
    )


def _predict_block(
    calibrator: Calibrator,
    empty: AnyArray,
    block: AnyArray,
    *,
    block_id: tuple[int, ...] | None = None,
    partition_info: Mapping[str, int] | None = None,
) -> AnyArray:
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
    source = rows(probs, y, input=input, sample_weight=sample_weight)
    chosen = None if metrics is None else tuple(metrics)
    return source.add_up(_add_to_metrics, partial(StreamingMetrics, source.n_classes, chosen))


def certify(
    probs: AnyArray,
    y: AnyArray,
    *,
    by: AnyArray = None,
    positive: int = 1,
    input: InputKind = "probs",
    **options: Unpack[ResultOptions],
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
    source = rows(probs, y, input=input, by=by)
    empty = partial(CertificateStream, source.n_classes, positive=positive)
    return source.add_up(_add_to_proof, empty).result(**options)


def _add_to_metrics(metrics: StreamingMetrics, block: Rows) -> None:
    metrics.update(block.probs(), block.labels, block.weight)


def _add_to_proof(proof: CertificateStream, block: Rows) -> None:
    proof.update(block.probs(), block.labels, block.by)


# -- blocks ----------------------------------------------------------------------------------------------


def _rows_in_chunks(x: AnyArray, what: str) -> DaskArray:
    """Return a dask array of whole rows."""
    if hasattr(x, "to_dask_array"):
        with warnings.catch_warnings():
            # Texts become objects; where the scores are a frame, the partitions are read as they are.
            warnings.filterwarnings("ignore", "Dask currently has limited support", UserWarning)
            x = x.to_dask_array()
    if not hasattr(x, "numblocks"):
        raise TypeError(f"{what} must be a dask Array, DataFrame or Series, got {type(x).__name__}")
    array: DaskArray = x
    return array if array.ndim == 1 or array.numblocks[1] == 1 else array.rechunk({1: -1})


def _aligned(scores: AnyArray, **columns: AnyArray) -> tuple[DaskArray, dict[str, DaskArray]]:
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
    function: Callable[..., Rows | None], scores: AnyArray, columns: dict[str, AnyArray]
) -> list[Delayed]:
    """Return, delayed, what ``function(number, scores, **columns)`` makes of every block.

    The partitions of a frame stay frames, whose columns have names and whose rows have an index.
    """
    whole, aligned = _aligned(scores, **columns)
    work = dask.delayed(function, pure=False)
    scores_blocks = _delayed_blocks(scores if _is_frame(scores) else whole)
    blocks = {name: _delayed_blocks(column) for name, column in aligned.items()}
    if _is_frame(scores):
        series = [name for name in aligned if _is_series(columns[name])]
        blocks |= {name: _delayed_blocks(columns[name]) for name in series}
    return [
        work(i, block, **{name: of_column[i] for name, of_column in blocks.items()})
        for i, block in enumerate(scores_blocks)
    ]


def _delayed_blocks(collection: AnyArray) -> list[Delayed]:
    """Return the delayed blocks of a collection."""
    blocks = collection.to_delayed()
    return list(blocks.ravel() if hasattr(blocks, "ravel") else blocks)


def _is_frame(collection: AnyArray) -> bool:
    return hasattr(collection, "divisions") and collection.ndim == 2


def _is_series(collection: AnyArray) -> bool:
    return hasattr(collection, "divisions") and collection.ndim == 1


def _said_where(function: Callable[[S], T], number: int | None, block: S) -> T:
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
    classes: Iterable[ClassName] | None = None,
    like: Layout | None = None,
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
    like : Layout, optional
        What a calibrator was fitted on, its ``fit_``: columns that have names are put in its order by name.

    Examples
    --------
    >>> import dask.array, hcal
    >>> z = dask.array.from_array(np.tile([0.0, 2.0], (4, 1)), chunks=(2, 2))
    >>> source = rows(z, dask.array.from_array(np.array([1, 1, 1, 0])), input="logits")
    >>> hcal.make_calibrator("ts").fit(source).predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """
    columns = {"y": y, "weight": sample_weight, "groups": groups, "by": by}
    whole, _ = _aligned(scores, y=y)
    n_classes = 2 if whole.ndim == 1 else whole.shape[1]
    layout = None if like is None else _TravellingLayout.of(like)
    titles = to_numpy(scores._meta, "scores")[1].columns if _is_frame(scores) else None
    names = names_of_classes(titles, _like_labels(y), classes, layout, n_classes=n_classes)
    sizes = np.array(whole.chunks[0], dtype=float)
    known = bool(np.isfinite(sizes).all())
    # Where the sizes are not known, a block gets numbers that no other block has.
    starts = np.cumsum(np.append(0.0, np.nan_to_num(sizes, nan=2.0**32)))[:-1].astype(np.int64)
    options: _Reading = {
        "input": input,
        "classes": names if layout is None else classes,
        "like": layout,
    }
    make_rows = partial(_rows_of_block, options, starts.tolist())
    return DaskSource(
        _per_block(make_rows, scores, columns),
        input,
        n_classes,
        names,
        n_rows=int(sizes.sum()) if known else None,
        title="Dask collections",
        grouped=groups is not None,
        segmented=by is not None,
        from_one=() if titles is None or like is not None else tuple(map(str, titles)),
    )


@dataclass(frozen=True)
class _TravellingLayout:
    """What a fit says of the columns, without all else that it remembers: it goes with every block."""

    n_classes: int
    names: ClassNames | None
    columns: tuple[ColumnName, ...] | None
    score_range: tuple[float, float] | None

    @classmethod
    def of(cls, like: Layout) -> _TravellingLayout:
        return cls(like.n_classes, like.names, like.columns, like.score_range)


class _Reading(TypedDict):
    """How every block of scores is read: options of :meth:`hcal.rows.Rows.of`."""

    input: InputKind
    classes: Iterable[ClassName] | None
    like: _TravellingLayout | None


def _like_labels(y: AnyArray) -> NumpyArray | None:
    """Return an array without rows that shows whether labels are texts; None without labels."""
    if y is None:
        return None
    dtype = y.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        dtype = getattr(y._meta.dtype, "categories", categories).dtype
    is_number = getattr(dtype, "kind", "O") in "biuf"
    return np.empty(0, dtype=np.int64 if is_number else np.str_)


def _ordered_columns(calibrator: Calibrator, scores: AnyArray) -> list[ColumnName]:
    """Return what the columns of predictions are called: the classes, or the columns in the order of the fit."""
    record = calibrator.fit_
    columns = to_numpy(scores._meta, "scores")[1].columns
    titles = names_of_columns(columns, record)
    return list(range(record.n_classes) if titles is None else titles)


def _rows_of_block(
    options: _Reading, starts: list[int], number: int, scores: AnyArray, **columns: AnyArray
) -> Rows | None:
    """Return the checked rows of a block; None if it has none."""
    if not len(scores):
        return None
    start = starts[number]
    checked = _said_where(
        lambda block: Rows.of(block, **columns, **options, complete=False), number, scores
    )
    return replace(checked, start=start, origin=None)


def _add_block(
    update: Callable[[P, Rows], object], empty: Callable[[], P], block: Rows | None
) -> P:
    result = empty()
    if block is not None:
        update(result, block)
    return result


def _merged_in_tree(level: list[Delayed], empty: Callable[[], P]) -> P:
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
        waiting: deque[_Future[T]] = deque()
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


def _answer(future: _Future[T]) -> T:
    try:
        return future.result()
    except distributed.KilledWorker as error:
        raise WorkerDiedError(
            f"workers died one after the other on a piece: too little memory? {error}"
        ) from None
    except CancelledError:
        raise OSError("the scheduler has gone, and the work with it") from None
