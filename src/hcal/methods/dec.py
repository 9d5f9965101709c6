"""Decision calibration (Zhao et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.methods._curves import default_floor
from hcal.methods._log_odds import expit
from hcal.methods._scaling import on_grid
from hcal.methods.base import Calibrator, Fitted, class_ranks
from hcal.methods.folds import deal_folds
from hcal.methods.parameters import Between, NotBelowZero, Seed, parameters
from hcal.numerics import Float64, IntArray, softmax
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import Best, lbfgs
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace

# The most logits times critics: a calibration set of 25000×1000 gets 20 critics of 30 iterations.
_MOST_WORK = 5e8
# The target of a critic clips the running prediction here, as published.
_CLIP = 1e-7
# The published Adam schedule can move a weight by at most Σ lr = 25, and v is a difference of two weights. Without a
# bound, a critic becomes a hard threshold.
_REACH = 50.0
_PATIENCE = 20  # critics without a better held-out score after which the search ends


@map_type
class CriticSteps(ProbabilityMap):
    """softmax(βz), followed by the correction x += w(x) B of each critic in turn."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    critics: Array = array("v of each critic", "A", "K")
    shifts: Array = array("B of each critic, one row an action", "A", 2, "K")
    floor: Array = array("least probability before rows are normalised", low=0, high=0.5)

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        p = xp.softmax(self.beta * (x - xp.row_max(x)))
        for i in range(self.critics.shape[0]):
            p = adjusted(p, self.critics[i], self.shifts[i])
        return _normalised(p, self.floor)


@parameters
class DecisionCalibration(Calibrator):
    """Temperature scaling, then corrections x += w(x) B, each found by a critic with two actions.

    A critic is a linear map V without bias, w(x) = softmax(V x), that maximises the error Σ_a ‖mean w_a(x)(Y − x)‖₂; B
    is the least-squares correction of that error. The number of critics is chosen by the Brier score of held-out
    calibration rows, and all rows are then used (the published script took the best on the test set).

    Zhao, Kim, Sahoo, Ma, Ermon: Calibrating Predictions to Decisions: A Novel Approach to Multi-Class
    Calibration, NeurIPS 2021. Critics are trained by L-BFGS within the reach of the published Adam schedule.

    Parameters
    ----------
    critics : int, optional
        A fixed number; by default the best of at most ``max_critics`` on held-out rows.
    max_critics : int
        With more than 5 million logits proportionally fewer are tried (20 for 25000×1000).
    floor : float, optional
        Least probability of a class, before rows are normalised: 1/(N·K) by default, 1e-7 as published.
    random_state : int
        Seed of the critics' starting points.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = DecisionCalibration(max_critics=5).fit(4 * logits, y)
    >>> 0 <= cal.fit_.details["critics"] <= 5
    True
    """

    name = "dec"
    title = "Decision calibration"
    weighted = True
    grouped = True
    map_types = (CriticSteps,)

    critics: NotBelowZero | None = None
    max_critics: NotBelowZero = 100
    floor: Annotated[float, Between(0, 0.5)] | None = None
    random_state: Seed = 0

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        groups = rows.groups
        total = float(len(y)) if weight is None else float(weight.sum())
        floor = default_floor(self.floor, total, x.shape[1])
        held = deal_folds(x, 5, groups) == 0
        # Classes are sorted by their rows, so that the random starts do not depend on the numbers of the classes.
        ranks = class_ranks(x, y, weight)
        x, y = on_grid(x)[:, np.argsort(ranks)], ranks[y]
        solved = solve_temperature(x, y, weight)
        probs = np.asarray(softmax(solved.beta * x), dtype=np.float64)
        share = unit_weight(weight, len(y))
        count = self._choose(probs, y, share, held, floor) if self.critics is None else self.critics
        steps = list(islice(critic_steps(probs, y, share, self.random_state), count))
        vectors = np.array([critic for critic, _ in steps]).reshape(count, x.shape[1])
        shifts = np.array([shift for _, shift in steps]).reshape(count, 2, x.shape[1])
        found = CriticSteps(
            beta=np.array(solved.beta),
            critics=vectors[:, ranks],
            shifts=shifts[:, :, ranks],
            floor=floor,
        )
        info = {
            "temperature": 1 / solved.beta,
            "critics": count,
            "chosen_on_held_out_rows": self.critics is None,
        }
        return Fitted(found, solved.converged, solved.message, info)

    def _choose(
        self, x: Float64, y: IntArray, share: Float64, held: NDArray[np.bool_], floor: Float64
    ) -> int:
        """Return the number of critics with the lowest Brier score on the held-out rows."""
        if len(x) < 10 or self.max_critics < 1 or held.all():
            return 0
        most = min(self.max_critics, max(5, int(_MOST_WORK / x.size)))
        p, marks = x[held], np.eye(x.shape[1])[y[held]]
        weight = share[~held] / share[~held].sum()

        def brier() -> float:
            return float(share[held] @ ((_normalised(p, floor) - marks) ** 2).sum(axis=1))

        best = Best(_PATIENCE)
        best.over(brier(), 0)
        steps = critic_steps(x[~held], y[~held], weight, self.random_state)
        for count, step in enumerate(islice(steps, most), 1):
            p = adjusted(p, *step)
            if best.over(brier(), count):
                break
        return int(best.what)


def critic_steps(
    x: Float64, y: IntArray, weight: Float64, random_state: int
) -> Iterator[tuple[Float64, Float64]]:
    """Yield critics (K,) and their shifts (2, K), each trained on predictions corrected by those before it."""
    rng = np.random.RandomState(random_state)
    k = x.shape[1]
    marks, steps = np.eye(k)[y], 200 if x.size < 10**7 else 30
    while True:
        residual = marks - np.clip(x, _CLIP, 1 - _CLIP)
        start = rng.uniform(-1, 1, (2, k)) / np.sqrt(k)  # of the published size
        critic = train_critic(x, residual, weight, start[0] - start[1], steps)
        shift = adjustment(x, residual, weight, critic)
        x = adjusted(x, critic, shift)
        yield critic, shift


def _normalised(x: Array, floor: Array) -> Array:
    """Clip to [floor, 1 − floor] and divide rows by their sum; a row of zeros becomes uniform."""
    xp = namespace(x)
    cut = xp.clip(x, floor, 1 - floor)
    total = xp.row_sum(cut)
    return xp.where(total > 0, cut / xp.where(total > 0, total, 1.0), 1 / x.shape[-1] + 0 * cut)


def action_weight(x: Array, critic: Array) -> Array:
    """Return w₁ of the two action weights softmax(V x): only the difference v of V's rows matters.

    >>> action_weight(np.array([[0.5, 0.5]]), np.zeros(2))
    array([0.5])
    """
    return expit(x @ critic)


def adjusted(x: Array, critic: Array, shift: Array) -> Array:
    """Return the predictions (N, K) moved by one critic: x + w(x) B."""
    w = action_weight(x, critic)[..., None]
    return x + w * shift[0] + (1 - w) * shift[1]


def critic_gain(
    x: Float64, residual: Float64, weight: Float64
) -> Callable[[Float64], tuple[float, Float64]]:
    """Return v ↦ −Σ_a ‖Σ_i ω_i w_a(x_i)(Y_i − x_i)‖₂ and its gradient.

    ``x`` are the current predictions (N, K), ``residual`` is Y − x, ``weight`` (N,) sums to 1.

    >>> gain = critic_gain(np.array([[0.5, 0.5]]), np.array([[0.5, -0.5]]), np.ones(1))
    >>> round(-gain(np.zeros(2))[0], 4)
    0.7071
    """
    total = weight @ residual

    def loss(v: Float64) -> tuple[float, Float64]:
        w = action_weight(x, v)
        first = (weight * w) @ residual
        second = total - first
        norms = float(np.linalg.norm(first)), float(np.linalg.norm(second))
        direction = first / max(norms[0], 1e-12) - second / max(norms[1], 1e-12)
        slope = (residual @ direction) * weight * w * (1 - w)
        return -float(norms[0] + norms[1]), -(slope @ x)

    return loss


def train_critic(
    x: Float64, residual: Float64, weight: Float64, start: Float64, max_iterations: int = 200
) -> Float64:
    """Return the critic v (K,) with the largest error, found from ``start``."""
    loss = critic_gain(x, residual, weight)
    reach = np.full(x.shape[1], _REACH)
    return lbfgs(
        loss,
        start,
        bounds=(-reach, reach),
        max_iterations=max_iterations,
        tolerance=1e-9,
        gain=1e-12,
    ).theta


def adjustment(x: Float64, residual: Float64, weight: Float64, critic: Float64) -> Float64:
    """Return B (2, K), the weighted least-squares fit of Y − x by the action weights."""
    w = action_weight(x, critic)
    omega = np.stack([w, 1 - w], axis=1)
    gram = (omega.T * weight) @ omega
    target = (omega.T * weight) @ residual
    return np.asarray(np.linalg.lstsq(gram, target, rcond=1e-12)[0], dtype=np.float64)
