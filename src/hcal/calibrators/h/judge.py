"""The judge: candidates are compared out of fold by an error that no collapsed predictor can win.

criterion = mean of four ratios to the uncalibrated probabilities, one a level: proper scores (NLL and Brier),
the windowed h-error of the top-label event, that of the class-wise events ((T̃₁ − T̃₂)/T̃₃ of Thm 7, root mean
square over windows, less its noise), and the canonical Dirichlet-kernel error. A candidate whose held-out
NLL is above the uncalibrated one, or temperature scaling's, is out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hcal.calibrators.h.rows import Float64
from hcal.numerics import IntArray

WINDOW = 200
#: Entries of the classes that are judged together: few calls, and they stay in the cache.
_TOGETHER = 60_000
_CANONICAL_ROWS = 2500


class Verdict(NamedTuple):
    """Held-out errors of one candidate."""

    nll: float
    brier: float
    h_top: float
    h_class: float
    canonical: float
    accuracy: float
    confidence: float

    def against(self, base: Verdict) -> float:
        """Return the criterion: 1 is as good as ``base``, lower is better."""
        score = 0.5 * (self.nll / _positive(base.nll) + self.brier / _positive(base.brier))
        top, each = self.h_top / _positive(base.h_top), self.h_class / _positive(base.h_class)
        return float((score + top + each + self.canonical / _positive(base.canonical)) / 4)


def _positive(x: float) -> float:
    return max(x, 1e-12)


def judge(probs: Float64, y: IntArray, weight: Float64) -> Verdict:
    """Measure held-out probabilities.

    Parameters
    ----------
    probs : array of shape (N, K)
    y, weight : arrays of shape (N,)

    Returns
    -------
    Verdict

    Examples
    --------
    >>> judge(np.array([[0.5, 0.5]] * 2), np.array([0, 1]), np.ones(2)).h_class
    0.0
    """
    rows = np.arange(len(y))
    own = np.maximum(probs[rows, y], np.finfo(np.float64).tiny)
    squares = np.einsum("nk,nk->n", probs, probs) - 2 * own + 1
    top = probs.argmax(axis=1)
    hit, confidence = (top == y).astype(np.float64), probs[rows, top]
    classes = class_errors(probs, y, weight)
    return Verdict(
        float(np.average(-np.log(own), weights=weight)),
        float(np.average(squares, weights=weight)),
        _root(h_error(confidence, hit, weight)),
        _root(float(np.mean(classes))),
        _canonical(probs, y),
        float(np.average(hit, weights=weight)),
        float(np.average(confidence, weights=weight)),
    )


def _canonical(probs: Float64, y: IntArray) -> float:
    """Return the Dirichlet-kernel error of the first rows: its cost grows with their square."""
    from hcal.metrics import dkde_ce

    return dkde_ce(probs[:_CANONICAL_ROWS], y[:_CANONICAL_ROWS]) if len(y) > 2 else 0.0


def class_errors(probs: Float64, y: IntArray, weight: Float64, window: int = WINDOW) -> Float64:
    """Return :func:`h_error` of every class (K,), a few classes at a time.

    Examples
    --------
    >>> class_errors(np.array([[0.5, 0.5]] * 4), np.array([0, 0, 0, 0]), np.ones(4), window=4)
    array([0.1875, 0.1875])
    """
    n, k = probs.shape
    step = max(1, _TOGETHER // n)
    parts = []
    for start in range(0, k, step):
        p = np.ascontiguousarray(probs[:, start : start + step].T)
        occurred = (y == np.arange(start, start + len(p))[:, None]).astype(np.float64)
        parts.append(_h_errors(p, occurred, weight, window))
    return np.concatenate(parts)


def h_error(p: Float64, occurred: Float64, weight: Float64, window: int = WINDOW) -> float:
    """Return the mean square of (mean p − mean occurred) over runs of ``window`` neighbours, less its noise.

    The noise of one window, were p the truth, is Σ p(1 − p) over the squared window; what is left estimates
    the squared error itself and may be below 0.

    Examples
    --------
    >>> h_error(np.full(4, 0.5), np.array([1.0, 1.0, 1.0, 1.0]), np.ones(4), window=4)
    0.1875
    """
    return float(_h_errors(p[None], occurred[None], weight, window)[0])


def _h_errors(p: Float64, occurred: Float64, weight: Float64, window: int) -> Float64:
    """Return the error of each row of events p (E, N) with marks (E, N), shape (E,)."""
    order = np.argsort(p, axis=1, kind="stable")
    m = min(window, p.shape[1])
    w, q = weight[order], np.take_along_axis(p, order, axis=1)
    difference = q - np.take_along_axis(occurred, order, axis=1)
    gap, noise, mass = (_run_sums(v, m) for v in (w * difference, w * w * q * (1.0 - q), w))
    square = (gap**2 - noise) / np.where(mass > 0, mass, 1.0) ** 2
    return np.asarray(np.mean(square, axis=1, where=mass > 0))


def _run_sums(values: Float64, m: int) -> Float64:
    total = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))
    return np.asarray(total[:, m:] - total[:, :-m])


def _root(square: float) -> float:
    return float(np.sqrt(max(square, 0.0)))


def pick(verdicts: dict[str, Verdict], base: str, allowed: list[str], slack: float = 0.02) -> str:
    """Return the best allowed candidate; the first listed one within ``slack`` of the best wins.

    Examples
    --------
    >>> good, bad = Verdict(1, 1, 1, 1, 1, 1, 1), Verdict(2, 1, 0, 0, 0, 1, 0)
    >>> pick({"identity": good, "collapsed": bad}, "identity", ["collapsed", "identity"])
    'identity'
    """
    reference = verdicts[base]
    ceiling = min(verdicts[name].nll for name in {base, "temperature"} & set(verdicts))
    sound = [name for name in allowed if verdicts[name].nll <= ceiling or name == base]
    criterion = {name: verdicts[name].against(reference) for name in sound}
    best = min(criterion.values())
    return next(name for name in sound if criterion[name] <= best + slack)
