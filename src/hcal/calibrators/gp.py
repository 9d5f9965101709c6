"""Gaussian-process calibration (Wenger et al., AISTATS 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hcal.calibrators._latent_gp import (
    Process,
    TabulatedElbo,
    line_centres,
    start_parameters,
    to_process,
)
from hcal.calibrators._normal_form import MARK, MARKED, average_ties, ranked_units, to_predict
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import STEEP, Field, StateSpec
from hcal.inputs import InputKind
from hcal.solvers.families import Cells
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import lbfgs


@parameters
class GaussianProcessCalibration(Calibrator):
    """One latent function f ~ GP(mean x, RBF + noise) shared by all centred logits; variational.

    Softmax likelihood. Whitened sparse approximation with a diagonal q; the expected log-likelihood by a
    second-order Taylor expansion; all parameters by L-BFGS. Prediction averages softmax over draws of
    f, the same for every row (by rank of its classes): no row depends on those beside it.

    Wenger, Kjellström, Triebel: Non-Parametric Calibration for Classification, AISTATS 2020.

    Parameters
    ----------
    inducing : int
        Number of inducing inputs, placed by 1-D k-means.
    samples : int
        Draws of f for a prediction, in pairs ±ε; 0 takes softmax of the mean.
    random_state : int
        Of the draws.
    max_iterations : int
        Of L-BFGS.
    max_events : int
        Rows are thinned evenly to at most this many logits for the fit.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = GaussianProcessCalibration().fit(4 * logits, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "gp"
    title = "Gaussian-process calibration"
    weighted = True
    limits: ClassVar[Mapping[str, tuple[float, float]]] = {"samples": (0, 100_000)}
    state_specs = (
        StateSpec(
            (
                Field("unit", "logits are divided by it", low=1e-100, high=STEEP),
                Field("inducing", "inducing inputs", ("M",), -1e50, 1e50),
                Field("kernel", "length, variance, variance with noise", (3,), 1e-50, 1e30),
                Field("mean", "of the process, in the kernel's basis", ("M",), -1e30, 1e30),
                Field("reduction", "of its variance", ("M", "M"), -1e30, 1e30),
            ),
            {"M": ("inducing inputs", 1)},
        )
        + MARKED,
    )

    inducing: int = 10
    samples: int = 100
    random_state: int = 0
    max_iterations: int = 2000
    max_events: int = 1_000_000
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        least, most = self.limits["samples"]
        if self.inducing < 1 or not least <= self.samples <= most:
            raise ValueError(
                f"inducing must be at least 1 and samples in [{least}, {most}], "
                f"got {self.inducing}, {self.samples}"
            )
        # ℓ starts at 10
        x, own, weight, unit = ranked_units(logits, y, sample_weight, self.max_events, usual=10)
        # Thinned rows still stand for all of them: the prior must not gain weight.
        total = float(len(y)) if sample_weight is None else float(sample_weight.sum())
        low, high = float(x.min()), float(x.max())
        cells = Cells(low, (high - low) / 1024 or 1.0, 1024)
        elbo = TabulatedElbo(x, own, unit_weight(weight, len(x)), total, cells, self.inducing)
        start = start_parameters(line_centres(x, self.inducing))
        solved = lbfgs(elbo, start, max_iterations=self.max_iterations, tolerance=1e-6, gain=1e-9)
        p = to_process(solved.theta, self.inducing)
        state = {
            "unit": np.array(unit),
            "inducing": p.inducing,
            "kernel": np.array([p.length, p.variance, p.prior]),
            "mean": p.mean,
            "reduction": p.reduction,
        } | MARK
        info = {"iterations": solved.iterations, "length": p.length, "variance": p.variance, "rows": len(x)}
        return Fitted(state, solved.converged, solved.message, info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        s = self.state_
        length, variance, prior = (float(v) for v in s["kernel"])
        process = Process(s["inducing"], length, variance, prior, s["mean"], s["reduction"])
        x = to_predict(s, logits) / float(s["unit"])
        if "centred" not in s:  # a file of hcal 0.1: its draws belong to the classes
            return self._probabilities(*process.moments(x))
        # The draws belong to ranks: the numbers of the classes do not matter, and tied ones stay tied.
        order = np.argsort(-x, axis=1, kind="stable")
        x = np.take_along_axis(x, order, axis=1)
        ranked = self._probabilities(*process.moments(x))
        average_ties(ranked, x)
        probs = np.empty_like(ranked)
        np.put_along_axis(probs, order, ranked, axis=1)
        return probs

    def _probabilities(self, mean: Float64, spread: Float64) -> Float64:
        """Return the mean of softmax over draws of f, given its mean and variance (N, K)."""
        if self.samples == 0:
            return np.asarray(softmax(mean), dtype=np.float64)
        np.sqrt(spread, out=spread)
        # In pairs ±ε: the odd orders of their error cancel.
        pairs = (self.samples + 1) // 2
        rng = np.random.RandomState(self.random_state)
        probs = np.zeros_like(mean)
        for _ in range(pairs):
            draw = rng.standard_normal(mean.shape[1])  # one at a time: memory does not grow with samples
            probs += softmax(mean + spread * draw)
            probs += softmax(mean - spread * draw)
        probs /= 2 * pairs
        return probs
