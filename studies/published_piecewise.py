"""The published code's piecewise map, kept as evidence: it is neither continuous nor increasing.

With z segments of width w = 100/z, slot j = 1…z covering [−w·j, −w·(j−1)], it computes
out = s_j·x + (1 − s_j)·c_j with c_j = w·s_0 − w·Σ_{1≤i<j} s_i: the offset uses the output at the knot in
place of the knot. While all slopes are 1 this is the identity; once they differ, neighbouring segments do
not meet and the order of classes can invert. The map of the paper is :class:`hcal.maps.PiecewiseLinear`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.base import Calibrator, Fitted
from hcal.inputs import InputKind
from hcal.numerics import FloatArray, IntArray, log_softmax, softmax

if TYPE_CHECKING:
    from torch import Tensor

_SPAN = 100.0


def published_map(x: NDArray[Any], slopes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the published map of log-probabilities.

    Parameters
    ----------
    x : array of shape (N, K)
    slopes : array of shape (z + 1,)
        s_0 belongs to no segment.

    Returns
    -------
    array of shape (N, K)

    Examples
    --------
    >>> published_map(np.array([[-1.0, -60.0]]), np.array([1.0, 2.0, 1.0]))
    array([[-52., -60.]])
    """
    width = _SPAN / (len(slopes) - 1)
    slot = np.clip(np.ceil(-x / width).astype(int), 1, len(slopes) - 1)
    before = np.concatenate([[0.0, 0.0], np.cumsum(slopes[1:-1])])
    offset = width * slopes[0] - width * before
    return np.asarray(slopes[slot] * x + (1 - slopes[slot]) * offset[slot], dtype=np.float64)


class PublishedPiecewise(Calibrator):
    """The published piecewise map, trained on the h objective with the paper's schedule.

    Parameters
    ----------
    segments : int
    select : {"top-label", "class-wise", "nll"}
    epochs : int
    random_state : int
    input : {"logits", "probs", "log_probs"}
    """

    name = "published_piecewise"
    title = "Piecewise map of the published code"
    preserves = None

    def __init__(
        self,
        *,
        segments: int = 500,
        select: str = "class-wise",
        epochs: int = 2000,
        random_state: int = 0,
        input: InputKind = "logits",
    ) -> None:
        self.segments = segments
        self.select = select
        self.epochs = epochs
        self.random_state = random_state
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        import torch

        from hcal.objective.loss import HCalibrationLoss
        from hcal.solvers.adam import AdamSettings, train
        from hcal.solvers.monitors import SELECTORS, epoch_ece_ew

        x = torch.from_numpy(log_softmax(logits).astype(np.float32))
        new: Any = _module(self.segments)
        done = train(
            new,
            x,
            torch.from_numpy(y),
            HCalibrationLoss(),
            monitor=epoch_ece_ew,
            select={self.select: SELECTORS[self.select]},
            settings=AdamSettings(epochs=self.epochs),
            random_state=self.random_state,
        )
        info = {"epoch": done.best[self.select].epoch, "loss_curve": done.losses}
        return Fitted({"slopes": new.slopes().detach().numpy().astype(np.float64)}, info=info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return softmax(published_map(log_softmax(logits), self.state_["slopes"]))


def _module(segments: int) -> Any:
    """Return the map as a torch module: slopes |w|, all 1 at the start."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(segments + 1))

        def slopes(self) -> Tensor:
            return self.weight.abs()

        def forward(self, x: Tensor) -> Tensor:
            s = self.slopes()
            width = _SPAN / segments
            slot = torch.ceil(-x / width).long().clamp(1, segments)
            before = torch.cat([s.new_zeros(2), torch.cumsum(s[1:-1], 0)])
            offset = width * s[0] - width * before
            steep = s[slot]
            return torch.softmax(steep * x + (1 - steep) * offset[slot], dim=1)

    return Module()
