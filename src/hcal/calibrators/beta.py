"""Beta calibration, multi-class softmax form (Kull et al., AISTATS 2017)."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._scaling import (
    EPS,
    PresentMap,
    only_present,
    places_among,
    present_classes,
    present_field,
)
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters
from hcal.maps.base import array, map_type
from hcal.numerics import Float64, IntArray
from hcal.solvers.families import ClassLinear
from hcal.solvers.nll import fit_nll
from hcal.xp import Array, namespace


@map_type
class BetaMap(PresentMap):
    """softmax of a ln p − b ln(1 − p) + c over the classes that had rows."""

    present: Array = present_field()
    a: Array = array("slope of ln p", "C", low=0)
    b: Array = array("slope of −ln(1 − p)", "C", low=0)
    c: Array = array("offset", "C")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        own, rest = _features(x, self.present)
        scores = own * self.a + rest * self.b + self.c
        return only_present(namespace(x).log_softmax(scores), x, self.present)


@parameters
class BetaCalibration(Calibrator):
    """softmax over k of a_k ln p_k − b_k ln(1 − p_k) + c_k, with a, b ≥ 0, of least mean NLL.

    A class absent from the calibration rows keeps its probability; the others share the rest. There is no
    penalty: with few rows a class (K in the hundreds) prefer ``svs``.

    Kull, Silva Filho, Flach: Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers, AISTATS 2017; here all classes at once, not one against the rest.

    Parameters
    ----------
    max_iterations : int
        Of L-BFGS-B.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = BetaCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "beta"
    title = "Beta calibration"
    weighted = True
    map_types = (BetaMap,)

    max_iterations: int = 200

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        present = present_classes(y, weight, x.shape[1])
        k = len(present)
        features = np.hstack(_features(x, present))
        solved = fit_nll(
            ClassLinear(k, inputs=2),
            features,
            places_among(present, y),
            weight,
            bounds=[(0.0, None)] * (2 * k) + [(None, None)] * k,
            max_iterations=self.max_iterations,
            tolerance=1e-6,
            gain=1e-7 if features.size > 10**6 else 1e-12,
        )
        a, b, c = np.split(solved.theta, 3)
        found = BetaMap(present=present, a=a, b=b, c=c)
        return Fitted(found, solved.converged, solved.message, {"iterations": solved.iterations})


def _features(x: Array, present: Array) -> tuple[Array, Array]:
    """Return (ln p, −ln(1 − p)) of the present classes, p and 1 − p clipped to [eps, 1 − eps].

    1 − p of the top class is summed from the others: subtracting would leave no digit near p = 1.
    """
    xp = namespace(x)
    p, top = xp.softmax(x), xp.argmax(x)
    rest = xp.put_along(1 - p, top, xp.row_sum(xp.replaced(p, top, 0.0)))
    own, rest = (xp.log(xp.clip(v[..., present], EPS, 1 - EPS)) for v in (p, rest))
    return own, -rest
