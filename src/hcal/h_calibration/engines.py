"""Value and gradient of the objective, and the one place where an engine is chosen.

An engine takes events and nothing else: (q (F, n), marks (F, n), settings, need_grad) ↦ (mean loss over the F
rows, its gradient (F, n) in q, or None). :mod:`hcal.h_calibration.definition` is what all of them compute. ``_numba``
and ``_triton`` are compiled twins, used where they are there: without them everything works, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from hcal.h_calibration import definition
from hcal.h_calibration.definition import ObjectiveSettings
from hcal.h_calibration.events import EventsArgument, Family, family_of
from hcal.numerics import FloatArray, IntArray
from hcal.xp import Array

#: (q (F, n), marks (F, n), settings, need_grad) ↦ (the mean loss, its gradient (F, n) or None).
Engine = Callable[[Array, Array, ObjectiveSettings, bool], tuple[Array, Array]]

#: Triton's kernels count events in 32 bits.
TRITON_EVENTS = 2**31 - 2**16
#: A probability may exceed 1 by this much, as a sum of classes in float32 does.
_OVER = 1e-3


def loss_and_grad(
    probs: FloatArray, y: IntArray, *, events: EventsArgument = "pooled", **constants: Any
) -> tuple[float, FloatArray]:
    """Return the h-calibration loss (eq:finalloss) and its gradient in the probabilities.

    Parameters
    ----------
    probs : array of shape (N, K), float32 or float64
    y : array of shape (N,)
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family
    **constants
        Of :class:`hcal.h_calibration.definition.ObjectiveSettings`.

    Returns
    -------
    float, array of shape (N, K) in the dtype of ``probs``

    Examples
    --------
    >>> p = np.array([[0.25, 0.75], [0.5, 0.5]])
    >>> brier = dict(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> loss, grad = loss_and_grad(p, np.array([1, 0]), **brier)
    >>> bool(np.isclose(loss, np.mean((p - [[0, 1], [1, 0]]) ** 2)))
    True
    >>> grad
    array([[ 0.125, -0.125],
           [-0.25 ,  0.25 ]])
    """
    settings = ObjectiveSettings(**constants)
    check_arrays(probs, y)
    loss, grad = evaluate_loss(probs, y, settings, family_of(events), need_grad=True)
    return float(loss), np.ascontiguousarray(grad)


def evaluate_loss(
    probs: Array, y: Array, settings: ObjectiveSettings, family: Family, need_grad: bool
) -> tuple[Array, Array]:
    """Return the loss and its gradient (N, K), or None; of input that has been checked.

    ``probs`` (N, K), float32 or float64, and ``y`` (N,), int64, are arrays or tensors; so is the gradient.
    The loss is a float, or a scalar tensor in float64 where the engine is torch's.
    """
    is_cpu_tensor = not isinstance(probs, np.ndarray) and probs.device.type == "cpu"
    if is_cpu_tensor and has_kernel("hcal.h_calibration._numba"):
        import torch

        loss, grad = evaluate_loss(probs.numpy(), y.numpy(), settings, family, need_grad)
        # its memory is numpy's, which asks for huge pages: the gradient is written in random order, and with
        # small pages the address look-ups alone double the time at 25 million events
        return probs.new_tensor(loss), None if grad is None else torch.from_numpy(grad)

    events = family.gather(probs, y)
    engine = engine_for(events.q)
    loss, slope = engine(events.q, events.marks, settings, need_grad)
    return loss, None if slope is None else family.scatter(slope, probs, events)


def engine_for(q: Array) -> Engine:
    """Return the fastest engine that takes events q (F, n).

    >>> import torch
    >>> engine_for(torch.zeros(2, 3)).__module__
    'hcal.h_calibration.loss'
    """
    if isinstance(q, np.ndarray):
        if not has_kernel("hcal.h_calibration._numba"):
            return definition.families_loss
        from hcal.h_calibration._numba import families_loss as by_numba

        return by_numba
    if len(q) == 1 and takes_triton(q):
        from hcal.h_calibration._triton import families_loss as by_triton

        return by_triton
    from hcal.h_calibration.loss import families_loss as by_torch

    return by_torch


def has_kernel(module: str) -> bool:
    """Return whether a module of kernels and the package that compiles it are there."""
    package = module.rpartition("_")[2]  # "numba" of "hcal.h_calibration._mixture_numba"
    return all(find_spec(name) for name in (package, module))


def takes_triton(q: Array) -> bool:
    """Return whether the Triton kernels take this tensor: float32 on CUDA, fewer than 2**31 events."""
    is_cuda_float32 = bool(q.is_cuda) and str(q.dtype) == "torch.float32"
    fits = is_cuda_float32 and q.numel() < TRITON_EVENTS
    return fits and has_kernel("hcal.h_calibration._triton")


def check_shapes(probs: Array, y: Array) -> None:
    """Raise ValueError unless probs is (N, K), y (N,), and neither is empty."""
    if probs.ndim != 2 or 0 in probs.shape or y.shape != probs.shape[:1]:
        shapes = f"{tuple(probs.shape)} and {tuple(y.shape)}"
        raise ValueError(f"probs must be (N, K) and y (N,), not empty; got {shapes}")


def check_arrays(probs: FloatArray, y: IntArray) -> None:
    """Raise ValueError unless probs is (N, K) in [0, 1] and y (N,) in 0..K−1.

    Unchecked input is not only wrong: compiled kernels index tables by the bits of a probability.

    >>> check_arrays(np.ones((1, 2)), np.array([2]))
    Traceback (most recent call last):
    ...
    ValueError: y must lie in 0..1; its labels range from 2 to 2
    """
    check_shapes(probs, y)
    if probs.dtype not in (np.float32, np.float64):
        raise ValueError(f"probs must be float32 or float64, got {probs.dtype}")
    least = float(probs.min())
    most = float(probs.max())
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
        raise ValueError(
            f"y must lie in 0..{n_classes - 1}; its labels range from {first} to {last}"
        )
    if not (least >= 0 and most <= 1 + _OVER):
        raise ValueError(f"probs must lie in [0, 1]; they range from {least:.6g} to {most:.6g}")
