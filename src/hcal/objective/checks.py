"""What the objective asks of its input: probabilities in [0, 1], labels in 0..K−1."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.numerics import Float64, FloatArray, IntArray

#: A probability may exceed 1 by this much, as a sum of classes in float32 does.
_OVER = 1e-3


def check_arrays(probs: FloatArray, y: IntArray) -> None:
    """Raise ValueError unless probs is (N, K) in [0, 1] and y (N,) in 0..K−1.

    Unchecked input is not only wrong: compiled kernels index tables by the bits of a probability.

    >>> check_arrays(np.ones((1, 2)), np.array([2]))
    Traceback (most recent call last):
    ...
    ValueError: y must lie in 0..1; its labels range from 2 to 2
    """
    if probs.ndim != 2 or 0 in probs.shape or y.shape != probs.shape[:1]:
        raise ValueError(f"probs must be (N, K) and y (N,), not empty; got {probs.shape} and {y.shape}")
    if probs.dtype not in (np.float32, np.float64):
        raise ValueError(f"probs must be float32 or float64, got {probs.dtype}")
    least, most = (0.0, 1.0) if _inside(probs) else (float(probs.min()), float(probs.max()))
    check_ranges(least, most, int(y.min()), int(y.max()), probs.shape[1])


def check_ranges(least: float, most: float, first: int, last: int, n_classes: int) -> None:
    """Raise ValueError unless probabilities lie in [0, 1] and labels in 0..K−1, given their extremes.

    Where a probability is NaN, so are ``least`` and ``most``.

    >>> check_ranges(0.0, float("nan"), 0, 1, 2)
    Traceback (most recent call last):
    ...
    ValueError: probs must lie in [0, 1]; they range from 0 to nan
    """
    if first < 0 or last >= n_classes:
        raise ValueError(f"y must lie in 0..{n_classes - 1}; its labels range from {first} to {last}")
    if not (least >= 0 and most <= 1 + _OVER):
        raise ValueError(f"probs must lie in [0, 1]; they range from {least:.6g} to {most:.6g}")


def check_equal_weights(weight: Float64) -> None:
    """Raise ValueError unless all rows weigh the same: windows of sorted events know no other.

    >>> check_equal_weights(np.array([1.0, 2.0]))
    Traceback (most recent call last):
    ...
    ValueError: the objective 'h' takes equal weights only: repeat rows instead
    """
    if np.ptp(weight) > 1e-9 * weight.max():
        raise ValueError("the objective 'h' takes equal weights only: repeat rows instead")


def _inside(probs: FloatArray) -> bool:
    """Whether all lie in [0, 1 + 1e-3], by one pass: as integers, negative ones and NaN are the largest."""
    kind = np.uint32 if probs.dtype == np.float32 else np.uint64
    return bool(probs.view(kind).max() <= np.array(1 + _OVER, dtype=probs.dtype).view(kind))


def check_tensors(probs: Any, y: Any, *, values: bool = True) -> Any:
    """Return probs (N, K) as floats of 32 or 64 bits, once they lie in [0, 1] and y (N,) in 0..K−1.

    The ``values`` of what lies on a device are read back: one wait for it. On the CPU all are checked.

    >>> import torch
    >>> check_tensors(torch.tensor([[0.5, float("nan")]]), torch.tensor([0]))
    Traceback (most recent call last):
    ...
    ValueError: probs must lie in [0, 1]; they range from nan to nan
    """
    import torch

    if probs.ndim != 2 or y.shape != probs.shape[:1]:
        raise ValueError(f"probs must be (N, K) and y (N,), got {tuple(probs.shape)} and {tuple(y.shape)}")
    wide = probs if probs.dtype in (torch.float32, torch.float64) else probs.float()
    if values or probs.device.type == "cpu":
        _check_values(wide, y)
    return wide


def _check_values(probs: Any, y: Any) -> None:
    import torch

    if 0 in probs.shape:
        raise ValueError(f"probs must be (N, K) and not empty, got {tuple(probs.shape)}")
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"y must hold integers 0..K-1, got dtype {y.dtype}")
    if probs.device.type == "cpu":
        check_arrays(probs.detach().numpy(), y.numpy())
    elif not (probs.is_cuda and torch.cuda.is_current_stream_capturing()):
        # NaN passes through a minimum; float64 holds every label that can be right
        ends = [v for part in (probs.detach(), y) for v in torch.aminmax(part)]
        least, most, first, last = torch.stack([v.to(torch.float64) for v in ends]).tolist()
        check_ranges(least, most, int(first), int(last), probs.shape[1])
