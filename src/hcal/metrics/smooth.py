"""Top-label errors without bins: cumulated gaps, kernels, densities, and Spiegelhalter's test.

``conf`` is the probability of the measured event (:data:`hcal.metrics.sample.Event`) and ``hit`` is 1 if it happened,
else 0. Both arrays are in ascending order of ``conf``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.fft import irfft, rfft

from hcal.frames import AnyArray
from hcal.metrics.by_chance import mean_deviation
from hcal.metrics.registry import metric
from hcal.metrics.sample import Event, PositiveClass, Sample, Vector, as_sample, check_bandwidth
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


@metric(
    "top-label",
    "KDE-ECE",
    "ECE with smooth densities in place of bins",
    weights="counts",
    of_hits=True,
)
def kde_ece(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bandwidth: float | None = None,
) -> float:
    """Return the calibration error of order 1 with densities in place of bins (triweight kernel, mirrored).

    Zhang, Kailkhura, Han: Mix-n-Match, ICML 2020. If the event never happens, its frequency is 0 everywhere, and
    the answer is the mean probability.

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
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("kde_ece")
    ranked = s.ranked
    happened = ranked.weight * ranked.hit
    if happened.sum() == 0:
        return float(np.average(ranked.conf, weights=ranked.weight))
    if bandwidth is None:
        bandwidth = _rule_of_thumb(ranked.conf, happened, s.total)
    if bandwidth > _WIDEST:
        raise ValueError(
            f"bandwidth must be at most 0.2 (the grid ends 0.6 beyond [0, 1]), got {bandwidth}"
        )
    # If the event has the same probability in all its rows the bandwidth is 0; the kernel is then one grid step wide.
    half = max(3 * bandwidth, _STEP)
    density_event = _mirrored_density(ranked.conf, happened, half)
    density = _mirrored_density(ranked.conf, ranked.weight, half)
    return _integrate(density_event, density, float(happened.sum() / s.total), half)


def _rule_of_thumb(conf: Vector, happened: Vector, total: float) -> float:
    """Return the published bandwidth, from the standard deviation of the probabilities where the event happened."""
    mean = np.average(conf, weights=happened)
    variance = float(np.average((conf - mean) ** 2, weights=happened))
    bandwidth = float(np.sqrt(variance)) * (2 * total) ** -0.2
    return float(min(bandwidth, _WIDEST))  # the rule gives more for a few rows at 0 and 1


def _mirrored_density(score: Vector, mass: Vector, half: float) -> Vector:
    """Return the kernel density of the data and their mirror images on the grid; half of its mass lies in [0, 1].

    A circular convolution suffices, because the kernel reaches no further than the margins of the grid (0.6).
    """
    both = np.concatenate([score, np.where(score < 0.5, -score, 2 - score)])
    share = np.concatenate([mass, mass]) / (2 * mass.sum())
    grid = share_out(share, (both - GRID[0]) / _STEP, len(GRID))

    steps = int(half / _STEP)
    offset = np.arange(-steps, steps + 1)
    u = offset * _STEP / half
    kernel = np.zeros(len(GRID))
    kernel[offset] = 35 / (32 * half) * (1 - u * u) ** 3
    density = irfft(rfft(grid) * rfft(kernel), n=len(GRID))
    return np.asarray(np.maximum(density, 0))


def share_out(mass: Vector, place: Vector, size: int) -> Vector:
    """Split every mass between the two grid points next to its place, by linear weights; shape (size,).

    >>> share_out(np.array([1.0, 2.0]), np.array([1.25, 3.0]), 4)
    array([0.  , 0.75, 0.25, 2.  ])
    """
    left = np.clip(np.floor(place).astype(np.int64), 0, size - 2)
    to_right = mass * (place - left)
    on_left = np.bincount(left, mass - to_right, size)
    on_right = np.bincount(left + 1, to_right, size)
    return np.asarray(on_left + on_right)


def _integrate(density_event: Vector, density: Vector, rate: float, half: float) -> float:
    """Return ∫|x − P(event | probability x)| dP(x) over [0, 1], where the event's share of all rows is ``rate``."""
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
    return _trapezoid(integrand) / _trapezoid(pa)


def _trapezoid(values: Vector) -> float:
    """Return the integral of values at points one step apart."""
    return float(values.sum() - (values[0] + values[-1]) / 2)


@metric(
    "top-label", "MMCE", "kernel distance between confidence and accuracy, no bins", of_hits=True
)
def mmce(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bandwidth: float = 0.4,
) -> float:
    """Return the maximum mean calibration error with kernel exp(−|c − c'|/bandwidth), diagonal included.

    Kumar, Sarawagi, Jain: Trainable Calibration Measures, ICML 2018. Exact in O(N log N): on sorted
    confidences the exponential kernel factorises.

    Examples
    --------
    >>> mmce([[0.25, 0.75]], [1])
    0.25
    """
    check_bandwidth(bandwidth)
    s = as_sample(probs, y, sample_weight, event, positive)
    ranked = s.ranked
    residual = ranked.weight * (ranked.hit - ranked.conf)
    squared = exponential_sum(ranked.conf, residual, 1 / bandwidth)
    return float(np.sqrt(max(squared, 0.0)) / s.total)


def exponential_sum(x: Vector, a: Vector, rate: float) -> float:
    """Return Σ_ij a_i a_j exp(−rate·|x_i − x_j|) for ascending x, in O(N).

    exp(−r(x_i − x_j)) = exp(−r·x_i)·exp(r·x_j) for j < i, so one cumulated sum gives every row. x is cut into
    stretches of length 500/rate, where exp(rate·x) cannot overflow. Shapes: x (N,), ascending, a (N,).

    >>> round(exponential_sum(np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.log(2.0)), 12)
    3.0
    """
    total = 0.0
    carry = 0.0
    start = 0
    last = float(x[0])
    while start < len(x):
        first = float(x[start])
        stop = int(np.searchsorted(x, first + 500 / rate, side="right"))
        part = a[start:stop]
        growth = np.exp(rate * (x[start:stop] - first))
        carry *= float(np.exp(-rate * (first - last)))
        sums = carry + np.cumsum(part * growth)
        before = np.concatenate([[carry], sums[:-1]])
        diagonal = float((part * part).sum())
        total += diagonal + 2 * float((part * before / growth).sum())
        carry = float(sums[-1] / growth[-1])
        start = stop
        last = float(x[stop - 1])
    return total


@metric(
    "top-label",
    "KS error",
    "largest cumulated gap between confidence and accuracy, no bins",
    label="KS",
    of_hits=True,
)
def ks(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return the Kolmogorov–Smirnov error: max_i |cumulated confidence − cumulated hits|/N, no bins.

    Gupta et al.: Calibration of Neural Networks using Splines, ICLR 2021. Rows of equal confidence enter together.

    Examples
    --------
    >>> round(ks([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    return float(np.abs(s.ranked.gap).max() / s.total)


@metric(
    "top-label",
    "smooth ECE",
    "ECE with a smooth kernel in place of bins, of a width that it finds itself",
    label="smECE",
    of_hits=True,
)
def smece(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return the smooth calibration error: no bins, no bandwidth to choose.

    Błasiok, Nakkiran: Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing, ICLR 2024.

    Examples
    --------
    >>> p = [[0.1, 0.9]] * 40
    >>> round(smece(p, [1] * 20 + [0] * 20), 3)
    0.4
    """
    ranked = as_sample(probs, y, sample_weight, event, positive).ranked
    return smooth_error(ranked.conf, ranked.hit - ranked.conf, ranked.weight)


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
    ends = [0.0, 1.0]
    values = [excess(0.0), excess(1.0)]
    last = -1
    sigma = 0.0
    before = 1.0
    while abs(sigma - before) > 1e-13:
        before = sigma
        weighted = ends[0] * values[1] - ends[1] * values[0]
        sigma = weighted / (values[1] - values[0])
        value = excess(sigma)
        moved = int(value <= 0)
        if (
            moved == last
        ):  # the other end stayed twice in a row: the Illinois variant halves its value
            values[1 - moved] /= 2
        ends[moved] = sigma
        values[moved] = value
        last = moved
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
    frequency = np.pi * np.arange(len(waves))
    decay = np.exp(-0.5 * (sigma * frequency) ** 2)
    return np.asarray(irfft(waves * decay)[:CELLS])


@metric(
    "top-label",
    "Kuiper error",
    "largest cumulated gap of any interval of confidences, no bins",
    label="Kuiper",
    of_hits=True,
)
def kuiper(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return the range of the cumulated gap: max − min over all intervals of confidence, no bins.

    Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu: Metrics of calibration for probabilistic predictions, JMLR
    2022 (ECCE-R). It is the largest |mean gap · share of rows| of any interval of confidences; ``ks`` looks
    only at those that begin at 0. Rows of equal confidence enter together.

    Examples
    --------
    >>> round(kuiper([[0.25, 0.75], [0.4, 0.6]], [1, 1]), 6)
    0.325
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    gap = s.ranked.gap
    highest = max(float(gap.max()), 0.0)
    lowest = min(float(gap.min()), 0.0)
    return (highest - lowest) / s.total


def _spiegelhalter_by_chance(s: Sample, _: float) -> float:
    """Return E|Z|: of many events that of a standard normal variable, of a few rare ones far less.

    Z is a sum over the rarer outcomes of the rows, each of which adds |1 − 2p|. It is taken as so many binomial
    events of one size that its mean and its variance are right.
    """
    ranked = s.ranked
    slope = np.abs(1 - 2 * ranked.conf)
    rarer = np.minimum(ranked.conf, 1 - ranked.conf)
    inner = np.clip(ranked.conf, _EPSILON, 1 - _EPSILON)
    clipped = float(ranked.weight @ (slope**2 * inner * (1 - inner)))
    variance = float(ranked.weight @ (slope**2 * ranked.variance))
    if not variance > 0:
        return 0.0
    unit = variance / float(ranked.weight @ (slope * ranked.variance))
    mean = float(ranked.weight @ (slope * rarer)) / unit
    counts = np.array([mean]), np.array([min(variance / unit**2, mean)])
    return unit * float(mean_deviation(*counts)[0]) / float(np.sqrt(clipped))


@metric(
    "top-label",
    "Spiegelhalter |Z|",
    "squared error beyond what the confidences expect, in standard deviations; grows with N",
    label="Spiegelhalter",
    weights="counts",
    of_hits=True,
    by_chance=_spiegelhalter_by_chance,
)
def spiegelhalter(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return |Z| of Spiegelhalter's test: about 0.8 by chance, above 1.96 in 5 % of cases.

    Spiegelhalter: Probabilistic prediction in patient management and clinical trials, Statistics in Medicine
    1986. Z = Σ (hit − conf)(1 − 2·conf) / √Σ (1 − 2·conf)²·conf·(1 − conf) is the squared error less what
    calibrated predictions expect of it, in standard deviations. It grows with N: compare p-values, not sizes.

    Examples
    --------
    >>> round(spiegelhalter([[0.1, 0.9]] * 40, [1] * 20 + [0] * 20), 3)
    8.433
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("spiegelhalter")
    return abs(spiegelhalter_z(s.ranked.conf, s.ranked.hit, s.ranked.weight))


def spiegelhalter_z(p: Vector, event: Float64, weight: Vector) -> float:
    """Return Spiegelhalter's Z with its sign: positive where the squared error is larger than expected."""
    slope = 1 - 2 * p
    inner = np.clip(p, _EPSILON, 1 - _EPSILON)
    variance = float(weight @ (slope**2 * inner * (1 - inner)))
    if variance == 0:  # every probability is 1/2, so the squared error is always 1/4
        return 0.0
    return float((weight * slope) @ (event - p) / np.sqrt(variance))
