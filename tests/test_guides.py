"""The guides, followed to the letter: their files in a copy of the project, and our tests on them.

A code block whose first line is ``# path`` is that file. Nothing else of the copy is touched but the
registry, by the row that the guide on metrics says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hcal
from helpers import ROOT

GUIDES = ROOT / "docs" / "howto"
COPIED = ("src", "tests", "docs", "studies", "benchmarks", "pyproject.toml", "README.md", "mkdocs.yml")


def files_of(page: str) -> dict[str, str]:
    """Return the files that a guide shows, by path."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def project(folder: Path) -> Path:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "assets"))
        else:
            shutil.copy(source, target)
    return folder


def follow(folder: Path, page: str) -> Path:
    for path, code in files_of(page).items():
        assert not (folder / path).exists(), path
        (folder / path).write_text(code, encoding="utf-8")
    return folder


def passed(folder: Path, *arguments: str) -> int:
    """Run tests of the copy; return how many passed, none having failed."""
    env = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found, done.stdout[-1000:]
    return int(found[1])


def test_a_method_is_one_file(tmp_path: Path) -> None:
    folder = follow(project(tmp_path), "write-a-method.md")
    assert list(files_of("write-a-method.md")) == ["src/hcal/calibrators/half.py"]
    words = (
        "half or test_names or method_cards or golden_models_of_every or page_on_the_format or has_a_graph"
    )
    places = (
        "calibrators/test_contract.py",
        "integrations/test_portable.py",
        "integrations/test_every_calibrator.py",
    )
    found = _places(folder, *places, "test_layers.py", "test_names.py", "test_docs.py", "test_io.py")
    assert passed(folder, *found, *_places(folder, "test_model_files.py"), "-k", words) > 50


def test_a_metric_is_one_file_and_one_row(tmp_path: Path) -> None:
    folder = follow(project(tmp_path), "add-a-metric.md")
    registry = folder / "src/hcal/metrics/registry.py"
    text, guide = (
        registry.read_text(encoding="utf-8"),
        (GUIDES / "add-a-metric.md").read_text(encoding="utf-8"),
    )
    row = re.search(r"^```text\n(        Metric\(.*?\n)```$", guide, re.MULTILINE | re.DOTALL)
    assert row
    text = text.replace("    dirichlet,\n", "    dirichlet,\n    in_the_large,\n", 1)
    first_class_wise = text.index("        _class(")
    registry.write_text(text[:first_class_wise] + row[1] + text[first_class_wise:], encoding="utf-8")
    places = _places(folder, "test_catalog.py", "test_layers.py", "test_names.py", "test_evaluate.py")
    words = "gap_in_the_large or in_the_large or catalog or test_names or registry or by_default"
    assert passed(folder, "tests/metrics", "src/hcal/metrics/in_the_large.py", *places, "-k", words) > 20


def test_an_integration_is_one_file_and_its_test(tmp_path: Path) -> None:
    folder = follow(project(tmp_path), "add-an-integration.md")
    places = _places(folder, "test_layers.py", "test_names.py")
    assert passed(folder, "tests/integrations/test_records.py", *places, "-k", "records or test_names") > 5


def _places(folder: Path, *names: str) -> list[str]:
    """Return where test files are, whatever folder of tests/ they stand in."""
    found = [next((folder / "tests").rglob(Path(name).name)) for name in names]
    return [str(path.relative_to(folder)) for path in found]


# -- methods of others ------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The guide's class in a module of somebody else's."""
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


def test_a_method_of_others_is_benchmarked(half: type, tmp_path: Path) -> None:
    from hcal.bench.methods import resolve_methods
    from hcal.bench.run import Plan, run
    from hcal.bench.tasks import find_tasks

    hcal.register(half)
    tasks, _ = find_tasks(["synthetic:temperature-k3-n200"])
    results = run(Plan(tasks, resolve_methods("half"), ["nll"]), tmp_path / "r.csv")
    assert {key.method for key in results.good} == {"uncal", "half"}


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
