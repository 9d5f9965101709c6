"""The engines of the objective, and the one place where one is chosen.

An engine takes events and nothing else: (q (F, n), marks (F, n), settings, need_grad) ↦ (mean loss over the F
rows, its gradient (F, n) in q, or None). :mod:`hcal.objective.definition` is what all of them compute;
``tests/objective/test_engines.py`` holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hcal.objective.events import Family
from hcal.objective.settings import ObjectiveSettings
from hcal.runtime.fused import takes_fused
from hcal.runtime.jit import compiled

Engine = Callable[[Any, Any, ObjectiveSettings, bool], tuple[Any, Any]]


def evaluate_loss(
    probs: Any, y: Any, settings: ObjectiveSettings, family: Family, need_grad: bool
) -> tuple[Any, Any]:
    """Return the loss and its gradient (N, K), or None; of input that has been checked.

    ``probs`` (N, K), float32 or float64, and ``y`` (N,), int64, are arrays or tensors; so is the gradient.
    The loss is a float, or a scalar tensor in float64 where the engine is torch's.

    >>> from hcal.objective.events import PooledEvents
    >>> evaluate_loss(np.full((2, 2), 0.5), np.array([0, 1]), ObjectiveSettings(), PooledEvents(), False)
    (0.0, None)
    """
    if on_host(probs):
        import torch

        loss, grad = evaluate_loss(probs.numpy(), y.numpy(), settings, family, need_grad)
        # its memory is numpy's, which asks for huge pages: the gradient is written in random order, and with
        # small pages the address look-ups alone double the time at 25 million events
        return probs.new_tensor(loss), None if grad is None else torch.from_numpy(grad)
    if not isinstance(probs, np.ndarray) and family.capturable and takes_fused(probs):
        from hcal.objective.replayed import recordings

        if recordings.suits(probs):
            key = (settings, type(family), need_grad)
            return recordings.run(key, lambda p, t: _evaluate(p, t, settings, family, need_grad), probs, y)
    return _evaluate(probs, y, settings, family, need_grad)


def _evaluate(
    probs: Any, y: Any, settings: ObjectiveSettings, family: Family, need_grad: bool
) -> tuple[Any, Any]:
    events = family.gather(probs, y)
    loss, slope = engine_for(events.q)(events.q, events.marks, settings, need_grad)
    return loss, None if slope is None else family.scatter(slope, probs, events)


def on_host(probs: Any) -> bool:
    """Return whether a tensor is better handed to the compiled kernels.

    >>> on_host(np.zeros((1, 2)))
    False
    """
    return not isinstance(probs, np.ndarray) and probs.device.type == "cpu" and compiled()


def engine_for(q: Any) -> Engine:
    """Return the fastest engine that takes events q (F, n).

    Arrays: compiled by numba where it is installed, else torch. Tensors: Triton on CUDA for one row of
    float32, else plain torch operations.

    >>> import torch
    >>> engine_for(torch.zeros(2, 3)).__module__
    'hcal.objective._torch'
    """
    if isinstance(q, np.ndarray):
        if not compiled():
            return _torch_on_arrays
        from hcal.objective._compiled import families_loss as by_numba

        return by_numba
    if len(q) == 1 and takes_fused(q):
        from hcal.objective._triton import families_loss as by_triton

        return by_triton
    from hcal.objective._torch import families_loss as by_torch

    return by_torch


def _torch_on_arrays(q: Any, marks: Any, settings: ObjectiveSettings, need_grad: bool) -> tuple[Any, Any]:
    import torch

    from hcal.objective._torch import families_loss

    p, o = (torch.from_numpy(np.ascontiguousarray(v)) for v in (q, marks))
    loss, slope = families_loss(p, o, settings, need_grad)
    return float(loss), None if slope is None else slope.numpy()
