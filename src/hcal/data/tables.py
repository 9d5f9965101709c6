"""Tables, ``.csv`` and ``.parquet``: columns gathered into arrays by their names, and never by a guess.

A column is a score because its name says so (``logits_0``), or because the caller said that all free columns
are. Then a column that looks like something else (an index, an ``id``, a ``label``) is refused by name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.data.arrays import BARE, Arrays, Wish
from hcal.data.limits import check_bytes, one_line, size_of
from hcal.inputs import INPUT_KINDS

_COLUMN: Final = re.compile(r"(logits|probs|log_probs)(_cal|_test)?[ _.\[]?(\d{1,7})\]?")
_NOT_SCORES: Final = re.compile(
    r"|unnamed: ?\d+|__index_level_\d+__|(row|sample)?[_ ]?(id|ids|index|idx|nr|number)|row|uuid|key"
    r"|(true|pred|predicted)?[_ ]?(label|labels|target|targets|class|classes|prediction|predictions)"
    r"|y[_ ](true|pred|hat)|pred|truth|folds?|splits?|groups?|parts?|(sample[_ ]?)?weights?"
    r"|date|time|timestamp",
    re.IGNORECASE,
)
#: A float takes this many times the bytes of the shortest cell, ``0,``.
_WIDEST: Final = 4


def columns_by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """Say which columns make which array: ``{"logits": ["logits_0", "logits_1"], "y": ["y"]}``.

    Parameters
    ----------
    names : sequence of str
        Of the columns.

    Returns
    -------
    dict of lists of names
        Free columns stand under ``"_bare"`` where no column is named as a score.

    Examples
    --------
    >>> columns_by_name(["y", "probs_1", "probs_0"])
    {'y': ['y'], 'probs': ['probs_0', 'probs_1']}
    """
    repeated = sorted({n for n in names if list(names).count(n) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ValueError(f"two columns are named {one_line(repr(repeated[0]), 60)}")
    arrays: dict[str, list[str]] = {}
    numbered: dict[str, dict[int, str]] = {}
    rest: list[str] = []
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match:
            _number(numbered.setdefault(match[1] + (match[2] or ""), {}), int(match[3]), name)
        elif name.removesuffix("_cal").removesuffix("_test") in (*INPUT_KINDS, "y"):
            arrays[name] = [name]
        else:
            rest.append(name)
    for name, found in numbered.items():
        _check_gaps(name, found)
        if name in arrays:
            raise ValueError(f"there is a column {name!r} and columns {name}_0, {name}_1, …")
        arrays[name] = [found[i] for i in sorted(found)]
    if rest and not any(_kind_of(k) in INPUT_KINDS for k in arrays):
        arrays[BARE] = rest
    return arrays


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

    Parameters
    ----------
    names : iterable of str
    index : iterable of str
        Columns that the file itself calls an index.

    Examples
    --------
    >>> refuse_other_columns(["cat", "dog"])
    >>> refuse_other_columns(["id", "cat", "dog"])
    Traceback (most recent call last):
    ...
    ValueError: the column 'id' does not look like scores: leave it out ...
    """
    for name in names:
        if name in index or _NOT_SCORES.fullmatch(name.strip()):
            what = f"the column {one_line(repr(name), 60)}" if name.strip() else "a column without a name"
            raise ValueError(f"{what} {_WAY_OUT}")


_WAY_OUT: Final = (
    "does not look like scores: leave it out (labels are named y), or name the scores logits_0, logits_1, …"
)


def refuse_identifiers(matrix: NDArray[Any], names: Sequence[str]) -> None:
    """Refuse a free column of whole numbers among columns that are not: a number of a row, or a label.

    Parameters
    ----------
    matrix : array of shape (N, K)
    names : sequence of K str

    Examples
    --------
    >>> refuse_identifiers(np.array([[0.5, 1.25], [0.25, 2.5]]), ["a", "b"])
    """
    # A column of one value (a class that is never predicted) says nothing.
    whole = [(np.rint(c) == c).all() and (c != c[0]).any() for c in matrix.T] if len(matrix) else []
    fraction = [not (np.rint(c) == c).all() for c in matrix.T]
    if any(whole) and any(fraction):
        name = one_line(repr(names[whole.index(True)]), 60)
        raise ValueError(f"the column {name} holds whole numbers, others do not: it {_WAY_OUT}")


# -- csv --------------------------------------------------------------------------------------------


def read_csv(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read a table of numbers with commas between them.

    The first line is a header unless all its cells are numbers. Where they are ``0,1,2`` (or ``1,2,3``) it
    may be either, and is refused. No line is dropped: ``#`` begins no comment, and an empty line in the
    middle is an error.

    Parameters
    ----------
    file : binary file
    name : str
        Of the file, for messages.
    wish : Wish
        Which names are wanted.

    Returns
    -------
    dict of arrays
    """
    check_bytes(name, _WIDEST * size_of(file), size_of(file))
    text = _text(file)
    head = next(csv.reader(io.StringIO(text, newline="")), [])
    if not text.strip() or not head:
        raise ValueError("it is empty")
    bare = all(_is_number(cell) for cell in head)
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
    columns = {BARE: names} if bare else columns_by_name(names)
    chosen = {key: columns[key] for key in wish.choose(list(columns))}
    table = _numbers(text, skip=0 if bare else 1)
    if table.shape[1] != len(head):
        raise ValueError(f"{len(head)} column names for {table.shape[1]} columns")
    place = {column: i for i, column in enumerate(names)}
    arrays = {key: table[:, [place[c] for c in chosen[key]]] for key in chosen}
    if BARE in arrays and not wish.labels:
        refuse_other_columns(() if bare else chosen[BARE])
        refuse_identifiers(arrays[BARE], chosen[BARE])
    # A column that is an array by its own name (y, probs) has one axis.
    return {key: array[:, 0] if chosen[key] == [key] else array for key, array in arrays.items()}


def _text(file: BinaryIO) -> str:
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("it is not text: it has bytes of zero")
    return text


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _may_be_names(head: list[str]) -> bool:
    """Whether numbers count the columns, as a table without names of its own is written."""
    return head in ([str(i) for i in range(len(head))], [str(i + 1) for i in range(len(head))])


def _numbers(text: str, *, skip: int) -> NDArray[Any]:
    if re.search(r"\n[ \t\r]*\n", text.rstrip()) or text.startswith(("\n", "\r\n")):
        raise ValueError("an empty line among the rows")
    if skip and not text.rstrip().partition("\n")[2].strip():
        raise ValueError("it has column names and no rows")
    try:
        return np.loadtxt(
            io.StringIO(text), delimiter=",", skiprows=skip, ndmin=2, quotechar='"', comments=None
        )
    except ValueError as error:
        raise ValueError(str(error).split(";")[0]) from None


# -- parquet ----------------------------------------------------------------------------------------


def read_parquet(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted columns of a parquet file.

    Parameters
    ----------
    file, name, wish
        As for :func:`read_csv`.

    Returns
    -------
    dict of arrays
        A column of lists is a matrix.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow import parquet as pq
    except ImportError:
        raise ImportError("reading .parquet needs pyarrow: pip install 'hcal[frames]'") from None
    try:
        with pq.ParquetFile(file, pre_buffer=False) as source:
            schema = source.schema_arrow
            columns = columns_by_name(schema.names)
            chosen = {key: columns[key] for key in wish.choose(list(columns))}
            if not wish.labels:
                refuse_other_columns(chosen.get(BARE, ()), _index_of(schema))
            wanted = [c for cs in chosen.values() for c in cs]
            check_bytes(name, _bytes_of(source, schema, wanted), size_of(file))
            table = source.read(columns=wanted, use_pandas_metadata=False)
            arrays = {key: _stack(key, table, cs) for key, cs in chosen.items()}
    except (ArrowException, OSError) as error:
        raise ValueError(one_line(error)) from None
    if BARE in arrays and not wish.labels:
        refuse_identifiers(arrays[BARE], chosen[BARE])
    return arrays


def _index_of(schema: Any) -> list[str]:
    """Return the columns that pandas wrote down as the index."""
    try:
        told = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [c for c in told if isinstance(c, str)] if isinstance(told, list) else []


def _bytes_of(source: Any, schema: Any, wanted: list[str]) -> int:
    """Return the bytes that columns will take, by what the file declares; refuse what is not numbers."""
    from pyarrow import types

    rows, total = source.metadata.num_rows, 0
    for column in wanted:
        kind = schema.field(column).type
        nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        item = kind.value_type if nested else kind
        if not (types.is_integer(item) or types.is_floating(item) or types.is_boolean(item)):
            raise ValueError(
                f"the column {one_line(repr(column), 60)} holds {one_line(kind, 40)}, not numbers"
            )
        width = max(item.bit_width // 8, 1)
        total += width * (_values_of(source, column) if nested else rows)
    return int(total)


def _values_of(source: Any, column: str) -> int:
    """Return how many numbers all lists of a column hold together."""
    metadata = source.metadata
    counts = [
        metadata.row_group(g).column(c).num_values
        for g in range(metadata.num_row_groups)
        for c in range(metadata.num_columns)
        if metadata.schema.column(c).path.split(".")[0] == column
    ]
    return int(max(sum(counts), metadata.num_rows))


def _stack(key: str, table: Any, columns: list[str]) -> NDArray[Any]:
    """Return columns side by side, (N, K); one column of lists, or named as the array, as it is."""
    arrays = [_column(table[c], c) for c in columns]
    if len(arrays) == 1 and (arrays[0].ndim == 2 or columns == [key]):
        return arrays[0]
    if any(a.ndim == 2 for a in arrays):
        raise ValueError(f"columns of lists beside others: {one_line(', '.join(columns), 80)}")
    return np.stack(arrays, axis=1)


def _column(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing values")
    flat = column.combine_chunks()
    if not hasattr(flat, "flatten") or not hasattr(flat.type, "value_type"):
        return np.asarray(column.to_numpy())
    values, rows = flat.flatten(), len(flat)
    if values.null_count:
        raise ValueError(f"column {name!r} has {values.null_count} missing values")
    sizes = np.asarray(flat.value_lengths()) if rows else np.zeros(1)
    if (sizes != sizes[0]).any():
        raise ValueError(f"the lists of column {name!r} differ in length")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(rows, int(sizes[0]))
