"""What an objective is: log-probabilities, labels and weights in, a value and its gradient out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hcal.runtime.gradients import Gradient
from hcal.runtime.numerics import Float64, IntArray

ValueAndGrad = Callable[[Float64, IntArray, Float64], tuple[float, Gradient]]


@dataclass(frozen=True)
class Objective:
    """What a fit minimises. It knows nothing of maps or solvers.

    Attributes
    ----------
    name : str
    value_and_grad : callable
        (log-probabilities (N, K), labels (N,), weights (N,) that sum to 1 over all rows) ↦ (value, gradient
        (N, K) in the log-probabilities, or :class:`hcal.runtime.gradients.OneEntry`).
    by_rows : bool
        The value is a sum over rows, so it may be computed block by block.
    uses_curvature : bool
        Its second derivative is a map's ``curvature``: the NLL, and what is as convex.
    torch_loss : callable, optional
        () ↦ the same as a differentiable torch function (probabilities, labels) ↦ scalar: an engine for
        training on a device. Without one, :func:`hcal.objective.torch_loss.as_loss` makes it of
        ``value_and_grad``.
    table : callable, optional
        For an objective that is no sum over rows, but a function of a table that is: (log-probabilities,
        labels, weights) ↦ a table that adds up (``+``) and whose ``result()`` is the value and a function
        (log-probabilities, labels, weights) ↦ gradient in the log-probabilities. Blocks then need two passes.
    """

    name: str
    value_and_grad: ValueAndGrad
    by_rows: bool = True
    uses_curvature: bool = False
    torch_loss: Callable[[], Any] | None = None
    table: Callable[[Float64, IntArray, Float64], Any] | None = None
