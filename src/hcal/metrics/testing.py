"""Hypothesis tests of calibration, whose p-values hold for every number of rows and every base rate.

If the predictions are calibrated, labels drawn from them have the distribution of the real ones. Every p-value here is
the rank of a statistic on the real labels among its values on drawn labels (consistency resampling: Bröcker and Smith,
2007; Vaicenavicius et al., 2019). Such a Monte Carlo test keeps its level exactly, for any statistic, any number of
rows and any number of draws. Random signs of the residuals, the usual null of the kernel error (Widmann et al., 2019),
do not: with rare events the residuals are far from symmetric, and nearly every calibrated sample was rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import chdtrc, ndtr

from hcal.frames import AnyArray
from hcal.metrics.canonical import skce
from hcal.metrics.registry import Metric, get_metric
from hcal.metrics.resampling import chance, merged_samples, resample_blocks
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample, check_bandwidth, check_integer
from hcal.metrics.smooth import spiegelhalter_z
from hcal.numerics import Float64, IntArray
from hcal.renamed import renamed
from hcal.results import Result

#: The kernel of the "skce" test is approximated by a matrix of at most this rank.
RANK: Final = 128
#: The normal distribution replaces drawn labels where Lyapunov's ratio is at most this: its error is then below 3 %
#: of probability (Shevtsova, 2010), and far below that near the usual levels.
_NORMAL_ENOUGH: Final = 0.05
#: χ² is used where every group's count has at least this variance (after Cochran, 1954).
_COCHRAN: Final = 5.0
#: At most about this many events are drawn for a test of one event.
_MOST_DRAWS: Final = 10**8


@dataclass(frozen=True, repr=False)
class CalibrationTest(Result):
    """The result of a calibration test.

    Attributes
    ----------
    p_value : float
        A small value is evidence that the predictions are not calibrated. NaN if nothing could be tested.
    statistic : str
        The name of the metric that was compared.
    value : float
        Its value on the real labels.
    method : {"resampling", "skce", "normal", "chi-squared"}
        The null distribution: of drawn labels, or a limit that is accurate for these rows.
    resamples : int
        How many sets of labels were drawn; 0 for a limit.
    reason : str
        Why there is no p-value; empty if there is one.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> hcal.metrics.calibration_test(probs, y).p_value > 0.05  # the labels were drawn from these
    True
    """

    schema: ClassVar[str] = "hcal/calibration_test/1"

    p_value: float
    statistic: str
    value: float
    method: str
    resamples: int
    reason: str = ""

    def without_p_value(self) -> CalibrationTest:
        """Return the same value for rows that depend on each other, whose p-value is not known."""
        reason = "rows of one group depend on each other"
        return replace(self, p_value=float("nan"), resamples=0, reason=reason)

    def _headline(self) -> list[str]:
        if self.reason:
            return [f"Calibration was not tested ({self.statistic}): {self.reason}."]
        if self.resamples:
            null = f"from {self.resamples:,} sets of labels drawn from the predictions"
        else:
            null = f"from the {self.method} distribution"
        p_value = f"p = {self.p_value:.3f}" if self.p_value >= 0.001 else "p < 0.001"
        return [f"Test of calibration: {self.statistic} {self.value:.4g}, {p_value} {null}."]


@renamed(n_resamples="resamples")
def calibration_test(  # noqa: PLR0913
    probs: AnyArray,
    y: AnyArray = None,
    *,
    method: Literal["resampling", "skce"] = "resampling",
    statistic: str = "ks",
    resamples: int = 999,
    random_state: int = 0,
    bandwidth: float | None = None,
) -> CalibrationTest:
    """Test the hypothesis that the predictions are calibrated.

    The rows must be independent of each other. A calibrated predictor is rejected at level α with probability at most
    α, for every number of rows and however rare an event is. Few rows or events make the test weak, never wrong.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    method : {"resampling", "skce"}
        "resampling" compares ``statistic`` with its values on labels drawn from the predictions. "skce" does so with
        the unbiased kernel error of the whole vector, whose kernel is approximated by a matrix of rank 128.
    statistic : str
        Any metric of the top-label, class-wise or canonical level, for "resampling". The default ``"ks"`` needs no
        bins and is fast.
    resamples, random_state : int
    bandwidth : float, optional
        Bandwidth of the kernel exp(−‖p − p'‖/bandwidth) of ``"skce"``; by default a quarter of the median distance
        between predictions. The metric ``skce`` uses 1, which makes the kernel nearly flat and the test weak.

    Returns
    -------
    CalibrationTest

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([1, 1, 1], size=500)
    >>> y = (p.cumsum(1) > rng.random((500, 1))).argmax(1)
    >>> calibration_test(p, y).p_value > 0.05
    True
    >>> calibration_test(p**3 / (p**3).sum(1, keepdims=True), y).p_value
    0.001
    """
    if method not in ("resampling", "skce"):
        raise ValueError(f"method must be 'resampling' or 'skce', got {method!r}")
    check_integer("resamples", resamples, 19)
    sample = as_sample(probs, y, None)
    check_bandwidth(1.0 if bandwidth is None else bandwidth)
    if sample.weight is not None:
        raise ValueError(
            "a calibration test treats rows as independent observations: it takes no sample_weight"
        )
    if sample.n < 2:
        raise ValueError("a calibration test needs at least 2 rows")

    rng = np.random.default_rng(random_state)
    if method == "skce":
        width = bandwidth or quarter_median_distance(sample)
        p_value = _kernel_p_value(sample, int(resamples), rng, width)
        return CalibrationTest(
            p_value, "skce", float(skce(sample, bandwidth=width)), method, resamples
        )
    metric = get_metric(statistic)
    if metric.level == "score":
        raise ValueError(f"statistic must be a calibration error, got the score {metric.name!r}")
    p_value = _statistic_p_value(sample, metric, int(resamples), rng)
    value = float(metric.function(sample))
    return CalibrationTest(p_value, statistic, value, method, int(resamples))


def rank_p_value(value: float, null: Vector) -> float:
    """Return the Monte Carlo p-value (1 + #{null ≥ value}) / (1 + #null).

    With few rows many draws equal the real value up to rounding; they count as equal.

    >>> rank_p_value(0.3, np.array([0.1, 0.3, 0.5]))
    0.75
    """
    as_large = null >= value - 1e-12 * abs(value)
    return (1 + int(as_large.sum())) / (1 + len(null))


def _statistic_p_value(
    sample: Sample, metric: Metric, resamples: int, rng: np.random.Generator
) -> float:
    """Return the rank of a metric on the real labels among its values on labels drawn from the predictions."""
    small = merged_samples([sample])
    if small is not None or not metric.of_hits:
        compared = sample if small is None else small[0]
        null = chance(sample, [metric.name], resamples, rng)[metric.name]
        return rank_p_value(float(metric.function(compared)), null)
    confidence = sample.data.conf_sorted
    null = np.empty(resamples)
    for draw in range(resamples):
        hits = rng.random(sample.n) < confidence
        null[draw] = metric.function(sample.with_hits(hits))
    return rank_p_value(float(metric.function(sample)), null)


# -- the kernel test ---------------------------------------------------------------------------------


def quarter_median_distance(s: Sample) -> float:
    """Return a quarter of the median distance between (up to 500) predictions, or 1 if all are equal.

    >>> round(quarter_median_distance(Sample([[0.0, 1.0], [1.0, 0.0]], [1, 0])), 4)
    0.3536
    """
    steps = np.linspace(0, s.n - 1, min(500, s.n))
    rows = steps.astype(np.int64)
    p = s.data.probs[rows].astype(np.float64)
    squares = np.einsum("nk,nk->n", p, p)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2 * p @ p.T, 0))
    median = float(np.median(distance[np.triu_indices(len(p), 1)]))
    return median / 4 if median > 1e-6 else 1.0


def _kernel_p_value(
    sample: Sample, resamples: int, rng: np.random.Generator, bandwidth: float
) -> float:
    """Return the p-value of the kernel error: its rank among its values on drawn labels."""
    probs = sample.data.probs.astype(np.float64)
    factor = kernel_factor(probs, bandwidth)
    value = float(_pair_sums(factor, probs, sample.y[None])[0])

    null = []
    for size in resample_blocks(resamples, max(sample.n, sample.k * factor.shape[1])):
        null.append(_pair_sums(factor, probs, sample.data.drawn(size, rng)))
    return rank_p_value(value, np.concatenate(null))


def kernel_factor(probs: Float64, bandwidth: float, rank: int = RANK) -> Float64:
    """Return L (N, R) with L·Lᵀ ≈ exp(−‖p_i − p_j‖/bandwidth), by Cholesky's method with the largest pivot first.

    It is exact if the predictions have at most ``rank`` different values.

    >>> p = np.array([[0.2, 0.8], [0.6, 0.4]])
    >>> factor = kernel_factor(p, 1.0)
    >>> (factor @ factor.T).round(3)
    array([[1.   , 0.568],
           [0.568, 1.   ]])
    """
    squares = np.einsum("nk,nk->n", probs, probs)
    factor = np.zeros((len(probs), min(rank, len(probs))))
    remaining = np.ones(len(probs))
    for column in range(factor.shape[1]):
        pivot = int(remaining.argmax())
        if remaining[pivot] < 1e-9:
            return factor[:, :column]
        distance = np.sqrt(np.maximum(squares + squares[pivot] - 2 * probs @ probs[pivot], 0))
        distance[pivot] = 0.0
        kernel = np.exp(-distance / bandwidth)
        explained = factor[:, :column] @ factor[pivot, :column]
        factor[:, column] = (kernel - explained) / np.sqrt(remaining[pivot])
        remaining -= factor[:, column] ** 2
    return factor


def _pair_sums(factor: Float64, probs: Float64, labels: IntArray) -> Vector:
    """Return Σ_{i ≠ j} k_ij·⟨e_i − p_i, e_j − p_j⟩ for each of D sets of labels (D, N); e is the one-hot label.

    With k = L·Lᵀ this is ‖Lᵀ(E − P)‖² less its diagonal terms, and Lᵀ·E is a sum of the rows of L over each class.
    """
    n_draws, n_rows = labels.shape
    n_classes = probs.shape[1]
    class_of_draw = labels + n_classes * np.arange(n_draws)[:, None]
    rows = np.broadcast_to(np.arange(n_rows), labels.shape)
    members = csr_matrix(
        (np.ones(labels.size), (class_of_draw.ravel(), rows.ravel())),
        shape=(n_draws * n_classes, n_rows),
    )
    sums: Float64 = np.asarray(members @ factor)
    happened = sums.reshape(n_draws, n_classes, -1)
    stated = probs.T @ factor
    totals = ((happened - stated) ** 2).sum(axis=(1, 2))

    diagonal = np.einsum("nr,nr->n", factor, factor)
    squared_residuals = np.einsum("nk,nk->n", probs, probs) + 1 - 2 * probs[rows, labels]
    return np.asarray(totals - squared_residuals @ diagonal)


# -- tests of one event -----------------------------------------------------------------------------


def spiegelhalter_test(
    p: Vector, event: Vector, *, resamples: int = 999, random_state: int = 0
) -> CalibrationTest:
    """Test whether probabilities p (N,) of an event (N,) are calibrated, by Spiegelhalter's z, two-sided.

    The normal distribution is used where it is accurate enough, and drawn events elsewhere: a few rows, or rare events.

    Examples
    --------
    >>> spiegelhalter_test(np.full(40, 0.9), np.arange(40) < 20).p_value
    0.001
    >>> spiegelhalter_test(np.full(40, 0.5), np.ones(40)).reason
    'every probability is 0, 1 or 0.5, where the Brier score does not depend on calibration'
    """
    z = abs(spiegelhalter_z(p, event, np.ones(len(p))))
    slope = 1 - 2 * p
    variance = float((slope**2 * p * (1 - p)).sum())
    if not variance > 0:
        reason = (
            "every probability is 0, 1 or 0.5, where the Brier score does not depend on calibration"
        )
        return CalibrationTest(float("nan"), "spiegelhalter", z, "resampling", 0, reason)

    of_rows = p * (1 - p) * (p**2 + (1 - p) ** 2)
    third_moment = float(np.abs(slope) ** 3 @ of_rows)
    if third_moment <= _NORMAL_ENOUGH * variance**1.5:
        return CalibrationTest(float(2 * ndtr(-z)), "spiegelhalter", z, "normal", 0)
    null = _on_drawn_events(
        p, lambda events: np.abs(events @ slope - p @ slope), resamples, random_state
    )
    value = abs(float((event - p) @ slope))
    return CalibrationTest(rank_p_value(value, null), "spiegelhalter", z, "resampling", len(null))


def hosmer_lemeshow_test(
    p: Vector, event: Vector, *, resamples: int = 999, random_state: int = 0
) -> CalibrationTest:
    """Test whether probabilities p (N,) of an event (N,) are calibrated, over tenths of the probability.

    Equal probabilities stay in one group. χ² with a degree of freedom for each group (nothing was fitted to these rows)
    is used where every group expects enough events, and drawn events elsewhere.

    Examples
    --------
    >>> p = np.linspace(0.05, 0.95, 200)
    >>> hosmer_lemeshow_test(p, np.arange(200) % 2).p_value < 0.01
    True
    """
    deciles = np.quantile(p, np.arange(1, 10) / 10)
    tenth = np.searchsorted(deciles, p, side="left")
    group = np.unique(tenth, return_inverse=True)[1]
    size = np.bincount(group)
    expected = np.bincount(group, p)
    spread = np.bincount(group, p * (1 - p))
    variance = np.maximum(expected * (1 - expected / size), 1e-300)
    observed = np.bincount(group, event)
    value = float(((observed - expected) ** 2 / variance).sum())
    if spread.min() >= _COCHRAN:
        p_value = float(chdtrc(len(size), value))
        return CalibrationTest(p_value, "hosmer_lemeshow", value, "chi-squared", 0)

    members = np.zeros((len(p), len(size)))
    members[np.arange(len(p)), group] = 1.0
    null = _on_drawn_events(
        p,
        lambda events: ((events @ members - expected) ** 2 / variance).sum(axis=1),
        resamples,
        random_state,
    )
    return CalibrationTest(
        rank_p_value(value, null), "hosmer_lemeshow", value, "resampling", len(null)
    )


def _on_drawn_events(
    p: Vector, statistic: Callable[[Float64], Vector], resamples: int, random_state: int
) -> Vector:
    """Return a statistic of events (D, N) on sets of events that are drawn with the probabilities p."""
    rng = np.random.default_rng(random_state)
    draws = int(np.clip(_MOST_DRAWS // len(p), 99, resamples))
    values = []
    for size in resample_blocks(draws, max(len(p), BLOCK // 64)):
        events = (rng.random((size, len(p))) < p).astype(np.float64)
        values.append(statistic(events))
    return np.concatenate(values)
