"""Results files: every row says which version and commit wrote it, and a file is written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import hcal
from studies.drawing import write_text

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "results"
#: The columns that say what wrote a row.
STAMP: Final = ("version", "commit")

Row = dict[str, Any]


@cache
def commit() -> str:
    """Return the commit of this folder, with a "+" where files differ from it; "unknown" without git.

    A machine that has a copy without git is told by ``HCAL_COMMIT``.
    """
    if stated := os.environ.get("HCAL_COMMIT"):
        return stated
    try:
        name = _git("rev-parse", "--short=8", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "studies")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}+" if changed else name


def stamped(row: Mapping[str, Any]) -> Row:
    """Return a row with the version and the commit of the code that runs.

    >>> list(stamped({"value": 1}))
    ['version', 'commit', 'value']
    """
    return {"version": hcal.__version__, "commit": commit(), **row}


def read_rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a results file; none where there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, of which the first names the columns; numbers have six digits."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(value) for name, value in row.items()})
    write_text(file, text.getvalue())


def add_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add stamped rows to a results file, so that an interrupted study goes on where it stopped."""
    before: list[Mapping[str, Any]] = list(read_rows(file))
    write_rows(file, [*before, *(stamped(row) for row in rows)])


def origins(rows: Iterable[Mapping[str, str]]) -> str:
    """Return what wrote some rows, in words: versions, and commits where they are recorded.

    >>> origins([{"version": "0.3.0"}, {"version": "0.3.0", "commit": ""}])
    'version 0.3.0'
    """
    pairs = sorted({(row.get("version") or "", row.get("commit") or "") for row in rows})
    return ", ".join(_origin(version, name) for version, name in pairs)


def _origin(version: str, name: str) -> str:
    words = f"version {version}" if version else "an unrecorded version"
    return f"{words} (commit {name})" if name else words


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
