"""The short form of the fuzzer of methods, and every case that once failed."""

from __future__ import annotations

import calibrators
import pytest
from calibrators import Case

import hcal

#: What the fuzzer found; the last number draws the rows.
FOUND = [
    # One class present: a curvature of 0 had no unit.
    Case("beta", 10, 3, "normal", "one class", "none", "plain", "logits", 4),
    Case("beta", 5, 12, "saturated", "one class", "counts", "plain", "logits", 7),
    # Weights times scores below the smallest float.
    Case("gp", 3, 5, "tiny", "right", "far apart", "column-major", "logits", 543),
    # Probabilities an ulp apart have one logarithm: the argmax moved to the earlier class.
    Case("diag", 3, 12, "last bits", "right", "far apart", "column-major", "probs", 1654),
    # A probability that its neighbours' error takes whole: 1e-17 or 0 by the sum of the softmax.
    Case("lece", 3, 12, "last bits", "wrong", "none", "column-major", "logits", 99),
    Case("lece", 40, 12, "last bits", "one class", "none", "column-major", "probs", 808),
    # A variance that underflowed had no logarithm.
    Case("gp", 3, 3, "one outlier", "right", "far apart", "every other row", "log_probs", 496),
    Case("uncal", 5, 12, "last bits", "one class", "one row only", "float32", "probs", 1909),
    # Sums and keys of rows that overflow, float32 of more than it holds, ranges too small to divide by.
    Case("vs", 2, 12, "largest floats", "right", "sum to one", "every other row", "logits", 1984),
    Case("iso", 3, 2, "mixed scales", "right", "counts", "every other row", "logits", 1413),
    Case("h", 1, 3, "largest floats", "any", "none", "reversed twice", "logits", 132),
    Case(
        "smooth_spline", 40, 2, "subnormal", "right", "fractions", "every other row", "logits", 866
    ),
    Case("pool", 2, 2, "subnormal", "one class", "fractions", "column-major", "logits", 1540),
    # Weights two hundred digits apart.
    Case("hb", 40, 12, "votes", "right", "far apart", "column-major", "logits", 279),
    Case("pool", 40, 5, "largest floats", "any", "far apart", "float32", "probs", 1806),
]
#: Of the issue: scores that gave NaN in most methods, differences that overflow.
EXTREME = ("subnormal", "largest floats", "mixed scales")
METHODS = [name for name in hcal.list_calibrators() if name != "h"]


def test_what_was_found_stays_right() -> None:
    for case in FOUND:
        calibrators.check(case)


def test_extreme_scores() -> None:
    for name in METHODS:
        for scores in EXTREME:
            calibrators.check(Case(name, 10, 3, scores, "any", "none", "plain", "logits", 1))


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_properties(part: int) -> None:
    for number in range(40 * part, 40 * part + 40):
        if number % 12:
            calibrators.check(calibrators.draw_case(number, seed=2))


def test_the_fuzzer_says_what_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrators, "_check_probabilities", lambda *_: 1 / 0)
    assert calibrators.main(2) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
