"""What the default calibrator looks at in a row: margins below the top class, and six features.

Everything is measured on log-softmax(β z), β the inverse temperature of temperature scaling, so that the
scale of the logits does not matter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hcal.numerics import Float64 as Float64
from hcal.numerics import FloatArray, IntArray

#: Margins are cut here: e^−700 is the last exponent before float64 underflows.
FAR = 700.0
#: Added inside logarithms of quantities that may be 0: below this they make no difference to a probability.
TINY = 1e-4
N_FEATURES = 6
#: Rows, and errors, below which ridges grow.
ENOUGH_ROWS, _ENOUGH_ERRORS = 1000.0, 50.0


class Rows(NamedTuple):
    """Margins and features of a block of rows."""

    top: IntArray  # (N,) the most probable class
    margin: FloatArray  # (N, K) how far each class lies below it, in temperature-scaled logits
    feature: Float64  # (N, 6)


def look(logits: FloatArray, beta: float, top: IntArray | None = None) -> Rows:
    """Return margins and features of logits (N, K) at inverse temperature β.

    ``top`` (N,) says which of the highest classes counts as the top one; by default the first.

    >>> look(np.array([[2.0, 0.0, 1.0]]), 0.5).margin
    array([[0. , 1. , 0.5]])
    """
    top = logits.argmax(axis=1) if top is None else top
    margin = logits[np.arange(len(top)), top][:, None] - logits
    margin *= narrowed(beta, logits.dtype)
    np.minimum(margin, logits.dtype.type(FAR), out=margin)
    return Rows(top, margin, features(margin, top))


def narrowed(value: float, dtype: Any) -> Any:
    """Return a number in a float width, at most the largest finite one of it.

    >>> bool(np.isfinite(narrowed(1e300, np.float32)))
    True
    """
    return np.dtype(dtype).type(min(float(value), float(np.finfo(dtype).max)))


def features(margin: FloatArray, top: IntArray) -> Float64:
    """Return six numbers (N, 6) that tell how the probability of rows with margins (N, K) is spread.

    The runner-up's margin, the surprise of the top class, the entropy, the mean margin, and two
    log-sums of roots of the probabilities, which weigh the middle and the tail: no sorting, so that the
    same features are cheap in every runtime.

    >>> features(np.zeros((1, 2)), np.zeros(1, dtype=int)).shape
    (1, 6)
    """
    # Powers of one e^−margin, and sums that are normalised afterwards: few passes over the classes.
    e = np.exp(-margin)
    log_z = np.log(_row_sums(e))
    weighted = np.einsum("nk,nk->n", e, margin).astype(np.float64)
    half = np.sqrt(e, out=e)
    by_half = _row_sums(half)
    by_quarter = _row_sums(np.sqrt(half, out=half))
    out = np.empty((len(margin), N_FEATURES))
    out[:, 0] = np.log1p(_runner_up(margin, top))
    out[:, 1] = np.log(TINY + log_z)
    out[:, 2] = np.log(TINY + log_z + weighted * np.exp(-log_z))
    out[:, 3] = np.log1p(_row_sums(margin) / margin.shape[1])
    out[:, 4] = np.log(by_half) - 0.5 * log_z
    out[:, 5] = np.log(by_quarter) - 0.25 * log_z
    return out


def _row_sums(values: FloatArray) -> Float64:
    return np.asarray(values.sum(axis=1), dtype=np.float64)


def _runner_up(margin: FloatArray, top: IntArray) -> Float64:
    """Return the smallest margin but the top class's own, which is put back afterwards."""
    rows = np.arange(len(top))
    margin[rows, top] = np.inf
    least = np.asarray(margin.min(axis=1), dtype=np.float64)
    margin[rows, top] = 0.0
    return least


class Scaler(NamedTuple):
    """Standardises features and cuts them to the range seen in the fit: nothing is extrapolated."""

    mean: Float64
    deviation: Float64
    low: Float64
    high: Float64

    def __call__(self, values: Float64) -> Float64:
        """Return (values − mean)/deviation inside [low, high]."""
        return np.clip((values - self.mean) / self.deviation, self.low, self.high)


def fit_scaler(values: Float64, weight: Float64) -> Scaler:
    """Learn a scaler from values of shape (N, F) and weights of shape (N,).

    >>> fit_scaler(np.array([[0.0], [2.0]]), np.ones(2)).mean
    array([1.])
    """
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    deviation = np.where(deviation > 1e-6, deviation, 1.0)
    standard = (values - mean) / deviation
    low, high = (weighted_quantile(standard, weight, np.array([q]))[0] for q in (0.001, 0.999))
    return Scaler(mean, deviation, low, high)


def weighted_quantile(values: Float64, weight: Float64, at: Float64) -> Float64:
    """Return quantiles (Q, F) of each column of values (N, F); a weight counts as that many repetitions.

    >>> weighted_quantile(np.array([[1.0], [5.0]]), np.array([3.0, 1.0]), np.array([0.5]))
    array([[1.]])
    """
    out = np.empty((len(at), values.shape[1]))
    for column in range(values.shape[1]):
        order = np.argsort(values[:, column], kind="stable")
        share = np.cumsum(weight[order])
        index = np.searchsorted(share, at * share[-1])
        out[:, column] = values[order[np.minimum(index, len(order) - 1)], column]
    return out


def few(total: float, errors: float = np.inf, enough: float = ENOUGH_ROWS) -> float:
    """Return how much stronger ridges are where there is little to learn from: few rows, or few errors.

    Rows that a classifier gets right say little of the shape of a curve; without any error nothing stops it
    from growing ever surer.

    >>> few(5000.0), few(200.0), few(5000.0, errors=1.0)
    (1.0, 5.0, 25.0)
    """
    return max(1.0, enough / total, _ENOUGH_ERRORS / (errors + 1.0))
