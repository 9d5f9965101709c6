"""Every runtime predicts what numpy predicts: runtime × method × kind of scores × columns × class frequencies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.maps.base import LEAST_PROBABILITY
from studies import runtimes

METHODS = [name for name in hcal.list_calibrators() if name != "h"]
SCALED = ["ts", "platt", "vs", "beta", "iso", "pool"]


def too_far(runtime: str, cases: list[runtimes.Case], folder: Path) -> list[runtimes.Difference]:
    """Return what is further from numpy than the runtime may be; a NaN is too far."""
    allowed = runtimes.RUNTIMES[runtime][1]
    differences = [runtimes.measure(runtime, case, folder) for case in cases]
    measured = [difference for difference in differences if difference is not None]
    assert measured
    return [difference for difference in measured if not difference.difference <= allowed]


def test_json_read_as_the_guide_says(tmp_path: Path) -> None:
    assert not too_far("json", list(runtimes.cases(METHODS)), tmp_path)


def test_the_torch_module(tmp_path: Path) -> None:
    """One column of log-probabilities was off by up to .76."""
    pytest.importorskip("torch")
    assert not too_far("module", list(runtimes.cases(METHODS)), tmp_path)


@pytest.mark.slow
def test_onnx(tmp_path: Path) -> None:
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    assert not too_far("onnx", list(runtimes.cases(SCALED)), tmp_path)


def test_a_graph_gives_nan_for_a_row_with_nan(tmp_path: Path) -> None:
    """The largest score of a row may leave out a NaN there, and a look-up then gave the row a probability."""
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    nan = np.nan
    inf = np.inf
    odd = np.array([[nan, 0.0], [0.0, nan], [0.0, inf], [-inf, -inf], [-inf, nan], [0.0, -inf]])
    cal = runtimes.fitted("hb", "logits", 2).with_prior([0.3, 0.7])
    probs = runtimes.by_onnx(cal, odd, tmp_path)
    assert np.isnan(probs[:5]).all()
    assert probs[5].sum() == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_gives_nan_for_a_row_with_nan() -> None:
    """A product with 0 is 0 for the compiler, so that a row with NaN got a probability."""
    torch = pytest.importorskip("torch")
    from hcal.integrations.torch import CalibrationHead

    rows = torch.tensor([[np.nan, 0.5], [0.5, np.nan], [0.4, 0.6], [0.9, 0.9]])
    head = CalibrationHead(runtimes.fitted("pool", "probs", 2)).eval()
    probs = torch.compile(head)(rows)
    assert probs[[0, 1, 3]].isnan().all()
    torch.testing.assert_close(probs[2], head(rows)[2])


def test_a_graph_keeps_floats_that_float32_does_not_have(tmp_path: Path) -> None:
    """The exporter made 0 of the least float64, so that a sure probability came out as NaN."""
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    cal = runtimes.fitted("ts", "probs", 2)
    scores = np.array([0.0, 1e-12, 0.3, 1.0])
    probs = runtimes.by_onnx(cal, scores, tmp_path)
    np.testing.assert_allclose(probs, cal.predict_proba(scores), rtol=0, atol=1e-12)


def test_the_curve_of_two_classes_is_exact_where_events_are_rare(tmp_path: Path) -> None:
    """A curve of 201 points in P had 91 % of such rows outside, and stated three times the true probability."""
    rng = np.random.default_rng(0)
    score = rng.normal(-7.0, 1.5, size=20_000)
    rate = 1 / (1 + np.exp(-0.8 * score))
    y = (rng.random(20_000) < rate).astype(int)
    for method in ("pool", "smooth_spline", "platt", "ts"):
        cal = hcal.make_calibrator(method).fit(score, y)
        hcal.export(cal, tmp_path / "model.json")
        curve = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))["curve"]
        knots = np.array(curve["knots"])
        values = np.array(curve["values"])
        far = np.append(score, [-60.0, 60.0])

        below = np.searchsorted(knots, far, side="right") - 1
        last = np.clip(below, 0, len(knots) - 2)
        rise = values[last + 1] - values[last]
        slope = rise / (knots[last + 1] - knots[last])
        odds = values[last] + (far - knots[last]) * slope
        probs = 1 / (1 + np.exp(-odds))

        assert np.abs(probs - cal.predict_proba(far)[:, 1]).max() <= 2.3e-16, method


def test_odd_rows_are_nan_in_the_json(tmp_path: Path) -> None:
    odd = np.array([[np.nan, 0, 1, 2], [np.inf, 0, 1, 2], [-np.inf] * 4, [-np.inf, 0, 1, 2]])
    for method in METHODS:
        for columns in (slice(None), [0, 3]):
            scores = odd[:, columns]
            cal = runtimes.fitted(method, "logits", scores.shape[1])
            probs = runtimes.by_json(cal, scores, tmp_path)
            assert np.isnan(probs[:3]).all(), method
            assert probs[3].sum() == pytest.approx(1.0), method
            assert probs[3].min() >= 0, method


def test_no_runtime_states_0(tmp_path: Path) -> None:
    """The least probability was a line of ``predict_proba`` alone: a file, a module and a query stated 0."""
    pytest.importorskip("torch")
    far = {2: np.array([[0.0, 1e4], [900.0, 0.0]]), 4: np.array([[0.0, 1e4, 3.0, 2.0]])}
    for method in ("ts", "platt", "pool", "iso", "vs"):
        for n_classes, scores in far.items():
            cal = runtimes.fitted(method, "logits", n_classes)
            expected = cal.predict_proba(scores)
            assert expected.min() >= LEAST_PROBABILITY
            for name in ("json", "module", "javascript", "duckdb", "sqlite"):
                if name == "javascript" and shutil.which("node") is None:
                    continue
                probs = runtimes.RUNTIMES[name][0](cal, scores, tmp_path)
                if probs is not None:
                    np.testing.assert_allclose(np.log(probs), np.log(expected), atol=1e-9)


def test_a_class_that_does_not_occur(tmp_path: Path) -> None:
    """Where the other class had underflowed, ``predict_proba`` stated 1 for a class that was said not to occur."""
    pytest.importorskip("torch")
    scores = np.array([[0.0, 1e4], [0.0, 1.0]])
    cal = runtimes.fitted("ts", "logits", 2).with_prior([1.0, 0.0])
    assert cal.predict_proba(scores).tolist() == [[1.0, 0.0], [1.0, 0.0]]
    for name in ("json", "module", "duckdb", "sqlite"):
        probs = runtimes.RUNTIMES[name][0](cal, scores, tmp_path)
        assert probs is not None
        assert probs.tolist() == [[1.0, 0.0], [1.0, 0.0]], name


def test_rows_that_predict_proba_refuses_are_nan(tmp_path: Path) -> None:
    """A file or a module read per cent and log-odds as probabilities, without a word."""
    torch = pytest.importorskip("torch")
    from hcal.integrations.torch import CalibrationHead

    refused = {
        "probs": np.array([[-1.0, 2.0], [50.0, 50.0], [0.5, 0.6], [0.0, 0.0]]),
        "log_probs": np.array([[0.0, 0.0], [-9.0, -9.0], [-1.0, 2.0]]),
    }
    sound = {"probs": [[0.3, 0.7]], "log_probs": [[np.log(0.3), np.log(0.7)]]}
    for kind in ("probs", "log_probs"):
        cal = runtimes.fitted("ts", kind, 2)  # type: ignore[arg-type]
        for row in refused[kind]:
            with pytest.raises(ValueError, match=r"sum to|negative"):
                cal.predict_proba(row[None])
        scores = np.concatenate([sound[kind], refused[kind]])
        for predict in (runtimes.by_json, runtimes.by_module):
            probs = predict(cal, scores, tmp_path)
            np.testing.assert_allclose(probs[0], cal.predict_proba(scores[:1])[0], atol=1e-14)
            assert np.isnan(probs[1:]).all()
    assert np.isnan(runtimes.by_module(cal, np.array([0.5, 3.0]), tmp_path)).all()

    # Half floats are rounded, so that their rows sum to 1 less exactly.
    head = CalibrationHead(runtimes.fitted("ts", "probs", 4))
    rows = torch.tensor([[0.13, 0.27, 0.21, 0.39]], dtype=torch.bfloat16)
    assert head(rows).isfinite().all()


def test_probabilities_that_sum_to_nearly_one(tmp_path: Path) -> None:
    """``predict_proba`` divides printed probabilities by their sum, so every runtime does."""
    pytest.importorskip("torch")
    for n_classes in (2, 4):
        scores = runtimes.new_scores("probs", n_classes).round(5)
        for method in ("pool", "iso", "dec"):
            cal = runtimes.fitted(method, "probs", n_classes)
            expected = cal.predict_proba(scores)
            for predict in (runtimes.by_json, runtimes.by_module):
                np.testing.assert_allclose(
                    predict(cal, scores, tmp_path), expected, rtol=0, atol=1e-11
                )


def test_the_words_of_the_json(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("platt", input="probs")
    cal.fit([[0.1, 0.9], [0.6, 0.4]] * 20, [1, 0] * 20, classes=["no", "yes"])
    hcal.export(cal.with_prior([0.2, 0.8]), tmp_path / "model.json")
    model = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert model["schema"] == "hcal/export/2"
    assert model["input"] == "probs"
    assert model["classes"] == ["no", "yes"]
    assert "NaN" in model["missing"]
    assert model["arrays"]["floor"]["what"] == "what a probability of 0 is taken for"
    expected = np.log([0.4, 1.6])
    assert model["arrays"]["prior"]["value"] == pytest.approx(expected)
    used = {step[1] for step in model["steps"] + model["one_column"]}
    assert used == set(model["operations"])
    assert any("raise low entries" in words for words in model["curve"]["how"])
    assert any("prior" in words for words in model["curve"]["how"])
