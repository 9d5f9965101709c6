"""The month of the operator's guide: played as a whole, and compared with what the guide quotes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import hcal
from helpers import ROOT

pytestmark = pytest.mark.slow

#: Numbers may differ in their last digits between machines; what happens on which day may not.
NUMBER = re.compile(r"\d+\.\d+(e-?\d+)?")


def test_the_month_happens_as_the_guide_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("month", ROOT / "examples" / "month" / "month.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "month", module)
    spec.loader.exec_module(module)

    story = module.play(tmp_path)

    assert story.drift_days[0] == module.CAMPAIGN
    assert story.alarm_day is not None
    assert module.CAMPAIGN + module.DELAY <= story.alarm_day < story.refit_day
    assert story.new_model_passes
    assert story.old_model_passes is False
    assert not story.alarm_after_refit
    old, new = (tmp_path / f"state-{version}" for version in (1, 2))
    assert hcal.Monitor.load(old / "watch.json").alarm is not None
    assert hcal.Monitor.load(new / "watch.json").n == 4 * module.ROWS_A_DAY
    waiting = hcal.ScoreStore(new / "scores.sqlite").counts["waiting"]
    assert waiting == 7 * module.ROWS_A_DAY
    guide = (ROOT / "docs" / "howto" / "operate.md").read_text(encoding="utf-8")
    quoted = re.search(r"```text\n(.*?)```", guide, re.DOTALL)
    assert quoted is not None
    expected = NUMBER.sub("#", quoted[1])
    assert NUMBER.sub("#", capsys.readouterr().out) == expected
