"""hcal.compare: the table, its errors and warnings, folds, processes."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

import hcal
from hcal.calibrators import CalibrationWarning
from hcal.calibrators.ts import TemperatureScaling
from hcal.evaluation.comparison_table import Comparison, MethodResult
from helpers import synthetic


@pytest.fixture(scope="module")
def task() -> tuple[np.ndarray, ...]:
    return *synthetic(300, 4, seed=0), *synthetic(500, 4, seed=1)


class Broken(TemperatureScaling):
    """A method that fails."""

    def _fit(self, logits, y, sample_weight):
        raise RuntimeError("cannot [do] this")


class Timid(TemperatureScaling):
    """A method that collapses to near-uniform rows, and says a warning."""

    def _fit(self, logits, y, sample_weight):
        warnings.warn("ts: too timid", CalibrationWarning, stacklevel=1)
        fitted = super()._fit(logits, y, sample_weight)
        return type(fitted)({"beta": np.array(1e-3)})


def test_scores_are_those_of_the_methods(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, y_test = task
    table = hcal.compare(*task, methods=["ts", "iso"], metrics=["ks", "cwece_a"])
    for name in ("ts", "iso"):
        p = hcal.make_calibrator(name).fit(z, y).predict_proba(z_test)
        assert table[name]["ks"] == hcal.metrics.ks(p, y_test)
        assert table[name]["cwece_a"] == hcal.metrics.cwece_a(p, y_test)
        assert table[name]["nll"] == hcal.metrics.nll(p, y_test)
    assert table.best("ks") == min(("uncal", "ts", "iso"), key=lambda n: table[n]["ks"])
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


def test_collapse_is_flagged_and_never_the_best() -> None:
    task = *synthetic(300, 4, scale=1, seed=0), *synthetic(500, 4, scale=1, seed=1)
    table = hcal.compare(*task, methods={"timid": Timid(), "ts": "ts"}, metrics=["cwece_a"])
    assert table.to_dict()["timid"]["collapsed"]
    assert not table.to_dict()["ts"]["collapsed"]
    assert table.best("cwece_a") != "timid"
    assert "ts: too timid" in table.warnings["timid"]
    assert "collapsed" in str(table)


def test_table_of_collapsed_rows_still_prints() -> None:
    row = MethodResult(
        "a", "a", {"nll": 9.0, "accuracy": 0.9, "mean_confidence": 0.1}, collapse=("near uniform",)
    )
    assert "collapsed" in str(Comparison([row], ["nll"]))


def test_frame_and_dict_agree(task: tuple[np.ndarray, ...]) -> None:
    table = hcal.compare(*task, methods=["ts"], metrics="ece_ew")
    frame = table.to_frame()
    assert list(frame.index) == ["uncal", "ts"]
    assert frame.loc["ts", "ece_ew"] == table.to_dict()["ts"]["ece_ew"]
    # A class-wise or top-label error is never shown without the proper scores and the mean confidence.
    assert {"nll", "brier", "mean_confidence", "fit_s", "predict_s"} <= set(frame.columns)


def test_variants_and_instances(task: tuple[np.ndarray, ...]) -> None:
    methods = {"hb 5": ("hb", {"bins": 5}), "hb 20": ("hb", {"bins": 20}), "mine": TemperatureScaling()}
    table = hcal.compare(*task, methods=methods)
    assert [r.label for r in table] == ["uncal", "hb 5", "hb 20", "mine"]
    assert table["hb 5"] != table["hb 20"]


def test_probs_in_place_of_logits(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, y_test = task
    p, p_test = hcal.softmax(z), hcal.softmax(z_test)
    of_probs = hcal.compare(p, y, p_test, y_test, methods=["hb", "ts"], input="probs")
    of_logits = hcal.compare(*task, methods=["hb", "ts"])
    assert of_probs["hb"]["nll"] == pytest.approx(of_logits["hb"]["nll"], rel=1e-12)
    # The few test probabilities below half the smallest calibration one are drawn up to the floor.
    assert of_probs["ts"]["nll"] == pytest.approx(of_logits["ts"]["nll"], rel=1e-6)


def test_warns_when_rows_coincide(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, y_test = task
    with pytest.warns(UserWarning, match="3 of 503 test rows also stand in the calibration set"):
        hcal.compare(z, y, np.r_[z_test, z[:3]], np.r_[y_test, y[:3]], methods=["ts"])


def test_folds_predict_every_row_unseen(task: tuple[np.ndarray, ...]) -> None:
    from hcal.io.folds import kfold

    z, y, *_ = task
    table = hcal.compare(z, y, methods=["hb"], folds=4, stratify=True, random_state=3)
    out = np.empty_like(z)
    for fit, held in kfold(len(z), 4, random_state=3, stratify=y):
        out[held] = hcal.make_calibrator("hb").fit(z[fit], y[fit]).predict_proba(z[held])
    assert table["hb"]["nll"] == hcal.metrics.nll(out, y)


def test_grouped_folds_keep_copies_together() -> None:
    z, y = synthetic(60, 3)
    z, y, groups = np.repeat(z, 5, axis=0), np.repeat(y, 5), np.repeat(np.arange(60), 5)
    honest = hcal.compare(z, y, methods=["lece"], folds=5, groups=groups)
    leaky = hcal.compare(z, y, methods=["lece"], folds=5)
    assert leaky["lece"]["nll"] < honest["lece"]["nll"]


def test_processes_give_the_same_numbers(task: tuple[np.ndarray, ...]) -> None:
    methods = {"bad": ("hb", {"bins": 0}), "hb": "hb", "iso": "iso"}
    alone, together = (hcal.compare(*task, methods=methods, n_jobs=n) for n in (1, 2))
    assert [r.label for r in together] == [r.label for r in alone]
    assert [dict(r.scores) for r in together] == [dict(r.scores) for r in alone]
    assert together.errors == alone.errors == {"bad": "ValueError: bins must be a positive integer, got 0"}


def test_progress_bar_goes_to_standard_error(
    task: tuple[np.ndarray, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    hcal.compare(*task, methods=["ts"], progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"methods": ["nope"]}, "unknown calibrator 'nope'"),
        ({"metrics": ["nope"]}, "unknown metric 'nope'"),
        ({"methods": ["ts", "ts"]}, "two methods are called 'ts'"),
        ({"methods": [3]}, "a method is a name"),
        ({"methods": [TemperatureScaling(input="probs")]}, "expects input='probs'"),
        ({"folds": 3}, "with a test part leave them out"),
    ],
)
def test_bad_calls_say_why(task: tuple[np.ndarray, ...], kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hcal.compare(*task, **kwargs)


def test_a_test_part_or_folds_is_needed(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_test, _ = task
    with pytest.raises(ValueError, match="give a test part"):
        hcal.compare(z, y)
    with pytest.raises(ValueError, match="belong together"):
        hcal.compare(z, y, z_test)
    with pytest.raises(ValueError, match="has 2 classes"):
        hcal.compare(z, y, z_test[:, :2], np.zeros(len(z_test), dtype=int))


@pytest.mark.parametrize("first", ["import hcal.evaluation.comparison", "from hcal import compare"])
def test_the_package_attribute_is_the_function(first: str) -> None:
    code = f"{first}\nimport hcal, hcal.evaluation.comparison\nassert callable(hcal.compare), hcal.compare"
    subprocess.run([sys.executable, "-c", code], check=True)
