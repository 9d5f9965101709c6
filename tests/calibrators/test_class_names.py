"""Names of classes: kept by the model, in its file and in its answers; numbers inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.calibrators import Calibrator
from hcal.io import UnnamedClassesError
from helpers import synthetic

NAMES = ["cat", "dog", "eel", "fox"]
LOGITS, CODES = synthetic()
Y = np.array(NAMES)[CODES]


def _fit(**options: object) -> Calibrator:
    return hcal.make_calibrator("ts").fit(LOGITS, Y, classes=NAMES, **options)


def test_a_fit_with_names_is_the_fit_with_numbers() -> None:
    named, plain = _fit(), hcal.make_calibrator("ts").fit(LOGITS, CODES)
    np.testing.assert_array_equal(named.predict_proba(LOGITS), plain.predict_proba(LOGITS))
    np.testing.assert_array_equal(named.predict(LOGITS), np.array(NAMES)[plain.predict(LOGITS)])
    assert named.classes_.tolist() == NAMES
    assert plain.classes_.tolist() == [0, 1, 2, 3]
    assert named.score(LOGITS, Y) == plain.score(LOGITS, CODES)


def test_every_method_keeps_names() -> None:
    for name in ("h", "iso", "vs", "hb"):
        cal = hcal.make_calibrator(name).fit(LOGITS, Y, classes=NAMES)
        assert set(cal.predict(LOGITS)) <= set(NAMES)


def test_names_are_saved_and_checked_on_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hcal.calibrators import files

    path, real = tmp_path / "m.hcal", files._described
    hcal.save(_fit(), path)
    assert hcal.load(path).classes_.tolist() == NAMES
    hcal.save(hcal.make_calibrator("ts").fit(LOGITS, CODES), path)
    assert hcal.load(path).class_names_ is None
    for bad, message in (
        (["cat", "dog"], "classes has 2 names for 4 classes"),
        (["cat", "cat", "dog", "eel"], "two classes are named 'cat'"),
        (["cat", 1, "dog", "eel"], "all text or all integers"),
        (["", "a", "b", "c"], "1 to 1000 characters"),
        ("abcd", "must be a list of names"),
    ):
        monkeypatch.setattr(files, "_described", lambda c, b=bad, real=real: real(c) | {"classes": b})
        hcal.save(_fit(), path)
        with pytest.raises(ValueError, match=message):
            hcal.load(path)


def test_what_is_unclear_is_refused() -> None:
    with pytest.raises(UnnamedClassesError, match="say which column is which class"):
        hcal.make_calibrator("ts").fit(LOGITS, Y)
    with pytest.raises(ValueError, match="classes has 3 names for 4 classes"):
        hcal.make_calibrator("ts").fit(LOGITS, Y, classes=NAMES[:3])
    with pytest.raises(ValueError, match=r"row \d+ is 'fox', no class of cat, dog, eel, bee"):
        hcal.make_calibrator("ts").fit(LOGITS, Y, classes=[*NAMES[:3], "bee"])


def test_integers_that_are_names() -> None:
    cal = hcal.make_calibrator("ts").fit(LOGITS, CODES * 10 + 3, classes=[3, 13, 23, 33])
    assert set(cal.predict(LOGITS).tolist()) <= {3, 13, 23, 33}
    assert hcal.make_calibrator("ts").fit(LOGITS, CODES, classes=NAMES).predict(LOGITS[:1])[0] in NAMES


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_columns_of_a_frame_name_the_classes(library: str) -> None:
    module = pytest.importorskip(library)
    frame = module.DataFrame({name: LOGITS[:, k] for k, name in enumerate(NAMES)})
    assert hcal.make_calibrator("ts").fit(frame, Y).classes_.tolist() == NAMES
    assert hcal.make_calibrator("ts").fit(frame, CODES).class_names_ is None


def test_evaluate_reliability_and_compare_take_names() -> None:
    probs = hcal.softmax(LOGITS)
    for options in ({}, {"metrics": ["nll"]}):
        named = hcal.evaluate(probs, Y, classes=NAMES, **options).to_dict()
        assert named == hcal.evaluate(probs, CODES, **options).to_dict()
    diagram = hcal.reliability(probs, Y, level="class-wise", classes=NAMES)
    assert [c.title for c in diagram.curves] == [f"class {n}" for n in NAMES]
    half = len(Y) // 2
    table = hcal.compare(LOGITS[:half], Y[:half], LOGITS[half:], Y[half:], methods=["ts"], classes=NAMES)
    assert not table.errors
    with pytest.raises(ValueError, match="say classes="):
        hcal.evaluate(probs, Y)


def test_a_failed_fit_forgets_the_names() -> None:
    cal = _fit()
    with pytest.raises(ValueError, match="y has"):
        cal.fit(LOGITS, CODES[:-1])
    assert "class_names_" not in vars(cal)


def _biased(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Logits of two classes whose crossing has to move, and labels 0, 1."""
    rng = np.random.default_rng(0)
    odds = 2 * rng.normal(size=n)
    return np.stack([np.zeros(n), odds + 2], axis=1), (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(int)


def test_sentences_say_the_users_names(capfd: pytest.CaptureFixture[str]) -> None:
    z, y = _biased()
    cal = hcal.HCalibrator(verbose=True).fit(z, np.array(["ham", "spam"])[y], classes=["ham", "spam"])
    assert "change side: class spam is now the likelier" in cal.info_["notes"][0]
    assert "class spam is now" in capfd.readouterr().err
    numbers = hcal.HCalibrator().fit(z, 3 + 4 * y, classes=[3, 7])  # names that are numbers, once
    assert "class 7 is now the likelier" in numbers.info_["notes"][0]
    with pytest.warns(hcal.CalibrationWarning, match="every label is class spam"):
        alone = hcal.HCalibrator().fit(z, ["spam"] * len(z), classes=["ham", "spam"])
    assert "every label is class spam" in alone.info_["warnings"][0]
    with pytest.raises(ValueError, match="class ham has no calibration row"):
        alone.with_prior([0.5, 0.5])
    # What was said of sides does not hold for other class frequencies.
    shifted = cal.with_prior([0.5, 0.5])
    assert not {"notes", "changed_sides", "crossing"} & set(shifted.info_)
    assert cal.info_["notes"]


@pytest.mark.parametrize("names", [("ham", "spam"), (3, 7)])
def test_sentences_of_fits_by_blocks_say_the_users_names(names: tuple[str | int, str | int]) -> None:
    from hcal.io import Batch

    z, y = _biased()
    cal = hcal.fit_batches(hcal.HCalibrator(), [Batch(z, "logits", y, 0)], classes=names)
    assert f"class {names[1]} is now the likelier" in cal.info_["notes"][0]
    assert cal.class_names_ == names


def test_sentences_behind_a_classifier_say_its_labels() -> None:
    from sklearn.linear_model import LogisticRegression

    from hcal.integrations.sklearn import CalibratedClassifier

    z, y = _biased()
    told = np.array(["ham", "spam"])[y]
    model = LogisticRegression().fit(z, np.where(z[:, 1] > 2, "spam", "ham"))
    wrapped = CalibratedClassifier(model, cv="prefit").fit(z, told)
    assert "class spam is now the likelier" in wrapped.calibrator_.info_["notes"][0]
    empty = np.where(told == "ham", "", "spam")  # a label that no model file can hold
    model = LogisticRegression().fit(z, empty)
    assert set(CalibratedClassifier(model, cv="prefit").fit(z, empty).predict(z)) == {"", "spam"}
