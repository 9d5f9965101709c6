"""The paper's h-calibration: what it trains, what it selects, what it records."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import hcal
from hcal import metrics
from hcal.evaluation.comparison import named_methods
from hcal.h_calibration import training
from hcal.h_calibration.candidates import TrainingPlan, train_candidates
from hcal.h_calibration.trainable_maps import PAPER_MAPS, PiecewiseLinear
from hcal.h_calibration.training import SELECTORS, AdamSettings, torch_nll, train
from hcal.methods.base import CalibrationWarning
from hcal.numerics import softmax
from hcal.progress import progress
from helpers import changeable_records, load_task, synthetic

FEW = ("piecewise-10", "monotonic-5", "ensemble-4")
ALL_THREE = ("top_label", "class_wise", "score")


def quick(logits, y, select=("top_label",), maps=FEW, random_state=0, **adam):
    settings = AdamSettings(**{"epochs": 30, **adam})
    plan = TrainingPlan(maps=maps, select=select, adam=settings, random_state=random_state)
    return train_candidates(logits, y, plan)


def test_epoch_scores_are_the_metrics():
    for n, k in ((8, 3), (500, 2), (500, 5), (500, 40)):  # 8 rows do not fill 15 bins
        logits, y = synthetic(n, k)
        probs = softmax(logits)
        expected = {
            "ece_ew": metrics.ece_ew(probs, y, event="top-label"),
            "dece": metrics.dece(probs, y, event="top-label"),
            "cwece_a": metrics.cwece_a(probs, y),
        }
        for name, value in expected.items():
            score = getattr(training, f"epoch_{name}")
            got = score(torch.from_numpy(probs), torch.from_numpy(y)).item()
            assert got == pytest.approx(value, rel=1e-9, abs=1e-12), (name, n, k)
        got = torch_nll(torch.from_numpy(probs), torch.from_numpy(y)).item()
        assert got == pytest.approx(metrics.nll(probs, y))
    probs[0] = np.eye(40)[1]  # p = 0 lies in the first class-wise bin
    got = training.epoch_cwece_a(torch.from_numpy(probs), torch.from_numpy(y)).item()
    assert got == pytest.approx(metrics.cwece_a(probs, y), rel=1e-9)


def test_ties_of_an_epoch_score_do_not_see_the_order_of_rows():
    """Confidences of few values: a boundary of bins never parts equal ones."""
    rng = np.random.default_rng(0)
    for levels in (2, 7, 40):
        top = 0.5 + rng.integers(0, levels, 600) / (2 * levels)
        probs = np.stack([top, 1 - top], axis=1)
        y = (rng.random(600) > top).astype(int)
        expected = metrics.dece(probs, y, event="top-label")
        for order in (np.arange(600), rng.permutation(600), np.argsort(y)):
            rows = torch.from_numpy(probs[order])
            score = training.epoch_dece(rows, torch.from_numpy(y[order])).item()
            assert score == pytest.approx(expected, rel=1e-9, abs=1e-12), levels


def test_each_selector_gets_its_own_best_epoch():
    logits, y = synthetic()
    together = quick(logits, y, ALL_THREE)
    for select, result in together.items():
        candidates = result.details["candidates"]
        assert [c["map"] for c in candidates] == list(FEW)
        best = min(candidates, key=lambda c: c["score"])
        assert result.details["map"] == best["map"]
        assert result.details["epoch"] == best["epoch"]
        # the fitted map is that epoch's: its score on the training set is the recorded one
        probs = np.exp(result.map(logits))
        score = SELECTORS[select](torch.from_numpy(probs), torch.from_numpy(y)).item()
        assert score == pytest.approx(best["score"], abs=2e-5)
    alone = quick(logits, y, ("score",))["score"]
    assert alone.details["map"] == together["score"].details["map"]
    for key, value in alone.map.arrays().items():
        np.testing.assert_array_equal(value, together["score"].map.arrays()[key])


def test_every_epoch_can_be_measured_on_other_rows():
    """The callback of the chosen epoch sees the map that the fit returns."""
    logits, y = synthetic(200)
    other = torch.log_softmax(torch.from_numpy(synthetic(50, seed=1)[0]), 1)
    seen = {"piecewise-1": [], "ensemble-16": []}

    def measure(name, module):
        seen[name].append(module(other).detach().numpy())

    plan = TrainingPlan(maps=tuple(seen), adam=AdamSettings(epochs=6), after_epoch=measure)
    fitted = train_candidates(logits, y, plan)["top_label"]
    assert [len(epochs) for epochs in seen.values()] == [6, 6]
    chosen = seen[fitted.details["map"]][fitted.details["epoch"] - 1]
    np.testing.assert_allclose(np.exp(fitted.map(other.numpy())), chosen, atol=1e-5)


def test_same_seed_same_result():
    logits, y = synthetic()
    for batch_size in (None, 64):
        tables = []
        for seed in (0, 0, 1):
            options = {"batch_size": batch_size, "random_state": seed}
            trained = quick(logits, y, maps=("monotonic-5",), **options)["top_label"]
            tables.append(trained.map.table)
        one, two, other = tables
        np.testing.assert_array_equal(one, two)
        assert not np.array_equal(one, other)


def test_mini_batches_learn():
    logits, y = synthetic(600)
    trained = quick(logits, y, maps=("piecewise-1",), batch_size=100, learning_rate=0.05)[
        "top_label"
    ]
    losses = trained.history["loss"]
    assert len(losses) == 30
    assert losses[-1] < 0.7 * losses[0]


def test_early_stop_and_schedule():
    logits, y = synthetic()
    x = torch.log_softmax(torch.from_numpy(logits), 1)
    labels = torch.from_numpy(y)
    settings = AdamSettings(learning_rate=0.1, epochs=500, plateau=3, patience=15)
    ticks = []
    module = PiecewiseLinear(1)
    done = train(
        module, x, labels, torch_nll, select={"nll": torch_nll},
        settings=settings, tick=lambda: ticks.append(1),
    )  # fmt: skip
    assert done.stopped
    assert len(ticks) == done.epochs < 500
    # The module is that of the best epoch, which is not the last.
    assert done.best["nll"].epoch < done.epochs
    assert torch_nll(module(x), labels).item() == pytest.approx(done.best["nll"].score, rel=1e-6)


def test_records_cannot_be_changed():
    assert changeable_records("hcal.h_calibration") == {"HCalibrator", "Trained"}


def test_a_map_that_still_improves_has_not_converged():
    logits, y = synthetic(200)
    patient = AdamSettings(learning_rate=0.1, epochs=500, plateau=3, patience=15)
    for adam, message in (
        (AdamSettings(epochs=2), "piecewise-1 was still improving after 2 epochs"),
        (patient, ""),
    ):
        plan = TrainingPlan(maps=("piecewise-1",), adam=adam)
        fitted = train_candidates(logits, y, plan)["top_label"]
        assert fitted.message == message
        assert fitted.converged == (not message)


def test_the_whole_object(tmp_path):
    """Fit, attributes, file and back; an integer weight equals repetition."""
    logits, y = synthetic(300)
    weight = np.tile([1.0, 2.0], 150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # 30 epochs do not converge
        weighted = hcal.HCalibrator(maps=FEW, epochs=30, select="score", random_state=3)
        cal = weighted.fit(logits, y, weight)
        copies = np.repeat(np.arange(300), weight.astype(int))
        copied = hcal.HCalibrator(maps=FEW, epochs=30, select="score", random_state=3)
        same = copied.fit(logits[copies], y[copies])
    np.testing.assert_allclose(cal.predict_proba(logits), same.predict_proba(logits), atol=1e-6)
    assert cal.preserves == "order"
    assert not cal.converged_
    assert cal.fit_.details["select"] == "score"
    assert cal.fit_.details["collapsed"] == ""
    assert cal.fit_.after["accuracy"] == cal.fit_.before["accuracy"]
    hcal.save(cal, tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    np.testing.assert_array_equal(again.predict_proba(logits), cal.predict_proba(logits))


class Brier:
    """A loss of one's own; it counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, probs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hits = torch.nn.functional.one_hot(y, probs.shape[1])
        return ((probs - hits) ** 2).sum(1).mean()


@pytest.mark.filterwarnings("ignore::hcal.methods.base.CalibrationWarning")
def test_the_constants_of_the_loss_are_parameters():
    """A window of one and another of 100 events train other maps; the history has every epoch."""
    task = synthetic(300)
    options = {"maps": "piecewise-10", "epochs": 12}
    usual = hcal.HCalibrator(**options).fit(*task)
    for change in ({"window": 20}, {"epsilon": 0.05}, {"clusters": 2}, {"loss": "nll"}):
        other = hcal.HCalibrator(**options, **change).fit(*task)
        assert not np.array_equal(other.map_.table, usual.map_.table), change

    history = usual.fit_.history
    assert set(history) == {"loss", "ece_ew", "top_label"}
    assert {len(values) for values in history.values()} == {12}
    assert history["top_label"].index(min(history["top_label"])) + 1 == usual.fit_.details["epoch"]

    plain = hcal.HCalibrator(**options, loss="nll").fit(*task)
    before_first_step = metrics.nll(softmax(task[0]), task[1])
    assert plain.fit_.history["loss"][0] == pytest.approx(before_first_step, rel=1e-5)


@pytest.mark.filterwarnings("ignore::hcal.methods.base.CalibrationWarning")
def test_a_loss_of_ones_own(tmp_path):
    task = synthetic(300)
    brier = Brier()
    cal = hcal.HCalibrator(maps="piecewise-1", epochs=7, loss=brier).fit(*task)
    assert brier.calls == 7
    with pytest.raises(ValueError, match="'loss' is a function, and a model file holds no code"):
        hcal.save(cal, tmp_path / "m.hcal")

    hcal.save(cal.set_params(loss="h"), tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    np.testing.assert_array_equal(again.predict_proba(task[0]), cal.predict_proba(task[0]))
    assert (
        again.fit_.details["loss"] == "Brier"
    )  # the loss of the fit, whatever the parameter says now


@pytest.mark.parametrize("change", [{"window": 100}, {"epsilon": 0.1}, {"clusters": 3}])
def test_a_constant_of_the_h_loss_is_refused_with_another_loss(change):
    with pytest.raises(ValueError, match="has no effect with another loss"):
        hcal.HCalibrator(loss="nll", **change).fit(*synthetic(60))


def test_a_loss_that_is_neither_a_name_nor_a_function_is_refused():
    with pytest.raises(ValueError, match="must be 'h' or 'nll' or a function, got 'brier'"):
        hcal.HCalibrator(loss="brier").fit(*synthetic(60))


@pytest.mark.parametrize(("ties", "epoch"), [("first", 1), ("last", 5)])
def test_of_equal_epochs_the_first_is_kept_or_the_last(ties, epoch):
    logits, y = synthetic(50)
    x = torch.log_softmax(torch.from_numpy(logits), 1)
    done = train(
        PiecewiseLinear(1),
        x,
        torch.from_numpy(y),
        torch_nll,
        select={"constant": constant_score},
        settings=AdamSettings(epochs=5, ties=ties),
    )
    assert done.best["constant"].epoch == epoch


def constant_score(probs, y):
    return torch.zeros(())


def test_variants_are_names():
    assert hcal.make_calibrator("h").select == "top_label"
    assert hcal.make_calibrator("h:class_wise").select == "class_wise"
    assert hcal.make_calibrator("h:score", epochs=5).select == "score"
    assert list(named_methods(["h", "h:class_wise"])) == ["uncal", "h", "h:class_wise"]
    with pytest.raises(ValueError, match="valid variants: h:class_wise, h:score"):
        hcal.make_calibrator("h:nll")


def test_the_near_uniform_trap_is_told():
    """With many classes CWECE_a is least for the untrained ensemble: the fit warns and names the page."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (2000, 200))
    y = rng.integers(0, 200, 2000)
    logits[np.arange(2000), y] += rng.normal(8, 4, 2000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cal = hcal.HCalibrator(maps="ensemble-128", epochs=2, select="class_wise").fit(logits, y)
    assert any(
        "nearly uniform" in str(warning.message)
        and "docs/why-not-the-papers-selector.md" in str(warning.message)
        for warning in caught
    )
    assert cal.fit_.details["collapsed"].startswith("mean confidence")


def test_both_references_of_the_piecewise_map():
    """Less the largest logit (the paper) and log-softmax (the published code) are different functions."""
    logits, y = synthetic()
    trained = {}
    for reference in ("largest", "log_softmax"):
        settings = AdamSettings(epochs=20)
        plan = TrainingPlan(maps=["piecewise-10"], adam=settings, reference=reference)
        trained[reference] = train_candidates(logits, y, plan)["top_label"]
    for reference, fitted in trained.items():
        assert fitted.map.reference == reference
        shifted = fitted.map(logits + 7.0)
        np.testing.assert_allclose(shifted, fitted.map(logits), atol=1e-9)
    from_largest = trained["largest"].map(logits)
    from_log_softmax = trained["log_softmax"].map(logits)
    assert np.abs(from_largest - from_log_softmax).max() > 1e-4


def test_bad_parameters_and_weights_that_are_no_repetitions_are_named():
    task = synthetic(60)
    for parameters, message in (
        ({"maps": "linear-3"}, "unknown map"),
        ({"maps": ()}, "at least one map"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.HCalibrator(**parameters).fit(*task)
    with pytest.raises(ValueError, match="sample_weight of integers only"):
        hcal.HCalibrator().fit(*task, np.full(60, 0.5))


def test_without_torch_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"training 'h' needs torch: pip install .*torch"):
        hcal.HCalibrator().fit(*synthetic(60))


def test_the_twelve():
    sizes = {
        "piecewise": (1, 10, 100, 500),
        "monotonic": (2, 10, 20, 50),
        "ensemble": (16, 32, 64, 128),
    }
    assert (
        tuple(
            f"{family}-{size}"
            for family, sizes_of_family in sizes.items()
            for size in sizes_of_family
        )
        == PAPER_MAPS
    )
    assert AdamSettings() == AdamSettings(0.005, 2000, None, 20, 160)


def test_progress_bar_shows_when_asked(capfd):
    with progress("fit", 3, verbose=True) as advance:
        advance(3)
    assert "3/3" in capfd.readouterr().err
    with progress("fit", 3) as advance:  # not a terminal, not asked
        advance(3)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_cifar10_resnet110_reproduces():
    """method.md section 5, medians of 5 seeds on the test split; accuracy never moves."""
    cal, y_cal, test, y_test = load_task("cifar10_resnet110")
    values = {"top_label": [], "class_wise": []}
    for seed in range(5):
        plan = TrainingPlan(select=tuple(values), random_state=seed)
        trained = train_candidates(cal.astype(np.float64), y_cal, plan)
        for select, result in trained.items():
            probs = np.exp(result.map(test.astype(np.float64)))
            assert metrics.accuracy(probs, y_test) == 0.9356
            values[select].append((metrics.ece_s1(probs, y_test), metrics.tcwece(probs, y_test)))
    assert np.median(values["top_label"], axis=0)[0] <= 0.0050
    # the range over seeds and families of method.md: the calibration set's CWECE_a hardly predicts the test set's
    assert np.median(values["class_wise"], axis=0)[1] <= 0.030
