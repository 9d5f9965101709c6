"""Tests and alarms keep their level where 0.3 did not: small fits, few rows on a side, rare events."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

import hcal
from hcal.certificates import drift
from hcal.metrics.testing import calibration_test, spiegelhalter_test
from hcal.reporting.content import SHIFT_LEVEL, frequency_shift
from hcal.rows import Rows
from studies.coverage_alarms import few_new_rows, frequency_alarms, segments_off
from studies.coverage_tests import Cell

#: A level that is kept is refuted in so few of the runs.
UNLIKELY = 1e-4


def keeps_level(false: int, sets: int, level: float) -> bool:
    """Return whether so many false alarms are likely enough at a level."""
    return bool(binom.sf(false - 1, sets, level) > UNLIKELY)


def test_the_alarm_on_class_frequencies_keeps_its_level_after_fits_of_any_size() -> None:
    """It fired in 20 of 20 reports after a fit on 100 rows."""
    for row in frequency_alarms(60):
        assert keeps_level(row["false"], row["sets"], SHIFT_LEVEL), row


@pytest.mark.parametrize("fitted", [100, 20_000])
def test_the_alarm_on_class_frequencies_finds_a_real_change(fitted: int) -> None:
    y = np.arange(fitted) % 2
    calibrator = hcal.make_calibrator("uncal").fit(np.eye(2)[y], y)
    rare = (np.arange(300) % 5 == 0).astype(int)
    rows = Rows.of(np.eye(2)[rare], rare, input="logits")
    assert frequency_shift(calibrator.fit_, rows) == pytest.approx(0.3)


@pytest.mark.parametrize("n", [50, 60, 100])
def test_drift_keeps_its_level_for_few_rows(n: int) -> None:
    """Equal distributions had changed in 59 % of sets of 50 rows, in 42 % of 60 and in 17 % of 100."""
    rng = np.random.default_rng(n)
    changed = 0
    for number in range(40):
        scores = rng.standard_normal((2 * n, 2))
        changed += drift(scores[:n], scores[n:], random_state=number).changed
    assert keeps_level(changed, 40, 0.01)


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("ties", [False, True])
def test_rare_events_are_not_refuted_without_evidence(n: int, ties: bool) -> None:
    """The kernel test refuted 89 % of calibrated samples of 30 rows, and 30 % of 300."""
    rng = np.random.default_rng(n)
    sets = 120
    rejected: Counter[str] = Counter()
    for number in range(sets):
        probs, y = Cell(2, n, 0.005, ties).draw(rng)
        options = {"resamples": 59, "random_state": number}
        tests = {
            "ks": calibration_test(probs, y, **options),
            "skce": calibration_test(probs, y, method="skce", **options),
            "spiegelhalter": spiegelhalter_test(probs[:, 1], y.astype(float), **options),
        }
        for name, test in tests.items():
            rejected[name] += test.p_value <= 0.05
    for name, count in rejected.items():
        assert keeps_level(count, sets, 0.05), name


def test_a_sample_without_a_rare_event_is_not_condemned() -> None:
    """It was "exactly calibrated: refuted" in 11 of 11 such samples, and its grade "bad"."""
    risk = np.full(300, 0.005)
    probs = np.stack([1 - risk, risk], axis=1)
    result = hcal.evaluate(probs, np.zeros(300, int), metrics=["nll"], confidence=0.95)
    assert result.assessment.exact.status == "open"
    assert result.assessment.skill.status == "open"
    assert result.assessment.grade != "bad"


def test_calibrated_segments_and_a_few_new_rows_raise_no_alarm() -> None:
    for row in (*segments_off(12), *few_new_rows(40)):
        assert keeps_level(row["false"], row["sets"], row["allowed"]), row
