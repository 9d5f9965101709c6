"""Tables: columns gathered into arrays by their names, and never by a guess.

A column is a score because its name says so (``logits_0``), or because the caller said that all free columns
are. Then a column that looks like something else (an index, an ``id``, a ``label``) is refused by name.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish
from hcal.io.columns import BARE, SCORES, Columns, listed, match_scores, may_be_text, role_key
from hcal.io.limits import check_bytes, one_line, size_of
from hcal.inputs import INPUT_KINDS

_COLUMN: Final = re.compile(r"(logits|probs|log_probs)(_cal|_test)?[ _.\[]?(\d{1,7})\]?")
_NAMED: Final = re.compile(r"(logits|probs|log_probs)_(.+)")
_NOT_SCORES: Final = re.compile(
    r"|unnamed: ?\d+|__index_level_\d+__|(row|sample)?[_ ]?(id|ids|index|idx|nr|number)|row|uuid|key"
    r"|(true|pred|predicted)?[_ ]?(label|labels|target|targets|class|classes|prediction|predictions)"
    r"|y[_ ](true|pred|hat)|pred|truth|folds?|splits?|groups?|parts?|(sample[_ ]?)?weights?"
    r"|date|time|timestamp",
    re.IGNORECASE,
)
#: A float takes this many times the bytes of the shortest cell, ``0,``.
WIDEST: Final = 4


class OtherColumnError(ValueError):
    """A column is among the scores that does not look like one."""


def columns_by_name(names: Sequence[str], columns: Columns | None = None) -> dict[str, list[str]]:
    """Say which columns make which array: ``{"logits": ["logits_0", "logits_1"], "y": ["y"]}``.

    Free columns stand under ``"_bare"`` where no column is named as a score, columns that the caller named
    under ``"@scores"``, ``"@label"``, ….

    >>> columns_by_name(["y", "probs_1", "probs_0"])
    {'y': ['y'], 'probs': ['probs_0', 'probs_1']}
    >>> columns_by_name(["id", "a", "b", "target"], Columns(scores="a,b", label="target"))
    {'@label': ['target'], '@scores': ['a', 'b']}
    """
    repeated = sorted({n for n in names if list(names).count(n) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ValueError(f"two columns are named {one_line(repr(repeated[0]), 60)}")
    columns = columns or Columns()
    arrays = _roles(names, columns)
    free = [n for n in names if [n] not in arrays.values()]
    if columns.scores is None:
        return arrays | _by_name(free)
    scores = {SCORES: match_scores(free, columns.scores)}
    return arrays | scores | ({"y": ["y"]} if "y" in free and scores[SCORES] != ["y"] else {})


def _roles(names: Sequence[str], columns: Columns) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for role, name in columns.wanted().items():
        if name not in names:
            raise ValueError(f"it has no column {one_line(repr(name), 60)}; it holds: {listed(names)}")
        found[role_key(role)] = [name]
    return found


def _by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """Gather columns by what they are called: numbered, named by a class, or free."""
    arrays: dict[str, list[str]] = {}
    numbered: dict[str, dict[int, str]] = {}
    rest: list[str] = []
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match:
            _number(numbered.setdefault(match[1] + (match[2] or ""), {}), int(match[3]), name)
        elif _kind_of(name) in (*INPUT_KINDS, "y"):
            arrays[name] = [name]
        else:
            rest.append(name)
    for name, found in numbered.items():
        _check_gaps(name, found)
        if name in arrays:
            raise ValueError(f"there is a column {name!r} and columns {name}_0, {name}_1, …")
        arrays[name] = [found[i] for i in sorted(found)]
    if not any(_kind_of(k) in INPUT_KINDS for k in arrays):
        arrays |= _by_class(rest) or ({BARE: rest} if rest else {})
    return arrays


def _by_class(names: Sequence[str]) -> dict[str, list[str]]:
    """Gather ``probs_cat, probs_dog``: a kind, and a class that has a name."""
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _NAMED.fullmatch(name):
            found.setdefault(match[1], []).append(name)
    return {kind: columns for kind, columns in found.items() if len(columns) > 1}


def _number(found: dict[int, str], index: int, name: str) -> None:
    if index in found:
        raise ValueError(f"the columns {found[index]!r} and {name!r} have the same number")
    found[index] = name


def _check_gaps(name: str, found: dict[int, str]) -> None:
    if sorted(found) not in (list(range(len(found))), list(range(1, len(found) + 1))):
        raise ValueError(f"the columns {name}_0, {name}_1, … have gaps: found {one_line(sorted(found), 80)}")


def _kind_of(name: str) -> str:
    return name.removesuffix("_cal").removesuffix("_test")


def refuse_other_columns(names: Iterable[str], index: Iterable[str] = ()) -> None:
    """Refuse free columns whose names say that they are no scores.

    >>> refuse_other_columns(["cat", "dog"])
    >>> refuse_other_columns(["id", "cat", "dog"])
    Traceback (most recent call last):
    ...
    hcal.io.tables.OtherColumnError: the column 'id' does not look like scores: leave it out ...
    """
    for name in names:
        if name in index or _NOT_SCORES.fullmatch(name.strip()):
            what = f"the column {one_line(repr(name), 60)}" if name.strip() else "a column without a name"
            raise OtherColumnError(f"{what} {_WAY_OUT}")


_WAY_OUT: Final = (
    "does not look like scores: leave it out (labels are named y), or name the scores logits_0, logits_1, …"
)


def refuse_identifiers(matrix: NDArray[Any], names: Sequence[str]) -> None:
    """Refuse a free column of whole numbers among columns that are not: a number of a row, or a label."""
    # A column of one value (a class that is never predicted) says nothing.
    whole = [(np.rint(c) == c).all() and (c != c[0]).any() for c in matrix.T] if len(matrix) else []
    fraction = [not (np.rint(c) == c).all() for c in matrix.T]
    if any(whole) and any(fraction):
        name = one_line(repr(names[whole.index(True)]), 60)
        raise OtherColumnError(f"the column {name} holds whole numbers, others do not: it {_WAY_OUT}")


# -- csv --------------------------------------------------------------------------------------------


def read_csv(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read a table of numbers with commas between them.

    The first line is a header unless all its cells are numbers. Where they are ``0,1,2`` (or ``1,2,3``) it
    may be either, and is refused. No line is dropped: ``#`` begins no comment, and an empty line in the
    middle is an error.
    """
    check_bytes(name, WIDEST * size_of(file), size_of(file))
    return parse_csv(csv_text(file.read()), wish)


def parse_csv(text: str, wish: Wish, *, judged: bool = False, known: Collection[str] = ()) -> Arrays:
    """Return the wanted arrays of a table's text: of a whole file, or of some rows under its first line.

    ``judged`` says that other rows have shown the free columns to be scores (a few may all be whole numbers),
    ``known`` are arrays that other rows have shown to hold text.

    >>> parse_csv("probs_0,probs_1\\n0.25,0.75\\n", Wish(list))
    {'probs': array([[0.25, 0.75]])}
    """
    head = next(csv.reader(io.StringIO(text, newline="")), [])
    if not text.strip() or not head:
        raise ValueError("it is empty")
    bare = all(is_number(cell) for cell in head)
    if not bare and any("\n" in cell or "\r" in cell for cell in head):
        raise ValueError("a column name with a line break")
    head = [cell.strip() for cell in head]
    # One column of labels often begins with 0 or 1; a name too many there is one label too many.
    if bare and _may_be_names(head) and not (wish.labels and len(head) == 1):
        raise ValueError(
            f"its first line {one_line(','.join(head), 40)} may be column names or scores: "
            "name the columns logits_0, logits_1, …, or write the numbers with a decimal point"
        )
    names = [f"column {i}" for i in range(len(head))] if bare else head
    if bare:
        columns = columns_by_name(names, wish.columns) if wish.columns.scores else {BARE: names}
        chosen = {key: columns[key] for key in wish.choose(columns)}
    else:
        chosen = choose_columns(names, wish)
    values = _columns_of(text, names, chosen, wish, known, skip=0 if bare else 1)
    return judged_columns(values, chosen, wish, judged=judged)


def choose_columns(names: Sequence[str], wish: Wish, index: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the columns of every wanted array; refuse free ones that are no scores by their names.

    ``index`` are columns that the file itself calls an index.

    >>> choose_columns(["y", "probs_0", "probs_1", "age"], Wish(lambda held: ["probs"]))
    {'probs': ['probs_0', 'probs_1']}
    """
    columns = columns_by_name(names, wish.columns)
    chosen = {key: columns[key] for key in wish.choose(columns)}
    if not wish.labels:
        refuse_other_columns(chosen.get(BARE, ()), index)
    return chosen


def judged_columns(
    arrays: Arrays, chosen: dict[str, list[str]], wish: Wish, *, judged: bool = False
) -> Arrays:
    """Return the arrays of chosen columns in their final shapes; refuse free columns that are no scores.

    >>> judged_columns({"y": np.array([[1], [0]])}, {"y": ["y"]}, Wish(list))
    {'y': array([1, 0])}
    """
    if BARE in arrays and not wish.labels and not judged:
        refuse_identifiers(arrays[BARE], chosen[BARE])
    return {key: _one_axis(key, array, chosen[key]) for key, array in arrays.items()}


def _one_axis(key: str, array: NDArray[Any], columns: Sequence[str]) -> NDArray[Any]:
    """Return one column as (N,) where it is an array by its own name (y, probs) or by the caller's word."""
    alone = list(columns) == [key] or (key.startswith("@") and len(columns) == 1)
    return array[:, 0] if alone and array.ndim == 2 and array.shape[1] == 1 else array


def _columns_of(
    text: str,
    names: Sequence[str],
    chosen: dict[str, list[str]],
    wish: Wish,
    known: Collection[str],
    *,
    skip: int,
) -> Arrays:
    """Return the chosen columns, (N, columns) each; text where that is allowed and there is some."""
    place = {column: i for i, column in enumerate(names)}
    textual = [key for key in chosen if may_be_text(key, labels=wish.labels)]
    try:
        table = _numbers(text, skip=skip)
    except ValueError:
        if not textual and {c for cs in chosen.values() for c in cs} == set(names):
            raise
        return _mixed(text, place, chosen, textual, known, skip=skip)
    if table.shape[1] != len(names):
        raise ValueError(f"{len(names)} column names for {table.shape[1]} columns")
    if role_key("id") in chosen or not chosen.keys().isdisjoint(known):  # 0017 is an id, 17 another
        return _mixed(text, place, chosen, textual, known, skip=skip)
    return {key: table[:, [place[c] for c in cs]] for key, cs in chosen.items()}


def _mixed(
    text: str,
    place: dict[str, int],
    chosen: dict[str, list[str]],
    textual: list[str],
    known: Collection[str],
    *,
    skip: int,
) -> Arrays:
    wanted = [place[c] for key in chosen if key not in textual for c in chosen[key]]
    table = _numbers(text, skip=skip, columns=wanted) if wanted else np.empty((0, 0))
    cells = _cells(text, [place[chosen[key][0]] for key in textual], len(place), skip=skip)
    if wanted and len(table) != len(cells[0] if cells else table):
        raise ValueError("a line break inside a cell")
    arrays: Arrays = {
        key: typed(key, found, text=key in known) for key, found in zip(textual, cells, strict=True)
    }
    start = 0
    for key in (k for k in chosen if k not in textual):
        arrays[key] = table[:, start : start + len(chosen[key])]
        start += len(chosen[key])
    return arrays


def _cells(text: str, places: list[int], width: int, *, skip: int) -> list[list[str]]:
    """Return the text of columns; every line must have all of them."""
    found: list[list[str]] = [[] for _ in places]
    for number, row in enumerate(csv.reader(io.StringIO(text, newline=""))):
        if number < skip:
            continue
        if len(row) != width:
            raise ValueError(f"line {number + 1} has {len(row)} cells, the first line {width}")
        for column, place in zip(found, places, strict=True):
            column.append(row[place].strip())
    return found


def typed(key: str, cells: Sequence[Any], *, text: bool = False) -> NDArray[Any]:
    """Return cells as integers where all are, labels also as other numbers, else as text.

    Only an id (``key``) may be empty; ``text`` says that other cells have shown to be text, whatever these
    look like.

    >>> typed("@id", ["0017", "2"]), typed("y", ["1", "0"])
    (array(['0017', '2'], dtype='<U4'), array([1, 0]))
    """
    empty = [row for row, cell in enumerate(cells) if cell is None or cell == ""]
    if empty and key != role_key("id"):
        raise ValueError(f"{key.removeprefix('@')}: {len(empty)} missing values, first in row {empty[0]}")
    texts = ["" if cell is None else str(cell) for cell in cells]
    if text:
        return np.array(texts, dtype=np.str_)
    if all(t.lstrip("-").isdecimal() and len(t) < 19 and str(int(t)) == t for t in texts):
        return np.array([int(t) for t in texts], dtype=np.int64)
    if key != role_key("id") and all(map(is_number, texts)):
        return np.array([float(t) for t in texts])
    return np.array(texts, dtype=np.str_)


def csv_text(raw: bytes) -> str:
    """Return the text of a table, or say that it is none."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("it is not text: it has bytes of zero")
    return text


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _may_be_names(head: list[str]) -> bool:
    """Whether numbers count the columns, as a table without names of its own is written."""
    return head in ([str(i) for i in range(len(head))], [str(i + 1) for i in range(len(head))])


def _numbers(text: str, *, skip: int, columns: list[int] | None = None) -> NDArray[Any]:
    if re.search(r"\n[ \t\r]*\n", text.rstrip()) or text.startswith(("\n", "\r\n")):
        raise ValueError("an empty line among the rows")
    if skip and not text.rstrip().partition("\n")[2].strip():
        raise ValueError("it has column names and no rows")
    try:
        return np.loadtxt(
            io.StringIO(text), delimiter=",", skiprows=skip, ndmin=2, quotechar='"', comments=None,
            usecols=columns,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(str(error).split(";")[0]) from None
