"""The results file of :func:`hcal.compare`: JSON lines of finished cells, which several processes may write."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hcal._version import __version__
from hcal.evaluation.comparison_table import Cell
from hcal.io.files import open_regular
from hcal.io.locks import alone

#: How every line begins.
_BEGINNING: Final = b'{"key": '


def read_cells(path: Path) -> dict[str, Cell]:
    """Return the cells of a results file by their keys; a last line that a crash cut off is dropped.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> append_cell(path, "key", Cell("toy", "ts", "ts", {"nll": 0.2}))
    >>> read_cells(path)["key"].scores
    {'nll': 0.2}
    """
    if not path.exists():
        return {}
    with alone(path):
        _drop_torn_line(path)
        lines = _content(path).splitlines()
    try:
        rows = [json.loads(line) for line in lines]
        return {row["key"]: Cell(**row["cell"]) for row in rows}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _not_results(path) from None


def append_cell(path: Path, key: str, cell: Cell) -> None:
    """Add a finished cell to a results file; processes that share the file take turns."""
    line = json.dumps({"key": key, "hcal": __version__, "cell": asdict(cell)})
    with alone(path):
        if path.exists():
            _drop_torn_line(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed process left without its end; refuse a file that has no line of ours."""
    content = _content(path)
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    if not _BEGINNING.startswith(content[: len(_BEGINNING)]):
        raise _not_results(path)
    os.truncate(path, end)


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _not_results(path: Path) -> ValueError:
    return ValueError(f"{path.name} is not a results file of hcal.compare: choose another name")
