"""Other class frequencies: known, or learned from unlabelled scores; saved, loaded and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.calibrators.prior import estimate_frequencies
from hcal.calibrators.program import program
from hcal.runtime.ops import NumpyOps
from helpers import load_task


def drawn(n: int, frequencies: list[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Gaussian classes with the given frequencies; logits of the model for even ones."""
    rng = np.random.default_rng(seed)
    k = len(frequencies)
    y = rng.choice(k, n, p=frequencies)
    x = rng.normal(size=(n, k)) + 2.0 * np.eye(k)[y]
    return 2.0 * x, y


@pytest.mark.parametrize("name", ["h", "ts", "svs"])
def test_known_and_learned_frequencies_undo_a_shift(name: str) -> None:
    z, y = drawn(4000, [0.6, 0.3, 0.1], 0)
    new, y_new = drawn(6000, [0.1, 0.2, 0.7], 1)
    params = {"preserve": None} if name == "h" else {}  # scores of even classes: the argmax should change
    cal = hcal.make_calibrator(name, **params).fit(z, y)
    known, learned = cal.with_prior([0.1, 0.2, 0.7]), cal.with_prior_from(new)
    plain, *others = (hcal.metrics.nll(c.predict_proba(new), y_new) for c in (cal, known, learned))
    if name != "ts":  # temperature scaling leaves the scores' own frequencies, which are even
        assert max(others) < 0.9 * plain
        np.testing.assert_allclose(learned.info_["prior"], [0.1, 0.2, 0.7], atol=0.03)
    assert known.preserves is None
    assert cal.preserves == hcal.make_calibrator(name, **params).preserves
    np.testing.assert_allclose(known.predict_proba(new).sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("name", ["h", "ts"])
def test_it_saves_loads_and_exports(name: str, tmp_path: Path) -> None:
    z, y = drawn(600, [0.6, 0.3, 0.1], 0)
    cal = hcal.make_calibrator(name).fit(z, y).with_prior([1, 1, 1])
    hcal.save(cal, tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    np.testing.assert_array_equal(again.predict_proba(z), cal.predict_proba(z))
    assert again.preserves is None
    exported = program(cal, NumpyOps(), z, eps=2.0**-52, smallest=1e-300)
    np.testing.assert_allclose(exported, cal.predict_proba(z), atol=1e-12)
    assert again.fit(z, y).preserves is not None  # a new fit forgets the shift


def test_the_old_frequencies_change_nothing_and_a_second_shift_replaces_the_first() -> None:
    z, y = drawn(600, [0.6, 0.3, 0.1], 0)
    cal = hcal.make_calibrator("svs").fit(z, y)
    same = cal.with_prior(cal.info_["class_frequencies"]).predict_proba(z)
    np.testing.assert_allclose(same, cal.predict_proba(z), atol=1e-12)
    twice = cal.with_prior([1, 2, 3]).with_prior([3, 2, 1]).predict_proba(z)
    np.testing.assert_array_equal(twice, cal.with_prior([3, 2, 1]).predict_proba(z))


@pytest.mark.parametrize(
    ("frequencies", "words"),
    [
        ([0.5, 0.5], "one number for each"),
        ([1, -1, 1], "not negative"),
        ([0, 0, 0], "not all 0"),
        ([np.nan, 1, 1], "finite"),
    ],
)
def test_bad_frequencies_are_refused(frequencies: list[float], words: str) -> None:
    z, y = drawn(100, [0.6, 0.3, 0.1], 0)
    with pytest.raises(ValueError, match=words):
        hcal.make_calibrator("ts").fit(z, y).with_prior(frequencies)


def test_a_class_that_was_never_seen_cannot_appear() -> None:
    z, y = drawn(100, [0.6, 0.4, 0.0], 0)
    cal = hcal.make_calibrator("ts").fit(z, y)
    with pytest.raises(ValueError, match="class 2 has no calibration row"):
        cal.with_prior([1, 1, 1])
    assert cal.with_prior([1, 1, 0]).predict_proba(z)[:, 2].max() == 0


def test_em_finds_frequencies_of_exact_probabilities() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(2, 20_000, p=[0.2, 0.8])
    x = rng.normal(2.0 * y - 1.0)
    odds = 2.0 * x  # of even classes
    probs = 1 / (1 + np.exp(np.stack([odds, -odds], axis=1)))
    np.testing.assert_allclose(estimate_frequencies(probs, np.array([0.5, 0.5])), [0.2, 0.8], atol=0.01)


@pytest.mark.data
def test_a_long_tailed_calibration_set_serves_a_balanced_test_set() -> None:
    z, y, test, y_test = load_task("cifar10lt_resnet110")
    cal = hcal.HCalibrator().fit(z, y)
    plain, shifted = cal.predict_proba(test), cal.with_prior_from(test).predict_proba(test)
    before, after = (hcal.metrics.ece_em(p, y_test) for p in (plain, shifted))
    assert after < 0.6 * before  # what is left is no label shift: with the true frequencies it is 0.52
    assert hcal.metrics.nll(shifted, y_test) < 0.9 * hcal.metrics.nll(plain, y_test)
    assert (shifted.argmax(axis=1) == y_test).mean() > (plain.argmax(axis=1) == y_test).mean() + 0.02


def test_the_paper_protocol_takes_other_frequencies() -> None:
    """It was asked for the default's kernel: KeyError: 'refined.beta'."""
    golden = Path(__file__).parents[1] / "golden" / "v2" / "h-paper-piecewise-100.hcal"
    cal, logits = hcal.load(golden), np.random.default_rng(0).normal(size=(5, 4))
    cal.info_ = {**cal.info_, "class_frequencies": [0.25] * 4}
    new = np.array([0.1, 0.2, 0.3, 0.4])
    expected = cal.predict_proba(logits) * new
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(cal.with_prior(new).predict_proba(logits), expected, atol=1e-12)
