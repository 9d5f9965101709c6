"""The file of the central experiment: rows appended a group at a time, files of processes put into one.

``python -m studies.central_table FILE PART …`` puts parts into a file: of other tasks, or of other maps.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hcal.io.atomic import atomic_path
from studies.central_losses import SCORES

KEYS: Final = ("task", "objective", "schedule", "start", "seed", "selector")
COLUMNS: Final = (
    *KEYS, "map", "epoch", "epochs", "selected_by", "n_classes", "n_cal", "n_test", *SCORES, "truth_tv",
)  # fmt: skip


class Table:
    """A CSV that rows are appended to, a group at a time, and that says what it holds already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[tuple[str, str, str]] = set()
        if path.exists():
            with path.open(newline="") as file:
                self.done = {(r["task"], r["objective"], r["schedule"]) for r in csv.DictReader(file)}

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of one group; a run that is cut short leaves whole groups."""
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows({k: _short(v) for k, v in row.items()} for row in rows)
        self.done |= {(r["task"], r["objective"], r.get("schedule", "")) for r in rows}


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def merge_tables(out: Path, parts: Iterable[Path]) -> int:
    """Put the rows of the parts into a file, after those it has; return how many it had not.

    Of rows with the same :data:`KEYS` the one that its selector likes better stays, of equals the first: so
    the choice among some maps and the choice among others become the choice among all.
    """
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    before = 0
    for path in (out, *parts):
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    key = tuple(row[k] for k in KEYS)
                    if key not in rows or _liked(row) < _liked(rows[key]):
                        rows[key] = row
        if path == out:
            before = len(rows)
    with atomic_path(out) as new, new.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    return len(rows) - before


def _liked(row: Mapping[str, str]) -> float:
    return float(row["selected_by"] or "nan")  # the row before calibration was chosen by nothing: never less


if __name__ == "__main__":
    file, *others = map(Path, sys.argv[1:])
    print(f"{merge_tables(file, others)} new rows in {file}")
