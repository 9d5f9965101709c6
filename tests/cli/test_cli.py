"""The command line as a user meets it: what it writes, what it prints, how it fails."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import folder, prepared_folder, run
from hcal.io import checksum
from helpers import synthetic

__all__ = ["folder", "prepared_folder"]

SYNTHETIC_ECE_BEFORE = 0.2  # scale 2.5 makes the synthetic logits over-confident by more than this


@pytest.fixture
def task(folder: Path) -> Path:
    return folder / "task.npz"


@pytest.fixture
def model(folder: Path) -> Path:
    return folder / "model.hcal"


# -- the three steps ------------------------------------------------------------------------------


def test_fit_reads_the_calibration_part_and_says_what_it_did(task: Path) -> None:
    path = task.with_name("m.hcal")
    result = run("fit", task, "-o", path, "--method", "ts")
    assert "400 × 4, cal part" in result.output
    assert "the rows it learned from" in result.output
    with np.load(task) as f:
        expected = hcal.make_calibrator("ts").fit(f["logits_cal"], f["y_cal"])
    fit = hcal.load(path).fit_
    assert fit.file == "task.npz"
    assert fit.part == "cal"
    assert fit.sha256 == checksum(task)
    assert fit.request == {"input": "logits"}
    assert fit.date.startswith("20")
    assert fit.after == expected.fit_.after


def test_a_fit_loads_nothing_that_it_does_not_use(task: Path) -> None:
    """A missing attribute of a fitted calibrator once imported scikit-learn, pandas and scipy.stats: 1 s."""
    code = "import sys; sys.argv[0] = 'hcal'\nfrom hcal.cli.app import app\n"
    code += "try: app()\nexcept SystemExit: pass\n"
    command = [
        sys.executable,
        "-c",
        f"{code}print(*sys.modules)",
        "fit",
        task,
        "-o",
        task.with_name("m.hcal"),
        "-q",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {
        "sklearn",
        "pandas",
        "pyarrow",
        "torch",
        "matplotlib",
        "numba",
        "scipy.stats",
        "joblib",
        "jinja2",
    }
    assert loaded & heavy == set()


def test_apply_reads_the_test_part_and_writes_what_the_library_computes(
    task: Path, model: Path
) -> None:
    path = task.with_name("probs.npz")
    run("apply", model, task, "-o", path)
    with np.load(task) as f, np.load(path) as got:
        expected = hcal.load(model).predict_proba(f["logits_test"])
        np.testing.assert_array_equal(got["probs"], expected)
        np.testing.assert_array_equal(got["y"], f["y_test"])


def test_evaluate_agrees_with_the_library(task: Path, model: Path) -> None:
    result = run("evaluate", task, "--model", model, "--json")
    evaluation = json.loads(result.stdout)
    with np.load(task) as f:
        logits = f["logits_test"]
        y = f["y_test"]
    probs = hcal.load(model).predict_proba(logits)
    assert evaluation["schema"] == "hcal/evaluate/1"
    assert evaluation["n"] == 600
    assert evaluation["changed"] == 0
    for name, row in evaluation["metrics"].items():
        expected = getattr(hcal.metrics, name)(probs, y)
        assert row["value"] == pytest.approx(expected), name
    ece = evaluation["metrics"]["ece_ew"]
    expected = hcal.metrics.ece_ew(hcal.softmax(logits), y)
    assert ece["baseline"] == pytest.approx(expected)
    assert ece["baseline"] > SYNTHETIC_ECE_BEFORE > 3 * ece["value"]


def test_evaluate_of_applied_probabilities_is_evaluate_with_the_model(
    task: Path, model: Path
) -> None:
    probs = task.with_name("p.csv")
    run("apply", model, task, "-o", probs, "-q")
    one = json.loads(run("evaluate", probs, "--json").stdout)["metrics"]
    two = json.loads(run("evaluate", task, "--model", model, "--json").stdout)["metrics"]
    for name, row in one.items():
        assert row["value"] == pytest.approx(two[name]["value"], abs=1e-12)


def test_evaluate_prints_levels_and_a_diagram(task: Path, model: Path) -> None:
    result = run("evaluate", task, "--model", model)
    for text in (
        "top-label",
        "class-wise",
        "canonical",
        "ece_ew",
        "before",
        "after",
        "█",
        "0 of 600",
    ):
        assert text in result.output
    assert "█" not in run("evaluate", task, "--no-diagram").output
    evaluation = json.loads(run("evaluate", task, "--metrics", "nll, brier", "--json").stdout)
    assert list(evaluation["metrics"]) == ["nll", "brier"]


def test_the_printed_diagram_has_the_error_of_the_table(tmp_path: Path) -> None:
    """Of rows with weights and of rows in groups, too."""
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.02, 0.98, 600)
    happened = (rng.random(600) < risk**1.5).astype(int)
    path = tmp_path / "rows.npz"
    weight = np.where(risk > 0.5, 3, 1)
    np.savez(path, probs=risk, y=happened, weight=weight, group=np.arange(600) // 3)
    for options in ((), ("--weight", "weight"), ("--groups", "group")):
        metric = json.loads(run("evaluate", path, *options, "--json").stdout)["metrics"]["ece_ew"]
        words = f"error {metric['value']:.4f}"
        if metric["chance"] is not None:
            words += f" ({metric['chance']:.4f} by chance)"
        assert f"class 1: {words}\n" in run("evaluate", path, *options).output


def test_report_and_certify_count_every_row_once_after_a_weighted_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.02, 0.98, 1000)
    happened = (rng.random(1000) < risk).astype(int)
    weight = np.where(risk > 0.5, 5.0, 0.5)
    for name, rows in (("cal", slice(500)), ("test", slice(500, None))):
        columns = {"probs": risk[rows], "y": happened[rows], "weight": weight[rows]}
        np.savez(tmp_path / f"{name}.npz", **columns)
    model = tmp_path / "model.hcal"
    run("fit", tmp_path / "cal.npz", "--weight", "weight", "-o", model, "-q")
    bare = tmp_path / "bare.npz"
    np.savez(bare, probs=risk[500:], y=happened[500:])
    page = tmp_path / "page.html"
    for command in (("certify",), ("report", "-o", page)):
        answers = []
        for file in (tmp_path / "test.npz", bare):
            done = run(*command, file, "--model", model, "--json")
            answers.append(json.loads(done.stdout))
            assert "every row counts once" in done.stderr
        keys = set(answers[0]) - {"file", "run"}
        assert all(answers[0][key] == answers[1][key] for key in keys)
    with pytest.raises(ValueError, match="counts every row once"):
        hcal.report(hcal.load(model), tmp_path / "test.npz", None, page)


def test_fit_says_how_many_predictions_of_two_classes_cross_one_half(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    odds = 2 * rng.normal(size=300)
    rate = 1 / (1 + np.exp(-odds))
    y = (rng.random(300) < rate).astype(np.int64)
    z = np.stack([np.zeros(300), odds + 2], axis=1)  # biased: the crossing has to move
    task, model = (tmp_path / name for name in ("two.npz", "m.hcal"))
    np.savez(task, logits=z, y=y)
    printed = run("fit", task, "-o", model, "--classes", "ham,spam")
    cal = hcal.load(model)
    tops = cal.predict_proba(z).argmax(axis=1)
    moved = int((tops != z.argmax(axis=1)).sum())
    assert moved > 10
    assert "class spam is now predicted when the model's own score is above" in printed.output
    assert f"{moved} of 300 predictions change" in printed.output
    summary = json.loads(run("fit", task, "-o", model, "--json").stdout)
    assert summary["method"] == "pool"
    assert summary["rows"] == 300
    assert summary["classes"] == 2
    assert summary["fit"]["converged"]
    assert summary["fit"]["details"]["changed_predictions"] == moved


def test_apply_for_other_class_frequencies(task: Path, model: Path) -> None:
    path = task.with_name("shifted.npz")
    cal = hcal.load(model)
    with np.load(task) as f:
        logits = f["logits_test"]
    with_known_frequencies = cal.with_prior([0.1, 0.2, 0.3, 0.4])
    for option, expected in (
        ("0.1,0.2,0.3,0.4", with_known_frequencies),
        ("estimate", cal.with_prior_from(logits)),
    ):
        run("apply", model, task, "-o", path, "--prior", option)
        with np.load(path) as got:
            np.testing.assert_array_equal(got["probs"], expected.predict_proba(logits))
            assert abs(got["probs"] - cal.predict_proba(logits)).max() > 1e-3
    for option, words in (
        ("0.5,0.5", "4"),
        ("often", "numbers with commas, or 'estimate', got 'often'"),
    ):
        output = task.with_name("none.npz")
        refused = run("apply", model, task, "-o", output, "--prior", option, code=1)
        assert words in refused.output
        assert not task.with_name("none.npz").exists()


def test_bare_arrays_with_labels_in_a_second_file(tmp_path: Path) -> None:
    logits, y = synthetic()
    np.save(tmp_path / "z.npy", logits)
    np.save(tmp_path / "y.npy", y)
    arguments = (
        "fit",
        tmp_path / "z.npy",
        "--labels",
        tmp_path / "y.npy",
        "-o",
        tmp_path / "m.hcal",
    )
    assert "(--input)" in run(*arguments, "--method", "ts", code=1).output
    run(*arguments, "--method", "ts", "--input", "logits")
    run("apply", tmp_path / "m.hcal", tmp_path / "z.npy", "-o", tmp_path / "p.npy")
    assert np.load(tmp_path / "p.npy").shape == logits.shape


# -- how it fails ---------------------------------------------------------------------------------

FAILURES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such file": (("fit", "none.npz", "-o", "m.hcal"), 1, "error: no such file: none.npz"),
    "no such folder": (("fit", "task.npz", "-o", "no/m.hcal"), 1, "error: no such directory: no"),
    "unknown method": (
        ("fit", "task.npz", "-o", "m", "--method", "x"),
        1,
        "unknown calibrator 'x'; valid",
    ),
    "unknown type": (
        ("fit", "a.docx", "-o", "m"),
        1,
        "error: cannot read a.docx: the types are .csv, .feather",
    ),
    "unknown metric": (("evaluate", "task.npz", "--metrics", "x"), 1, "unknown metric 'x'"),
    "unknown output": (("apply", "model.hcal", "task.npz", "-o", "p.doc"), 1, "cannot write p.doc"),
    "not a model": (
        ("apply", "task.npz", "task.npz", "-o", "p.npz"),
        1,
        "is not an hcal model file",
    ),
    "parameter": (
        ("fit", "task.npz", "-o", "m", "--param", "a=3"),
        1,
        "'pool' has no parameter 'a'; valid",
    ),
    "deep parameter": (
        ("fit", "task.npz", "-o", "m", "--param", f"bins={'[' * 50_000}"),
        1,
        "error: --param bins: its value is nested too deeply",
    ),
    "long parameter": (
        ("fit", "task.npz", "-o", "m", "--param", f"bins={'9' * 50_000}"),
        1,
        "error: --param bins: its value is nested too deeply, or too long a number",
    ),
    "bad pair": (("fit", "task.npz", "-o", "m", "--param", "x"), 1, "--param expects name=value"),
    "input twice": (
        ("fit", "task.npz", "-o", "m", "--param", "input=probs"),
        1,
        "with --input, not",
    ),
    "no labels": (("evaluate", "bare.npz"), 1, "bare.npz has no labels"),
    "nan": (("evaluate", "nan.npz"), 1, "error: logits contains NaN, first at row 1, column 0"),
    "missing argument": (("fit",), 2, "Missing argument"),
    "missing option": (("fit", "task.npz"), 2, "Missing option"),
    "unknown option": (("fit", "task.npz", "--nope"), 2, "No such option"),
    "unknown command": (("nope",), 2, "No such command"),
}


def test_errors_are_one_sentence_with_an_exit_code(
    task: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task.parent)
    np.savez("bare.npz", logits=np.zeros((2, 4)))
    np.savez("nan.npz", logits=np.array([[0, 1], [np.nan, 1]]), y=[0, 1])
    before = sorted(p.name for p in task.parent.iterdir())
    for case, (arguments, code, message) in FAILURES.items():
        result = run(*arguments, code=code)
        assert message in result.stderr, case
        assert "Traceback" not in result.output
        assert result.stdout == ""
        assert sorted(p.name for p in task.parent.iterdir()) == before  # nothing half-written


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_sentence(task: Path) -> None:
    task.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        result = run("fit", task, "-o", task.with_name("m.hcal"), "--method", "ts", code=1)
    finally:
        task.parent.chmod(stat.S_IRWXU)
    assert "error: Permission denied" in result.stderr


def test_a_bug_is_called_a_bug(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("hcal.io.read", broken)
    result = run("evaluate", task, code=1)
    assert "internal error: RuntimeError: boom" in result.stderr
    assert "HCAL_DEBUG=1" in result.stderr
    monkeypatch.setenv("HCAL_DEBUG", "1")
    assert isinstance(run("evaluate", task, code=1).exception, RuntimeError)


def test_warnings_are_one_line_on_standard_error(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    from hcal.methods.ts import TemperatureScaling

    real = TemperatureScaling.fit

    def warns(
        self: TemperatureScaling, *arguments: object, **options: object
    ) -> TemperatureScaling:
        warnings.warn("ts: did not converge", hcal.CalibrationWarning, stacklevel=1)
        return real(self, *arguments, **options)

    monkeypatch.setattr(TemperatureScaling, "fit", warns)
    result = run("fit", task, "-o", task.with_name("m.hcal"), "--method", "ts", "-q")
    assert result.stderr == "warning: ts: did not converge\n"
    assert result.stdout == ""


def test_log_levels_choose_the_notes_and_never_the_warnings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{p},{'' if row % 9 == 0 else int(p > 0.5)}" for row, p in enumerate(rng.random(90))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["probs,y", *rows]), encoding="utf-8")
    options = ("--scores", "probs", "--input", "probs", "--unlabelled", "drop", "--method", "ts")
    fit = ("fit", path, *options, "-o", tmp_path / "m.hcal")
    messages = {
        level: run(*fit, "--log-level", level).stderr for level in ("debug", "info", "error")
    }
    note = "note: 10 rows without a label were dropped"
    assert note in messages["debug"]
    assert "debug: fitting ts" in messages["debug"]
    assert note in messages["info"]
    assert "debug:" not in messages["info"]
    assert note not in messages["error"]
    assert all("warning: " in text for text in messages.values())
    assert note in run(*fit).stderr
    assert note not in run(*fit, "-q").stderr
    assert "loud" in run(*fit, "--log-level", "loud", code=2).stderr


def test_quiet_is_quiet(task: Path, model: Path) -> None:
    for arguments in (
        ("fit", task, "-o", task.with_name("m2.hcal"), "--method", "ts"),
        ("apply", model, task, "-o", task.with_name("p.npz")),
        ("evaluate", task),
    ):
        assert run(*arguments, "--quiet").output == ""


# -- help -----------------------------------------------------------------------------------------


def test_help_explains_each_command_in_a_line_with_examples() -> None:
    text = run("--help").output
    for command in (
        "fit",
        "apply",
        "info",
        "export",
        "evaluate",
        "report",
        "certify",
        "compare",
        "watch",
        "demo",
    ):
        assert f"│ {command} " in text
        help_page = run(command, "--help").output
        assert "Examples:" in help_page
        assert f" hcal {command}" in help_page
    assert run("--version").output == f"hcal {hcal.__version__}\n"


@pytest.mark.slow
def test_the_installed_command_runs_and_completes() -> None:
    installed = str(Path(sys.executable).with_name("hcal"))
    for command in ([installed], [sys.executable, "-m", "hcal"]):
        got = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert got.stdout == f"hcal {hcal.__version__}\n"
    environment = {
        **os.environ,
        "_HCAL_COMPLETE": "complete_bash",
        "COMP_WORDS": "hcal ev",
        "COMP_CWORD": "1",
    }
    got = subprocess.run([installed], capture_output=True, text=True, env=environment, check=False)
    assert got.stdout.strip() == "evaluate"
