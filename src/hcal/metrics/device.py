"""What metrics of CUDA tensors share: checks, sorted columns, sums of runs. N x K work stays on the device.

Tensors in host memory are viewed as numpy arrays and never come here; the functions run on any torch device,
which is how they are tested without a GPU. Sums are in float64, and none is left to the order in which
threads arrive (no atomic additions of fractions): a second run gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from hcal.metrics.sample import Data

#: Numbers of a temporary array: 0.5 GB of float64.
DEVICE_BLOCK = 1 << 26


def check_tensor(probs: Any) -> Tensor:
    """Check probabilities on their device and renormalise the rows; errors as in ``hcal.inputs``."""
    from hcal import inputs

    x: Tensor = probs.detach()
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if x.dtype not in (torch.float32, torch.float64):
        x = x.double()
    legal = x.ndim == 2 and x.shape[0] > 0 and x.shape[1] > 1
    if legal:
        sums = x.sum(dim=1, dtype=torch.float64)
        tolerance = 1e-3 if x.dtype == torch.float32 else 1e-4
        legal = bool(((sums - 1).abs() <= tolerance).all()) and bool((x >= 0).all())
    if not legal:  # the host's check finds the place and words the error (or spreads a binary score)
        return torch.from_numpy(inputs.check_probs(x.cpu())[0]).to(x.device)
    is_off = (sums - 1).abs() > torch.finfo(x.dtype).eps  # each row by itself, as in ``hcal.inputs``
    return x / torch.where(is_off, sums, 1.0).to(x.dtype)[:, None] if bool(is_off.any()) else x


def softmax_on_device(logits: Tensor) -> Tensor | None:
    """Return the probabilities of plain logits; None where the host's check has something to say about them.

    >>> softmax_on_device(torch.tensor([[2.0, 2.0]]))
    tensor([[0.5000, 0.5000]])
    >>> softmax_on_device(torch.tensor([[0.5, 0.5]]))
    """
    x = logits.detach()
    if x.ndim != 2 or x.shape[1] < 2 or not len(x) or not x.is_floating_point():
        return None
    low, high = torch.stack(torch.aminmax(x)).tolist()  # of a NaN both are NaN
    if not (-math.inf < low and high < math.inf) or (low >= 0 and high <= 1):
        return None
    return torch.softmax(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, dim=1)


def on(data: Data, array: Any) -> Tensor:
    """Return an array as a tensor on the device of the data."""
    array = np.ascontiguousarray(array)
    # torch warns of memory that may not be written to, which nobody does.
    return torch.as_tensor(array if array.flags.writeable else array.copy(), device=data.tensor.device)


def run_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the sums of consecutive runs of rows; values (E,) or (E, B), lengths (runs,) → (runs, ...).

    >>> run_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 1]))
    tensor([3., 0., 4.])
    """
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def prefixes(x: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, … n values; x (..., n) → (..., n + 1)."""
    return pad(scan(x), (1, 0))


def scan(x: Tensor) -> Tensor:
    """Return the cumulated sums along the last axis, the same bits at every run."""
    return scan_in_blocks(x) if x.is_cuda and x.numel() == x.shape[-1] else x.cumsum(dim=-1)


def scan_in_blocks(x: Tensor, size: int = 4096) -> Tensor:
    """Return the same of one row, block by block.

    CUDA scans a single row in parts that are put together as they arrive; several rows each on its own.

    >>> scan_in_blocks(torch.ones(1, 5), size=2)
    tensor([[1., 2., 3., 4., 5.]])
    """
    n = x.shape[-1]
    blocks = pad(x.reshape(-1), (0, -n % size)).reshape(-1, size)
    inner = torch.cat([blocks, blocks[:1]]).cumsum(dim=1)[:-1]
    ends = inner[:, -1].expand(2, -1).cumsum(dim=1)[0]
    return (inner + pad(ends[:-1], (1, 0))[:, None]).reshape(-1)[:n].reshape(x.shape)


def sorted_columns(data: Data) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first class, ascending probabilities (C, N), their rows (C, N)) of blocks of classes.

    The sort is stable. That of one block is remembered: the windows, the clusters and the certificates of
    classes share it.
    """
    step = max(1, 2 * DEVICE_BLOCK // data.n)
    for first in range(0, data.k, step):
        found = data.on_device.get("columns")
        if found is None:
            found = data.tensor[:, first : first + step].T.contiguous().sort(dim=1, stable=True)
            if step >= data.k:
                data.on_device["columns"] = found
        yield first, *found
