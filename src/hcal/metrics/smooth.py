"""Top-label errors without bins: cumulated gaps, kernels, densities, and Spiegelhalter's test.

``conf`` is the largest probability of a row, and ``hit`` is 1 if its class is the label, else 0. Both arrays are in
ascending order of the confidences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.fft import irfft, rfft

from hcal.metrics.registry import metric
from hcal.metrics.sample import Vector, as_sample, check_bandwidth
from hcal.numerics import Float64

#: Grid of ``kde_ece``, with margins beyond [0, 1] for the mirror images of the widest kernel.
GRID: Final = np.linspace(-0.6, 1.6, 2**14)
_STEP: Final = float(GRID[1] - GRID[0])
_TINY: Final = 5e-7  # half the density below which the published definition does not divide
_WIDEST: Final = 0.2  # the largest bandwidth whose kernel stays inside the margins of the grid
#: A kernel at least this wide (half its width, in grid steps) is nearly 0 at its last point, which may then be copied.
_RESOLVED: Final = 100
#: Grid cells of ``smece``. Each row is split between its two nearest cells: an error of the order (1/(CELLS·σ))².
CELLS: Final = 4096
#: Spiegelhalter's variance clips confidences to this distance from 0 and 1, so that one miss does not make Z infinite.
_EPSILON: Final = float(np.finfo(np.float32).eps)


@metric("top-label", "KDE-ECE", "ECE with smooth densities in place of bins", weights="counts")
def kde_ece(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bandwidth: float | None = None
) -> float:
    """Return the calibration error of order 1 with densities in place of bins (triweight kernel, mirrored).

    Zhang, Kailkhura, Han: Mix-n-Match, ICML 2020. For K = 2 it looks at P(class 1) and the label. With no
    correct prediction the accuracy is 0 everywhere, and the answer is the mean confidence.

    Parameters
    ----------
    bandwidth : float, optional
        Standard deviation of the kernel; std(conf of the correct samples)·(2N)^(−1/5) by default.

    Examples
    --------
    >>> p = [[0.4, 0.6], [0.3, 0.7], [0.1, 0.9], [0.8, 0.2]]
    >>> round(kde_ece(p, [1, 1, 1, 0]), 3)
    0.251
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("kde_ece")
    if s.k == 2:
        return _kde_error(s.data.column(1), (s.y == 1).astype(np.float64), s.w, bandwidth)
    return _kde_error(s.ranked.conf, s.ranked.hit, s.ranked.weight, bandwidth)


def _kde_error(score: Vector, event: Vector, weight: Vector, bandwidth: float | None) -> float:
    """Return ∫|x − P(event | score = x)| dP(score) with kernel densities."""
    n, correct = weight.sum(), weight * event
    if correct.sum() == 0:
        return float(np.average(score, weights=weight))
    if bandwidth is None:
        mean = np.average(score, weights=correct)
        std = float(np.sqrt(np.average((score - mean) ** 2, weights=correct)))
        bandwidth = min(
            std * (2 * n) ** -0.2, _WIDEST
        )  # the rule gives more for a few rows at 0 and 1
    if bandwidth > _WIDEST:
        raise ValueError(
            f"bandwidth must be at most 0.2 (the grid ends 0.6 beyond [0, 1]), got {bandwidth}"
        )
    # If all scores of the event are equal the bandwidth is 0; the kernel is then one grid step wide.
    half = max(3 * bandwidth, _STEP)
    density_event, density = (_mirrored_density(score, mass, half) for mass in (correct, weight))
    return _integrate(density_event, density, float(correct.sum() / n), half)


def _mirrored_density(score: Vector, mass: Vector, half: float) -> Vector:
    """Return the kernel density of the data and their mirror images on the grid; half of its mass lies in [0, 1].

    A circular convolution suffices, because the kernel reaches no further than the margins of the grid (0.6).
    """
    both = np.concatenate([score, np.where(score < 0.5, -score, 2 - score)])
    grid = share_out(
        np.concatenate([mass, mass]) / (2 * mass.sum()), (both - GRID[0]) / _STEP, len(GRID)
    )
    reach = int(half / _STEP)
    u = np.arange(-reach, reach + 1) * _STEP / half
    kernel = np.zeros(len(GRID))
    kernel[np.arange(-reach, reach + 1)] = 35 / (32 * half) * (1 - u * u) ** 3
    return np.asarray(np.maximum(irfft(rfft(grid) * rfft(kernel), n=len(GRID)), 0))


def share_out(mass: Vector, place: Vector, size: int) -> Vector:
    """Split every mass between the two grid points next to its place, by linear weights; shape (size,).

    >>> share_out(np.array([1.0, 2.0]), np.array([1.25, 3.0]), 4)
    array([0.  , 0.75, 0.25, 2.  ])
    """
    left = np.clip(np.floor(place).astype(np.int64), 0, size - 2)
    right = mass * (place - left)
    return np.asarray(np.bincount(left, mass - right, size) + np.bincount(left + 1, right, size))


def _integrate(density_event: Vector, density: Vector, rate: float, half: float) -> float:
    inside = (GRID > 0) & (GRID < 1)
    x, pe, pa = GRID[inside], density_event[inside], density[inside]
    with np.errstate(divide="ignore", invalid="ignore"):
        integrand = np.abs(x - np.minimum(rate * pe / pa, 1.0)) * pa
    valid = np.maximum(pe, pa) > _TINY
    # Invalid points copy the last valid value (0 before the first), as published. With a kernel of only a few grid
    # steps that value is large, and equal scores would get errors in the thousands, so nothing is copied then.
    last = np.maximum.accumulate(np.where(valid, np.arange(len(x)), -1))
    if half < _RESOLVED * _STEP:
        last = np.where(valid, last, -1)
    integrand = np.where(last >= 0, np.nan_to_num(integrand, nan=0.0)[last], 0.0)
    error, mass = (f.sum() - (f[0] + f[-1]) / 2 for f in (integrand, pa))  # by the trapezoid rule
    return float(error / mass)


@metric(
    "top-label", "MMCE", "kernel distance between confidence and accuracy, no bins", of_hits=True
)
def mmce(probs: Any, y: Any = None, *, sample_weight: Any = None, bandwidth: float = 0.4) -> float:
    """Return the maximum mean calibration error with kernel exp(−|c − c'|/bandwidth), diagonal included.

    Kumar, Sarawagi, Jain: Trainable Calibration Measures, ICML 2018. Exact in O(N log N): on sorted
    confidences the exponential kernel factorises.

    Examples
    --------
    >>> mmce([[0.25, 0.75]], [1])
    0.25
    """
    check_bandwidth(bandwidth)
    r = as_sample(probs, y, sample_weight).ranked
    return float(
        np.sqrt(max(exponential_sum(r.conf, r.weight * (r.hit - r.conf), 1 / bandwidth), 0))
        / r.total
    )


def exponential_sum(x: Vector, a: Vector, rate: float) -> float:
    """Return Σ_ij a_i a_j exp(−rate·|x_i − x_j|) for ascending x, in O(N).

    exp(−r(x_i − x_j)) = exp(−r·x_i)·exp(r·x_j) for j < i, so one cumulated sum gives every row. x is cut into
    stretches of length 500/rate, where exp(rate·x) cannot overflow. Shapes: x (N,), ascending, a (N,).

    >>> round(exponential_sum(np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.log(2.0)), 12)
    3.0
    """
    total, carry, start, last = 0.0, 0.0, 0, float(x[0])
    while start < len(x):
        first = float(x[start])
        stop = int(np.searchsorted(x, first + 500 / rate, side="right"))
        part, grow = a[start:stop], np.exp(rate * (x[start:stop] - first))
        carry *= float(np.exp(-rate * (first - last)))
        sums = carry + np.cumsum(part * grow)
        before = np.concatenate([[carry], sums[:-1]])
        total += float((part * part).sum() + 2 * (part * before / grow).sum())
        carry, start, last = float(sums[-1] / grow[-1]), stop, float(x[stop - 1])
    return total


@metric("top-label", "KS error", "largest cumulated gap between confidence and accuracy, no bins",
        label="KS", of_hits=True)  # fmt: skip
def ks(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the Kolmogorov–Smirnov error: max_i |cumulated confidence − cumulated hits|/N, no bins.

    Gupta et al.: Calibration of Neural Networks using Splines, ICLR 2021.

    Examples
    --------
    >>> round(ks([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    return float(np.abs(s.ranked.gap).max() / s.total)


@metric("top-label", "smooth ECE",
        "ECE with a smooth kernel in place of bins, of a width that it finds itself",
        label="smECE", of_hits=True)  # fmt: skip
def smece(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the smooth calibration error of the top label: no bins, no bandwidth to choose.

    Błasiok, Nakkiran: Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing, ICLR 2024.

    Examples
    --------
    >>> p = [[0.1, 0.9]] * 40
    >>> round(smece(p, [1] * 20 + [0] * 20), 3)
    0.4
    """
    r = as_sample(probs, y, sample_weight).ranked
    return smooth_error(r.conf, r.hit - r.conf, r.weight)


def smooth_error(at: Vector, residual: Vector, weight: Vector) -> float:
    """Return the fixed point of smECE: the σ for which residuals smoothed with a Gaussian of width σ integrate to σ.

    The kernel is reflected at 0 and 1. ∫|smoothed residual| falls as σ grows, so there is one solution. All (N,).

    >>> smooth_error(np.array([0.5]), np.array([0.0]), np.array([1.0]))
    0.0
    """
    waves = spectrum(at, weight * residual / weight.sum())

    def excess(sigma: float) -> float:
        return float(np.abs(smoothed(waves, sigma)).sum()) - sigma

    # The error is at most 1. If it is 1, rounding may hide the change of sign.
    return 1.0 if excess(1.0) >= 0 else _crossing(excess)


def _crossing(excess: Callable[[float], float]) -> float:
    """Return where a falling function crosses 0 in [0, 1], by the Illinois variant of regula falsi.

    ``scipy.optimize.brentq`` does the same, but its import takes longer than all that ``evaluate`` computes.

    >>> round(_crossing(lambda x: 0.25 - x * x), 12)
    0.5
    """
    ends, values, last = [0.0, 1.0], [excess(0.0), excess(1.0)], -1
    sigma, before = 0.0, 1.0
    while abs(sigma - before) > 1e-13:
        before, sigma = sigma, (ends[0] * values[1] - ends[1] * values[0]) / (values[1] - values[0])
        value = excess(sigma)
        moved = int(value <= 0)
        if (
            moved == last
        ):  # the other end was kept twice in a row: the Illinois variant halves its value
            values[1 - moved] /= 2
        ends[moved], values[moved], last = sigma, value, moved
    return sigma


def spectrum(at: Vector, mass: Vector) -> Vector:
    """Return the Fourier coefficients of masses at points of [0, 1] and of their mirror images beyond 1.

    Each mass is split between its two nearest cells.

    >>> round(float(smoothed(spectrum(np.array([0.3]), np.array([2.0])), 0.1).sum()), 9)
    2.0
    >>> smoothed(spectrum(np.array([0.0, 1.0]), np.array([1.0, 2.0])), 0.0)[[0, -1]].round(9)
    array([1., 2.])
    """
    cells = share_out(mass, np.clip(at * CELLS - 0.5, 0, CELLS - 1), CELLS)
    return np.asarray(rfft(np.concatenate([cells, cells[::-1]])))


def smoothed(waves: Vector, sigma: float) -> Vector:
    """Return the masses of the cells smoothed by a Gaussian of width σ, reflected at 0 and 1; shape (CELLS,).

    The Gaussian reflected at both ends is the heat kernel of [0, 1]: it multiplies each Fourier coefficient.

    >>> smoothed(spectrum(np.array([0.3]), np.array([1.0])), 0.1).argmax() / CELLS
    np.float64(0.2998046875)
    """
    decay = np.exp(-0.5 * (sigma * np.pi * np.arange(len(waves))) ** 2)
    return np.asarray(irfft(waves * decay)[:CELLS])


@metric("top-label", "Kuiper error", "largest cumulated gap of any interval of confidences, no bins",
        label="Kuiper", of_hits=True)  # fmt: skip
def kuiper(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the range of the cumulated gap: max − min over all intervals of confidence, no bins.

    Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu: Metrics of calibration for probabilistic predictions, JMLR
    2022 (ECCE-R). It is the largest |mean gap · share of rows| of any interval of confidences; ``ks`` looks
    only at those that begin at 0. Rows of equal confidence enter together.

    Examples
    --------
    >>> round(kuiper([[0.25, 0.75], [0.4, 0.6]], [1, 1]), 6)
    0.325
    """
    s = as_sample(probs, y, sample_weight)
    gap = s.ranked.gap[
        np.diff(s.ranked.conf, append=np.inf) > 0
    ]  # at the last row of each run of equal confidences
    return float((max(gap.max(), 0) - min(gap.min(), 0)) / s.total)


@metric("top-label", "Spiegelhalter |Z|",
        "squared error beyond what the confidences expect, in standard deviations; grows with N",
        label="Spiegelhalter", weights="counts", of_hits=True)  # fmt: skip
def spiegelhalter(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return |Z| of Spiegelhalter's test on the top label: about 0.8 by chance, above 1.96 in 5 % of cases.

    Spiegelhalter: Probabilistic prediction in patient management and clinical trials, Statistics in Medicine
    1986. Z = Σ (hit − conf)(1 − 2·conf) / √Σ (1 − 2·conf)²·conf·(1 − conf) is the squared error less what
    calibrated predictions expect of it, in standard deviations. It grows with N: compare p-values, not sizes.

    Examples
    --------
    >>> round(spiegelhalter([[0.1, 0.9]] * 40, [1] * 20 + [0] * 20), 3)
    8.433
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("spiegelhalter")
    return abs(spiegelhalter_z(s.ranked.conf, s.ranked.hit, s.ranked.weight))


def spiegelhalter_z(p: Vector, event: Float64, weight: Vector) -> float:
    """Return Spiegelhalter's Z with its sign: positive where the squared error is larger than expected."""
    slope, inner = 1 - 2 * p, np.clip(p, _EPSILON, 1 - _EPSILON)
    variance = float(weight @ (slope**2 * inner * (1 - inner)))
    # If every probability is 1/2, the squared error is always 1/4 and Z is 0.
    return float((weight * slope) @ (event - p) / np.sqrt(variance)) if variance > 0 else 0.0
