"""Map × objective × solver with every part free: the calibrator behind the ablations.

It trains the given maps with the paper's schedule on any of the objectives and keeps, for each of the
paper's three selectors, the best map and epoch: one training serves three choices, and two configurations
differ in nothing but what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.base import Calibrator, Fitted
from hcal.inputs import InputKind
from hcal.numerics import FloatArray, IntArray, log_softmax

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[["Tensor", "Tensor"], "Tensor"]
ObjectiveName = Literal["h", "nll", "brier"]


class TrainedMaps(Calibrator):
    """Order-preserving maps trained on one objective, the best kept by one selector.

    Parameters
    ----------
    maps : sequence of str
        Names that :func:`hcal.maps.build_map` knows.
    objective : {"h", "nll", "brier"}
    window, epsilon, scale, weighting
        Of the h objective (eq:finalloss).
    leave_one_class_out : bool
        Average the h objective over K passes, each without the rows of one class (the published code).
    init : {"identity", "published"}
    select : {"top-label", "class-wise", "nll"}
        Which epoch and map to keep, by dECE, CWECE_a or NLL on the calibration set.
    epochs : int
    plateau, patience : int
        Epochs without a better ECE_ew until the learning rate is halved, and until training stops.
    device : str, optional
        Of torch; by default the CPU.
    random_state : int
    input : {"logits", "probs", "log_probs"}

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(300, 3)) * 4
    >>> y = (z / 3 + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> cal = TrainedMaps(maps=("temperature",), objective="nll", select="nll", epochs=200).fit(z, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "trained_maps"
    title = "Maps trained on one objective"
    preserves = "order"

    def __init__(
        self,
        *,
        maps: Sequence[str] = ("piecewise-100", "monotonic-10", "ensemble-16"),
        objective: ObjectiveName = "h",
        window: int = 200,
        epsilon: float = 1e-20,
        scale: float = 1e5,
        weighting: Literal["kmeans", "uniform"] = "kmeans",
        leave_one_class_out: bool = False,
        init: Literal["identity", "published"] = "identity",
        select: str = "top-label",
        epochs: int = 2000,
        plateau: int = 20,
        patience: int = 160,
        device: str | None = None,
        random_state: int = 0,
        input: InputKind = "logits",
    ) -> None:
        self.maps = maps
        self.objective = objective
        self.window = window
        self.epsilon = epsilon
        self.scale = scale
        self.weighting = weighting
        self.leave_one_class_out = leave_one_class_out
        self.init = init
        self.select = select
        self.epochs = epochs
        self.plateau = plateau
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        import torch

        from hcal.maps import build_map
        from hcal.solvers.adam import AdamSettings, train
        from hcal.solvers.monitors import SELECTORS, epoch_ece_ew

        if self.select not in SELECTORS:
            raise ValueError(f"select must be one of {', '.join(SELECTORS)}, got {self.select!r}")
        # float32 as in the published training; prediction is float64 again.
        where = torch.device(self.device or "cpu")
        x = torch.from_numpy(log_softmax(logits).astype(np.float32)).to(where)
        labels = torch.from_numpy(y).to(where)
        objective = self._objective(x.shape[1])
        choices: dict[str, tuple[float, Fitted]] = {}
        for number, name in enumerate(self.maps):
            seed = self.random_state + 1000 * number
            new = build_map(name, x, init=self.init, random_state=seed).to(where, x.dtype)
            settings = AdamSettings(epochs=self.epochs, plateau=self.plateau, patience=self.patience)
            done = train(
                new,
                x,
                labels,
                objective,
                monitor=epoch_ece_ew,
                select=SELECTORS,
                settings=settings,
                random_state=seed,
            )
            for select, best in done.best.items():
                if select not in choices or best.score < choices[select][0]:
                    new.load_state_dict(best.parameters)
                    info = {
                        "map": name,
                        "epoch": best.epoch,
                        "epochs": done.epochs,
                        "loss_curve": done.losses,
                    }
                    choices[select] = best.score, Fitted(dict(new.export()), info=info)
        self._choices = {select: fitted for select, (_, fitted) in choices.items()}
        return self._choices[self.select]

    def _objective(self, n_classes: int) -> Loss:
        from hcal.objective.loss import HCalibrationLoss
        from hcal.objective.torch_loss import torch_brier, torch_nll

        if self.objective == "nll":
            return torch_nll
        if self.objective == "brier":
            return torch_brier
        if self.objective != "h":
            raise ValueError(f"objective must be 'h', 'nll' or 'brier', got {self.objective!r}")
        loss = HCalibrationLoss(self.window, self.epsilon, self.scale, weighting=self.weighting)
        return _leave_out(loss, n_classes) if self.leave_one_class_out else loss

    def selected(self, select: str) -> Self:
        """Return the same training with another selector's choice, without training again.

        Parameters
        ----------
        select : {"top-label", "class-wise", "nll"}

        Returns
        -------
        TrainedMaps
        """
        self._check_fitted()
        other = type(self)(**{**self.get_params(deep=False), "select": select})
        other._choices = self._choices
        other._remember(self._choices[select], self.n_classes_)
        other.info_ = {**other.info_, "fitted_on": self.info_["fitted_on"]}
        return other

    def _predict(self, logits: FloatArray) -> FloatArray:
        from hcal.maps import predict_map

        return predict_map(self.state_, logits)


def _leave_out(
    loss: Callable[[Tensor, Tensor], Tensor], n_classes: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the average of the loss over passes that each leave out the rows of one class."""

    def averaged(probs: Tensor, y: Tensor) -> Tensor:
        kept = [y != j for j in range(n_classes)]
        parts = [loss(probs[rows], y[rows]) for rows in kept if bool(rows.any())]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total / len(parts)

    return averaged
