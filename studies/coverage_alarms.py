"""How often the report, the monitor and ``cross_fit`` raise a false alarm, or praise what they should not.

Every prediction here is calibrated, and every change of distribution is chance.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import expit, softmax

import hcal
from hcal.methods import CalibrationWarning
from hcal.numerics import Float64, IntArray
from hcal.reporting.content import SHIFT_LEVEL, frequency_shift
from hcal.rows import Rows
from studies.worlds import draw_labels

Row = dict[str, Any]
FAILURE = 0.05
#: Rows of the fit, and rows of the report.
SIZES = ((30, 30), (30, 1000), (100, 300), (300, 300), (2000, 200), (20_000, 20_000))
SEGMENTS = 8


def alarms(sets: int) -> Iterator[Row]:
    """Yield a row for every statement and world."""
    yield from frequency_alarms(sets)
    yield from segments_off(sets // 4)
    yield from monitor_alarms(sets // 2)
    yield from few_new_rows(sets)
    yield from optimism(sets // 8)


def frequency_alarms(sets: int) -> Iterator[Row]:
    """Yield how often the report says that class frequencies differ from the fit's, where they do not."""
    for fitted, reported in SIZES:
        for classes, rate in ((2, 0.01), (2, 0.5), (5, 0.1)):
            rng = np.random.default_rng([fitted, reported, classes])
            false = 0
            for _ in range(sets):
                calibrator = hcal.make_calibrator("uncal").fit(*_draw(fitted, classes, rate, rng))
                rows = Rows.of(*_draw(reported, classes, rate, rng), input="logits")
                false += frequency_shift(calibrator.fit_, rows) > 0
            world = f"K = {classes}, rate {rate:g}, fit on {fitted:,}, {reported:,} rows"
            yield _row(world, "report: class frequencies differ", sets, false, SHIFT_LEVEL)


def segments_off(sets: int) -> Iterator[Row]:
    """Yield how often some segment of calibrated predictions is said to be proven off."""
    for rows_of_segment, rate in ((60, 0.1), (300, 0.3)):
        rng = np.random.default_rng([rows_of_segment])
        n = SEGMENTS * rows_of_segment
        false = 0
        for _ in range(sets):
            scores, y = _draw(n, 2, rate, rng)
            by = np.arange(n) % SEGMENTS
            probs = softmax(scores, axis=1)
            evaluation = hcal.evaluate(probs, y, metrics=["nll"], by=by, confidence=1 - FAILURE)
            assessment = evaluation.assessment
            false += assessment is not None and bool(assessment.segments)
        world = f"{SEGMENTS} calibrated segments of {rows_of_segment} rows, rate {rate:g}"
        yield _row(world, "verdict: a segment is off", sets, false, FAILURE)


def monitor_alarms(sets: int) -> Iterator[Row]:
    """Yield how often a calibrated stream raises an alarm, with the tolerance of a calibrator's fit and without."""
    for tolerance in (0.0, "auto"):
        for classes, rate in ((2, 0.02), (5, 0.1)):
            rng = np.random.default_rng([classes])
            false = 0
            for _ in range(sets):
                scores, y = _draw(2000, classes, rate, rng)
                calibrator = hcal.make_calibrator("uncal").fit(scores, y)
                options = {"calibrator": calibrator} if tolerance == "auto" else {}
                monitor = hcal.Monitor(confidence=1 - FAILURE, tolerance=tolerance, **options)
                monitor.update(softmax(scores, axis=1), y)
                false += monitor.alarm is not None or bool(monitor.alarms)
            world = f"calibrated stream of 2,000 rows, K = {classes}, rate {rate:g}"
            yield _row(world, f"monitor, tolerance {tolerance}", sets, false, FAILURE)


def few_new_rows(sets: int) -> Iterator[Row]:
    """Yield how often a few new rows of the old kind move a class's frequency by more than 10 points."""
    rng = np.random.default_rng(25)
    calibrator = hcal.make_calibrator("ts").fit(*_draw(1000, 3, 0.3, rng))
    for rows in (1, 10):
        false = 0
        for _ in range(sets):
            adjusted = calibrator.with_prior_from(_draw(rows, 3, 0.3, rng)[0])
            move = np.abs(adjusted.fit_.prior - calibrator.fit_.frequencies).max()
            false += move > 0.1
        world = f"{rows:,} new rows of the same classes"
        yield _row(world, "with_prior_from: moved by 10 points", sets, false, FAILURE)


def optimism(sets: int) -> Iterator[Row]:
    """Yield how often the corrected slope of dependent rows is better than the apparent one."""
    rng = np.random.default_rng(18)
    for groups in (20, 60):
        false = 0
        for number in range(sets):
            effect = np.repeat(rng.standard_normal(groups), 5)
            score = rng.standard_normal(5 * groups)
            y = (rng.random(5 * groups) < expit(score + effect)).astype(np.int64)
            scores = np.stack([np.zeros_like(score), 2 * score], axis=1)
            group = np.repeat(np.arange(groups), 5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                fit = hcal.cross_fit(
                    "platt", scores, y, groups=group, resamples=20, random_state=number
                )
            false += fit.slope is not None and fit.slope.corrected > fit.slope.apparent
        world = f"{groups} groups of 5 dependent rows"
        yield _row(world, "cross_fit: corrected is better", sets, false, 0.0)


def _draw(n: int, classes: int, rate: float, rng: np.random.Generator) -> tuple[Float64, IntArray]:
    """Return logits, and labels drawn from their softmax; the last class has about a rate."""
    scores = rng.standard_normal((n, classes))
    scores[:, -1] += np.log(rate / (1 - rate) * (classes - 1))
    return scores, draw_labels(np.asarray(softmax(scores, axis=1)), rng)


def _row(world: str, statement: str, sets: int, false: int, allowed: float) -> Row:
    counts = {"sets": sets, "false": int(false), "share": int(false) / sets}
    return {"world": world, "statement": statement, **counts, "allowed": allowed}
