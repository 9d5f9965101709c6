"""The paper's h-calibration: twelve candidate maps are trained on the h loss, and the best one is chosen."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from hcal.extras import load_extra
from hcal.h_calibration.paper_maps import MixtureMap, Reference, TableMap
from hcal.methods.base import CalibrationWarning, Calibrator, Fitted
from hcal.methods.parameters import Between, Count, Seed, parameters
from hcal.numerics import Float64, FloatArray, IntArray, log_softmax
from hcal.progress import progress
from hcal.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from hcal.h_calibration.trainable_maps import Init, TrainableMap
    from hcal.h_calibration.training import AdamSettings, TorchLoss, Trained

Select = Literal["top_label", "class_wise", "score"]

#: The argument of the piecewise maps: the logits minus the largest of the row, as in the paper. The published code uses
#: log-softmax for all maps; docs/paper.md compares both.
PIECEWISE_REFERENCE: Reference = "largest"


@parameters
class HCalibrator(Calibrator):
    """The paper's h-calibration: maps trained on the h loss, chosen by an error of the calibration set.

    Every candidate map is trained by Adam on all rows; the best epoch of the best map is kept. The order of the
    classes never changes. Training needs torch (``hcal[torch]``), predicting does not.

    Parameters
    ----------
    select : {"top_label", "class_wise", "score"}
        The error of the calibration set that chooses epoch and map: the debiased top-label ECE, the class-wise ECE
        (CWECE_a) or the NLL. With many classes the class-wise error is lowest for nearly uniform predictions; the fit
        warns if it chose such a map (docs/why-not-the-papers-selector.md).
    maps : "all", str, or sequence of str
        The paper's twelve, or some of them: ``piecewise-z``, ``monotonic-h``, ``ensemble-m``.
    epochs : int
        The most epochs for each map; training usually stops earlier.
    input : {"logits", "probs", "log_probs"}
    device : str, optional
        Where to train, such as ``"cuda"``; the CPU by default.
    batch_size : int, optional
        Rows of a mini-batch; by default all.
    random_state : int
        Seed of the random starts and of the order of mini-batches.
    verbose : bool
        Whether to show a progress bar at once; otherwise it appears after three seconds, on a terminal.

    Attributes
    ----------
    info_ : dict
        The chosen ``map`` and ``epoch``, the ``candidates`` with their scores, the ``loss_curve`` of the chosen map,
        and ``collapsed``, which says why that map counts as nearly uniform (empty if it does not).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0, 2, (400, 3))
    >>> y = (logits + rng.gumbel(size=(400, 3))).argmax(axis=1)
    >>> cal = HCalibrator(maps="piecewise-1", epochs=300).fit(3 * logits, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"]
    True
    """

    name = "h"
    title = "h-calibration (the paper's)"
    promises = "order"
    weighted = True
    map_types = (TableMap, MixtureMap)
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "class_wise": {"select": "class_wise"},
        "score": {"select": "score"},
    }

    select: Select = "top_label"
    maps: str | tuple[str, ...] = "all"
    epochs: Annotated[int, Between(1, 10**6)] = 2000
    device: str | None = None
    batch_size: Count | None = None
    random_state: Seed = 0
    verbose: bool = False

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        load_extra("training 'h'", "torch", "torch")
        from hcal.h_calibration.trainable_maps import PAPER_MAPS
        from hcal.h_calibration.training import AdamSettings

        if weight is not None:
            if not np.array_equal(weight, np.rint(weight)):
                raise ValueError(
                    "'h' takes sample_weight of integers only: windows are runs of rows"
                )
            copies = weight.astype(np.int64)
            x, y = np.repeat(x, copies, axis=0), np.repeat(y, copies)
        names = (
            PAPER_MAPS
            if self.maps == "all"
            else [self.maps]
            if isinstance(self.maps, str)
            else self.maps
        )
        fitted = train_candidates(
            x, y, names, select=[self.select], settings=AdamSettings(epochs=self.epochs, batch_size=self.batch_size),
            device=self.device or "cpu", random_state=self.random_state, verbose=self.verbose,
        )[self.select]  # fmt: skip
        if why := fitted.details["collapsed"]:
            words = (
                f"h: the map chosen by select={self.select!r} is nearly uniform ({why}): do not use its "
                "probabilities. The error that chose it favours such maps (docs/why-not-the-papers-selector.md); "
                "select='score' or 'top_label' does not."
            )
            warnings.warn(words, CalibrationWarning, stacklevel=4)
        return fitted


@dataclass(frozen=True)
class Candidate:
    """A trained map."""

    name: str
    module: TrainableMap
    reference: Reference
    trained: Trained

    def record(self, select: str) -> dict[str, Any]:
        """Return its entry in ``info_``."""
        best, done = self.trained.best[select], self.trained
        told = {"map": self.name, "score": best.score, "epoch": best.epoch}
        return told | {"epochs": done.epochs, "stopped": done.stopped}


def train_candidates(
    x: Float64,
    y: IntArray,
    names: Sequence[str],
    *,
    select: Sequence[str] = ("top_label",),
    settings: AdamSettings | None = None,
    objective: TorchLoss | None = None,
    reference: Reference = PIECEWISE_REFERENCE,
    init: Init = "published",
    device: str = "cpu",
    random_state: int = 0,
    verbose: bool = False,
) -> dict[str, Fitted]:
    """Train maps once and return, for each selector, the best epoch of the best map.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits.
    y : array of shape (N,)
    names : sequence of str
        Names from :data:`hcal.h_calibration.trainable_maps.PAPER_MAPS`, or other sizes of these families.
    select : sequence of {"top_label", "class_wise", "score"}
    settings : AdamSettings, optional
    objective : callable, optional
        (probabilities, labels) ↦ scalar tensor; the h loss with the paper's constants by default.
    reference : {"largest", "log_softmax"}
        The argument of piecewise maps.
    init : {"published", "identity"}
        Where training starts.

    Returns
    -------
    dict of str to Fitted
    """
    import torch

    from hcal.h_calibration.loss import HCalibrationLoss
    from hcal.h_calibration.trainable_maps import build_trainable
    from hcal.h_calibration.training import SELECTORS, AdamSettings, train

    if not names:
        raise ValueError("maps must name at least one map")
    s = settings or AdamSettings()
    y_there = torch.as_tensor(y, device=device)
    inputs: dict[Reference, Tensor] = {
        "log_softmax": _on(log_softmax(x), device),
        "largest": _on(x - x.max(axis=1, keepdims=True), device),
    }
    candidates = []
    with progress("h-calibration", len(names) * s.epochs, verbose=verbose) as advance:
        for name in names:
            # a candidate's start depends on its name, not on which others are listed
            seed = random_state + zlib.crc32(name.encode()) % 1_000_000
            own: Reference = reference if name.startswith("piecewise") else "log_softmax"
            module = build_trainable(name, inputs[own], init=init, random_state=seed).to(device)
            trained = train(
                module, inputs[own], y_there, objective or HCalibrationLoss(),
                select={each: SELECTORS[each] for each in select}, settings=s, random_state=seed,
                tick=lambda: advance(1),
            )  # fmt: skip
            candidates.append(Candidate(name, module, own, trained))
            advance(s.epochs - trained.epochs)
    return {each: _winner(candidates, each, inputs, y) for each in select}


def _on(x: FloatArray, device: str) -> Tensor:
    import torch

    return torch.as_tensor(np.clip(x, -1e30, 1e30).astype(np.float32), device=device)


def _winner(
    candidates: list[Candidate], select: str, inputs: dict[Reference, Tensor], y: IntArray
) -> Fitted:
    winner = min(candidates, key=lambda c: c.trained.best[select].score)
    best = winner.trained.best[select]
    winner.module.load_state_dict(best.parameters)
    probs = winner.module(inputs[winner.reference]).detach().cpu().numpy()
    before = inputs["log_softmax"].cpu().numpy()
    info = {
        "select": select,
        "map": winner.name,
        "epoch": best.epoch,
        "candidates": [c.record(select) for c in candidates],
        "collapsed": _collapsed(probs, y, before),
    }
    converged = winner.trained.stopped
    message = f"{winner.name} was still improving after {winner.trained.epochs} epochs"
    return Fitted(
        winner.module.fitted(winner.reference),
        converged,
        "" if converged else message,
        details=info,
        history={"loss": winner.trained.losses},
    )


def _collapsed(probs: FloatArray, y: IntArray, before: FloatArray) -> str:
    """Return why probabilities count as nearly uniform, or an empty string; ``before`` are log-probabilities."""
    k, own = probs.shape[1], (np.arange(len(y)), y)
    accuracy, confidence = (
        float((probs.argmax(axis=1) == y).mean()),
        float(probs.max(axis=1).mean()),
    )
    nll = -float(np.log(np.maximum(probs[own], np.finfo(np.float32).tiny)).mean())
    worse = nll > -1.1 * float(before[own].mean()) and confidence < accuracy - 0.2
    if not worse and not (confidence < 3 / k and accuracy > 10 / k):
        return ""
    return f"mean confidence {confidence:.3g}, accuracy {accuracy:.3g}, NLL {nll:.3g}"
