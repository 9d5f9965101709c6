"""What the paper says beside its numbered bounds, and what its pooled objective cannot see, by experiment.

Proposition 1, Theorem 3, the three modes of Theorem 5, the degenerate case, the kernel and pseudo-sampling
views, and two counter-examples: see :mod:`studies.theory` for what a :class:`~studies.theory.Check` is.
"""

from __future__ import annotations

from itertools import pairwise
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
    return np.asarray((true.cumsum(axis=1) > rng.random((len(true), 1))).argmax(axis=1))


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
        true = make_synthetic(
            "calibrated", n_classes=n_classes, n_test=5000, random_state=seed
        ).true_test
        first, second = draw_labels(true, rng), draw_labels(true, rng)
        sure = true.max(axis=1) > 0.99
        wrong = float((first != true.argmax(axis=1))[sure].mean())
        rows.append((n_classes, float((first != second).mean()), int(sure.sum()), wrong))
    return Check(
        "Proposition 1",
        "the true probability given the features is not the one-hot vector of the label",
        all(r[1] > 0.02 for r in rows),
        ("K", "second label differs", "rows above 0.99", "of these wrong"),
        rows,
        "A second label drawn for the same features differs from the first in this share of the rows: one "
        "label is one draw, and a score that treats it as the truth is an estimate from one draw.",
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
    apart[:, 1:] *= ((1 - true[:, 0]) / predicted[:, 1:].sum(axis=1))[:, None]
    world = World(np.full(rows_n, 1 / rows_n), true, apart)
    top = predicted.argmax(axis=1)
    every = np.arange(rows_n)
    cases = (
        (
            "top-label",
            true[every, top],
            predicted[every, top],
            0.5 * np.abs(true - predicted).sum(1).max(),
        ),
        ("class 0", true[:, 0], predicted[:, 0], 0.5 * np.abs(true - predicted).sum(1).max()),
        ("class 0, made right", true[:, 0], apart[:, 0], world.h),
    )
    rows: list[tuple[Any, ...]] = []
    for name, mu, pc, h_all in cases:
        own = float(np.abs(mu - pc).max())
        bounds = [smallest_epsilon(mu[None], pc[None], d) for d in (0.1, 0.01)]
        rows.append((name, own, *bounds, float(h_all)))
    holds = all(
        r[2 + i] <= r[1] + 1e-12 <= r[2 + i] + 2 * d + 2e-12
        for r in rows
        for i, d in enumerate((0.1, 0.01))
    )
    return Check(
        "Theorem 3",
        "h-𝒜 calibration is equivalent to δ-ε-𝒜 boundedness; both are necessary for h-calibration and not sufficient",
        holds and rows[2][1] < 1e-12 < 0.05 < rows[2][4],
        ("events 𝒜", "h of 𝒜", "ε*(0.1)", "ε*(0.01)", "h of all events"),
        rows,
        "Exact. Last line: no error at all in the events of class 0, and a large one in others.",
    )


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
    gap = np.abs(np.cumsum((rng.random((paths, longest)) < p) - p, axis=1)) / counts
    later = np.maximum.accumulate(gap[:, ::-1], axis=1)[:, ::-1]  # the largest gap from here on
    rows = [
        (
            m,
            float((gap[:, m - 1] > 0.05).mean()),
            float(np.sqrt((gap[:, m - 1] ** 2).mean())),
            float(0.5 / np.sqrt(m)),
            float((later[:, m - 1] > 0.05).mean()),
        )
        for m in (50, 200, 500, 1000, 2000)
        if m <= longest
    ]
    falling = all(a[i] >= b[i] for a, b in pairwise(rows) for i in (1, 2, 4))
    return Check(
        "Theorem 5, its three modes",
        "the convergence is in probability, in mean square (L²) and almost sure",
        falling and all(r[2] <= r[3] for r in rows) and rows[-1][4] < 0.05,
        ("M", "P(gap > 0.05)", "RMS gap", "bound ½/√M", "P(some gap from M on > 0.05)"),
        rows,
        f"In probability: second column. In mean square: third. Almost surely: the last, the share of "
        f"{paths} sequences that leave the band of 0.05 ever again, which must fall to 0.",
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
        probs = np.exp(task.logits_test - np.logaddexp.reduce(task.logits_test, axis=1)[:, None])
        loss = objective(
            probs, task.y_test, window=1, epsilon=0.0, scale=1.0, weighting="uniform", norm=2
        )
        rows.append((n_classes, loss, brier(probs, task.y_test) / n_classes))
    return Check(
        "The degenerate case",
        "with M = 1, ε = 0, r = 1, squares and no weights the objective is the Brier score divided by K",
        all(abs(r[1] - r[2]) < 1e-9 for r in rows),
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
    windows = float((sums / window) @ (sums / window))
    place = np.arange(n)
    low, high = np.minimum.outer(place, place), np.maximum.outer(place, place)
    shared = np.minimum(low, n - window) - np.maximum(high - window + 1, 0) + 1
    kernel = float(d @ (np.maximum(shared, 0) / window**2) @ d)
    single = float(np.sqrt(np.mean((d - 0) ** 2)))
    pooled = float(np.sqrt(np.mean((sums / window) ** 2)))
    return Check(
        "Two views of a window",
        "the sum of squared window gaps is a kernel error, k(a, b) = windows that hold both / M²; and a "
        "window is a sample of M pseudo-labels for its centre",
        bool(abs(windows - kernel) < 1e-9 and pooled < 2.5 * single / np.sqrt(window)),
        (
            "events",
            "M",
            "sum over windows",
            "sum over pairs",
            "RMS error of one label",
            "of a window's rate",
        ),
        [(n, window, windows, kernel, single, pooled)],
        "Predictions are the truth here, so the last two columns are the errors of the label, and of the "
        "label rate of a window, as estimates of the probability.",
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


def check_pooled_is_blind(n: int = 20_000, draws: int = 5, seed: int = 0) -> Check:
    """A predictor that is wrong in two classes, and whose pooled loss is at the noise.

    Examples
    --------
    >>> check_pooled_is_blind(n=10_000, draws=2).holds
    True
    """
    found = []
    for draw in range(draws):
        p, y, calibrated = blind_world(n, seed + draw)
        for labels in (y, calibrated):
            loss = objective(p, labels, scale=1.0)
            pooled, by_class = h_error(p, labels, events="pooled"), h_error(p, labels)
            found.append(
                (
                    loss,
                    cwece_a(p, labels),
                    pooled.value,
                    pooled.noise,
                    by_class.value,
                    by_class.noise,
                )
            )
    table = np.array(found).reshape(draws, 2, -1).mean(axis=0)
    rows: list[tuple[Any, ...]] = [
        (name, *map(float, row))
        for name, row in zip(("the two classes wrong", "calibrated"), table, strict=True)
    ]
    wrong, right = rows
    return Check(
        "What pooling hides",
        "a predictor can be wrong in its classes while the pooled objective is at the noise",
        wrong[1] < 1.03 * right[1]
        and wrong[2] > 2 * right[2]
        and wrong[3] < 2 * wrong[4]
        and wrong[5] > 3 * wrong[6],
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
        f"Symmetric Dirichlet predictions, K = 4, μ₀ = p₀ + 0.9·p₀p₁, μ₁ = p₁ − 0.9·p₀p₁; {n} rows, mean of "
        f"{draws} draws. At every level of probability the errors of the two classes cancel in the pool.",
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
        error = h * np.array([1.0] * (k // 2) + [-1.0] * (k // 2))
        worst = max(abs(error[list(a)].sum()) for a in events_of(k))
        rows.append((k, h, float(worst), float(worst / h)))
    return Check(
        "Atomic events do not bound all events",
        "an error of at most h on every single class allows an error of ⌊K/2⌋·h on a set of classes",
        all(abs(r[2] - (r[0] // 2) * h) < 1e-12 for r in rows),
        ("K", "largest error of a class", "largest error of an event", "ratio"),
        rows,
        "The paper says that single classes (its atomic events) may take the place of all events in Theorem "
        "7: so they may, with another ε for the two, up to ⌊K/2⌋ times as large.",
    )
