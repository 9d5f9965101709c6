"""Blocks of rows give the calibrator that all rows at once give; a sample says that it is one."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.calibrators.fit_batches import fit_batches, methods_by_sums
from hcal.calibrators.survey import Survey
from hcal.io import Batch, batches
from hcal.partial import Partial
from hcal.solvers import methods
from hcal.solvers.rows import Sums
from helpers import synthetic

pytestmark = pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")


def cut(
    x: np.ndarray, y: np.ndarray, kind: Any = "logits", weight: np.ndarray | None = None, step: int = 330
) -> list[Batch]:
    return [
        Batch(
            x[a : a + step],
            kind,
            y[a : a + step],
            a,
            weight=None if weight is None else weight[a : a + step],
        )
        for a in range(0, len(x), step)
    ]


def elsewhere(work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
    """What a pool of processes does to functions, pieces and results, in the opposite order."""
    for piece in reversed(list(pieces)):
        yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work))(piece)))


def scores_for(case: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any], np.ndarray | None]:
    """Return scores, labels, parameters and weights."""
    x, y = synthetic(1000, 2 if case == "two classes" else 5, seed=3)
    if case == "weights, an absent class, float32":
        y = np.where(y == 3, 1, y)
        return x.astype(np.float32), y, {}, np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    if case == "probabilities with zeros":
        p = np.round(hcal.softmax(x), 2)
        return p / p.sum(1, keepdims=True), y, {"input": "probs"}, None
    return x, y, {}, None


@pytest.mark.parametrize("name", methods_by_sums())
@pytest.mark.parametrize(
    "case", ["two classes", "weights, an absent class, float32", "probabilities with zeros"]
)
def test_sums_over_blocks_give_the_fit_in_memory(name: str, case: str) -> None:
    x, y, params, weight = scores_for(case)
    whole = hcal.make_calibrator(name, **params).fit(x, y, weight)
    found = fit_batches(hcal.make_calibrator(name, **params), cut(x, y, whole.input, weight), run=elsewhere)
    np.testing.assert_allclose(found.predict_proba(x), whole.predict_proba(x), atol=1e-6, rtol=0)
    for when in ("before", "after"):
        for metric, value in whole.scores_[when].items():
            # Scores in float32 are summed in another order.
            assert found.scores_[when][metric] == pytest.approx(value, abs=1e-6 if x.dtype == "f4" else 1e-12)
    assert found.info_["calibration_rows"] == whole.info_["calibration_rows"]
    assert found.info_["class_frequencies"] == pytest.approx(whole.info_["class_frequencies"])
    assert found.info_["batches"] | {"passes": 0} == {
        "exact": True, "rows": 1000, "rows_used": 1000, "passes": 0,
        "words": "fitted on all 1,000 rows by sums over blocks",
    }  # fmt: skip
    assert found.converged_ == whole.converged_


def test_many_classes_stop_where_the_fit_in_memory_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 300 classes L-BFGS stops early: the same steps must be made."""
    monkeypatch.setattr(methods, "NEWTON_PARAMETERS", 10)
    x, y = synthetic(700, 12, seed=1)
    whole = hcal.make_calibrator("vs").fit(x, y)
    found = fit_batches(hcal.make_calibrator("vs"), cut(x, y))
    np.testing.assert_allclose(found.predict_proba(x), whole.predict_proba(x), atol=1e-6, rtol=0)


def test_a_separable_set_is_recognised_in_blocks() -> None:
    x = np.array([[0.0, 3.0], [2.0, 0.0]] * 20)
    y = np.array([1, 0] * 20)
    whole, found = (
        hcal.make_calibrator("ts").fit(x, y),
        fit_batches(hcal.make_calibrator("ts"), cut(x, y, step=7)),
    )
    assert not found.converged_
    assert found.info_["temperature"] == pytest.approx(whole.info_["temperature"], rel=1e-9)


def test_files_are_read_piece_by_piece_where_the_work_is_done(tmp_path: Path) -> None:
    x, y = synthetic(600, 3)
    for part in range(2):
        half = slice(300 * part, 300 * part + 300)
        np.savez(tmp_path / f"{part}.npz", logits=x[half], y=y[half])
    source = batches(tmp_path, rows=100)
    found = fit_batches(hcal.make_calibrator("ts"), source, run=elsewhere)
    assert found.info_["temperature"] == pytest.approx(
        hcal.make_calibrator("ts").fit(x, y).info_["temperature"], rel=1e-9
    )
    hcal.save(found, tmp_path / "model.hcal")
    assert (hcal.load(tmp_path / "model.hcal").predict_proba(x) == found.predict_proba(x)).all()
    sampled = [
        fit_batches(hcal.make_calibrator("iso"), source, sample_rows=200, run=run)
        for run in (None, elsewhere)
    ]
    assert (sampled[0].predict_proba(x) == sampled[1].predict_proba(x)).all()
    assert (
        sampled[0].info_["batches"]["words"] == "fitted on a sample of 200 of 600 rows, stratified by class"
    )


def test_a_sample_that_holds_all_rows_is_the_fit_in_memory() -> None:
    x, y = synthetic(500, 3)
    for name, weight in (("beta", None), ("iso", None), ("platt", np.arange(500.0) % 3)):
        whole = hcal.make_calibrator(name).fit(x, y, weight)
        found = fit_batches(hcal.make_calibrator(name), iter(cut(x, y, weight=weight)))
        assert (found.predict_proba(x) == whole.predict_proba(x)).all(), name
        assert found.info_["batches"]["words"] == "fitted on all 500 rows"


def test_the_default_learns_its_candidates_by_sums() -> None:
    x, y = synthetic(1000, 3)
    whole = hcal.HCalibrator().fit(x, y)
    found = fit_batches(hcal.HCalibrator(), cut(x, y, step=400), exact=True, run=elsewhere)
    # Not 1e-6: its L-BFGS stops at a gain of 1e-9, and where depends on the last bits of the sums.
    np.testing.assert_allclose(found.predict_proba(x), whole.predict_proba(x), atol=5e-5, rtol=0)
    assert found.info_["batches"]["from_sample"] == ["folds", "weights of the pool", "where curves bend"]
    with pytest.raises(ValueError, match="'h' cannot be fitted by sums here"):
        fit_batches(hcal.HCalibrator(), cut(*synthetic(50, 2)), exact=True)
    with pytest.raises(ValueError, match="'h' cannot be fitted by sums here"):
        fit_batches(hcal.HCalibrator(), cut(x[:900], y[:900]), exact=True)  # few rows lean on T = 1


def with_nan(batch: Batch) -> Batch:
    return replace(batch, scores=np.where(np.arange(3) == 1, np.nan, batch.scores))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, "counting from row 330: logits contains NaN, first at row 0, column 1"),
        (lambda b: replace(b, kind="probs"), "holds probs, but the calibrator takes input='logits'"),
        (lambda b: replace(b, y=None), "counting from row 330: the batch has no labels"),
        (lambda b: replace(b, scores=b.scores[:, :2], y=0 * b.y), "3 classes in some, 2 in others"),
        (lambda b: replace(b, y=b.y + 3), r"counting from row 330: y must lie in 0\.\.2"),
        (lambda b: (b.scores, b.y), r"must hold hcal\.data\.Batch objects, got ndarray"),
    ],
)
def test_faults_are_named_with_their_rows(change: Callable[[Batch], Any], words: str) -> None:
    first, second, *_ = cut(*synthetic(700, 3))
    calibrator = hcal.make_calibrator("ts")
    with pytest.raises((ValueError, TypeError), match=words):
        fit_batches(calibrator, [first, change(second)])
    assert not hasattr(calibrator, "state_")


def test_what_cannot_be_done_is_said() -> None:
    x, y = synthetic(60, 3)
    with pytest.raises(
        ValueError, match="'iso' cannot be fitted by sums over blocks; those that can are sms, svs"
    ):
        fit_batches(hcal.make_calibrator("iso"), cut(x, y), exact=True)
    with pytest.raises(ValueError, match="goes through the batches several times, and this iterator ends"):
        fit_batches(hcal.make_calibrator("ts"), iter(cut(x, y)))
    with pytest.raises(ValueError, match="there are no rows to fit on"):
        fit_batches(hcal.make_calibrator("ts"), [])
    with pytest.raises(ValueError, match="all weights are zero"):
        fit_batches(hcal.make_calibrator("ts"), cut(x, y, weight=np.zeros(60)))
    with pytest.raises(ValueError, match="'bbq' does not support sample_weight"):
        fit_batches(hcal.make_calibrator("bbq"), cut(x, y, weight=np.ones(60)))


@pytest.mark.parametrize("exact", [True, False])
def test_weights_of_an_odd_sum_are_met_with_the_same_sentence(exact: bool) -> None:
    x, y = synthetic(200, 3)
    for weight, odd in ((np.full(200, 1 / 200), True), (np.arange(200.0) % 2, False)):  # a 0 counts no row
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit_batches(hcal.make_calibrator("ts"), cut(x, y, weight=weight), exact=exact)
        assert [str(w.message)[:30] for w in said] == ["ts: sample_weight sums to 1 ov"] * odd


def test_the_parts_keep_the_protocol() -> None:
    x, y = synthetic(200, 3)
    parts = [Survey("logits").update(batch) for batch in cut(x, y, step=70)]
    again = Survey.from_state(parts[0].state).merge(parts[2]).merge(parts[1]).result()
    assert isinstance(again, Partial)
    assert isinstance(Sums(), Partial)
    assert again.counts.tolist() == np.bincount(y).tolist()
    whole = Survey("logits").update(Batch(x, "logits", y, 0))
    assert again.sketch.result() == whole.sketch.result()
    assert Sums.from_state(Sums().update(1.0, np.ones(2)).state).result()[0] == 1.0
