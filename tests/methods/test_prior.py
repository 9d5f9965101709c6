"""Class frequencies of unlabelled rows: few rows move them a little, and other changes are noticed."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.methods.prior import STRENGTH, estimate_frequencies


def drawn(n: int, frequencies: list[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of Gaussian classes with these frequencies, and labels."""
    rng = np.random.default_rng(seed)
    k = len(frequencies)
    y = rng.choice(k, n, p=frequencies)
    scores = rng.normal(size=(n, k)) + 2.0 * np.eye(k)[y]
    return 2.0 * scores, y


@pytest.fixture(scope="module")
def fitted() -> hcal.Calibrator:
    return hcal.make_calibrator("ts").fit(*drawn(2000, [0.6, 0.3, 0.1], 0))


def test_one_row_hardly_moves_the_frequencies(fitted: hcal.Calibrator) -> None:
    for row in 20 * np.eye(3):
        moved = fitted.with_prior_from(row[None])
        assert np.abs(moved.fit_.prior - fitted.fit_.frequencies).max() < 1 / STRENGTH
        assert moved.fit_.prior.min() > 0


def test_old_frequencies_count_as_rows() -> None:
    certain = np.eye(2)[[0] * 90 + [1] * 30]
    old = np.array([0.5, 0.5])
    assert estimate_frequencies(certain, old) == pytest.approx([0.75, 0.25])
    assert estimate_frequencies(certain, old, 40) == pytest.approx([110 / 160, 50 / 160])


@pytest.mark.parametrize("seed", range(12))
def test_the_same_frequencies_stay(fitted: hcal.Calibrator, seed: int) -> None:
    same, _ = drawn(4000, [0.6, 0.3, 0.1], 1 + seed)
    moved = fitted.with_prior_from(same)
    assert np.abs(moved.fit_.prior - fitted.fit_.frequencies).max() < 0.03


@pytest.mark.parametrize("method", ["ts", "pool"])
def test_only_what_no_frequencies_explain_is_warned_of(method: str, tmp_path: Path) -> None:
    cal = hcal.make_calibrator(method).fit(*drawn(2000, [0.5, 0.5], 0))
    hcal.save(cal, tmp_path / "model.hcal")
    for calibrator in (cal, hcal.load(tmp_path / "model.hcal")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shifted = calibrator.with_prior_from(drawn(3000, [0.9, 0.1], 1)[0])
        assert shifted.fit_.prior == pytest.approx([0.9, 0.1], abs=0.04)
        assert shifted.fit_.notes == ()

        # Other rows, of the same classes in the same shares: half as far apart, and higher.
        covariates = 0.5 * drawn(3000, [0.5, 0.5], 2)[0] + [2.0, 0.0]
        with pytest.warns(hcal.CalibrationWarning, match="no class frequencies explain"):
            wrong = calibrator.with_prior_from(covariates)
        assert "more has changed than how often" in wrong.fit_.notes[0]


def test_bins_of_a_file_are_checked() -> None:
    from hcal.fit_record import ProbabilityBins

    sound = {"edges": [0.5], "mass": [[0.3, 0.1], [0.2, 0.4]], "rows": 100.0}
    assert ProbabilityBins.from_json(sound, 2).to_json() == sound
    for change in (
        {"edges": [0.5, 0.4]},
        {"mass": [[0.3, 0.1], [0.2, 0.5]]},
        {"mass": [[0.3, 0.1, 0.0], [0.2, 0.4, 0.0]]},
        {"mass": "none"},
        {"rows": 0},
        {"edges": [float("nan")]},
    ):
        with pytest.raises(ValueError, match=r"fit\.bins"):
            ProbabilityBins.from_json({**sound, **change}, 2)
