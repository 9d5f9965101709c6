"""The judge: held-out predictions are compared at every level at once, and no single noisy term decides.

criterion = mean over three levels of ln(error + noise): proper scores (NLL and Brier), the windowed h-error
of the top-label event, and that of the class-wise events ((T̃₁ − T̃₂)/T̃₃ of Thm 7, root mean square over
windows, less its noise). Each error stands beside the noise of its own estimate: an error of 0 is not
infinitely good, a base of 0 divides nothing, and a term that is all noise says nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators.h.rows import Float64
from hcal.numerics import FloatArray, IntArray

WINDOW = 200
#: Entries of the classes that are judged together: few calls, and they stay in the cache.
_TOGETHER = 60_000


class Verdict(NamedTuple):
    """Held-out errors of one candidate, and how far each could be off by chance."""

    nll: float
    brier: float
    h_top: float
    h_class: float
    accuracy: float
    confidence: float
    noise_nll: float
    noise_brier: float
    noise_top: float
    noise_class: float

    def against(self, base: Verdict) -> float:
        """Return the criterion: 0 is as good as ``base``, −0.1 about a tenth better at every level.

        >>> one = Verdict(1, 1, 0, 0, 1, 1, 0.1, 0.1, 0.1, 0.1)
        >>> one.against(one), one._replace(h_top=0.1).against(one) > 0
        (0.0, True)
        """
        score = 0.5 * (
            _log_ratio(self.nll, base.nll, base.noise_nll)
            + _log_ratio(self.brier, base.brier, base.noise_brier)
        )
        top = _log_ratio(self.h_top, base.h_top, base.noise_top)
        each = _log_ratio(self.h_class, base.h_class, base.noise_class)
        return (score + top + each) / 3.0


def _log_ratio(value: float, base: float, noise: float) -> float:
    noise = max(noise, 1e-12)
    return float(np.log((value + noise) / (base + noise)))


def judge(probs: Any, y: IntArray, weight: Float64) -> Verdict:
    """Measure held-out probabilities (N, K), an array or a tensor; y and weight (N,).

    >>> judge(np.array([[0.5, 0.5]] * 2), np.array([0, 1]), np.ones(2)).h_class
    0.0
    """
    own, squares, top, confidence = _row_facts(probs, y)
    own = np.maximum(own, np.finfo(np.float64).tiny)
    squares = squares - 2 * own + 1
    hit = (top == y).astype(np.float64)
    nll, noise_nll = _mean(-np.log(own), weight)
    brier, noise_brier = _mean(squares, weight)
    top_error, top_noise = _h_errors(confidence[None], hit[None], weight, WINDOW)
    class_error, class_noise = class_errors(probs, y, weight)
    return Verdict(
        nll,
        brier,
        _root(float(top_error[0])),
        _root(float(class_error.mean())),
        float(np.average(hit, weights=weight)),
        float(np.average(confidence, weights=weight)),
        noise_nll,
        noise_brier,
        _root(float(top_noise[0])),
        _root(float(np.sqrt((class_noise**2).sum())) / len(class_noise)),
    )


def _row_facts(probs: Any, y: IntArray) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Return P(label), Σ p², the top class and its probability of every row (N,)."""
    if not isinstance(probs, np.ndarray):
        from hcal.calibrators.h import _tensors

        return _tensors.row_facts(probs, y)
    rows, top = np.arange(len(y)), probs.argmax(axis=1)
    return probs[rows, y], np.einsum("nk,nk->n", probs, probs), top, probs[rows, top]


def _mean(values: Float64, weight: Float64) -> tuple[float, float]:
    """Return the mean and its standard error."""
    mean = float(np.average(values, weights=weight))
    spread = float(np.sqrt((weight**2) @ (values - mean) ** 2))
    return mean, spread / float(weight.sum())


def class_errors(probs: Any, y: IntArray, weight: Float64, window: int = WINDOW) -> tuple[Float64, Float64]:
    """Return the h-error of every class (K,) and the noise of each (K,), a few classes at a time.

    >>> class_errors(np.array([[0.5, 0.5]] * 4), np.array([0, 0, 0, 0]), np.ones(4), window=4)[0]
    array([0.1875, 0.1875])
    """
    if not isinstance(probs, np.ndarray):
        from hcal.calibrators.h import _tensors

        return _tensors.class_errors(probs, y, weight, window)
    n, k = probs.shape
    step = max(1, _TOGETHER // n)
    errors, noises = [], []
    for start in range(0, k, step):
        p = np.ascontiguousarray(probs[:, start : start + step].T)
        occurred = (y == np.arange(start, start + len(p))[:, None]).astype(np.float64)
        error, noise = _h_errors(p, occurred, weight, window)
        errors.append(error)
        noises.append(noise)
    return np.concatenate(errors), np.concatenate(noises)


def _h_errors(p: FloatArray, occurred: Float64, weight: Float64, window: int) -> tuple[Float64, Float64]:
    """Return the error of each row of events p (E, N) with marks (E, N), and how far it is off by chance.

    The error is the mean square of (mean p − mean occurred) over runs of ``window`` neighbours, less its
    noise: of one window, were p the truth, Σ p(1 − p) over the squared window. What is left estimates the
    squared error itself and may be below 0.
    """
    order = np.argsort(p, axis=1, kind="stable")
    m = min(window, p.shape[1])
    w, q = weight[order], np.take_along_axis(p, order, axis=1)
    difference = q - np.take_along_axis(occurred, order, axis=1)
    gap, noise, mass = (_run_sums(v, m) for v in (w * difference, w * w * q * (1.0 - q), w))
    square = (gap**2 - noise) / mass**2
    # Of N/m windows that share no row each square is off by √2 times its noise.
    chance = np.sqrt(2.0 * m / p.shape[1] * np.mean((noise / mass**2) ** 2, axis=1))
    return np.asarray(np.mean(square, axis=1)), np.asarray(chance)


def _run_sums(values: Float64, m: int) -> Float64:
    total = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))
    return np.asarray(total[:, m:] - total[:, :-m])


def _root(square: float) -> float:
    return float(np.sqrt(max(square, 0.0)))
