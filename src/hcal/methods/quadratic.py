"""Quadratic scaling: an increasing quadratic map of the log-odds, one against the rest."""

from __future__ import annotations

import numpy as np

from hcal.maps.base import array, map_type
from hcal.methods._log_odds import OddsMap, fit_events, increasing_logistic, log_odds, platt_targets
from hcal.methods.base import Calibrator, Fitted
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.xp import Array, namespace

#: The smaller slope of a parabola is at least this share of the larger, so that different scores stay different.
_LEAST = 1e-3
_TINY = float(np.finfo(np.float64).tiny)


@map_type
class QuadraticOdds(OddsMap):
    """A parabola between two log-odds, continued by its tangents."""

    height: Array = array("at the low end", "E")
    low_slope: Array = array("at the low end", "E")
    high_slope: Array = array("at the high end", "E")
    low: Array = array("least log-odds seen", "E")
    high: Array = array("greatest log-odds seen", "E")

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        rising, falling = _parts(odds, self.low, self.high)
        return self.height + self.low_slope * falling + self.high_slope * rising

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        if (self.high < self.low).any():
            raise ValueError("'high' must not lie below 'low'")


class QuadraticScaling(Calibrator):
    """For each event, logit q is an increasing quadratic of logit p, continued by its tangents.

    The log-odds of two Gaussian classes with unequal variances are quadratic in the score. The parameters are a height
    and the slopes, both at least 0, at the two ends of the calibration range; a free parabola would fall somewhere and
    rank the most confident rows last. Platt's targets keep the fit finite for separable rows. A class without
    calibration rows keeps its log-odds.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025, motivate the
    quadratic; the bounds and the tangents are ours.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> score = rng.normal(size=2000) * (1 + y) + y
    >>> cal = QuadraticScaling().fit(score, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"]
    True
    """

    name = "quadratic"
    title = "Quadratic scaling"
    weighted = True
    map_types = (QuadraticOdds,)

    def _fit(self, rows: Rows) -> Fitted:
        # height 0 at log-odds 0 and slope 1 at both ends: the identity
        identity = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
        parameters, converged = fit_events(
            log_odds(rows.x), rows.labels, rows.weight, _fit_parabola, identity
        )
        height, low_slope, high_slope, low, high = parameters.T
        curve = QuadraticOdds(
            height=height, low_slope=low_slope, high_slope=high_slope, low=low, high=high
        )
        return Fitted(curve, converged)


def _parts(odds: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return two increasing functions, 0 at ``low``: slope 0 → 1 and slope 1 → 0 over [low, high].

    Their sum is odds − low. Beyond the range they continue as lines.
    """
    xp = namespace(odds)
    # high − low is 0 if all rows are equal; then only the tangents are left.
    width = xp.maximum(high - low, _TINY)
    inside = xp.clip(odds, low, high) - low
    rising = inside * (inside / width) / 2 + xp.maximum(odds - high, 0.0)
    return rising, odds - low - rising


def _fit_parabola(odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
    low = odds.min()
    high = odds.max()
    rising, falling = _parts(odds, low, high)
    # The coefficients a and b are what each slope has beyond its least share of the other.
    of_a = falling + _LEAST * rising
    of_b = rising + _LEAST * falling
    design = np.stack([np.ones_like(odds), of_a, of_b], axis=1)
    solved = increasing_logistic(design, platt_targets(hit, weight), weight)
    height, a, b = solved.theta
    parameters = np.array([height, a + _LEAST * b, b + _LEAST * a, low, high])
    return parameters, solved.converged
