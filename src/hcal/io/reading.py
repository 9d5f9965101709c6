"""Scores and labels from files, in the formats that people have.

A file *says* what it holds (the key ``logits``, ``probs`` or ``log_probs``); where it cannot (a bare
``.npy`` matrix, a table with free column names) the caller must. Nothing is guessed from the numbers. One
reader a format reads blocks of rows: a whole file is one block.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.inputs import InputKind
from hcal.io.arrays import BARE, OPENERS, ArrayRows
from hcal.io.class_names import ClassName, check_classes, encode, reorder
from hcal.io.language_models import is_questions, read_questions
from hcal.io.limits import check_bytes, explained, one_line, open_regular, size_of
from hcal.io.request import Request
from hcal.io.table_files import READERS, Cut, text_column
from hcal.io.tables import Part, Plan, UnlabelledError, missing_labels, plan_of, refuse_identifiers

#: The types that can be read.
TYPES: Final = tuple(sorted([*OPENERS, *READERS]))
#: What has a value a row.
_BY_ROW: Final = ("values", "y", "ids", "groups", "weight")
#: Below a folder: a name that begins with a point or an underscore.
_HIDDEN: Final = re.compile(r"/[._]")
#: The parts that may hold text, and where they stand in a :class:`DataFile`.
_TEXT_ROLES: Final = {"label": "y", "id": "ids", "group": "groups"}


class MissingLabelsError(ValueError):
    """A file has no labels."""


@dataclass(frozen=True)
class DataFile:
    """Rows of a file, or of several.

    Attributes
    ----------
    path : Path
    kind : {"logits", "probs", "log_probs"}
        What ``values`` holds, as the file or the caller said.
    values : array of shape (N, K), or (N,) for a binary score
    y : array of shape (N,), or None
        As the file has them: integers 0..K−1 or names.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    classes : tuple of str, or None
        Names of the classes in the order of the columns, where the file or the caller gives them.
    ids, groups, weight : array of shape (N,), or None
        What :class:`Request` asked for.
    more : tuple of Path
        The files that were read together with ``path``.
    questions : bool
        Whether rows are questions with their options, −inf where one does not exist.
    columns : dict of str
        What the file calls the label, id, group and weight.
    beside : dict of arrays
        All columns but the scores, the id and the label, where they were to be kept.
    dropped : int
        Rows that were left out because they have no label, or a confidence that cannot be read.
    notes : tuple of str
        What a person should be told about the reading.
    made_by : str
        Names the calibrator that made the probabilities, where the file says so.
    """

    path: Path
    kind: InputKind
    values: NDArray[Any]
    y: NDArray[Any] | None
    part: str
    classes: tuple[str, ...] | None = None
    ids: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    more: tuple[Path, ...] = ()
    questions: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    dropped: int = 0
    notes: tuple[str, ...] = ()
    made_by: str = ""

    @property
    def name(self) -> str:
        """The name of the file, and how many came with it."""
        return f"{self.path.name} and {len(self.more)} more" if self.more else self.path.name

    @property
    def n_classes(self) -> int:
        """How many classes the scores have; two where there is one score a row."""
        return 2 if self.values.ndim == 1 else int(self.values.shape[1])

    def checksum(self) -> str:
        """Return the SHA-256 of the file; of the checksums where there are several."""
        each = [checksum(path) for path in (self.path, *self.more)]
        return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()

    def labels(self) -> NDArray[Any]:
        """Return the labels, names as the numbers of their classes, or say that this file has none."""
        if self.y is None:
            raise MissingLabelsError(f"{self.path.name} has no labels: add an array 'y' beside {self.kind!r}")
        if self.y.ndim == 2:
            raise ValueError(
                f"{self.path.name}: the labels are a matrix of shape {self.y.shape}, as for several "
                "labels a row: use hcal.MultilabelCalibrator, or give one label a row"
            )
        return np.asarray(encode(self.y, self.classes))

    def in_order_of(self, classes: Sequence[Any] | None) -> DataFile:
        """Return the same rows with the columns in the order of a model's classes, found by their names.

        Parameters
        ----------
        classes : sequence of K str or int, or None
            Of the model; None where it has no names, and then nothing is changed.
        """
        if classes is None:
            return self
        if self.classes is None:
            return replace(self, classes=tuple(classes))
        order = reorder(self.classes, classes)
        if order is None:
            return self
        if self.values.ndim == 1:
            raise ValueError(
                f"{self.path.name}: the one score a row is that of class {self.classes[1]!r} here and of "
                f"class {classes[1]!r} in the model: name the classes as the model does, "
                f"{classes[0]},{classes[1]}"
            )
        # Numbers count the columns of the file; names do not care.
        y = None if self.y is None else np.array(self.classes)[self.labels()]
        return replace(self, values=self.values[:, order], classes=tuple(map(str, classes)), y=y)

    def rows(self, kept: NDArray[Any]) -> DataFile:
        """Return some of the rows, by a mask or by numbers."""
        some: dict[str, Any] = {n: None if (a := getattr(self, n)) is None else a[kept] for n in _BY_ROW}
        return replace(self, **some, beside={n: a[kept] for n, a in self.beside.items()})


@dataclass(frozen=True)
class Reading:
    """How rows are read, whichever file they are in; the last three say what the first rows have."""

    request: Request
    part: Part = "test"
    keep: bool = False
    order: tuple[ClassName, ...] | None = None
    texts: frozenset[str] | None = None
    n_classes: int | None = None

    def after(self, first: DataFile) -> Reading:
        """Return how the rows that follow are read: like the first."""
        held = {role: getattr(first, name) for role, name in _TEXT_ROLES.items()}
        texts = frozenset(role for role, a in held.items() if a is not None and a.dtype.kind == "U")
        request = replace(self.request, input=first.kind)
        order = self.order or first.classes
        return replace(self, request=request, order=order, texts=texts, n_classes=first.n_classes)


@dataclass(frozen=True)
class Piece:
    """Rows of one file that can be read alone: small, and the same in every process that sees the files.

    Attributes
    ----------
    path : Path
    begin, end : int
        The rows of the file.
    cut : tuple
        Where they begin, in the unit of the format.
    start : int
        The number of the first of them in the whole source.
    count : int
        How many rows are left after those without a label were dropped.
    origin : int
        How many rows the files before this one have: a file of labels counts through.
    reading : Reading
    size : int
        The most rows of a block.
    """

    path: Path
    begin: int
    end: int
    cut: Cut
    start: int
    count: int
    origin: int
    reading: Reading
    size: int

    def __len__(self) -> int:
        return self.count


@contextmanager
def open_rows(path: Path) -> Iterator[Any]:
    """Open a file for reading some rows at a time."""
    suffix = path.suffix.lower()
    reader = READERS.get(suffix) or (ArrayRows if suffix in OPENERS else None)
    if reader is None:
        raise ValueError(f"cannot read {path.name}: the types are {', '.join(TYPES)}")
    with open_regular(path) as file:
        with explained(path.name):
            rows = reader(file, path.name)
        yield rows


def plan_for(rows: Any, reading: Reading) -> Plan:
    """Return what to read of an open file."""
    table = not isinstance(rows, ArrayRows)
    return plan_of(rows.names, reading.request, reading.part, table=table, index=rows.index)


def read_blocks(piece: Piece) -> Iterator[tuple[int, DataFile]]:
    """Yield the number of the first row of each block in the source, and the block."""
    reading, path, first = piece.reading, piece.path, piece.start
    with open_rows(path) as rows, explained(path.name):
        plan = plan_for(rows, reading)
        keep = rows.beside(plan.columns, rows.count(plan.scores)) if reading.keep else []
        texts = {n for role, n in plan.roles.items() if role in _TEXT_ROLES} | set(keep)
        listed = rows.whole(plan.listed) if plan.listed else None
        row = piece.begin
        if row == piece.end:
            yield first, _data(plan, path, reading, {n: np.empty(0) for n in plan.columns}, listed)
        for block in rows.blocks([*plan.columns, *keep], texts, piece.cut, row, piece.end, piece.size):
            length = len(block[plan.scores[0]])
            labels = _labels(reading.request.labels, piece.origin + row, piece.origin + row + length)
            data = _data(plan, path, reading, block, listed, labels, keep)
            _check_like_the_first(data, reading, first)
            data = _drop_unlabelled(data, reading.request, row).in_order_of(reading.order)
            data = replace(data, made_by=rows.made_by[:64]) if rows.made_by else data
            yield first, data
            first, row = first + len(data.values), row + length
        if row < piece.end:
            raise ValueError("it ends early: the file was cut short")


def _data(
    plan: Plan, path: Path, reading: Reading, block: dict[str, Any], listed: Any, labels: Any = None,
    keep: Sequence[str] = (),
) -> DataFile:  # fmt: skip
    """Return the columns of a block by the parts they play."""
    values = _scores(plan, reading, [np.asarray(block[name]) for name in plan.scores])
    known = reading.texts or frozenset()
    parts = {
        role: text_column(block[n], text=role in known, ids=role == "id")
        for role, n in plan.roles.items()
        if role in _TEXT_ROLES
    }
    y = parts.get("label") if labels is None else labels
    y = y[:, 0] if y is not None and y.ndim == 2 and y.shape[1] == 1 else y
    data = DataFile(
        path, plan.kind, values, y, plan.part, ids=parts.get("id"), groups=parts.get("group"),
        weight=block[plan.roles["weight"]] if "weight" in plan.roles else None, columns=plan.roles,
        beside={name: _kept(block[name]) for name in keep},
    )  # fmt: skip
    if reading.keep:  # the group and the weight go on too, under their own names
        more = {"group": data.groups, "weight": data.weight}
        data.beside.update({plan.roles[role]: a for role, a in more.items() if role in plan.roles})
    names = reading.request.classes
    if names is None:
        names = plan.classes if listed is None else tuple(map(str, listed.ravel().tolist()))
    for role in ("ids", "groups", "weight"):
        array = getattr(data, role)
        if array is not None and array.shape != (len(values),):
            raise ValueError(f"{role} must have one value a row, got shape {array.shape}")
    if names is None:
        return data
    return replace(data, classes=tuple(map(str, check_classes(names, data.n_classes))))


def _kept(cells: Any) -> NDArray[Any]:
    """Return the cells of a column that is only carried along."""
    if isinstance(cells, np.ndarray):
        return cells
    out = np.empty(len(cells), dtype=object)
    for row, cell in enumerate(cells):
        out[row] = cell
    return out


def _scores(plan: Plan, reading: Reading, columns: list[NDArray[Any]]) -> NDArray[Any]:
    if plan.free and reading.texts is None:
        refuse_identifiers(columns, plan.scores)
    named = plan.scores[0] in (plan.kind, BARE) or reading.request.scores is not None or plan.part
    one = len(columns) == 1 and (columns[0].ndim > 1 or named)
    if not one and any(c.ndim > 1 for c in columns):
        raise ValueError(f"columns of lists beside others: {one_line(', '.join(plan.scores), 80)}")
    values = columns[0] if one else np.stack(columns, axis=1)
    if plan.kind == "probs":
        if reading.request.unit == "percent":
            values = values / 100
        elif values.size and 1.5 < values.max() <= 100 and values.min() >= 0:
            raise ValueError(
                f"its probs go up to {values.max():.4g}: if they are per cent, say unit='percent' "
                "(--unit percent)"
            )
    return values


def _check_like_the_first(data: DataFile, reading: Reading, first: int) -> None:
    """Refuse rows that are not like the first: other classes, or text where the first had numbers."""
    if reading.texts is None:
        return
    if reading.n_classes != data.n_classes:
        raise ValueError(f"it has {data.n_classes} classes, the first file {reading.n_classes}")
    for role, name in _TEXT_ROLES.items():
        array = getattr(data, name)
        if array is not None and array.dtype.kind == "U" and role not in reading.texts:
            raise ValueError(
                f"the {role} column holds numbers in the first rows and text after row {first:,}: "
                "read block by block it must hold one of them"
            )


def _drop_unlabelled(data: DataFile, request: Request, row: int) -> DataFile:
    """Refuse rows without a label, or leave them out where the request says so."""
    missing = None if data.y is None or data.y.ndim != 1 else missing_labels(data.y, data.classes)
    if missing is None or not missing.any():
        return data
    if request.unlabelled != "drop":
        if "label" in request.optional:  # a model applied to new rows: labels are only carried along
            return data
        count, name = int(missing.sum()), one_line(repr(data.columns.get("label", "y")), 60)
        have = "1 row has" if count == 1 else f"{count:,} rows have"
        raise UnlabelledError(
            f"{data.path.name}: {have} no label in {name}, first row {row + int(np.argmax(missing)):,}: "
            "unlabelled='drop' (--unlabelled drop) leaves them out"
        )
    return replace(data.rows(~missing), dropped=int(missing.sum()))


def _labels(path: Path | None, start: int, stop: int) -> NDArray[Any] | None:
    """Return labels ``start`` to ``stop`` − 1 of a file that holds nothing else, or calls them ``y``."""
    if path is None:
        return None
    with open_rows(path) as rows, explained(path.name):
        name = label_name(rows, path)
        if stop > rows.count([name]):
            raise ValueError(f"{path.name} has {rows.count([name]):,} labels, and there are more rows")
        cut = (0, 0) if not rows.cuts else rows.cuts[0]
        blocks = rows.blocks([name], [name], cut, start, stop, max(stop - start, 1))
        found = [text_column(block[name]) for block in blocks]
    y = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    return y.reshape(-1) if y.ndim == 2 and 1 in y.shape else y


def label_name(rows: Any, path: Path) -> str:
    """Return what a file of labels calls them: ``y``, or the one column that it has."""
    if "y" in rows.names or len(rows.names) == 1:
        return "y" if "y" in rows.names else str(rows.names[0])
    raise ValueError(f"{path.name} has no 'y'; it holds: {one_line(', '.join(sorted(rows.names)), 120)}")


def whole_piece(path: Path, reading: Reading, first: int = 0, origin: int = 0) -> Piece:
    """Return all rows of a file as one piece, once they are known to fit into memory."""
    with open_rows(path) as rows, explained(path.name):
        plan = plan_for(rows, reading)
        n_rows = rows.count(plan.columns)
        check_bytes(path.name, rows.n_bytes(plan.columns), size_of(rows.file))
        cut = (0, 0) if not rows.cuts else rows.cuts[0]
    return Piece(path, 0, n_rows, cut, first, n_rows, origin, reading, max(n_rows, 1))


def check_label_count(path: Path | None, n_rows: int) -> None:
    """Refuse a file of labels that has more or fewer than there are rows."""
    if path is not None:
        with open_rows(path) as rows, explained(path.name):
            count = rows.count([label_name(rows, path)])
        if count != n_rows:
            raise ValueError(f"{path.name} has {count:,} labels for {n_rows:,} rows")


def read(
    path: str | Path | Sequence[str | Path],
    request: Request | None = None,
    *,
    part: Part = "test",
    keep: bool = False,
    order: Sequence[ClassName] | None = None,
) -> DataFile:
    """Read scores and labels from a file, several files, a folder or a pattern.

    Parameters
    ----------
    path : path-like, or sequence of them
        ``.npz .npy .csv .parquet .feather .jsonl .safetensors`` or a numpy pickle ``.p``; a folder or
        ``"scores/*.parquet"`` is one set of rows, its files in sorted order.
    request : Request, optional
        What the file calls its columns, what its scores are, what happens to rows without a label.
    part : {"cal", "test"}
        Which part of a task file (``logits_cal``, ``y_cal``, ``logits_test``, ``y_test``); a file without
        parts is read whole.
    keep : bool
        Whether all other columns are carried along (``DataFile.beside``).
    order : sequence of K str or int, optional
        Names of the classes in the order in which the columns are to come; by default that of the first file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("id,logit_cat,logit_dog,target\\n7,0.5,1.5,dog\\n8,2.5,0.5,cat\\n")
    >>> data = read(path, Request(scores="logit_*", label="target", id="id"))
    >>> data.kind, data.classes, data.ids, data.labels()
    ('logits', ('cat', 'dog'), array([7, 8]), array([1, 0]))
    """
    request = request or Request()
    paths = files_of(path)
    if paths is None:
        raise TypeError(f"read takes names of files, got {type(path).__name__}")
    if request.plain and is_questions(paths):
        found = read_questions(paths, request)
        return DataFile(paths[0], part="", more=tuple(paths[1:]), **found)
    reading, parts = Reading(request, part, keep, None if order is None else tuple(order)), list[DataFile]()
    first = origin = 0
    for each in paths:
        piece = whole_piece(each, reading, first, origin)
        if not len(piece):
            raise ValueError(f"{each.name} has no rows")
        ((_, data),) = read_blocks(piece)
        reading = reading.after(data)
        parts.append(data)
        first, origin = first + len(data.values), origin + len(piece)
    check_label_count(request.labels, origin)
    return joined(parts, paths)


def joined(parts: Sequence[DataFile], paths: Sequence[Path]) -> DataFile:
    """Return rows that were read one after the other as one set."""
    first, dropped = parts[0], sum(part.dropped for part in parts)
    words = "1 row without a label was" if dropped == 1 else f"{dropped:,} rows without a label were"
    notes = (f"{words} dropped",) if dropped else ()
    more = {"path": paths[0], "more": tuple(paths[1:]), "dropped": dropped, "notes": notes}
    if len(parts) == 1:
        return replace(first, **more)  # type: ignore[arg-type]
    arrays = {}
    for name in _BY_ROW:
        held = [getattr(part, name) for part in parts]
        arrays[name] = None if any(a is None for a in held) else np.concatenate(held)
    both = [n for n in first.beside if all(n in part.beside for part in parts)]
    beside = {n: np.concatenate([part.beside[n] for part in parts]) for n in both}
    return replace(first, **arrays, beside=beside, **more)  # type: ignore[arg-type]


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file of arrays by name.

    Examples
    --------
    >>> read_arrays("a.csv")
    Traceback (most recent call last):
    ...
    ValueError: a.csv is no file of arrays: .npy, .npz, .safetensors, .p, .pkl
    """
    if Path(path).suffix.lower() not in OPENERS:
        raise ValueError(f"{Path(path).name} is no file of arrays: {', '.join(OPENERS)}")
    with open_rows(Path(path)) as rows, explained(Path(path).name):
        check_bytes(rows.name, rows.n_bytes(rows.names), size_of(rows.file))
        return {name: rows.whole(name) for name in rows.names}


def declared_bytes(path: Any, request: Request) -> int:
    """Return the bytes that the wanted arrays of files take, as far as they tell without being read."""
    total = 0
    for each in files_of(path) or ():
        if each.suffix.lower() not in (".npy", ".npz", ".safetensors", ".parquet"):
            total += each.stat().st_size
            continue
        with open_rows(each) as rows, explained(each.name):
            total += rows.n_bytes(plan_for(rows, Reading(request)).columns)
    return total


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, to name the data behind a result.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"")
    >>> checksum(path)[:12]
    'e3b0c44298fc'
    """
    with open_regular(Path(path)) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# -- which files a name stands for --------------------------------------------------------------------


def files_of(source: Any) -> list[Path] | None:
    """Return the files of a source in their order; None where it is no name.

    >>> files_of("a.npz"), files_of([[1.0, 2.0]])
    ([PosixPath('a.npz')], None)
    """
    names = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(names, list | tuple) or not names:
        return None
    if not all(isinstance(p, str | os.PathLike) for p in names):
        return None
    found = [file for path in names for file in _named(Path(path))]
    types = sorted({p.suffix.lower() for p in found})
    if len(types) > 1:
        raise ValueError(f"files of several types, {one_line(', '.join(types))}: name one with a pattern")
    return found


def by_blocks(source: Any) -> bool:
    """Whether names stand for several files whose rows are read by blocks: not answers of language models."""
    paths = files_of(source) or []
    names = source if isinstance(source, list | tuple) else [source]
    several = len(paths) > 1 or paths != [Path(names[0])]
    return several and not is_questions(paths)


def _named(path: Path) -> list[Path]:
    """Return the files that a name stands for: one, those below a folder, or those that match a pattern.

    Of a folder, hidden files and those that engines keep for themselves are left out.
    """
    folder = path.is_dir()
    pattern = not path.exists() and has_magic(str(path))
    if (folder and path.suffix.lower() in TYPES) or not (folder or pattern):
        return [path]
    if folder:
        inside = [p for p in path.rglob("*") if not _HIDDEN.search(f"/{p.relative_to(path).as_posix()}")]
        words = f"{path} holds no file of a known type"
    else:
        inside = [Path(name) for name in glob(str(path), recursive=True)]
        words = f"no file of a known type matches {path}"
    files = sorted(p for p in inside if p.suffix.lower() in TYPES and not p.is_dir())
    if not files:
        raise FileNotFoundError(f"{words}: {', '.join(TYPES)}")
    return files
