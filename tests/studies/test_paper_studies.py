"""The studies of the paper: tasks, the numbers of the central experiment, the table of differences."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hcal import metrics
from helpers import DATA, ROOT, synthetic
from studies import (
    central,
    differences,
    paper,
    paper_page,
    published,
    records,
    selector_trap,
    sensitivity,
    tasks,
    whose_lead,
)


def words(name):
    """Return the text of a page with one space between words."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_a_task_is_read_and_checked(tmp_path):
    logits, y = synthetic(40)
    np.savez(tmp_path / "a.npz", logits_cal=logits, y_cal=y, logits_test=logits, y_test=y)
    task = tasks.load_task("a", tmp_path)
    np.testing.assert_array_equal(task.logits_test, logits)
    np.savez(tmp_path / "b.npz", logits_cal=logits, y_cal=y)
    with pytest.raises(ValueError, match="no logits_test in the file"):
        tasks.load_task("b", tmp_path)
    np.savez(
        tmp_path / "cifar10_resnet110.npz", logits_cal=logits, y_cal=y, logits_test=logits, y_test=y
    )
    with pytest.raises(ValueError, match="the paper says"):
        tasks.load_task("resnet110_c10", tmp_path)
    assert len(tasks.PAPER_TASKS) == 15


def test_the_paper_tasks_that_are_here():
    if not DATA.exists():
        pytest.skip("needs ../shared/data")
    for name in tasks.SHARED:
        assert tasks.load_task(name, DATA).logits_cal.shape == (5000, 10)


def test_the_central_numbers_stand_in_both_pages():
    experiment = central.experiment_of()
    page = words("docs/central-experiment.md")
    for level in central.LEVELS:
        value, low, high, count = experiment.ratio(level)
        assert count == 5
        assert f"| {value:.2f} [{low:.2f}, {high:.2f}] |" in page, level.title
    value, low, high, _ = experiment.ratio(central.LEVELS[0])
    assert f"by {value:.2f} (95 % interval {low:.2f} to {high:.2f}" in words("README.md")
    assert central.PAGE.read_text(encoding="utf-8") == "\n".join(central.page(experiment)) + "\n"

    lower = sum(experiment.task_ratio(task, central.LEVELS[0]) < 1 for task in central.TASKS)
    assert lower == 6
    assert len(central.TASKS) == 10
    assert "lower on six networks of ten" in page


def test_the_older_experiment_is_told_by_data_set():
    rows = records.read_rows(central.OLD_FILE)
    page = words("docs/central-experiment.md")
    for start in ("identity", "published"):
        value, low, high, _ = central.old_ratio(start, rows)
        assert f"{value:.2f} [{low:.2f}, {high:.2f}]" in page


def test_a_kept_map_gives_the_errors_of_the_results(tmp_path):
    """The first kept map predicts what the results file says, so that a metric can be added without training."""
    if not DATA.exists():
        pytest.skip("needs ../shared/data")
    kept = central.KeptMaps.read(central.MAPS)
    facts = kept.facts[0]
    task = tasks.load_task(facts["task"], DATA)
    probs = np.exp(kept.maps[0](task.logits_test))
    columns = ("task", "objective", "seed", "selector")
    expected = {name: str(facts[name]) for name in columns}
    rows = records.read_rows(central.FILE)
    row = next(row for row in rows if expected.items() <= row.items())
    assert metrics.nll(probs, task.y_test) == pytest.approx(float(row["nll"]), rel=1e-5)
    assert metrics.ece_ew(probs, task.y_test) == pytest.approx(float(row["ece_ew"]), rel=1e-5)

    kept.write(tmp_path / "maps.npz")
    assert central.KeptMaps.read(tmp_path / "maps.npz").facts == kept.facts


def test_a_ratio_of_equal_errors_is_one():
    measured = dict.fromkeys(central.MEASURED, "0.5")
    rows = []
    for task, objective, selector in product(
        ("a", "b"), ("h", "nll"), ("top_label", "class_wise", "score")
    ):
        setting = {"task": task, "objective": objective, "selector": selector, "seed": "0"}
        rows.append(measured | setting)
    experiment = central.Experiment(rows, {"a": "A", "b": "B"})
    assert experiment.ratio(central.LEVELS[0]) == (1.0, 1.0, 1.0, 2)
    alone = central.Experiment(rows, {"a": "A", "b": "A"})
    assert alone.ratio(central.LEVELS[0])[3] == 1  # two networks of one data set count once


def test_the_numbers_of_the_published_mode():
    """Five printed numbers within 5 %, and the sixth for one seed of three, as the pages say."""
    rows = records.read_rows(published.FILE)
    compared = published.reproductions(rows)
    within = [
        [abs(error / reproduction.printed - 1) <= 0.05 for error in reproduction.errors]
        for reproduction in compared
    ]
    assert within == [[True, False, False], [True], [True], [True], [True], [True]]
    assert all(reproduction.is_close for reproduction in compared)  # the mean of seeds within 12 %

    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for line in [*published.factor_table(rows), *published.table(rows)]:
        assert line in page


def test_the_verdicts_and_paired_intervals_are_those_of_the_page():
    pairs = records.read_rows(paper.PAIRS)
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for line in paper_page.pair_table(pairs):
        assert line in page
    shared = ROOT.parent / "shared"
    if (shared / "paper_tables.csv").exists():
        measured, printed = paper.ours(paper.read()), paper.theirs(shared)
        for line in paper_page.verdicts(measured, printed, pairs):
            assert line in page
        tables = paper_page.TABLES.read_text(encoding="utf-8")
        for line in paper_page.full_tables(measured, printed):
            assert line in tables
        assert "hcal's `ms` is penalised and better on every metric." in words(
            "docs/reproduction.md"
        )
        for task, metric in product(paper.TASKS, paper.METRICS):
            assert abs(measured[task, "ms", metric]) < abs(printed[task, "ms", metric])


def test_a_paired_interval_of_equal_predictions_is_zero():
    probs = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.1, 0.9]])
    rows = paper.pair_rows(probs, probs, np.array([0, 1, 1, 1]))
    assert {row["metric"] for row in rows} == set(paper.PAIRED_METRICS)
    assert all((row["change"], row["low"], row["high"]) == (0, 0, 0) for row in rows)


def test_the_printed_numbers_are_those_of_the_papers_tables():
    shared = ROOT.parent / "shared"
    if not (shared / "paper_tables.csv").exists():
        pytest.skip("needs ../shared/paper_tables.csv")
    printed = paper.theirs(shared)
    for configuration in published.CONFIGURATIONS:
        for metric, error in configuration.printed.items():
            assert printed[configuration.task, "h", metric] == pytest.approx(error)


@pytest.mark.slow
def test_the_published_mode_reproduces_on_the_present_code(capsys):
    """`python -m studies.published` trains anew: what it prints is what the results file says."""
    if not DATA.exists():
        pytest.skip("needs ../shared/data")
    assert published.check(DATA)
    recorded = published.reproductions(records.read_rows(published.FILE))
    assert capsys.readouterr().out.splitlines() == [str(number) for number in recorded]


def test_a_number_that_is_not_close_is_called_so():
    configuration = published.CONFIGURATIONS[0]
    far = published.Reproduction(configuration, "ece_s1", 0.0043, (0.0038, 0.0037, 0.0037))
    assert "(-13.2%, NOT within 12%)" in str(far)
    alone = published.Reproduction(configuration, "ece_s1", 0.0043, (0.0041,))
    assert "(-4.7%, within 5%)" in str(alone)


def test_the_published_map_breaks_the_order():
    flat = np.array([[0.0, 1.0, 2.0]])
    same = published.broken_order(flat, np.array([[0.1, 0.3, 0.6]]))
    assert same == {"changed_predictions": 0, "rows_with_inversions": 0}
    turned = published.broken_order(flat, np.array([[0.1, 0.6, 0.3]]))
    assert turned == {"changed_predictions": 1, "rows_with_inversions": 1}


def test_the_table_of_leads_is_that_of_the_page():
    rows = records.read_rows(whose_lead.FILE)
    page = (ROOT / "docs" / "why-not-the-papers-selector.md").read_text(encoding="utf-8")
    for line in whose_lead.table(rows):
        assert line in page
    shared = ROOT.parent / "shared"
    if (shared / "paper_tables.csv").exists():
        again = whose_lead.result_rows(shared)
        assert [row["method"] for row in again] == [row["method"] for row in rows]


def test_the_table_of_constants_is_that_of_the_page():
    rows = records.read_rows(sensitivity.FILE)
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for line in sensitivity.table(rows):
        assert line in page


def test_the_table_of_differences_is_that_of_the_page():
    rows = records.read_rows(differences.FILE)
    assert {row["variant"] for row in rows} == set(differences.VARIANTS)
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for line in differences.table(rows):
        assert line in page


def test_the_trap_is_the_one_of_the_results():
    rows = records.read_rows(selector_trap.FILE)
    page = selector_trap.PAGE.read_text(encoding="utf-8")
    for line in selector_trap.table(rows):
        assert line in page
    points = {row["point"]: row for row in rows}
    columns = ("cwece_a", "dkde_ce", "nll")
    start = {name: float(points["1"][name]) for name in columns}
    flat = {name: float(points["0.1"][name]) for name in columns}
    assert flat["cwece_a"] < start["cwece_a"] / 3
    assert flat["dkde_ce"] < start["dkde_ce"] / 25
    assert flat["nll"] > 3 * start["nll"]
