"""The operations of :mod:`hcal.runtime.ops` in PyTorch, on the device of the scores."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcal.runtime.ops import Ops

#: Spacing at 1, and what a probability of 0 becomes.
WIDTHS = {
    dtype: (torch.finfo(dtype).eps, float(np.finfo(base).smallest_subnormal))
    for dtype, base in ((torch.float64, np.float64), (torch.float32, np.float32))
}


class TorchOps(Ops):
    """The operations of :mod:`hcal.runtime.ops` on tensors. Constants come from a list, in order of use.

    Parameters
    ----------
    constants : list of Tensor
        Filled while ``recording``, read otherwise: a module keeps them as buffers, so that they move with it.
    dtype : torch.dtype
        The float width of the output.

    >>> TorchOps([], torch.float32, recording=True).softmax(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, constants: list[Tensor], dtype: torch.dtype, *, recording: bool = False) -> None:
        self.constants, self.dtype, self.recording = constants, dtype, recording
        self._next = 0

    def const(self, value: ArrayLike) -> Tensor:
        if self.recording:
            self.constants.append(torch.from_numpy(np.array(value, dtype=np.float64)))
            return self.constants[-1]
        self._next += 1
        return self.constants[self._next - 1]

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        return torch.log(x)

    def max(self, x: Tensor) -> Tensor:
        return x.amax(dim=-1, keepdim=True)

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(dim=-1, keepdim=True)

    def maximum(self, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.maximum(x, y) if isinstance(y, Tensor) else x.clamp_min(y)

    def where(self, condition: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.where(condition, x, y)

    def matmul(self, x: Tensor, matrix: Tensor) -> Tensor:
        return x @ matrix

    def top(self, x: Tensor) -> Tensor:
        # torch.argmax may return any of several equal maxima; numpy and ONNX return the first.
        is_max = x == x.amax(dim=-1, keepdim=True)
        return is_max & (is_max.cumsum(dim=-1) == 1)

    def rounded(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).to(x.dtype)  # the gradient passes through

    def bucket(self, x: Tensor, edges: NDArray[np.float64]) -> Tensor:
        return torch.bucketize(x.detach().contiguous(), self.const(edges), right=True)

    def take(self, table: NDArray[np.float64], index: Tensor) -> Tensor:
        return self.const(table)[index]


class DeviceOps(TorchOps):
    """The same for a single call: constants go to the device as they are met.

    >>> DeviceOps(torch.device("cpu"), torch.float32).softmax(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__([], dtype)
        self.device = device

    def const(self, value: ArrayLike) -> Tensor:
        return torch.from_numpy(np.array(value, dtype=np.float64)).to(self.device)
