"""Platt scaling: an affine map of the log-odds (Platt, 1999), one against the rest."""

from __future__ import annotations

import numpy as np

from hcal.maps.base import array, map_type
from hcal.methods._log_odds import OddsMap as OddsMap
from hcal.methods._log_odds import fit_events, increasing_logistic, log_odds, platt_targets
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import parameters
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.xp import Array


@map_type
class AffineOdds(OddsMap):
    """slope · log-odds + intercept."""

    slope: Array = array("of each event", "E")
    intercept: Array = array("of each event", "E")

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        return odds * self.slope + self.intercept


@parameters
class PlattScaling(Calibrator):
    """For each event, logit q = a · logit p + b with a ≥ 0, fitted by maximum likelihood.

    Two classes have one event; with more, there is one for each class against the rest, and rows are divided by their
    sum. A class without calibration rows keeps its log-odds. The slope is not negative, so that calibration never
    reverses a ranking.

    Platt: Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods, Advances in Large Margin Classifiers, 1999. There the score is a margin; here the log-odds.

    Parameters
    ----------
    smooth : bool
        Platt's targets, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), in place of 1 and 0.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = PlattScaling(smooth=False).fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "platt"
    title = "Platt scaling"
    weighted = True
    map_types = (AffineOdds,)

    smooth: bool = True

    def _fit(self, rows: Rows) -> Fitted:
        identity = np.array([0.0, 1.0])
        parameters, converged = fit_events(
            log_odds(rows.x), rows.labels, rows.weight, self._fit_one, identity
        )
        curve = AffineOdds(intercept=parameters[:, 0], slope=parameters[:, 1])
        return Fitted(curve, converged)

    def _fit_one(self, odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
        target = platt_targets(hit, weight) if self.smooth else hit
        design = np.stack([np.ones_like(odds), odds], axis=1)
        solved = increasing_logistic(design, target, weight)
        return solved.theta, solved.converged
