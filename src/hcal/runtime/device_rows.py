"""Scores that lie on an accelerator: what a fit needs of them without bringing them all to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor


class DeviceRows:
    """Checked logits (N, K) in float32 or float64, wherever the tensor lies.

    Indexing brings rows to the host, :meth:`take` leaves them there.

    >>> import torch
    >>> rows = DeviceRows(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> rows[np.array([1])], rows.take(np.array([1])).shape
    (array([[1., 0.]], dtype=float32), (1, 2))
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        n, k = self.tensor.shape
        return n, k

    @property
    def size(self) -> int:
        """How many scores there are."""
        return self.tensor.numel()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The float width, as numpy names it."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> FloatArray:
        found: FloatArray = self.tensor[self._index(rows)].cpu().numpy()
        return found

    def take(self, rows: Any) -> DeviceRows:
        """Return some rows, in the order asked for, on their device."""
        return DeviceRows(self.tensor[self._index(rows)])

    def _index(self, rows: Any) -> Any:
        return rows if isinstance(rows, slice) else self.put(np.asarray(rows))

    def put(self, array: NDArray[Any]) -> Tensor:
        """Return an array of the host as a tensor beside the rows."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to(self.tensor.device)

    def below_top(self) -> DeviceRows:
        """Return the rows without their constant: each has its highest score at 0."""
        return DeviceRows(self.tensor - self.tensor.amax(dim=1, keepdim=True))

    def cell_sums(self, factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return Σ_k factor_k·bits_k of every row modulo 2⁶⁴ (N,): what a row's hash is made of."""
        import torch

        bits = (self.tensor.double() + 0.0).view(torch.int64)
        bits = bits ^ ((bits >> 32) & 0xFFFFFFFF)  # int64 shifts its sign in, uint64 does not
        bits *= self.put(factors.view(np.int64))
        sums: NDArray[np.uint64] = bits.sum(dim=1).cpu().numpy().view(np.uint64)
        return sums

    def log_probability_facts(self, y: IntArray) -> tuple[Float64, Float64, Float64]:
        """Return ln p of the label, ln p of the top class, and Σ p² of every row (N,)."""
        import torch

        log_p = torch.log_softmax(self.tensor.double(), dim=1)
        own = log_p.gather(1, self.put(y)[:, None])[:, 0]
        found = torch.stack([own, log_p.amax(dim=1), log_p.exp_().square_().sum(dim=1)]).cpu().numpy()
        return found[0], found[1], found[2]


#: Scores of a fit: in memory, or where they lie.
Logits = FloatArray | DeviceRows


def taken(logits: Any, rows: Any) -> Any:
    """Return some rows of scores where they lie: of an array an array, of device rows device rows.

    >>> taken(np.eye(2), slice(1))
    array([[1., 0.]])
    """
    return logits.take(rows) if isinstance(logits, DeviceRows) else logits[rows]
