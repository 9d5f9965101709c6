"""Decision calibration (Zhao et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, NamedTuple

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
from hcal.solvers.optimise import Best, Search, lbfgs
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace

# The most logits times critics: a calibration set of 25000×1000 gets 20 critics of 30 iterations.
_MOST_WORK = 5e8
# The target of a critic clips the running prediction here, as published.
_CLIP = 1e-7
# The published Adam schedule can move a weight by at most Σ lr = 25, and v is a difference of two weights. Without a
# bound, a critic becomes a hard threshold.
_LARGEST = 50.0
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
        floor = default_floor(self.floor, rows.total, rows.n_classes)
        is_held_out = deal_folds(rows.x, 5, rows.groups) == 0
        # Classes are sorted by their rows, so that the random starts do not depend on the numbers of the classes.
        ranks = class_ranks(rows.x, rows.labels, rows.weight)
        x = on_grid(rows.x)[:, np.argsort(ranks)]
        y = ranks[rows.labels]

        solved = solve_temperature(x, y, rows.weight)
        probs = np.asarray(softmax(solved.beta * x), dtype=np.float64)
        present = _Predictions(probs, y, unit_weight(rows.weight, len(rows)))
        if self.critics is None:
            count = self._choose(present, is_held_out, floor)
        else:
            count = self.critics
        steps = list(islice(critic_steps(present, self.random_state), count))

        k = rows.n_classes
        critics = np.array([critic for critic, _ in steps]).reshape(count, k)
        shifts = np.array([shift for _, shift in steps]).reshape(count, 2, k)
        corrections = CriticSteps(
            beta=np.array(solved.beta),
            critics=critics[:, ranks],
            shifts=shifts[:, :, ranks],
            floor=floor,
        )
        details = {
            "temperature": 1 / solved.beta,
            "critics": count,
            "chosen_on_held_out_rows": self.critics is None,
        }
        return Fitted(corrections, solved.converged, solved.message, details)

    def _choose(self, present: _Predictions, is_held_out: NDArray[np.bool_], floor: Float64) -> int:
        """Return the number of critics with the lowest Brier score on the held-out rows."""
        size = present.probs.size
        if len(present.labels) < 10 or self.max_critics < 1 or is_held_out.all():
            return 0
        most = min(self.max_critics, max(5, int(_MOST_WORK / size)))

        held_out = present.at(is_held_out)
        best = Best[int](_PATIENCE)
        best.over(held_out.brier(floor), 0)
        training = present.at(~is_held_out)
        training = training._replace(weight=training.weight / training.weight.sum())
        steps = critic_steps(training, self.random_state)
        for count, (critic, shift) in enumerate(islice(steps, most), 1):
            held_out = held_out._replace(probs=adjusted(held_out.probs, critic, shift))
            if best.over(held_out.brier(floor), count):
                break
        assert best.what is not None  # the score of no critic is the first
        return best.what


class _Predictions(NamedTuple):
    """The predictions that critics correct, with the labels."""

    probs: Float64  # (N, K)
    labels: IntArray  # (N,)
    weight: Float64  # (N,)

    def at(self, rows: NDArray[np.bool_]) -> _Predictions:
        """Return those of some rows."""
        return _Predictions(self.probs[rows], self.labels[rows], self.weight[rows])

    def marks(self) -> Float64:
        """Return the labels as rows of one 1, (N, K)."""
        return np.eye(self.probs.shape[1])[self.labels]

    def brier(self, floor: Float64) -> float:
        """Return the weighted sum of squared errors."""
        errors = _normalised(self.probs, floor) - self.marks()
        return float(self.weight @ (errors**2).sum(axis=1))


def critic_steps(predictions: _Predictions, random_state: int) -> Iterator[tuple[Float64, Float64]]:
    """Yield critics (K,) and their shifts (2, K), each trained on predictions corrected by those before it."""
    rng = np.random.RandomState(random_state)
    x = predictions.probs
    k = x.shape[1]
    marks = predictions.marks()
    iterations = 200 if x.size < 10**7 else 30
    while True:
        residual = marks - np.clip(x, _CLIP, 1 - _CLIP)
        start = rng.uniform(-1, 1, (2, k)) / np.sqrt(k)  # of the published size
        error = CriticError(x, residual, predictions.weight)
        critic = train_critic(error, start[0] - start[1], iterations)
        shift = adjustment(error, critic)
        x = adjusted(x, critic, shift)
        yield critic, shift


def _normalised(x: Array, floor: Array) -> Array:
    """Clip to [floor, 1 − floor] and divide rows by their sum; a row of zeros becomes uniform."""
    xp = namespace(x)
    cut = xp.clip(x, floor, 1 - floor)
    total = xp.row_sum(cut)
    shares = cut / xp.where(total > 0, total, 1.0)
    uniform = 1 / x.shape[-1] + 0 * cut
    return xp.where(total > 0, shares, uniform)


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


class CriticError:
    """The error Σ_a ‖Σ_i ω_i w_a(x_i)(Y_i − x_i)‖₂ that a critic v looks for.

    >>> error = CriticError(np.array([[0.5, 0.5]]), np.array([[0.5, -0.5]]), np.ones(1))
    >>> round(-error.negative(np.zeros(2))[0], 4)
    0.7071
    """

    def __init__(self, x: Float64, residual: Float64, weight: Float64) -> None:
        self.x = x  # (N, K) the current predictions
        self.residual = residual  # (N, K) Y − x
        self.weight = weight  # (N,) sums to 1
        self._total = weight @ residual

    def negative(self, v: Float64) -> tuple[float, Float64]:
        """Return minus the error, and its gradient."""
        w = action_weight(self.x, v)
        first = (self.weight * w) @ self.residual
        second = self._total - first
        first_norm = float(np.linalg.norm(first))
        second_norm = float(np.linalg.norm(second))
        direction = first / max(first_norm, 1e-12) - second / max(second_norm, 1e-12)
        slope = (self.residual @ direction) * self.weight * w * (1 - w)
        return -float(first_norm + second_norm), -(slope @ self.x)


def train_critic(error: CriticError, start: Float64, max_iterations: int = 200) -> Float64:
    """Return the critic v (K,) with the largest error, found from ``start``."""
    bound = np.full(error.x.shape[1], _LARGEST)
    search = Search(
        bounds=(-bound, bound), max_iterations=max_iterations, tolerance=1e-9, gain=1e-12
    )
    return lbfgs(error.negative, start, search).theta


def adjustment(error: CriticError, critic: Float64) -> Float64:
    """Return B (2, K), the weighted least-squares fit of Y − x by the action weights."""
    w = action_weight(error.x, critic)
    actions = np.stack([w, 1 - w], axis=1)
    gram = (actions.T * error.weight) @ actions
    target = (actions.T * error.weight) @ error.residual
    shifts, *_ = np.linalg.lstsq(gram, target, rcond=1e-12)
    return np.asarray(shifts, dtype=np.float64)
