"""Methods over several tasks: exact tests of pairs, mean ranks, and the critical-difference diagram.

Tasks are the units: rows of one task say nothing about the next one. Two methods are compared by Wilcoxon's signed-rank
test over tasks, whose null distribution is exact for every number of tasks (Demšar, JMLR 2006; pairs instead of
Nemenyi's test: Benavoli, Corani, Mangili, JMLR 2016). A test of few tasks cannot reject at all, and then there is none.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import numpy as np
from scipy.stats import rankdata

from hcal.numerics import Float64
from hcal.results import OnePanel, Result
from hcal.text import JsonObject

#: How the p-values that are corrected together are called.
Name = TypeVar("Name", bound=Hashable)
if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Two methods differ if the corrected p-value is below this.
LEVEL: Final = 0.05
LabelPair = tuple[str, str]


def signed_rank_p_value(differences: Float64) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, exact for any number of tasks and for ties.

    Under the null hypothesis each difference (T,) is as often positive as negative. A difference of 0 keeps its rank
    and counts on neither side (Pratt).

    >>> signed_rank_p_value(np.array([0.1, 0.3, 0.2, 0.5, 0.4, 0.6]))
    0.03125
    >>> signed_rank_p_value(np.zeros(9))
    1.0
    """
    # Ranks of ties are halves: doubled ranks are whole numbers, by which sums can be counted.
    ranks = np.rint(2 * rankdata(np.abs(differences).round(12))).astype(np.int64)
    ranks = np.where(np.abs(differences) < 1e-12, 0, ranks)
    total = int(ranks.sum())
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for rank in ranks[ranks > 0].tolist():
        shifted = np.zeros_like(chance)
        shifted[rank:] = chance[: total + 1 - rank]
        chance = (chance + shifted) / 2
    positive = int(ranks[differences > 0].sum())
    tail = min(positive, total - positive)
    return float(min(2 * chance[: tail + 1].sum(), 1.0))


def fewest_tasks(n_methods: int) -> int:
    """Return from how many tasks on a difference between some of these methods can be proven at all.

    >>> fewest_tasks(2), fewest_tasks(3), fewest_tasks(10)
    (6, 7, 11)
    """
    pairs = n_methods * (n_methods - 1) // 2
    return 1 + int(np.ceil(np.log2(max(pairs, 1) / LEVEL)))


def holm(p: Mapping[Name, float]) -> dict[Name, float]:
    """Return p-values corrected for their number by Holm's step-down rule.

    >>> holm({"a": 0.01, "b": 0.03, "c": 0.04})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    order = sorted(p, key=lambda name: p[name])
    steps = np.arange(len(p), 0, -1) * np.array([p[name] for name in order])
    corrected = np.maximum.accumulate(np.minimum(steps, 1.0))
    return dict(zip(order, corrected.tolist(), strict=True))


def pairs_of_tasks(scores: Mapping[str, Float64]) -> dict[LabelPair, float]:
    """Return the corrected p-value of every pair of methods, from one score a task (T,); empty with too few tasks."""
    if not scores or len(next(iter(scores.values()))) < fewest_tasks(len(scores)):
        return {}
    p = {
        (first, second): signed_rank_p_value(scores[first] - scores[second])
        for first, second in combinations(scores, 2)
    }
    return holm(p)


@dataclass(frozen=True, repr=False)
class Ranking(OnePanel, Result):
    """Mean ranks of methods over tasks, and which of them no test can tell apart.

    Attributes
    ----------
    metric : str
    tasks : int
    ranks : dict of float
        The mean rank of each method, from the best; 1 is the best on every task, and ties share their rank.
    p_values : list of (str, str, float)
        Each pair of methods with its p-value: Wilcoxon's signed-rank test over tasks, with Holm's correction over
        all pairs. Empty if ``tasks`` is below ``fewest``.
    fewest : int
        From how many tasks on so many methods can be told apart at all.
    alike : list of tuple of str
        The largest sets of neighbours in the ranking of which no two differ at 5 %: the bars of the diagram.
    """

    schema: ClassVar[str] = "hcal/ranking/1"

    metric: str
    tasks: int
    ranks: dict[str, float]
    p_values: list[tuple[str, str, float]]
    fewest: int
    alike: list[tuple[str, ...]]

    @classmethod
    def of(cls, metric: str, losses: Mapping[str, Float64]) -> Ranking:
        """Return the ranking of methods by their losses on each task (T,); lower is better.

        >>> rng = np.random.default_rng(0)
        >>> losses = {"a": rng.random(9), "b": 2 + rng.random(9), "c": 2 + rng.random(9)}
        >>> ranking = Ranking.of("nll", losses)
        >>> ranking.ranks["a"], [sorted(methods) for methods in ranking.alike]
        (1.0, [['b', 'c']])
        """
        table = np.stack(list(losses.values()))
        means = rankdata(table.round(12), axis=0).mean(axis=1)
        order = np.argsort(means, kind="stable")
        labels = np.array(list(losses), dtype=object)[order].tolist()
        p_values = pairs_of_tasks(losses)
        return cls(
            metric=metric,
            tasks=table.shape[1],
            ranks=dict(zip(labels, means[order].tolist(), strict=True)),
            p_values=[(first, second, p) for (first, second), p in p_values.items()],
            fewest=fewest_tasks(len(labels)),
            alike=_alike(labels, p_values),
        )

    def to_records(self) -> list[JsonObject]:
        """Return one row for each method."""
        return [{"method": label, "mean rank": rank} for label, rank in self.ranks.items()]

    def _headline(self) -> list[str]:
        ranks = ", ".join(f"{label} {rank:.2f}" for label, rank in self.ranks.items())
        lines = [f"Mean ranks by {self.metric} over {self.tasks} tasks: {ranks}."]
        if self.tasks < self.fewest:
            lines.append(
                f"No test: {self.tasks} tasks cannot tell {len(self.ranks)} methods apart; from "
                f"{self.fewest} tasks on they can."
            )
        lines += [f"No difference is proven among {', '.join(labels)}." for labels in self.alike]
        return lines

    @property
    def _size(self) -> tuple[float, float]:
        return 7.0, 1.2 + 0.22 * len(self.ranks)

    def _draw_on(self, ax: Axes) -> None:
        """Draw labels on both sides of a line of ranks, the better half on the left, and bars below the line."""
        count = len(self.ranks)
        left = (count + 1) // 2
        bars = len(self.alike)
        for place, (label, rank) in enumerate(self.ranks.items()):
            on_left = place < left
            step = place if on_left else count - 1 - place
            height = -(bars + 1) * 0.5 - step
            edge = 0.6 if on_left else count + 0.4
            ax.plot([rank, rank, edge], [0, height, height], color="black", linewidth=0.8)
            ax.text(
                edge,
                height,
                f"{label} ({rank:.2f}) " if on_left else f" ({rank:.2f}) {label}",
                ha="right" if on_left else "left",
                va="center",
                fontsize=9,
            )
        for number, labels in enumerate(self.alike):
            ends = [self.ranks[labels[0]] - 0.06, self.ranks[labels[-1]] + 0.06]
            height = -0.5 * (number + 1)
            ax.plot(ends, [height, height], color="#0072b2", linewidth=4, solid_capstyle="butt")

        lowest = -(bars + 1) * 0.5 - left
        ax.set(xlim=(0.5, count + 0.5), ylim=(lowest, 0))
        ax.set_xlabel(f"mean rank by {self.metric} over {self.tasks} tasks (1 is best)")
        ax.xaxis.set_label_position("top")
        ax.xaxis.tick_top()
        ax.set_xticks(range(1, count + 1))
        ax.set_yticks([])
        for side in ("left", "right", "bottom"):
            ax.spines[side].set_visible(False)


def _alike(labels: list[str], p_values: Mapping[LabelPair, float]) -> list[tuple[str, ...]]:
    """Return the largest runs of at least two labels, in their order, of which no pair differs."""
    if not p_values:
        return []
    runs: list[tuple[str, ...]] = []
    last_end = 0
    for start in range(len(labels)):
        end = start + 1
        while end < len(labels) and _none_differs(labels[start : end + 1], p_values):
            end += 1
        if end - start > 1 and end > last_end:
            runs.append(tuple(labels[start:end]))
            last_end = end
    return runs


def _none_differs(labels: list[str], p_values: Mapping[LabelPair, float]) -> bool:
    """Return whether no pair of these methods differs."""
    pairs = combinations(labels, 2)
    return all(p_values.get(pair, p_values.get(pair[::-1], 1.0)) >= LEVEL for pair in pairs)
