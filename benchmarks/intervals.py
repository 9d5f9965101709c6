"""How long intervals, segments and decisions take: evaluations and reports of many rows, in CPU seconds.

    OMP_NUM_THREADS=1 python benchmarks/intervals.py            # prints a table
    OMP_NUM_THREADS=1 python benchmarks/intervals.py --write    # also results/intervals.csv

Each call runs once, after a small one that loads what it needs. The ratios of the levels by chance are to the metric
itself, with the check of its input and its sort.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import hcal
from hcal.metrics import METRICS, Sample
from hcal.metrics.by_chance import levels_by_chance
from hcal.rows import Rows

ROOT = Path(__file__).resolve().parents[1]
#: What was asked of each call, in CPU seconds.
GOALS = {"evaluate, intervals": 5.0, "report": 3.0, "evaluate in blocks, intervals": 15.0,
         "evaluate, 10,000 segments": 2.0}  # fmt: skip
Row = dict[str, str]


def data(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities that are too sharp, and labels."""
    rng = np.random.default_rng(0)
    scores = 2 * rng.normal(size=(n, k))
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return hcal.softmax(1.3 * scores), y


def calls(p: np.ndarray, y: np.ndarray, n_segments: int) -> dict[str, Callable[[], object]]:
    """Return what is timed for probabilities of any number of rows."""
    segment = np.random.default_rng(1).integers(0, n_segments, len(y))
    page = Path(tempfile.mkdtemp()) / "report.html"
    return {
        "evaluate, intervals": lambda: hcal.evaluate(p, y, confidence=0.95),
        "report": lambda: hcal.report(None, p, y, page, input="probs"),
        f"evaluate, intervals, {n_segments:,} segments": lambda: hcal.evaluate(
            p, y, confidence=0.95, by=segment
        ),
        f"report, {n_segments:,} segments": lambda: hcal.report(
            None, p, y, page, input="probs", by=segment
        ),
    }


def calls_on_many(p: np.ndarray, y: np.ndarray, n_segments: int) -> dict[str, Callable[[], object]]:
    """Return what is timed for a million rows."""
    rows = Rows.of(p, y, input="probs")
    segment = np.random.default_rng(1).integers(0, n_segments, len(y))
    first_fifth = slice(0, len(y) // 5)
    features = np.log(p[:, 1:]) - np.log(p[:, :1])
    model = LogisticRegression()
    return {
        "evaluate in blocks, intervals": lambda: hcal.evaluate(
            rows.blocks(100_000), confidence=0.95
        ),
        f"evaluate, {n_segments:,} segments": lambda: hcal.evaluate(
            p[first_fifth], y[first_fifth], metrics=["nll"], by=segment[first_fifth]
        ),
        "certify": lambda: hcal.certify(p, y),
        f"certify, {n_segments:,} segments": lambda: hcal.certify(p, y, by=segment),
        "estimate": lambda: hcal.estimate(p),
        f"estimate, {n_segments:,} segments": lambda: hcal.estimate(p, by=segment),
        "thresholds": lambda: hcal.thresholds(p, y, cost={"fn": 20, "fp": 1}),
        "abstain_below": lambda: hcal.abstain_below(p, y, error=0.02),
        "validate, 20 resamples": lambda: hcal.validate(model, features, y, resamples=20),
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def timed(
    n: int, make: Callable[..., dict[str, Callable[[], object]]], segments: int
) -> Iterator[Row]:
    """Yield one row a call."""
    for work in make(*data(2000, 2), 20).values():
        work()
    for what, work in make(*data(n, 2), segments).items():
        row = {"rows": str(n), "what": what, "cpu_s": f"{seconds(work):.3g}"}
        goal = GOALS.get(what)
        yield {**row, "goal": "" if goal is None else f"{goal:g}"}


def levels(n: int, k: int) -> Iterator[Row]:
    """Yield how long the level by chance of each metric takes, relative to the metric."""
    p, y = data(n, k)
    for name in [metric.name for metric in METRICS.values() if metric.by_chance is not None]:
        alone = min(seconds(partial(METRICS[name].function, p, y)) for _ in range(3))
        sample = Sample(p, y)
        values = {name: METRICS[name].function(sample)}
        level = min(seconds(partial(levels_by_chance, sample, values)) for _ in range(3))
        yield {"rows": str(n), "what": f"by chance of {name}, {k} classes", "cpu_s": f"{level:.2g}",
               "ratio": f"{level / alone:.2g}", "goal": ""}  # fmt: skip


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="also write results/intervals.csv")
    write = parser.parse_args().write
    commit = _commit()
    rows = []
    parts = [levels(5000, 10), timed(200_000, calls, 500), timed(1_000_000, calls_on_many, 10_000)]
    for part in parts:
        for row in part:
            print(f"{row['rows']:>9}  {row['what']:<45} {row['cpu_s']:>9} s {row.get('ratio', '')}")
            rows.append(row)
    if write:
        save(rows, commit)


def _commit() -> str:
    """Return the commit of the code that is measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def save(rows: list[Row], commit: str) -> None:
    """Write results/intervals.csv with the version and the commit."""
    made_by = {"version": hcal.__version__, "commit": commit}
    with (ROOT / "results" / "intervals.csv").open("w", newline="", encoding="utf-8") as file:
        fields = ["version", "commit", "rows", "what", "cpu_s", "ratio", "goal"]
        writer = csv.DictWriter(file, fields, restval="")
        writer.writeheader()
        writer.writerows(made_by | row for row in rows)


if __name__ == "__main__":
    main()
