"""How far ``lece`` and ``diag`` move with the dealing of rows: seeds and numbers of folds.

``python -m studies.spread run`` fits them on the paper's task and writes ``results/spread.csv``;
``python -m studies.spread page`` writes the table into ``studies/published-settings.md``.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal.io.atomic import atomic_path
from studies.joint import load
from studies.limitations import between

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "studies" / "published-settings.md"
RESULTS: Final = ROOT / "results" / "spread.csv"
MARKS: Final = ("<!-- spread: begin -->", "<!-- spread: end -->")
TASK: Final = "cifar10_resnet110"
METRICS: Final = ("ece_ew", "cwece_a", "nll")
SEEDS: Final = 5
FOLDS: Final[Mapping[str, tuple[int, ...]]] = {"lece": (5, 10), "ts_lece": (5, 10), "diag": (5, 10)}


def run(out: Path, seeds: int = SEEDS) -> None:
    """Fit every method with every number of folds and seed; write a row each."""
    cal, y_cal, test, y_test = load(TASK)
    with atomic_path(out) as new, new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("task", "method", "folds", "random_state", *METRICS))
        for name, numbers in FOLDS.items():
            for folds in numbers:
                for seed in range(seeds):
                    made: Any = hcal.make_calibrator(name, folds=folds, random_state=seed)
                    probs = made.fit(cal, y_cal).predict_proba(test)
                    values = [f"{getattr(hcal.metrics, m)(probs, y_test):.6g}" for m in METRICS]
                    writer.writerow((TASK, name, folds, seed, *values))
                print(name, folds, flush=True)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return mean ± standard deviation over seeds, by method and number of folds.

    Examples
    --------
    >>> one = {"method": "diag", "folds": "5", "ece_ew": "0.01", "cwece_a": "0.004", "nll": "0.2"}
    >>> table([one, {**one, "nll": "0.4"}]).splitlines()[-1]
    '| `diag`, 5 folds | 0.01000 ± 0.00000 | 0.00400 ± 0.00000 | 0.30000 ± 0.14142 |'
    """
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["method"], row["folds"]].append(row)
    lines = [f"| method | {' | '.join(METRICS)} |", "|---" * (len(METRICS) + 1) + "|"]
    for (method, folds), found in groups.items():
        values = [np.array([float(r[m]) for r in found]) for m in METRICS]
        cells = [f"{v.mean():.5f} ± {v.std(ddof=1):.5f}" for v in values]
        lines.append(f"| `{method}`, {folds} folds | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of the results."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Read the arguments; run, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.results)
    else:
        PAGE.write_text(between(PAGE.read_text(), MARKS, f"\n{table(read(asked.results))}\n"))


if __name__ == "__main__":
    main()
