"""The floor: zeros are censored small numbers, for every method, and order is never inverted."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.calibrators.base import Calibrator
from hcal.calibrators.floor import TINY, apply_floor, learn_floor
from helpers import DATA, synthetic

QUICK: dict[str, dict[str, Any]] = {"diag": {"hidden": (2,), "max_iterations": 40}, "gp": {"inducing": 4}}


def forest(n: int, k: int, *, trees: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Votes of few trees: probabilities are multiples of 1/trees, many of them 0; a true class may get 0."""
    z, y = synthetic(n, k, seed=seed)
    votes = np.random.default_rng(seed).multinomial(trees, hcal.softmax(z))
    return votes / trees, y


def fit(name: str, probs: np.ndarray, y: np.ndarray, kind: str = "probs", **params: Any) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        return hcal.make_calibrator(name, input=kind, **QUICK.get(name, {}) | params).fit(probs, y)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", [m for m in hcal.list_calibrators() if m != "uncal"])
def test_no_true_class_is_impossible(name: str, k: int) -> None:
    probs, y = forest(400, k)
    new, y_new = forest(2000, k, seed=1)
    assert (new[np.arange(2000), y_new] == 0).any()
    cal = fit(name, probs, y)
    assert float(cal.state_["input_floor"]) == pytest.approx(0.025)
    assert cal.predict_proba(new)[np.arange(2000), y_new].min() > 0


def test_uncalibrated_stays_what_the_classifier_said() -> None:
    probs, y = forest(300, 3)
    np.testing.assert_allclose(fit("uncal", probs, y).predict_proba(probs), probs, rtol=0, atol=1e-15)


def test_temperature_no_longer_bows_to_one_zero() -> None:
    """One zero for a true class in 500 rows used to cost 744 nats and to flatten everything."""
    z, y = synthetic(500, 2, scale=1.0)
    probs = hcal.softmax(z)
    probs[0] = np.eye(2)[1 - y[0]]
    beta = float(fit("ts", probs, y).state_["beta"])
    assert 0.8 < beta < 1.2
    assert float(fit("ts", np.delete(probs, 0, axis=0), np.delete(y, 0)).state_["beta"]) == pytest.approx(
        beta, rel=0.1
    )


@pytest.mark.parametrize("width", ["float32", "float64"])
@pytest.mark.parametrize("name", ["uncal", "ts", "ets", "h"])
def test_ranking_survives_below_the_floor(name: str, width: str) -> None:
    """Ever smaller probabilities, far below anything calibrated on, down to 0: never inverted."""
    probs, y = forest(300, 2)
    cal = fit(name, probs.astype(width), y, **({"preserve": "order"} if name == "h" else {}))
    small = np.array([0.4, 0.1, 0.05, 0.04, 1e-3, 1e-6, 1e-12, 1e-25, 1e-37, 0.0]).astype(width)
    p = cal.predict_proba(np.stack([small, 1 - small], axis=1))[:, 0]
    assert (np.diff(p) <= 0).all()
    assert (np.diff(p)[:6] < 0).all()
    assert name == "uncal" or p[-1] > 0


def test_floor_is_half_the_smallest_positive_probability() -> None:
    log_probs = np.log(np.maximum([[0.0, 1.0], [0.02, 0.98]], 5e-324))
    assert learn_floor(log_probs, None) == pytest.approx(0.01)
    # What is below TINY is no evidence of how small; rows without weight are absent.
    log_probs = np.log([[TINY / 10, 1.0], [0.02, 0.98], [1e-9, 1.0]])
    assert learn_floor(log_probs, np.array([1.0, 1.0, 0.0])) == pytest.approx(0.01)
    # Without zeros: a quarter of the smallest, or of 1/(N·K).
    assert learn_floor(np.log([[0.3, 0.7]] * 2), None) == pytest.approx(0.25 / 4)
    assert learn_floor(np.log([[0.1, 0.9]] * 2), None) == pytest.approx(0.1 / 4)


def test_floor_has_no_jump_and_no_kink() -> None:
    x = np.linspace(np.log(0.01) - 1e-6, np.log(0.01) + 1e-6, 5)
    slope = np.diff(apply_floor(x, np.array(0.005))) / np.diff(x)
    np.testing.assert_allclose(slope, 1, atol=1e-5)
    assert float(np.exp(apply_floor(np.array([-1e9]), np.array(0.005)))[0]) == pytest.approx(0.005)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    probs, y = forest(200, 3)
    cal = fit("ts", probs, y)
    together = cal.predict_proba(probs)
    alone = np.concatenate([cal.predict_proba(row[None]) for row in probs[:20]])
    np.testing.assert_array_equal(alone, together[:20])


def test_probs_and_log_probs_agree() -> None:
    probs, y = forest(200, 3)
    with np.errstate(divide="ignore"):
        logs = np.log(probs)
    np.testing.assert_allclose(
        fit("ts", logs, y, "log_probs").predict_proba(logs),
        fit("ts", probs, y).predict_proba(probs),
        rtol=1e-9,
    )


@pytest.mark.parametrize("kind", ["probs", "log_probs"])
@pytest.mark.parametrize("width", ["float32", "float64"])
@pytest.mark.parametrize("name", ["ts", "svs", "beta", "h"])
def test_torch_and_onnx_know_the_floor(name: str, width: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    ort = pytest.importorskip("onnxruntime")
    from hcal.integrations.onnx import to_onnx
    from hcal.integrations.torch import CalibrationHead

    probs, y = forest(300, 3)
    cal = fit(name, _as(kind, probs, "float64"), y, kind)
    x = _as(kind, forest(100, 3, seed=2)[0], width)
    expected = cal.predict_proba(x)
    session = ort.InferenceSession(
        to_onnx(cal, width=width).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    # float32 logits carry 1e-7 of their size; the graph computes the rest in float64.
    tolerance = 2e-6 if width == "float32" else 1e-12
    np.testing.assert_allclose(session.run(None, {"scores": x})[0], expected, atol=tolerance, rtol=0)
    np.testing.assert_allclose(CalibrationHead(cal)(torch.from_numpy(x)), expected, atol=tolerance, rtol=0)


def _as(kind: str, probs: np.ndarray, width: str) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return (probs if kind == "probs" else np.log(probs)).astype(width)


def test_the_floor_is_saved_and_a_file_without_one_still_works(tmp_path: Path) -> None:
    probs, y = forest(200, 3)
    cal = fit("ts", probs, y)
    hcal.save(cal, tmp_path / "new.hcal")
    np.testing.assert_array_equal(
        hcal.load(tmp_path / "new.hcal").predict_proba(probs), cal.predict_proba(probs)
    )
    del cal.state_["input_floor"]
    hcal.save(cal, tmp_path / "old.hcal")
    old = hcal.load(tmp_path / "old.hcal")
    z = np.log(np.maximum(probs, np.finfo(np.float64).smallest_subnormal))
    np.testing.assert_array_equal(old.predict_proba(probs), hcal.softmax(z * old.state_["beta"]))


def test_compare_and_the_classifier_learn_the_floor_too() -> None:
    from sklearn.ensemble import RandomForestClassifier

    from hcal.integrations.sklearn import CalibratedClassifier

    probs, y = forest(300, 2)
    new, y_new = forest(500, 2, seed=1)
    with pytest.warns(UserWarning, match="also stand in the calibration set"):  # few distinct votes
        table = hcal.compare(probs, y, new, y_new, methods=["ts"], input="probs")
    expected = hcal.metrics.nll(fit("ts", probs, y).predict_proba(new), y_new)
    assert table["ts"]["nll"] == pytest.approx(expected, rel=1e-9)

    trees = RandomForestClassifier(10, random_state=0)
    wrapped = CalibratedClassifier(trees, method="ts", cv=3).fit(synthetic(300, 2)[0], y)
    assert wrapped.calibrator_.state_["input_floor"] == pytest.approx(0.05)
    assert wrapped.predict_proba(synthetic(300, 2, seed=1)[0]).min() > 0


TABLES = (
    "bank_rf",
    "magic_rf_c300",
    "yeast_rf",
    "pendigits_rf",
    "spambase_gnb",
    "digits_gnb",
    "bank_gnb_c300",
)


@pytest.mark.data
@pytest.mark.parametrize("method", ["ts", "ets", "svs", "beta", "iso"])
@pytest.mark.parametrize("task", TABLES)
def test_forests_and_naive_bayes(task: str, method: str) -> None:
    """No test row whose true class got 0, on tasks where the classifier itself gave some."""
    path = DATA / "tabular" / f"{task}.npz"
    if not path.exists():
        pytest.skip(f"needs the shared data: tabular/{path.name} is not in ../shared/data or HCAL_DATA")
    with np.load(path) as f:
        probs, y, new, y_new = (f[key] for key in ("probs_cal", "y_cal", "probs_test", "y_test"))
    if (task, method) == ("digits_gnb", "beta"):
        pytest.skip("classes that 36 rows separate: without a penalty beta goes to 0 on its own")
    rows = np.arange(len(new))
    assert new[rows, y_new].min() == 0
    p = fit(method, probs, y).predict_proba(new)
    own = p[rows, y_new]
    assert own.min() > 0
    if method == "ts" and new.shape[1] == 2 and "_rf" in task:
        # Used to be 1.7 times the uncalibrated one: zeros drove the temperature.
        assert hcal.metrics.brier(p, y_new) < 1.02 * hcal.metrics.brier(new, y_new)
