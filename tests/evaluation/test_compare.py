"""hcal.compare: the table, its errors and warnings, folds, processes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.evaluation.comparison import Task, Work, run_cell
from hcal.evaluation.comparison_table import Cell, Comparison
from hcal.evaluation.ranking import holm
from hcal.evaluation.results_file import read_cells
from hcal.h_calibration.candidates import why_collapsed
from hcal.methods import CalibrationWarning
from hcal.methods.folds import deal_folds
from hcal.methods.ts import TemperatureScaling
from hcal.solvers.temperature import SolvedTemperature
from helpers import synthetic


@pytest.fixture(scope="module")
def task() -> tuple[np.ndarray, ...]:
    return *synthetic(300, 4, seed=0), *synthetic(500, 4, seed=1)


class Broken(TemperatureScaling):
    """A method that fails."""

    def _fit(self, *rows):
        raise RuntimeError("cannot [do] this")


class Timid(TemperatureScaling):
    """A method that collapses to near-uniform rows, and says a warning."""

    def _fit(self, *rows):
        warnings.warn("ts: too timid", CalibrationWarning, stacklevel=1)
        return self._solution(SolvedTemperature(1e-3, True, ""))


def test_scores_are_those_of_the_methods(
    task: tuple[np.ndarray, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    z, y, z_test, y_test = task
    table = hcal.compare(*task, methods=["ts", "iso"], metrics=["ks", "cwece_a"], progress=True)
    assert capsys.readouterr().out == ""  # a bar goes to standard error
    frame = table.to_frame()
    assert list(frame.index) == ["uncal", "ts", "iso"]
    # A class-wise or top-label error is never shown without the proper scores and the mean confidence.
    assert {"nll", "brier", "mean_confidence", "fit_s", "predict_s"} <= set(frame.columns)
    for name in ("ts", "iso"):
        p = hcal.make_calibrator(name).fit(z, y).predict_proba(z_test)
        for metric in ("ks", "cwece_a", "nll"):
            expected = getattr(hcal.metrics, metric)(p, y_test)
            assert table[name][metric] == expected
            assert table.to_dict()["methods"][name][metric] == expected
            assert frame.loc[name, metric] == expected
    errors = {name: table[name]["ks"] for name in ("uncal", "ts", "iso")}
    assert table.best("ks") == min(errors, key=errors.get)
    assert all(r.fit_s >= 0 and r.predict_s >= 0 for r in table)
    for order in (table.best, table.sorted):
        with pytest.raises(ValueError, match="no method has a value of 'mmce'"):
            order("mmce")


def test_an_error_is_a_row_and_not_the_end(task: tuple[np.ndarray, ...]) -> None:
    table = hcal.compare(*task, methods={"bad": Broken(), "ts": "ts"})
    assert table.errors == {"bad": "RuntimeError: cannot [do] this"}
    assert table["ts"]["nll"] > 0
    assert "cannot [do] this" in str(table)
    assert table.sorted("nll").results[-1].label == "bad"
    assert table.sorted("accuracy").results[-1].label == "bad"  # of which more is better
    assert not table["bad"]


class Muted(TemperatureScaling):
    """A method that keeps a twentieth of the evidence."""

    def _fit(self, *rows):
        return self._solution(SolvedTemperature(0.05, True, ""))


@pytest.mark.parametrize(("n", "collapsed"), [(20, False), (2000, True)])
def test_comparison_evaluation_and_fit_have_one_rule_of_collapse(n: int, collapsed: bool) -> None:
    """Two classes that are stated with 53 % and right in 70 %, which few rows are by chance."""
    y = np.arange(n) % 2
    right = np.arange(n) % 10 < 7
    sides = np.where(right, y, 1 - y)
    logits = 2.4 * np.eye(2)[sides]
    muted = hcal.softmax(0.05 * logits)
    evaluation = hcal.evaluate(muted, y, metrics=["nll"], baseline=hcal.softmax(logits))
    assert evaluation.collapsed is collapsed

    table = hcal.compare(-logits, y, logits, y, methods={"muted": Muted()}, metrics=["nll"])
    assert table.to_dict()["methods"]["muted"]["collapsed"] is collapsed

    log_probs = np.log(hcal.softmax(logits))
    assert bool(why_collapsed(muted.astype(np.float32), y, log_probs)) is collapsed


def test_collapse_is_flagged_and_never_the_best() -> None:
    task = *synthetic(300, 4, scale=1, seed=0), *synthetic(500, 4, scale=1, seed=1)
    methods = {"timid": Timid(), "ts": "ts"}
    table = hcal.compare(*task, methods=methods, metrics=["cwece_a"])
    assert table.to_dict()["methods"]["timid"]["collapsed"]
    assert not table.to_dict()["methods"]["ts"]["collapsed"]
    assert table.best("cwece_a") != "timid"
    assert "ts: too timid" in table.to_dict()["methods"]["timid"]["warnings"]
    assert "collapsed" in str(table)
    row = Cell("t", "a", "a", {"nll": 9.0, "accuracy": 0.9, "mean_confidence": 0.1}, 10)
    assert "collapsed" in str(Comparison([row], ["nll"]))


def test_variants_and_instances(task: tuple[np.ndarray, ...]) -> None:
    methods = {
        "hb 5": ("hb", {"bins": 5}),
        "hb 20": ("hb", {"bins": 20}),
        "mine": TemperatureScaling(),
    }
    table = hcal.compare(*task, methods=methods, metrics=["ks"])
    assert [r.label for r in table] == ["uncal", "hb 5", "hb 20", "mine"]
    assert table["hb 5"] != table["hb 20"]
    # Cells can be run and brought together by hand.
    rows = Task.from_arrays("task", *task)
    cells = []
    for name in ("uncal", "ts"):
        work = Work("task", rows, name, hcal.make_calibrator(name), ("ks",))
        cells.append(run_cell(work))
    assert Comparison(cells, ["ks"])["ts"] == table["mine"]


def test_probs_in_place_of_logits(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, y_test = task
    p = hcal.softmax(z)
    p_test = hcal.softmax(z_test)
    of_probs = hcal.compare(p, y, p_test, y_test, methods=["hb", "ts"], input="probs")
    of_logits = hcal.compare(*task, methods=["hb", "ts"])
    assert of_probs["hb"]["nll"] == pytest.approx(of_logits["hb"]["nll"], rel=1e-12)
    # The few test probabilities below half the smallest calibration one are drawn up to the floor.
    assert of_probs["ts"]["nll"] == pytest.approx(of_logits["ts"]["nll"], rel=1e-6)


def test_warns_when_rows_coincide(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, y_test = task
    with pytest.warns(UserWarning, match="of the 560 rows were used to fit"):
        hcal.compare(z, y, np.r_[z_test, z[:60]], np.r_[y_test, y[:60]], methods=["ts"])


def test_folds_do_not_favour_flexible_methods() -> None:
    """Folds dealt along labels repeat their noise: isotonic regression then beat the temperature that was true."""
    for seed in range(2):
        z, y = synthetic(800, 3, scale=2.0, seed=seed)
        settings = {"methods": ["ts", "iso"], "metrics": ["nll"], "resamples": 0}
        table = hcal.compare(z, y, folds=5, **settings)
        assert table.best("nll") == "ts"


def test_folds_predict_every_row_unseen(task: tuple[np.ndarray, ...]) -> None:
    z, y, *_ = task
    table = hcal.compare(z, y, methods=["hb"], folds=4, resamples=0)
    out = np.empty_like(z)
    fold = deal_folds(z, 4)
    for k in range(4):
        in_fold = fold == k
        cal = hcal.make_calibrator("hb").fit(z[~in_fold], y[~in_fold])
        out[in_fold] = cal.predict_proba(z[in_fold])
    expected = hcal.metrics.nll(out, y)
    assert table["hb"]["nll"] == pytest.approx(expected)
    crossed = hcal.cross_fit("hb", z, y, folds=4, resamples=0)
    np.testing.assert_allclose(crossed.probs, out)
    assert crossed.slope is None


def test_cross_fit_corrects_optimism() -> None:
    """A method with many parameters looks better on its own rows; the corrected score is that of new rows."""
    z, y = synthetic(250, 2, seed=7)
    crossed = hcal.cross_fit("iso", z, y, resamples=40)
    fresh = synthetic(20_000, 2, seed=8)
    new = hcal.metrics.brier(crossed.calibrator.predict_proba(fresh[0]), fresh[1])
    assert crossed.brier is not None
    assert crossed.slope is not None
    assert crossed.brier.apparent < crossed.brier.corrected
    assert abs(crossed.brier.corrected - new) < 0.05
    assert crossed.slope.optimism > 0
    assert "Corrected for optimism by 40 bootstrap fits" in str(crossed)
    groups = np.repeat(np.arange(50), 5)
    fold = hcal.cross_fit("ts", z, y, groups=groups, resamples=0).fold
    assert all(len(np.unique(fold[groups == g])) == 1 for g in range(50))
    with pytest.raises(ValueError, match="folds must lie in 2"):
        hcal.cross_fit("ts", z, y, folds=1)


def test_grouped_folds_keep_copies_together() -> None:
    z, y = synthetic(60, 3)
    z = np.repeat(z, 5, axis=0)
    y = np.repeat(y, 5)
    groups = np.repeat(np.arange(60), 5)
    honest = hcal.compare(z, y, methods=["lece"], folds=5, groups=groups)
    leaky = hcal.compare(z, y, methods=["lece"], folds=5)
    assert leaky["lece"]["nll"] < honest["lece"]["nll"]


def test_processes_give_the_same_numbers(task: tuple[np.ndarray, ...]) -> None:
    methods = {"bad": ("hb", {"bins": 0}), "hb": "hb", "iso": "iso"}
    alone = hcal.compare(*task, methods=methods, n_jobs=1, resamples=20)
    together = hcal.compare(*task, methods=methods, n_jobs=2, resamples=20)
    assert [r.label for r in together] == [r.label for r in alone]
    assert [dict(r.scores) for r in together] == [dict(r.scores) for r in alone]
    message = "ValueError: parameter 'bins' of 'hb' must be an integer of at least 1, got 0"
    assert together.errors == alone.errors == {"bad": message}


def test_differences_are_paired_and_corrected_by_holm(task: tuple[np.ndarray, ...]) -> None:
    methods = {"a": "ts", "b": "ts", "hb": "hb"}
    table = hcal.compare(*task, methods=methods, resamples=60)
    differences = table.differences("nll")
    # Two copies of a method differ by nothing, and are in bold together; hb is told apart.
    assert differences["a"].change == differences["b"].change == 0.0
    assert table.ties("nll") == {"a", "b"}
    assert differences["uncal"].p_value < 0.01
    assert differences["uncal"].low < differences["uncal"].change < differences["uncal"].high
    # The interval is that of an independent paired bootstrap, within its own noise.
    z, y, z_test, y_test = task
    p = hcal.make_calibrator("ts").fit(z, y).predict_proba(z_test)
    true_class = (np.arange(500), y_test)
    rows = np.log(p[true_class]) - np.log(hcal.softmax(z_test)[true_class])
    upper = differences["uncal"].high - differences["uncal"].change
    expected = 1.96 * rows.std() / np.sqrt(500)
    assert upper == pytest.approx(expected, rel=0.35)
    assert table["a"]["phi"] == pytest.approx(rows.mean())
    corrected = holm({"a": 0.5, "b": 0.001, "c": 0.02})
    assert corrected == {"b": 0.003, "c": 0.04, "a": 0.5}


def test_several_tasks_files_and_formats(task: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    other = *synthetic(300, 3, seed=2), *synthetic(400, 3, seed=3)
    file = tmp_path / "other.npz"
    keys = ("logits_cal", "y_cal", "logits_test", "y_test")
    np.savez(file, **dict(zip(keys, other, strict=True)))
    tasks = {"one": task, "two": file}
    table = hcal.compare(tasks=tasks, methods=["ts", "hb"], resamples=20)
    one = hcal.compare(*task, methods=["ts"])
    two = hcal.compare(*other, methods=["ts"])
    mean = (one["ts"]["nll"] + two["ts"]["nll"]) / 2
    assert table["ts"]["nll"] == pytest.approx(mean)
    assert table.task("two")["ts"]["nll"] == pytest.approx(two["ts"]["nll"])
    assert table.best("phi") == "ts"
    assert "means over 2 tasks" in str(table)
    assert "\\textbf{" in table.to_latex()
    assert r"ece\_ew" in table.to_latex()
    assert table.to_markdown().startswith("| method | ece_ew |")
    assert "one,ts,nll," in table.to_csv()
    with pytest.raises(ValueError, match="tasks take the place of arrays"):
        hcal.compare(*task, tasks=[file])


def test_a_results_file_is_gone_on_from(task: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = hcal.compare(*task, methods=["ts"], results=path, resamples=20)
    size = path.stat().st_size
    with path.open("a") as file:
        file.write('"a line that a crash cut off')
    again = hcal.compare(*task, methods=["ts", "hb"], results=path, resamples=20)
    first_scores = [dict(row.scores) for row in first]
    assert [dict(row.scores) for row in again][:2] == first_scores
    assert path.stat().st_size > size
    assert len(read_cells(path)) == 3
    unchanged = path.read_bytes()
    last = hcal.compare(*task, methods=["hb", "ts"], results=path, resamples=20)
    assert path.read_bytes() == unchanged
    assert last.differences("nll")["ts"] == again.differences("nll")["ts"]
    # Other rows, metrics or parameters are other cells.
    methods = {"ts": "ts", "hb": ("hb", {"bins": 7})}
    hcal.compare(*task, methods=methods, results=path, resamples=20)
    assert len(read_cells(path)) == 4
    path.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="is not a results file"):
        hcal.compare(*task, methods=["ts"], results=path)


def test_no_cell_of_six_processes_is_lost(tmp_path: Path) -> None:
    """Each line is longer than what Python writes at once; a line that a killed process left is dropped."""
    code = """
import sys
from pathlib import Path
from hcal.evaluation.comparison_table import Cell
from hcal.evaluation.results_file import append_cell
for number in range(20):
    cell = Cell("task", "ts", "ts", {"nll": 0.5}, drawn={"nll": [0.123456789] * 5_000})
    append_cell(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", cell)
"""
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "cut o')

    processes = []
    for number in range(6):
        command = [sys.executable, "-c", code, str(path), str(number)]
        processes.append(subprocess.Popen(command))

    assert [process.wait(120) for process in processes] == [0] * 6
    assert len(read_cells(path)) == 120


def test_a_file_of_others_is_not_shortened(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("first\nsecond, without an end")
    with pytest.raises(ValueError, match=r"notes.txt is not a results file"):
        read_cells(path)
    assert path.read_text() == "first\nsecond, without an end"


def test_bad_calls_say_why(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, _ = task
    for arguments, options, message in (
        (task, {"methods": ["nope"]}, "unknown calibrator 'nope'"),
        (task, {"metrics": ["nope"]}, "unknown metric 'nope'"),
        (task, {"methods": ["ts", "ts"]}, "two methods are called 'ts'"),
        (task, {"methods": [3]}, "a method is a name"),
        (task, {"methods": [TemperatureScaling(input="probs")]}, "expects input='probs'"),
        (task, {"folds": 3}, "with a test part leave them out"),
        ((z, y), {}, "give a test part"),
        ((z, y, z_test), {}, "belong together"),
        ((z, y, z_test[:, :2], np.zeros(len(z_test), dtype=int)), {}, "has 2 classes"),
        (
            (z, y),
            {"folds": 3, "groups": np.zeros(len(y))},
            "folds must lie in 2..1, the number of rows or groups",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.compare(*arguments, **options)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_numbers(task: tuple[np.ndarray, ...]) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, dashboard_address=None) as client:
        on_cluster = hcal.compare(*task, methods=["ts", "hb"], scheduler=client, resamples=20)
    in_memory = hcal.compare(*task, methods=["ts", "hb"], n_jobs=1, resamples=20)
    assert [dict(r.scores) for r in on_cluster] == [dict(r.scores) for r in in_memory]
