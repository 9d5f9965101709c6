"""The squared kernel calibration error of the whole vector: blocked matrix products, never N x N.

On CUDA tensors the same products run on the device (:mod:`hcal.metrics.device_pairs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.numerics import Float64

_SPAN = 256  # rows of a block of pairs: a temporary of 0.5 MB stays in the cache
# Squared distances are differences of numbers near 1: less this, equal rows are at distance 0 and not 1e-8.
ROUNDING = 1e-15
Estimator = Literal["unbiased", "biased", "linear"]


def skce(
    probs: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    estimator: Estimator = "unbiased",
    bandwidth: float = 1.0,
) -> float:
    """Return the squared kernel calibration error with kernel exp(−‖p − p'‖₂/bandwidth).

    Widmann, Lindsten, Zachariah: Calibration tests in multi-class classification, NeurIPS 2019. With
    h_ij = k(p_i, p_j)·⟨e_i − p_i, e_j − p_j⟩, e the one-hot label: ``"unbiased"`` is the mean over i < j (it
    can be negative), ``"biased"`` the mean over all i, j, ``"linear"`` that over the pairs (1, 2), (3, 4), ….

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts; refused by ``"linear"``, whose answer depends on the order of the rows.
    estimator : {"unbiased", "biased", "linear"}
    bandwidth : float

    Returns
    -------
    float
        NaN for the unbiased estimators of a single row, which has no pair.

    Examples
    --------
    >>> round(skce([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.125
    """
    if estimator not in ("unbiased", "biased", "linear"):
        raise ValueError(f"estimator must be 'unbiased', 'biased' or 'linear', got {estimator!r}")
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
    s = as_sample(probs, y, sample_weight)
    if estimator == "linear":
        return _skce_linear(s, bandwidth)
    s.need_repetitions("skce")
    pairs = float(np.dot(s.w, pair_sums(s, bandwidth)[0]))
    diagonal = s.data.squares - 2 * s.data.chosen + 1  # h_ii, the squared residual
    if estimator == "biased":
        return float((pairs + np.dot(s.w**2, diagonal)) / s.total**2)
    pairs += float(np.dot(s.w * (s.w - 1), diagonal))
    return float(pairs / (s.total * (s.total - 1))) if s.total > 1 else float("nan")


def _skce_linear(s: Sample, bandwidth: float) -> float:
    if s.weight is not None:
        raise ValueError(
            "skce with estimator='linear' pairs rows by their order: sample_weight has no meaning"
        )
    half = s.n // 2
    if half == 0:
        return float("nan")
    p, y = s.data.probs[: 2 * half], s.y[: 2 * half]
    total = 0.0
    step = 2 * max(1, BLOCK // (2 * s.k))
    for i in range(0, 2 * half, step):
        block = p[i : i + step].astype(np.float64)
        residual = -block
        residual[np.arange(len(block)), y[i : i + step]] += 1
        distance = np.linalg.norm(block[0::2] - block[1::2], axis=1)
        total += float((np.exp(-distance / bandwidth) * (residual[0::2] * residual[1::2]).sum(axis=1)).sum())
    return total / half


def pair_sums(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    """Return Σ_{j ≠ i} w_j·h_ij of every row, shape (N,), and Σ_{i ≠ j} h_ij²; remembered without weights."""
    if s.weight is not None:
        return _pair_sums(s, bandwidth)
    if bandwidth not in s.data.pair_sums:
        s.data.pair_sums[bandwidth] = _pair_sums(s, bandwidth)
    return s.data.pair_sums[bandwidth]


def _pair_sums(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    if s.data.tensor is not None:
        from hcal.metrics.device_pairs import pair_sums_on_device

        return pair_sums_on_device(s, bandwidth)
    out, squares = np.zeros(s.n), 0.0
    for i, j, h in skce_blocks(s, bandwidth):
        out[i] += h @ s.w[j]
        if i != j:
            out[j] += s.w[i] @ h
        squares += (1 if i == j else 2) * float(np.vdot(h, h))
    return out, squares


def skce_shares(s: Sample) -> Vector:
    """Return values whose mean is skce and whose spread is its first-order sampling error, shape (N,)."""
    rows = pair_sums(s, 1.0)[0] / (s.n - 1)
    # A U-statistic of order 2 varies twice as much as the mean of its row sums.
    return np.asarray(2 * rows - rows.mean())


def skce_jackknife(s: Sample) -> tuple[float, float]:
    """Return skce and its standard error."""
    sums, squares = pair_sums(s, 1.0)
    share = sums / (s.n - 1)  # mean of h_ij over j: the projection of the U-statistic
    # The jackknife counts the noise of single pairs twice; what is left is never less than that noise.
    pairs = 2 * squares / (s.n * (s.n - 1)) ** 2
    variance = max(4 * share.var(ddof=1) / s.n - pairs, pairs)
    return float(share.mean()), float(np.sqrt(variance))


def skce_ends(s: Sample, _: float, z: float) -> tuple[float, float]:
    """Return the ends of the interval of skce: z standard errors to each side."""
    value, se = skce_jackknife(s)
    return value - z * se, value + z * se


def skce_blocks(s: Sample, bandwidth: float) -> Iterator[tuple[slice, slice, Float64]]:
    """Yield (rows, columns, h) for the blocks of the upper triangle, with 0 on the diagonal."""
    p, y, squares = s.data.probs.astype(np.float64, copy=False), s.y, s.data.squares
    spans = [slice(i, min(i + _SPAN, s.n)) for i in range(0, s.n, _SPAN)]
    for first, i in enumerate(spans):
        for j in spans[first:]:
            gram = p[i] @ p[j].T
            h = (squares[i, None] - ROUNDING) + squares[None, j] - 2 * gram
            np.sqrt(np.maximum(h, 0, out=h), out=h)
            h *= -1 / bandwidth
            np.exp(h, out=h)
            gram -= p[i][:, y[j]]
            gram -= p[j][:, y[i]].T
            gram += y[i, None] == y[None, j]
            h *= gram
            if i == j:
                np.fill_diagonal(h, 0.0)
            yield i, j, h
