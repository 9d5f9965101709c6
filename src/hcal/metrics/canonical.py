"""Canonical calibration errors, of the whole probability vector: sums over all pairs of rows.

They cost O(N²K), in blocks of matrix products. For large samples ``hcal.evaluate`` computes them on a systematic subset
and says so; the functions here use every row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import gammaln

from hcal.frames import AnyArray
from hcal.metrics.registry import metric, needs_pair
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample, check_bandwidth
from hcal.metrics.scores import brier_rows
from hcal.numerics import Float64, IntArray, row_blocks

_SPAN = 128  # rows of a block of pairs: a few temporaries of 0.13 MB stay in the cache
# Subtracted from squared distances, which carry this rounding error: equal rows then have distance 0, not 1e-8.
_ROUNDING = 1e-15
_CHANCE_ROWS = 1000  # rows from which the level by chance of dkde_ce is computed
_FLOOR = 1e-25  # dkde_ce clips probabilities to at least this before the logarithm, as published


# -- the squared kernel calibration error -----------------------------------------------------------


def skce_shares(s: Sample) -> Vector:
    """Return values (N,) whose mean is skce and whose standard error is, to first order, that of skce."""
    rows = pair_sums(s, 1.0)[0] / (s.n - 1)
    # The deviation of a U-statistic of order 2 is, to first order, twice that of the mean of its projections.
    return np.asarray(2 * rows - rows.mean())


def skce_jackknife(s: Sample) -> tuple[float, float]:
    """Return skce and its standard error."""
    sums, squares = pair_sums(s, 1.0)
    share = sums / (s.n - 1)  # mean of h_ij over j: the projection of the U-statistic
    # The jackknife variance contains the noise of single pairs twice; subtract it once, but keep at least that noise.
    pairs = 2 * squares / (s.n * (s.n - 1)) ** 2
    variance = max(4 * share.var(ddof=1) / s.n - pairs, pairs)
    return float(share.mean()), float(np.sqrt(variance))


def _skce_ends(s: Sample, _: float, z: float) -> tuple[float, float]:
    value, se = skce_jackknife(s)
    return value - z * se, value + z * se


@metric(
    "canonical",
    "SKCE",
    "squared kernel error of the whole vector; unbiased, can be negative",
    kind="debiased",
    weights="counts",
    large=True,
    shares=skce_shares,
    ends=_skce_ends,
    undefined=needs_pair,
)
def skce(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, bandwidth: float = 1.0
) -> float:
    """Return the squared kernel calibration error with kernel exp(−‖p − p'‖₂/bandwidth).

    Widmann, Lindsten, Zachariah: Calibration tests in multi-class classification, NeurIPS 2019. With
    h_ij = k(p_i, p_j)·⟨e_i − p_i, e_j − p_j⟩, e the one-hot label, it is the mean over i < j: unbiased, so it
    can be negative.

    Parameters
    ----------
    bandwidth : float

    Returns
    -------
    float
        NaN for a single row, which has no pair.

    Examples
    --------
    >>> round(skce([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.125
    """
    check_bandwidth(bandwidth)
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("skce")
    if s.total < 2:
        return float("nan")
    pairs = float(np.dot(s.w, pair_sums(s, bandwidth)[0]))
    # h_ii of copies of a row is its squared residual.
    copies = float(np.dot(s.w * (s.w - 1), brier_rows(s)))
    return (pairs + copies) / (s.total * (s.total - 1))


def pair_sums(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    """Return Σ_{j ≠ i} w_j·h_ij of every row, shape (N,), and Σ_{i ≠ j} h_ij²; cached for samples without weights."""
    if s.weight is None and bandwidth in s.data.pair_sums:
        return s.data.pair_sums[bandwidth]
    sums = np.zeros(s.n)
    squares = 0.0
    for i, j, h in skce_blocks(s, bandwidth):
        sums[i] += h @ s.w[j]
        if i != j:
            sums[j] += s.w[i] @ h
        squares += (1 if i == j else 2) * float(np.vdot(h, h))
    if s.weight is None:
        s.data.pair_sums[bandwidth] = sums, squares
    return sums, squares


def skce_blocks(s: Sample, bandwidth: float) -> Iterator[tuple[slice, slice, Float64]]:
    """Yield (rows, columns, h) for the blocks of the upper triangle, with 0 on the diagonal."""
    p = s.data.probs.astype(np.float64, copy=False)
    squares = s.data.squares
    residual = -p
    residual[np.arange(s.n), s.y] += 1
    spans = row_blocks((s.n, 1), _SPAN)
    for first, i in enumerate(spans):
        for j in spans[first:]:
            h = (squares[i, None] - _ROUNDING) + squares[None, j]
            h -= 2 * (p[i] @ p[j].T)
            np.sqrt(np.maximum(h, 0, out=h), out=h)
            h *= -1 / bandwidth
            np.exp(h, out=h)
            h *= residual[i] @ residual[j].T
            if i == j:
                np.fill_diagonal(h, 0.0)
            yield i, j, h


# -- the Dirichlet-kernel error ---------------------------------------------------------------------


def _dkde(
    s: Sample, bandwidth: float, chosen: IntArray | None = None
) -> Iterator[tuple[IntArray, Float64, Float64, Float64, IntArray]]:
    """Yield blocks (rows, π − p, π, normalised kernel to all rows sorted by class, that order).

    log κ(i←j) = Σ_k p_jk log p_ik − const_j is a matrix product minus a vector. The blocks hold all rows, or the chosen
    ones.
    """
    chosen = np.arange(s.n) if chosen is None else chosen
    by_class = np.argsort(s.y, kind="stable")  # each class is a run of columns, which reduceat sums
    present, starts = np.unique(s.y[by_class], return_index=True)
    p = np.maximum(s.data.probs.astype(np.float64), _FLOOR)
    shape = p[by_class] / bandwidth
    with np.errstate(divide="ignore"):
        offset = np.log(s.w[by_class]) - _log_gammas(shape)
        # A row is left out of its own π: its weight is lowered by one copy (log 0 = −inf if none is left).
        left = np.maximum(s.w - 1, 0)
        fewer = np.log(left) - np.log(np.maximum(s.w, 1))
    place = np.argsort(by_class, kind="stable")
    # Blocks of few rows fit the cache, but each block reads all of P, so they must not be too small either.
    fewest = max(BLOCK // (16 * s.n), 4 * s.k)
    step = max(1, min(BLOCK // s.n, fewest))
    for start in range(0, len(chosen), step):
        rows = chosen[start : start + step]
        kernel = np.log(p[rows]) @ shape.T
        kernel += offset
        kernel[np.arange(len(kernel)), place[rows]] += fewer[rows]
        kernel -= kernel.max(axis=1, keepdims=True)  # a softmax in place
        np.exp(kernel, out=kernel)
        kernel /= kernel.sum(axis=1, keepdims=True)
        mass = np.zeros_like(p[rows])
        mass[:, present] = np.add.reduceat(kernel, starts, axis=1)
        yield rows, mass - p[rows], mass, kernel, by_class


def _dkde_shares(s: Sample) -> tuple[Vector, float]:
    """Return values (N,) whose mean is dkde_ce, with its first-order standard error, and the bias of label noise.

    The value of a row is its own distance plus its influence on π of the other rows; the sample has no weights. The
    noise of the labels in π adds mean_i Σ_j κ_ij²·(1 − ‖p_j‖²) to dkde_ce if predictions are calibrated.
    """
    distance = np.empty(s.n)
    influence = np.zeros(s.n)
    noise = 0.0
    for rows, gap, mass, kernel, columns in _dkde(s, 1.0):
        distance[rows] = np.einsum("nk,nk->n", gap, gap)
        projection = np.einsum("nk,nk->n", gap, mass)
        moved = gap[:, s.y[columns]] - projection[:, None]
        influence[columns] += 2 * np.einsum("nm,nm->m", kernel, moved)
        noise += float((kernel**2 @ (1 - s.data.squares[columns])).sum())
    return distance + influence, noise / s.n


def _dkde_ends(s: Sample, value: float, z: float) -> tuple[float, float]:
    """Return the interval of dkde_ce; its lower end allows for the bias of label noise."""
    shares, noise = _dkde_shares(s)
    margin = z * float(shares.std(ddof=1) / np.sqrt(s.n))
    return max(value - noise - margin, 0.0), value + margin


def _dkde_by_chance(s: Sample, value: float) -> float:
    """Return the mean of dkde_ce over labels that are drawn from the probabilities.

    π_i then has the mean Σ_j κ_ij·p_j, and a variance of Σ_j κ_ij²·(1 − ‖p_j‖²) over all classes. Of more than 1,000
    rows i, a systematic sample tells the ratio of this to the value that is measured.
    """
    chosen = s.systematic_rows(_CHANCE_ROWS)
    p = s.data.probs.astype(np.float64, copy=False)
    measured = 0.0
    expected = 0.0
    for rows, gap, _, kernel, columns in _dkde(s, 1.0, chosen):
        # κ_ij counts the w_j copies of row j together, and each of them has a label of its own.
        copies = np.maximum(s.w[columns], 1)
        per_copy = (1 - s.data.squares[columns]) / copies
        noise = kernel**2 @ per_copy
        if s.weight is not None:  # of row i itself, one copy is left out
            of_itself = kernel[np.arange(len(rows)), np.argsort(columns)[rows]] ** 2
            pairs = np.maximum(s.w[rows] * (s.w[rows] - 1), 1)
            noise += of_itself * (1 - s.data.squares[rows]) / pairs
        smoothed = kernel @ p[columns] - p[rows]
        bias = np.einsum("nk,nk->n", smoothed, smoothed)
        expected += float(s.w[rows] @ (bias + noise))
        measured += float(s.w[rows] @ np.einsum("nk,nk->n", gap, gap))
    return value * expected / measured if measured > 0 else value


def _log_gammas(shape: Float64) -> Vector:
    """Return Σ_k lnΓ(a_k + 1) of every row, (N,); lnΓ(Σ_k (a_k + 1)) is the same for all rows and cancels."""
    sums = np.empty(len(shape))
    for rows in row_blocks(shape.shape, BLOCK):
        sums[rows] = gammaln(shape[rows] + 1).sum(axis=1)
    return sums


@metric(
    "canonical",
    "DKDE-CE",
    "squared distance to the label frequencies among similar predictions",
    weights="counts",
    large=True,
    shares=lambda s: _dkde_shares(s)[0],
    ends=_dkde_ends,
    by_chance=_dkde_by_chance,
    undefined=needs_pair,
)
def dkde_ce(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, bandwidth: float = 1.0
) -> float:
    """Return the Dirichlet-kernel canonical calibration error mean_i ‖π_i − p_i‖², no root.

    Popordanoska, Sayer, Blaschko: A Consistent and Differentiable Lp Canonical Calibration Error Estimator,
    NeurIPS 2022. π_i is the mean of the other rows' one-hot labels, weighted by the Dirichlet(p_j/h + 1)
    density at p_i. Probabilities are clipped to at least 1e-25 before the logarithm.

    Parameters
    ----------
    bandwidth : float

    Returns
    -------
    float
        NaN for a single row, which has no other.

    Examples
    --------
    >>> round(dkde_ce([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.125
    """
    check_bandwidth(bandwidth)
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("dkde_ce")
    if s.total < 2:
        return float("nan")
    distance = np.empty(s.n)
    for rows, gap, *_ in _dkde(s, bandwidth):
        distance[rows] = np.einsum("nk,nk->n", gap, gap)
    return s.mean(distance)
