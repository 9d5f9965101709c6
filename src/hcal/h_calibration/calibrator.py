"""The paper's h-calibration: twelve candidate maps are trained on the h loss, and the best one is chosen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from hcal.extras import load_extra
from hcal.h_calibration.definition import ObjectiveSettings
from hcal.h_calibration.paper_maps import MixtureMap, TableMap
from hcal.methods.base import CalibrationWarning, Calibrator, Fitted
from hcal.methods.parameters import Between, Count, NotNegative, Seed, parameters
from hcal.numerics import Float64, IntArray
from hcal.rows import Rows
from hcal.text import JsonObject
from hcal.xp import Array

if TYPE_CHECKING:
    from hcal.h_calibration.training import TorchLoss

Select = Literal["top_label", "class_wise", "score"]

#: The parameters of :class:`HCalibrator` that are constants of the h loss.
_CONSTANTS = ("window", "epsilon", "clusters")


@parameters
class HCalibrator(Calibrator):
    """The paper's h-calibration: maps trained on the h loss, chosen by an error of the calibration set.

    Every candidate map is trained by Adam on all rows; the best epoch of the best map is kept. The order of the
    classes never changes. Training needs torch (``hcal[torch]``), predicting does not.

    Parameters
    ----------
    select : {"top_label", "class_wise", "score"}
        The error of the calibration set that chooses epoch and map: the debiased top-label ECE, the class-wise
        ECE (CWECE_a) or the NLL. The debiased ECE is signed, as in the published code: its least value can be
        below 0, and it is not the one nearest to 0. With many classes the class-wise error is lowest for nearly
        uniform predictions; the fit warns if it chose such a map (docs/why-not-the-papers-selector.md).
    maps : "all", str, or sequence of str
        The paper's twelve, or some of them: ``piecewise-z``, ``monotonic-h``, ``ensemble-m``.
    epochs : int
        The most epochs for each map; training usually stops earlier.
    window : int
        M, the number of consecutive events in a window of the h loss.
    epsilon : float
        ε, the error of a window that the h loss tolerates.
    clusters : int
        Number of clusters of the k-means that weights the windows.
    loss : {"h", "nll"} or callable
        The objective. A callable takes probabilities (N, K) and labels (N,), both tensors, and returns a scalar
        tensor. ``window``, ``epsilon`` and ``clusters`` are constants of the h loss and are refused with another.
    input : {"logits", "probs", "log_probs"}
    device : str, optional
        Where to train, such as ``"cuda"``; the CPU by default.
    batch_size : int, optional
        Rows of a mini-batch; by default all.
    random_state : int
        Seed of the random starts and of the order of mini-batches.
    verbose : bool
        Whether to show a progress bar at once; otherwise it appears after two seconds, on a terminal.

    Attributes
    ----------
    fit_ : FitRecord
        ``fit_.details`` has the name of the ``loss``, the chosen ``map`` and ``epoch``, the ``candidates`` with
        their scores, and ``collapsed``, which says why that map counts as nearly uniform (empty if it does not).
        ``fit_.history``
        has, for every epoch of the chosen map, the ``loss``, the equal-width error ``ece_ew`` that the schedule
        follows, and the error that chose, all of the calibration set.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0, 2, (400, 3))
    >>> y = (logits + rng.gumbel(size=(400, 3))).argmax(axis=1)
    >>> cal = HCalibrator(maps="piecewise-1", epochs=300, window=100).fit(3 * logits, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"]
    True
    """

    name = "h"
    title = "h-calibration (the paper's)"
    promises = "order"
    weighted = True
    map_types = (TableMap, MixtureMap)
    variants: ClassVar[Mapping[str, JsonObject]] = {
        "class_wise": {"select": "class_wise"},
        "score": {"select": "score"},
    }

    select: Select = "top_label"
    maps: str | tuple[str, ...] = "all"
    epochs: Annotated[int, Between(1, 10**6)] = 2000
    window: Count = ObjectiveSettings.window
    epsilon: NotNegative = ObjectiveSettings.epsilon
    clusters: Count = ObjectiveSettings.clusters
    loss: Literal["h", "nll"] | Callable[[Array, Array], Array] = "h"
    device: str | None = None
    batch_size: Count | None = None
    random_state: Seed = 0
    verbose: bool = False

    def _fit(self, rows: Rows) -> Fitted:
        load_extra("training 'h'", "torch", "torch")
        from hcal.h_calibration.candidates import TrainingPlan, train_candidates
        from hcal.h_calibration.training import AdamSettings

        x, y = _copies(rows)
        plan = TrainingPlan(
            maps=self._map_names(),
            select=[self.select],
            objective=self._objective(),
            adam=AdamSettings(epochs=self.epochs, batch_size=self.batch_size),
            device=self.device or "cpu",
            random_state=self.random_state,
            verbose=self.verbose,
        )
        fitted = train_candidates(x, y, plan)[self.select]
        fitted.details["loss"] = self._loss_name()
        self._warn_of_collapse(fitted.details["collapsed"])
        return fitted

    def _map_names(self) -> tuple[str, ...]:
        from hcal.h_calibration.trainable_maps import PAPER_MAPS

        if self.maps == "all":
            return PAPER_MAPS
        return (self.maps,) if isinstance(self.maps, str) else self.maps

    def _objective(self) -> TorchLoss:
        """Return the loss as a function of tensors."""
        from hcal.h_calibration.loss import HCalibrationLoss
        from hcal.h_calibration.training import torch_nll

        if self.loss == "h":
            # The rows have been checked, and a check in every epoch would wait for the GPU.
            return HCalibrationLoss(
                window=self.window, epsilon=self.epsilon, clusters=self.clusters, check=False
            )
        for name in _CONSTANTS:
            value = getattr(self, name)
            if value != getattr(ObjectiveSettings, name):
                raise ValueError(
                    f"{name}={value!r} is a constant of the h loss and has no effect with another "
                    f"loss: leave {name} out, or pass loss='h'"
                )
        if callable(self.loss):
            return self.loss
        return torch_nll

    def _loss_name(self) -> str:
        """Return the name of the loss, which a model file keeps even where it cannot hold the function."""
        if isinstance(self.loss, str):
            return self.loss
        return getattr(self.loss, "__qualname__", type(self.loss).__name__)

    def _warn_of_collapse(self, reason: str) -> None:
        if not reason:
            return
        warnings.warn(
            f"h: the map chosen by select={self.select!r} is nearly uniform ({reason}): do not use "
            "its probabilities. The error that chose it favours such maps "
            "(docs/why-not-the-papers-selector.md); select='score' or 'top_label' does not.",
            CalibrationWarning,
            stacklevel=5,
        )


def _copies(rows: Rows) -> tuple[Float64, IntArray]:
    """Return logits and labels with every row as often as its weight says."""
    x: Float64 = rows.x
    if rows.weight is None:
        return x, rows.labels
    if not np.array_equal(rows.weight, np.rint(rows.weight)):
        raise ValueError("'h' takes sample_weight of integers only: windows are runs of rows")
    counts = rows.weight.astype(np.int64)
    return np.repeat(x, counts, axis=0), np.repeat(rows.labels, counts)
