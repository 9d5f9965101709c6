"""Segments measured: one common calibrator, Platt scaling in each segment, and the shrunk corrections.

    python -m studies.segments             # results/segments.csv and the table of docs/howto/segments.md

Worlds with a known truth: the log-odds of class 1 are intercept + slope · score, and both differ between segments.
There the loss on new rows is the expected one, so it has no noise of labels. Tables: the real tasks of
``shared/data/segments``, with the loss on their test rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import hcal
from hcal.numerics import Float64, IntArray, softmax
from studies.drawing import replace_between
from studies.records import RESULTS, ROOT, Row, read_rows, stamped, write_rows
from studies.tasks import DATA

FILE: Final = RESULTS / "segments.csv"
PAGE: Final = ROOT / "docs" / "howto" / "segments.md"
MARKS: Final = ("<!-- segments -->", "<!-- end -->")
SEEDS: Final = range(5)
#: New rows on which a world's loss is computed.
NEW_ROWS: Final = 100_000


@dataclass(frozen=True)
class World:
    """Segments that differ by normal intercepts and slopes e^normal.

    Attributes
    ----------
    name : str
        In words, for the table.
    sizes : tuple of int
        Rows of each segment.
    intercepts, slopes : float
        Standard deviations; both are 0 where segments do not differ.
    classes : int
    """

    name: str
    sizes: tuple[int, ...]
    intercepts: float
    slopes: float
    classes: int = 2


WORLDS: Final = (
    World("500 segments of 60 rows", (60,) * 500, 1.0, 0.3),
    World("500 segments of 60 rows, three classes", (60,) * 500, 1.0, 0.3, classes=3),
    World("5 segments of 2,000 rows", (2000,) * 5, 1.0, 0.3),
    World("100 segments of 10 to 10,000 rows", (10, 100, 1000, 10_000) * 25, 0.5, 0.2),
    World("only slopes differ, 100 segments of 300 rows", (300,) * 100, 0.0, 0.3),
    World("no difference, 20 segments of 450 rows", (450,) * 20, 0.0, 0.0),
    World("no difference, 500 segments of 60 rows", (60,) * 500, 0.0, 0.0),
    World("no difference, three classes, 100 of 100 rows", (100,) * 100, 0.0, 0.0, classes=3),
)


#: The rows of the page's table, by their titles.
ON_PAGE: Final = {
    "simulated, 60 rows each": "500 segments of 60 rows",
    "simulated without differences, 60 rows each": "no difference, 500 segments of 60 rows",
    "bank by month": "bank_month_blind",
    "credit by last payment": "credit_pay0_blind",
    "credit by age and education": "credit_ageedu_blind",
}


class Drawn:
    """One draw of the segments of a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.classes = world.classes
        count = len(world.sizes)
        self.intercept = self.rng.normal(0, world.intercepts, (count, world.classes))
        self.intercept[:, 0] = 0.0
        self.slope = np.exp(self.rng.normal(0, world.slopes, count))

    def rows(self, segment: IntArray) -> tuple[Float64, Float64]:
        """Return scores (N, K) and true probabilities (N, K) of rows of these segments."""
        scores = self.rng.normal(0, 1.6, (len(segment), self.classes))
        scores[:, 0] = 0.0
        scores[:, 1] -= 0.5
        truth = softmax(self.intercept[segment] + self.slope[segment, None] * scores)
        return scores, truth

    def labels(self, truth: Float64) -> IntArray:
        """Return labels that follow true probabilities."""
        draws = self.rng.random((len(truth), 1))
        return np.asarray((truth.cumsum(axis=1) < draws).sum(axis=1), dtype=np.int64)


def expected_loss(probs: Float64, truth: Float64) -> float:
    """Return the NLL that probabilities (N, K) are expected to have where the true ones are known."""
    return float(-(truth * np.log(probs)).sum(axis=1).mean())


@dataclass(frozen=True)
class Part:
    """Scores of rows, and their segments."""

    scores: Float64
    by: IntArray


def own_platt(cal: Part, y: IntArray, new: Part, common: Float64) -> Float64:
    """Return probabilities (M, K) of new rows by Platt scaling in each segment; common ones without rows."""
    probs = common.copy()
    method = "platt" if cal.scores.shape[1] == 2 else "vs"
    for segment in np.intersect1d(cal.by, new.by):
        learned = cal.by == segment
        predicted = new.by == segment
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hcal.CalibrationWarning)
            fitted = hcal.make_calibrator(method).fit(cal.scores[learned], y[learned])
        probs[predicted] = fitted.predict_proba(new.scores[predicted])
    return probs


def simulated(world: World, seed: int) -> Row:
    """Return the expected loss of each way in one draw of a world."""
    drawn = Drawn(world, seed)
    by = np.repeat(np.arange(len(world.sizes)), world.sizes)
    scores, truth = drawn.rows(by)
    y = drawn.labels(truth)
    new_by = drawn.rng.integers(0, len(world.sizes), NEW_ROWS)
    new, new_truth = drawn.rows(new_by)
    start = time.perf_counter()
    segmented = hcal.SegmentedCalibrator("pool").fit(scores, y, by=by)
    seconds = time.perf_counter() - start
    common = hcal.PooledCalibrator().fit(scores, y).predict_proba(new)
    alone = own_platt(Part(scores, by), y, Part(new, new_by), common)
    return {
        "task": world.name,
        "seed": seed,
        "segments": len(world.sizes),
        "rows": len(y),
        "best": expected_loss(new_truth, new_truth),
        "uncalibrated": expected_loss(softmax(new), new_truth),
        "common": expected_loss(common, new_truth),
        "alone": expected_loss(np.maximum(alone, 1e-12), new_truth),
        "segmented": expected_loss(segmented.predict_proba(new, by=new_by), new_truth),
        "fit_s": seconds,
    }


def measured(path: Path) -> Row:
    """Return the test loss of each way on a real task."""
    with np.load(path) as arrays:
        cal, y, by = (arrays[f"{name}_cal"] for name in ("probs", "y", "segment"))
        test, test_y, test_by = (arrays[f"{name}_test"] for name in ("probs", "y", "segment"))
    start = time.perf_counter()
    segmented = hcal.SegmentedCalibrator("pool", input="probs").fit(cal, y, by=by)
    seconds = time.perf_counter() - start
    common = hcal.PooledCalibrator(input="probs").fit(cal, y).predict_proba(test)
    logits = np.log(np.maximum(cal, 1e-12))
    new = np.log(np.maximum(test, 1e-12))
    alone = own_platt(Part(logits, by), y, Part(new, test_by), common)
    nll = hcal.metrics.nll
    return {
        "task": path.stem,
        "seed": 0,
        "segments": len(np.unique(by)),
        "rows": len(y),
        "uncalibrated": nll(test, test_y),
        "common": nll(common, test_y),
        "alone": nll(alone, test_y),
        "segmented": nll(segmented.predict_proba(test, by=test_by), test_y),
        "fit_s": seconds,
    }


def study(data: Path) -> Iterator[Row]:
    """Yield the rows of the results file, worlds first."""
    for world in WORLDS:
        for seed in SEEDS:
            yield stamped(simulated(world, seed))
    for path in sorted((data / "segments").glob("*.npz")):
        yield stamped(measured(path))


def page() -> None:
    """Write the table of the page from the results file."""
    rows = read_rows(FILE)
    lines = ["| task | segments | one for all | one for each | shrunk |", "|---|---|---|---|---|"]
    for title, task in ON_PAGE.items():
        of_task = [row for row in rows if row["task"] == task]
        losses = [_mean_loss(of_task, name) for name in ("common", "alone", "segmented")]
        least = min(losses)
        cells = [f"**{loss}**" if loss == least else loss for loss in losses]
        lines.append(f"| {title} | {of_task[0]['segments']} | {' | '.join(cells)} |")
    replace_between(PAGE, MARKS, lines)


def _mean_loss(rows: Sequence[dict[str, str]], name: str) -> str:
    return f"{np.mean([float(row[name]) for row in rows]):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=["all", "run", "page"])
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.what in ("all", "run"):
        write_rows(FILE, list(study(arguments.data)))
    if arguments.what in ("all", "page"):
        page()


if __name__ == "__main__":
    main()
