"""Names of classes: kept by the model, in its file and in its answers; numbers inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.calibrators import Calibrator
from hcal.data import UnnamedClassesError
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
    from hcal.data import model_file as io

    path = tmp_path / "m.hcal"
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
        cal = _fit()
        real = io.json.dumps
        monkeypatch.setattr(io.json, "dumps", lambda h, b=bad, real=real, **k: real(h | {"classes": b}, **k))
        hcal.save(cal, path)
        monkeypatch.undo()
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
