"""The paper's theorems 5, 6 and 7, on windows of events, checked by experiment and by enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.h_calibration.definition import sliding_means
from studies.synthetic import make_synthetic
from studies.theory import Check

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WindowStatistics:
    """T₁, T₂, T₃ of one event, interval and subset (eq:t1_definition to eq:t3_definition).

    Examples
    --------
    >>> WindowStatistics(2.0, 1.0, 4.0).error
    0.25
    """

    t1: float
    t2: float
    t3: float

    @property
    def error(self) -> float:
        """𝒯 = |T₁ − T₂| / T₃ (eq:thm7regterm)."""
        return abs(self.t1 - self.t2) / self.t3


def exact_statistics(
    p: ArrayLike,
    occurred: ArrayLike,
    interval: tuple[float, float],
    subset: ArrayLike | None = None,
) -> WindowStatistics:
    """Return T₁, T₂, T₃ of Thm 7 with their boundary terms.

    Parameters
    ----------
    p : array of shape (N,)
        Probabilities of one event A.
    occurred : array of shape (N,)
        Whether Yᵢ ∈ A.
    interval : (R₁, R₂)
        0 ≤ R₁ < R₂ ≤ 1. Events strictly inside count twice, events on a boundary once.
    subset : array of indices, optional
        Q, a subset of the events inside the interval; by default all of them.

    Returns
    -------
    WindowStatistics

    Examples
    --------
    >>> exact_statistics([0.25, 0.5, 1.0], [False, True, True], (0.25, 0.75))
    WindowStatistics(t1=1.0, t2=0.25, t3=3.0)
    """
    low, high = interval
    if not 0 <= low < high <= 1:
        raise ValueError(f"the interval needs 0 <= R1 < R2 <= 1, got {interval}")
    value = np.asarray(p, dtype=np.float64)
    mark = np.asarray(occurred, dtype=bool)
    inside = np.flatnonzero((low <= value) & (value <= high))
    chosen = inside if subset is None else np.asarray(subset)
    if not len(chosen) or not np.isin(chosen, inside).all():
        raise ValueError("the subset must be a non-empty set of events inside the interval")
    q = value[chosen]
    o = mark[chosen]
    times = np.where((q == low) | (q == high), 1.0, 2.0)
    return WindowStatistics(
        float((times * (1 - q))[o].sum()), float((times * q)[~o].sum()), float(times.sum())
    )


def check_theorem_5(draws: int = 40, seed: int = 0) -> Check:
    """The rate of an event in a window converges to the mean of its true probabilities.

    Examples
    --------
    >>> check_theorem_5(draws=3).column("M")[:3]
    [10, 20, 50]
    """
    task = make_synthetic("temperature", n_classes=10, n_test=4000, random_state=seed)
    true = task.true_test
    order = np.argsort(true.ravel(), kind="stable")
    rng = np.random.default_rng(seed)
    sizes = (10, 20, 50, 100, 200, 500, 1000)
    squares: dict[int, list[Array]] = {m: [] for m in sizes}
    for _ in range(draws):
        y = (true.cumsum(axis=1) > rng.random((len(true), 1))).argmax(axis=1)
        noise = (np.eye(10)[y] - true).ravel()[order]
        for m in sizes:
            squares[m].append(sliding_means(noise, m)[::m] ** 2)
    rows = []
    for m in sizes:
        level = sliding_means(true.ravel()[order], m)[::m]
        spread = sliding_means((true * (1 - true)).ravel()[order], m)[
            ::m
        ]  # variance if independent, times m
        mean_square = np.array(squares[m]).mean(axis=0)
        middle = (level > 0.3) & (level < 0.7)
        ratio = float((mean_square * m)[middle].sum() / spread[middle].sum())
        rms = (float(np.sqrt(mean_square.mean())), float(np.sqrt(mean_square[middle].mean())))
        rows.append((m, *rms, 0.5 / m**0.5, ratio))
    return Check(
        "Theorem 5",
        "the label rate of a window converges (in mean square) to the mean of the true "
        "probabilities",
        all(r[1] <= r[3] and r[2] <= r[3] for r in rows),
        (
            "M",
            "RMS gap, all windows",
            "RMS gap, windows at 0.3–0.7",
            "bound ½/√M",
            "variance / independent",
        ),
        rows,
        "Pooled atomic events of one row exclude each other, so the events of a window are not "
        "independent; the last column (windows at 0.3–0.7) shows that this lowers the variance, "
        "so the bound stays valid.",
    )


def check_theorem_6(kappa: float = 0.1) -> Check:
    """The probability of a gap of at least κ falls exponentially with the window length.

    Examples
    --------
    >>> check_theorem_6().holds
    True
    """
    sizes = (10, 25, 50, 100, 200, 400, 800)
    spread = {m: np.linspace(0.3, 0.7, m) for m in sizes}
    rows = [
        (
            m,
            tail_probability(p, kappa),
            chernoff_bound(p, kappa),
            2 * float(np.exp(-2 * m * kappa**2)),
        )
        for m, p in spread.items()
    ]
    slope = float(np.log(rows[-1][1] / rows[-2][1]) / (sizes[-1] - sizes[-2]))
    rate = float(-np.log(rows[-1][2] / 2) / sizes[-1])
    ordered = all(r[1] <= r[2] * (1 + 1e-9) and r[2] <= r[3] * (1 + 1e-9) for r in rows)
    at_200 = tail_probability(spread[200], 0.05), min(chernoff_bound(spread[200], 0.05), 1.0)
    return Check(
        "Theorem 6",
        f"the probability of a gap of at least κ = {kappa:g} falls exponentially with M",
        ordered and abs(slope / -rate - 1) < 0.1,
        ("M", "exact probability", "Chernoff bound", "Hoeffding bound"),
        rows,
        "Exact (Poisson-binomial, true probabilities 0.3–0.7). Between M = 400 and 800 the "
        f"logarithm falls by {-slope:.4f} per event; the rate γ(κ) of the proof is {rate:.4f}. The "
        "proof takes identically distributed events; with unequal ones the averaged cumulant "
        "gives the same bound. The decay is real but slow for small κ: at the paper's M = 200 a "
        f"gap of at least 0.05 still has probability {at_200[0]:.3f} (bound {at_200[1]:.2f}), so a "
        "window's error at M = 200 is small, not negligible. A bound above 1 says nothing: here "
        "that is M = 10 and 25.",
    )


def tail_probability(p: Array, kappa: float) -> float:
    """Return P(|mean of independent Bernoulli(p) − mean p| ≥ κ), exactly.

    Examples
    --------
    >>> tail_probability(np.array([0.5, 0.5]), 0.5)
    0.5
    """
    distribution = np.ones(1)
    for q in p:
        distribution = np.convolve(distribution, [1 - q, q])
    gap = np.abs(np.arange(len(p) + 1) / len(p) - p.mean())
    return float(distribution[gap >= kappa - 1e-12].sum())


def chernoff_bound(p: Array, kappa: float) -> float:
    """Return e^{−Mγ(κ)} + e^{−Mγ(−κ)}, γ from the averaged cumulant generating function (proof of Thm 6).

    Examples
    --------
    >>> chernoff_bound(np.full(100, 0.5), 0.1) < 2 * float(np.exp(-2 * 100 * 0.01))
    True
    """
    from scipy.optimize import minimize_scalar

    def exponent(t: float, sign: int) -> float:
        cumulant = np.log(1 - p + p * np.exp(sign * t)) - sign * t * p
        return float(cumulant.sum() - t * kappa * len(p))

    best = [
        minimize_scalar(exponent, bounds=(0, 60), args=(s,), method="bounded").fun for s in (1, -1)
    ]
    return float(np.exp(best[0]) + np.exp(best[1]))


def check_theorem_7(cases: int = 40, seed: int = 0) -> Check:
    """The rate condition and the differentiable condition have the same smallest ε.

    Examples
    --------
    >>> check_theorem_7(cases=3).holds
    True
    """
    rng = np.random.default_rng(seed)
    rows = []
    for n in (3, 4, 5, 6):
        gaps, epsilons = [], []
        for _ in range(cases):
            p = rng.choice(
                np.linspace(0.1, 0.9, 9), size=n
            )  # a grid, so that ties and boundaries occur
            o = rng.random(n) < p
            by_rate = smallest_epsilon_rate(p, o)
            by_t = smallest_epsilon_windows(p, o)
            gaps.append(abs(by_rate - by_t))
            epsilons.append(by_t - float(np.abs(o - p).max()))
        rows.append((n, cases, max(gaps), float(np.abs(epsilons).max())))
    return Check(
        "Theorem 7",
        "|a − rate| ≤ ε + δ for all intervals and subsets if and only if |T₁ − T₂|/T₃ ≤ ε for all "
        "of them",
        all(r[2] < 1e-9 for r in rows),
        (
            "events",
            "cases",
            "largest difference of the two smallest ε",
            "difference to max |o − p|",
        ),
        rows,
        "Exhaustive over all subsets and all intervals. Read literally, both conditions range "
        "over subsets of one event, so their smallest ε is max |o − p|: with observed labels only "
        "near-certain, always right predictions satisfy them. The statement becomes useful "
        "through Thms 5 and 6, for windows of many events chosen by probability and not by label, "
        "which is what the algorithm does.",
    )


def check_densities(n: int = 200_000, seed: int = 0) -> Check:
    """The sums of Theorem 7 estimate the integrals of two densities over an interval.

    τ₁(a) and τ₀(a) are the densities of the probability p = a of an event, among all rows, with the event happening
    and not happening. With p uniform they are μ(a) and 1 − μ(a).

    Examples
    --------
    >>> check_densities(n=20_000).holds
    True
    """
    rng = np.random.default_rng(seed)
    rows = []
    holds = True
    for name, power in (("calibrated, μ = p", 1), ("too sure, μ = p²", 2)):
        p = rng.random(n)
        occurred = rng.random(n) < p**power
        for low, high in ((0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
            sums = exact_statistics(p, occurred, (low, high))
            # Events inside the interval count twice in T₁, T₂ and T₃.
            by_sums = (sums.t2 / (2 * n), sums.t1 / (2 * n))
            integrals = (
                _integral_between(power, low, high, happened=False),
                _integral_between(power, low, high, happened=True),
            )
            standard_error = 0.5 / np.sqrt(n)
            apart = max(abs(a - b) for a, b in zip(by_sums, integrals, strict=True))
            holds = holds and apart < 4 * standard_error
            equal = abs(integrals[0] - integrals[1]) < 1e-12
            holds = holds and equal == (power == 1)
            rows.append(
                (name, f"{low:g} to {high:g}", integrals[0], by_sums[0], integrals[1], by_sums[1])
            )
    return Check(
        "Theorem 7 in densities",
        "T₂/N and T₁/N estimate the integrals of a·τ₀(a) and (1 − a)·τ₁(a) over an interval, which "
        "are equal for every interval if and only if the event is calibrated",
        holds,
        ("truth", "interval", "∫ a·τ₀", "T₂/N", "∫ (1 − a)·τ₁", "T₁/N"),
        rows,
        f"p is uniform and N = {n:,}. Calibration at a says that a is the share "
        f"τ₁/(τ₁ + τ₀) of rows "
        "where the event happens, so a·τ₀ = (1 − a)·τ₁. The integral over an interval needs no "
        "estimate of a density, only two sums. The paper divides by T₃, the rows inside the "
        "interval, and not by N; this scales both sides alike.",
    )


def _integral_between(power: int, low: float, high: float, *, happened: bool) -> float:
    """Return the integral of (1 − a)·μ(a), or of a·(1 − μ(a)) if the event did not happen, for μ(a) = a^power."""

    def antiderivative(a: float) -> float:
        if happened:
            return float(a ** (power + 1) / (power + 1) - a ** (power + 2) / (power + 2))
        return float(a**2 / 2 - a ** (power + 2) / (power + 2))

    return antiderivative(high) - antiderivative(low)


def _subsets(n: int) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(range(n), r) for r in range(1, n + 1)))


def smallest_epsilon_rate(p: Array, o: NDArray[np.bool_]) -> float:
    """Return the smallest ε for which |a − rate(Q)| ≤ ε + δ for every interval and subset.

    For a subset with smallest and largest probability l and u, the tightest intervals give rate − u and
    l − rate.

    Examples
    --------
    >>> round(smallest_epsilon_rate(np.array([0.25, 0.5]), np.array([False, True])), 3)
    0.5
    """
    worst = -np.inf
    for q in map(list, _subsets(len(p))):
        rate = o[q].mean()
        worst = max(worst, rate - p[q].max(), p[q].min() - rate)
    return float(worst)


def smallest_epsilon_windows(p: Array, o: NDArray[np.bool_]) -> float:
    """Return the largest |T₁ − T₂|/T₃ over every subset and interval, boundary terms included.

    Examples
    --------
    >>> round(smallest_epsilon_windows(np.array([0.25, 0.5]), np.array([False, True])), 3)
    0.5
    """
    values = np.unique(p)
    # T depends on an interval only through which events lie on its ends: ends at values and just outside.
    lows = np.r_[0.0, values]
    highs = np.r_[values, 1.0]
    worst = 0.0
    for q in map(list, _subsets(len(p))):
        for low in lows[lows <= p[q].min()]:
            for high in highs[highs >= p[q].max()]:
                if low < high:
                    worst = max(worst, exact_statistics(p, o, (low, high), q).error)
    return worst
