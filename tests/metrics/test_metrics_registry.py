"""Metrics of users and other packages: registered by a call, or found by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import numpy as np
import pytest
from test_metrics_oracles import draw

import hcal
from hcal import metrics
from hcal.metrics import registry
from hcal.metrics.resampling import intervals


def halves(probs: np.ndarray, y: np.ndarray) -> float:
    """Share of labels below one half.

    More words.
    """
    assert isinstance(probs, np.ndarray)
    return float((probs[np.arange(len(y)), y] < 0.5).mean())


def weighted(probs: np.ndarray, y: np.ndarray, *, sample_weight: np.ndarray | None = None) -> float:
    return float(np.average(probs[np.arange(len(y)), y], weights=sample_weight))


def test_a_registered_metric_is_one_like_ours() -> None:
    assert hcal.register_metric(halves) is halves
    metric = metrics.get_metric("halves")
    assert metric.level == "top-label"
    assert metric.kind == "plug-in"
    assert metric.explain == "Share of labels below one half"
    assert "halves" in hcal.list_metrics("top-label")
    p, y = draw(60, 3, 0)
    assert metrics.halves([[0.2, 0.8]], [0]) == 1.0
    w = np.random.default_rng(0).integers(0, 3, 60)
    rows = np.repeat(np.arange(60), w)
    expected = halves(p[rows], y[rows])
    assert metrics.halves(p, y, sample_weight=w) == pytest.approx(expected)
    with pytest.raises(ValueError, match="halves counts samples"):
        metrics.halves(p, y, sample_weight=w + 0.5)
    hcal.register_metric(
        name="chosen", level="score", lower_is_better=False, explain="mean chosen"
    )(weighted)
    expected = weighted(p, y, sample_weight=w + 0.5)
    assert metrics.chosen(p, y, sample_weight=w + 0.5) == expected
    values = {"halves": metrics.halves(p, y), "chosen": 0.5}
    ends = intervals(metrics.Sample(p, y), values, 0.9, resamples=30)
    assert ends["halves"].kind == "bias-aware"
    assert ends["chosen"].kind == "percentile"
    assert metrics.calibration_test(p, y, statistic="halves", resamples=19).statistic == "halves"


def test_what_cannot_be_a_metric_is_refused_in_one_line() -> None:
    for name, message in (
        ("My Metric", "lower-case letters, digits and _, got 'My Metric'"),
        ("ece_ew", "'ece_ew' is a name of hcal"),
        ("score", "'score' is a name of hcal"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.register_metric(name=name)(halves)
    with pytest.raises(TypeError, match="takes a function"):
        hcal.register_metric(3)
    with pytest.raises(ValueError, match="level must be one of"):
        hcal.register_metric(level="best")(halves)
    hcal.register_metric(name="rows")(lambda probs, y: probs)
    with pytest.raises(ValueError, match="metric 'rows' must return one number, got ndarray"):
        metrics.rows([[0.2, 0.8]], [1])
    hcal.register_metric(name="rows")(halves)  # a cell of a notebook is run twice
    assert metrics.rows([[0.2, 0.8]], [1]) == 0.0


def test_entry_points_are_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("theirs", "test_metrics_registry:weighted", registry.ENTRY_POINTS),
        EntryPoint("broken", "no_such_module:f", registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert "theirs" not in metrics.METRICS
    assert metrics.get_metric("theirs").function([[0.25, 0.75]], [1]) == 0.75
    with pytest.warns(
        UserWarning, match=r"metric 'broken' \(no_such_module:f\) cannot be loaded: No module"
    ):
        assert "theirs" in hcal.list_metrics()
    with pytest.raises(
        ValueError, match=r"^metric 'broken' \(no_such_module:f\) cannot be loaded: No module"
    ) as e:
        metrics.get_metric("broken")
    assert "\n" not in str(e.value)


def test_worker_processes_of_compare_learn_of_metrics_registered_by_hand() -> None:
    import pickle

    from joblib.externals.loky.backend.reduction import dumps

    from hcal.evaluation.comparison import Task, Work, run_cell

    hcal.register_metric(halves)
    z = np.eye(2)[[0, 1] * 50]
    y = np.array([0, 1] * 50)
    task = Task.from_arrays("toy", z, y, z, y)
    work = Work("toy", task, "ts", hcal.make_calibrator("ts"), ("halves",))
    sent = bytes(dumps(work))
    del metrics.METRICS["halves"]
    assert run_cell(pickle.loads(sent)).scores["halves"] == 0.0
