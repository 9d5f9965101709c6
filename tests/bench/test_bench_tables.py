"""Tables: every number is the stored one, marks are right, four formats say the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hcal.bench import tables
from hcal.bench.catalog import GROUPS, PAPER_METRICS, group_of
from hcal.bench.render import FORMATS, cell_text, render_tables
from hcal.bench.store import Results
from hcal.metrics import METRICS


def test_metric_table_holds_the_stored_means(results: Results) -> None:
    table = tables.metric_table(results, "ece_ew")
    for task in results.tasks:
        for method, value in zip(table.columns, table.row(task).values, strict=True):
            assert value == pytest.approx(results.values(task, method, "ece_ew").mean())
    stored = results.table("ece_ew")
    np.testing.assert_allclose(table.row("AE").values, stored.mean(0))
    before = np.array([[results.before(t, "ece_ew")] for t in results.tasks])
    np.testing.assert_allclose(table.row("ARE").values, (stored / before).mean(0))
    assert table.row("ARE").values[0] == pytest.approx(1.0)


@pytest.mark.parametrize("metric", [*GROUPS["class-wise"], *GROUPS["canonical"]])
def test_class_wise_and_canonical_numbers_have_their_companions(results: Results, metric: str) -> None:
    table = tables.metric_table(results, metric)
    kinds = [r.kind for r in table.rows]
    for i, row in enumerate(table.rows):
        if row.kind == "task":
            assert kinds[i + 1 : i + 4] == ["beside"] * 3
            assert [r.label.strip() for r in table.rows[i + 1 : i + 4]] == ["NLL", "Brier", "mean confidence"]
    assert group_of(metric) in table.title


def test_best_and_second_are_the_smallest_not_collapsed(results: Results) -> None:
    table = tables.metric_table(results, "cwece_a")
    gamma = table.row("gamma")
    assert gamma.flags[table.columns.index("h_class")]
    values = np.array([v if not f else np.inf for v, f in zip(gamma.values, gamma.flags, strict=True)])
    order = np.argsort(values)
    assert gamma.marks[order[0]] == "best"
    assert gamma.marks[order[1]] == "second"
    assert gamma.marks.count("best") == gamma.marks.count("second") == 1
    assert gamma.marks[table.columns.index("h_class")] == ""
    assert "†" in cell_text(gamma, table.columns.index("h_class"))
    assert any("collapsed" in note for note in table.notes)


def test_accuracy_is_better_when_higher_and_its_change_is_in_points(results: Results) -> None:
    table = tables.metric_table(results, "accuracy")
    assert table.row("alpha").marks[table.columns.index("iso")] == "second"
    change = tables.accuracy_table(results)
    assert change.row("beta").values[change.columns.index("iso")] == pytest.approx(-1.0)
    flips = change.rows[1]
    assert flips.values[change.columns.index("iso")] == 7


def test_overview_is_the_mean_over_tasks(results: Results) -> None:
    table = tables.overview_table(results)
    np.testing.assert_allclose(table.row("MMCE").values, results.table("mmce", relative=True).mean(0))
    assert table.row("collapsed tasks").values[table.columns.index("h_class")] == 1
    assert [r.label for r in table.rows][-4:] == ["NLL", "Brier", "mean confidence", "collapsed tasks"]


def test_ranks_and_critical_difference(results: Results) -> None:
    table = tables.rank_table(results)
    expected = tables.ranks(results.table("ks")).mean(0)
    np.testing.assert_allclose(table.row("KS").values, expected)
    assert sum(table.row("KS").values) == pytest.approx(len(table.columns) * (len(table.columns) + 1) / 2)
    # Demšar (2006), table 5: q = 2.949 for seven methods at 5 %.
    assert tables.critical_difference(3, 7) == pytest.approx(2.949 * np.sqrt(7 * 8 / 18), rel=2e-3)


def test_protocol_table_stars_the_selector_of_each_level(results: Results) -> None:
    table = tables.protocol_table(results)
    in_paper = {METRICS[name].label for name in (*PAPER_METRICS, "nll", "brier")}
    assert table.columns == ["ts", "h", "h_top", "h_class", "h_nll"]
    for row in table.rows:
        stars = [c for c, v in zip(table.columns, row.values, strict=True) if str(v).endswith("*")]
        if row.kind == "task":
            assert stars == (["h_top"] if row.label in ("KS", "MMCE") else stars)
            assert len(stars) == (row.label in in_paper)  # it has no table of the others


def test_failures_are_listed(results: Results) -> None:
    assert tables.failure_table(results).rows[0].values == ["no memory"]
    assert any(t.title.startswith("Cells that gave no result") for t in tables.all_tables(results))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_prints_every_number(results: Results, format: str) -> None:
    table = tables.metric_table(results, "tcwece")
    text = render_tables([table], format, width=80)
    found = re.findall(r"\d+\.\d{4}", text)
    numbers = [cell_text(r, i).strip("†") for r in table.rows for i in range(len(r.values)) if r.digits == 4]
    assert sorted(found) == sorted(numbers)
    for column in table.columns:
        assert column in text or column.replace("_", r"\_") in text


def test_wide_tables_are_cut_to_the_terminal(results: Results) -> None:
    text = render_tables([tables.overview_table(results)], "terminal", width=60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert text.count("ECE^ew") >= 2


def test_unknown_names_are_refused(results: Results) -> None:
    with pytest.raises(ValueError, match="format must be one of"):
        render_tables([], "word")
    with pytest.raises(ValueError, match="not in these results"):
        tables.metric_table(results, "nonsense")


def test_html_escapes_and_latex_compiles_its_specials() -> None:
    table = tables.ResultTable("a < b & c_d", "x", ["m_1"], [tables.Row("r%", ["<b>"])])
    assert "a &lt; b &amp; c_d" in render_tables([table], "html")
    assert r"c\_d" in render_tables([table], "latex")
    assert r"r\%" in render_tables([table], "latex")
