"""What errors show by chance: against draws of labels, from arrays and from blocks, and where it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import hcal
from hcal.metrics import METRICS, Sample, StreamingMetrics
from hcal.metrics.by_chance import Crowd, levels_by_chance, mean_deviation
from hcal.numerics import softmax
from hcal.rows import Rows

PLUGIN = [name for name, metric in METRICS.items() if metric.kind == "plug-in"]
CLOSED = [name for name in PLUGIN if METRICS[name].by_chance is not None]
DRAWN = [name for name in PLUGIN if name not in CLOSED]


@dataclass(frozen=True)
class World:
    """Probabilities, and weights where rows have some."""

    probs: np.ndarray
    weight: np.ndarray | None = None

    def sample(self) -> Sample:
        labels = np.arange(len(self.probs)) % self.probs.shape[1]
        return Sample(self.probs, labels, self.weight)

    def null(self, names: list[str], draws: int) -> dict[str, float]:
        """Return the means of metrics over labels that are drawn; a whole weight is as many rows."""
        sample = self.sample()
        if sample.weight is not None and sample.is_whole:
            sample = sample.repeated("a test")
        rng = np.random.default_rng(1)
        values = []
        for labels in sample.data.drawn(draws, rng):
            drawn = sample.relabelled(labels)
            values.append([METRICS[name].function(drawn) for name in names])
        return dict(zip(names, np.mean(values, axis=0), strict=True))


def _binary(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], axis=1)


def _worlds() -> dict[str, World]:
    rng = np.random.default_rng(0)
    ten = softmax(rng.normal(size=(300, 10)) * 2)
    tied = _binary(rng.beta(1, 1, 300).round(1))
    return {
        "two classes": World(_binary(rng.beta(2, 5, 500))),
        "ten classes": World(ten),
        "rare": World(_binary(rng.beta(0.3, 8, 500))),
        "ties": World(tied),
        "few": World(_binary(rng.beta(0.3, 0.3, 40))),
        "copies": World(ten, rng.integers(0, 4, 300).astype(float)),
        "tied copies": World(tied, rng.integers(1, 4, 300).astype(float)),
        "fractional weights": World(ten, rng.gamma(2.0, 1.0, 300)),
    }


WORLDS = _worlds()


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
def test_closed_forms_are_the_mean_over_drawn_labels(world: World) -> None:
    sample = world.sample()
    names = [name for name in CLOSED if METRICS[name].takes(sample) and name != "dkde_ce"]
    levels = levels_by_chance(sample, {name: METRICS[name].function(sample) for name in names})
    null = world.null(names, 2000)
    for name in names:
        # The largest gap depends on the shape of the noise in bins with a row or two.
        tolerance = {"mce": 0.1, "spiegelhalter": 0.07}.get(name, 0.035)
        assert levels[name] == pytest.approx(null[name], rel=tolerance), name


@pytest.mark.parametrize(
    "p", [np.array([0.3]), np.geomspace(1e-12, 1e-3, 200), np.full(300, 0.001)]
)
def test_rare_events_leave_less_to_chance_than_a_normal_variable(p: np.ndarray) -> None:
    """E|Z| was said to be 0.8, where it is 0.18 because most samples hold no event."""
    world = World(_binary(p))
    sample = world.sample()
    level = levels_by_chance(sample, {"spiegelhalter": 1.0})["spiegelhalter"]
    null = world.null(["spiegelhalter"], 20_000)["spiegelhalter"]
    assert level == pytest.approx(null, rel=0.06)


@pytest.mark.parametrize("title", ["ten classes", "ties", "copies"])
def test_the_kernel_error_has_its_exact_mean(title: str) -> None:
    world = WORLDS[title]
    sample = world.sample()
    value = hcal.metrics.dkde_ce(sample)
    level = levels_by_chance(sample, {"dkde_ce": value})["dkde_ce"]
    assert level == pytest.approx(world.null(["dkde_ce"], 150)["dkde_ce"], rel=0.02)


def test_a_sample_of_the_kernel_errors_rows_is_enough() -> None:
    rng = np.random.default_rng(2)
    world = World(softmax(rng.normal(size=(3000, 4)) * 2))
    sample = world.sample()
    level = METRICS["dkde_ce"].by_chance(sample, hcal.metrics.dkde_ce(sample))
    assert level == pytest.approx(world.null(["dkde_ce"], 10)["dkde_ce"], rel=0.03)


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
def test_drawn_levels_are_near_the_mean_over_drawn_labels(world: World) -> None:
    sample = world.sample()
    names = [name for name in DRAWN if METRICS[name].takes(sample)]
    levels = levels_by_chance(sample, {name: METRICS[name].function(sample) for name in names})
    null = world.null(names, 150)
    assert set(levels) == set(names)
    for name in names:  # 20 draws know a mean to about 8 %
        assert levels[name] == pytest.approx(null[name], rel=0.35), name


def test_ten_thousand_probabilities_stand_for_all_rows() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(2, 5, 60_000)
    sample = Sample(p, rng.random(60_000) < p)
    crowd = Crowd.of(sample)
    assert len(crowd.p) == 10_000
    assert crowd.events.sum() == crowd.weight.sum() == 60_000
    level = levels_by_chance(sample, {"ks": 0.1})["ks"]
    never = np.zeros(600, int)
    few = levels_by_chance(Sample(p[:600], never), {"ks": 0.1})["ks"]
    assert level == pytest.approx(few / 10, rel=0.35)  # noise falls with the root of the rows


@pytest.mark.parametrize(
    "title", ["two classes", "ten classes", "ties", "copies", "fractional weights"]
)
def test_blocks_give_the_levels_of_the_array(title: str) -> None:
    world = WORLDS[title]
    sample = world.sample()
    n = len(world.probs)
    merged = StreamingMetrics(sample.k)
    third = n // 3
    half = n // 2
    for rows in (slice(0, third), slice(third, half), slice(half, n)):
        weight = None if world.weight is None else world.weight[rows]
        part = StreamingMetrics(sample.k)
        merged.merge(part.update(world.probs[rows], sample.y[rows], weight))
    streamed = merged.by_chance()
    names = [name for name in streamed if METRICS[name].takes(sample)]
    levels = levels_by_chance(sample, {name: METRICS[name].function(sample) for name in names})
    assert {"ece_ew", "ace", "mce", "cwece_a", "cwece_s", "cwece_r2", "tcwece"} <= set(levels)
    for name in names:
        # Two metrics have fine bins in place of rows, and the largest gap is drawn.
        tolerance = {"ks": 0.35, "ece_em": 0.1, "mce": 0.05}.get(name, 1e-9)
        assert streamed[name] == pytest.approx(levels[name], rel=tolerance), name


def test_the_mean_deviation_is_de_moivres() -> None:
    from scipy.stats import binom

    for n, p in ((1, 0.5), (7, 0.3), (10, 0.1), (300, 0.04), (5000, 0.4)):
        counts = np.arange(n + 1)
        exact = float(binom.pmf(counts, n, p) @ np.abs(counts - n * p))
        mean = np.array([n * p])
        assert mean_deviation(mean, mean * (1 - p))[0] == pytest.approx(exact, rel=1e-3)


def test_certain_predictions_leave_nothing_to_chance() -> None:
    sample = Sample([[0.0, 1.0], [1.0, 0.0]] * 20, [1, 0] * 20)
    values = {name: METRICS[name].function(sample) for name in PLUGIN}
    levels = levels_by_chance(sample, values)
    assert set(levels) == set(PLUGIN)
    for name, level in levels.items():
        assert level == pytest.approx(values[name], abs=1e-6), name


# -- where it is said -------------------------------------------------------------------------------


def _rows(n: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(n, 3)) * 2
    return softmax(logits), (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def test_evaluate_says_it_of_plug_in_errors_alone() -> None:
    p, y = _rows()
    result = hcal.evaluate(p, y)
    assert list(result.by_chance) == [name for name in result.results if name in PLUGIN]
    assert result.to_dict()["metrics"]["ece_ew"]["chance"] == result.by_chance["ece_ew"]
    assert json.loads(result.to_json())["metrics"]["dece"]["chance"] is None
    assert "by chance" in str(result)
    assert f"({result.by_chance['ece_ew']:.4f} by chance)" in repr(result)
    assert result.to_frame()["chance"].notna().sum() == len(PLUGIN)
    scores = hcal.evaluate(p, y, metrics="score")
    assert scores.by_chance == {}
    assert "by chance" not in str(scores)


def test_before_and_after_have_their_own_levels() -> None:
    p, y = _rows()
    scores = 2 * np.log(p)
    cal = hcal.TemperatureScaling().fit(scores[:600], y[:600])
    result = hcal.evaluate(cal, scores[600:], y[600:], metrics=["ece_ew", "nll"])
    record = result.to_dict()["metrics"]["ece_ew"]
    assert record["chance"] == result.by_chance["ece_ew"]
    assert record["baseline_chance"] == result.before.by_chance["ece_ew"]
    assert record["baseline_chance"] != record["chance"]


def test_intervals_allow_for_the_level_that_is_shown() -> None:
    p, y = _rows()
    result = hcal.evaluate(p, y, metrics=["ece_ew", "ks"], confidence=0.95, resamples=50)
    alone = hcal.evaluate(p, y, metrics=["ece_ew", "ks"])
    assert result.by_chance == alone.by_chance
    for name in ("ece_ew", "ks"):
        assert result.results[name].interval.chance == result.by_chance[name]


def test_nothing_is_said_of_rows_that_depend_on_each_other() -> None:
    p, y = _rows()
    groups = np.arange(len(y)) // 4
    result = hcal.evaluate(p, y, groups=groups, confidence=0.9, metrics=["ece_ew"], resamples=50)
    assert result.by_chance == {}
    assert hcal.reliability(p, y, groups=groups)[0].by_chance is None


def test_blocks_say_the_level_of_all_rows() -> None:
    rng = np.random.default_rng(5)
    p = rng.beta(2, 5, 50_000)
    y = (rng.random(50_000) < p).astype(int)
    blocks = []
    for start in range(5):
        blocks.append(Rows.of(p[start::5], y[start::5], input="probs"))
    result = hcal.evaluate(iter(blocks), metrics=["ece_ew", "smece"])
    in_memory = hcal.evaluate(p, y, metrics=["ece_ew"])
    assert result.by_chance["ece_ew"] == pytest.approx(in_memory.by_chance["ece_ew"], rel=1e-9)
    assert result.how["smece"] == "sample"
    sample = hcal.evaluate(p[:20_000], y[:20_000], metrics=["smece"])
    assert result.by_chance["smece"] == pytest.approx(sample.by_chance["smece"], rel=0.3)


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass", "corp", "smooth"])
def test_a_reliability_curve_says_it(binning: str) -> None:
    rng = np.random.default_rng(6)
    p = rng.beta(2, 3, 1500)
    errors = []
    for seed in range(12):
        y = (np.random.default_rng(seed).random(1500) < p).astype(int)
        curve = hcal.reliability(p, y, binning=binning, resamples=60)[0]
        errors.append(curve.error)
    assert curve.by_chance == pytest.approx(np.mean(errors), rel=0.3)
    assert "by chance" in str(hcal.reliability(p, y, binning=binning, resamples=60))
    if binning == "equal-width":
        assert curve.by_chance == pytest.approx(hcal.evaluate(p, y).by_chance["ece_ew"], rel=1e-9)


def test_compare_has_a_column_for_it() -> None:
    p, y = _rows()
    scores = np.log(p)
    fitted_on = (scores[:600], y[:600])
    judged_on = (scores[600:], y[600:])
    table = hcal.compare(*fitted_on, *judged_on, methods=["ts"], resamples=0)
    direct = hcal.evaluate(p[600:], y[600:], metrics=["ece_ew"])
    assert table["uncal"]["chance(ece_ew)"] == pytest.approx(direct.by_chance["ece_ew"])
    assert "chance(nll)" not in table["uncal"]
    assert str(table).count("by chance") == 3  # two heads and the sentence
    assert "chance(ece\\_ew)" not in table.to_latex(columns=["ece_ew"])


REPORTS: dict[str, Callable[[np.ndarray, np.ndarray], dict]] = {
    "independent": lambda p, y: {},
    "in groups": lambda p, y: {"groups": np.arange(len(y)) // 4},
}


@pytest.mark.parametrize("options", REPORTS.values(), ids=list(REPORTS))
def test_the_report_says_it(options: Callable, tmp_path: object) -> None:
    p, y = _rows()
    path = tmp_path / "report.html"
    verdict = hcal.report(None, p, y, path, input="probs", **options(p, y))
    sentences = [sentence for sentence in verdict.sentences if "expected by chance" in sentence]
    page = path.read_text(encoding="utf-8")
    if options(p, y):
        assert not sentences
        assert verdict.by_chance == {}
        assert "by chance</small>" not in page
    else:
        assert len(sentences) == 1
        assert verdict.by_chance == pytest.approx(hcal.evaluate(p, y).by_chance)
        assert page.count("by chance</small>") == len(PLUGIN)
