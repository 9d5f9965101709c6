"""DIAG: diagonal intra-order-preserving calibration (Rahimi et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.state import STEEP, Arrays, Field, Rule, Sizes, StateSpec
from hcal.folds import Fold, kfold
from hcal.inputs import InputKind
from hcal.maps.monotone import Cells, apply_table, cells_over, monotone_net, tabulate
from hcal.numerics import FloatArray, IntArray, softmax
from hcal.objective import proper
from hcal.ops import Ops
from hcal.solvers.fit_map import fit_map, unit_weight
from hcal.solvers.lbfgs import Solution
from hcal.solvers.selection import Selection, select
from hcal.solvers.temperature import logit_scale

Float64 = NDArray[np.float64]


def _distinct_edges(state: Arrays, sizes: Sizes) -> bool:
    edges = Cells(float(state["low"]), float(state["width"]), sizes["G"]).edges
    return bool((edges[1:] > edges[:-1]).all())


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


class DiagonalOrderPreserving(Calibrator):
    """softmax(m(z₁), …, m(z_K)) with one increasing m, the integral of a positive network; mean NLL.

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
    seed : int
        Of the networks' starts and of the folds.
    max_iterations : int
        Of L-BFGS.
    max_events : int
        Rows are thinned evenly to at most this many logits for the fit.
    input : {"logits", "probs", "log_probs"}

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
    cross_fitted = True
    state_specs = (_TABLE,)

    def __init__(
        self,
        *,
        hidden: tuple[int, ...] = (2, 10),
        early_stopping: bool = True,
        folds: int = 5,
        seed: int = 1357,
        max_iterations: int = 2000,
        max_events: int = 2_000_000,
        input: InputKind = "logits",
    ) -> None:
        self.hidden = hidden
        self.early_stopping = early_stopping
        self.folds = folds
        self.seed = seed
        self.max_iterations = max_iterations
        self.max_events = max_events
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must hold sizes of at least 1, got {self.hidden}")
        every = -(-logits.size // self.max_events)
        unit = _unit(logits)
        x = logits[::every].astype(np.float64, copy=False) / unit
        weight = None if sample_weight is None else sample_weight[::every]
        cells = cells_over(x)
        found = self._select(x, y[::every], weight, cells)
        size, models = found.chosen, found.models
        values = np.mean([tabulate(m.theta, size, cells) for m in models], axis=0)
        state = {
            "low": np.array(cells.low),
            "width": np.array(cells.width),
            "values": values,
            "unit": np.array(unit),
        }
        info: dict[str, Any] = {"hidden": size, "iterations": [m.iterations for m in models], "rows": len(x)}
        info["held_out_nll"] = dict(zip(map(str, self.hidden), found.scores, strict=True))
        failed = [m.message for m in models if not m.converged]
        return Fitted(state, not failed, failed[0] if failed else "", info)

    def _select(
        self, x: Float64, y: IntArray, weight: Float64 | None, cells: Cells
    ) -> Selection[int, Solution]:
        nll = proper.nll()

        def fit(size: int, rows: IntArray, _: Solution | None) -> Solution:
            w = None if weight is None else weight[rows]
            held_out = np.setdiff1d(np.arange(len(x)), rows)
            best = _Best(lambda theta: held_out_nll(theta, held_out))
            solved = fit_map(
                monotone_net(size, cells, self.seed),
                nll,
                x[rows],
                y[rows],
                w,
                max_iterations=self.max_iterations,
                tolerance=1e-6,
                gain=1e-9,
                watch=best.watch if self.early_stopping and len(held_out) else None,
            )
            if best.theta is None:
                return solved
            return Solution(best.theta, solved.value, True, "", solved.iterations)

        def held_out_nll(theta: Float64, rows: IntArray) -> float:
            size = self.hidden[[_parameters(h) for h in self.hidden].index(len(theta))]
            probs = softmax(apply_table(x[rows], cells, tabulate(theta, size, cells)))
            own = np.maximum(probs[np.arange(len(rows)), y[rows]], 1e-300)
            w = unit_weight(None if weight is None else weight[rows] + 1e-300, len(rows))
            return -float(w @ np.log(own))

        def score(model: Solution, rows: IntArray) -> float:
            return held_out_nll(model.theta, rows)

        return select(self.hidden, self._folds(len(x)), fit, score)

    def _folds(self, n_rows: int) -> list[Fold]:
        folds = min(self.folds, n_rows)
        if folds < 2:
            return [(np.arange(n_rows), np.arange(n_rows))]
        return kfold(n_rows, folds, seed=self.seed)

    def _predict(self, logits: FloatArray) -> FloatArray:
        s = self.state_
        cells = Cells(float(s["low"]), float(s["width"]), len(s["values"]) - 1)
        x = logits.astype(np.float64, copy=False) / float(s["unit"])
        return softmax(apply_table(x, cells, s["values"]))

    def _graph(self, ops: Ops, x: Any) -> Any:
        s = self.state_
        cells = Cells(float(s["low"]), float(s["width"]), len(s["values"]) - 1)
        return ops.softmax(ops.piecewise(x / float(s["unit"]), cells.edges, s["values"]))


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


def _parameters(hidden: int) -> int:
    return hidden * (hidden + 4) + 1


def _unit(logits: FloatArray) -> float:
    """Return 1 for logits of a usual scale, as published, else their scale: the start expects that."""
    scale = logit_scale(logits)
    return 1.0 if scale == 0 or 0.5 <= scale <= 100 else scale
