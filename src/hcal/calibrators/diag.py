"""DIAG: diagonal intra-order-preserving calibration (Rahimi et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators._normal_form import MARK, MARKED, ranked_units, to_predict, to_predict_graph
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.row_order import WeightedRows, fold_parts
from hcal.calibrators.state import STEEP, Field, Rule, Sizes, StateArrays, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.families import Cells, MonotoneNet, cells_over
from hcal.solvers.nll import fit_nll, unit_weight
from hcal.solvers.optimise import Solution
from hcal.solvers.rows import array_rows
from hcal.solvers.nll import Selection, select


def _cells(state: StateArrays) -> Cells:
    return Cells(float(state["low"]), float(state["width"]), len(state["values"]) - 1)


def _distinct_edges(state: StateArrays, _: Sizes) -> bool:
    return bool((np.diff(_cells(state).edges) > 0).all())


_TABLE = StateSpec(
    (
        Field("unit", "logits are divided by it", low=1e-100, high=STEEP),
        Field("low", "where the first cell begins"),
        Field("width", "of a cell", low=1e-50),
        Field("values", "m at the edges of the cells", ("G+1",), -1e50, 1e50, order="not falling"),
    ),
    {"G": ("cells", 1)},
    (Rule("width", "make the edges of the cells distinct numbers", _distinct_edges),),
)
# Iterations without a lower held-out NLL after which a search ends.
_PATIENCE = 40


@parameters
class DiagonalOrderPreserving(Calibrator):
    """softmax(m(z₁), …, m(z_K)), z centred, with one increasing m, a positive network's integral; mean NLL.

    m(x) = ∫ (ELU(g(t)) + 1 + 1e-8) dt with g an MLP 1 → h → h → 1. One network a fold; the outputs m of the
    fold models are averaged. The size h is chosen by the mean held-out NLL of the folds.

    Rahimi, Shaban, Cheng, Hartley, Boots: Intra Order-preserving Functions for Calibration of Multi-Class
    Neural Networks, NeurIPS 2020.

    Parameters
    ----------
    hidden : tuple of int
        Sizes to choose from; one size means no choice. The published result on CIFAR-10 has (10,).
    early_stopping : bool
        Keep, in each fold, the iterate of lowest held-out NLL. The published method runs to convergence;
        where all labels of the sharpest scores are right, the slope there then grows without bound and one
        confident error on new data costs any price.
    folds : int
    random_state : int
        Of the networks' starts and of the folds.
    max_iterations : int
        Of L-BFGS.
    max_events : int
        Rows are thinned evenly to at most this many logits for the fit.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = DiagonalOrderPreserving(hidden=(2,)).fit(4 * logits, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "diag"
    title = "Diagonal intra-order-preserving"
    preserves = "order"
    weighted = True
    state_specs = (_TABLE + MARKED,)

    hidden: tuple[int, ...] = (2, 10)
    early_stopping: bool = True
    folds: int = 5
    random_state: int = 1357
    max_iterations: int = 2000
    max_events: int = 2_000_000
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must hold sizes of at least 1, got {self.hidden}")
        x, y, weight, unit = ranked_units(logits, y, sample_weight, self.max_events)
        cells = cells_over(x)
        found = self._select(x, y, weight, cells)
        size, models = found.chosen, found.models
        values = np.mean([MonotoneNet(size, cells).table(m.theta) for m in models], axis=0)
        state = {
            "low": np.array(cells.low),
            "width": np.array(cells.width),
            "values": values,
            "unit": np.array(unit),
        } | MARK
        info: dict[str, Any] = {"hidden": size, "iterations": [m.iterations for m in models], "rows": len(x)}
        info["held_out_nll"] = dict(zip(map(str, self.hidden), found.scores, strict=True))
        failed = [m.message for m in models if not m.converged]
        return Fitted(state, not failed, failed[0] if failed else "", info)

    def _select(
        self, x: Float64, y: IntArray, weight: Float64 | None, cells: Cells
    ) -> Selection[int, Solution]:
        def fit(size: int, fold: _Fold, _: Solution | None) -> Solution:
            part = fold.fit
            best = _Best(lambda theta: held_out_nll(size, theta, fold.held))
            solved = fit_nll(
                MonotoneNet(size, cells, self.random_state),
                array_rows(x[part.rows], y[part.rows], part.weight),
                max_iterations=self.max_iterations,
                tolerance=1e-6,
                gain=1e-9,
                watch=best.watch if self.early_stopping and fold.held is not fold.fit else None,
            )
            if best.theta is None:
                return replace(solved, record=size)
            return Solution(best.theta, solved.value, True, "", solved.iterations, record=size)

        def held_out_nll(size: int, theta: Float64, part: WeightedRows) -> float:
            probs = softmax(apply_cells(x[part.rows], cells, MonotoneNet(size, cells).table(theta)))
            own = np.maximum(probs[np.arange(len(probs)), y[part.rows]], 1e-300)
            return -float(unit_weight(part.weight, len(own)) @ np.log(own))

        def score(model: Solution, fold: _Fold) -> float:
            return held_out_nll(model.record, model.theta, fold.held)

        parts = fold_parts(x, y, weight, self.folds, random_state=self.random_state)
        folds = [_Fold(*both) for both in parts]
        return select(self.hidden, [(fold, fold) for fold in folds], fit, score)

    def _predict(self, logits: FloatArray) -> FloatArray:
        s = self.state_
        x = to_predict(s, logits) / float(s["unit"])
        return softmax(apply_cells(x, _cells(s), s["values"]))

    def _graph(self, ops: Ops, x: Any) -> Any:
        s = self.state_
        x = to_predict_graph(s, ops, x, self.n_classes_)
        return ops.softmax(ops.piecewise(x / float(s["unit"]), _cells(s).edges, s["values"]))


class _Fold(NamedTuple):
    """Early stopping looks at what is held out while it fits."""

    fit: WeightedRows
    held: WeightedRows


class _Best:
    """Remembers the iterate of lowest held-out NLL, and ends the search when it lies far behind."""

    def __init__(self, score: Callable[[Float64], float]) -> None:
        self.theta: Float64 | None = None
        self._score = score
        self._least = np.inf
        self._since = 0

    def watch(self, theta: Float64) -> bool:
        value = self._score(theta)
        self._since += 1
        if value < self._least:
            self.theta, self._least, self._since = theta.copy(), value, 0
        return self._since >= _PATIENCE
