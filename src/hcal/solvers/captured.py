"""A training epoch as ONE launch on a GPU: a CUDA graph of step, forward pass and scores.

At 5000×10 an epoch is a hundred kernels of a few microseconds; launching them one by one takes ten times as
long as running them. Recorded once and replayed, they cost one launch, and one read of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hcal.maps.table import orders
from hcal.solvers.monitors import DENSE

#: Beyond this many events the kernels take longer than their launches, and scores ask back what they find.
MAX_EVENTS = DENSE
_WARM_UP = 3

Score = Callable[[Tensor, Tensor], Tensor]


def can_capture(x: Tensor, objective: object) -> bool:
    """Return whether an epoch on ``x`` may and should be recorded.

    The objective says so itself (``capturable``): one that reads values back to the host cannot be.

    >>> can_capture(torch.zeros(2, 2), object())
    False
    """
    return x.is_cuda and x.numel() <= MAX_EVENTS and bool(getattr(objective, "capturable", False))


class CapturedEpoch:
    """One epoch of full-batch Adam, recorded.

    ``module`` is trained in place, on the device of ``x`` (N, K); ``scores`` are measured after the step, in
    the same launch.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        x: Tensor,
        y: Tensor,
        objective: Score,
        learning_rate: float,
        scores: Sequence[Score],
    ) -> None:
        self._module, self._x, self._y, self._objective, self._scores = module, x, y, objective, scores
        self._rate = torch.tensor(learning_rate, device=x.device)
        self.optimiser = torch.optim.Adam(module.parameters(), lr=self._rate, fused=True, capturable=True)
        self._warm_up()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self._epoch()
        # the recording reads tensors that the map's backward pass keeps for this x: they must live as long
        self._kept = orders.of(x)

    def __call__(self) -> list[float]:
        """Run the epoch; return the loss before the step and the scores after it."""
        group = self.optimiser.param_groups[0]
        if group["lr"] is not self._rate:  # a schedule put a number in place of the tensor that is recorded
            self._rate.fill_(float(group["lr"]))
            group["lr"] = self._rate
        self._graph.replay()
        return [float(v) for v in self._out.tolist()]

    def _epoch(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._objective(self._module(self._x), self._y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        with torch.no_grad():
            probs = self._module(self._x)
            scores = [score(probs, self._y) for score in self._scores]
        return torch.stack([v.detach().double() for v in (loss, *scores)])

    def _warm_up(self) -> None:
        """Let kernels compile and caches fill outside the recording, then undo the steps."""
        before = {name: value.detach().clone() for name, value in self._module.state_dict().items()}
        side = torch.cuda.Stream(self._x.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._epoch()
        torch.cuda.current_stream().wait_stream(side)
        self._module.load_state_dict(before)
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()
