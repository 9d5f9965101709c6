"""What the paper says beside its numbered bounds, and what its pooled objective cannot see, by experiment.

Proposition 1, Theorem 3, the three modes of Theorem 5, the degenerate case, the kernel and pseudo-sampling
views, and two counter-examples: see :mod:`studies.theory` for what a :class:`~studies.theory.Check` is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.metrics import brier, cwece_a, h_error
from studies.synthetic import make_synthetic
from studies.theory import Array, Check, World, events_of, smallest_epsilon


def draw_labels(true: Array, rng: np.random.Generator) -> np.ndarray:
    """Return a label for every row of true probabilities (N, K).

    Examples
    --------
    >>> draw_labels(np.array([[0.0, 1.0]] * 3), np.random.default_rng(0))
    array([1, 1, 1])
    """
    is_above = true.cumsum(axis=1) > rng.random((len(true), 1))
    return np.asarray(is_above.argmax(axis=1))


def objective(probs: Array, y: np.ndarray, **settings: Any) -> float:
    """Return the pooled objective of the library for probabilities (N, K) and labels (N,).

    Examples
    --------
    >>> objective(np.full((2, 2), 0.5), np.array([0, 1]))
    0.0
    """
    import torch

    from hcal.h_calibration.loss import HCalibrationLoss

    return float(HCalibrationLoss(**settings)(torch.from_numpy(probs), torch.from_numpy(y)))


def check_proposition_1(seed: int = 0) -> Check:
    """Labels are not the truth: draw them twice from the same features.

    Examples
    --------
    >>> check_proposition_1().holds
    True
    """
    rng = np.random.default_rng(seed)
    rows = []
    for n_classes in (2, 10, 100):
        world = make_synthetic("calibrated", n_classes=n_classes, n_test=5000, random_state=seed)
        true = world.true_test
        first = draw_labels(true, rng)
        second = draw_labels(true, rng)
        differs = float((first != second).mean())
        is_sure = true.max(axis=1) > 0.99
        is_wrong = first != true.argmax(axis=1)
        wrong = float(is_wrong[is_sure].mean())
        rows.append((n_classes, differs, int(is_sure.sum()), wrong))
    holds = all(differs > 0.02 for _, differs, _, _ in rows)
    return Check(
        "Proposition 1",
        "the true probability given the features is not the one-hot vector of the label",
        holds,
        ("K", "second label differs", "rows above 0.99", "of these wrong"),
        rows,
        "A second label drawn for the same features differs from the first in this share of the "
        "rows: one label is one draw, and a score that treats it as the truth is an estimate from "
        "one draw.",
    )


def check_theorem_3(n_classes: int = 4, rows_n: int = 60, seed: int = 0) -> Check:
    """h-𝒜 calibration and δ-ε-𝒜 boundedness are the same, and weaker than h-calibration.

    Examples
    --------
    >>> check_theorem_3().holds
    True
    """
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(n_classes), size=rows_n)
    predicted = 0.6 * true + 0.4 * rng.dirichlet(np.ones(n_classes), size=rows_n)
    # right in class 0, wrong in the others: necessary is not sufficient
    apart = predicted.copy()
    apart[:, 0] = true[:, 0]
    rest = (1 - true[:, 0]) / predicted[:, 1:].sum(axis=1)
    apart[:, 1:] *= rest[:, None]
    mass = np.full(rows_n, 1 / rows_n)
    h = World(mass, true, predicted).h
    h_apart = World(mass, true, apart).h

    top = (np.arange(rows_n), predicted.argmax(axis=1))
    rows: list[tuple[Any, ...]] = [
        _bounds_of("top-label", true[top], predicted[top], h),
        _bounds_of("class 0", true[:, 0], predicted[:, 0], h),
        _bounds_of("class 0, made right", true[:, 0], apart[:, 0], h_apart),
    ]
    equivalent = all(map(_are_equivalent, rows))
    _, h_of_event, _, _, h_of_all = rows[2]
    sufficient = not (h_of_event < 1e-12 and h_of_all > 0.05)
    return Check(
        "Theorem 3",
        "h-𝒜 calibration is equivalent to δ-ε-𝒜 boundedness; "
        "both are necessary for h-calibration and not sufficient",
        equivalent and not sufficient,
        ("events 𝒜", "h of 𝒜", "ε*(0.1)", "ε*(0.01)", "h of all events"),
        rows,
        "Exact. Last line: no error at all in the events of class 0, and a large one in others.",
    )


#: The δ of the two bounds that :func:`check_theorem_3` compares with h.
_DELTAS = (0.1, 0.01)


def _bounds_of(name: str, mu: Array, predicted: Array, h_of_all: float) -> tuple[Any, ...]:
    """Return name, h, the smallest ε for each δ, and the h of all events."""
    h = float(np.abs(mu - predicted).max())
    bounds = [smallest_epsilon(mu[None], predicted[None], delta) for delta in _DELTAS]
    return name, h, *bounds, h_of_all


def _are_equivalent(row: tuple[Any, ...]) -> bool:
    _, h, *bounds, _ = row
    for epsilon, delta in zip(bounds, _DELTAS, strict=True):
        if not epsilon <= h + 1e-12 <= epsilon + 2 * delta + 2e-12:
            return False
    return True


def check_theorem_5_modes(paths: int = 400, longest: int = 4000, seed: int = 0) -> Check:
    """The label rate converges in probability, in mean square, and almost surely.

    Examples
    --------
    >>> check_theorem_5_modes().holds
    True
    """
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.3, 0.7, size=longest)
    counts = np.arange(1, longest + 1)
    excess = (rng.random((paths, longest)) < p) - p
    gap = np.abs(np.cumsum(excess, axis=1)) / counts
    largest_from_here = np.maximum.accumulate(gap[:, ::-1], axis=1)[:, ::-1]
    rows = []
    for m in (50, 200, 500, 1000, 2000):
        if m > longest:
            break
        gap_at_m = gap[:, m - 1]
        outside = float((gap_at_m > 0.05).mean())
        mean_square = float(np.sqrt((gap_at_m**2).mean()))
        bound = float(0.5 / np.sqrt(m))
        ever_outside = float((largest_from_here[:, m - 1] > 0.05).mean())
        rows.append((m, outside, mean_square, bound, ever_outside))

    _, outside, mean_square, bound, ever_outside = map(np.array, zip(*rows, strict=True))
    falls = all((np.diff(column) <= 0).all() for column in (outside, mean_square, ever_outside))
    holds = falls and bool((mean_square <= bound).all()) and bool(ever_outside[-1] < 0.05)
    return Check(
        "Theorem 5, its three modes",
        "the convergence is in probability, in mean square (L²) and almost sure",
        holds,
        ("M", "P(gap > 0.05)", "RMS gap", "bound ½/√M", "P(some gap from M on > 0.05)"),
        rows,
        "In probability: second column. In mean square: third. Almost surely: the last, the share "
        f"of {paths} sequences that leave the band of 0.05 ever again, which must fall to 0.",
    )


def check_degenerate(seed: int = 0) -> Check:
    """Windows of one event, squared, unweighted: the Brier score.

    Examples
    --------
    >>> check_degenerate().holds
    True
    """
    rows = []
    for n_classes in (2, 10):
        task = make_synthetic("temperature", n_classes=n_classes, n_test=500, random_state=seed)
        logits = task.logits_test
        probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
        loss = objective(
            probs, task.y_test, window=1, epsilon=0.0, scale=1.0, weighting="uniform", norm=2
        )
        rows.append((n_classes, loss, brier(probs, task.y_test) / n_classes))
    return Check(
        "The degenerate case",
        "with M = 1, ε = 0, r = 1, squares and no weights "
        "the objective is the Brier score divided by K",
        all(abs(loss - brier_score) < 1e-9 for _, loss, brier_score in rows),
        ("K", "objective", "Brier / K"),
        rows,
    )


def check_views(n: int = 300, window: int = 20, seed: int = 0) -> Check:
    """The squared window loss is a kernel error, and its windows are pseudo-samples.

    Examples
    --------
    >>> check_views().holds
    True
    """
    rng = np.random.default_rng(seed)
    q = np.sort(rng.uniform(size=n))
    d = q - (rng.random(n) < q)
    sums = np.convolve(d, np.ones(window), mode="valid")
    gaps = sums / window
    windows = float(gaps @ gaps)

    place = np.arange(n)
    low = np.minimum.outer(place, place)
    high = np.maximum.outer(place, place)
    shared = np.minimum(low, n - window) - np.maximum(high - window + 1, 0) + 1
    kernel = float(d @ (np.maximum(shared, 0) / window**2) @ d)

    single = float(np.sqrt(np.mean(d**2)))
    pooled = float(np.sqrt(np.mean(gaps**2)))
    same = abs(windows - kernel) < 1e-9
    holds = same and pooled < 2.5 * single / np.sqrt(window)
    return Check(
        "Two views of a window",
        "the sum of squared window gaps is a kernel error, k(a, b) = windows that hold both / M²; "
        "and a window is a sample of M pseudo-labels for its centre",
        bool(holds),
        (
            "events",
            "M",
            "sum over windows",
            "sum over pairs",
            "RMS error of one label",
            "of a window's rate",
        ),
        [(n, window, windows, kernel, single, pooled)],
        "Predictions are the truth here, so the last two columns are the errors of the label, and "
        "of the label rate of a window, as estimates of the probability.",
    )


def blind_world(n: int, seed: int) -> tuple[Array, np.ndarray, np.ndarray]:
    """Return predictions, labels of a truth that they miss, and labels that were drawn from them.

    p is symmetric Dirichlet with K = 4; the truth has μ₀ = p₀ + 0.9·p₀p₁ and μ₁ = p₁ − 0.9·p₀p₁.

    Examples
    --------
    >>> [a.shape for a in blind_world(5, 0)]
    [(5, 4), (5,), (5,)]
    """
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), size=n)
    true = p.copy()
    moved = 0.9 * p[:, 0] * p[:, 1]
    true[:, 0] += moved
    true[:, 1] -= moved
    return p, draw_labels(true, rng), draw_labels(p, rng)


def _errors(p: Array, y: np.ndarray) -> tuple[float, ...]:
    """Return the pooled loss, CWECE_a, and the h errors, pooled and class by class, with their noise."""
    pooled = h_error(p, y, events="pooled")
    by_class = h_error(p, y)
    loss = objective(p, y, scale=1.0)
    classes = cwece_a(p, y)
    return loss, classes, pooled.value, pooled.noise, by_class.value, by_class.noise


def check_pooled_is_blind(n: int = 20_000, draws: int = 5, seed: int = 0) -> Check:
    """A predictor that is wrong in two classes, and whose pooled loss is at the noise.

    Examples
    --------
    >>> check_pooled_is_blind(n=10_000, draws=2).holds
    True
    """
    of_wrong = []
    of_right = []
    for draw in range(draws):
        p, y, calibrated = blind_world(n, seed + draw)
        of_wrong.append(_errors(p, y))
        of_right.append(_errors(p, calibrated))
    wrong = np.mean(of_wrong, axis=0).tolist()
    right = np.mean(of_right, axis=0).tolist()
    loss, classes, pooled, pooled_noise, by_class, class_noise = wrong
    is_hidden = loss < 1.03 * right[0] and pooled < 2 * pooled_noise
    is_wrong = classes > 2 * right[1] and by_class > 3 * class_noise
    rows: list[tuple[Any, ...]] = [("the two classes wrong", *wrong), ("calibrated", *right)]
    return Check(
        "What pooling hides",
        "a predictor can be wrong in its classes while the pooled objective is at the noise",
        is_hidden and is_wrong,
        (
            "truth",
            "pooled loss / r",
            "CWECE_a",
            "HCE pooled",
            "its noise",
            "HCE class-wise",
            "its noise",
        ),
        rows,
        f"Symmetric Dirichlet predictions, K = 4, μ₀ = p₀ + 0.9·p₀p₁, μ₁ = p₁ − 0.9·p₀p₁; {n} "
        f"rows, mean of {draws} draws. At every level of probability the errors of the two classes "
        "cancel in the pool.",
    )


def check_atoms_do_not_bound(h: float = 0.05) -> Check:
    """Errors +h, +h, −h, −h of four classes are 2h on the event of the first two.

    Examples
    --------
    >>> check_atoms_do_not_bound().holds
    True
    """
    rows = []
    for k in (4, 6, 10):
        half = k // 2
        error = h * np.repeat([1.0, -1.0], half)
        worst = float(max(abs(error[list(event)].sum()) for event in events_of(k)))
        rows.append((k, h, worst, worst / h))
    return Check(
        "Atomic events do not bound all events",
        "an error of at most h on every single class allows an error of ⌊K/2⌋·h on a set of "
        "classes",
        all(abs(worst - (k // 2) * h) < 1e-12 for k, _, worst, _ in rows),
        ("K", "largest error of a class", "largest error of an event", "ratio"),
        rows,
        "The paper says that single classes (its atomic events) may take the place of all events "
        "in Theorem 7: so they may, with another ε for the two, up to ⌊K/2⌋ times as large.",
    )
