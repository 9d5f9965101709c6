"""What an objective is: log-probabilities, labels and weights in, a value and its gradient out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hcal.runtime.gradients import Gradient
from hcal.numerics import Float64, IntArray


@dataclass(frozen=True)
class Objective:
    """What a fit minimises. It knows nothing of maps or solvers."""

    name: str
    #: (log-probabilities (N, K), labels (N,), weights (N,) that sum to 1 over all rows) ↦ (value, gradient
    #: (N, K) in the log-probabilities, or :class:`hcal.runtime.gradients.OneEntry`).
    value_and_grad: Callable[[Float64, IntArray, Float64], tuple[float, Gradient]]
    #: The value is a sum over rows, so it may be computed block by block.
    by_rows: bool = True
    #: Its second derivative is a map's ``curvature``: the NLL, and what is as convex.
    uses_curvature: bool = False
    #: () ↦ the same as a differentiable torch function (probabilities, labels) ↦ scalar, to train on a
    #: device. Without one, :func:`hcal.objective.torch_loss.as_loss` makes it of ``value_and_grad``.
    torch_loss: Callable[[], Any] | None = None
    #: For an objective that is no sum over rows, but a function of a table that is: (log-probabilities,
    #: labels, weights) ↦ a table that adds up (``+``) and whose ``result()`` is the value and a function
    #: (log-probabilities, labels, weights) ↦ gradient in the log-probabilities. Blocks then need two passes.
    table: Callable[[Float64, IntArray, Float64], Any] | None = None
