"""The guides, followed to the letter: a code block whose first line is ``# path`` is that file."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from helpers import ROOT, synthetic


def files_of(page: str) -> dict[str, str]:
    """Return the files that a guide shows, by name."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {path.rpartition("/")[2]: code for path, code in blocks}


def module_of(page: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a file of a guide as a module of another package."""
    (folder / name).write_text(files_of(page)[name], encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    module = name.removesuffix(".py")
    sys.modules.pop(module, None)
    return importlib.import_module(module)


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The guide's class in a module of another package."""
    module = module_of("write-a-method.md", "half.py", tmp_path, monkeypatch)
    method: type = module.HalfTemperature
    return method


def test_a_method_of_others_saves_loads_compares_and_reports(half: type, tmp_path: Path) -> None:
    logits, y = synthetic(200, 3)
    fresh, labels = synthetic(200, 3, seed=1)
    cal = half().fit(logits, y)
    hcal.save(cal, tmp_path / "m.hcal")
    with pytest.raises(ValueError, match=r"'half'.*not registered.*hcal\.register") as refusal:
        hcal.load(tmp_path / "m.hcal")
    assert "\n" not in str(refusal.value)
    hcal.register(half)
    loaded = hcal.load(tmp_path / "m.hcal")
    assert type(loaded) is half
    np.testing.assert_allclose(loaded.predict_proba(fresh), hcal.softmax(fresh / 2), atol=1e-12)
    table = hcal.compare(logits, y, fresh, labels, methods=["half"], n_jobs=1)
    assert table["half"]["nll"] > 0
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
    other = hcal.register(type("Other", (half,), {"name": "other"}))  # type: ignore[type-var]
    assert other.name == "other"


def test_a_reader_of_others_gives_the_rows_of_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of("write-a-reader.md", "score_lines.py", tmp_path, monkeypatch)
    logits, y = synthetic(300, 3)
    fresh, fresh_y = synthetic(300, 3, seed=1)
    path = tmp_path / "rows.txt"
    lines = [
        f"{label} {' '.join(map(repr, z))}" for label, z in zip(y, logits.tolist(), strict=True)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    by_blocks = hcal.TemperatureScaling().fit(module.score_lines(path, 100))
    at_once = hcal.TemperatureScaling().fit(logits, y)
    np.testing.assert_allclose(by_blocks.predict_proba(logits), at_once.predict_proba(logits))
    lines = [f"{k} {' '.join(map(repr, z))}" for k, z in zip(fresh_y, fresh.tolist(), strict=True)]
    path.write_text("\n".join(lines), encoding="utf-8")
    from_file = hcal.evaluate(at_once, module.score_lines(path, 100), metrics=["nll", "ece_ew"])
    from_array = hcal.evaluate(at_once, fresh, fresh_y, metrics=["nll", "ece_ew"])
    for name in ("nll", "ece_ew"):
        assert from_file[name] == pytest.approx(from_array[name], abs=1e-12)
    assert hcal.certify(at_once, module.score_lines(path)).n == 300
    hcal.report(at_once, module.score_lines(path), None, tmp_path / "report.html")


def test_a_file_type_of_the_guide_is_read_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcal.io import Request, batches, files, formats, read

    module = module_of("write-a-reader.md", "tab_separated.py", tmp_path, monkeypatch)
    monkeypatch.setitem(formats.READERS, ".tsv", module.TabRows)
    monkeypatch.setattr(files, "TYPES", (*files.TYPES, ".tsv"))
    logits, y = synthetic(50, 3)
    rows = []
    for scores, label in zip(logits.tolist(), y, strict=True):
        rows.append([*map(repr, scores), str(label)])
    for extension, mark in ((".tsv", "\t"), (".csv", ",")):
        table = [["logit_cat", "logit_dog", "logit_eel", "y"], *rows]
        lines = [mark.join(cells) for cells in table]
        (tmp_path / f"table{extension}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    request = Request(scores="logit_*", label="y", input="logits")
    of_tsv, of_csv = (read(tmp_path / f"table{end}", request) for end in (".tsv", ".csv"))
    np.testing.assert_array_equal(of_tsv.values, of_csv.values)
    np.testing.assert_array_equal(of_tsv.labels(), of_csv.labels())
    assert of_tsv.classes == of_csv.classes
    by_blocks = hcal.evaluate(batches(tmp_path / "table.tsv", request, rows=20), metrics=["nll"])
    expected = hcal.metrics.nll(hcal.softmax(logits), y)
    assert by_blocks["nll"] == pytest.approx(expected)


def test_a_result_of_the_guide_prints_saves_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of("write-a-result.md", "base_rates.py", tmp_path, monkeypatch)
    probs = [[0.2, 0.8], [0.6, 0.4], [0.5, 0.5], [0.9, 0.1]]
    result = module.base_rates(probs, [1, 0, 0, 0])
    assert repr(result) == "The most frequent of 2 classes has 75.0% of 4 rows."
    assert result.to_dict()["schema"] == "hcal/base-rates/1"
    assert result.to_dict()["rates"] == [0.75, 0.25]
    of_class_1 = {"class": 1, "rate": 0.25, "error": pytest.approx(0.2165, abs=1e-4)}
    assert result.to_records()[1] == of_class_1
    pytest.importorskip("matplotlib")
    assert "<img" in result._repr_html_()
