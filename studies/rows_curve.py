"""When are a million rows enough: the quality of a fit on a sample, as the sample grows.

Rows are drawn by ``hcal.fit_batches`` itself, from networks and from a generated task whose truth is known
(a million calibration rows, over-confident, every class shifted). The table holds the test NLL above the
truth's where it is known, else above that of the fit on all rows: what more rows could bring.

    python -m studies.rows_curve run --out results/rows.csv
    python -m studies.rows_curve page results/rows.csv
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal.io import Batch
from hcal.io.atomic import atomic_path
from hcal.numerics import Float64, FloatArray, IntArray
from studies.pool import load
from studies.limitations import between
from studies.synthetic import make_synthetic

PAGE: Final = Path(__file__).parents[1] / "docs" / "fit-at-scale.md"
MARKS: Final = ("<!-- rows: begin -->", "<!-- rows: end -->")
FIELDS: Final = ("task", "method", "rows", "random_state", "nll", "ece_ew", "reference")
NETWORKS: Final = ("cifar10_resnet110", "cifar100_resnet110")
SIZES: Final = (300, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000)
#: Fits of more numbers (rows × classes) than this are left to the methods that are fitted by sums.
_MOST: Final = {"h": 1_000_000}
_SEEDS: Final = 3


def generated(n_cal: int = 1_000_000, n_test: int = 200_000) -> tuple[Any, ...]:
    """Return calibration scores and labels, test scores and labels, and the NLL of the truth on the test.

    A temperature alone is not enough for it; one number for every class beside it is.
    """
    task = make_synthetic("temperature", n_cal=n_cal, n_test=n_test)
    shift = 0.4 * np.sin(np.arange(10.0))
    truth = -float(np.mean(np.log(task.true_test[np.arange(n_test), task.y_test])))
    return task.logits_cal + shift, task.y_cal, task.logits_test + shift, task.y_test, truth


def measured(
    method: str, cal: tuple[FloatArray, IntArray], test: tuple[FloatArray, IntArray], rows: int, seed: int
) -> dict[str, float]:
    """Return test NLL and ECE of a method fitted on a sample of rows; on all of them by sums where it can.

    Examples
    --------
    >>> rows = np.array([[0.0, 2.0]] * 8), np.array([1, 1, 1, 0] * 2)
    >>> measured("ts", rows, rows, 8, 0)["ece_ew"] < 1e-6
    True
    """
    x, y = cal
    blocks = [Batch(x[a : a + 65_536], "logits", y[a : a + 65_536], a) for a in range(0, len(y), 65_536)]
    exact = None if rows >= len(y) else False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        fitted = hcal.fit_batches(
            hcal.make_calibrator(method), blocks, exact=exact, sample_rows=rows, random_state=seed
        )
    probs = fitted.predict_proba(test[0])
    return {"nll": hcal.metrics.nll(probs, test[1]), "ece_ew": hcal.metrics.ece_ew(probs, test[1])}


def curve(task: str, methods: Iterable[str], sizes: Iterable[int] = SIZES) -> Iterator[dict[str, Any]]:
    """Yield a row of the results for every method, size and seed of a task."""
    given: tuple[Any, ...] = generated() if task == "generated" else (*load(task), "")
    x, y, z, t, reference = given
    for method in methods:
        for rows in sorted({min(size, len(y)) for size in sizes}):
            if rows * x.shape[1] > _MOST.get(method, np.inf):
                continue
            for seed in range(1 if rows == len(y) or rows * x.shape[1] >= 1_000_000 else _SEEDS):
                found = measured(method, (x, y), (z, t), rows, seed)
                yield {"task": task, "method": method, "rows": rows, "random_state": seed, **found,
                       "reference": reference}  # fmt: skip


def read_curve(path: Path) -> dict[tuple[str, str], dict[int, Float64]]:
    """Return mean NLL, its deviation over seeds, mean ECE and the reference, by task and method and rows."""
    found: dict[tuple[str, str], dict[int, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            numbers = [float(row[name] or "nan") for name in ("nll", "ece_ew", "reference")]
            found[row["task"], row["method"]][int(row["rows"])].append(numbers)
    return {
        key: {
            rows: np.array([*np.mean(runs, axis=0), np.std([run[0] for run in runs])])
            for rows, runs in by_rows.items()
        }
        for key, by_rows in found.items()
    }


def table(path: Path) -> str:
    """Return the curve as a table: excess NLL (in 1/1000) and ECE (in %) by rows."""
    curves = read_curve(path)
    sizes = sorted({rows for by_rows in curves.values() for rows in by_rows})
    head = " | ".join(f"{rows:,}" for rows in sizes)
    lines = [f"| task | method | {head} |", "|---|---|" + "---|" * len(sizes)]
    for (task, method), by_rows in curves.items():
        last = by_rows[max(by_rows)]
        base = last[0] if np.isnan(last[2]) else last[2]
        cells = [
            f"{1000 * (by_rows[rows][0] - base):.2f} · {100 * by_rows[rows][1]:.2f}"
            if rows in by_rows
            else ""
            for rows in sizes
        ]
        lines.append(f"| {task} | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the study, or write its table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--methods", default="ts,vs,svs,h")
    page = commands.add_parser("page")
    page.add_argument("results", type=Path)
    given = parser.parse_args()
    if given.command == "page":
        text = between(PAGE.read_text(encoding="utf-8"), MARKS, f"\n{table(given.results)}\n")
        PAGE.write_text(text, encoding="utf-8")
        return
    with atomic_path(given.out) as path, open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for task in ("generated", *NETWORKS):
            for row in curve(task, given.methods.split(",")):
                writer.writerow({name: row[name] for name in FIELDS})
                print(row, flush=True)


if __name__ == "__main__":
    main()
