"""Train the candidate maps of h-calibration, and choose the best epoch of the best map."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hcal.h_calibration.loss import HCalibrationLoss
from hcal.h_calibration.paper_maps import Reference
from hcal.h_calibration.trainable_maps import PAPER_MAPS, Init, TrainableMap, build_trainable
from hcal.h_calibration.training import (
    LOSS,
    MONITOR,
    SELECTORS,
    AdamSettings,
    TorchLoss,
    Trained,
    train,
)
from hcal.methods.base import Fitted
from hcal.metrics.sample import Sample
from hcal.metrics.scores import collapse_of
from hcal.numerics import Float64, FloatArray, IntArray, log_softmax
from hcal.progress import progress
from hcal.text import JsonObject

#: The argument of the piecewise maps: the logits minus the largest of the row, as in the paper. The published
#: code uses log-softmax for all maps; docs/paper.md compares both.
PIECEWISE_REFERENCE: Reference = "largest"

#: Float32 logits beyond this would overflow in a difference.
_LARGEST_LOGIT = 1e30


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained, on which objective, from which start, and how.

    Parameters
    ----------
    maps : sequence of str
        Names from :data:`hcal.h_calibration.trainable_maps.PAPER_MAPS`, or other sizes of these families.
    select : sequence of {"top_label", "class_wise", "score"}
        Each selector chooses an epoch and a map of its own; the maps are trained once.
    objective : callable, optional
        (probabilities, labels) ↦ scalar tensor; the h loss with the paper's constants by default.
    adam : AdamSettings
    reference : {"largest", "log_softmax"}
        The argument of piecewise maps.
    init : {"published", "identity"}
        Where training starts.
    build : callable, optional
        (name, x, init=, random_state=) ↦ map, for maps of your own.
    after_epoch : callable, optional
        Called with the name of a map and the map after every epoch, to measure it on other rows.
    device : str
    random_state : int
    verbose : bool

    Examples
    --------
    >>> plan = TrainingPlan(maps=("piecewise-1",), adam=AdamSettings(epochs=100))
    >>> scores = np.tile([0.0, 4.0], (4, 1))
    >>> fitted = train_candidates(scores, np.array([1, 1, 1, 0]), plan)["top_label"]
    >>> fitted.details["map"], len(fitted.history["loss"])
    ('piecewise-1', 100)
    """

    maps: Sequence[str] = PAPER_MAPS
    select: Sequence[str] = ("top_label",)
    objective: TorchLoss = field(default_factory=HCalibrationLoss)
    adam: AdamSettings = field(default_factory=AdamSettings)
    reference: Reference = PIECEWISE_REFERENCE
    init: Init = "published"
    build: Callable[..., TrainableMap] = build_trainable
    after_epoch: Callable[[str, TrainableMap], object] | None = None
    device: str = "cpu"
    random_state: int = 0
    verbose: bool = False


@dataclass(frozen=True)
class Candidate:
    """A trained map, and its training values."""

    name: str
    module: TrainableMap
    reference: Reference
    x: Tensor
    trained: Trained

    def record(self, select: str) -> JsonObject:
        """Return its entry in ``fit_.details["candidates"]``."""
        best = self.trained.best[select]
        return {
            "map": self.name,
            "score": best.score,
            "epoch": best.epoch,
            "epochs": self.trained.epochs,
            "stopped": self.trained.stopped,
        }


def train_candidates(x: Float64, y: IntArray, plan: TrainingPlan) -> dict[str, Fitted]:
    """Train maps once and return, for each selector, the best epoch of the best map.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits.
    y : array of shape (N,)
    plan : TrainingPlan

    Returns
    -------
    dict of str to Fitted
    """
    if not plan.maps:
        raise ValueError("maps must name at least one map")
    labels = torch.as_tensor(y, device=plan.device)
    log_probs = log_softmax(x)
    inputs: dict[Reference, Tensor] = {
        "log_softmax": _tensor(log_probs, plan.device),
        "largest": _tensor(x - x.max(axis=1, keepdims=True), plan.device),
    }

    candidates = []
    n_ticks = len(plan.maps) * plan.adam.epochs
    with progress("h-calibration", n_ticks, verbose=plan.verbose) as advance:
        for name in plan.maps:
            reference = plan.reference if name.startswith("piecewise") else "log_softmax"
            candidate = _train_one(name, inputs[reference], labels, plan, advance)
            candidates.append(candidate)
            advance(plan.adam.epochs - candidate.trained.epochs)

    before = inputs["log_softmax"].cpu().numpy()
    return {select: _best_of(candidates, select, y, before) for select in plan.select}


def seed_of(name: str, random_state: int) -> int:
    """Return the seed of a candidate, which depends on its name and not on which others are listed.

    >>> seed_of("piecewise-10", 1) - seed_of("piecewise-10", 0)
    1
    """
    return random_state + zlib.crc32(name.encode()) % 1_000_000


def _train_one(
    name: str, x: Tensor, y: Tensor, plan: TrainingPlan, advance: Callable[[int], object]
) -> Candidate:
    """Train one map by its name."""
    seed = seed_of(name, plan.random_state)
    module = plan.build(name, x, init=plan.init, random_state=seed).to(plan.device)

    def tick() -> None:
        advance(1)
        if plan.after_epoch is not None:
            plan.after_epoch(name, module)

    trained = train(
        module,
        x,
        y,
        plan.objective,
        select={select: SELECTORS[select] for select in plan.select},
        settings=plan.adam,
        random_state=seed,
        tick=tick,
    )
    reference = plan.reference if name.startswith("piecewise") else "log_softmax"
    return Candidate(name, module, reference, x, trained)


def _best_of(candidates: list[Candidate], select: str, y: IntArray, before: FloatArray) -> Fitted:
    """Return the best map by one selector; ``before`` are the uncalibrated log-probabilities."""
    winner = min(candidates, key=lambda candidate: candidate.trained.best[select].score)
    best = winner.trained.best[select]
    winner.module.load_state_dict(best.parameters)
    probs = winner.module(winner.x).detach().cpu().numpy()

    history = winner.trained.history
    converged = winner.trained.stopped
    message = f"{winner.name} was still improving after {winner.trained.epochs} epochs"
    return Fitted(
        winner.module.fitted(winner.reference),
        converged,
        "" if converged else message,
        details={
            "select": select,
            "map": winner.name,
            "epoch": best.epoch,
            "candidates": [candidate.record(select) for candidate in candidates],
            "collapsed": why_collapsed(probs, y, before),
        },
        history={name: history[name] for name in (LOSS, MONITOR, select)},
    )


def why_collapsed(probs: FloatArray, y: IntArray, before: FloatArray) -> str:
    """Return why probabilities count as nearly uniform, or an empty string."""
    return "; ".join(collapse_of(Sample(probs, y), Sample(np.exp(before), y)))


def _tensor(x: FloatArray, device: str) -> Tensor:
    clipped = np.clip(x, -_LARGEST_LOGIT, _LARGEST_LOGIT)
    return torch.as_tensor(clipped.astype(np.float32), device=device)
