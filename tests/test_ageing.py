"""Rows that age: times of all kinds, weights by age, and fits that forget."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

import hcal
from hcal.ageing import HalfLife, Times

DAYS = ["2024-01-01", "2024-03-31", "2024-06-29"]
MOMENTS = [datetime.datetime.fromisoformat(day) for day in DAYS]


@pytest.mark.parametrize(
    "time",
    [
        DAYS,
        [f"{day} 00:00:00" for day in DAYS],
        [f"{day}T00:00:00Z" for day in DAYS],
        [f"{day}T02:00:00+02:00" for day in DAYS],
        MOMENTS,
        [moment.date() for moment in MOMENTS],
        np.array(DAYS, dtype="datetime64[D]"),
        np.array(DAYS, dtype="datetime64[ns]"),
        pd.to_datetime(pd.Series(DAYS)),
        pd.to_datetime(pd.Series(DAYS)).dt.tz_localize("UTC"),
        pl.Series(MOMENTS),
    ],
)
@pytest.mark.parametrize(
    "half_life", ["90d", datetime.timedelta(days=90), np.timedelta64(90, "D"), "2160 h"]
)
def test_dates_of_any_kind_age_alike(time: Any, half_life: Any) -> None:
    weight = HalfLife.of(half_life).weights(Times.of(time, 3))
    np.testing.assert_allclose(weight, [0.25, 0.5, 1.0])


@pytest.mark.parametrize("digits", [int, float, str])
def test_dates_in_digits_are_dates(digits: Any) -> None:
    time = [digits(day.replace("-", "")) for day in DAYS]
    times = Times.of(time, 3)
    assert times.are_dates
    np.testing.assert_array_equal(times.values, Times.of(DAYS, 3).values)
    assert not Times.of([20240531, 20240532], 2).are_dates
    with pytest.raises(ValueError, match="is for numbers, and the times of the rows are dates"):
        HalfLife.of(90).weights(times)


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_a_time_is_finite(infinite: float) -> None:
    with pytest.raises(ValueError, match=r"row 1 is -?inf"):
        Times.of([1.0, infinite], 2)


def test_times_without_a_half_life_are_said_to_have_no_effect() -> None:
    score, y, day = drifting(100, 0)
    note = "the times of the rows have no effect on the fit, because there is no half-life"
    assert note in hcal.PlattScaling().fit(score, y, time=day).fit_.notes
    assert note not in hcal.PlattScaling().fit(score, y).fit_.notes
    assert note not in hcal.PlattScaling().fit(score, y, time=day, half_life=9).fit_.notes


def test_numbers_age_by_a_number() -> None:
    for time in ([1, 2, 3], ["1", "2", "3"], pd.Series([1, 2, 3], dtype="Int64")):
        weights = HalfLife.of(1).weights(Times.of(time, 3))
        np.testing.assert_allclose(weights, [0.25, 0.5, 1])


def drifting(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores, labels and days; the intercept moves by 2 over a year."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, 360, n))
    score = rng.normal(size=n)
    rate = 1 / (1 + np.exp(-score + 2 * day / 360))
    y = (rng.random(n) < rate).astype(int)
    return score, y, day


def test_a_fit_that_forgets_follows_a_drift() -> None:
    score, y, day = drifting(8000, 0)
    date = np.datetime64("2024-01-01") + day
    fitted = hcal.make_calibrator("platt").fit(score, y, time=date, half_life="60d")
    steady = hcal.make_calibrator("platt").fit(score, y)
    rng = np.random.default_rng(1)
    new = rng.normal(size=50_000)
    truth = 1 / (1 + np.exp(-new + 2))
    gap = np.abs(fitted.predict_proba(new)[:, 1] - truth).mean()
    steady_gap = np.abs(steady.predict_proba(new)[:, 1] - truth).mean()
    assert gap < 0.4 * steady_gap

    weight = 0.5 ** ((day.max() - day) / 60)
    same = hcal.make_calibrator("platt").fit(score, y, weight)
    np.testing.assert_array_equal(fitted.predict_proba(new), same.predict_proba(new))
    age = fitted.fit_.details["age"]
    assert age["half_life"] == "60d"
    assert age["oldest"] == "2024-01-01"
    assert age["newest"] == "2024-12-25"
    assert age["count_as"] == pytest.approx(weight.sum())
    assert "a row counts half as much as one that is 60d younger" in fitted.fit_.notes[-1]


def test_segments_age_and_weights_multiply() -> None:
    score, y, day = drifting(2000, 0)
    by = np.arange(2000) % 3
    weight = 1.0 + by
    aged = hcal.SegmentedCalibrator("platt")
    aged.fit(score, y, weight, by=by, time=day, half_life=60)
    ages = 0.5 ** ((day.max() - day) / 60)
    same = hcal.SegmentedCalibrator("platt").fit(score, y, weight * ages, by=by)
    expected = same.predict_proba(score, by=by)
    np.testing.assert_array_equal(aged.predict_proba(score, by=by), expected)


def test_a_file_remembers_its_age(tmp_path: Path) -> None:
    score, y, day = drifting(500, 0)
    cal = hcal.make_calibrator("platt").fit(score, y, time=day, half_life=60)
    hcal.save(cal, tmp_path / "m.hcal")
    assert hcal.load(tmp_path / "m.hcal").fit_.details["age"] == cal.fit_.details["age"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("options", [[], ["--batch-rows", "150"]])
def test_the_command_forgets(
    ending: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcal.cli.app import app

    monkeypatch.chdir(tmp_path)
    score, y, day = drifting(600, 0)
    date = np.datetime64("2024-01-01", "ns") + day * np.timedelta64(1, "D")
    frame = pd.DataFrame({"logits": score, "y": y, "date": date, "week": day // 7})
    getattr(frame, f"to_{ending}")(f"t.{ending}", index=False)
    for column, span, time in [("date", "90d", date), ("week", "12", day // 7)]:
        half_life = float(span) if column == "week" else span
        words = ["fit", f"t.{ending}", "--time", column, "--half-life", span, "--method", "platt"]
        result = CliRunner().invoke(app, [*words, "-o", "m.hcal", *options, "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["fit"]["details"]["age"]["half_life"] == span
        expected = hcal.make_calibrator("platt").fit(score, y, time=time, half_life=half_life)
        loaded = hcal.load("m.hcal")
        np.testing.assert_allclose(loaded.predict_proba(score), expected.predict_proba(score))
    applied = CliRunner().invoke(app, ["apply", "m.hcal", f"t.{ending}", "-o", "p.csv"])
    assert applied.exit_code == 0, applied.output


def test_one_wrong_time_does_not_outweigh_all_other_rows() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    logits = rng.normal(size=(40, 2)) + 2 * np.eye(2)[y]
    days = [f"2024-05-{1 + row % 28:02}" for row in range(40)]
    seconds = np.arange(40.0)
    future = days[:30] + ["2999-01-05"] * 10
    for time, half_life, row in (
        ([*days[:-1], "2999-01-05"], "90d", 39),
        (future, "90d", 30),
        (np.r_[seconds[:-1], 1e9], 10, 39),
    ):
        with pytest.raises(ValueError, match=f"time: row {row} is of .* rows are too old to count"):
            hcal.TemperatureScaling().fit(logits, y, time=time, half_life=half_life)
    # An archive may be many half-lives old, and days before 1970 are days.
    for time in (["2004-05-01"] * 30 + days[30:], ["1969-12-31"] * 20 + ["1970-01-02"] * 20):
        fitted = hcal.TemperatureScaling().fit(logits, y, time=time, half_life="90d")
        assert fitted.fit_.rows == 40


def test_what_cannot_age_is_said() -> None:
    score, y, day = drifting(100, 0)
    cal = hcal.make_calibrator("platt")
    with pytest.raises(ValueError, match="half_life needs the time of each row"):
        cal.fit(score, y, half_life="90d")
    with pytest.raises(ValueError, match="is for dates, and the times of the rows are numbers"):
        cal.fit(score, y, time=day, half_life="90d")
    with pytest.raises(ValueError, match="is for numbers, and the times of the rows are dates"):
        cal.fit(score, y, time=["2024-01-01"] * 100, half_life=90)
    for wrong in ("3 months", "d", "-3d", 0, True, -1.0):
        with pytest.raises(ValueError, match="half_life must be"):
            cal.fit(score, y, time=day, half_life=wrong)
    with pytest.raises(ValueError, match="time: 'yesterday' is no date"):
        cal.fit(score, y, time=["yesterday"] * 100, half_life="9d")
    with pytest.raises(ValueError, match="time has no value in 1 of 100 rows"):
        cal.fit(score, y, time=[None, *DAYS * 33], half_life="9d")
    with pytest.raises(ValueError, match="takes no weights, so its rows cannot age"):
        hcal.make_calibrator("bbq").fit(score, y, time=day, half_life=9)


@pytest.mark.parametrize("time", [[1.0, np.inf], ["1", "nan"], ["1", "1e999"]])
def test_a_time_that_is_no_number_is_refused(time: list[object]) -> None:
    with pytest.raises(ValueError, match="time must be dates or finite numbers; row 1 is"):
        Times.of(time, 2)
