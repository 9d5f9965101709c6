"""Read scores and labels from files, all rows at once or piece by piece.

A file *says* what it holds by the name ``logits``, ``probs`` or ``log_probs``. If it cannot (a bare ``.npy`` matrix, a
table with free column names), the caller must say it. Nothing is guessed from the numbers. There is one reader per
format, and it yields blocks of rows: a whole file is one block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hcal import class_names
from hcal.class_names import ClassName, ColumnCells, label_cells, typed
from hcal.columns import refuse_numbers_from_one
from hcal.frames import AnyArray
from hcal.inputs import InputKind
from hcal.io.files import (
    TYPES,
    FilesLike,
    check_memory,
    checksum,
    explained,
    files_of,
    open_regular,
    partition_values,
    paths_of,
)
from hcal.io.formats import READERS, check_mask
from hcal.io.partitions import PartitionedRows
from hcal.io.records import are_answers, is_answers
from hcal.io.request import Part, Plan, Request, listed, plan_of
from hcal.io.row_reader import Block, Cut, RowReader
from hcal.io.scale import Scale
from hcal.numerics import NumpyArray
from hcal.progress import logger
from hcal.text import one_line, quoted

#: The fields of a :class:`DataFile` with one value per row.
_BY_ROW: Final = ("values", "y", "ids", "groups", "weight", "time")
_IN_WORDS: Final = {"y": "labels", "weight": "weights", "time": "times"}
#: The name of the labels of a second file among the columns of a block.
_LABELS: Final = "\0labels"
#: A file is cut into about this many pieces at most, however many processes read them: results must not depend on it.
_MOST_PIECES: Final = 256
PathOrPaths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class DataFile:
    """Rows of a file, or of several.

    Attributes
    ----------
    path : Path
    kind : {"logits", "probs", "log_probs"}
        What ``values`` holds, as the file or the caller says.
    values : array of shape (N, K), or (N,) for a binary score
    y : array of shape (N,), or None
        The labels in the file: integers 0..K−1 or names.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    classes : tuple of str, or None
        Names of the classes in the order of the columns, if the file or the caller gives them.
    ids, groups, weight, time : array of shape (N,), or None
        The columns that :class:`Request` names.
    by, segments : dict of arrays
        The columns of subgroups, and of the segments of a calibrator, that :class:`Request` names.
    more : tuple of Path
        The files that were read together with ``path``.
    questions : bool
        Whether rows are questions with options; an option that does not exist has −inf.
    beside : dict of arrays
        All columns but the scores, the id and the label, if the caller asked to keep them.
    dropped : int
        Rows that were left out because they have no label, or a confidence that cannot be read.
    notes : tuple of str
        Messages for the user about the reading.
    made_by : str
        The calibrator that made the probabilities, if the file says so.
    turned : bool
        Whether the columns are in another order than in the file, which labels that are numbers may count.
    from_one : tuple of str
        The columns of the scores where these are numbered from 1 to K and no model says what they are.
    """

    path: Path
    kind: InputKind
    values: NumpyArray
    y: NumpyArray | None
    part: str
    classes: tuple[str, ...] | None = None
    ids: NumpyArray | None = None
    groups: NumpyArray | None = None
    weight: NumpyArray | None = None
    time: NumpyArray | None = None
    by: dict[str, NumpyArray] = field(default_factory=dict)
    segments: dict[str, NumpyArray] = field(default_factory=dict)
    more: tuple[Path, ...] = ()
    questions: bool = False
    beside: dict[str, NumpyArray] = field(default_factory=dict)
    dropped: int = 0
    notes: tuple[str, ...] = ()
    made_by: str = ""
    turned: bool = False
    from_one: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the file, and how many came with it."""
        return f"{self.path.name} and {len(self.more)} more" if self.more else self.path.name

    @property
    def n_classes(self) -> int:
        """How many classes the scores have; two if there is one score per row."""
        return 2 if self.values.ndim == 1 else int(self.values.shape[1])

    def checksum(self) -> str:
        """Return the SHA-256 of the file, or of the checksums of several files."""
        digests = "".join(checksum(path) for path in (self.path, *self.more))
        return hashlib.sha256(digests.encode()).hexdigest() if self.more else digests

    def labels(self, *, complete: bool = True) -> NumpyArray:
        """Return the labels, with names turned into the numbers of their classes; refuse a file without labels.

        ``complete`` says whether these are all rows: a block alone does not show from which number they count.
        """
        if self.y is None:
            advice = "name the column with label= (--label), or a file with labels= (--labels)"
            raise ValueError(
                f"{self.path.name} has no labels: add an array 'y' beside {self.kind!r}, or "
                f"{advice}"
            )
        y = class_names.labels_by_number(self.y, self.classes)
        if self.turned and not class_names.is_text(y):
            raise ValueError(
                f"{self.path.name}: the columns are in another order than the classes "
                f"{listed(self.classes or ())}, and the labels are numbers, which may count "
                "either: write names of classes as labels"
            )
        labels = np.asarray(class_names.encode(y, self.classes))
        if self.from_one and complete and self.classes is None and labels.ndim == 1:
            refuse_numbers_from_one(self.from_one, labels)
        return labels

    def in_order_of(self, classes: Sequence[ClassName] | None) -> DataFile:
        """Return the same rows with the columns in the order of a model's classes, matched by name.

        Parameters
        ----------
        classes : sequence of K str or int, or None
            Of the model; None if it has no names, and then nothing is changed.
        """
        if classes is None:
            return self
        if self.classes is None:
            return replace(self, classes=tuple(map(str, classes)))
        order = class_names.reorder(self.classes, classes)
        if order is None:
            return self
        if self.values.ndim == 1:
            both = f"class {self.classes[1]!r} here and of class {classes[1]!r} in the model"
            advice = f"name the classes as the model does, {classes[0]},{classes[1]}"
            raise ValueError(f"{self.path.name}: the one score a row is that of {both}: {advice}")
        in_order = tuple(map(str, classes))
        return replace(self, values=self.values[:, order], classes=in_order, turned=True)

    def rows(self, kept: NumpyArray) -> DataFile:
        """Return some of the rows, by a mask or by numbers."""
        columns: dict[str, AnyArray] = {}
        for name in _BY_ROW:
            column = getattr(self, name)
            columns[name] = None if column is None else column[kept]
        beside = {name: column[kept] for name, column in self.beside.items()}
        by = {name: column[kept] for name, column in self.by.items()}
        segments = {name: column[kept] for name, column in self.segments.items()}
        return replace(self, **columns, beside=beside, by=by, segments=segments)


@dataclass(frozen=True)
class Reading:
    """How rows are read, whichever file they are in; ``n_classes`` is known after the first rows."""

    request: Request
    part: Part = "test"
    keep: bool = False
    order: tuple[ClassName, ...] | None = None
    n_classes: int | None = None

    def after(self, first: DataFile) -> Reading:
        """Return how the following rows are read: with the kind and the classes of the first."""
        request = replace(self.request, input=first.kind)
        return replace(
            self, request=request, order=self.order or first.classes, n_classes=first.n_classes
        )


@dataclass(frozen=True)
class Piece:
    """Some rows of one file that can be read alone, in any process that sees the file.

    Attributes
    ----------
    path : Path
    cut : tuple
        The first row of the file, and where it begins in the unit of the format.
    end : int
        The row of the file after the last.
    start : int
        The number of the first row in the whole source.
    count : int
        How many rows remain when those to be left out for their labels are dropped.
    labels : array with a value for each row, or None
        Labels from a second file.
    reading : Reading
    size : int
        The most rows of a block.
    """

    path: Path
    cut: Cut
    end: int
    start: int
    count: int
    labels: NumpyArray | None
    reading: Reading
    size: int

    def __len__(self) -> int:
        return self.count


@contextmanager
def open_rows(path: Path) -> Iterator[RowReader]:
    """Open a file and yield its reader; errors inside the block name the file."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"cannot read {path.name}: the types are {', '.join(TYPES)}")
    with open_regular(path) as file, explained(path.name):
        rows = reader(file, path.name)
        folders = partition_values(path)
        yield PartitionedRows(rows, folders) if folders else rows


@contextmanager
def planned_rows(path: Path, reading: Reading) -> Iterator[tuple[RowReader, Plan]]:
    """Open a file and yield its reader and the plan of what to read; errors inside the block name the file."""
    with open_rows(path) as rows:
        plan = plan_of(rows.names, reading.request, reading.part, table=rows.table)
        rows.follow(plan)
        yield rows, plan


def column_names(path: Path) -> list[str]:
    """Return the columns or arrays that a file holds itself, without those that its folders add."""
    reader = READERS[path.suffix.lower()]
    with open_regular(path) as file, explained(path.name):
        return list(reader(file, path.name).names)


def preview(path: Path, n_rows: int) -> dict[str, list[object]]:
    """Return the first cells of every column of a table, as they stand in the file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("p,y\\n0.5,1\\n0.25,0\\n")
    >>> preview(path, 1)
    {'p': ['0.5'], 'y': ['1']}
    """
    with open_rows(path) as rows:
        if not rows.table:
            raise ValueError("it holds arrays, and no table of columns")
        if not rows.count(rows.names):
            raise ValueError("it has no rows")
        first = rows.cuts(rows.names, 1)[0]
        block = next(rows.blocks(rows.names, rows.names, first, n_rows, n_rows))
        return {name: list(block[name][:n_rows]) for name in rows.names}


def pieces_of(
    paths: Sequence[Path], reading: Reading, size: int | None = None, peak: float = 1
) -> Iterator[Piece]:
    """Yield the pieces of files; without a size a file is one piece, after a check that memory can hold all files.

    ``peak`` is the number of bytes that the caller will need for each byte of the rows.
    """
    labels = None if reading.request.labels is None else _read_labels(Path(reading.request.labels))
    start = origin = needed = 0
    for path in paths:
        pieces = []
        with planned_rows(path, reading) as (rows, plan):
            n_rows = rows.count(plan.columns)
            if size is None:
                if not n_rows:
                    raise ValueError("it has no rows")
                needed += rows.n_bytes(plan.columns)
                check_memory(path.name, peak * needed)
            most = size or max(n_rows, 1)
            if labels is not None and labels.ndim > 2 and rows.spatial:
                check_mask(labels.shape, rows.spatial)
                labels = labels.reshape(-1)
            cuts = rows.cuts(plan.columns, most * max(1, -(-n_rows // (most * _MOST_PIECES))))
            for cut, (stop, _) in pairwise([*cuts, (n_rows, 0)]):
                piece_labels = None if labels is None else labels[origin + cut[0] : origin + stop]
                count = (
                    stop - cut[0] - _count_left_out(rows, plan, cut, stop, piece_labels, reading)
                )
                pieces.append(Piece(path, cut, stop, start, count, piece_labels, reading, most))
                start += count
        origin += n_rows
        if labels is not None and (
            len(labels) < origin or (path == paths[-1] and len(labels) > origin)
        ):
            name = Path(str(reading.request.labels)).name
            raise ValueError(
                f"{name} has {len(labels):,} labels, and there are {origin:,} rows or more"
            )
        yield from pieces


def read_columns(path: Path, names: Sequence[str]) -> dict[str, NumpyArray]:
    """Return columns of a file that need not hold scores, such as ids and their labels.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("id,y\\n7,dog\\n8,cat\\n")
    >>> read_columns(path, ["id", "y"])
    {'id': array(['7', '8'], dtype='<U1'), 'y': array(['dog', 'cat'], dtype='<U3')}
    """
    with open_rows(path) as rows:
        for name in names:
            if name not in rows.names:
                raise ValueError(
                    f"it has no {quoted(name)}; it holds: {listed(sorted(rows.names))}"
                )
        n_rows = rows.count(names)
        check_memory(path.name, rows.n_bytes(names))
        first = rows.cuts(names, n_rows + 1)[0]
        blocks = list(rows.blocks(names, names, first, n_rows, n_rows + 1))
        if not blocks:
            raise ValueError("it has no rows")
        return {name: np.concatenate([typed(block[name]) for block in blocks]) for name in names}


def _read_labels(path: Path) -> NumpyArray:
    """Return the labels of a file that has one column only, or a column ``y``."""
    with open_rows(path) as rows:
        if "y" not in rows.names and len(rows.names) != 1:
            raise ValueError(f"it has no 'y'; it holds: {listed(sorted(rows.names))}")
        name = "y" if "y" in rows.names else rows.names[0]
    y = read_columns(path, [name])[name]
    return y.reshape(-1) if y.ndim == 2 and 1 in y.shape else y


def _left_out(
    y: NumpyArray, reading: Reading, plan: Plan, row: int, classes: Sequence[ClassName] | None
) -> NDArray[np.bool_]:
    """Return which rows are left out for their labels; raise ValueError for missing ones that may not be dropped."""
    request = reading.request
    if y.ndim != 1:
        return np.zeros(len(y), dtype=bool)
    missing = class_names.missing_labels(y, classes)
    number = request.ignore_index
    ignored: NDArray[np.bool_] = y == (str(number) if y.dtype.kind == "U" else number)
    if request.unlabelled == "drop":
        return np.logical_or(missing, ignored)
    if (
        missing.any() and "label" not in request.optional
    ):  # a model applied to new rows only carries labels along
        name, last, bad = (
            quoted(plan.roles.get("label", "y")),
            row + len(y) - 1,
            row + missing.argmax(),
        )
        where = f"{name} in {missing.sum():,} of the rows {row:,} to {last:,}, first in row {bad:,}"
        raise ValueError(
            f"it has no label in {where}: unlabelled='drop' (--unlabelled drop) leaves them out"
        )
    return ignored


def _count_left_out(
    rows: RowReader, plan: Plan, cut: Cut, stop: int, labels: NumpyArray | None, reading: Reading
) -> int:
    """Return how many rows of a piece will be left out for their labels."""
    request = reading.request
    if request.unlabelled != "drop" and request.ignore_index is None:
        return 0
    name = plan.roles.get("label")
    cells: Iterable[ColumnCells] = []
    if labels is not None:
        cells = [labels]
    elif name is not None:
        cells = (block[name] for block in rows.blocks([name], [name], cut, stop, 2**16))
    label_blocks = (label_cells(block, reading.order) for block in cells)
    return sum(int(_left_out(y, reading, plan, cut[0], reading.order).sum()) for y in label_blocks)


def read_blocks(piece: Piece) -> Iterator[tuple[int, DataFile]]:
    """Yield the blocks of a piece, each with the number of its first row in the whole source."""
    reading, first, row = piece.reading, piece.start, piece.cut[0]
    n_classes = reading.n_classes
    with planned_rows(piece.path, reading) as (rows, plan):
        keep = rows.beside(plan.columns) if reading.keep else []
        texts = plan.texts | set(keep)
        names = reading.request.classes or plan.classes or rows.classes
        for block in rows.blocks([*plan.columns, *keep], texts, piece.cut, piece.end, piece.size):
            length, begin = len(block[plan.scores[0]]), row - piece.cut[0]
            if piece.labels is not None:
                block[_LABELS] = piece.labels[begin : begin + length]
            data = data_of_block(plan, piece, block, row, keep, names)
            data = replace(data, made_by=rows.made_by[:64])
            if n_classes not in (None, data.n_classes):
                raise ValueError(f"it has {data.n_classes} classes, the rows before {n_classes}")
            n_classes = data.n_classes
            yield first, data.in_order_of(reading.order)
            first, row = first + len(data.values), row + length
        if row < piece.end:
            raise ValueError("it ends early: the file was cut short")


def data_of_block(
    plan: Plan,
    piece: Piece,
    block: Block,
    row: int,
    keep: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> DataFile:
    """Return the rows of a block, without those that are left out for their labels.

    Parameters
    ----------
    plan : Plan
    piece : Piece
    block : dict of columns
        As the readers of :mod:`hcal.io.formats` yield them.
    row : int
        The number of the block's first row in its file, for messages.
    keep : sequence of str
        Columns that are kept beside.
    names : sequence of K str, optional
        Names of the classes.
    """
    data = _data(plan, piece, block, keep, names)
    if data.y is None:
        return data
    left_out = _left_out(data.y, piece.reading, plan, row, data.classes)
    if not left_out.any():
        return data
    return replace(data.rows(~left_out), dropped=int(left_out.sum()))


def _data(
    plan: Plan, piece: Piece, block: Block, keep: Sequence[str], names: Sequence[str] | None
) -> DataFile:
    """Return the columns of a block as scores, labels, ids, groups and weights."""
    reading = piece.reading
    values = _scores(plan, reading.request, [np.asarray(block[name]) for name in plan.scores])
    parts = {role: typed(block[n]) for role, n in plan.roles.items() if role != "label"}
    for role, array in parts.items():
        if array.shape != (len(values),):
            raise ValueError(f"the {role} must have one value a row, got shape {array.shape}")
    cells = block.get(_LABELS, block.get(plan.roles.get("label", "")))
    y = None if cells is None else label_cells(cells, names or reading.order)
    by = {name: _segment_cells(block[name]) for name in plan.by}
    segments = {name: _segment_cells(block[name]) for name in plan.segments}
    beside = {name: np.fromiter(block[name], dtype=object) for name in keep}
    if reading.keep:  # groups, weight and time are kept under their own names
        kept = [role for role in ("groups", "weight", "time") if role in parts]
        beside |= {plan.roles[role]: parts[role] for role in kept}
        beside |= by | segments
    data = DataFile(
        piece.path,
        plan.kind,
        values,
        y,
        plan.part,
        ids=parts.get("id"),
        groups=parts.get("groups"),
        weight=parts.get("weight"),
        time=parts.get("time"),
        by=by,
        segments=segments,
        beside=beside,
        from_one=tuple(plan.scores) if plan.from_one and not reading.request.of_model else (),
    )
    if names is None:
        return data
    checked = class_names.check_classes(names, data.n_classes)
    return replace(data, classes=tuple(map(str, checked)))


def _segment_cells(cells: ColumnCells) -> NumpyArray:
    """Return the values of segments; those that are True or False stay so, as in a csv file."""
    if not isinstance(cells, np.ndarray) and any(isinstance(cell, bool) for cell in cells):
        return np.array(cells, dtype=object)
    return typed(cells)


def _scores(plan: Plan, request: Request, columns: list[NumpyArray]) -> NumpyArray:
    if len(columns) > 1 and any(c.ndim > 1 for c in columns):
        raise ValueError(f"columns of lists beside others: {one_line(', '.join(plan.scores), 80)}")
    values = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    if plan.kind == "probs" and request.unit not in (None, "fraction"):
        return np.asarray(Scale.of(request.unit).shares(values))
    if (
        plan.kind == "probs"
        and values.size
        and 1.5 < (top := values.max()) <= 100
        and values.min() >= 0
    ):
        raise ValueError(
            f"its probs go up to {top:.4g}: if they are per cent, say unit='percent' (--unit "
            "percent)"
        )
    return values


def read(
    path: PathOrPaths,
    request: Request | None = None,
    *,
    part: Part = "test",
    keep: bool = False,
    order: Sequence[ClassName] | None = None,
    peak: float = 1,
) -> DataFile:
    """Read scores and labels from a file, several files, a folder or a pattern.

    Parameters
    ----------
    path : path-like, or sequence of them
        ``.npz .npy .csv .parquet .feather .jsonl``; a folder or
        ``"scores/*.parquet"`` is one set of rows, its files in sorted order.
    request : Request, optional
        The names of the columns, the kind of the scores, and what happens to rows without a label.
    part : {"cal", "test"}
        Which part of a task file (``logits_cal``, ``y_cal``, ``logits_test``, ``y_test``); a file without
        parts is read whole.
    keep : bool
        Whether to keep all other columns (``DataFile.beside``).
    order : sequence of K str or int, optional
        Names of the classes in the order that the columns shall have; by default that of the first file.
    peak : float
        The bytes that you will need for each byte of the rows: files that need more memory than there is are refused.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("id,logit_cat,logit_dog,target\\n7,0.5,1.5,dog\\n8,2.5,0.5,cat\\n")
    >>> data = read(path, Request(scores="logit_*", label="target", id="id"))
    >>> data.kind, data.classes, data.ids, data.labels()
    ('logits', ('cat', 'dog'), array(['7', '8'], dtype='<U1'), array([1, 0]))
    """
    request = request or Request()
    paths = files_of(path)
    if paths[0].suffix.lower() == ".jsonl" and is_answers(paths, request):
        from hcal.language_models.files import read_answers

        fields = read_answers(paths, request, keep=keep)
        data = DataFile(paths[0], part="", more=tuple(paths[1:]), **fields)
    else:
        classes = None if order is None else tuple(order)
        data = _read_rows(paths, Reading(request, part, keep, classes), peak)
    for note in data.notes:
        logger.info("%s", note)
    return data


def _read_rows(paths: Sequence[Path], reading: Reading, peak: float) -> DataFile:
    """Return all rows of files."""
    parts: list[DataFile] = []
    for piece in list(pieces_of(paths, reading, peak=peak)):
        parts += [data for _, data in read_blocks(replace(piece, reading=reading))]
        if not parts:  # a damaged file may announce rows that it does not hold
            raise ValueError(f"cannot read {paths[0].name}: it has no rows")
        reading = reading.after(parts[0])
    dropped = sum(part.dropped for part in parts)
    words = (
        "1 row without a label was" if dropped == 1 else f"{dropped:,} rows without a label were"
    )
    return replace(
        _end_to_end(parts),
        path=paths[0],
        more=tuple(paths[1:]),
        dropped=dropped,
        notes=(f"{words} dropped",) if dropped else (),
    )


def _end_to_end(parts: Sequence[DataFile]) -> DataFile:
    """Return the rows of blocks as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    columns: dict[str, AnyArray] = {}
    for name in _BY_ROW:
        arrays = [getattr(part, name) for part in parts]
        missing = [array is None for array in arrays]
        if any(missing) and not all(missing):
            lacking = parts[missing.index(True)].path.name
            raise ValueError(f"{lacking} has no {_IN_WORDS.get(name, name)}, and other files have")
        columns[name] = None if any(missing) else np.concatenate(arrays)
    return replace(
        first,
        **columns,
        turned=any(part.turned for part in parts),
        beside=_joined([part.beside for part in parts]),
        by=_joined([part.by for part in parts]),
        segments=_joined([part.segments for part in parts]),
    )


def _joined(columns: Sequence[dict[str, NumpyArray]]) -> dict[str, NumpyArray]:
    """Return the columns that all blocks have, end to end."""
    first, *rest = columns
    names = [name for name in first if all(name in block for block in rest)]
    return {name: np.concatenate([block[name] for block in columns]) for name in names}


def by_blocks(source: FilesLike) -> bool:
    """Whether a source is several files whose rows are read by blocks; answers of language models are read whole."""
    paths = files_of(source)
    return (len(paths) > 1 or paths != paths_of(source)) and not are_answers(paths)
