"""The Dirichlet-kernel canonical error: blocked matrix products, never N x N.

log κ(i←j) = Σ_k p_jk log p_ik − const_j is a matrix product less a vector; a block of rows is normalised by
its maximum, so nothing overflows. On CUDA tensors the same products run on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import gammaln

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.numerics import Float64, IntArray


@documented_metric(weights="counts")
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
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("dkde_ce")
    if s.total < 2:
        return float("nan")
    return s.mean(dkde_rows(s, bandwidth, floor))


def dkde_rows(s: Sample, bandwidth: float = 1.0, floor: float = 1e-25) -> Vector:
    """Return ‖π_i − p_i‖² of every row, shape (N,)."""
    if s.data.tensor is not None:
        from hcal.metrics.device_pairs import dkde_rows_on_device

        return dkde_rows_on_device(s, bandwidth, floor)
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
    s: Sample, columns: IntArray, bandwidth: float, floor: float
) -> Iterator[tuple[IntArray, Float64, Float64]]:
    """Yield (rows, their probabilities, weighted kernel to all rows in the order of ``columns``)."""
    p = np.maximum(s.data.probs.astype(np.float64), floor)
    shape = p[columns] / bandwidth
    with np.errstate(divide="ignore"):
        offset = np.log(s.w[columns]) - dirichlet_constant(shape)
    place = np.argsort(columns, kind="stable")
    # As few rows as fit the cache, but no fewer than make the matrix product worth its reading of P.
    step = max(1, min(BLOCK // s.n, max(BLOCK // (16 * s.n), 4 * s.k)))
    for i in range(0, s.n, step):
        rows = np.arange(i, min(i + step, s.n))
        kernel = np.log(p[rows]) @ shape.T
        kernel += offset
        _drop_self(kernel, np.arange(len(rows)), place[rows], s.w[rows])
        kernel -= kernel.max(axis=1, keepdims=True)
        np.exp(kernel, out=kernel)
        yield rows, p[rows], kernel


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
    sums, noise = _group_sums(s, group, groups)
    values = sums / (s.n - np.bincount(group, minlength=groups))
    variance = (groups - 1) / groups * ((values - values.mean()) ** 2).sum()
    return float(np.sqrt(variance)), noise / s.n


def _group_sums(s: Sample, group: IntArray, groups: int) -> tuple[Vector, float]:
    """Return Σ_i ‖π_i − p_i‖² with each group left out, and the summed noise of the labels."""
    if s.data.tensor is not None:
        from hcal.metrics.device_pairs import dkde_groups_on_device

        return dkde_groups_on_device(s, group, groups)
    cell = group * s.k + s.y
    columns = np.argsort(cell, kind="stable")
    present, starts = np.unique(cell[columns], return_index=True)
    spread = 1 - s.data.squares[columns]
    sums, noise = np.zeros(groups), 0.0
    for rows, p, kernel in _kernel_blocks(s, columns, 1.0, 1e-25):
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
    return sums, noise


def dkde_ends(s: Sample, value: float, z: float) -> tuple[float, float]:
    """Return the ends of the interval of dkde_ce; the noise of the labels may be all there is."""
    se, noise = dkde_spread(s)
    return max(value - noise - z * se, 0.0), value + z * se


def _drop_self(kernel: Float64, row: Any, column: Any, weight: Vector) -> None:
    """Leave each row itself out: one copy less of its weight (none left: −inf)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fewer = np.where(weight > 1, np.log(np.maximum(weight - 1, 0)) - np.log(weight), -np.inf)
    kernel[row, column] = np.where(np.isneginf(fewer), -np.inf, kernel[row, column] + fewer)


def dirichlet_constant(shape: Float64) -> Vector:
    """Return Σ_k lnΓ(a_k + 1) − lnΓ(Σ_k (a_k + 1)) of every row, shape (N,)."""
    total = gammaln(shape.sum(axis=1) + shape.shape[1])
    step = max(1, BLOCK // shape.shape[1])
    parts = [gammaln(shape[i : i + step] + 1).sum(axis=1) for i in range(0, len(shape), step)]
    return np.asarray(np.concatenate(parts) - total)
