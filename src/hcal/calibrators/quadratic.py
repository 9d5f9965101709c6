"""Quadratic scaling: an increasing quadratic map of the log-odds, one against the rest."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._log_odds import events, fit_events, log_odds, spread
from hcal.calibrators._logistic import increasing_logistic, platt_targets
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.state import Field, Rule, StateSpec
from hcal.numerics import Float64, FloatArray, IntArray

#: The smaller slope is at least this share of the larger: rows that were told apart stay so.
_LEAST = 1e-3


class QuadraticScaling(Calibrator):
    """Per event, logit q is a quadratic of logit p, increasing; outside the calibration range, its tangents.

    Two Gaussian classes of unequal variance have log-odds that are quadratic in the score, which is what asks
    for it. The parameters are a height and the slopes, both at least 0, at the two ends of the calibration
    range: a free parabola turns back somewhere, and then ranks the surest rows last. Platt's targets keep
    separable rows finite. A class absent from the calibration rows keeps its log-odds.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025, motivate the
    quadratic; the bounds and the tangents are ours.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> score = rng.normal(size=2000) * (1 + y) + y
    >>> cal = QuadraticScaling().fit(score, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "quadratic"
    title = "Quadratic scaling"
    weighted = True
    state_specs = (
        StateSpec(
            (
                Field("height", "at the low end", ("E",)),
                Field("low_slope", "at the low end", ("E",)),
                Field("high_slope", "at the high end", ("E",)),
                Field("low", "least log-odds seen", ("E",)),
                Field("high", "greatest log-odds seen", ("E",)),
            ),
            rules=(Rule("high", "not lie below low", lambda s, _: bool((s["high"] >= s["low"]).all())),),
        ),
    )

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        # height 0 at log-odds 0 and slope 1 at both ends: the identity
        identity = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
        found, converged = fit_events(log_odds(logits), y, sample_weight, _fit_one, identity)
        state = dict(zip(("height", "low_slope", "high_slope", "low", "high"), found.T, strict=True))
        return Fitted(state, converged, "" if converged else "Newton did not converge")

    def _predict(self, logits: FloatArray) -> FloatArray:
        s = self.state_
        rising, falling = _parts(events(log_odds(logits)), s["low"], s["high"])
        return spread(s["height"] + s["low_slope"] * falling + s["high_slope"] * rising, logits)


def _parts(odds: Float64, low: Float64 | float, high: Float64 | float) -> tuple[Float64, Float64]:
    """Return two increasing functions, 0 at ``low``: slope 0 → 1 and slope 1 → 0 over [low, high].

    Their sum is odds − low. Below and above they go on straight.
    """
    width = np.maximum(np.subtract(high, low), np.finfo(np.float64).tiny)
    inside = np.clip(odds, low, high)
    # high − low may be 0 (all rows equal): then only the tangents are left.
    rising = (inside - low) * ((inside - low) / width) / 2 + np.maximum(odds - high, 0)
    return rising, odds - low - rising


def _fit_one(odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
    mass = np.ones(len(hit)) if weight is None else weight
    seen = odds[mass > 0]
    low, high = float(seen.min()), float(seen.max())
    rising, falling = _parts(odds, low, high)
    design = np.stack([np.ones_like(odds), falling + _LEAST * rising, rising + _LEAST * falling], axis=1)
    solved = increasing_logistic(design, platt_targets(hit, weight), mass)
    height, a, b = solved.theta
    return np.array([height, a + _LEAST * b, b + _LEAST * a, low, high]), solved.converged
