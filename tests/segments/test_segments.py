"""SegmentedCalibrator: what it gains, what it never loses, and what it promises."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from typer.testing import CliRunner

import hcal
from hcal.metrics import nll
from hcal.row_segments import Segments
from hcal.rows import Rows
from hcal.segments import SegmentedCalibrator, UnknownSegmentWarning, shrinkage
from helpers import DATA, fit_quietly, synthetic

TASKS = [
    *("bank_month_blind", "bank_month_aware", "bank_job_blind", "bank_job_aware"),
    *("credit_pay0_blind", "credit_pay0_aware", "credit_ageedu_blind", "credit_ageedu_aware"),
]
#: Test NLL of the prototype, as the README of the shared tables prints it.
losses = [0.2134, 0.2098, 0.2115, 0.2122, 0.4404, 0.4425, 0.4455, 0.4428]
PROTOTYPE = dict(zip(TASKS, losses, strict=True))


def command(*words: str, code: int = 0) -> str:
    """Run a command and return what it prints."""
    from hcal.cli.app import app

    result = CliRunner().invoke(app, list(words), env={"NO_COLOR": "1", "COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


def two_columns(score: np.ndarray) -> np.ndarray:
    return np.stack([np.zeros_like(score), score], axis=1)


class World:
    """Segments whose log-odds of class 1 are intercept + slope · score."""

    def __init__(self, seed: int, n_segments: int, intercepts: float, slopes: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.intercept = self.rng.normal(0, intercepts, n_segments)
        self.slope = np.exp(self.rng.normal(0, slopes, n_segments))

    def draw(self, code: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores, labels and true log-odds of rows of these segments."""
        score = self.rng.normal(-0.5, 1.6, len(code))
        truth = self.intercept[code] + self.slope[code] * score
        rate = 1 / (1 + np.exp(-truth))
        y = (self.rng.random(len(code)) < rate).astype(np.int64)
        return score, y, truth


def three_classes(seed: int = 0, n: int = 900) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits, labels and segments: one is sharper than the others, one prefers a class."""
    z, y = synthetic(n, 3, seed=seed)
    by = np.array(["a", "b", "c"])[np.arange(n) % 3]
    z[by == "a"] *= 3
    z[by == "b", 2] += 2
    return z, y, by


def test_small_segments_are_shrunk_and_beat_one_pool_and_a_fit_of_each() -> None:
    world = World(0, 300, 1.0, 0.3)
    code = np.repeat(np.arange(300), 60)
    score, y, _ = world.draw(code)
    new_code = world.rng.integers(0, 300, 30_000)
    new_score, new_y, truth = world.draw(new_code)

    cal = SegmentedCalibrator("platt").fit(two_columns(score), y, by=code)
    shrunk = nll(cal.predict_proba(two_columns(new_score), by=new_code), new_y)
    common = nll(hcal.make_calibrator("platt").fit(score, y).predict_proba(new_score), new_y)
    alone = np.empty((len(new_y), 2))
    for segment in range(300):
        seen = code == segment
        platt = fit_quietly(hcal.make_calibrator("platt"), score[seen], y[seen])
        rows = new_code == segment
        alone[rows] = platt.predict_proba(new_score[rows])
    true_nll = nll(hcal.softmax(two_columns(truth)), new_y)

    assert true_nll < shrunk < nll(alone, new_y) < common
    assert shrunk - true_nll < 0.85 * (nll(alone, new_y) - true_nll)


@pytest.mark.parametrize("n_segments", [20, 200])
def test_nothing_is_lost_where_segments_do_not_differ(n_segments: int) -> None:
    losses = []
    for seed in range(6):
        world = World(seed, n_segments, 0.0, 0.0)
        code = np.arange(9000) % n_segments
        score, y, _ = world.draw(code)
        cal = SegmentedCalibrator("platt").fit(two_columns(score), y, by=code)
        new_score, _, truth = world.draw(code)
        common = cal.map_.common.in_blocks(two_columns(new_score))  # type: ignore[attr-defined]
        corrected = cal.predict_proba(two_columns(new_score), by=code)
        rate = 1 / (1 + np.exp(-truth))
        expected = []
        for p in (corrected, common):
            gains = rate * np.log(p[:, 1]) + (1 - rate) * np.log(p[:, 0])
            expected.append(-np.mean(gains))
        losses.append(expected[0] - expected[1])
    assert np.mean(losses) <= 1e-4


@pytest.mark.parametrize("task", TASKS)
def test_no_shared_table_loses_and_the_prototype_is_reached(task: str) -> None:
    path = DATA / "segments" / f"{task}.npz"
    if not path.exists():
        pytest.skip(f"needs the shared data: {path.name}")
    with np.load(path) as arrays:
        content = dict(arrays)
    cal = SegmentedCalibrator("pool", input="probs")
    cal.fit(content["probs_cal"], content["y_cal"], by=content["segment_cal"])
    test = content["probs_test"]
    y = content["y_test"]
    common = hcal.PooledCalibrator(input="probs").fit(content["probs_cal"], content["y_cal"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownSegmentWarning)
        shrunk = nll(cal.predict_proba(test, by=content["segment_test"]), y)
    assert shrunk <= nll(common.predict_proba(test), y) + 3e-5
    assert shrunk <= PROTOTYPE[task] + 1.5e-4


def test_corrections_are_the_most_probable_ones() -> None:
    world = World(3, 5, 1.0, 0.4)
    code = np.repeat(np.arange(5), [8, 20, 60, 200, 600])
    score, y, _ = world.draw(code)
    log_probs = np.log(hcal.softmax(two_columns(score)))
    rows = Rows.of(log_probs, y, input="log_probs", by=code)
    data, means = shrinkage._data(rows, log_probs, 5)
    fitted = shrinkage._most_probable(data, 0.5, 0.25, None, 1e-16).theta

    def minus_log_density(flat: np.ndarray) -> float:
        theta = flat[:10].reshape(5, 2)
        shift = flat[10:]
        odds = score + theta[code, 0] * (score - means[0]) + theta[code, 1]
        likelihood = np.sum(y * odds - np.logaddexp(0, odds))
        variance = np.array([0.25**2, 2 * 0.5**2])
        spread = np.sum((theta - shift) ** 2 / variance) + np.sum(shift**2 / variance)
        return float(0.5 * spread - likelihood)

    best = minimize(minus_log_density, np.zeros(12), tol=1e-12)
    expected = best.x[:10].reshape(5, 2)
    np.testing.assert_allclose(fitted, expected, atol=1e-4)


def test_the_evidence_is_the_integral_over_the_corrections() -> None:
    # One segment, the intercept alone: intercept = shift + deviation is normal with twice the variance.
    score = np.linspace(-2, 2, 40)
    y = (np.sin(np.arange(40.0)) > -0.4).astype(np.int64)
    log_probs = np.log(hcal.softmax(two_columns(score)))
    rows = Rows.of(log_probs, y, input="log_probs", by=np.zeros(40))
    data, _ = shrinkage._data(rows, log_probs, 1)
    fitted = shrinkage._most_probable(data, 0.5, 0.0, None, 1e-14)

    intercept = np.linspace(-8, 8, 4001)
    odds = score[:, None] + intercept
    likelihood = (y[:, None] * odds - np.logaddexp(0, odds)).sum(axis=0)
    variance = 2 * (2 * 0.5**2)
    prior = np.exp(-0.5 * intercept**2 / variance) / np.sqrt(2 * np.pi * variance)
    integral = np.trapezoid(np.exp(likelihood) * prior, intercept)
    assert fitted.evidence == pytest.approx(np.log(integral), abs=0.02)


@pytest.mark.parametrize("method", ["platt", "pool", "iso"])
def test_the_ranking_of_two_classes_holds_within_a_segment(method: str) -> None:
    world = World(1, 4, 1.0, 0.0)
    code = np.arange(800) % 4
    score, y, _ = world.draw(code)
    y[code == 2] = 1 - y[code == 2]  # a segment whose scores are the wrong way round
    cal = SegmentedCalibrator(method).fit(score, y, by=code)
    assert cal.preserves == "ranking within segments"
    assert (cal.map_.slopes >= 0).all()  # type: ignore[attr-defined]
    grid = np.linspace(-6, 6, 200)
    for segment in range(4):
        p = cal.predict_proba(grid, by=np.full(200, segment))[:, 1]
        assert (np.diff(p) >= 0).all()


def test_the_prediction_of_three_classes_holds() -> None:
    z, y, by = three_classes()
    cal = SegmentedCalibrator("ts").fit(z, y, by=by)
    assert cal.preserves == "accuracy"
    tops = cal.predict_proba(z, by=by).argmax(axis=1)
    np.testing.assert_array_equal(tops, z.argmax(axis=1))
    narrow = cal.predict_proba(z.astype(np.float32), by=by)
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow.argmax(axis=1), z.argmax(axis=1))
    common = hcal.make_calibrator("ts").fit(z, y)
    of_segments = nll(cal.predict_proba(z, by=by), y)
    assert of_segments < nll(common.predict_proba(z), y) - 0.01


def test_two_classes_keep_their_predictions_where_the_common_calibrator_does() -> None:
    world = World(1, 4, 1.5, 0.0)
    code = np.arange(800) % 4
    score, y, _ = world.draw(code)
    cal = SegmentedCalibrator(hcal.PooledCalibrator(preserve="accuracy")).fit(score, y, by=code)
    assert cal.preserves == "accuracy"
    expected = (score > 0).astype(int)
    np.testing.assert_array_equal(cal.predict(score, by=code), expected)


def test_an_unknown_segment_gets_the_common_calibrator() -> None:
    z, y, by = three_classes()
    cal = SegmentedCalibrator("ts").fit(z, y, by=by)
    common = hcal.make_calibrator("ts").fit(z, y)
    with pytest.warns(UnknownSegmentWarning, match=r"2 of 5 rows have a segment .* such as 'new'"):
        probs = cal.predict_proba(z[:5], by=["new", "a", "new", "b", "c"])
    expected = common.predict_proba(z[[0, 2]])
    np.testing.assert_array_equal(probs[[0, 2]], expected)
    with pytest.warns(UnknownSegmentWarning, match=r"such as 'A': .*; the fit writes 'a'"):
        cal.predict_proba(z[:40], by=["A", "new", "b", "c"] * 10)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, ""])
def test_a_missing_segment_is_refused(missing: Any) -> None:
    z, y, by = three_classes()
    gap = by.astype(object)
    gap[7] = missing
    with pytest.raises(ValueError, match=r"by has no value in 1 of 900 rows, first at row 7"):
        SegmentedCalibrator("ts").fit(z, y, by=gap)
    cal = SegmentedCalibrator("ts").fit(z, y, by=by)
    with pytest.raises(ValueError, match=r"by has no value in 1 of 900 rows"):
        cal.predict_proba(z, by=gap)


def test_segments_are_needed() -> None:
    z, y, by = three_classes()
    with pytest.raises(ValueError, match="by is missing"):
        SegmentedCalibrator("ts").fit(z, y)
    cal = SegmentedCalibrator("ts").fit(z, y, by=pd.Series(by, name="country"))
    with pytest.raises(
        ValueError, match=r"the calibrator has segments: pass the country of each row"
    ):
        cal.predict_proba(z)
    with pytest.raises(ValueError, match="needs the segment of each row"):
        cal.prediction_.in_blocks(z)


def test_columns_of_segments_must_be_those_of_the_fit() -> None:
    z, y, by = three_classes()
    columns = pd.DataFrame({"country": by, "site": np.arange(len(by)) % 2})
    cal = SegmentedCalibrator("ts").fit(z, y, by=columns)
    assert cal.segments_[:2] == ("a · 0", "a · 1")
    expected = cal.predict_proba(z, by=columns)
    np.testing.assert_array_equal(cal.predict_proba(z, by=columns[["site", "country"]]), expected)
    wider = {"year": np.ones(len(by)), "site": columns["site"], "country": by}
    np.testing.assert_array_equal(cal.predict_proba(z, by=wider), expected)
    one_year = {"year": np.ones(len(by)), "site": columns["site"]}
    with pytest.raises(ValueError, match="by year · site, and those of the fit by country · site"):
        cal.predict_proba(z, by=one_year)
    one = SegmentedCalibrator("ts").fit(z, y, by=columns["country"])
    expected = one.predict_proba(z, by=columns)
    np.testing.assert_array_equal(one.predict_proba(z, by=by), expected)
    with pytest.raises(ValueError, match="by site, and those of the fit by country"):
        one.predict_proba(z, by=columns["site"])


# -- relations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["platt", "ts", "pool"])
def test_the_order_of_rows_does_not_matter(method: str) -> None:
    z, y, by = three_classes()
    order = np.random.default_rng(0).permutation(len(y))
    one = SegmentedCalibrator(method).fit(z, y, by=by)
    other = SegmentedCalibrator(method).fit(z[order], y[order], by=by[order])
    expected = other.predict_proba(z, by=by)
    np.testing.assert_allclose(one.predict_proba(z, by=by), expected, atol=1e-7)


@pytest.mark.parametrize("method", ["ts", "vs"])
def test_the_numbers_of_classes_do_not_matter(method: str) -> None:
    z, y, by = three_classes()
    order = np.array([2, 0, 1])
    one = SegmentedCalibrator(method).fit(z, y, by=by).predict_proba(z, by=by)
    moved_y = order.argsort()[y]
    other = SegmentedCalibrator(method).fit(z[:, order], moved_y, by=by)
    expected = other.predict_proba(z[:, order], by=by)
    np.testing.assert_allclose(one[:, order], expected, atol=1e-5)


@pytest.mark.parametrize("method", ["ts", "platt"])
def test_a_weight_of_two_is_the_row_twice(method: str) -> None:
    z, y, by = three_classes(n=300)
    weight = np.where(np.arange(300) % 2, 2.0, 1.0)
    twice = np.repeat(np.arange(300), weight.astype(int))
    one = SegmentedCalibrator(method).fit(z, y, weight, by=by)
    other = SegmentedCalibrator(method).fit(z[twice], y[twice], by=by[twice])
    expected = other.predict_proba(z, by=by)
    np.testing.assert_allclose(one.predict_proba(z, by=by), expected, atol=1e-7)


def test_blocks_of_a_prediction_are_the_whole() -> None:
    z, y, by = three_classes()
    cal = SegmentedCalibrator("pool").fit(z, y, by=by)
    at_once = cal.predict_proba(z, by=by)
    parts = []
    for start in range(0, len(z), 70):
        block = slice(start, start + 70)
        parts.append(cal.predict_proba(z[block], by=by[block]))
    np.testing.assert_allclose(at_once, np.concatenate(parts), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["logits", "probs", "log_probs"])
def test_the_three_kinds_of_scores_agree(kind: Any) -> None:
    z, y, by = three_classes()
    probs = hcal.softmax(z)
    scores = {"logits": z, "probs": probs, "log_probs": np.log(probs)}[kind]
    reference = SegmentedCalibrator("ts").fit(z, y, by=by).predict_proba(z, by=by)
    cal = SegmentedCalibrator("ts", input=kind).fit(scores, y, by=by)
    np.testing.assert_allclose(cal.predict_proba(scores, by=by), reference, atol=1e-6)


@pytest.mark.parametrize("method", ["pool", hcal.PooledCalibrator(preserve=None)])
def test_a_file_keeps_everything(method: Any, tmp_path: Path) -> None:
    z, y, by = three_classes(n=300)
    cal = SegmentedCalibrator(method).fit(z, y, by=pd.Series(by, name="country"))
    hcal.save(cal, tmp_path / "model.hcal")
    loaded: Any = hcal.load(tmp_path / "model.hcal")
    expected = cal.predict_proba(z, by=by)
    np.testing.assert_array_equal(loaded.predict_proba(z, by=by), expected)
    assert loaded.fit_.to_json() == cal.fit_.to_json()
    assert loaded.segments_ == ("a", "b", "c")
    assert loaded.preserves == cal.preserves
    assert repr(loaded) == repr(cal)


def test_names_of_classes_and_frames_come_back() -> None:
    z, y, by = three_classes(n=300)
    frame = pd.DataFrame(z, columns=["cat", "dog", "eel"], index=np.arange(300) + 7)
    names = np.array(["cat", "dog", "eel"])
    countries = pd.Series(by, index=frame.index)
    cal = SegmentedCalibrator("ts").fit(frame, names[y], by=countries)
    turned = cal.predict_proba(frame[["eel", "cat", "dog"]], by=by)
    assert list(turned.columns) == ["cat", "dog", "eel"]
    assert turned.index.equals(frame.index)
    assert set(cal.predict(frame, by=by)) <= set(names)


def test_it_is_an_estimator_of_the_registry() -> None:
    cal = hcal.make_calibrator("segmented", method="ts", input="probs")
    assert isinstance(clone(cal), SegmentedCalibrator)
    assert clone(cal).get_params() == {"method": "ts", "input": "probs"}
    no_method = SegmentedCalibrator(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method is a registry name or a calibrator"):
        no_method.fit([[0.0, 1.0]] * 4, [0, 1, 0, 1], by=[1, 1, 2, 2])
    nested = SegmentedCalibrator(SegmentedCalibrator("ts"))
    with pytest.raises(ValueError, match="cannot have segments itself"):
        nested.fit([[0.0, 1.0]] * 4, [0, 1, 0, 1], by=[1, 1, 2, 2])


def test_another_prior_shifts_all_segments() -> None:
    world = World(5, 3, 1.0, 0.0)
    code = np.arange(600) % 3
    score, y, _ = world.draw(code)
    cal = SegmentedCalibrator("platt").fit(score, y, by=code)
    probs = cal.predict_proba(score, by=code)
    odds = np.log(probs[:, 1] / probs[:, 0])
    rate = float(y.mean())
    shifted = cal.with_prior([1 - rate / 2, rate / 2]).predict_proba(score, by=code)
    odds_before = rate / (1 - rate)
    odds_after = rate / 2 / (1 - rate / 2)
    expected = np.log(odds_after) - np.log(odds_before)
    change = np.log(shifted[:, 1] / shifted[:, 0]) - odds
    np.testing.assert_allclose(change, expected, atol=1e-9)
    estimated = cal.with_prior_from(score, by=code)
    assert estimated.fit_.prior is not None
    assert estimated.fit_.prior[1] == pytest.approx(rate, abs=0.05)


def test_evaluate_certify_and_drift_take_the_segments_of_rows() -> None:
    z, y, by = three_classes()
    countries = {"country": by[:600]}
    cal = SegmentedCalibrator("ts").fit(z[:600], y[:600], by=countries)
    rest = {"country": by[600:]}
    probs = cal.predict_proba(z[600:], by=rest)
    listed = hcal.evaluate(cal, z[600:], y[600:], by=rest)
    expected = nll(probs, y[600:])
    assert listed.values["nll"] == pytest.approx(expected)
    proven = hcal.certify(cal, z[600:], y[600:], by=rest)
    alone = hcal.certify(probs, y[600:], by=rest)
    assert proven.to_dict()["headline"] == alone.to_dict()["headline"]
    for call in (hcal.evaluate, hcal.certify):
        with pytest.raises(ValueError, match="pass the country of each row"):
            call(cal, z[600:], y[600:])


def test_what_knows_no_segments_says_so_in_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from hcal.integrations.torch import CalibratedModule

    z, y, by = three_classes(n=300)
    cal = SegmentedCalibrator("ts").fit(z, y, by={"country": by})
    refused = r"knows no segments, and this calibrator was fitted by country"
    for name in ("m.json", "m.onnx"):
        with pytest.raises(ValueError, match=refused):
            hcal.export(cal, tmp_path / name)
    with pytest.raises(ValueError, match=refused):
        CalibratedModule(torch.nn.Identity(), cal)
    with pytest.raises(ValueError, match="by is missing: pass the segment of each row"):
        hcal.MultilabelCalibrator("segmented").fit(z, np.eye(3, dtype=np.int64)[y])
    monitor = hcal.Monitor(tolerance="auto", calibrator=cal)
    assert monitor.update(cal.predict_proba(z, by=by), y) is not None


def test_the_commands_fit_apply_and_measure_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    z, y, by = three_classes()
    site = np.arange(len(y)) % 2
    frame = pd.DataFrame(z, columns=["logits_0", "logits_1", "logits_2"])
    frame = frame.assign(y=y, country=by, site=site)
    frame[:600].to_csv("cal.csv", index=False)
    frame[600:].to_csv("test.csv", index=False)
    countries = {"country": by[:600]}
    cal = SegmentedCalibrator("ts").fit(z[:600], y[:600], by=countries)
    expected = cal.predict_proba(z[600:], by={"country": by[600:]})

    output = command("fit", "cal.csv", "--by", "country", "--method", "ts", "-o", "m.hcal")
    assert "3 segments" in output
    command("apply", "m.hcal", "test.csv", "-o", "p.csv", "--keep")
    written = pd.read_csv("p.csv")
    np.testing.assert_allclose(written[["probs_0", "probs_1", "probs_2"]], expected, atol=1e-6)
    assert list(written["country"]) == list(by[600:])
    assert "3 by country: a, b, c" in command("info", "m.hcal")
    result = json.loads(command("evaluate", "test.csv", "--model", "m.hcal", "--json"))
    assert result["metrics"]["nll"]["value"] == pytest.approx(nll(expected, y[600:]))
    for words in (
        ["evaluate"],
        ["evaluate", "--by", "site"],
        ["certify", "--by", "country"],
        ["certify"],
    ):
        command(words[0], "test.csv", "--model", "m.hcal", *words[1:])
    for words in (
        ["apply", "m.hcal", "lost.csv", "-o", "q.csv"],
        ["evaluate", "lost.csv", "-m", "m.hcal"],
    ):
        frame[600:].drop(columns="country").to_csv("lost.csv", index=False)
        assert "has no 'country'; it holds" in command(*words, code=1)
    frame.loc[610, "country"] = None
    frame[600:].to_csv("gap.csv", index=False)
    assert "has no value in 1 of 300 rows" in command(
        "apply", "m.hcal", "gap.csv", "-o", "q.csv", code=1
    )

    command("fit", "cal.csv", "--by", "country,site", "--method", "ts", "-o", "two.hcal")
    command("apply", "two.hcal", "test.csv", "-o", "two.csv")
    places = frame[["country", "site"]]
    two = SegmentedCalibrator("ts").fit(z[:600], y[:600], by=places[:600])
    written = pd.read_csv("two.csv")[["probs_0", "probs_1", "probs_2"]]
    by_two = pd.DataFrame({"site": site, "country": by})[600:]
    np.testing.assert_allclose(written, two.predict_proba(z[600:], by=by_two), atol=1e-6)

    command(
        "fit", "cal.csv", "--by", "country", "--method", "ts", "--batch-rows", "70", "-o", "b.hcal"
    )
    command("apply", "b.hcal", "test.csv", "--batch-rows", "90", "-o", "b.csv")
    written = pd.read_csv("b.csv")[["probs_0", "probs_1", "probs_2"]]
    np.testing.assert_allclose(written, expected, atol=1e-6)


def test_folds_keep_the_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    z, y, by = three_classes()
    by = np.where(np.arange(len(y)) == 0, "rare", by)  # one row, which a fold does not see
    cal = SegmentedCalibrator("ts")
    cross_fitted = hcal.cross_fit(cal, z, y, by=by, resamples=0)
    common = hcal.cross_fit("ts", z, y, resamples=0)
    assert nll(cross_fitted.probs, y) < nll(common.probs, y) - 0.01
    fitted: Any = cross_fitted.calibrator
    assert fitted.segments_ == ("a", "b", "c", "rare")

    methods = {"ts": "ts", "by": cal}
    table = hcal.compare(z, y, folds=5, by=by, methods=methods, metrics=["nll"])
    assert table["by"]["nll"] == pytest.approx(nll(cross_fitted.probs, y))
    frame = pd.DataFrame(z, columns=["logits_0", "logits_1", "logits_2"])
    frame.assign(y=y, country=by).to_csv("t.csv", index=False)
    words = ["t.csv", "--by", "country", "--methods", "segmented,ts", "--metrics", "nll", "--json"]
    assert json.loads(command("compare", *words))


def test_thousands_of_segments_fit_in_seconds() -> None:
    code = np.repeat(np.arange(3000), 10)
    segments = Segments.of(code, len(code))
    assert len(segments.names) == 3000
    world = World(2, 3000, 0.8, 0.2)
    score, y, _ = world.draw(code)
    cal = SegmentedCalibrator("ts").fit(score, y, by=segments)
    assert cal.map_.slopes.shape == (3000,)  # type: ignore[attr-defined]


def test_the_note_counts_the_predictions_of_the_segments_and_not_of_the_common_calibrator() -> None:
    world = World(3, 4, 1.5, 0.0)
    code = np.repeat(np.arange(4), 500)
    score, y, _ = world.draw(code)

    cal = SegmentedCalibrator("pool").fit(score, y, by=code)

    says_one = cal.predict_proba(score, by=code)[:, 1] > 0.5
    crossed = int((says_one != (score > 0)).sum())
    assert crossed > 100
    assert f"{crossed} of 2,000 predictions cross 50 %" in cal.fit_.notes[0]
    assert not any("the model's own score is above" in note for note in cal.fit_.notes)


def test_where_segments_do_not_differ_the_note_of_the_common_calibrator_holds() -> None:
    world = World(4, 1, 0.8, 0.0)
    score, y, _ = world.draw(np.zeros(2000, dtype=int))
    code = np.arange(2000) % 4

    cal = SegmentedCalibrator("pool").fit(score, y, by=code)

    pooled = hcal.PooledCalibrator().fit(score, y)
    assert cal.fit_.notes[0] == pooled.fit_.notes[0]


def test_many_rows_are_predicted_as_their_parts_are() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 3):
        scores = rng.normal(size=(70_000, classes))
        country = rng.choice(["DE", "FR", "IT"], 70_000)
        bias = np.where(country == "DE", 1.0, 0.0)[:, None] * np.arange(classes)
        y = (scores + bias + rng.gumbel(size=scores.shape)).argmax(axis=1)
        cal = hcal.SegmentedCalibrator("ts").fit(scores, y, by=country)
        probs = cal.predict_proba(scores, by=country)
        for part in (slice(0, 100), slice(32_700, 32_800), slice(69_900, 70_000)):
            alone = cal.predict_proba(scores[part], by=country[part])
            np.testing.assert_allclose(probs[part], alone, atol=1e-12)
