"""The studies of the paper: tasks, the numbers of the central experiment, the table of differences."""

from __future__ import annotations

import re

import numpy as np
import pytest

from helpers import DATA, ROOT, synthetic
from studies import central, differences, records, selector_trap, tasks


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
    experiment = central.Experiment(central._rows(central.RESULTS))
    pages = [
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("docs/central-experiment.md", "README.md")
    ]
    for start in central.STARTS:
        value, low, high, _ = experiment.ratio("nll", start, "top-label", experiment.tasks)
        said = rf"{value:.2f} \((95 % interval )?{low:.2f} to {high:.2f}\)"
        assert all(re.search(said, page) for page in pages), said
    assert central.PAGE.read_text(encoding="utf-8") == "\n".join(central.page(experiment)) + "\n"


def test_the_rivals_are_losses():
    import torch

    probs, y = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    values = {
        name: float(central.new_objective(name)(probs, y))
        for name in ("nll", "brier", "focal", "smoothing")
    }
    assert values == pytest.approx(
        {"nll": 0.6931, "brier": 0.5, "focal": 0.0866, "smoothing": 0.6931}, abs=1e-4
    )


def test_a_ratio_of_equal_errors_is_one():
    row = {
        "schedule": "early-stop",
        "start": "identity",
        "seed": "0",
        "n_classes": "3",
    } | dict.fromkeys(central.MEASURED, "0.5")
    rows = [
        row | {"task": task, "objective": objective, "selector": selector}
        for task in ("a", "b")
        for objective in ("uncal", "h", "nll")
        for selector in ("top-label", "class-wise", "nll")
    ]
    found = central.Experiment(rows)
    assert found.ratio("nll", "identity", "top-label", found.tasks) == (1.0, 1.0, 1.0, 2)
    assert found.ratio("brier", "identity", "top-label", found.tasks)[3] == 0


def test_the_table_of_differences_is_that_of_the_page():
    rows = records.read_rows(differences.FILE)
    assert {row["version"] for row in rows} == {"0.3.0"}
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for line in differences.table(rows):
        assert line in page


def test_the_trap_is_the_one_of_the_results():
    rows = selector_trap.read()
    page = selector_trap.PAGE.read_text(encoding="utf-8")
    for line in selector_trap.table(rows):
        assert line in page
    points = {row["point"]: row for row in rows}
    start, flat = (
        {k: float(points[p][k]) for k in ("cwece_a", "dkde_ce", "nll")} for p in ("1", "0.1")
    )
    assert flat["cwece_a"] < start["cwece_a"] / 3
    assert flat["dkde_ce"] < start["dkde_ce"] / 25
    assert flat["nll"] > 3 * start["nll"]
