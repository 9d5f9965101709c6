"""The default protocol: a few candidates, judged out of fold by NLL, the winner fitted on everything.

NLL is a proper score, so a collapsed (nearly uniform) predictor cannot win: the uncalibrated probabilities
and temperature scaling are among the candidates and beat it on held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcal.calibrators.base import Fitted, Preserves, State
from hcal.folds import kfold
from hcal.maps.predict import graph_map, predict_map
from hcal.maps.presets import build_map
from hcal.numerics import FloatArray, IntArray
from hcal.objective.loss import HCalibrationLoss
from hcal.ops import Ops
from hcal.solvers.adam import AdamSettings, nll_objective, train
from hcal.solvers.monitors import nll
from hcal.solvers.temperature import nll_slope, solve_increasing

#: (logits, labels, seed) to an exported map.
Candidate = Callable[[FloatArray, IntArray, int], State]

_FOLDS = 3
_STEPS = AdamSettings(learning_rate=0.02, epochs=200, plateau=10, patience=30)
# What the windowed error of eq:finalloss counts beside the NLL; without scale it is an error in [0, 1].
_H_SHARE = 1.0


def fit_default(
    logits: FloatArray,
    y: IntArray,
    sample_weight: NDArray[np.float64] | None,
    *,
    preserve: Preserves,
    device: str | None,
    random_state: int,
    verbose: bool,
) -> Fitted:
    """Choose a map by its held-out NLL, then fit it on all rows."""
    if sample_weight is not None:
        raise ValueError("'h' does not support sample_weight yet")
    return choose(default_candidates(), logits, y, random_state)


def predict_default(state: Mapping[str, NDArray[Any]], logits: FloatArray, preserve: Preserves) -> FloatArray:
    """Return the probabilities of a fitted state."""
    return predict_map(state, logits)


def graph_default(state: Mapping[str, NDArray[Any]], ops: Ops, x: Any, preserve: Preserves) -> Any:
    """Return what :func:`predict_default` does, in the operations of :mod:`hcal.ops`."""
    return graph_map(state, ops, x)


def default_candidates() -> dict[str, Candidate]:
    """Return the candidates by name; the first two cannot fail."""
    return {
        "identity": lambda logits, y, seed: {"table": np.array([0.0, 1.0]), "step": np.array(1.0)},
        "temperature": _temperature,
        "piecewise-100": lambda logits, y, seed: _trained("piecewise-100", logits, y, seed),
        "monotonic-10": lambda logits, y, seed: _trained("monotonic-10", logits, y, seed),
    }


def choose(candidates: Mapping[str, Candidate], logits: FloatArray, y: IntArray, seed: int) -> Fitted:
    """Return the candidate with the least out-of-fold NLL, fitted on all rows."""
    scores = dict.fromkeys(candidates, 0.0)
    if len(y) >= 2 * _FOLDS:
        for fit_rows, held_out in kfold(len(y), _FOLDS, seed=seed):
            for name, candidate in candidates.items():
                state = candidate(logits[fit_rows], y[fit_rows], seed)
                probs = predict_map(state, logits[held_out])
                own = np.maximum(probs[np.arange(len(held_out)), y[held_out]], np.finfo(np.float64).tiny)
                scores[name] -= float(np.log(own).sum()) / len(y)
    best = min(scores, key=lambda name: scores[name])
    info = {"protocol": "default", "map": best, "candidates": scores}
    return Fitted(dict(candidates[best](logits, y, seed)), info=info)


def _temperature(logits: FloatArray, y: IntArray, seed: int) -> State:
    beta = solve_increasing(nll_slope(logits, y, None)).beta
    return {"table": np.array([0.0, beta]), "step": np.array(1.0)}


def _trained(name: str, logits: FloatArray, y: IntArray, seed: int) -> State:
    """Train a map from the identity on NLL plus the windowed error."""
    x = torch.log_softmax(torch.as_tensor(np.ascontiguousarray(logits, dtype=np.float32)), dim=1)
    windowed = HCalibrationLoss(scale=_H_SHARE)

    def objective(probs: Tensor, labels: Tensor) -> Tensor:
        error: Tensor = windowed(probs, labels)
        return nll_objective(probs, labels) + error

    new = build_map(name, x, seed=seed)
    labels = torch.as_tensor(y)
    train(new, x, labels, objective, monitor=nll, select={"nll": nll}, settings=_STEPS, seed=seed)
    return dict(new.export())
