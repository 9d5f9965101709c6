"""Hypothesis tests of calibration with a p-value, by resampled labels or by the kernel error.

*Resampling*: if the predictions are calibrated, labels drawn from them have the distribution of the real ones. The
p-value is the rank of the statistic on the real labels among its values on drawn labels (a Monte Carlo test, valid
for any number of draws).
*skce*: for calibrated predictions the pair terms h_ij have the mean 0, also after a random change of the signs of the
residuals; random signs give the null distribution (a wild bootstrap of the degenerate U-statistic; Widmann et al.,
2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hcal.metrics.canonical import skce_blocks
from hcal.metrics.registry import get_metric
from hcal.metrics.resampling import chance
from hcal.metrics.sample import Sample, Vector, as_sample, check_bandwidth, check_integer
from hcal.renamed import renamed


@dataclass(frozen=True)
class CalibrationTest:
    """The result of a calibration test.

    Attributes
    ----------
    p_value : float
        A small value is evidence that the predictions are not calibrated.
    statistic : str
        The name of the metric that was compared.
    value : float
        Its value on the real labels.
    method : {"resampling", "skce"}
    resamples : int
    """

    p_value: float
    statistic: str
    value: float
    method: str
    resamples: int


@renamed(n_resamples="resamples")
def calibration_test(
    probs: Any,
    y: Any = None,
    *,
    method: Literal["resampling", "skce"] = "resampling",
    statistic: str = "ks",
    resamples: int = 999,
    random_state: int = 0,
    bandwidth: float | None = None,
) -> CalibrationTest:
    """Test the hypothesis that the predictions are calibrated.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    method : {"resampling", "skce"}
        "resampling" compares ``statistic`` with its values on labels drawn from the predictions; "skce" compares the
        unbiased kernel error of the whole vector with its values under random signs.
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
    s = as_sample(probs, y, None)
    check_bandwidth(1.0 if bandwidth is None else bandwidth)
    if s.weight is not None:
        raise ValueError(
            "a calibration test treats rows as independent observations: it takes no sample_weight"
        )
    if s.n < 2:
        raise ValueError("a calibration test needs at least 2 rows")
    rng = np.random.default_rng(random_state)
    if method == "skce":
        value, null = _skce_null(s, int(resamples), rng, bandwidth or quarter_median_distance(s))
        name = "skce"
    else:
        name, metric = statistic, get_metric(statistic)
        if metric.level == "score":
            raise ValueError(f"statistic must be a calibration error, got the score {name!r}")
        value = metric.function(s)
        if metric.of_hits:  # hits drawn with the confidences as probabilities
            hits = (rng.random(s.n) < s.data.conf_sorted for _ in range(resamples))
            null = np.array([metric.function(s.with_hits(hit)) for hit in hits])
        else:
            null = chance(s, [name], resamples, rng)[name]
    # With few rows many draws equal the real value up to rounding; they count as equal.
    reached = int((null >= value - 1e-12 * abs(value)).sum())
    return CalibrationTest(
        (1 + reached) / (1 + len(null)), name, float(value), method, int(resamples)
    )


def quarter_median_distance(s: Sample) -> float:
    """Return a quarter of the median distance between (up to 500) predictions, or 1 if all are equal.

    >>> round(quarter_median_distance(Sample([[0.0, 1.0], [1.0, 0.0]], [1, 0])), 4)
    0.3536
    """
    some = np.linspace(0, s.n - 1, min(500, s.n)).astype(np.int64)
    p = s.data.probs[some].astype(np.float64)
    squares = np.einsum("nk,nk->n", p, p)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2 * p @ p.T, 0))
    median = float(np.median(distance[np.triu_indices(len(p), 1)]))
    return median / 4 if median > 1e-6 else 1.0


def _skce_null(
    s: Sample, n: int, rng: np.random.Generator, bandwidth: float
) -> tuple[float, Vector]:
    """Return the unbiased kernel error and its values under n random sign changes, in one pass over the pairs."""
    signs = rng.integers(0, 2, size=(s.n, n + 1)).astype(np.float64) * 2 - 1
    signs[:, 0] = 1.0  # the first column is the statistic itself
    total: Vector = np.zeros(n + 1)
    for i, j, h in skce_blocks(s, bandwidth):
        total += (1.0 if i == j else 2.0) * np.einsum("ab,ab->b", signs[i], h @ signs[j])
    total /= s.n * (s.n - 1)
    return float(total[0]), total[1:]
