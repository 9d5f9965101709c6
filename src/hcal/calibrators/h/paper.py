"""The paper's protocol: twelve candidate maps, each trained on the loss, the best one on the training set.

It is kept as published, so that its numbers can be compared; it selects on the data it trains on, and its
class-wise selector can pick a nearly uniform map (docs/decisions/012-protocols.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hcal.calibrators.base import Fitted
from hcal.maps.module import CalibrationMap
from hcal.maps.presets import PAPER_MAPS, build_map
from hcal.objective.loss import HCalibrationLoss
from hcal.numerics import FloatArray, IntArray
from hcal.progress import progress
from hcal.solvers.adam import AdamSettings, Trained, train
from hcal.solvers.monitors import SELECTORS, epoch_ece_ew

LossName = Literal["paper", "published"]


@dataclass(frozen=True)
class PaperSettings:
    """How the paper protocol runs.

    Each of ``select`` ("top-label", "class-wise", "nll") chooses an epoch and a map: by dECE, CWECE_a or NLL
    on the training set. The ``"published"`` loss is far slower and for comparison only; ``maps`` are names of
    :func:`hcal.maps.build_map`.
    """

    select: Sequence[str] = ("top-label",)
    loss: LossName = "paper"
    maps: Sequence[str] = PAPER_MAPS
    adam: AdamSettings = field(default_factory=AdamSettings)


def fit_paper(
    logits: FloatArray,
    y: IntArray,
    settings: PaperSettings,
    *,
    device: str | None = None,
    random_state: int = 0,
    verbose: bool = False,
) -> dict[str, Fitted]:
    """Train every candidate once and return, for each selector, the best epoch of the best map."""
    unknown = [s for s in settings.select if s not in SELECTORS]
    if unknown or not settings.select or not settings.maps:
        raise ValueError(f"select must be among {', '.join(map(repr, SELECTORS))}, got {settings.select!r}")
    where = torch.device(device or "cpu")
    scores = torch.as_tensor(np.ascontiguousarray(logits, dtype=np.float32), device=where)
    problem = (torch.log_softmax(scores, dim=1), torch.as_tensor(y, device=where), _objective(settings.loss))
    candidates = []
    total = len(settings.maps) * settings.adam.epochs
    with progress("h-calibration, paper protocol", total, verbose=verbose) as advance:
        for name in settings.maps:
            # a candidate's start depends on its name, not on which others are listed
            start = random_state + zlib.crc32(name.encode()) % 1_000_000
            candidate = _train_one(name, *problem, settings, start, advance)
            candidates.append(candidate)
            advance(settings.adam.epochs - candidate.trained.epochs)
    return {name: _winner(candidates, name, settings) for name in settings.select}


@dataclass(frozen=True)
class _Candidate:
    name: str
    map: CalibrationMap
    trained: Trained

    def record(self, select: str) -> dict[str, Any]:
        best = self.trained.best[select]
        return {
            "map": self.name,
            "score": best.score,
            "epoch": best.epoch,
            "epochs": self.trained.epochs,
            "stopped": self.trained.stopped,
        }


def _train_one(
    name: str,
    x: Tensor,
    y: Tensor,
    objective: torch.nn.Module,
    settings: PaperSettings,
    random_state: int,
    advance: Callable[[int], None],
) -> _Candidate:
    new = build_map(name, x, init="published", random_state=random_state).to(x.device)
    trained = train(
        new,
        x,
        y,
        objective,
        monitor=epoch_ece_ew,
        select={s: SELECTORS[s] for s in settings.select},
        settings=settings.adam,
        random_state=random_state,
        tick=lambda: advance(1),
    )
    return _Candidate(name, new, trained)


def _objective(loss: LossName) -> torch.nn.Module:
    if loss == "paper":
        return HCalibrationLoss()
    if loss == "published":
        return HCalibrationLoss.published()
    raise ValueError(f"loss must be 'paper' or 'published', got {loss!r}")


def _winner(candidates: list[_Candidate], select: str, settings: PaperSettings) -> Fitted:
    winner = min(candidates, key=lambda c: c.trained.best[select].score)
    best = winner.trained.best[select]
    winner.map.load_state_dict(best.parameters)
    info = {
        "protocol": "paper",
        "select": select,
        "loss": settings.loss,
        "map": winner.name,
        "epoch": best.epoch,
        "candidates": [c.record(select) for c in candidates],
        "loss_curve": winner.trained.losses,
    }
    converged = winner.trained.stopped
    message = f"{winner.name} was still improving after {winner.trained.epochs} epochs"
    return Fitted(dict(winner.map.export()), converged, "" if converged else message, info)
