"""How often the tests of hcal reject where there is nothing to find: labels drawn from the predictions, equal methods.

Every test runs at a level of 5 % (drift at its own 1 %). A rate of at most 1.5 times that is allowed, which leaves room
for the noise of 400 draws.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

import hcal
from hcal.certificates import drift
from hcal.certificates.drift import LEVEL as DRIFT_LEVEL
from hcal.evaluation.assessment import knows_more
from hcal.evaluation.ranking import pairs_of_tasks
from hcal.metrics.sample import Sample
from hcal.metrics.testing import calibration_test, hosmer_lemeshow_test, spiegelhalter_test
from hcal.numerics import Float64, IntArray
from studies.worlds import draw_labels

LEVEL = 0.05
CLASSES = (2, 5)
SIZES = (30, 300, 3000, 20_000)
RATES = (0.001, 0.01, 0.1, 0.5)
#: Draws of labels in a test: the fewest that can reject at 5 % without a tie.
RESAMPLES = 59
#: Beyond these rows a test is slow, and its level is that of fewer rows: it ranks drawn labels.
MOST_KERNEL_ROWS = 300

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """Calibrated predictions: classes, rows, how often the last class happens, and whether values are tied."""

    classes: int
    rows: int
    rate: float
    ties: bool

    @property
    def name(self) -> str:
        """The cell in words."""
        ties = ", ties" if self.ties else ""
        return f"calibrated, K = {self.classes}, n = {self.rows:,}, rate {self.rate:g}{ties}"

    def draw(self, rng: np.random.Generator) -> tuple[Float64, IntArray]:
        """Return predictions, and labels drawn from them."""
        scores = 1.5 * rng.standard_normal((self.rows, self.classes))
        # The last class is as rare as stated; the normal noise raises its mean probability a little.
        odds = self.rate / (1 - self.rate)
        scores[:, -1] += np.log(odds * (self.classes - 1)) / 1.3
        if self.ties:
            scores = np.round(scores)
        probs = np.asarray(softmax(scores, axis=1))
        return probs, draw_labels(probs, rng)


def cells() -> Iterator[Cell]:
    """Yield all cells: each size with each rate, tied and not, classes in turn."""
    for rows in SIZES:
        for number, rate in enumerate(RATES):
            for ties in (False, True):
                yield Cell(CLASSES[(number + ties) % 2], rows, rate, ties)


def tests_of_cell(cell: Cell, sets: int) -> list[Row]:
    """Return a row for every test: how many sets it could test, and how many it rejected."""
    rng = np.random.default_rng([cell.classes, cell.rows, int(1000 * cell.rate), cell.ties])
    tested: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for number in range(sets):
        probs, y = cell.draw(rng)
        for name, p_value in _p_values(probs, y, number).items():
            tested[name] += not np.isnan(p_value)
            rejected[name] += p_value <= LEVEL
        tested["worse than base rates"] += 1
        verdict = knows_more(Sample(probs, y), 1 - LEVEL)
        rejected["worse than base rates"] += verdict.status == "refuted"
    return [
        _row(cell.name, f"rejected by {name}", tested[name], rejected[name], LEVEL)
        for name in tested
    ]


def _p_values(probs: Float64, y: IntArray, seed: int) -> dict[str, float]:
    """Return the p-value of every calibration test."""
    options = {"resamples": RESAMPLES, "random_state": seed}
    risk = probs[:, -1]
    event = (y == probs.shape[1] - 1).astype(np.float64)
    p_values = {
        "calibration_test": calibration_test(probs, y, **options).p_value,
        "spiegelhalter_test": spiegelhalter_test(risk, event, **options).p_value,
        "hosmer_lemeshow_test": hosmer_lemeshow_test(risk, event, **options).p_value,
    }
    if len(y) <= MOST_KERNEL_ROWS:
        p_values["skce"] = calibration_test(probs, y, method="skce", **options).p_value
    return p_values


def drift_cells(sets: int) -> Iterator[Row]:
    """Yield how often ``drift`` finds a change between samples of one distribution."""
    for rows in (50, 60, 100, 400):
        for classes, ties in ((2, False), (2, True), (5, False)):
            rng = np.random.default_rng([rows, classes, ties])
            changed = 0
            for number in range(sets):
                scores = rng.standard_normal((2 * rows, classes))
                if ties:
                    scores = np.round(scores)
                changed += drift(scores[:rows], scores[rows:], random_state=number).changed
            name = f"same scores, K = {classes}, n = {rows}{', ties' if ties else ''}"
            yield _row(name, "drift: changed", sets, changed, DRIFT_LEVEL)


def comparison_cells(sets: int) -> Iterator[Row]:
    """Yield how often some pair of equal methods differs over a number of tasks."""
    rng = np.random.default_rng(0)
    for methods, tasks in ((2, 6), (2, 10), (3, 7), (3, 10), (6, 10), (6, 30)):
        rejected = 0
        for _ in range(sets):
            losses = rng.gamma(1.0, size=(methods, tasks))
            p_values = pairs_of_tasks({str(i): losses[i] for i in range(methods)})
            rejected += min(p_values.values(), default=1.0) < LEVEL
        name = f"{methods} equal methods on {tasks} tasks"
        yield _row(name, "compare: some pair differs", sets, rejected, LEVEL)


def frequency_cells(sets: int) -> Iterator[Row]:
    """Yield how often rows of the old classes in other shares are said to be no mixture of them."""
    for fitted, new in ((200, 1000), (2000, 1000)):
        for share in (0.5, 0.8):
            warned = 0
            for number in range(sets):
                rng = np.random.default_rng([fitted, new, int(10 * share), number])
                calibrator = hcal.make_calibrator("ts").fit(*_two_classes(fitted, 0.5, rng))
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    calibrator.with_prior_from(_two_classes(new, share, rng)[0])
                warned += any("no class frequencies" in str(w.message) for w in caught)
            name = f"label shift to {share:g}, fit on {fitted:,}, {new:,} new rows"
            yield _row(name, "with_prior_from: not a mixture", sets, warned, 0.01)


def _two_classes(n: int, share: float, rng: np.random.Generator) -> tuple[Float64, IntArray]:
    """Return logits of two normal classes, and labels."""
    y = (rng.random(n) < share).astype(np.int64)
    signal = 1.5 * np.eye(2)[y]
    return 1.5 * (rng.standard_normal((n, 2)) + signal), y


def _row(world: str, statement: str, sets: int, false: int, allowed: float) -> Row:
    share = false / sets if sets else 0.0
    counts = {"sets": sets, "false": false, "share": share}
    return {"world": world, "statement": statement, **counts, "allowed": allowed}


def null_rates(sets: int, of_cells: Callable[[], Iterator[Cell]] = cells) -> Iterator[Row]:
    """Yield the null rate of every test in every cell."""
    for cell in of_cells():
        yield from tests_of_cell(cell, sets)
    yield from drift_cells(sets // 4)
    yield from comparison_cells(5 * sets)
    yield from frequency_cells(sets // 4)
