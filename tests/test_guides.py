"""The guides, followed to the letter: a code block whose first line is ``# path`` is that file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import hcal
from helpers import ROOT

GUIDES = ROOT / "docs" / "howto"


def files_of(page: str) -> dict[str, str]:
    """Return the files that a guide shows, by path."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


# -- methods of others ------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The guide's class in a module of somebody else's."""
    if not hasattr(hcal, "PooledCalibrator"):
        pytest.skip("before the core of 0.3")
    [code] = files_of("write-a-method.md").values()
    (tmp_path / "somebody_elses.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    # Workers of the benchmark are new processes.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    sys.modules.pop("somebody_elses", None)
    import somebody_elses  # type: ignore[import-not-found]

    found: type = somebody_elses.HalfTemperature
    return found


def test_a_method_of_others_saves_loads_compares_and_reports(half: type, tmp_path: Path) -> None:
    from helpers import synthetic

    logits, y = synthetic(200, 3)
    hcal.register(half)
    cal = hcal.make_calibrator("half").fit(logits, y)
    hcal.save(cal, tmp_path / "m.hcal")
    loaded = hcal.load(tmp_path / "m.hcal")
    assert type(loaded) is half
    assert (loaded.predict_proba(logits) == cal.predict_proba(logits)).all()
    fresh, labels = synthetic(200, 3, seed=1)
    assert hcal.compare(logits, y, fresh, labels, methods=["half"], n_jobs=1)["half"]["nll"] > 0
    assert "Half as sure" in hcal.reporting.build_report(fresh, labels, cal)


def test_a_parameter_of_others_may_be_called_seed(half: type, tmp_path: Path) -> None:
    """Ours were, in 0.1: ``seed`` in a file means ``random_state`` where the method knows no seed."""

    def __init__(self: object, *, seed: int = 3, input: str = "logits") -> None:
        vars(self).update(seed=seed, input=input)

    seeded = hcal.register(type("Seeded", (half,), {"name": "seeded", "__init__": __init__}))  # type: ignore[type-var]
    hcal.save(seeded(seed=5).fit([[0.0, 2.0]] * 4, [1, 1, 1, 0]), tmp_path / "m.hcal")
    assert hcal.load(tmp_path / "m.hcal").get_params()["seed"] == 5


def test_a_file_of_a_method_that_nobody_registered_says_what_to_do(half: type, tmp_path: Path) -> None:
    cal = half().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    hcal.save(cal, tmp_path / "m.hcal")
    with pytest.raises(
        ValueError, match=r"method 'half', which is not registered here: .*hcal\.register"
    ) as said:
        hcal.load(tmp_path / "m.hcal")
    assert "\n" not in str(said.value)


def test_what_cannot_be_a_method_is_not_registered(half: type) -> None:
    with pytest.raises(TypeError, match="concrete subclass of Calibrator"):
        hcal.register(dict)  # type: ignore[type-var]
    for name, message in (("ts", "is a method of hcal"), ("My Method", "lower-case letters")):
        with pytest.raises(ValueError, match=message):
            hcal.register(type("Other", (half,), {"name": name}))  # type: ignore[type-var]
    with pytest.raises(ValueError, match="declares no state_specs"):
        hcal.register(type("Other", (half,), {"name": "other", "state_specs": ()}))  # type: ignore[type-var]
    assert hcal.register(type("Other", (half,), {"name": "other"})).name == "other"  # type: ignore[type-var]
    assert hcal.register(hcal.calibrators.get_calibrator("ts")).name == "ts"  # ours already is


# -- metrics of others ------------------------------------------------------------------------------


def test_the_guide_on_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers import synthetic

    [(name, code)] = files_of("add-a-metric.md").items()
    (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(hcal.metrics.METRICS)
    try:
        import my_metrics  # type: ignore[import-not-found]  # noqa: F401

        (cal_logits, cal_y), (test_logits, test_y) = synthetic(200, 3), synthetic(200, 3, seed=1)
        names = {"np": np, "hcal": hcal, "cal_logits": cal_logits, "cal_y": cal_y, "y": test_y}
        names |= {"test_logits": test_logits, "test_y": test_y, "probs": hcal.softmax(test_logits)}
        text = (GUIDES / "add-a-metric.md").read_text(encoding="utf-8")
        calls = text.split("<!-- not run:")[1].split("```python\n")[1].split("```")[0].splitlines()
        evaluation, value, comparison = (eval(call, names) for call in calls)
        assert evaluation["spherical"] == value
        assert evaluation.interval("gap_in_the_large")[0] >= 0
        assert comparison["ts"]["spherical"] > 0
        assert {"gap_in_the_large", "spherical"} <= set(hcal.list_metrics())
    finally:
        hcal.metrics.METRICS.clear()
        hcal.metrics.METRICS.update(known)
