"""Decision calibration (Zhao et al., NeurIPS 2021)."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._critics import adjust, adjustment, train_critic
from hcal.calibrators._normal_form import to_fit
from hcal.calibrators._one_vs_rest import default_floor
from hcal.calibrators._shared import BETA
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.row_order import WeightedRows, class_ranks, fold_parts
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, one_hot, softmax
from hcal.solvers.nll import unit_weight
from hcal.solvers.temperature import solve_temperature

# Up to this many logits times critics there is no cap; 25000×1000 gets 20 critics of 30 iterations.
_MOST_WORK = 5e8

# The target of a critic clips the running prediction here, as published.
_CLIP = 1e-7


@parameters
class DecisionCalibration(Calibrator):
    """Temperature scaling, then corrections x += w(x) B that critics with two actions ask for, one by one.

    A critic is a linear map V without bias, w(x) = softmax(V x), that maximises Σ_a ‖mean w_a(x)(Y − x)‖₂; B
    is the least-squares answer to it. The number of critics is chosen by the Brier score of held-out
    calibration rows and all rows are then used (the published script took the best on the test set).

    Zhao, Kim, Sahoo, Ma, Ermon: Calibrating Predictions to Decisions: A Novel Approach to Multi-Class
    Calibration, NeurIPS 2021. Critics are trained by L-BFGS within the reach of the published Adam schedule.

    Parameters
    ----------
    critics : int, optional
        A fixed number; by default the best of at most ``max_critics`` on held-out rows.
    max_critics : int
        Above 5 million logits fewer are tried, in proportion (at 25000×1000: 20).
    patience : int
        End the search after this many critics without a better held-out score.
    floor : float, optional
        Least probability of a class, before rows are normalised: 1/(N·K) by default, 1e-7 as published.
    random_state : int
        Of the critics' starts and of the held-out fifth.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = DecisionCalibration(max_critics=5).fit(4 * logits, y)
    >>> 0 <= cal.info_["critics"] <= 5
    True
    """

    name = "dec"
    title = "Decision calibration"
    weighted = True
    state_specs = (
        StateSpec(
            (
                BETA,
                Field("critics", "v of each critic", ("A", "K")),
                Field("shifts", "B of each critic, one row an action", ("A", 2, "K")),
                Field("floor", "least probability before rows are normalised", low=0, high=0.5),
            ),
            {"A": ("critics", 0)},
        ),
    )

    critics: int | None = None
    max_critics: int = 100
    patience: int = 20
    floor: float | None = None
    random_state: int = 0
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        # Classes by what their rows say, not by their numbers: the random starts belong to places.
        ranks = class_ranks(logits, y, sample_weight)
        logits, y = to_fit(logits)[:, np.argsort(ranks)], ranks[y]
        solved = solve_temperature(logits, y, sample_weight)
        x = np.asarray(softmax(solved.beta * logits), dtype=np.float64)
        weight = unit_weight(sample_weight, len(y))
        rows = float(len(y)) if sample_weight is None else float(sample_weight.sum())
        floor = default_floor(self.floor, rows, x.shape[1])
        if floor > 0.5:
            raise ValueError(f"floor must be at most 0.5, got {self.floor!r}")
        count = self.critics
        if count is None:
            fold = fold_parts(logits, y, sample_weight, 5, random_state=self.random_state)[0]
            count = self._choose(x, y, *fold, float(floor))
        vectors, shifts = self._train(x.copy(), y, weight, count)
        state = {
            "beta": np.array(solved.beta),
            "critics": vectors[:, ranks],
            "shifts": shifts[:, :, ranks],
            "floor": floor,
        }
        info = {
            "temperature": 1 / solved.beta,
            "critics": count,
            "chosen_on_held_out_rows": self.critics is None,
        }
        return Fitted(state, solved.converged, solved.message, info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        x = np.asarray(softmax(self.state_["beta"] * logits), dtype=np.float64)
        for critic, shift in zip(self.state_["critics"], self.state_["shifts"], strict=True):
            adjust(x, critic, shift)
        return _normalised(x, float(self.state_["floor"]))

    def _train(
        self,
        x: Float64,
        y: IntArray,
        weight: Float64,
        count: int,
        held_out: _HeldOut | None = None,
    ) -> tuple[Float64, Float64]:
        """Train critics one after another on the running predictions x, which move in place."""
        rng = np.random.RandomState(self.random_state)
        k = x.shape[1]
        marks = one_hot(y, k)
        vectors, shifts = np.zeros((count, k)), np.zeros((count, 2, k))
        for i in range(count):
            residual = marks - np.clip(x, _CLIP, 1 - _CLIP)
            start = rng.uniform(-1, 1, (2, k)) / np.sqrt(k)  # of the published size
            steps = 200 if x.size < 10**7 else 30
            vectors[i] = train_critic(x, residual, weight, start[0] - start[1], steps)
            shifts[i] = adjustment(x, residual, weight, vectors[i])
            adjust(x, vectors[i], shifts[i])
            if held_out is not None and held_out.enough(vectors[i], shifts[i]):
                break
        return vectors, shifts

    def _choose(self, x: Float64, y: IntArray, fit: WeightedRows, held: WeightedRows, floor: float) -> int:
        if len(x) < 10 or self.max_critics < 1 or held is fit:
            return 0
        most = min(self.max_critics, max(5, int(_MOST_WORK / x.size)))
        held_out = _HeldOut(x[held.rows], y[held.rows], held.weight, floor, self.patience)
        weight = unit_weight(fit.weight, len(fit.rows))
        self._train(x[fit.rows], y[fit.rows], weight, most, held_out)
        return held_out.best


class _HeldOut:
    """Follows the Brier score of held-out rows while critics are added."""

    def __init__(self, x: Float64, y: IntArray, weight: Float64, floor: float, patience: int) -> None:
        self._x, self._y, self._weight = x, y, unit_weight(weight, len(y))
        self._floor, self._patience = floor, patience
        self.best, self._seen, self._least = 0, 0, self._brier()

    def enough(self, critic: Float64, shift: Float64) -> bool:
        adjust(self._x, critic, shift)
        self._seen += 1
        score = self._brier()
        if score < self._least:
            self.best, self._least = self._seen, score
        return self._seen - self.best >= self._patience

    def _brier(self) -> float:
        p = _normalised(self._x.copy(), self._floor)
        p[np.arange(len(p)), self._y] -= 1
        return float(self._weight @ np.einsum("nk,nk->n", p, p))


def _normalised(x: Float64, floor: float) -> Float64:
    """Cut to [floor, 1 − floor] and divide rows by their sum; a row cut to zeros becomes even."""
    np.clip(x, floor, 1 - floor, out=x)
    sums = x.sum(axis=1, keepdims=True)
    nothing = sums[:, 0] <= 0
    x[nothing], sums[nothing] = 1 / x.shape[1], 1.0
    x /= sums
    return x
