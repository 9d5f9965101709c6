"""Questions with a varying number of options."""

from __future__ import annotations

import numpy as np
import pytest

import hcal
from hcal.language_models import MultipleChoiceCalibrator
from helpers import synthetic


def quiz(n: int = 1500, scale: float = 3.0, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Questions with 2 to 6 options whose true answer law is softmax(score/scale)."""
    rng = np.random.default_rng(seed)
    scores, y = [], []
    for k in rng.integers(2, 7, n):
        z = rng.normal(size=k) * 2
        scores.append(scale * z - rng.random() * 50)  # log-probabilities of texts have any level
        y.append(rng.choice(k, p=hcal.softmax(z)))
    return scores, np.array(y)


def padded(scores: list[np.ndarray], fill: float) -> np.ndarray:
    out = np.full((len(scores), max(map(len, scores))), fill)
    for row, s in zip(out, scores, strict=True):
        row[: len(s)] = s
    return out


def mean_loss(probs: list[np.ndarray], answers: np.ndarray) -> float:
    """Return the mean log loss of questions with any number of options."""
    losses = [-np.log(p[answer]) for p, answer in zip(probs, answers, strict=True)]
    return float(np.mean(losses))


def test_one_temperature_over_all_numbers_of_options() -> None:
    scores, y = quiz(6000)
    cal = MultipleChoiceCalibrator().fit(scores, y)
    assert cal.temperature_ == pytest.approx(3.0, rel=0.1)  # sd of the estimate is about 2 %
    fresh, answers = quiz(4000, seed=1)
    before = mean_loss([hcal.softmax(s) for s in fresh], answers)
    after = mean_loss(cal.predict_proba(fresh), answers)
    assert after < 0.7 * before
    tops = [int(np.argmax(s)) for s in fresh]
    assert (cal.predict(fresh) == tops).all()


def test_equal_numbers_of_options_are_plain_temperature_scaling() -> None:
    z, y = synthetic(500, 4)
    plain = hcal.make_calibrator("ts").fit(z, y)
    cal = MultipleChoiceCalibrator().fit(z, y)
    np.testing.assert_allclose(cal.predict_proba(z), plain.predict_proba(z), atol=1e-6)


@pytest.mark.parametrize("fill", [np.nan, -np.inf, 123.0])
def test_ragged_padded_and_masked_input_say_the_same(fill) -> None:
    scores, y = quiz(300)
    array = padded(scores, fill)
    options = padded([np.ones_like(s) for s in scores], 0).astype(bool)
    mask = options if fill == 123.0 else None
    ragged = MultipleChoiceCalibrator().fit(scores, y)
    dense = MultipleChoiceCalibrator().fit(array, y, mask)
    assert ragged.temperature_ == dense.temperature_
    probs = dense.predict_proba(array, mask)
    assert probs.shape == array.shape
    for p, q in zip(ragged.predict_proba(scores), probs, strict=True):
        np.testing.assert_array_equal(p, q[: len(p)])
        assert (q[len(p) :] == 0).all()


def test_options_may_be_missing_in_the_middle() -> None:
    array = np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, 0.0]])
    cal = MultipleChoiceCalibrator().fit(*quiz(200))
    probs = cal.predict_proba(array)
    assert (probs[np.isnan(array)] == 0).all()
    assert cal.predict(array).tolist() == [2, 1]
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_another_method_where_there_are_enough_questions() -> None:
    """A bias towards the first option is no temperature: vector scaling sees it."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1500, 3))
    y = np.array([rng.choice(3, p=p) for p in hcal.softmax(z)])
    biased = z + np.array([2.0, 0.0, 0.0])
    few, few_y = quiz(50)
    scores = [*biased[:1000], *few]
    answers = np.concatenate([y[:1000], few_y])
    cal = MultipleChoiceCalibrator("vs").fit(scores, answers)
    assert list(cal.by_count_) == [3]
    plain = MultipleChoiceCalibrator().fit(scores, answers)
    new_scores = biased[1000:]
    new_y = y[1000:]
    nll = {c: hcal.metrics.nll(c.predict_proba(new_scores), new_y) for c in (cal, plain)}
    assert nll[cal] < nll[plain] - 0.1
    assert len(cal.predict_proba(few)) == 50


def test_a_question_with_one_option_is_certain_and_teaches_nothing() -> None:
    scores, y = quiz(300)
    with_one_option = [*scores, np.array([5.0])]
    cal = MultipleChoiceCalibrator().fit(with_one_option, [*y, 0])
    assert cal.temperature_ == pytest.approx(MultipleChoiceCalibrator().fit(scores, y).temperature_)
    assert cal.predict_proba([[5.0]])[0].tolist() == [1.0]


def test_bad_questions_are_named() -> None:
    for scores, y, mask, message in (
        ([[1.0, 2.0], [0.0, 1.0, 2.0]], [2, 0], None, "question 0 has the answer 2"),
        ([[1.0, 2.0]], [2], None, "row 0 is 2"),
        ([[1.0, 2.0], []], [0, 0], None, "question 1 has no options"),
        ([[1.0, np.inf]], [0], None, "\\+inf"),
        (np.array([[1.0, np.nan]]), [0], [[True, True]], "no score for option 1"),
        (np.array([[1.0, 2.0]]), [0], [[True]], "mask has shape"),
        ([[1.0, 2.0]], [0, 1], None, "y has 2 labels for 1 rows"),
        ([[1.0]], [0], None, "nothing to learn"),
        ([], [], None, "questions x options"),
    ):
        with pytest.raises(ValueError, match=message):
            MultipleChoiceCalibrator().fit(scores, y, mask)


def test_all_right_warns() -> None:
    with pytest.warns(hcal.CalibrationWarning, match="multiple choice"):
        MultipleChoiceCalibrator().fit([[0.0, 1.0]] * 5, [1] * 5)


@pytest.mark.parametrize("method", ["ts", "vs", "pool"])
def test_it_saves_and_loads_like_every_calibrator(method: str, tmp_path) -> None:
    scores, y = quiz(1500)
    cal = MultipleChoiceCalibrator(method, min_questions=250).fit(scores, y)
    assert bool(cal.by_count_) == (method != "ts")
    hcal.save(cal, tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    assert again.get_params() == cal.get_params()
    assert again.fit_.after == cal.fit_.after
    assert again.converged_ == cal.converged_
    assert again.n_classes_ == 6
    for p, q in zip(cal.predict_proba(scores), again.predict_proba(scores), strict=True):
        np.testing.assert_array_equal(p, q)


def test_a_file_with_a_strange_member_is_refused(tmp_path) -> None:
    """Through hcal.save, so that the checksum is right and the content is what is judged."""
    cal = MultipleChoiceCalibrator("vs").fit(*quiz(1500))
    common = cal.members_["common"]
    member = next(iter(cal.by_count_.values()))
    for members, message in (
        ({"common": common, "7": member}, "is not for that number of options"),
        ({"common": common, "-1": member}, "is not for that number of options"),
        ({"common": member}, "must be a temperature of logits"),
        ({"3": member}, "must be a temperature of logits"),
    ):
        cal.members_ = members
        hcal.save(cal, tmp_path / "m.hcal")
        with pytest.raises(ValueError, match=message):
            hcal.load(tmp_path / "m.hcal")


def test_it_exports_to_onnx(tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    scores, y = quiz(400)
    cal = MultipleChoiceCalibrator().fit(scores, y)
    hcal.export_onnx(cal, tmp_path / "m.onnx")
    array = padded(scores, -np.inf).astype(np.float32)
    of_onnx = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"scores": array})[0]
    np.testing.assert_allclose(of_onnx, cal.predict_proba(array), atol=1e-6)
    assert (of_onnx[np.isneginf(array)] == 0).all()
    mixed = MultipleChoiceCalibrator("vs", min_questions=50).fit(scores, y)
    with pytest.raises(ValueError, match='only method="ts" is one graph'):
        hcal.export_onnx(mixed, tmp_path / "n.onnx")


def test_ragged_lists_are_measured_as_they_are(tmp_path) -> None:
    scores, y = quiz(400)
    cal = MultipleChoiceCalibrator().fit(*quiz(800, seed=3))
    ragged = cal.predict_proba(scores)
    array = cal.predict_proba(padded(scores, -np.inf))
    of_ragged = hcal.evaluate(ragged, y, metrics="score")
    of_array = hcal.evaluate(array, y, metrics="score")
    assert of_ragged.values == of_array.values
    nll = hcal.evaluate(scores, y, metrics=["nll"], input="logits")["nll"]
    expected = hcal.metrics.nll(cal.uncalibrated(scores), y)
    assert nll == pytest.approx(expected)
    of_ragged = hcal.reliability(ragged, y)[0]
    of_array = hcal.reliability(array, y)[0]
    np.testing.assert_array_equal(of_ragged.observed, of_array.observed)
    assert hcal.metrics.ece_ew(ragged, y) == hcal.metrics.ece_ew(array, y)
    page = hcal.reporting.build_report(scores, y, cal)
    assert "Multiple choice" in page
    assert "learned from" not in page
    assert "learned from" in hcal.reporting.build_report(*quiz(800, seed=3), cal)


def test_ragged_lists_are_certified_and_the_rows_of_the_fit_are_not() -> None:
    cal = MultipleChoiceCalibrator().fit(*quiz(800, seed=3))
    scores, y = quiz(3000, seed=4)
    ragged = cal.predict_proba(scores)
    array = cal.predict_proba(padded(scores, -np.inf))
    expected = hcal.certify(array, y).to_dict()
    assert hcal.certify(ragged, y).to_dict() == expected
    of_model = hcal.certify(cal, scores, y)
    of_probs = hcal.certify(ragged, y)
    assert of_model.smooth == pytest.approx(of_probs.smooth, rel=1e-9)
    seen, answers = quiz(800, seed=3)
    wide = []
    for s in seen[:400]:  # padded further than in the fit
        wide.append(np.append(s, np.full(8 - len(s), np.nan)))
    with pytest.raises(ValueError, match="no certificate"):
        hcal.certify(cal, wide, answers[:400])


def test_a_ragged_row_that_is_no_distribution_is_named() -> None:
    with pytest.raises(ValueError, match=r"row 1 sums to 0\.5"):
        hcal.evaluate([[0.5, 0.5, 0.0], [0.2, 0.3]], [0, 1])
