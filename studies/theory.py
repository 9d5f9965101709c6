"""The paper's theorems 1, 2 and 4, checked by experiment on worlds whose truth is known.

Each ``check_*`` function returns a :class:`Check`: the claim, the numbers, and whether they bear it out.
Where a quantity can be computed exactly it is; simulation is used for what is random by nature. Theorems
5 to 7 are in :mod:`studies.theory_windows`, the propositions in :mod:`studies.theory_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.synthetic import make_synthetic

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One claim of the paper and what the experiment showed.

    Attributes
    ----------
    label : str
        "Theorem 1" and so on; the number is the label in the paper's source.
    claim : str
    holds : bool
        Whether every number is on the side that the claim says.
    columns, rows : the numbers
    remark : str
        What a reader should know beside the verdict: where a bound says nothing, what a proof assumes.
    """

    label: str
    claim: str
    holds: bool
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    remark: str = ""

    def column(self, name: str) -> list[Any]:
        """Return one column of the numbers."""
        return [row[self.columns.index(name)] for row in self.rows]


def events_of(n_classes: int) -> list[tuple[int, ...]]:
    """Return every event A but the impossible and the certain one.

    Examples
    --------
    >>> events_of(3)
    [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    """
    return list(chain.from_iterable(combinations(range(n_classes), r) for r in range(1, n_classes)))


@dataclass(frozen=True)
class World:
    """A finite feature space: atoms with their mass, true and predicted probabilities (atoms, K)."""

    mass: Array
    true: Array
    predicted: Array

    @property
    def h(self) -> float:
        """The smallest h of Def. h-calibrated: the largest total variation over the atoms."""
        return float(0.5 * np.abs(self.true - self.predicted).sum(axis=1).max())


def random_world(
    rng: np.random.Generator, atoms: int = 12, n_classes: int = 4, groups: int = 4
) -> World:
    """Return a world in which several atoms share a prediction, as level sets must for Thm 1 to say much.

    Examples
    --------
    >>> random_world(np.random.default_rng(0)).true.shape
    (12, 4)
    """
    true = rng.dirichlet(np.full(n_classes, 0.7), size=atoms)
    group = rng.integers(0, groups, size=atoms)
    centre = rng.dirichlet(np.ones(n_classes), size=groups)
    closeness = rng.uniform()
    means = np.array(
        [true[group == g].mean(axis=0) if (group == g).any() else centre[g] for g in range(groups)]
    )
    predicted = closeness * means + (1 - closeness) * centre
    return World(rng.dirichlet(np.ones(atoms)), true, predicted[group])


def conditional_error(world: World, value: Array, true: Array, predicted: Array) -> float:
    """Return max over level sets of ``value`` of |E[true | value] − predicted|, in the sup norm.

    Parameters
    ----------
    world : World
    value : array of shape (atoms, d)
        What is conditioned on.
    true, predicted : arrays of shape (atoms, m)

    Returns
    -------
    float
    """
    _, level = np.unique(value.round(12), axis=0, return_inverse=True)
    worst = 0.0
    for g in np.unique(level):
        rows = level.ravel() == g
        gap = np.average(true[rows] - predicted[rows], axis=0, weights=world.mass[rows])
        worst = max(worst, float(np.abs(gap).max()))
    return worst


def check_theorem_1(worlds: int = 400, seed: int = 0) -> Check:
    """h-calibration implies canonical calibration with error at most h.

    Examples
    --------
    >>> check_theorem_1(worlds=20).holds
    True
    """
    rng = np.random.default_rng(seed)
    rows = []
    for n_classes in (2, 4, 10):
        pairs = []
        for _ in range(worlds):
            w = random_world(rng, n_classes=n_classes)
            pairs.append((w.h, conditional_error(w, w.predicted, w.true, w.predicted)))
        h, error = np.array(pairs).T
        rows.append(
            (n_classes, worlds, float(h.mean()), float(error.mean()), float((error / h).max()))
        )
    return Check(
        "Theorem 1",
        "h-calibration is sufficient for canonical calibration with error at most h",
        all(r[-1] <= 1 + 1e-9 for r in rows),
        ("K", "worlds", "mean h", "mean canonical error", "largest error / h"),
        rows,
        "Exact: expectations over a finite feature space, no sampling. The last arrow of the "
        "paper's proof goes from conditioning on one event's probability to conditioning on the "
        "whole vector, which does not follow from the line above it; the theorem does (condition "
        "on the vector at once), and the vector is what is conditioned on here. The converse "
        "fails: next entry.",
    )


def check_counterexample(seed: int = 0) -> Check:
    """Canonical calibration does not imply h-calibration: the uniform predictor.

    Examples
    --------
    >>> check_counterexample().holds
    True
    """
    rows = []
    for n_classes in (2, 10, 100):
        uniform = np.full((n_classes, n_classes), 1 / n_classes)
        world = World(np.full(n_classes, 1 / n_classes), np.eye(n_classes), uniform)
        canonical = conditional_error(world, uniform, world.true, uniform)
        task = make_synthetic("calibrated", n_classes=n_classes, n_test=2000, random_state=seed)
        noisy = float(0.5 * np.abs(task.true_test - 1 / n_classes).sum(axis=1).max())
        rows.append((n_classes, canonical, world.h, noisy))
    return Check(
        "Counter-example",
        "the uniform predictor on balanced classes is canonically calibrated and not h-calibrated",
        all(r[1] < 1e-12 and r[2] >= 1 - 1 / r[0] - 1e-12 for r in rows),
        ("K", "canonical error", "h, labels certain", "h, Gaussian classes"),
        rows,
        "This is the trap behind near-uniform predictors that win class-wise and canonical tables.",
    )


def check_theorem_2(n_classes: int = 4, rows_n: int = 40, seed: int = 0) -> Check:
    """h-calibration and δ-ε boundedness are the same: ε*(δ) ≤ h ≤ ε*(δ) + 2δ, and ε* → h.

    Examples
    --------
    >>> check_theorem_2().holds
    True
    """
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(n_classes), size=rows_n)
    predicted = 0.6 * true + 0.4 * rng.dirichlet(np.ones(n_classes), size=rows_n)
    events = events_of(n_classes)
    mu = np.array([true[:, a].sum(axis=1) for a in events])
    pc = np.array([predicted[:, a].sum(axis=1) for a in events])
    h = float(np.abs(mu - pc).max())
    rows = []
    for delta in (0.2, 0.1, 0.05, 0.02, 0.01, 0.001):
        bound = smallest_epsilon(mu, pc, delta)
        sampled = _random_subsets_epsilon(mu, pc, delta, rng)
        rows.append((delta, bound, sampled, h, bound + 2 * delta))
    holds = all(r[2] <= r[1] + 1e-12 and r[1] <= h + 1e-12 and h <= r[4] + 1e-12 for r in rows)
    return Check(
        "Theorem 2",
        "h-calibration is equivalent to δ-ε boundedness",
        holds,
        ("δ", "ε*(δ), exact", "ε(δ), random subsets", "h", "ε*(δ) + 2δ"),
        rows,
        "All events of all sizes. The definition admits subsets Q of one sample, so the largest "
        "violation is always reached by a single sample: larger Q only average it away.",
    )


def smallest_epsilon(mu: Array, pc: Array, delta: float) -> float:
    """Return the smallest ε of Def. δ-ε bounded, exactly, for one δ.

    For given a, the mean over Q lies between its extremes, so one-sample subsets suffice; |a − μ_i| is convex
    in a, so the ends of the admissible range of a suffice.

    Parameters
    ----------
    mu, pc : arrays of shape (events, N)
        True and predicted probabilities of each event.
    delta : float

    Returns
    -------
    float

    Examples
    --------
    >>> round(smallest_epsilon(np.array([[0.7]]), np.array([[0.5]]), 0.1), 3)
    0.2
    """
    low = np.maximum(delta, pc - delta)
    high = np.minimum(1 - delta, pc + delta)
    return float(np.maximum(np.abs(low - mu), np.abs(high - mu)).max() - delta)


def _random_subsets_epsilon(mu: Array, pc: Array, delta: float, rng: np.random.Generator) -> float:
    """Return the largest violation over random intervals and random subsets: never above the exact one."""
    worst = -np.inf
    for _ in range(2000):
        event = rng.integers(len(pc))
        a = rng.uniform(delta, 1 - delta)
        inside = np.flatnonzero(np.abs(pc[event] - a) <= delta)
        if inside.size:
            subset = rng.choice(inside, size=rng.integers(1, inside.size + 1), replace=False)
            worst = max(worst, abs(a - mu[event][subset].mean()) - delta)
    return float(worst)


def check_theorem_4(worlds: int = 400, seed: int = 0) -> Check:
    """h-𝒜 calibration implies top-label and class-wise calibration with error at most h.

    Examples
    --------
    >>> check_theorem_4(worlds=20).holds
    True
    """
    rng = np.random.default_rng(seed)
    pairs_of_level: dict[str, list[tuple[float, float]]] = {"top-label": [], "class-wise": []}
    for _ in range(worlds):
        w = random_world(rng, n_classes=5)
        top = w.predicted.argmax(axis=1)
        pick = (np.arange(len(top)), top)
        for level, pc, mu in (
            ("top-label", w.predicted[pick], w.true[pick]),
            ("class-wise", w.predicted[:, 0], w.true[:, 0]),
        ):
            h = float(np.abs(mu - pc).max())
            error = conditional_error(w, pc[:, None], mu[:, None], pc[:, None])
            pairs_of_level[level].append((h, error))
    rows = []
    for level, pairs in pairs_of_level.items():
        h_all, error_all = np.array(pairs).T
        ratio = float((error_all / h_all).max())
        rows.append((level, worlds, float(h_all.mean()), float(error_all.mean()), ratio))
    return Check(
        "Theorem 4",
        "h-𝒜 calibration is sufficient for top-label and for class-wise calibration with error at "
        "most h",
        all(r[-1] <= 1 + 1e-9 for r in rows),
        ("level", "worlds", "mean h", "mean error", "largest error / h"),
        rows,
    )
