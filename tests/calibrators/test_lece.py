"""lece and ts_lece against a loop over rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import hcal
from hcal.calibrators import _neighbours, lece
from hcal.calibrators.row_order import arrange, fold_parts
from helpers import synthetic


def shift(q: np.ndarray, p: np.ndarray, y: np.ndarray, fraction: float, threshold: float) -> np.ndarray:
    """The definition, a row at a time."""
    out = []
    for row in q:
        divergence = (row * np.log(row / p)).sum(axis=1)
        near = np.argsort(divergence, kind="stable")[: int(fraction * len(p))]
        error = p[near].mean(axis=0) - np.eye(p.shape[1])[y[near]].mean(axis=0)
        error[row <= threshold] = 0
        error[row - error <= threshold] = 0
        out.append((row - error) / (row - error).sum())
    return np.array(out)


@pytest.fixture(scope="module")
def task() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, y = synthetic(260, 4, seed=8)
    return logits[:200], y[:200], logits[200:]


@pytest.mark.parametrize("fraction", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("threshold", [0.0, 0.04, 1.0])
def test_prediction_row_by_row(task: tuple[np.ndarray, ...], fraction: float, threshold: float) -> None:
    z, y, z_new = task
    cal = hcal.make_calibrator("lece", fraction=fraction, threshold=threshold).fit(z, y)
    expected = shift(hcal.softmax(z_new), hcal.softmax(z), y, fraction, threshold)
    np.testing.assert_allclose(cal.predict_proba(z_new), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore::hcal.calibrators.base.CalibrationWarning")
def test_selection_is_the_lowest_mean_held_out_nll(task: tuple[np.ndarray, ...]) -> None:
    z, y, _ = arrange(*task[:2], None, merge=False)
    p = hcal.softmax(z)
    folds = [(fit.rows, held.rows) for fit, held in fold_parts(z, y, None, 10)]
    best, choice = np.inf, (0.0, 0.0)
    for fraction in lece.FRACTIONS:
        for threshold in lece.THRESHOLDS:
            loss = np.mean(
                [
                    hcal.metrics.nll(shift(p[held], p[rows], y[rows], fraction, threshold), y[held])
                    for rows, held in folds
                ]
            )
            if loss < best - 1e-12:
                best, choice = loss, (fraction, threshold)
    info = hcal.make_calibrator("lece").fit(z, y).info_
    assert (info["fraction"], info["threshold"]) == choice
    assert info["held_out_nll"] == pytest.approx(best, rel=1e-9)


def test_blocks_do_not_change_the_answer(
    task: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y, z_new = task
    cal = hcal.make_calibrator("lece", fraction=0.1, threshold=0.0).fit(z, y)
    whole = cal.predict_proba(z_new)
    monkeypatch.setattr(_neighbours, "_BLOCK_DISTANCES", 600)
    np.testing.assert_allclose(cal.predict_proba(z_new), whole, atol=1e-14)


def test_ts_lece_is_lece_after_ts(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_new = task
    both = hcal.make_calibrator("ts_lece").fit(z, y)
    ts = hcal.make_calibrator("ts").fit(z, y)
    chosen = {name: both.info_[name] for name in ("fraction", "threshold")}
    after = hcal.make_calibrator("lece", input="probs", **chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        after.fit(ts.predict_proba(z), y)
    np.testing.assert_allclose(
        both.predict_proba(z_new), after.predict_proba(ts.predict_proba(z_new)), atol=1e-9
    )


def test_identity_keeps_no_calibration_rows(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_new = task
    cal = hcal.make_calibrator("lece", fraction=0.1, threshold=1.0).fit(z, y)
    assert cal.state_["probs"].size == 0
    np.testing.assert_allclose(cal.predict_proba(z_new), hcal.softmax(z_new), atol=1e-15)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\]"),
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\]"),
    ],
)
def test_bad_parameters(task: tuple[np.ndarray, ...], params: dict[str, float], message: str) -> None:
    z, y, _ = task
    with pytest.raises(ValueError, match=message):
        hcal.make_calibrator("lece", **params).fit(z, y)


def test_refuses_too_many_pairs(task: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    z, y, _ = task
    monkeypatch.setattr(lece, "_MAX_WORK", 1000.0)
    with pytest.raises(ValueError, match="compares all pairs of rows: 200 rows of 4 classes"):
        hcal.make_calibrator("ts_lece").fit(z, y)


@pytest.mark.parametrize("copies", [1, 7])
def test_one_row_and_its_copies_move_nothing(copies: int) -> None:
    cal = hcal.make_calibrator("lece").fit([[0.0, 1.0]] * copies, [1] * copies)
    np.testing.assert_allclose(cal.predict_proba([[0.0, 2.0]]), hcal.softmax(np.array([[0.0, 2.0]])))


def test_rows_at_the_distance_of_the_last_neighbour_share_its_place() -> None:
    """Five equal rows, two neighbours: each counts 2/5, whatever stands first."""
    p, y = np.array([[0.5, 0.5]] * 5 + [[0.01, 0.99]] * 3), np.array([0, 0, 0, 1, 1, 1, 1, 1])
    for order in (slice(None), slice(None, None, -1)):
        near = _neighbours.Neighbours(p[order], y[order])
        [(_, errors)] = near.errors(np.array([[0.5, 0.5]]), [2, 8])
        np.testing.assert_allclose(errors[0], [[-0.1, 0.1]], atol=1e-15)
