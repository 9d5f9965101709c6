"""Vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._scaling import (
    PresentMap,
    clipped_log_probs,
    only_present,
    places_among,
    present_classes,
    present_field,
)
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters
from hcal.maps.base import array, map_type
from hcal.numerics import Float64, IntArray, row_blocks, softmax
from hcal.solvers.families import ClassLinear
from hcal.solvers.nll import fit_nll, unit_weight
from hcal.solvers.optimise import Solution
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace


@map_type
class VectorMap(PresentMap):
    """softmax(w ⊙ ln p + b) over the classes that had rows."""

    present: Array = present_field()
    weights: Array = array("slope of a class", "C")
    offsets: Array = array("of a class", "C")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        scores = clipped_log_probs(x)[..., self.present] * self.weights + self.offsets
        return only_present(namespace(x).log_softmax(scores), x, self.present)


@parameters
class VectorScaling(Calibrator):
    """softmax(w ⊙ log p + b), w and b free, of least mean NLL; convex, no penalty.

    Up to 300 classes Newton runs to convergence; above, L-BFGS runs until an iteration gains less than 1e-6.
    A class absent from the calibration rows keeps its probability; the others share the rest.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Parameters
    ----------
    max_iterations : int
        Of L-BFGS.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = VectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0], [1.0, 0.0]]).round(4)
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """

    name = "vs"
    title = "Vector scaling"
    weighted = True
    map_types = (VectorMap,)

    max_iterations: int = 60

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        present = present_classes(y, weight, x.shape[1])
        scores = clipped_log_probs(x)[:, present]
        solved, centre = _fit_vector(scores, places_among(present, y), weight, self.max_iterations)
        weights, offsets = np.split(solved.theta, 2)
        offsets = offsets - weights * centre
        found = VectorMap(present=present, weights=weights, offsets=offsets - offsets.mean())
        return Fitted(found, solved.converged, solved.message, {"iterations": solved.iterations})


def _fit_vector(
    x: Float64, y: IntArray, weight: Float64 | None, max_iterations: int
) -> tuple[Solution, Float64]:
    """Fit (w, b) on centred scores. Returns the solution and the centres.

    Each column is centred where its class is in doubt (weights q(1 − q)): slope and offset of a class are
    nearly collinear otherwise, and L-BFGS needs several times the steps. The start is the best temperature.
    """
    k = x.shape[1]
    solved = solve_temperature(x, y, weight)
    beta = solved.beta if solved.converged else 1.0
    mass, moment, share = np.zeros(k), np.zeros(k), unit_weight(weight, len(y))
    for rows in row_blocks(x.shape, 65_536):
        q = softmax(beta * x[rows])
        q *= (1 - q) * share[rows, None]
        mass += q.sum(axis=0)
        moment += (q * x[rows]).sum(axis=0)
    centre: Float64 = moment / np.maximum(mass, 1e-300)
    first = np.concatenate([np.full(k, beta), beta * centre])
    found = fit_nll(
        ClassLinear(k),
        x - centre,
        y,
        weight,
        start=first,
        max_iterations=max_iterations,
        tolerance=1e-6,
        gain=1e-6,
    )
    return found, centre
