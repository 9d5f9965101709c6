"""Spark: predict, evaluate, certify and fit where the rows are, partition by partition.

Spark's executors run hcal on batches of Arrow, and Spark repeats what failed. Columns, missing values and labels are
read as those of files are. Executors get the calibrator as the bytes of its model file, and answer with partial
results as JSON and arrays (:mod:`hcal.integrations.partial_states`). These are merged in the order of the
partitions. Every executor needs hcal and pyarrow.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypedDict, Unpack

import numpy as np

from hcal.ageing import HalfLifeLike
from hcal.certificates import Certificate
from hcal.certificates import certify as certify_rows
from hcal.evaluation import Evaluation
from hcal.evaluation import evaluate as evaluate_rows
from hcal.extras import load_extra
from hcal.fit_record import fitted_names, fitted_request, predict_with_segments
from hcal.integrations.partial_states import restored, state_bytes
from hcal.io.blocks import rows_of
from hcal.io.files import explained
from hcal.io.formats import arrow_block
from hcal.io.reading import DataFile, Piece, Reading, data_of_block
from hcal.io.request import Plan, Request, plan_of
from hcal.io.sources import RowSource
from hcal.io.writing import free_name
from hcal.methods.base import Calibrator
from hcal.methods.files import load, save
from hcal.methods.registry import make_calibrator
from hcal.passes import P
from hcal.rows import Rows
from hcal.segments import SegmentedCalibrator
from hcal.text import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

load_extra("hcal.integrations.spark", "pyspark", "spark")

__all__ = ["SparkSource", "certify", "evaluate", "fit", "rows", "transform"]

#: How many partial results one task merges: enough to have few tasks, few enough for the memory of an executor.
_FAN_IN: Final = 8
#: How many rows are read to find out the kind and the classes of a frame.
_PROBE: Final = 1024
#: The columns of an :class:`_Answer`.
_ANSWER: Final = "place int, error string, state binary"
#: A reason to ask for columns by a pattern or by names, or for more by a request.
RequestedColumns = Request | str | None
#: A fitted calibrator, or the path of its model file.
Model: TypeAlias = Calibrator | str | os.PathLike[str]


class EvaluationOptions(TypedDict, total=False):
    """The options of :func:`hcal.evaluate` that one pass over partitions can follow."""

    metrics: str | Iterable[str] | None
    confidence: float | None
    positive: int | str | None
    test: bool | None
    resamples: int
    random_state: int


class CertificateOptions(TypedDict, total=False):
    """The options of :func:`hcal.certify` that one pass over partitions can follow."""

    confidence: float
    tolerance: float
    assume: str | None
    positive: int | str | None
    random_state: int


class FitOptions(TypedDict, total=False):
    """The options of ``fit`` that one pass over partitions can follow."""

    half_life: HalfLifeLike | None


def transform(frame: DataFrame, model: Model, columns: RequestedColumns = None) -> DataFrame:
    """Return a frame with the calibrated probability of each class beside its columns; nothing is computed yet.

    Parameters
    ----------
    frame : pyspark DataFrame
    model : Calibrator, or path of a model file
    columns : str or Request, optional
        The columns of scores: a pattern (``"logit_*"``) or names separated by commas, in the order of the classes.
        A :class:`hcal.io.Request` names more. By default, the columns of the fit.

    Returns
    -------
    pyspark DataFrame
        With the columns ``probs_0``, ``probs_1``, … (or ``probs_`` and the name of the class). A row whose segment
        the fit did not see gets the common calibrator.

    Examples
    --------
    >>> transform(spark.read.parquet("scores/"), "model.hcal").write.parquet("probs/")  # doctest: +SKIP
    """
    from pyspark.sql import types

    calibrator = _loaded(model)
    request = _request_of(columns, calibrator)
    # Labels of new rows do not matter, and every row gets its probabilities.
    optional = request.optional | {"label"}
    request = replace(request, label=None, optional=optional, unlabelled="error", ignore_index=None)
    table = _Table.of(frame, request, calibrator)
    names = fitted_names(calibrator) or range(calibrator.n_classes_)
    new = [f"probs_{name}" for name in names]
    for name in new:
        table = table.without(name, new)
    frame = table.frame
    schema = types.StructType(list(frame.schema.fields))
    for name in new:
        schema = schema.add(name, types.DoubleType(), nullable=False)
    work = _Transforming(table.reader, _TravellingModel(calibrator), tuple(new))
    return frame.mapInArrow(work, schema)


def evaluate(
    frame: DataFrame,
    model: Model | None = None,
    columns: RequestedColumns = None,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Evaluate probabilities, or a calibrator before and after, in one pass over the partitions.

    Parameters
    ----------
    frame : pyspark DataFrame
        It is read twice: its rows are counted first. Cache a frame that is costly to compute.
    model : Calibrator, or path of a model file, optional
        Without one, the scores are evaluated as they are.
    columns : str or Request, optional
        As for :func:`transform`. A request also names the ``label`` (``y`` by default), ``weight``, ``groups`` and
        ``by``.
    **options
        ``metrics``, ``confidence``, ``positive``, ``test``, ``resamples`` and ``random_state`` of
        :func:`hcal.evaluate`.

    Examples
    --------
    >>> evaluate(frame, "model.hcal", Request(scores="logit_*", label="target"), metrics="nll")  # doctest: +SKIP
    """
    calibrator = None if model is None else _loaded(model)
    source = rows(frame, columns, calibrator)
    if calibrator is None:
        return evaluate_rows(source, **options)
    return evaluate_rows(_TravellingModel(calibrator), source, **options)


def certify(
    frame: DataFrame,
    model: Model | None = None,
    columns: RequestedColumns = None,
    **options: Unpack[CertificateOptions],
) -> Certificate:
    """Certify probabilities, or a calibrator, in one pass over the partitions.

    Parameters
    ----------
    frame : pyspark DataFrame
    model : Calibrator, or path of a model file, optional
    columns : str or Request, optional
        As for :func:`evaluate`.
    **options
        ``confidence``, ``tolerance``, ``assume``, ``positive`` and ``random_state`` of :func:`hcal.certify`.

    Examples
    --------
    >>> certify(frame, "model.hcal", Request(label="target", by="country")).sentences  # doctest: +SKIP
    """
    calibrator = None if model is None else _loaded(model)
    source = rows(frame, columns, calibrator)
    if calibrator is None:
        proof = certify_rows(source, **options)
    else:
        proof = certify_rows(_TravellingModel(calibrator), source, **options)
    assert isinstance(proof, Certificate)  # nothing is fitted by folds here
    return proof


def fit(
    frame: DataFrame,
    method: str | Calibrator = "pool",
    columns: RequestedColumns = None,
    **options: Unpack[FitOptions],
) -> Calibrator:
    """Fit a calibrator on a random sample of the rows: on all of them, if there are no more than 300,000.

    Parameters
    ----------
    frame : pyspark DataFrame
    method : str or Calibrator
        A registry name, or an unfitted calibrator.
    columns : str or Request, optional
        As for :func:`evaluate`. With ``by``, or ``segments``, every segment gets a correction of its own
        (:class:`hcal.SegmentedCalibrator`).
    **options
        ``half_life`` of :meth:`hcal.methods.base.Calibrator.fit`.

    Returns
    -------
    Calibrator
        On the driver. It remembers the columns.

    Examples
    --------
    >>> hcal.save(fit(frame, "pool", "logit_*"), "model.hcal")  # doctest: +SKIP
    """
    request = _request_of(columns, None)
    source = rows(frame, request)
    calibrator = method
    if isinstance(calibrator, str):
        calibrator = make_calibrator(calibrator, input=source.kind)
    if source.segmented and not isinstance(calibrator, SegmentedCalibrator):
        calibrator = SegmentedCalibrator(calibrator, input=source.kind)
    calibrator.fit(source, **options)
    remembered = request.for_refit(source.kind, segmented=source.segmented)
    calibrator.remember_source(remembered, source.title, "", "")
    return calibrator


def rows(
    frame: DataFrame, columns: RequestedColumns = None, model: Model | None = None
) -> SparkSource:
    """Return a frame as a source of rows, for ``fit``, :func:`hcal.evaluate`, :func:`hcal.certify` and ``hcal.report``.

    Parameters
    ----------
    frame : pyspark DataFrame
    columns : str or Request, optional
        As for :func:`evaluate`.
    model : Calibrator, or path of a model file, optional
        Its columns, and the order of its classes, are those of the rows.
    """
    calibrator = None if model is None else _loaded(model)
    request = _request_of(columns, calibrator)
    probed = _Table.of(frame, request, calibrator)
    first = probed.first()
    first.labels(complete=False)
    table = probed.like_first(first)
    counts = table.counts
    classes = table.reader.reading.order
    all_kept = request.unlabelled == "error" and request.ignore_index is None
    return SparkSource(
        [],
        first.kind,
        first.n_classes,
        None if classes is None else tuple(classes),
        n_rows=sum(counts.values()) if all_kept else None,
        title="a Spark frame",
        grouped=first.groups is not None,
        segmented=bool(first.by or first.segments),
        from_one=first.from_one,
        table=table,
    )


# -- the one path of partial results ---------------------------------------------------------------


@dataclass(frozen=True)
class SparkSource(RowSource):
    """Rows in the partitions of a frame; partial results are merged in a tree, in the order of the partitions."""

    table: _Table = field(kw_only=True)

    def add_up(self, update: Callable[[P, Rows], object], empty: Callable[[], P]) -> P:
        """Return the partial result of all rows; ``update`` adds a block of rows to one."""
        from pyspark.sql import functions as f

        table = self.table
        work = _Adding(table.reader, table.counts, update, empty)
        answers = table.selected.mapInArrow(work, _ANSWER)
        count = len(table.counts)
        while count > _FAN_IN:
            count = -(-count // _FAN_IN)
            parent = f.floor(f.col("place") / _FAN_IN)
            siblings = answers.repartition(count, parent)
            answers = siblings.mapInArrow(_Merging(empty), _ANSWER)
        whole = empty()
        last = [_Answer(row.place, row.error, bytes(row.state)) for row in answers.collect()]
        for answer in sorted(last, key=_place):
            if answer.error is not None:
                raise ValueError(answer.error)
            whole.merge(restored(answer.state, empty()))
        return whole


@dataclass(frozen=True)
class _Adding(Generic[P]):
    """The work of one task: the partial result of the rows of a partition."""

    reader: _Reader
    counts: Mapping[int, int]
    update: Callable[[P, Rows], object]
    empty: Callable[[], P]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one answer."""
        partition = _partition()
        start = sum(size for number, size in self.counts.items() if number < partition)
        totals = self.empty()
        seen = 0
        try:
            for batch in batches:
                block = self.reader.rows(batch, partition, start + seen)
                if block is not None:
                    self.update(totals, block)
                seen += batch.num_rows
            self._check(partition, seen)
        except ValueError as error:
            # Repeating the task would not help, so the driver is told.
            yield _Answer(partition, str(error), b"").as_batch()
            return
        yield _Answer(partition, None, state_bytes(totals)).as_batch()

    def _check(self, partition: int, seen: int) -> None:
        """Refuse a frame that has other rows than when they were counted."""
        counted = self.counts.get(partition, 0)
        if seen != counted:
            raise ValueError(
                f"partition {partition} of the frame has {seen:,} rows, and had {counted:,} when "
                "they were counted: the frame gives other rows each time, so cache it, or write "
                "it to files first"
            )


@dataclass(frozen=True)
class _Merging(Generic[P]):
    """The work of one task that merges the answers of others, those with the same parent into one."""

    empty: Callable[[], P]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one answer for each parent."""
        answers = [_Answer(**columns) for batch in batches for columns in batch.to_pylist()]
        answers.sort(key=_place)
        for parent, siblings in groupby(answers, key=_parent):
            yield self._merged(parent, list(siblings)).as_batch()

    def _merged(self, parent: int, siblings: Sequence[_Answer]) -> _Answer:
        errors = [answer.error for answer in siblings if answer.error is not None]
        if errors:
            return _Answer(parent, errors[0], b"")
        whole = self.empty()
        for answer in siblings:
            whole.merge(restored(answer.state, self.empty()))
        return _Answer(parent, None, state_bytes(whole))


@dataclass(frozen=True)
class _Answer:
    """What a task answers: the place of its rows among those of others, why it stopped, or its partial result."""

    place: int
    error: str | None
    state: bytes

    def as_batch(self) -> pa.RecordBatch:
        """Return the answer as Spark passes it on, with the columns of ``_ANSWER``."""
        import pyarrow as pa

        columns = [
            pa.array([self.place], pa.int32()),
            pa.array([self.error], pa.string()),
            pa.array([self.state], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, ["place", "error", "state"])


def _place(answer: _Answer) -> int:
    return answer.place


def _parent(answer: _Answer) -> int:
    return answer.place // _FAN_IN


def _count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many rows a partition has."""
    import pyarrow as pa

    count = sum(batch.num_rows for batch in batches)
    columns = [pa.array([_partition()], pa.int32()), pa.array([count], pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, ["partition", "size"])


def _partition() -> int:
    """Return the number of the partition that this task works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


# -- frames and their columns ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """How batches become rows, in the process that works on them: as those of files do."""

    plan: Plan
    reading: Reading

    def data(self, batch: pa.RecordBatch, partition: int, row: int) -> DataFile:
        """Return the columns of a batch, put in the order of the classes; ``row`` is the number of its first row."""
        name = f"partition {partition} of the frame"
        with explained(name):
            block = arrow_block(batch, self.plan.columns, self.plan.texts, batch.nbytes)
            end = row + batch.num_rows
            piece = Piece(
                Path(name), (row, 0), end, row, batch.num_rows, None, self.reading, batch.num_rows
            )
            names = self.reading.request.classes or self.plan.classes
            data = data_of_block(self.plan, piece, block, row, names=names)
            return data.in_order_of(self.reading.order)

    def rows(self, batch: pa.RecordBatch, partition: int, row: int) -> Rows | None:
        """Return the checked rows of a batch; None if it has none."""
        if not batch.num_rows:
            return None
        data = self.data(batch, partition, row)
        if not len(data.values):
            return None
        return replace(rows_of(data, row, complete=False), origin=None)


@dataclass(frozen=True)
class _Table:
    """A frame, and how its columns are read."""

    frame: DataFrame
    reader: _Reader

    @classmethod
    def of(cls, frame: DataFrame, request: Request, calibrator: Calibrator | None) -> _Table:
        """Find the columns of a frame; those of Spark ML's vectors become arrays."""
        if not hasattr(frame, "mapInArrow"):
            raise TypeError(f"frame must be a pyspark DataFrame, got {type(frame).__name__}")
        if request.labels is not None:
            raise ValueError("labels of a second file: join them to the frame, and name the column")
        plan = plan_of(frame.columns, request, "test", table=True)
        order = fitted_names(calibrator)
        reading = Reading(request, order=None if order is None else tuple(order))
        return cls(_with_arrays(frame, plan.scores), _Reader(plan, reading))

    def like_first(self, first: DataFile) -> _Table:
        """Return this table, read as rows of the kind and the classes of the first."""
        reading = self.reader.reading.after(first)
        return replace(self, reader=replace(self.reader, reading=reading))

    def without(self, name: str, taken: Iterable[str]) -> _Table:
        """Return this table with another name for its column of this name, if it has one."""
        if name not in self.frame.columns:
            return self
        other = free_name(name, {*self.frame.columns, *taken})
        plan = self.reader.plan
        renamed = replace(
            plan,
            scores=_with_name(plan.scores, name, other),
            roles={role: other if n == name else n for role, n in plan.roles.items()},
            by=_with_name(plan.by, name, other),
            segments=_with_name(plan.segments, name, other),
        )
        frame = self.frame.withColumnRenamed(name, other)
        return replace(self, frame=frame, reader=replace(self.reader, plan=renamed))

    @property
    def selected(self) -> DataFrame:
        """The frame with the columns that are read, and no others."""
        from pyspark.sql import functions as f

        # Backticks, because a dot in a name would mean a field of a struct.
        names = [name.replace("`", "``") for name in self.reader.plan.columns]
        return self.frame.select([f.col(f"`{name}`") for name in names])

    def first(self) -> DataFile:
        """Return some of the first rows."""
        table = self.selected.limit(_PROBE).toArrow().combine_chunks()
        if not table.num_rows:
            raise ValueError("the frame has no rows")
        return self.reader.data(table.to_batches()[0], 0, 0)

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How many rows every partition has."""
        sizes = self.selected.mapInArrow(_count, "partition int, size long").collect()
        return {row.partition: row.size for row in sizes}


def _with_name(columns: Iterable[str], name: str, other: str) -> list[str]:
    return [other if column == name else column for column in columns]


def _with_arrays(frame: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return a frame in which score columns that are vectors of Spark ML are arrays."""
    fields = frame.schema.fields
    vectors = {field.name for field in fields if type(field.dataType).__name__ == "VectorUDT"}
    for name in vectors.intersection(columns):
        from pyspark.ml.functions import vector_to_array

        frame = frame.withColumn(name, vector_to_array(frame[name]))
    return frame


def _request_of(columns: RequestedColumns, calibrator: Calibrator | None) -> Request:
    """Return how the columns are asked for; what is left open is as in the calibrator's fit."""
    if isinstance(columns, str):
        columns = Request(scores=columns)
    if not isinstance(columns, Request | None):
        raise TypeError(f"columns must be a text or an hcal.io.Request, got {quoted(columns)}")
    request = columns or Request()
    return request if calibrator is None else request.for_model(fitted_request(calibrator))


# -- the calibrator ----------------------------------------------------------------------------------


class _TravellingModel:
    """A calibrator that goes to another process as the bytes of its model file, and arrives as itself."""

    def __init__(self, calibrator: Calibrator) -> None:
        self._calibrator = calibrator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calibrator, name)

    def __reduce__(self) -> tuple[Callable[[bytes], Calibrator], tuple[bytes]]:
        return _arrived, (_packed(self._calibrator),)


def _packed(calibrator: Calibrator) -> bytes:
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder, "model.hcal")
        save(calibrator, path)
        return path.read_bytes()


def _arrived(content: bytes) -> Calibrator:
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder, "model.hcal")
        path.write_bytes(content)
        return load(path)


def _loaded(model: Model) -> Calibrator:
    """Return a fitted calibrator, or the one in a file."""
    return load(model) if isinstance(model, str | os.PathLike) else model


@dataclass(frozen=True)
class _Transforming:
    """The work of one task: batches with probabilities beside their columns."""

    reader: _Reader
    calibrator: Calibrator | _TravellingModel
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield every batch with the new columns."""
        import pyarrow as pa

        partition = _partition()
        row = 0
        for batch in batches:
            probs = np.empty((0, len(self.names)))
            if batch.num_rows:
                data = self.reader.data(batch, partition, row)
                probs = predict_with_segments(self.calibrator, data.values, data.segments)
            new = [pa.array(column, pa.float64()) for column in np.asarray(probs, float).T]
            row += batch.num_rows
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *new], [*batch.schema.names, *self.names]
            )
