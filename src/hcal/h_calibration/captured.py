"""A training on a GPU whose epochs are replayed as two CUDA graphs, in place of some hundred launches from Python.

The first graph holds the map and the scores of an epoch, the second the loss, its gradient and the step of Adam.
Both read and write the same memory in every replay. The steps, the schedule and the best epoch are those of
:class:`hcal.h_calibration.training.Loop`; a test compares the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hcal.h_calibration.loss import HCalibrationLoss
from hcal.h_calibration.trainable_maps import TrainableMap
from hcal.h_calibration.training import (
    MONITOR,
    SELECTORS,
    AdamSettings,
    Loop,
    TorchLoss,
    epoch_ece_ew,
    torch_nll,
)

#: Epochs before the capture: kernels are compiled, libraries choose their algorithms, Adam makes its state.
_WARM_UP = 3


def can_be_captured(
    module: TrainableMap, x: Tensor, objective: TorchLoss, scores: Mapping[str, TorchLoss]
) -> bool:
    """Return whether every part of an epoch runs on the GPU without waiting for it.

    Functions that hcal does not know may read values of the device, so they are not captured.

    >>> can_be_captured(torch.nn.Identity(), torch.zeros(1, 2), torch_nll, {})
    False
    """
    if not x.is_cuda or not getattr(module, "capturable", False):
        return False
    is_loss_of_hcal = objective is torch_nll
    if isinstance(objective, HCalibrationLoss):
        is_loss_of_hcal = objective.capturable
    scores_of_hcal = {MONITOR: epoch_ece_ew, **SELECTORS}
    return is_loss_of_hcal and all(
        scores_of_hcal.get(name) is score for name, score in scores.items()
    )


class CapturedLoop(Loop):
    """The loop of a training with full batches, replayed as CUDA graphs."""

    def __init__(
        self,
        module: TrainableMap,
        x: Tensor,
        y: Tensor,
        objective: TorchLoss,
        scores: Mapping[str, TorchLoss],
        settings: AdamSettings,
    ) -> None:
        # Both graphs must be captured on the stream where autograd saw the forward pass.
        self.stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream):
            super().__init__(module, x, y, objective, scores, settings)
            self._warm_up()
        torch.cuda.current_stream(x.device).wait_stream(self.stream)

        self.forward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward_graph, stream=self.stream):
            self.probs = module(x, self.order)
            self.epoch_scores = self._scores()

        # The graphs share memory: what the descent leaves in it is overwritten by the forward pass that follows, so
        # the loss has a place of its own.
        self.loss = torch.zeros(1, dtype=torch.float64, device=x.device)
        self.descent_graph = torch.cuda.CUDAGraph()
        pool = self.forward_graph.pool()
        with torch.cuda.graph(self.descent_graph, pool=pool, stream=self.stream):
            self.loss.copy_(self._descend(self.probs, y))
        self.forward_graph.replay()

    def step(self) -> dict[str, float]:
        """Train one epoch; return its loss, and the scores of the probabilities after it."""
        self.descent_graph.replay()
        self.forward_graph.replay()
        return self._named(torch.cat([self.loss, self.epoch_scores]))

    def _optimiser(self, learning_rate: float) -> torch.optim.Adam:
        # The schedule writes a new rate into the tensor that the graph reads.
        rate = torch.tensor(learning_rate, device=self.x.device)
        return torch.optim.Adam(self.module.parameters(), lr=rate, fused=True, capturable=True)

    def _warm_up(self) -> None:
        """Train a few epochs, and put parameters and optimiser back to the start."""
        start = [parameter.detach().clone() for parameter in self.module.parameters()]
        for _ in range(_WARM_UP):
            super().step()
        # The graphs are captured with fresh gradients, which live in their own memory.
        self.optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, value in zip(self.module.parameters(), start, strict=True):
                parameter.copy_(value)
            for state in self.optimiser.state.values():
                _set_to_zero(state)


def _set_to_zero(state: Mapping[str, Tensor]) -> None:
    """Forget the moments and the number of steps of one parameter, in the memory that the graph reads."""
    for moment in state.values():
        moment.zero_()
