"""DIAG: diagonal intra-order-preserving calibration (Rahimi et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hcal.maps.base import STEEP, Map, array, map_type, raise_to_floor
from hcal.methods._scaling import ThinnedRows, thinned_ranks, thinning_step, without_mean
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.folds import deal_folds, fold_sides
from hcal.methods.parameters import Count, Seed, parameters
from hcal.numerics import Float64, IntArray
from hcal.rows import Rows
from hcal.solvers.nll import LineCells, MonotoneNet, cells_over, fit_nll, mean_nll, select
from hcal.solvers.optimise import Best, Search, Solution
from hcal.xp import Array, interp, namespace

# A search ends after this many iterations without a lower held-out NLL.
_PATIENCE = 40
# The most logits of a fit; if there are more, every n-th row is used.
_MOST_EVENTS = 2_000_000
# The least floor of a map.
_LEAST = 1e-31
#: Rows to fit on and rows held out.
Sides = tuple[IntArray, IntArray]


@map_type
class MonotoneTable(Map):
    """softmax(m(z)), z the centred logits, with one increasing piecewise linear m whose end lines continue.

    Probabilities below twice ``least`` are raised to between ``least`` and twice that, and rows are normalised again.
    """

    unit: Array = array("logits are divided by it", low=1e-100, high=STEEP)
    knots: Array = array("where m is given", "G", order="increasing")
    values: Array = array("m there", "G", low=-1e50, high=1e50, order="not falling")
    least: Array = array("the least probability, up to a factor of 2", low=_LEAST, high=0.25)

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        scores = interp(without_mean(x) / self.unit, self.knots, self.values)
        return xp.log_softmax(raise_to_floor(xp.log_softmax(scores), self.least))

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        if len(self.knots) < 2 or np.diff(self.knots).min() < 1e-50:
            raise ValueError("'knots' must be two at least, and 1e-50 apart")


@parameters
class DiagonalOrderPreserving(Calibrator):
    """softmax(m(z₁), …, m(z_K)) of centred logits z, with one increasing m that is learned by mean NLL.

    m(x) = ∫ (ELU(g(t)) + 1 + 1e-8) dt with g an MLP 1 → h → h → 1. Each fold trains a network, and the outputs m of
    these networks are averaged. The size h is chosen by the mean held-out NLL of the folds.

    Rahimi, Shaban, Cheng, Hartley, Boots: Intra Order-preserving Functions for Calibration of Multi-Class
    Neural Networks, NeurIPS 2020.

    Parameters
    ----------
    hidden : tuple of int
        Sizes to choose from; one size means no choice. The published result on CIFAR-10 has (10,).
    early_stopping : bool
        Keep, in each fold, the iterate with the lowest held-out NLL. The published method runs to convergence. If all
        of the most confident predictions are right, the slope there then grows without bound, and one confident error
        on new data can cost any NLL.
    folds : int
    random_state : int
        Seed of the networks' starting points.
    max_iterations : int
        Of L-BFGS.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = DiagonalOrderPreserving(hidden=(2,)).fit(4 * logits, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"]
    True
    """

    name = "diag"
    title = "Diagonal intra-order-preserving"
    promises = "order"
    weighted = True
    grouped = True
    map_types = (MonotoneTable,)

    hidden: tuple[Count, ...] = (2, 10)
    early_stopping: bool = True
    folds: Count = 5
    random_state: Seed = 1357
    max_iterations: Count = 2000

    def _fit(self, rows: Rows) -> Fitted:
        if not self.hidden:
            raise ValueError("hidden must hold at least one size, got none")
        kept = slice(None, None, thinning_step(rows, _MOST_EVENTS))
        groups = None if rows.groups is None else rows.groups[kept]
        thinned = thinned_ranks(rows, _MOST_EVENTS)
        cells = cells_over(thinned.logits)
        folds = fold_sides(deal_folds(rows.x[kept], self.folds, groups))
        networks = _Networks(
            rows=thinned,
            cells=cells,
            random_state=self.random_state,
            max_iterations=self.max_iterations,
            stops_early=self.early_stopping and len(folds) > 1,
        )

        sides = [(fold, fold) for fold in folds]
        chosen = select(self.hidden, sides, networks.train, networks.held_out_nll)
        solutions = [model.solved for model in chosen.models]
        values = np.mean([model.table for model in chosen.models], axis=0)
        table = MonotoneTable(
            unit=np.array(thinned.unit),
            knots=cells.edges,
            values=values,
            least=_least_probability(rows),
        )

        scores = dict(zip(map(str, self.hidden), chosen.scores, strict=True))
        details = {
            "hidden": chosen.chosen,
            "iterations": [solved.iterations for solved in solutions],
            "rows": len(thinned.logits),
            "held_out_nll": scores,
        }
        messages = [solved.message for solved in solutions if not solved.converged]
        return Fitted(table, not messages, messages[0] if messages else "", details)


class _Network(NamedTuple):
    """A trained network, and its values at the edges of the cells."""

    solved: Solution
    table: Float64


@dataclass(frozen=True)
class _Networks:
    """How a network is trained on the rows of a fold, and scored on those held out."""

    rows: ThinnedRows
    cells: LineCells
    random_state: int
    max_iterations: int
    stops_early: bool

    def train(self, size: int, sides: Sides, _previous: _Network | None) -> _Network:
        """Train a network of a size on the first side; early stopping looks at the second."""
        net = MonotoneNet(size, self.cells, self.random_state)
        best = Best[Float64](_PATIENCE)
        watch = partial(self._is_over, net, best, sides) if self.stops_early else None
        search = Search(max_iterations=self.max_iterations, tolerance=1e-6, gain=1e-9, watch=watch)
        x, y, weight = self._part(sides[0])
        solved = fit_nll(net, x, y, weight, search=search)
        if best.what is not None:
            solved = replace(solved, theta=best.what, converged=True, message="")
        return _Network(solved, net.table(solved.theta))

    def held_out_nll(self, network: _Network, sides: Sides) -> float:
        """Return the mean NLL of the second side."""
        return self._nll_of_table(network.table, sides)

    def _is_over(self, net: MonotoneNet, best: Best[Float64], sides: Sides, theta: Float64) -> bool:
        score = self._nll_of_table(net.table(theta), sides)
        return best.over(score, theta.copy())

    def _nll_of_table(self, table: Float64, sides: Sides) -> float:
        x, y, weight = self._part(sides[1])
        return mean_nll(interp(x, self.cells.edges, table), y, weight)

    def _part(self, rows: IntArray) -> tuple[Float64, IntArray, Float64 | None]:
        weight = self.rows.weight
        return (
            self.rows.logits[rows],
            self.rows.labels[rows],
            None if weight is None else weight[rows],
        )


def _least_probability(rows: Rows) -> Float64:
    """Return half of one row's share, but so little that all classes together have at most 5 %.

    Normalising the rows again takes a little of it, so it is 5 % more.
    """
    total = max(rows.total, 1.0)
    least = 1.05 * min(0.5 / total, 0.05 / rows.n_classes)
    return np.array(max(least, _LEAST))
