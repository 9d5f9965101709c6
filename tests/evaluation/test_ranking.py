"""Methods over several tasks: tests that keep their level with few tasks, ranks, and the diagram."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from hcal.evaluation.comparison_table import Cell, Comparison
from hcal.evaluation.ranking import Ranking, fewest_tasks, signed_rank_p_value


def table(scores: np.ndarray) -> Comparison:
    """A comparison of methods m0, m1, … with these scores (tasks, methods)."""
    cells = []
    for (task, method), value in np.ndenumerate(scores):
        cells.append(Cell(f"t{task}", f"m{method}", "ts", {"nll": float(value)}))
    return Comparison(cells, ["nll"])


def test_the_signed_rank_test_is_that_of_all_signs() -> None:
    rng = np.random.default_rng(0)
    with_ties = np.array([0.1, -0.1, 0.2, 0.0, 0.3, 0.3, -0.2])
    for differences in (rng.normal(size=8), with_ties):
        sizes = np.abs(differences).round(12)
        ranks = [(sizes < s).sum() + ((sizes == s).sum() + 1) / 2 for s in sizes]
        ranks = np.array(ranks)
        ranks[sizes == 0] = 0
        observed = ranks @ np.sign(differences)
        signs = itertools.product([-1, 1], repeat=len(ranks))
        sums = np.array([ranks @ np.array(sign) for sign in signs])
        share = (np.abs(sums) >= abs(observed) - 1e-9).mean()
        assert signed_rank_p_value(differences) == pytest.approx(share)


@pytest.mark.parametrize("tasks", [2, 5, 6, 7, 10, 30])
def test_equal_methods_are_told_apart_in_five_of_a_hundred_comparisons_at_most(tasks: int) -> None:
    """0.3 drew few tasks with replacement: 14 % at 6 tasks, 16 % at 10."""
    rng = np.random.default_rng(tasks)
    rejected = 0
    for _ in range(200):
        differences = table(rng.gamma(1.0, size=(tasks, 3))).differences("nll")
        rejected += any(d.p_value < 0.05 for d in differences.values())
    assert rejected <= 0.075 * 200
    if tasks < fewest_tasks(3):
        assert np.isnan(differences["m0"].low)
        assert table(np.zeros((tasks, 3))).ties("nll") == {"m0"}


def test_the_best_of_many_equal_methods_is_not_better() -> None:
    """The rows that choose the best one are those that it is tested on."""
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(200):
        scores = rng.normal(size=10)
        drawn = scores[:, None] + rng.normal(size=(10, 200))
        cells = []
        for i in range(10):
            cells.append(Cell("t", f"m{i}", "ts", {"nll": scores[i]}, drawn={"nll": drawn[i]}))
        differences = Comparison(cells, ["nll"]).differences("nll")
        rejected += any(d.p_value < 0.05 for d in differences.values())
        excluded = {label for label, d in differences.items() if d.low > 0}
        assert excluded <= {label for label, d in differences.items() if d.p_value < 0.05}
    assert rejected <= 0.075 * 200


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(2)
    of_task = rng.normal(size=(12, 1))
    of_method = np.array([0.0, 0.5, 0.5])
    scores = of_task + of_method + 0.05 * rng.normal(size=(12, 3))
    comparison = table(scores)
    differences = comparison.differences("nll")
    assert comparison.ties("nll") == {"m0"}
    assert differences["m1"].p_value < 0.01
    assert differences["m1"].low < 0.5 < differences["m1"].high
    ranking = comparison.ranking("nll")
    assert ranking.ranks["m0"] == 1.0
    assert ranking.alike == [("m1", "m2")]
    assert "signed-rank test over tasks" in str(comparison)


def test_a_few_tasks_have_no_test_and_say_so(tmp_path: Path) -> None:
    comparison = table(np.random.default_rng(3).random((4, 3)))
    words = "4 tasks cannot tell 3 methods apart; from 7 tasks on they can"
    assert words in str(comparison)
    ranking = comparison.ranking("nll")
    assert words in str(ranking)
    assert ranking.p_values == []
    assert sum(ranking.ranks.values()) == pytest.approx(1 + 2 + 3)
    ax = ranking.plot()
    ax.figure.savefig(tmp_path / "ranks.png")
    assert "mean rank by nll over 4 tasks" in ax.get_xlabel()


def test_ranks_of_ties_are_shared() -> None:
    losses = {"a": np.array([1.0, 1.0]), "b": np.array([1.0, 2.0]), "c": np.array([3.0, 1.0])}
    assert Ranking.of("nll", losses).ranks == {"a": 1.5, "b": 2.25, "c": 2.25}


def test_columns_and_digits_of_latex_and_markdown_are_chosen() -> None:
    comparison = table(np.array([[0.12345, 0.2]]))
    latex = comparison.to_latex(columns=["nll"], digits=2)
    assert "method & nll" in latex
    assert "0.12" in latex
    assert "0.123" not in latex
    assert "| m1 | 0.200 |" in comparison.to_markdown(columns=["nll"], digits=3)
    with pytest.raises(ValueError, match="'ece' is not a column; they are brier"):
        comparison.to_latex(columns=["ece"])
    with pytest.raises(ValueError, match="digits must be an integer from 0 to 15"):
        comparison.to_latex(digits=-1)
    with pytest.raises(ValueError, match="columns is a list of names"):
        comparison.to_markdown(columns="nll")
