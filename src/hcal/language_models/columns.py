"""What is known about each answer beside its scores: the task, the model and the file, and entries of its record."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hcal.class_names import typed
from hcal.io.files import open_regular, parse_json, partition_values
from hcal.io.records import Record
from hcal.numerics import NumpyArray
from hcal.text import JsonObject, one_line, quoted

#: How lm-evaluation-harness names a file of samples.
_SAMPLES: Final = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+)")
#: A longer file of results is not read for the name of its model.
_LARGEST_RESULTS: Final = 2**26
#: A longer text of a record is no column that is kept.
_LONGEST_TEXT: Final = 1000
RecordCells = Mapping[str, object]


class AnswerColumns:
    """Picks the columns of answers record by record, so that records need not stay in memory.

    Parameters
    ----------
    paths : sequence of Path
        All files, by which it is known whether a column ``file`` tells them apart.
    names : sequence of str
        The columns that were named.
    optional : collection of str
        Those that may be missing.
    keep : bool
        Whether to pick every entry of a record that is a number or a short text.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        names: Iterable[str] = (),
        optional: Iterable[str] = (),
        *,
        keep: bool = False,
    ) -> None:
        self._names = list(dict.fromkeys(names))
        self._optional = frozenset(optional)
        self._keep = keep
        common = os.path.commonpath([os.path.abspath(path.parent) for path in paths])
        self._of_file = {path: _about_file(path, common, several=len(paths) > 1) for path in paths}
        self._rows: list[RecordCells] = []

    def pick(self, record: Record) -> None:
        """Note the columns of one answer."""
        row: JsonObject = dict(self._of_file[record.path])
        content = record.content
        if self._keep:
            row |= {name: cell for name, cell in content.items() if _is_short(cell)}
        row |= {name: self._cell(name, record) for name in self._names}
        self._rows.append(row)

    def _cell(self, name: str, record: Record) -> str | float | None:
        """Return an entry of a record, of its document (``doc.subject``), or a fact about its file."""
        outer, _, inner = name.partition(".")
        entries = record.content.get(outer) if inner else None
        if name in record.content:
            cell = record.content[name]
        elif isinstance(entries, dict) and inner in entries:
            cell = entries[inner]
        elif name in self._of_file[record.path]:
            return self._of_file[record.path][name]
        elif name in self._optional:
            return None
        else:
            known = [*self._of_file[record.path], *record.content]
            listing = one_line(", ".join(known), 120)
            raise ValueError(f"{record.where}: it has no {quoted(name)}; it holds: {listing}")
        if cell is not None and not isinstance(cell, str | int | float):
            raise ValueError(f"{record.where}: {quoted(name)} is no number and no text")
        return cell

    def standard(self) -> dict[str, NumpyArray]:
        """Return the columns that all files have: the task, and where it is known the model and the file."""
        names = set.intersection(*[set(cells) for cells in self._of_file.values()])
        return {name: self.column(name) for name in _in_order(names, self._of_file.values())}

    def kept(self) -> dict[str, NumpyArray]:
        """Return the standard columns, and all others if they are to be kept."""
        if not self._keep:
            return self.standard()
        names = dict.fromkeys(name for row in self._rows for name in row)
        return self.standard() | {name: self.column(name) for name in names}

    def column(self, name: str) -> NumpyArray:
        """Return one column, with a value for each answer that was picked."""
        return typed([row.get(name) for row in self._rows])


def _in_order(names: set[str], rows: Iterable[RecordCells]) -> list[str]:
    """Return names in the order in which the first row has them."""
    first = next(iter(rows), {})
    return [name for name in first if name in names]


def _is_short(cell: object) -> bool:
    if isinstance(cell, str):
        return len(cell) <= _LONGEST_TEXT
    return cell is None or isinstance(cell, int | float)


def _about_file(path: Path, common: str, *, several: bool) -> dict[str, str | None]:
    """Return the task and the model of a file, its folders' columns, and its name below the folder of all files."""
    match = _SAMPLES.fullmatch(path.stem)
    cells = dict(partition_values(path))
    cells["task"] = path.stem if match is None else match["task"]
    model = None if match is None else _model_of(path.parent, match["date"])
    if model is not None:
        cells["model"] = model
    if several:
        cells["file"] = Path(os.path.abspath(path)).relative_to(common).as_posix()
    return cells


def _model_of(folder: Path, date: str) -> str | None:
    """Return the model of a run: as the results beside its samples say, or by the name of the harness's folder."""
    results = folder / f"results_{date}.json"
    if results.is_file() and results.stat().st_size <= _LARGEST_RESULTS:
        with open_regular(results) as file:
            content = parse_json(file.read(_LARGEST_RESULTS), results.name)
        name = content.get("model_name") if isinstance(content, dict) else None
        if isinstance(name, str):
            return name
    # The harness writes the folder "organisation__model" for the model "organisation/model".
    folder_name = Path(os.path.abspath(folder)).name
    return folder_name.replace("__", "/", 1) if "__" in folder_name else None
