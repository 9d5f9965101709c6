"""The ES module gives what ``predict_proba`` gives, in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hcal
from helpers import synthetic
from studies import runtimes

if shutil.which("node") is None:
    pytest.skip("node is not installed", allow_module_level=True)

METHODS = [name for name in hcal.list_calibrators() if name != "h"]


def node(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.mjs").write_text(program, encoding="utf-8")
    return subprocess.run(
        ["node", "program.mjs"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "methods", [["ts", "pool"], pytest.param(METHODS, marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_every_kind_and_number_of_columns(methods: list[str], tmp_path: Path) -> None:
    allowed = runtimes.RUNTIMES["javascript"][1]
    for case in runtimes.cases(methods):
        difference = runtimes.measure("javascript", case, tmp_path)
        assert difference is not None
        assert difference.difference <= allowed, difference


def test_odd_scores(tmp_path: Path) -> None:
    hcal.export(runtimes.fitted("pool", "logits", 2), tmp_path / "model.mjs")
    program = """
        import { predict, info } from "./model.mjs";
        const odd = [NaN, Infinity, [0, NaN], [0, Infinity], [-Infinity, -Infinity], [null, 1]];
        console.log(predict(odd).every((row) => row.every(Number.isNaN)));
        console.log(JSON.stringify(predict([-Infinity, [0, -Infinity]])));
        console.log(predict([new Float32Array([0, 1])])[0].length, info.method, info.classes);
        for (const bad of [[1, 2, 3], null, "1"]) {
          try { predict([bad]); console.log("no error"); }
          catch (error) { console.log(error.name); }
        }
        try { predict([["1", "2"]]); } catch (error) { console.log(error.message); }
    """
    lines = node(tmp_path, program).stdout.splitlines()
    assert lines == [
        "true",
        "[[1,1e-37],[1,1e-37]]",
        "2 pool [ '0', '1' ]",
        *["RangeError"] * 3,
        "scores must be numbers",
    ]


def test_rows_that_predict_proba_refuses(tmp_path: Path) -> None:
    for kind, rows in (
        ("probs", [[0.6, 0.6], [-0.1, 1.1], [60, 40]]),
        ("log_probs", [[1.0, 2.0], [-9.0, -9.0], [2.0, 0.0]]),
    ):
        hcal.export(runtimes.fitted("ts", kind, 2), tmp_path / "model.mjs")
        program = f"""
            import {{ predict }} from "./model.mjs";
            console.log(predict({rows}).every((row) => row.every(Number.isNaN)));
        """
        assert node(tmp_path, program).stdout == "true\n"


def test_the_file_tests_itself(tmp_path: Path) -> None:
    for n_classes in (2, 5):
        cal = hcal.PooledCalibrator().fit(*synthetic(300, n_classes))
        path = tmp_path / "a folder" / "model.mjs"
        path.parent.mkdir(exist_ok=True)
        hcal.export(cal, path)
        done = subprocess.run(["node", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.rsplit(": ", 1)[1]) <= 1e-15

        text = path.read_text(encoding="utf-8")
        assert ("ONNX" in text) == (n_classes > 2)
        changed = text.replace('"probs": [[0.', '"probs": [[1.')
        path.write_text(changed, encoding="utf-8")
        done = subprocess.run(["node", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 1


def test_names_of_classes_are_data(tmp_path: Path) -> None:
    names = ["*/ process.exit(3) /*", "</script>\n\u2028`${process.exit(3)}`"]
    cal = hcal.make_calibrator("ts").fit(*synthetic(100, 2), classes=names)
    hcal.export(cal, tmp_path / "model.mjs")
    program = 'import { info } from "./model.mjs"; console.log(JSON.stringify(info.classes));'
    assert json.loads(node(tmp_path, program).stdout) == names
    assert "</script>" not in (tmp_path / "model.mjs").read_text(encoding="utf-8")


def test_hundreds_of_classes(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("vs").fit(*synthetic(3000, 300))
    hcal.export(cal, tmp_path / "model.mjs")
    scores = synthetic(20, 300, seed=1)[0]
    probs = runtimes.by_javascript(cal, scores, tmp_path)
    np.testing.assert_allclose(probs, cal.predict_proba(scores), rtol=0, atol=1e-14)


def test_segments_are_refused(tmp_path: Path) -> None:
    cal = hcal.SegmentedCalibrator("ts").fit(*synthetic(100, 2), by=["a", "b"] * 50)
    with pytest.raises(ValueError, match=r"a \.mjs file knows no segments"):
        hcal.export(cal, tmp_path / "model.mjs")
