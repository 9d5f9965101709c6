"""Canonical errors: is the whole vector right? Sums over all pairs of rows, in blocks of matrix products.

They cost O(N²K): ``hcal.evaluate`` computes them on a systematic subset of large samples and says so; the
functions here take every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln

from hcal.metrics.registry import metric
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.numerics import Float64, IntArray

_SPAN = 256  # rows of a block of pairs: a temporary of 0.5 MB stays in the cache
# Squared distances are differences of numbers near 1: less this, equal rows are at distance 0 and not 1e-8.
_ROUNDING = 1e-15
Estimator = Literal["unbiased", "biased", "linear"]


def _positive(bandwidth: float) -> None:
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")


# -- the squared kernel calibration error -----------------------------------------------------------


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


def _skce_ends(s: Sample, _: float, z: float) -> tuple[float, float]:
    value, se = skce_jackknife(s)
    return value - z * se, value + z * se


@metric("canonical", "SKCE", "squared kernel error of the whole vector; unbiased, can be negative",
        kind="debiased", weights="counts", large=True, shares=skce_shares, ends=_skce_ends)  # fmt: skip
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
    estimator : {"unbiased", "biased", "linear"}
        ``"linear"`` takes no weights: its answer depends on the order of the rows.
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
    _positive(bandwidth)
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
    total, step = 0.0, 2 * max(1, BLOCK // (2 * s.k))
    for i in range(0, 2 * half, step):
        rows = np.arange(i, min(i + step, 2 * half))
        p = s.data.probs[rows].astype(np.float64)
        distance = np.linalg.norm(p[0::2] - p[1::2], axis=1)
        p[np.arange(len(rows)), s.y[rows]] -= 1
        total += float((np.exp(-distance / bandwidth) * (p[0::2] * p[1::2]).sum(axis=1)).sum())
    return total / half


def pair_sums(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    """Return Σ_{j ≠ i} w_j·h_ij of every row, shape (N,), and Σ_{i ≠ j} h_ij²; remembered without weights."""
    if s.weight is None and bandwidth in s.data.pair_sums:
        return s.data.pair_sums[bandwidth]
    out, squares = np.zeros(s.n), 0.0
    for i, j, h in skce_blocks(s, bandwidth):
        out[i] += h @ s.w[j]
        if i != j:
            out[j] += s.w[i] @ h
        squares += (1 if i == j else 2) * float(np.vdot(h, h))
    if s.weight is None:
        s.data.pair_sums[bandwidth] = out, squares
    return out, squares


def skce_blocks(s: Sample, bandwidth: float) -> Iterator[tuple[slice, slice, Float64]]:
    """Yield (rows, columns, h) for the blocks of the upper triangle, with 0 on the diagonal."""
    p, y, squares = s.data.probs.astype(np.float64, copy=False), s.y, s.data.squares
    spans = [slice(i, min(i + _SPAN, s.n)) for i in range(0, s.n, _SPAN)]
    for first, i in enumerate(spans):
        for j in spans[first:]:
            gram = p[i] @ p[j].T
            h = (squares[i, None] - _ROUNDING) + squares[None, j] - 2 * gram
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


# -- the Dirichlet-kernel error ---------------------------------------------------------------------


def dkde_rows(s: Sample, bandwidth: float = 1.0, floor: float = 1e-25) -> Vector:
    """Return ‖π_i − p_i‖² of every row, shape (N,)."""
    by_class = np.argsort(s.y, kind="stable")  # a class is a run of columns: its mass is one reduceat
    present, starts = np.unique(s.y[by_class], return_index=True)
    out = np.empty(s.n)
    for rows, p, kernel in _kernel_blocks(s, by_class, bandwidth, floor):
        mass = np.add.reduceat(kernel, starts, axis=1)
        mass /= mass.sum(axis=1, keepdims=True)
        p[:, present] -= mass
        out[rows] = np.einsum("nk,nk->n", p, p)
    return out


def _kernel_blocks(
    s: Sample, columns: IntArray, bandwidth: float = 1.0, floor: float = 1e-25
) -> Iterator[tuple[IntArray, Float64, Float64]]:
    """Yield (rows, their probabilities, weighted kernel to all rows in the order of ``columns``).

    log κ(i←j) = Σ_k p_jk log p_ik − const_j is a matrix product less a vector; a block of rows is normalised
    by its maximum, so nothing overflows.
    """
    p = np.maximum(s.data.probs.astype(np.float64), floor)
    shape = p[columns] / bandwidth
    with np.errstate(divide="ignore"):
        offset = np.log(s.w[columns]) - _dirichlet_constant(shape)
        # Each row itself is left out: one copy less of its weight (none left: −inf).
        fewer = np.log(np.maximum(s.w - 1, 0)) - np.log(np.maximum(s.w, 1))
    place = np.argsort(columns, kind="stable")
    # As few rows as fit the cache, but no fewer than make the matrix product worth its reading of P.
    step = max(1, min(BLOCK // s.n, max(BLOCK // (16 * s.n), 4 * s.k)))
    for i in range(0, s.n, step):
        rows = np.arange(i, min(i + step, s.n))
        kernel = np.log(p[rows]) @ shape.T
        kernel += offset
        kernel[np.arange(len(rows)), place[rows]] += fewer[rows]
        kernel -= kernel.max(axis=1, keepdims=True)
        np.exp(kernel, out=kernel)
        yield rows, p[rows], kernel


def _dirichlet_constant(shape: Float64) -> Vector:
    """Return Σ_k lnΓ(a_k + 1) − lnΓ(Σ_k (a_k + 1)) of every row, shape (N,)."""
    step = max(1, BLOCK // shape.shape[1])
    parts = [gammaln(shape[i : i + step] + 1).sum(axis=1) for i in range(0, len(shape), step)]
    return np.asarray(np.concatenate(parts) - gammaln(shape.sum(axis=1) + shape.shape[1]))


def dkde_spread(s: Sample, groups: int = 20, random_state: int = 0) -> tuple[float, float]:
    """Return the standard error of dkde_ce, and how much the noise of the labels in π adds to it.

    The standard error comes from leaving out one of ``groups`` random groups of rows at a time, as neighbours
    too; all of them in one pass over the kernel. The noise is mean_i Σ_j κ_ij²·(1 − ‖p_j‖²), the variance of
    π_i if labels were drawn from the predictions. The sample has no weights.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([1, 1, 1], size=200)
    >>> se, noise = dkde_spread(Sample(p, rng.integers(0, 3, 200)))
    >>> 0 < se < 0.1 and 0 < noise < 0.1
    True
    """
    groups = min(groups, s.n)
    group = np.random.default_rng(random_state).permutation(s.n) % groups
    cell = group * s.k + s.y
    columns = np.argsort(cell, kind="stable")
    present, starts = np.unique(cell[columns], return_index=True)
    spread = 1 - s.data.squares[columns]
    sums, noise = np.zeros(groups), 0.0
    for rows, p, kernel in _kernel_blocks(s, columns):
        kernel /= kernel.sum(axis=1, keepdims=True)
        noise += float((kernel**2 @ spread).sum())
        cells = np.zeros((len(rows), groups * s.k))
        cells[:, present] = np.add.reduceat(kernel, starts, axis=1)
        mass = cells.reshape(len(rows), groups, s.k)
        whole = mass.sum(axis=1)
        for g in range(groups):
            kept = group[rows] != g
            rest = whole[kept] - mass[kept, g]
            with np.errstate(invalid="ignore", divide="ignore"):
                gap = rest / rest.sum(axis=1, keepdims=True) - p[kept]
            sums[g] += float(np.einsum("nk,nk->", gap, gap))
    values = sums / (s.n - np.bincount(group, minlength=groups))
    variance = (groups - 1) / groups * ((values - values.mean()) ** 2).sum()
    return float(np.sqrt(variance)), noise / s.n


def _dkde_ends(s: Sample, value: float, z: float) -> tuple[float, float]:
    """Return the ends of the interval of dkde_ce; the noise of the labels may be all there is."""
    se, noise = dkde_spread(s)
    return max(value - noise - z * se, 0.0), value + z * se


@metric("canonical", "DKDE-CE", "squared distance to the label frequencies among similar predictions",
        weights="counts", large=True, shares=dkde_rows, ends=_dkde_ends)  # fmt: skip
def dkde_ce(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bandwidth: float = 1.0, floor: float = 1e-25
) -> float:
    """Return the Dirichlet-kernel canonical calibration error mean_i ‖π_i − p_i‖², no root.

    Popordanoska, Sayer, Blaschko: A Consistent and Differentiable Lp Canonical Calibration Error Estimator,
    NeurIPS 2022. π_i is the mean of the other rows' one-hot labels, weighted by the Dirichlet(p_j/h + 1)
    density at p_i.

    Parameters
    ----------
    bandwidth : float
    floor : float
        Probabilities are clipped to at least this before the logarithm.

    Returns
    -------
    float
        NaN for a single row, which has no other.

    Examples
    --------
    >>> round(dkde_ce([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.125
    """
    _positive(bandwidth)
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("dkde_ce")
    return s.mean(dkde_rows(s, bandwidth, floor)) if s.total >= 2 else float("nan")
