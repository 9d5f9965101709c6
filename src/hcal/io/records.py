"""Tables of rows, ``.jsonl`` and ``.xlsx``: columns gathered as in every other table."""

from __future__ import annotations

import json
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish
from hcal.io.columns import may_be_text
from hcal.io.limits import check_bytes, one_line, size_of
from hcal.io.tables import WIDEST, choose_columns, judged_columns, typed
from hcal.extras import load_extra

#: A cell of a sheet, as XML and then as a Python object, takes this many times its bytes.
_SHEET: Final = 4


def read_jsonl(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read a file with one JSON object a line, all with the keys of the first; lists are rows of a matrix."""
    check_bytes(name, WIDEST * size_of(file), size_of(file))
    rows = _objects(file)
    first = next(rows, None)
    if first is None:
        raise ValueError("it is empty")
    return _gathered(list(first), (list(row.values()) for row in chain([first], rows)), wish)


def _objects(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the objects, each with the keys of the first in the same order."""
    keys: list[str] | None = None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=_once)
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
        keys = keys or list(row)
        if row.keys() != set(keys):
            odd = sorted(row.keys() ^ set(keys))[0]
            raise ValueError(
                f"line {number} has other keys than the first, such as {one_line(repr(odd), 60)}"
            )
        yield {key: row[key] for key in keys}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


def read_xlsx(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the one sheet of a workbook; its first row holds the names of the columns."""
    openpyxl = load_extra("reading .xlsx", "openpyxl", "excel")
    with zipfile.ZipFile(file) as archive:
        # Beyond what other formats may expand: XML is long. Nothing is unpacked before this.
        check_bytes(name, _SHEET * sum(e.file_size for e in archive.infolist()), size_of(file))
    file.seek(0)
    book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
    try:
        if len(book.worksheets) != 1:
            raise ValueError(f"it has {len(book.worksheets)} sheets: save the one with the scores by itself")
        rows = (
            row for row in book.worksheets[0].iter_rows(values_only=True) if any(c is not None for c in row)
        )
        head = next(rows, ())
        if not head or not all(isinstance(cell, str) for cell in head):
            raise ValueError("the first row of its sheet must hold the names of the columns")
        return _gathered([str(cell).strip() for cell in head], rows, wish)
    finally:
        book.close()


def _gathered(names: Sequence[str], rows: Iterable[Sequence[Any]], wish: Wish) -> Arrays:
    chosen = choose_columns(names, wish)
    place = {column: i for i, column in enumerate(names)}
    parts = [
        _Part(key, [place[c] for c in cs], may_be_text(key, labels=wish.labels)) for key, cs in chosen.items()
    ]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} cells for {len(names)} columns")
        for part in parts:
            part.add(number, row)
    return judged_columns({part.key: part.finish() for part in parts}, chosen, wish)


class _Part:
    """The cells of one array, as they come: numbers in eight bytes each, text as it is."""

    def __init__(self, key: str, places: list[int], textual: bool) -> None:
        self.key, self.places, self.textual = key, places, textual
        self.numbers, self.texts = array("d"), list[Any]()
        self.rows, self.width = 0, 0

    def add(self, number: int, row: Sequence[Any]) -> None:
        cells = [row[p] for p in self.places]
        if len(cells) == 1 and isinstance(cells[0], list):
            cells = cells[0]
        elif self.textual and len(cells) == 1:
            self.texts.append(cells[0])
            return
        self.rows, self.width = self.rows + 1, self.width or len(cells)
        if len(cells) != self.width:
            raise ValueError(f"row {number} has {len(cells)} numbers, the first row {self.width}")
        for cell in cells:
            if not isinstance(cell, int | float):
                what = "a missing value" if cell is None else one_line(repr(cell), 60)
                raise ValueError(f"row {number} holds {what}, not a number")
        self.numbers.extend(cells)

    def finish(self) -> NDArray[Any]:
        if self.texts and self.rows:
            raise ValueError(f"{self.key.removeprefix('@')} holds lists in some rows only")
        if not self.rows:
            return typed(self.key, [_plain(cell) for cell in self.texts])
        return np.array(self.numbers, dtype=np.float64).reshape(self.rows, self.width)


def _plain(cell: Any) -> Any:
    """Return a label or id as text or number; a whole float is an integer (a sheet has no others)."""
    if isinstance(cell, bool):
        return int(cell)
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    if cell is None or isinstance(cell, str | int | float):
        return cell
    raise ValueError(f"{one_line(repr(cell), 60)} is neither text nor a number")
