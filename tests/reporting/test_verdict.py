"""The verdict of a report: it follows the rule that the page prints, and raises the alarms it should."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hcal
from hcal.certificates.sentences import points
from hcal.methods.base import Fitted
from hcal.methods.ts import TemperatureScaling
from hcal.reporting import measure_report
from hcal.reporting.page import render, verdict_of
from hcal.reporting.sentences import percent
from hcal.solvers.temperature import SolvedTemperature
from helpers import measured_report as measured
from helpers import synthetic


def _sample(far: float, off: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """P(positive) of n rows of which a share ``far``, all around 0.9, is too high by ``off``."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.8, n)
    p[: int(far * n)] = rng.uniform(0.88, 0.92, int(far * n))
    truth = np.where(p > 0.85, p - off, p)
    return p, (rng.random(n) < truth).astype(int)


def test_the_verdict_follows_the_harm_and_not_the_sample_size() -> None:
    """A few rows that many rows prove to be off do not turn good probabilities into bad ones."""

    def grade(far: float, off: float, n: int) -> tuple[str, float]:
        rows = _sample(far, off, n)
        result = hcal.evaluate(*rows, metrics=["nll"], confidence=0.95, resamples=20)
        assessment = result.assessment
        assert assessment is not None
        return assessment.grade, assessment.share_proven

    assert grade(0.005, 0.25, 40_000)[0] == "good"
    verdict, share = grade(0.005, 0.25, 200_000)
    assert verdict == "good"
    assert 0 < share < 0.01  # it is proven, and said
    # More rows that are off: usable with care; a third of them: not at all.
    assert grade(0.03, 0.3, 60_000)[0] == "care"
    assert grade(0.35, 0.3, 10_000)[0] == "bad"


def test_estimate_and_proof_stand_side_by_side() -> None:
    content = measured(1.0)
    assessment = content.final.evaluation.assessment
    assert assessment is not None
    assert assessment.estimate == hcal.certify(content.final.probs, content.y).headline.estimate
    assert assessment.estimate <= assessment.bound
    assert assessment.how_far.startswith(
        f"Estimated {points(assessment.estimate)} off on average, at most"
    )
    assert list(verdict_of(content).chips) == ["How far off", "How sure", "What to do"]
    assert verdict_of(content).rule in render(content).replace("&#39;", "'")


def test_a_trifle_in_nll_is_no_reason_to_condemn() -> None:
    content = measured(1.0)  # calibrated as it was: temperature scaling can only add noise
    assert content.after is not None
    assert content.after.evaluation["nll"] > content.before.evaluation["nll"]
    assert verdict_of(content).grade in ("good", "few")
    assert verdict_of(content).alarms == ()


# The three cases that an error of the top label alone called safe.


def test_a_class_weighted_regression_is_not_safe() -> None:
    """With few positives it ranks well and states far too much."""
    rng = np.random.default_rng(0)
    score = rng.normal(-5.6, 2.1, 9_000)
    rate = 1 / (1 + np.exp(-score))
    y = (rng.random(9_000) < rate).astype(int)
    assert 0.015 < y.mean() < 0.04
    odds_against = (1 - y.mean()) / y.mean()
    content = measure_report(score + np.log(odds_against), y)
    verdict = verdict_of(content)
    assert verdict.grade == "bad"
    assert any(
        re.search(r"refuted for [\d.]+ % of the rows. [\d,]+ rows state", s)
        for s in verdict.sentences
    )
    assert "truly class 1" in render(content)
    assessment = content.final.evaluation.assessment
    assert assessment is not None
    tolerance = points(assessment.tolerance)
    share = percent(assessment.share_proven)
    assert verdict.chips["How sure"] == (
        f"off by more than {tolerance} on average: proven for {share} of the rows"
    )


def test_a_constant_is_told_that_it_knows_nothing() -> None:
    y = (np.random.default_rng(0).random(10_000) < 0.01).astype(int)
    verdict = verdict_of(measure_report(np.full(10_000, 0.01), y, input="probs"))
    assert verdict.grade == "care"
    assert "not shown to know more than the base rates" in verdict.headline


def test_close_and_not_exact_are_two_statements_and_evaluate_agrees() -> None:
    """Close to calibrated, and refuted as exactly calibrated: both are said, here and in hcal.evaluate."""
    rng = np.random.default_rng(0)
    logits, _ = synthetic(20_000, 4, scale=1.0, seed=3)
    truth = hcal.softmax(logits / 1.1)
    y = (truth.cumsum(1) > rng.random((20_000, 1))).argmax(1)
    content = measure_report(logits, y)
    verdict = verdict_of(content)
    assert verdict.grade == "good"
    assert any(
        s.startswith("top label within 5.0 points, on average: proven") for s in verdict.sentences
    )
    assert any(s.startswith("Exactly calibrated: refuted") for s in verdict.sentences)
    evaluation = hcal.evaluate(hcal.softmax(logits), y, metrics=["ece_ew"], confidence=0.95)
    printed = str(evaluation).replace("\n", " ")
    for sentence in verdict.sentences[-3:]:
        assert " ".join(sentence.split()) in " ".join(printed.split())


def test_over_and_under_confident_and_calibrated_are_called_so() -> None:
    verdict = verdict_of(measured())
    assert re.search(r"over-confident by \d+\.\d points", verdict.sentences[0])
    assert "none of the 4,000 predicted classes changes" in verdict.sentences[1]
    assert "falls from" in verdict.sentences[1]
    same = hcal.make_calibrator("uncal").fit(*synthetic(200))
    assert "stays at" in verdict_of(measure_report(*synthetic(300, seed=1), same)).sentences[1]
    assert "under-confident by" in verdict_of(measured(0.4)).sentences[0]
    assert "neither over- nor under-confident" in verdict_of(measured(1.0)).sentences[0]
    assert verdict_of(measure_report(*synthetic(1000))).grade == "bad"  # as it stands


def test_few_rows_are_neither_praised_nor_condemned() -> None:
    logits, y = synthetic(60, scale=1.0)
    verdict = verdict_of(measure_report(logits, y))
    assert verdict.grade == "few"
    assert "cannot be told from 60 rows" in " ".join(verdict.sentences)
    assert re.search(r"About [\d,]+ rows would tell", " ".join(verdict.sentences))


class _Uniform(TemperatureScaling):
    """A collapsed predictor: next to uniform, argmax kept."""

    name = "uniform"

    def _fit(self, rows) -> Fitted:  # type: ignore[no-untyped-def]
        return self._solution(SolvedTemperature(1e-3, False, "never"))


def test_a_collapsed_predictor_raises_the_alarm() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 50, 500)
    signal = 8 * np.eye(50)[y]
    logits = rng.normal(size=(500, 50)) + signal * (rng.random((500, 1)) < 0.9)
    with pytest.warns(hcal.CalibrationWarning):
        calibrator = _Uniform().fit(logits, y)
    verdict = verdict_of(measure_report(logits, y, calibrator))
    assert verdict.grade == "bad"
    assert any("The predictor has collapsed" in alarm for alarm in verdict.alarms)
    assert "The calibrator's fit did not converge." in verdict.alarms
    assert "NLL is worse after calibration than before, beyond chance" in " ".join(verdict.alarms)
    assert verdict.headline.endswith("the predictor has collapsed")
    assert 'class="alarms" role="alert"' in render(measure_report(logits, y, calibrator))
