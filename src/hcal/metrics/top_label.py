"""Top-label errors: does a confidence of 0.8 mean right in 8 of 10 cases?

``conf`` is the largest probability of a row, ``hit`` whether its class is the label. All metrics here use
the one stable sort of the sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from hcal.metrics import bins as _bins
from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample, as_value


@documented_metric()
def ece_ew(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, order: float = 1
) -> float:
    """Return the expected calibration error over equal-width bins (lo, hi]; empty bins count nothing.

    Parameters
    ----------
    bins : int
    order : float
        r in (Σ_b (n_b/N)|conf_b − acc_b|^r)^(1/r).

    Examples
    --------
    >>> ece_ew([[0.25, 0.75]], [1])
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    return _bins.error(_bins.equal_width(s.ranked, bins), s.ranked.total, order)


@documented_metric()
def ece_r2(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the root-mean-square calibration error over equal-width bins (lo, hi].

    Examples
    --------
    >>> ece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return ece_ew(probs, y, sample_weight=sample_weight, bins=bins, order=2)


@documented_metric()
def mce(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the largest gap of the equal-width bins (lo, hi] that hold a sample.

    Examples
    --------
    >>> mce([[0.25, 0.75], [1.0, 0.0]], [1, 0])
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    return as_value(_bins.equal_width(s.ranked, bins).gap.max(axis=-1))


@documented_metric()
def ace(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the unweighted mean gap of the non-empty equal-width bins [lo, hi), the last one closed.

    Confidences are clipped to [ε, 1 − ε] with ε = 1.19e-7 first, as published.

    Examples
    --------
    >>> round(ace([[0.25, 0.75], [1.0, 0.0]], [1, 0]), 6)
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    eps = float(np.finfo(np.float32).eps)
    edges = np.linspace(0, 1, _bins.check_bins(bins) + 1)
    conf = np.clip(s.data.conf_sorted, eps, 1 - eps)
    cuts = np.concatenate([[0], np.searchsorted(conf, edges[1:-1], side="left"), [s.n]])
    weight, _, hit = (np.diff(x) for x in s.ranked.at_rows(cuts))
    full = weight > 0
    gap = np.abs(s.ranked.sums(conf, cuts) - hit) / np.where(full, weight, 1.0)
    return as_value((gap * full).sum(axis=-1) / full.sum(axis=-1))


@documented_metric(weights="counts")
def ece_em(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, order: float = 1
) -> float:
    """Return the calibration error over equal-mass bins (lo, hi] between interpolated quantiles.

    As published, the smallest confidence falls in no bin, and bins that ties leave empty are skipped.

    Examples
    --------
    >>> ece_em([[0.25, 0.75], [0.5, 0.5]], [1, 0])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("ece_em")
    return _bins.error(_bins.quantile_edges(s.ranked, bins), s.ranked.total, order)


@documented_metric(weights="counts")
def dece(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the debiased calibration error over equal-mass bins; signed, not clipped at 0.

    Kumar, Liang, Ma: Verified Uncertainty Calibration, NeurIPS 2019. Twice the plug-in error minus the
    (unweighted, as published) mean over bins of E|Normal(acc_b − conf_b, acc_b(1 − acc_b)/n_b)|.

    Examples
    --------
    >>> dece([[0.25, 0.75], [0.0, 1.0]], [1, 1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("dece")
    b = _bins.equal_mass(s.ranked, bins)
    full = b.weight > 0
    spread = np.sqrt(np.maximum(b.acc * (1 - b.acc), 0) / np.where(full, b.weight, 1.0))
    folded = folded_normal_mean(b.acc - b.conf, spread)  # 0 for an empty bin
    return as_value(2 * _bins.error(b, s.ranked.total) - folded.sum(axis=-1) / full.sum(axis=-1))


def folded_normal_mean(mu: Any, sigma: Any) -> Any:
    """Return E|Normal(μ, σ²)|, elementwise; |μ| where σ = 0.

    >>> round(float(folded_normal_mean(0.0, 1.0)), 4)
    0.7979
    """
    mu, sigma = np.asarray(mu, dtype=np.float64), np.asarray(sigma, dtype=np.float64)
    z = np.divide(mu, sigma, out=np.zeros_like(mu), where=sigma > 0)
    smooth = sigma * np.sqrt(2 / np.pi) * np.exp(-0.5 * z * z) + mu * (1 - 2 * ndtr(-z))
    return np.where(sigma > 0, smooth, np.abs(mu))


@documented_metric(weights="counts")
def ece_s1(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the sweep calibration error of order 1: as many equal-mass bins as keep accuracy monotone.

    Roelofs et al.: Mitigating Bias in Calibration Error Estimation, AISTATS 2022.

    Examples
    --------
    >>> round(ece_s1([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("ece_s1", copied=True)
    return _bins.sweep_error(s.ranked, 1)


@documented_metric(weights="counts")
def ece_s2(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the sweep calibration error of order 2 (see :func:`ece_s1`).

    Examples
    --------
    >>> round(ece_s2([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("ece_s2", copied=True)
    return _bins.sweep_error(s.ranked, 2)


@documented_metric()
def ks(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the Kolmogorov–Smirnov error: max_i |cumulated confidence − cumulated hits|/N, no bins.

    Gupta et al.: Calibration of Neural Networks using Splines, ICLR 2021.

    Examples
    --------
    >>> round(ks([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    highest, lowest = s.ranked.walk()
    return as_value(np.maximum(highest, -lowest) / s.ranked.total)


def ks_null(s: Sample, draws: int, rng: np.random.Generator) -> Vector:
    """Return KS errors of hits drawn with the confidences as their probabilities, shape (draws,)."""
    walks = (r.walk() for r in s.drawn_ranked(draws, rng))
    return np.concatenate([np.maximum(highest, -lowest) / s.n for highest, lowest in walks])


@documented_metric()
def mmce(probs: Any, y: Any = None, *, sample_weight: Any = None, bandwidth: float = 0.4) -> float:
    """Return the maximum mean calibration error with kernel exp(−|c − c'|/bandwidth), diagonal included.

    Kumar, Sarawagi, Jain: Trainable Calibration Measures, ICML 2018. Exact in O(N log N): on sorted
    confidences the exponential kernel factorises.

    Examples
    --------
    >>> mmce([[0.25, 0.75]], [1])
    0.25
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
    s = as_sample(probs, y, sample_weight)
    return as_value(np.sqrt(np.maximum(s.ranked.kernel_sum(1 / bandwidth), 0.0)) / s.ranked.total)


@documented_metric()
def smece(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the smooth calibration error of the top label: no bins, no bandwidth to choose.

    Examples
    --------
    >>> p = [[0.1, 0.9]] * 40
    >>> round(smece(p, [1] * 20 + [0] * 20), 3)
    0.4
    """
    return as_value(as_sample(probs, y, sample_weight).ranked.smooth_error())


@documented_metric(weights="counts")
def kde_ece(probs: Any, y: Any = None, *, sample_weight: Any = None, bandwidth: float | None = None) -> float:
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
    ranked = s.ranked_positive if s.k == 2 else s.ranked
    return as_value(ranked.kde_error(bandwidth))
