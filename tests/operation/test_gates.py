"""Requirements are parsed, compared with results, and never met by accident."""

from __future__ import annotations

import numpy as np
import pytest

import hcal
from hcal.operation.gates import Requirement

PROBS = [[0.2, 0.8], [0.6, 0.4]]


def test_metrics_and_changes_are_compared() -> None:
    baseline = [[0.4, 0.6], [0.7, 0.3]]
    result = hcal.evaluate(PROBS, [1, 1], metrics=["brier", "accuracy"], baseline=baseline)
    gate = hcal.require(result, ["brier<0.5", "accuracy >= 0.5", "change(brier)<0"])
    assert gate.passed
    assert gate.failures == []
    failed = hcal.require(result, ["brier<0.1", "accuracy>0.5"])
    assert not failed.passed
    assert failed.failures == [
        "required brier<0.1, but brier is 0.4",
        "required accuracy>0.5, but accuracy is 0.5",
    ]
    assert failed.to_dict()["schema"] == "hcal/gate/1"


class _Report:
    def __init__(self, grade: str) -> None:
        self.grade = grade

    def gate_values(self) -> dict[str, float | str]:
        return {"grade": self.grade}


@pytest.mark.parametrize(
    ("grade", "met"), [("bad", False), ("few", False), ("care", True), ("good", True)]
)
def test_grades_are_in_order(grade: str, met: bool) -> None:
    assert hcal.require(_Report(grade), "grade>=care").passed is met


def test_what_is_not_a_number_meets_nothing() -> None:
    for comparison in ("<", "<=", ">", ">=", "=="):
        assert not Requirement.parse(f"nll{comparison}1").is_met_by(float("nan"))


def test_a_certificate_has_bounds() -> None:
    p = np.full(2000, 0.3)
    y = (np.arange(2000) % 10 < 3).astype(int)
    certificate = hcal.certify(p, y)
    assert hcal.require(certificate, ["smooth<0.1", "refuted==0"]).passed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nll", "a requirement is NAME<NUMBER"),
        ("nll=<1", "a requirement is NAME<NUMBER"),
        ("nll<", "a requirement is NAME<NUMBER"),
        ("nll<one", "'one' is not a number"),
        ("nll<nan", "nothing can be compared with NaN"),
        ("nll<inf", "'inf' is not a number"),
        ("nll<1e400", "a limit must be a finite number"),
        ("nll<1_0", "'1_0' is not a number"),
        ("nll<\u0663", "is not a number"),
        ("grade>=excellent", "the grades are bad < few < care < good"),
        ("grade>=good", "'grade' is a value of the report alone"),
        ("change(brier)<0", "compares before and after calibration"),
        ("brierr<1", "there is no value 'brierr'; there are brier"),
    ],
)
def test_a_requirement_that_cannot_be_checked_is_refused(text: str, message: str) -> None:
    result = hcal.evaluate(PROBS, [1, 1], metrics=["brier"])
    with pytest.raises(ValueError, match=message):
        hcal.require(result, ["brier<1", text])


def test_a_gate_without_requirements_and_a_result_without_values_are_refused() -> None:
    result = hcal.evaluate(PROBS, [1, 1], metrics=["brier"])
    with pytest.raises(ValueError, match="a gate without one would let everything pass"):
        hcal.require(result, [])
    with pytest.raises(ValueError, match="requirements speak of what"):
        hcal.require({"brier": 0.1}, ["brier<1"])


def test_a_certificate_has_no_change() -> None:
    certificate = hcal.certify(np.full(2000, 0.3), (np.arange(2000) % 10 < 3).astype(int))
    with pytest.raises(ValueError, match="to an evaluation or a report"):
        hcal.require(certificate, ["change(smooth)<0"])
