"""Worlds whose truth is known: predictions, and the true probability of every class of every row.

A certificate is checked against them: nothing else can tell whether it holds as often as it says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hcal.certificates.event import EventCertificate
from hcal.certificates.windows import EventTable
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray, softmax

World = Callable[[int, int, np.random.Generator], tuple[Vector, Vector]]


def _softmax(z: Vector) -> Vector:
    """Return softmax in float64."""
    return np.asarray(softmax(z), dtype=np.float64)


def _logits(n: int, k: int, rng: np.random.Generator) -> Vector:
    z = rng.normal(size=(n, k))
    favoured = rng.integers(0, k, n)
    z[np.arange(n), favoured] += rng.gamma(2.0, 1.5, n)  # most rows are easy, some are not
    return np.asarray(z)


def _tempered(
    temperature: float, n: int, k: int, rng: np.random.Generator
) -> tuple[Vector, Vector]:
    """Over-confident by a temperature."""
    z = 1.5 * _logits(n, k, rng)
    return _softmax(z), _softmax(z / temperature)


def _with_top(f: Vector, top: Vector) -> Vector:
    """The same rows with another probability of the top class, the others in proportion."""
    best = (np.arange(len(f)), f.argmax(axis=1))
    rest = np.maximum(1 - f[best], 1e-12)
    q = f * ((1 - top) / rest)[:, None]
    q[best] = top
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def _wave(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """A wave with the period of fifteen bins: every bin's mean is right, no prediction is."""
    f = _softmax(1.5 * _logits(n, k, rng))
    p = f.max(axis=1)
    wave = p + 0.1 * np.sin(2 * np.pi * 15 * p)
    return f, _with_top(f, np.clip(wave, 0.01, 0.99))


def _certain(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """Labels that are certain, class after class, under predictions that say nothing."""
    labels = np.arange(n) % k
    return np.full((n, k), 1 / k), np.eye(k)[labels]


def _ties(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """A handful of different predictions, the truth a little elsewhere."""
    different = _softmax(1.5 * _logits(12, k, rng))
    f = different[rng.integers(0, 12, n)]
    return f, 0.9 * f + 0.1 / k


def _falling(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """The more confident, the less often right."""
    f = _softmax(1.5 * _logits(n, k, rng))
    top = np.clip(1.2 - f.max(axis=1), 0.01, 0.99)
    return f, _with_top(f, top)


def _rare(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """Classes that get rarer and rarer, down to one in thousands; over-confident by T = 1.2."""
    rarity = np.minimum(np.arange(k) * 6 / max(k - 1, 1), 6)
    z = 1.2 * _logits(n, k, rng) - rarity
    return _softmax(z), _softmax(z / 1.2)


def _hidden_groups(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """Two groups that the predictor cannot see, wrong in opposite directions: right on average at every claim."""
    f = _softmax(1.5 * _logits(n, k, rng))
    p = f.max(axis=1)
    size = np.minimum(0.15, np.minimum(p, 1 - p))
    group = rng.choice([-1.0, 1.0], n)
    return f, _with_top(f, p + size * group)


def _saturated(n: int, k: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """Probabilities of which many are 0 and 1 to the last bit, and three labels in a hundred drawn at random."""
    z = np.asarray(12 * _logits(n, k, rng), dtype=np.float32)
    f = _softmax(z).astype(np.float64)
    f /= f.sum(axis=1, keepdims=True)
    return f, 0.97 * f + 0.03 / k


#: Name -> world(n, k, rng) -> predictions and truth, shape (n, k) each.
WORLDS: dict[str, World] = {
    "T=1": partial(_tempered, 1.0),
    "T=1.2": partial(_tempered, 1.2),
    "T=2": partial(_tempered, 2.0),
    "wave": _wave,
    "certain": _certain,
    "ties": _ties,
    "falling": _falling,
    "rare": _rare,
    "hidden groups": _hidden_groups,
    "saturated": _saturated,
}


def draw_labels(q: Vector, rng: np.random.Generator) -> IntArray:
    """Draw a label of every row from its true probabilities.

    Parameters
    ----------
    q : array of shape (n, k)
    rng : numpy Generator

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> draw_labels(np.array([[0.0, 1.0]]), np.random.default_rng(0))
    array([1])
    """
    cumulated = q.cumsum(axis=1)
    drawn = rng.random((len(q), 1)) * cumulated[:, -1:]
    return np.asarray((cumulated > drawn).argmax(axis=1), dtype=np.int64)


def truth_table(p: Vector, q: Vector) -> EventTable:
    """Return the table of an event with true probabilities in place of marks."""
    return EventTable.of_rows(p, q)


def holds(event: EventCertificate, truth: EventTable) -> tuple[bool, bool]:
    """Return whether all windows, and the whole curve, of a certificate hold in a world.

    Parameters
    ----------
    event : EventCertificate
    truth : EventTable
        Of the same claims, see :func:`truth_table`.

    Returns
    -------
    (bool, bool)

    Examples
    --------
    >>> from hcal.certificates import certify_event
    >>> p = np.full(500, 0.5)
    >>> holds(certify_event("even", p, np.arange(500) % 2), truth_table(p, p))
    (True, True)
    """
    claims, sums = truth.prefix[:2]
    w = event.windows
    mean = (sums[w.last] - sums[w.first]) / w.rows
    gap = (claims - sums)[1:] / truth.n
    return _all_within(mean, w.low, w.high), _all_within(gap, event.band.low, event.band.high)


def _all_within(values: Vector, low: Vector, high: Vector, slack: float = 1e-9) -> bool:
    return bool(((values >= low - slack) & (values <= high + slack)).all())


def smooth_error(truth: EventTable, knots: int = 40) -> float:
    """Return a lower bound on the true smooth calibration error: the best weight with knots at quantiles.

    A linear program over piecewise linear 1-Lipschitz weights |w| ≤ 1; more knots come closer from below.

    Examples
    --------
    >>> p = np.linspace(0.5, 0.9, 50)
    >>> round(smooth_error(truth_table(p, p - 0.1)), 3)
    0.1
    """
    from scipy.optimize import linprog

    t = truth.low
    levels = np.linspace(0, 1, knots)
    places = np.unique(np.quantile(t, levels, method="nearest"))
    gap = (truth.happened - truth.claimed) / truth.n
    size = len(places)
    if size == 1:
        return abs(float(gap.sum()))
    left = np.clip(np.searchsorted(places, t, side="right") - 1, 0, size - 2)
    part = (t - places[left]) / (places[left + 1] - places[left])
    cost = np.bincount(left, gap * (1 - part), size) + np.bincount(left + 1, gap * part, size)

    step = np.eye(size)[1:] - np.eye(size)[:-1]
    steps = np.concatenate([step, -step])
    solved = linprog(-cost, steps, np.tile(np.diff(places), 2), bounds=(-1, 1))
    return -float(solved.fun or 0.0)
