"""How often is what hcal says false, where the truth is known: certificates, tests, intervals?

    python studies/coverage.py                       # tests, intervals, alarms: about twenty minutes on one core
    python studies/coverage.py --part certificates   # about an hour

Every row of results/coverage.csv is one statement in one world: how many sets were drawn for which hcal made it, in how
many it was false, and which share is allowed. Rows are written as they are finished, in the place of those before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    # Studies are no part of the wheel, and must not hide the package coverage.
    sys.path[0] = str(ROOT)

from studies.coverage_alarms import alarms  # noqa: E402
from studies.coverage_certificates import study  # noqa: E402
from studies.coverage_clinical import CELLS, WORLDS, cell  # noqa: E402
from studies.coverage_tests import null_rates  # noqa: E402
from studies.records import RESULTS, read_rows, stamped, write_rows  # noqa: E402

FILE = RESULTS / "coverage.csv"
Row = dict[str, Any]


def certificates(sets: int) -> Iterator[Row]:
    """Yield the rows of certificates and the monitor."""
    yield from study(sets)


def intervals(sets: int) -> Iterator[Row]:
    """Yield the rows of the clinical panel's intervals; the largest samples and the smooth curve get fewer sets."""
    for n, rate in CELLS:
        for world in WORLDS:
            yield from cell(world, n, rate, sets if n < 10_000 else sets // 4)
    for n in (300, 1000):
        for world in WORLDS:
            for row in cell(world, n, 0.2, sets // 10, curves=True):
                if row["statement"].endswith("ici"):
                    yield row


#: Part → (what yields its rows, sets).
PARTS: dict[str, tuple[Callable[[int], Iterator[Row]], int]] = {
    "certificates": (certificates, 500),
    "tests": (null_rates, 400),
    "intervals": (intervals, 2000),
    "alarms": (alarms, 400),
}
#: What tells the rows of the file apart.
KEY = ("part", "world", "statement")


def main() -> None:
    """Run the parts and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--sets", type=int)
    arguments = parser.parse_args()
    for part in arguments.part or ("tests", "intervals", "alarms"):
        rows_of, sets = PARTS[part]
        for row in rows_of(arguments.sets or sets):
            print(part, *row.values(), flush=True)
            replace_row(stamped({"part": part, **row}))


def replace_row(row: Row) -> None:
    """Write a row in the place of the one with its key, or at the end of the file."""
    rows: list[Row] = list(read_rows(FILE))
    key = [row[name] for name in KEY]
    places = [place for place, other in enumerate(rows) if [other[name] for name in KEY] == key]
    if places:
        rows[places[0]] = row
    else:
        rows.append(row)
    write_rows(FILE, rows)


if __name__ == "__main__":
    main()
