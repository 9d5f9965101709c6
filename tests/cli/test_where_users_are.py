"""What new users stumbled over: each line here failed, or misled, before it was mended."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import hcal
from hcal import inputs
from hcal.cli import warm
from hcal.cli.app import app
from hcal.io import Request, read
from hcal import extras
from helpers import ROOT, synthetic

NAMES = ["cat", "dog", "eel", "fox"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"NO_COLOR": "1"})


def _table(path: Path, seed: int, rows: int = 400) -> Path:
    """Write a table with an id, named columns in an odd order, a text label and a site."""
    logits, y = synthetic(rows, seed=seed)
    order = [2, 0, 3, 1] if seed % 2 else [0, 1, 2, 3]
    lines = [",".join(["id", *(f"logit_{NAMES[k]}" for k in order), "target", "site"])]
    for i, (row, label) in enumerate(zip(logits, y, strict=True)):
        cells = [f"r{i:04}", *(repr(float(row[k])) for k in order), NAMES[label], "ab"[i % 2]]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_warm_compiles_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    ran: list[str] = []
    parts = {name: lambda name=name: ran.append(name) for name in warm._PARTS}
    parts["certificates"] = warm._PARTS["certificates"]  # one of them for real: all take a while
    monkeypatch.setattr(warm, "_PARTS", parts)
    result = run("warm")
    assert result.exit_code == 0, result.output
    assert ran == ["prediction", "objective", "maps"]
    assert "kept in" in result.stdout
    found = json.loads(run("warm", "--json").stdout)
    assert found["kept"]
    assert Path(found["folder"]).is_dir()
    monkeypatch.setattr("hcal.runtime.jit.compiled", lambda: False)
    result = run("warm")
    assert result.exit_code == 1
    assert "compiled kernels need numba: pip install" in result.stderr


# -- the command line on tables -------------------------------------------------------------------


def test_a_table_with_ids_and_names_from_fit_to_certificate(tmp_path: Path) -> None:
    cal, test = _table(tmp_path / "cal.csv", 2), _table(tmp_path / "test.csv", 3)
    model, out = tmp_path / "m.hcal", tmp_path / "p.csv"
    columns = ("--scores", "logit_*", "--label", "target")
    fitted = run("fit", cal, *columns, "--method", "ts", "-o", model, "--json")
    assert fitted.exit_code == 0, fitted.output
    assert json.loads(fitted.stdout)["class_names"] == NAMES
    assert run("apply", model, test, *columns, "--id", "id", "-o", out).exit_code == 0
    head, first = out.read_text().splitlines()[:2]
    assert head == "id,probs_cat,probs_dog,probs_eel,probs_fox,y"  # in the model's order, not the file's
    assert first.startswith("r0000,")
    logits, y = synthetic(400, seed=3)
    expected = hcal.load(model).predict_proba(logits)
    got = np.loadtxt(out, delimiter=",", skiprows=1, usecols=range(1, 5))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    found = run("evaluate", test, *columns, "--model", model, "--group", "site", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["metrics"]["nll"] == pytest.approx(hcal.metrics.nll(expected, y))
    assert len(json.loads(found.stdout)["groups"]) == 2
    again = run("evaluate", out, "--json")  # what apply wrote is read as it is
    assert json.loads(again.stdout)["metrics"]["nll"] == pytest.approx(hcal.metrics.nll(expected, y))
    page = tmp_path / "r.html"
    assert run("report", test, *columns, "--model", model, "--group", "site", "-o", page).exit_code == 0
    assert "eel" in page.read_text(encoding="utf-8")
    certified = run("certify", test, *columns, "--model", model, "--group", "site", "--json")
    assert certified.exit_code == 0, certified.output
    proven = json.loads(certified.stdout)
    assert proven["classes"]["names"] == NAMES
    assert any(f"class {name}" in line for line in proven["sentences"] for name in NAMES)
    assert not any(re.search(r"class \d", line) for line in proven["sentences"])


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".feather", ".jsonl"])
def test_apply_writes_every_table_that_is_read(tmp_path: Path, ending: str) -> None:
    cal, model = _table(tmp_path / "cal.csv", 2, rows=60), tmp_path / "m.hcal"
    columns = ("--scores", "logit_*", "--label", "target", "--id", "id")
    fitted = run("fit", cal, *columns, "--method", "ts", "-o", model)  # an id is no score, here as elsewhere
    assert fitted.exit_code == 0, fitted.output
    odd = cal.read_text().replace("r0000,", "=1+1,").replace("r0001,", "é “x”,")
    cal.write_text(odd)  # no formula, no other letters
    out = tmp_path / f"p{ending}"
    assert run("apply", model, cal, *columns, "-o", out).exit_code == 0
    back = read(out, Request(id="id"))
    expected = hcal.load(model).predict_proba(synthetic(60, seed=2)[0])
    exact = 0
    np.testing.assert_allclose(back.values, expected, rtol=exact)
    assert (back.kind, list(back.classes or ())) == ("probs", NAMES)
    assert back.ids is not None
    assert back.ids[:3].tolist() == ["=1+1", "é “x”", "r0002"]
    np.testing.assert_array_equal(back.labels(), synthetic(60, seed=2)[1])


def test_an_id_is_no_score_for_those_who_judge(tmp_path: Path) -> None:
    test = _table(tmp_path / "test.csv", 3, rows=200)
    columns = ("--scores", "logit_*", "--label", "target", "--id", "id")
    for command in (("certify",), ("compare", "--methods", "uncal")):
        result = run(*command, test, *columns)
        assert result.exit_code == 0, result.output
    assert run("report", test, *columns, "-o", tmp_path / "r.html").exit_code == 0


def test_groups_with_weights_are_refused_with_the_way_out(tmp_path: Path) -> None:
    logits, y = synthetic(50, seed=5)
    np.savez(tmp_path / "a.npz", logits=logits, y=y, w=np.arange(50) % 3, site=np.arange(50) % 2)
    result = run("evaluate", tmp_path / "a.npz", "--weight", "w", "--group", "site")
    assert result.exit_code == 1
    assert "leave the weights out, or evaluate the rows of each group" in result.stderr


def test_the_id_that_was_a_class(tmp_path: Path) -> None:
    result = run("fit", _table(tmp_path / "t.csv", 2), "--input", "logits", "-o", tmp_path / "m.hcal")
    assert result.exit_code == 1
    assert "'id' does not look like scores" in result.stderr
    assert "--scores and --label" in result.stderr


def test_weights_of_a_column_count_rows(tmp_path: Path) -> None:
    logits, y = synthetic(200, seed=5)
    copies = np.arange(200) % 3
    np.savez(tmp_path / "a.npz", logits=logits, y=y, copies=copies)
    np.savez(tmp_path / "b.npz", logits=np.repeat(logits, copies, axis=0), y=np.repeat(y, copies))
    ask = ("--metrics", "nll,brier", "--json")
    weighted = json.loads(run("evaluate", tmp_path / "a.npz", "--weight", "copies", *ask).stdout)["metrics"]
    assert weighted == pytest.approx(json.loads(run("evaluate", tmp_path / "b.npz", *ask).stdout)["metrics"])
    for name, options in (("a", ("--weight", "copies")), ("b", ())):
        model = tmp_path / f"{name}.hcal"
        done = run("fit", tmp_path / f"{name}.npz", *options, "--method", "ts", "-o", model)
        assert done.exit_code == 0, done.output
    one, two = (hcal.load(tmp_path / f"{n}.hcal").predict_proba(logits) for n in "ab")
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    (logits_cal, y_cal), (logits_test, y_test) = synthetic(seed=1), synthetic(300, seed=2)
    task, plot = tmp_path / "task.npz", tmp_path / "c.png"
    np.savez(task, logits_cal=logits_cal, y_cal=y_cal, logits_test=logits_test, y_test=y_test)
    result = run("compare", task, "--methods", "ts,hb", "--plot", plot)
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[:4]] == ["method", "uncal", "ts", "hb"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    parts = json.loads(run("compare", task, "--methods", "ts", "--json").stdout)
    expected = hcal.compare(logits_cal, y_cal, logits_test, y_test, methods=["ts"])["ts"]
    assert parts["ts"]["nll"] == pytest.approx(expected["nll"])
    one, two = _table(tmp_path / "cal.csv", 2), _table(tmp_path / "test.csv", 3)
    columns = ("--scores", "logit_*", "--label", "target", "--methods", "ts", "--json")
    files = json.loads(run("compare", one, "--test", two, *columns).stdout)
    (a, ya), (b, yb) = synthetic(400, seed=2), synthetic(400, seed=3)
    assert files["ts"]["nll"] == pytest.approx(hcal.compare(a, ya, b, yb, methods=["ts"])["ts"]["nll"])
    folds = json.loads(run("compare", one, *columns, "--folds", "3").stdout)
    assert folds["ts"]["nll"] == pytest.approx(hcal.compare(a, ya, folds=3, methods=["ts"])["ts"]["nll"])


# -- probabilities called logits --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_are_no_logits(dtype: type) -> None:
    logits, y = synthetic()
    probs = hcal.softmax(logits).astype(dtype)
    with pytest.raises(ValueError, match=r"logits look like probabilities .*say input=\"probs\""):
        hcal.make_calibrator("ts").fit(probs, y)
    with pytest.raises(ValueError, match="look like probabilities"):
        hcal.make_calibrator("ts").fit(probs.round(4), y)  # printed with four digits
    with pytest.raises(ValueError, match="look like probabilities"):
        hcal.make_calibrator("ts").fit(logits, y).predict_proba(probs)
    with pytest.raises(ValueError, match="one score a row"):
        hcal.make_calibrator("ts").fit(probs[:, 0], y == 0)
    hcal.make_calibrator("ts", input="probs").fit(probs, y)


def test_the_way_to_insist_works() -> None:
    logits, y = synthetic()
    probs = hcal.softmax(logits)
    for given in (probs + 1, np.stack([np.zeros(len(y)), probs[:, 0]], axis=1)):
        hcal.make_calibrator("uncal").fit(given, y if given.shape[1] == 4 else y == 0)


def test_genuine_logits_are_never_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, k = rng.integers(1, 6), rng.integers(2, 5)
        inputs.check_logits(rng.random((n, k)), n_classes=int(k))
        inputs.check_logits(np.eye(int(k))[rng.integers(0, k, n)])  # votes
    inputs.check_logits([[0.25, 0.75]])  # one row says nothing
    inputs.check_logits([0.1, 0.9], n_classes=2)  # two scores that a fitted model meets


# -- Python as the command line ---------------------------------------------------------------------


def test_report_from_python(tmp_path: Path) -> None:
    (logits, y), (fresh, z) = synthetic(seed=1), synthetic(300, seed=2)
    cal = hcal.make_calibrator("ts").fit(logits, np.array(NAMES)[y], classes=NAMES)
    verdict = hcal.report(cal, fresh, np.array(NAMES)[z], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert verdict.headline in page
    assert "fox" in page
    hcal.report(None, hcal.softmax(fresh), z, tmp_path / "raw.html", input="probs")
    assert (tmp_path / "raw.html").exists()


@pytest.mark.parametrize("first", ["hcal.reporting", "hcal.cli.report", "hcal.integrations"])
def test_report_is_the_function_whatever_is_imported_first(first: str) -> None:
    code = f"import {first}, hcal; print(callable(hcal.report), *inspect.signature(hcal.report).parameters)"
    got = subprocess.run([sys.executable, "-c", f"import inspect; {code}"], capture_output=True, text=True)
    assert got.stdout.startswith("True calibrator scores y path"), got.stderr


def test_dir_lists_the_api_and_nothing_else() -> None:
    import hcal.io

    assert dir(hcal) == sorted(hcal.__all__)
    assert {"report", "compare", "evaluate", "reliability"} <= set(dir(hcal))


def test_a_diagram_prints_for_a_person() -> None:
    logits, y = synthetic()
    text = str(hcal.reliability(hcal.softmax(logits), y, bins=5))
    assert "array(" not in text
    assert text.splitlines()[0].startswith("Reliability of 400 rows (top-label)")
    assert repr(hcal.reliability(hcal.softmax(logits), y, bins=5)) == text
    many = str(hcal.reliability(hcal.softmax(np.tile(logits, 3)), y, level="class-wise"))
    assert "… and 7 classes with smaller errors" in many


def test_the_site_is_searched_from_the_disk_and_shows_whole_lines() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "\n  - offline\n" in config
    (sheet,) = re.findall(r"extra_css: \[(.+)\]", config)
    assert "pre-wrap" in (ROOT / "docs" / sheet).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_report_is_shown_where_people_look_first(page: str) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    shown = [(ROOT / page).parent / picture for picture in pictures if "report" in picture]
    assert shown
    assert all(picture.stat().st_size > 10_000 for picture in shown)


def test_every_extra_is_in_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for extra in project["optional-dependencies"]:
        assert f"| `{extra}` |" in readme, extra


# -- little things ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [("--param", "preserve=None"), ("--param", "preserve=null"), ("--preserve", "none")]
)
def test_nothing_may_be_asked_to_be_preserved(tmp_path: Path, said: tuple[str, str]) -> None:
    logits, y = synthetic(200)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    result = run("fit", tmp_path / "a.npz", *said, "-o", tmp_path / "m.hcal", "-q")
    assert result.exit_code == 0, result.output
    assert hcal.load(tmp_path / "m.hcal").preserves is None


def test_a_text_file_that_is_named_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("logits_0,logits_1,y\n0.5,1.5,1\n")
    result = run("fit", path, "-o", tmp_path / "m.hcal")
    assert result.stderr == (
        "error: a.npz is no .npz archive: it is text; if it is a table, rename it to .csv\n"
    )


def test_five_rows_are_few(tmp_path: Path) -> None:
    logits, y = synthetic(5)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    result = run("fit", tmp_path / "a.npz", "--method", "uncal", "-o", tmp_path / "m.hcal", "--json")
    assert "warning: 5 rows are very few to learn from" in result.stderr
    assert len(json.loads(result.stdout)["warnings"]) == 1


def test_a_handful_of_the_rarer_class_is_few(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = ["sick" if i < 4 else "well" for i in range(200)]
    lines = [f"{i},{rng.normal() + 3 * (name == 'sick'):.4f},{name}" for i, name in enumerate(label)]
    (tmp_path / "a.csv").write_text("\n".join(["id,score,outcome", *lines]) + "\n")
    said = ("--scores", "score", "--label", "outcome", "--input", "logits", "--method", "platt")
    table = tmp_path / "a.csv"
    result = run("fit", table, *said, "--classes", "well,sick", "-o", tmp_path / "m.hcal")
    assert result.exit_code == 0, result.output
    assert "only 4 of 200 rows are of class sick" in result.stderr
    assert "NEW.csv -o probs.csv" in result.stdout
    refused = run("fit", table, *said, "-o", tmp_path / "m.hcal")
    assert "of a single score the second is its class" in refused.stderr


def test_memory_that_is_not_there_is_no_bug_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    logits, y = synthetic(200)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    from hcal.calibrators.ts import TemperatureScaling

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.28 TiB for an array")

    monkeypatch.setattr(TemperatureScaling, "_fit", fail)
    result = run("fit", tmp_path / "a.npz", "--method", "ts", "-o", tmp_path / "m.hcal")
    assert result.stderr.startswith("error: not enough memory: Unable to allocate 7.28 TiB")


def test_what_is_missing_is_named_with_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnx'] = None; import hcal\n"
        "try: hcal.export_onnx\nexcept ImportError as error: print(error)"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert got.stdout.startswith("exporting to ONNX needs onnx: pip install "), got.stderr
    assert "[onnx]" in got.stdout


@pytest.mark.parametrize(
    ("told", "command"),
    [
        ({}, "pip install 'hcal[plot]'"),
        ({"url": "file:///a%20b/hcal", "dir_info": {"editable": True}}, "pip install -e '/a b/hcal[plot]'"),
        ({"url": "file:///d/hcal-1.whl", "archive_info": {}}, "pip install '/d/hcal-1.whl[plot]'"),
        (
            {"url": "https://h/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'hcal[plot] @ git+https://h/x.git@abc'",
        ),
        (
            {"url": "https://h/hcal-1.whl", "archive_info": {}},
            "pip install 'hcal[plot] @ https://h/hcal-1.whl'",
        ),
    ],
)
def test_extras_come_from_where_hcal_came(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object], command: str
) -> None:
    class Installed:
        def read_text(self, _: str) -> str:
            return json.dumps(told)

    monkeypatch.setattr(extras, "distribution", lambda _: Installed())
    assert extras.install_command("plot") == command


def test_a_calibrated_module_has_the_signature_of_its_model() -> None:
    import torch

    from hcal.integrations.torch import CalibratedModule

    logits, y = synthetic()
    module = CalibratedModule(torch.nn.Linear(3, 4), hcal.make_calibrator("ts").fit(logits, y)).eval()
    assert str(inspect.signature(module.forward)).startswith("(input: ")
    x, batch = torch.randn(7, 3), torch.export.Dim("batch", min=2)
    for shapes in ({"input": (batch, None)}, ((batch, None),)):
        exported = torch.export.export(module, (x,), dynamic_shapes=shapes)
        fresh = torch.randn(11, 3)
        torch.testing.assert_close(exported.module()(fresh), module(fresh))
