"""The studies of certificates in a short form, and their tables as they were last written."""

from __future__ import annotations

import csv

import pytest
from scipy.stats import binom

from helpers import ROOT


@pytest.mark.slow
def test_statements_are_false_no_more_often_than_promised() -> None:
    from studies.coverage import study

    for row in study(25):
        if "refused" not in row["statement"]:
            assert row["false"] <= 5, (
                row
            )  # 1.25 expected at most; more than 5 has probability 0.001


@pytest.mark.slow
def test_rows_of_the_fit_are_refused_and_fresh_rows_are_not() -> None:
    from studies.leakage import FRESH, methods, rows

    for row in (*rows(5), *methods(["hb", "iso", "pool", "ts"])):
        assert row["share"] == (0 if row["case"].partition(", after")[0] in FRESH else 1), row


def test_the_tables_keep_the_promises() -> None:
    with (ROOT / "results" / "coverage.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert {row["part"] for row in rows} == {"certificates", "tests", "intervals", "alarms"}
    most_sets: dict[str, int] = {}
    for row in rows:
        most_sets[row["world"]] = max(int(row["sets"]), most_sets.get(row["world"], 0))
    for row in rows:
        sets = int(row["sets"])
        share = float(row["share"])
        allowed = float(row["allowed"])
        if row["part"] == "certificates":
            assert sets >= 500, row
            assert share <= allowed or "refused" in row["statement"], row
        elif row["part"] == "intervals":
            # A smooth curve of three knots cannot follow a wave: its distance is not that of the truth.
            bent = row["world"].startswith("wave") and row["statement"].endswith("ici")
            # Samples that are chosen by their outcomes, as few of them have an interval, tell nothing of the others.
            if sets < max(most_sets[row["world"]] / 2, 100):
                continue
            noise = 2 * (allowed * (1 - allowed) / sets) ** 0.5
            assert bent or share <= allowed + 0.02 + noise, row
        else:
            # Of a hundred and more cells some lie above their level by chance, but none so far.
            assert binom.sf(int(row["false"]) - 1, sets, allowed) > 1e-4, row
    with (ROOT / "results" / "leakage.csv").open(newline="") as f:
        for row in csv.DictReader(f):
            fresh = row["case"].startswith("fresh")
            assert float(row["share"]) <= 0.01 if fresh else float(row["share"]) >= 0.99, row
