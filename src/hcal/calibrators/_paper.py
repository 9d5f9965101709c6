"""The paper's protocol: twelve candidate maps, each trained on the loss, the best one on the training set.

It is kept as published, so that its numbers can be compared; it selects on the data it trains on, and its
class-wise selector can pick a nearly uniform map (docs/decisions/012-protocols.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hcal.calibrators.base import Fitted
from hcal.maps.base import CalibrationMap
from hcal.maps.presets import PAPER_MAPS, build_map
from hcal.numerics import FloatArray, IntArray
from hcal.objective.loss import HCalibrationLoss
from hcal.solvers.adam import AdamSettings, Trained, train
from hcal.solvers.monitors import SELECTORS, Monitor, ece_ew
from hcal.solvers.progress import progress

LossName = Literal["paper", "published"]


@dataclass(frozen=True)
class PaperSettings:
    """How the paper protocol runs.

    Parameters
    ----------
    select : {"top-label", "class-wise", "nll"}
        Chooses the epoch and the map: dECE, CWECE_a or NLL on the training set.
    loss : {"paper", "published"}
        The published code's variant is far slower and for comparison only.
    maps : sequence of str
        Candidates, by the names of :func:`hcal.maps.build_map`.
    adam : AdamSettings
    """

    select: str = "top-label"
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
) -> Fitted:
    """Train every candidate and return the one with the best selector.

    Parameters
    ----------
    logits : array of shape (N, K)
    y : array of shape (N,)
    settings : PaperSettings
    device : str, optional
        Of torch; by default the CPU.
    random_state : int
    verbose : bool

    Returns
    -------
    Fitted
    """
    if settings.select not in SELECTORS:
        raise ValueError(f"select must be one of {', '.join(map(repr, SELECTORS))}, got {settings.select!r}")
    where = torch.device(device or "cpu")
    x = torch.log_softmax(
        torch.as_tensor(np.ascontiguousarray(logits, dtype=np.float32), device=where), dim=1
    )
    labels = torch.as_tensor(y, device=where)
    objective = _objective(settings.loss)
    select = SELECTORS[settings.select]
    winner: tuple[float, CalibrationMap, Trained] | None = None
    records: list[dict[str, Any]] = []
    total = len(settings.maps) * settings.adam.epochs
    with progress("h-calibration, paper protocol", total, verbose=verbose) as advance:
        for number, name in enumerate(settings.maps):
            candidate, trained = _train_one(
                name, x, labels, objective, select, settings, random_state + 1000 * number, advance
            )
            records.append(_record(name, trained))
            if winner is None or trained.score < winner[0]:
                winner = (trained.score, candidate, trained)
            advance(settings.adam.epochs - trained.epochs)
    if winner is None:
        raise ValueError("maps must name at least one candidate")
    return _fitted(winner[1], winner[2], records, settings)


def _train_one(
    name: str,
    x: Tensor,
    y: Tensor,
    objective: torch.nn.Module,
    select: Monitor,
    settings: PaperSettings,
    seed: int,
    advance: Any,
) -> tuple[CalibrationMap, Trained]:
    candidate = build_map(name, x, init="published", seed=seed).to(x.device)
    trained = train(
        candidate,
        x,
        y,
        objective,
        monitor=ece_ew,
        select=select,
        settings=settings.adam,
        seed=seed,
        tick=lambda: advance(1),
    )
    return candidate, trained


def _objective(loss: LossName) -> torch.nn.Module:
    if loss == "paper":
        return HCalibrationLoss()
    if loss == "published":
        return HCalibrationLoss.published()
    raise ValueError(f"loss must be 'paper' or 'published', got {loss!r}")


def _record(name: str, t: Trained) -> dict[str, Any]:
    return {"map": name, "score": t.score, "epoch": t.epoch, "epochs": t.epochs, "stopped": t.stopped}


def _fitted(
    winner: CalibrationMap, trained: Trained, records: list[dict[str, Any]], settings: PaperSettings
) -> Fitted:
    best = min(records, key=lambda r: r["score"])
    info = {
        "protocol": "paper",
        "select": settings.select,
        "loss": settings.loss,
        "map": best["map"],
        "epoch": trained.epoch,
        "candidates": records,
        "loss_curve": trained.losses,
    }
    unfinished = [r["map"] for r in records if not r["stopped"]]
    converged = best["map"] not in unfinished
    message = "" if converged else f"{best['map']} was still improving after {trained.epochs} epochs"
    return Fitted(dict(winner.export()), converged, message, info)
