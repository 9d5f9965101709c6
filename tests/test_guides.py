"""The guides, followed to the letter: a code block whose first line is ``# path`` is that file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import hcal
from helpers import ROOT, synthetic


def file_of(page: str) -> str:
    """Return the one file that a guide shows."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n# \S+\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The guide's class in a module of another package."""
    (tmp_path / "another_package.py").write_text(file_of("write-a-method.md"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("another_package", None)
    import another_package  # type: ignore[import-not-found]

    found: type = another_package.HalfTemperature
    return found


def test_a_method_of_others_saves_loads_compares_and_reports(half: type, tmp_path: Path) -> None:
    logits, y = synthetic(200, 3)
    fresh, labels = synthetic(200, 3, seed=1)
    cal = half().fit(logits, y)
    hcal.save(cal, tmp_path / "m.hcal")
    with pytest.raises(ValueError, match=r"'half'.*not registered.*hcal\.register") as said:
        hcal.load(tmp_path / "m.hcal")
    assert "\n" not in str(said.value)
    hcal.register(half)
    loaded = hcal.load(tmp_path / "m.hcal")
    assert type(loaded) is half
    np.testing.assert_allclose(loaded.predict_proba(fresh), hcal.softmax(fresh / 2), atol=1e-12)
    assert hcal.compare(logits, y, fresh, labels, methods=["half"], n_jobs=1)["half"]["nll"] > 0
    hcal.report(cal, fresh, labels, tmp_path / "report.html")
    assert "Half as sure" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_a_method_is_not_registered(half: type) -> None:
    with pytest.raises(TypeError, match="concrete subclass of Calibrator"):
        hcal.register(dict)  # type: ignore[type-var]
    for changes, message in (
        ({"name": "ts"}, "is a method of hcal"),
        ({"name": "My Method"}, "lower-case letters"),
        ({"name": "other", "map_types": ()}, "declares no map_types"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.register(type("Other", (half,), changes))  # type: ignore[type-var]
    assert hcal.register(type("Other", (half,), {"name": "other"})).name == "other"  # type: ignore[type-var]
