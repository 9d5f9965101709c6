"""The board of tables scores as the stored peers were scored, and its page is made from its results."""

from __future__ import annotations

import re

import numpy as np
import pytest

from helpers import DATA, ROOT
from studies import tabular_board as board

TABLES = DATA / "tabular"


@pytest.mark.data
def test_scores_of_the_uncalibrated_rows_are_the_stored_ones() -> None:
    """Same definitions as the peers: all six digits that are stored, on all 96 tasks."""
    if not TABLES.exists():
        pytest.skip("needs the shared data: ../shared/data/tabular or HCAL_DATA")
    stored = {r["task"]: r for r in board.read(TABLES / "peers.csv") if r["method"] == "uncal"}
    assert len(stored) == 96
    for task, row in stored.items():
        _, _, probs, y = board.load(task)
        found = board.score(probs, y)
        for name in ("logloss", "infinite", "brier", "accuracy", "auc", "ece"):
            if row[name]:
                assert float(f"{found[name]:.6g}") == pytest.approx(float(row[name]), rel=2e-6), (task, name)
        # Many naive Bayes rows tie at the top; which bin takes which then depends on the sort.
        if not task.endswith("gnb"):
            assert found["dce"] == pytest.approx(float(row["dce"]), abs=1e-6), task


def test_the_odds_show_a_ranking_that_rounding_hides() -> None:
    tiny = np.array([1e-20, 1e-18, 1e-19, 1e-17])
    y = np.array([1, 0, 1, 0])
    found = board.score(np.stack([tiny, 1 - tiny], axis=1), y)
    assert found["auc"] == 0.5
    assert found["auc_odds"] == 1.0


def test_win_rate_counts_strictly_worse_opponents() -> None:
    assert board.win_rates({"a": 0.2, "b": 0.3}, {"a": {"x": 0.2, "y": 0.4}, "b": {"x": 0.1, "y": 0.3}}) == {
        "a": 0.5,
        "b": 0.0,
    }


def test_a_failed_fit_loses_against_everybody() -> None:
    row = {"task": "a", "by": "hcal", "method": "m", "error": "no", "brier": ""}
    assert board.values([row], "brier", by="hcal") == {"a": {"m": np.inf}}
    assert board.win_rate(np.inf, [1.0, 2.0]) == 0


def test_intervals_draw_data_sets_not_tasks() -> None:
    rates = {f"t{i}": float(i % 2) for i in range(200)}
    one = board.interval(rates, {t: t for t in rates})
    two = board.interval(rates, {t: f"d{int(v)}" for t, v in rates.items()})
    assert one[1] - one[0] < 0.2
    assert two == (0.0, 1.0)


def test_methods_with_parameters_are_told_apart() -> None:
    assert board.split_methods("ts,h:preserve=none,random_state=1") == [
        "ts",
        "h:preserve=none,random_state=1",
    ]
    assert board.make("h:preserve=none,random_state=1").get_params()["preserve"] is None


def test_the_page_is_the_one_of_the_results() -> None:
    text = board.PAGE.read_text().partition("<!-- board -->\n")[2].partition("<!-- end -->")[0]
    assert text.strip().splitlines() == board.tables(board.read(board.RESULTS), "h")


def test_what_the_pages_say_of_ties_and_rankings() -> None:
    rows = [r for r in board.read(board.RESULTS) if r["k"] == "2"]
    own = {(r["method"], r["task"]): r for r in rows if r["by"] == "hcal"}
    same = [
        all(
            f"{float(r[s]):.6g}" == f"{float(own['venn_abers', r['task']][s]):.6g}"
            for s in ("brier", "logloss")
        )
        for r in rows
        if r["by"] == "peer" and r["method"] == "venn-abers"
    ]
    assert (sum(same), len(same)) == (57, 66)
    shown, true = (float(own["uncal", "spambase_gnb"][f]) for f in ("auc", "auc_odds"))
    assert round(true - shown, 3) == 0.010
    # choose-a-method: of the single methods that move no AUC, by Brier and by log-loss
    table = (ROOT / "docs" / "tabular.md").read_text(encoding="utf-8").partition("### Two classes, <500")[0]
    kept = re.findall(r"^\| \*\*(\w+)\*\* .* \| 0 \|$", table, re.MULTILINE)
    assert kept[:4] == ["h", "smooth_spline", "quadratic", "platt"]


def test_the_page_says_that_the_tasks_were_used_for_development() -> None:
    assert "These 96 tasks were used to develop hcal" in board.PAGE.read_text()


def test_the_results_are_whole() -> None:
    """Every method of ours on every task, without a failed fit, and the pools beside them."""
    rows = board.read(board.RESULTS)
    tasks = {r["task"]: board.kind(r) for r in rows}
    assert len(tasks) == 96
    for method in {r["method"] for r in rows if r["by"] == "hcal"}:
        own = [r for r in rows if r["by"] == "hcal" and r["method"] == method]
        assert sorted(r["task"] for r in own) == sorted(tasks), method
        assert not any(r["error"] for r in own), method
    for task, kind in tasks.items():
        stored = [r["method"] for r in rows if r["by"] == "peer" and r["task"] == task]
        assert sorted(stored) == sorted(board.POOLS[kind]), task


@pytest.mark.data
def test_a_stored_cell_is_what_the_script_computes() -> None:
    if not TABLES.exists():
        pytest.skip("needs the shared data: ../shared/data/tabular or HCAL_DATA")
    stored = {(r["task"], r["method"]): r for r in board.read(board.RESULTS) if r["by"] == "hcal"}
    for task in ("pima_rf", "yeast_gnb"):
        for method in ("uncal", "ts", "platt", "smooth_spline", "venn_abers"):
            fresh = board.cell(task, method)
            # Solvers on another machine end in another last digit.
            for field in ("brier", "logloss"):
                assert float(stored[task, method][field]) == pytest.approx(float(fresh[field]), rel=1e-5)


def test_the_readme_shows_the_board() -> None:
    """The page is made from the results (above); the README repeats some of its numbers."""
    page = (ROOT / "docs" / "tabular.md").read_text(encoding="utf-8")
    parts = [page.split(f"### {title}, all sizes")[1] for title in ("Two classes", "Three and more classes")]
    lines = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- tables")[1].splitlines()
    shown = [line for line in lines[1:9] if line.startswith("| `")]
    assert len(shown) == 6
    for line in shown:
        method = line.split("`")[1]
        for part, cell in zip(parts, line.split("|")[2:4], strict=True):
            if cell.strip():
                own = next(row for row in part.splitlines() if f" {method} " in row.replace("*", " "))
                rates = [column.split("[")[0].strip() for column in own.split("|")[2:4]]
                assert cell.strip() == " / ".join(rates), method
