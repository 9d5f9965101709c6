"""The name of a segment is the same in whatever library or file its values come."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.row_segments import Segments
from hcal.segments import UnknownSegmentWarning

DAYS = [datetime.date(2024, 1, 1), datetime.date(2024, 2, 1), datetime.date(2024, 1, 1)]
ISO = ["2024-01-01", "2024-02-01", "2024-01-01"]

WRITTEN: dict[str, tuple[tuple[str, ...], list[Any]]] = {
    "whole numbers": (
        ("1", "10"),
        [
            [1, 10, 1],
            ["1", "10", "1"],
            ["1.0", "10.0", "1.0"],
            [b"1", b"10", b"1"],
            np.array([1, 10, 1], dtype=np.int8),
            np.array([1.0, 10.0, 1.0], dtype=np.float32),
            np.array([1, "10", 1.0], dtype=object),
            [decimal.Decimal("1.0"), decimal.Decimal(10), decimal.Decimal(1)],
            pd.Series([1, 10, 1], dtype="Int64"),
            pd.Series([1, 10, 1], dtype="int64[pyarrow]"),
            pd.Series([1, 10, 1]).astype("category"),
            pl.Series([1, 10, 1]),
            pa.chunked_array([[1, 10, 1]]),
        ],
    ),
    "fractions": (
        ("0.1", "2.5"),
        [[0.1, 2.5, 0.1], np.array([0.1, 2.5, 0.1], dtype=np.float32), ["0.1", "2.5", "0.1"]],
    ),
    "marks": (
        ("False", "True"),
        [
            [True, False, True],
            ["true", "false", "TRUE"],
            np.array([True, False, True]),
            pd.Series([True, False, True], dtype="boolean"),
            pl.Series([True, False, True]),
        ],
    ),
    "texts": (
        ("DE", "FR"),
        [
            ["DE", "FR", "DE "],
            np.array([" DE", "FR", "DE"]),
            pd.Categorical(["DE", "FR", "DE"]),
            pd.Series(["DE", "FR", "DE"], dtype="string[pyarrow]"),
            pl.Series(["DE", "FR", "DE"], dtype=pl.Categorical),
            pa.array(["DE", "FR", "DE"]).dictionary_encode(),
        ],
    ),
    "dates": (
        ("2024-01-01", "2024-02-01"),
        [
            DAYS,
            ISO,
            [f"{day} 00:00:00" for day in ISO],
            [f"{day}T00:00:00.000" for day in ISO],
            np.array(ISO, dtype="datetime64[D]"),
            np.array(ISO, dtype="datetime64[ns]"),
            pd.to_datetime(pd.Series(ISO)),
            [pd.Timestamp(day) for day in ISO],
            pl.Series(DAYS),
            pl.Series(DAYS).cast(pl.Datetime),
            pa.array(DAYS),
        ],
    ),
}
CASES = [(names, values) for names, listed in WRITTEN.values() for values in listed]


@pytest.mark.parametrize(("names", "values"), CASES)
def test_a_value_has_one_name(names: tuple[str, ...], values: Any) -> None:
    segments = Segments.of(values, 3)
    assert segments.names == names
    assert segments.codes[0] == segments.codes[2] != segments.codes[1]


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table, dict])
def test_columns_of_several_types_keep_their_values(library: Any) -> None:
    columns = {"site": [1, 2, 1], "new": [True, False, True], "day": DAYS}
    segments = Segments.of(library(columns), 3)
    assert segments.names == ("1 · True · 2024-01-01", "2 · False · 2024-02-01")
    assert segments.title == "site · new · day"


@pytest.mark.parametrize("kind", ["whole numbers", "fractions", "marks", "texts", "dates"])
def test_a_model_of_a_csv_file_knows_the_segments_of_a_parquet_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    segment = {
        "whole numbers": np.array([1, 10]),
        "fractions": np.array([0.1, 2.0]),
        "marks": np.array([True, False]),
        "texts": np.array(["NA", "DE"]),
        "dates": np.array(ISO[:2], dtype="datetime64[ns]"),
    }[kind]
    rng = np.random.default_rng(0)
    code = np.arange(400) % 2
    score = rng.normal(size=400)
    rate = 1 / (1 + np.exp(-score - 3 * code))
    y = (rng.random(400) < rate).astype(int)
    frame = pd.DataFrame({"logits": score, "y": y, "segment": segment[code]})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")

    probs = []
    for fitted, new in [("csv", "parquet"), ("parquet", "csv")]:
        run = CliRunner().invoke
        words = ["fit", f"t.{fitted}", "--by", "segment", "--method", "platt", "-o", "m.hcal"]
        assert run(app, words).exit_code == 0
        applied = run(app, ["apply", "m.hcal", f"t.{new}", "-o", "p.csv", "--json"])
        assert json.loads(applied.output)["unknown"] == 0
        probs.append(pd.read_csv("p.csv")["probs_1"].to_numpy())
        model = hcal.load("m.hcal")
        got = model.predict_proba(score, by=frame["segment"])[:, 1]
        np.testing.assert_allclose(got, probs[-1], atol=1e-6)
    np.testing.assert_array_equal(probs[0], probs[1])


def test_rows_of_unknown_segments_are_counted_over_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    score = np.linspace(-2, 2, 60)
    y = (np.arange(60) % 3 > 0).astype(int)
    by = {"country": ["DE", "FR"] * 30}
    cal = hcal.SegmentedCalibrator("platt").fit(score, y, by=by)
    new = pd.DataFrame({"logits": score, "country": ["DE", "FR", "de"] * 20})
    new.to_csv("new.csv", index=False)
    applied = hcal.apply(cal, "new.csv", "p.csv", batch_rows=7)
    assert applied.unknown == 20
    assert "20 rows have a segment that the fit did not see" in str(applied)
    hcal.save(cal, "m.hcal")
    quiet = CliRunner().invoke(app, ["apply", "m.hcal", "new.csv", "-o", "p.csv", "--quiet"])
    assert "20 rows have a segment that the fit did not see" in quiet.stderr
    with pytest.warns(UnknownSegmentWarning, match="20 of 60 rows have a country"):
        cal.predict_proba(score, by=new)


@pytest.mark.parametrize("empty", [{}, pd.DataFrame(index=range(4)), np.empty((4, 0))])
def test_no_columns_are_no_segments(empty: Any) -> None:
    with pytest.raises(ValueError, match="by has no columns"):
        Segments.of(empty, 4)


def test_values_that_hold_the_separator_stay_apart() -> None:
    columns = {"shop": ["a · b", "a", "a ·", "a"], "till": ["c", "b · c", "c", "· c"]}
    segments = Segments.of(columns, 4)
    assert len(segments.names) == 4
    single = Segments.of({"shop": columns["shop"]}, 4)
    assert single.names == ("a", "a ·", "a · b")
