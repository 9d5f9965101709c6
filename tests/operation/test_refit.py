"""Refits: what a calibrator remembers of its last fit, old beside new, and the command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hcal
from command_line import run


@dataclass(frozen=True)
class Month:
    """Rows of some days, in which the intercept follows the day."""

    score: np.ndarray
    y: np.ndarray
    day: np.ndarray
    country: np.ndarray

    def frame(self) -> pd.DataFrame:
        date = np.datetime64("2024-01-01", "ns") + self.day * np.timedelta64(1, "D")
        return pd.DataFrame(
            {
                "p_stay": 1 - expit(self.score),
                "p_churn": expit(self.score),
                "label": np.where(self.y, "churn", "stay"),
                "country": self.country,
                "date": date,
                "customer": np.arange(len(self.y)) // 3,
            }
        )


def expit(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def true_risk(score: np.ndarray, country: np.ndarray, day: Any) -> np.ndarray:
    """The chance of churn; it rises by a factor e in the odds every 100 days, and is larger in France."""
    return expit(0.7 * score + 0.8 * (country == "FR") + np.asarray(day) / 100)


def month(days: tuple[int, int], n: int, seed: int) -> Month:
    rng = np.random.default_rng(seed)
    day = rng.integers(*days, n)
    score = 2 * rng.normal(size=n) - 1
    country = rng.choice(["DE", "FR"], n)
    return Month(score, rng.random(n) < true_risk(score, country, day), day, country)


def refitted_and_old() -> tuple[Any, Any]:
    old_rows = month((0, 90), 4000, 0)
    new_rows = month((90, 180), 4000, 1)
    old = hcal.PlattScaling().fit(old_rows.score, old_rows.y)
    return hcal.refit(old, new_rows.score, new_rows.y, time=new_rows.day), old


def test_a_refit_follows_a_drift_and_says_so() -> None:
    new, old = refitted_and_old()
    rng = np.random.default_rng(2)
    score = 2 * rng.normal(size=20_000) - 1
    truth = true_risk(score, rng.choice(["DE", "FR"], 20_000), 180)
    gap = np.abs(new.predict_proba(score)[:, 1] - truth).mean()
    assert gap < 0.6 * np.abs(old.predict_proba(score)[:, 1] - truth).mean()

    comparison = new.fit_.details["refit"]
    assert comparison["rows"] == pytest.approx(800, abs=50)
    assert comparison["which"].startswith("the rows from 16")
    assert comparison["low"] > 0
    gain = comparison["old"]["nll"] - comparison["new"]["nll"]
    assert comparison["gain"] == pytest.approx(gain, abs=1e-9)
    assert "the new calibrator is better" in new.fit_.notes[-1]
    assert "none of these were in the last fit" in new.fit_.notes[-2]


def test_the_comparison_is_a_fit_on_the_older_rows() -> None:
    rows = month((0, 100), 2000, 3)
    old = hcal.TemperatureScaling().fit(rows.score[:500], rows.y[:500])
    new = hcal.refit(old, rows.score, rows.y, time=rows.day)
    newest = rows.day >= np.sort(rows.day)[1600]
    by_hand = hcal.TemperatureScaling().fit(rows.score[~newest], rows.y[~newest])
    expected = hcal.metrics.nll(by_hand.predict_proba(rows.score[newest]), rows.y[newest])
    assert new.fit_.details["refit"]["new"]["nll"] == pytest.approx(expected, abs=1e-12)
    on_all_rows = hcal.TemperatureScaling().fit(rows.score, rows.y)
    np.testing.assert_array_equal(
        new.predict_proba(rows.score), on_all_rows.predict_proba(rows.score)
    )


@pytest.mark.filterwarnings("ignore:refit")
def test_the_interval_covers() -> None:
    """Where nothing changed, and old and new rows are as many, neither is better in most draws."""
    lows, highs = [], []
    for seed in range(40):
        rows = month((0, 1), 1500, 100 + seed)
        old = hcal.PlattScaling().fit(rows.score[:600], rows.y[:600])
        again = hcal.refit(old, rows.score[600:], rows.y[600:])
        comparison = again.fit_.details["refit"]
        lows.append(comparison["low"] > 0)
        highs.append(comparison["high"] < 0)
    assert sum(lows) + sum(highs) <= 8


def test_all_that_a_fit_knows_is_used_again() -> None:
    old_rows = month((0, 90), 3000, 0)
    new_rows = month((90, 180), 3000, 1)
    titles = {"p_stay": "stay", "p_churn": "churn"}
    frame = old_rows.frame().rename(columns=titles)
    old = hcal.SegmentedCalibrator(hcal.PooledCalibrator(preserve="order"), input="probs")
    columns = ["stay", "churn"]
    of_rows = {"by": frame[["country"]], "time": frame["date"]}
    old.fit(frame[columns], frame["label"], half_life="60d", **of_rows)
    old.set_params(input="logits")  # without effect on what was fitted
    later = new_rows.frame().rename(columns=titles)
    of_rows = {"by": later[["country"]], "time": later["date"]}
    new: Any = hcal.refit(old, later[columns[::-1]], later["label"], **of_rows)
    assert new.method.preserve == "order"
    assert new.prediction_.kind == "probs"
    assert new.classes_.tolist() == old.classes_.tolist()
    assert new.segments_ == ("DE", "FR")
    assert new.fit_.segment_title == "country"
    assert new.fit_.details["age"]["half_life"] == "60d"
    same = hcal.SegmentedCalibrator(hcal.PooledCalibrator(preserve="order"), input="probs")
    same.fit(later[columns], later["label"], half_life="60d", **of_rows)
    by = later[["country"]]
    expected = same.predict_proba(later[columns], by=by)
    np.testing.assert_array_equal(new.predict_proba(later[columns], by=by), expected)
    assert "from 2024-01-01 to 2024-03-30" in " ".join(new.fit_.notes)


@pytest.mark.parametrize("half_life", [60, 60.5, np.timedelta64(90, "D"), "12 h"])
def test_any_half_life_is_remembered(half_life: Any) -> None:
    rows = month((0, 90), 400, 0)
    number = isinstance(half_life, int | float)
    time = rows.day if number else np.datetime64("2024-01-01") + rows.day
    old = hcal.PlattScaling().fit(rows.score, rows.y, time=time, half_life=half_life)
    again = hcal.refit(old, rows.score, rows.y, time=time)
    np.testing.assert_array_equal(again.predict_proba(rows.score), old.predict_proba(rows.score))


def test_old_rows_among_the_new_ones_are_counted() -> None:
    rows = month((0, 90), 3000, 0)
    old = hcal.PlattScaling().fit(rows.score[:2000], rows.y[:2000])
    new = hcal.refit(old, rows.score[1000:], rows.y[1000:])
    assert "about 50 % of these were in the last fit" in new.fit_.notes[-2]
    assert "it looks better here" in new.fit_.notes[-1]


def test_groups_are_held_out_whole() -> None:
    rows = month((0, 90), 600, 0)
    patient = np.arange(600) // 30
    old = hcal.PlattScaling().fit(rows.score, rows.y)
    dependent = hcal.refit(old, rows.score, rows.y, groups=patient, time=rows.day)
    # Every patient has rows of the last days, so no older rows are left.
    assert "refit" not in dependent.fit_.details
    assert "too few to compare" in dependent.fit_.notes[-1]
    timeless = hcal.refit(old, rows.score, rows.y, groups=patient)
    assert timeless.fit_.details["refit"]["rows"] == 120


def test_a_worse_calibrator_warns() -> None:
    rows = month((0, 90), 4000, 0)
    old = hcal.PlattScaling().fit(rows.score, rows.y)
    later = month((0, 90), 1000, 1)
    flipped = np.where(np.arange(1000) < 700, ~later.y, later.y)
    with pytest.warns(hcal.CalibrationWarning, match="the new calibrator is worse"):
        hcal.refit(old, later.score, flipped, time=np.arange(1000))


def test_what_cannot_be_refitted_is_said(tmp_path: Path) -> None:
    rows = month((0, 90), 400, 0)
    old = hcal.PlattScaling().fit(rows.score, rows.y, time=rows.day, half_life=30)
    with pytest.raises(ValueError, match="half_life needs the time of each row"):
        hcal.refit(old, rows.score, rows.y)
    with pytest.raises(ValueError, match="new rows have their own"):
        hcal.refit(old.with_prior([0.5, 0.5]), rows.score, rows.y, time=rows.day)
    with pytest.raises(ValueError, match="of one label a row, got MultilabelCalibrator"):
        hcal.refit(hcal.MultilabelCalibrator(), rows.score, rows.y)  # type: ignore[arg-type]
    segmented = hcal.SegmentedCalibrator("platt").fit(rows.score, rows.y, by=rows.country)
    with pytest.raises(ValueError, match="the calibrator has segments"):
        hcal.refit(segmented, rows.score, rows.y)


OPTIONS = ["--scores", "p_*", "--label", "label", "--by", "country", "--groups", "customer"]


def write(folder: Path, ending: str) -> tuple[Path, Path]:
    paths = folder / f"old.{ending}", folder / f"new.{ending}"
    periods = [(0, 90), (90, 180)]
    for path, days, seed in zip(paths, periods, (0, 1), strict=True):
        getattr(month(days, 1500, seed).frame(), f"to_{ending}")(path, index=False)
    return paths


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("options", [[], ["--batch-rows", "400"]])
def test_the_command_needs_no_options(ending: str, options: list[str], tmp_path: Path) -> None:
    old, new = write(tmp_path, ending)
    model, later, fresh = (tmp_path / name for name in ("m.hcal", "next.hcal", "fresh.hcal"))
    aged = [*OPTIONS, "--time", "date", "--half-life", "45d", "--method", "platt"]
    run("fit", old, *aged, "-o", model)
    answer = json.loads(run("refit", model, new, "-o", later, *options, "--json").stdout)
    assert answer["fit"]["details"]["refit"]["low"] > 0
    run("fit", new, *aged, "-o", fresh)
    frame = month((180, 200), 300, 2).frame()
    probs = []
    for path in (later, fresh):
        cal = hcal.load(path)
        probs.append(cal.predict_proba(frame[["p_stay", "p_churn"]], by=frame[["country"]]))
    np.testing.assert_array_equal(*probs)
    assert hcal.load(later).fit_.request == hcal.load(fresh).fit_.request
    text = run("refit", later, new, "-o", tmp_path / "third.hcal").stdout
    assert "about 100 % of these were in the last fit" in text
    assert "half-life" not in text
    assert "45d" in text


def test_a_file_without_a_column_of_the_last_fit_is_refused(tmp_path: Path) -> None:
    old, new = write(tmp_path, "csv")
    model = tmp_path / "m.hcal"
    run("fit", old, *OPTIONS, "-o", model, "--method", "platt")
    frame = pd.read_csv(new)
    for column, match in [
        ("customer", "used the column 'customer' as groups"),
        ("country", "country"),
    ]:
        frame.drop(columns=column).to_csv(tmp_path / "less.csv", index=False)
        result = run("refit", model, tmp_path / "less.csv", "-o", tmp_path / "n.hcal", code=1)
        assert match in result.stderr
    result = run("refit", model, new, "-o", model, code=1)
    assert "m.hcal" in result.stderr


def test_python_reads_the_same_files(tmp_path: Path) -> None:
    old, new = write(tmp_path, "csv")
    model = tmp_path / "m.hcal"
    run("fit", old, *OPTIONS, "-o", model, "--method", "platt")
    run("refit", model, new, "-o", tmp_path / "next.hcal")
    refitted: Any = hcal.refit(hcal.load(model), new)
    expected: Any = hcal.load(tmp_path / "next.hcal")
    frame = month((90, 180), 50, 5).frame()
    scores = frame[["p_stay", "p_churn"]]
    probs = [cal.predict_proba(scores, by=frame[["country"]]) for cal in (refitted, expected)]
    np.testing.assert_array_equal(*probs)


def test_a_weight_of_2_is_the_row_twice_also_where_old_and_new_are_compared() -> None:
    rows = month((0, 100), 400, 8)
    cal = hcal.make_calibrator("platt").fit(rows.score, rows.y)
    weight = np.arange(400) % 3
    copies = np.repeat(np.arange(400), weight)
    for time in (None, rows.day):
        again = None if time is None else time[copies]
        weighed = hcal.refit(cal, rows.score, rows.y, weight, time=time)
        counted = hcal.refit(cal, rows.score[copies], rows.y[copies], time=again)
        assert weighed.fit_.details["refit"]["gain"] == pytest.approx(
            counted.fit_.details["refit"]["gain"]
        )
