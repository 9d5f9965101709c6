"""The project itself: version, light imports, how far a prediction travels, what the README says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from helpers import ROOT, synthetic
from tools import results
from tools.readme import ROWS

README = (ROOT / "README.md").read_text(encoding="utf-8")
HEAVY = {
    "torch",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
    "polars",
    "pyarrow",
    "numba",
    "onnx",
    "rich",
}
CONTRACT = [
    "PooledCalibrator", "HCalibrator", "make_calibrator", "list_calibrators", "list_metrics",
    "evaluate", "metrics", "HCalibrationLoss", "compare", "clinical", "cross_fit",
    "MultilabelCalibrator", "reliability", "certify", "Certificate", "Monitor", "report",
    "register", "register_metric", "export", "export_onnx", "integrations", "save", "load",
]  # fmt: skip


def test_the_version_is_said_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.\w+)?", hcal.__version__)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(r"^## (\S+)$", changes, re.MULTILINE)
    assert released is not None
    assert released[1] == hcal.__version__  # the section on top may be "(unreleased)"


def _loaded(code: str) -> set[str]:
    command = f"{code}; import sys; print('\\n'.join(sys.modules))"
    command_line = [sys.executable, "-c", command]
    got = subprocess.run(command_line, capture_output=True, text=True, check=True)
    return set(got.stdout.split())


def test_imports_are_light() -> None:
    assert _loaded("import hcal").isdisjoint(HEAVY)
    assert _loaded("import hcal.cli.app").isdisjoint(HEAVY - {"rich"})
    added = _loaded("import hcal; hcal.PooledCalibrator") - _loaded("import sklearn.base")
    assert added.isdisjoint(
        {"pandas", "pyarrow", "torch", "matplotlib", "numba"}
    )  # scikit-learn imports pandas itself
    needed = {"scipy", "numba"}  # numba where kernels are compiled
    slow = {"scipy.stats", "scipy.optimize", "scipy.fft", "jinja2", "joblib"}
    evaluate = (
        "import hcal; hcal.evaluate([[0.2, 0.8], [0.6, 0.4]] * 20, [1, 0] * 20, confidence=0.95)"
    )
    assert _loaded(evaluate).isdisjoint(HEAVY - needed | slow)


def test_every_public_name_is_there() -> None:
    assert [name for name in CONTRACT if name not in hcal.__all__] == []
    for name in hcal.__all__:
        assert getattr(hcal, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hcal.nonsense  # type: ignore[attr-defined]


def test_the_package_ships_its_types_and_its_page() -> None:
    assert files("hcal").joinpath("py.typed").is_file()
    for name in ("page.html", "style.css", "script.js"):
        assert files("hcal.reporting").joinpath(name).is_file()


def test_no_path_of_a_machine_and_no_loose_end_is_in_the_project() -> None:
    for folder in ("src", "studies", "benchmarks", "examples", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"/home/|/root/|/work/|C:\\\\", text), path
            assert "TODO" not in text, path


# -- how far a call travels -------------------------------------------------------------------------


def walk(call: object) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the files of the package that a call passes through, and the functions."""
    root = str(ROOT / "src" / "hcal")
    seen = set()

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_filename.startswith(root):
            seen.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        call()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    no_function = (">", "__init__")
    functions = {(file, name) for file, name in seen if not name.endswith(no_function)}
    return {f for f, _ in seen}, functions


def test_a_prediction_of_the_default_is_a_short_walk() -> None:
    """Two classes are a curve; with more, a few rows go through the formula, which no kernel has to be compiled for."""
    for k, most_functions in ((2, 16), (5, 43)):
        logits, y = synthetic(300, k)
        cal = hcal.PooledCalibrator().fit(logits, y)
        cal.predict_proba(logits)
        where, functions = walk(partial(cal.predict_proba, logits))
        assert 4 < len(where) <= 6, sorted(where)
        assert len(functions) <= most_functions, sorted(functions)


def test_a_fit_and_a_report_do_not_walk_farther_than_today(tmp_path: Path) -> None:
    """Every new file on the way is one more to read: raise a number only for a good reason."""
    logits, y = synthetic(400, 4)
    np.savez(tmp_path / "new.npz", logits=logits[200:], y=y[200:])
    cal = hcal.PooledCalibrator().fit(logits[:200], y[:200])
    hcal.save(cal, tmp_path / "m.hcal")
    page = str(tmp_path / "page.html")
    command = ["report", str(tmp_path / "new.npz"), "--model", str(tmp_path / "m.hcal"), "-o", page]
    walks = {
        21: lambda: hcal.PooledCalibrator().fit(logits, y),
        48: lambda: hcal.report(cal, logits[200:], y[200:], page),
        60: lambda: CliRunner().invoke(app, command),
    }
    for most, call in walks.items():
        call()  # what is imported at the first call does not count
        where, _ = walk(call)
        assert 10 < len(where) <= most, sorted(where)


def test_a_fit_on_the_command_line_is_a_short_walk(tmp_path: Path) -> None:
    """Counted after all modules are imported."""
    for k in (2, 5):
        logits, y = synthetic(300, k)
        np.savez(tmp_path / "task.npz", logits=logits, y=y)
        command = ["fit", str(tmp_path / "task.npz"), "-o", str(tmp_path / "m.hcal")]
        CliRunner().invoke(app, command)
        where, _ = walk(lambda command=command: CliRunner().invoke(app, command))
        assert 20 < len(where) <= 35, sorted(where)


# -- the README -------------------------------------------------------------------------------------

#: How much the demo's numbers move between processors and BLAS libraries, with a margin: 300 steps of
#: training carry the last bit on. The demo prints its own numbers; this keeps the README from going stale.
SLACK = 0.03


def test_the_demo_numbers_of_the_readme(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "demo"), "--json"])
    assert result.exit_code == 0, result.output
    demo = json.loads(result.stdout)
    for row, key in ROWS.items():
        line = next(line for line in README.splitlines() if line.startswith(f"| {row} |"))
        before, after = (float(cell) for cell in line.strip("| ").split("|")[1:])
        assert before == pytest.approx(demo["before"][key], abs=SLACK), row
        assert after == pytest.approx(demo["after"][key], abs=SLACK), row
    claim = re.search(r"right ([\d.]+)\s?% of the time but claims ([\d.]+)\s?%", README)
    assert claim
    assert float(claim[1]) / 100 == pytest.approx(demo["before"]["accuracy"], abs=SLACK)
    assert float(claim[2]) / 100 == pytest.approx(demo["before"]["mean_confidence"], abs=SLACK)


def test_names_and_targets_of_the_readme_and_extras_exist() -> None:
    for dotted in set(re.findall(r"`(hcal(?:\.\w+)+)\(", README)):
        module, name = dotted.rsplit(".", 1)
        assert hasattr(__import__(module, fromlist=[name]), name), dotted
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    support = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    table = support.split("extra | brings")[-1].split("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+)` \| .*$", table, re.MULTILINE))
    assert named == set(extras) - {"test", "test-all", "docs"}


def test_every_row_of_a_study_says_which_version_and_commit_wrote_it() -> None:
    by_studies = [name for name, (command, _) in results.SPEAKS_OF.items() if "studies" in command]
    written = [
        file for file in results.RESULTS.iterdir() if file.name in (*by_studies, *results.KEPT)
    ]
    for file in written:
        for row in results.rows_of(file):
            assert row["version"], file.name
            assert row["commit"], file.name


def test_make_results_knows_every_results_file() -> None:
    files = {path.name for path in results.RESULTS.iterdir()}
    assert files == {*results.SPEAKS_OF, *results.KEPT}, "enter new files in tools/results.py"
    for name, (_, code) in results.SPEAKS_OF.items():
        for path in code:
            assert (results.ROOT / path).exists(), f"{name}: {path} is gone"
