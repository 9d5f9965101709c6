"""What a map is: parameters θ and scores x in, log-probabilities and a pullback out.

A *map* gives, for θ and x, the log-probabilities (N, K) and a function that pulls a gradient in them back to
one in θ (the vector-Jacobian product). Every objective and every solver asks for no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.runtime.gradients import Gradient, OneEntry
from hcal.numerics import Float64

#: Gradient in the log-probabilities ↦ gradient in θ. To be called once: it works in place.
Pullback = Callable[[Gradient], Float64]
#: (θ (P,), scores (N, ·)) ↦ (log-probabilities (N, K), pullback).
Vjp = Callable[[Float64, Float64], tuple[Float64, Pullback]]


@dataclass(frozen=True)
class Map:
    """A family of maps; it knows nothing of objectives or solvers."""

    name: str
    start: Float64  # (P,): where a fit begins: the identity, where the family holds it
    vjp: Vjp
    #: For a softmax of scores that are linear in θ: (θ, x, weights (N,)) ↦ the (P, P) second derivative of
    #: the weighted sum of NLLs, which does not depend on the labels.
    curvature: Callable[[Float64, Float64, Float64], Float64] | None = None
    #: The same, its diagonal only (P,): the units of the parameters for a first-order solver.
    diagonal: Callable[[Float64, Float64, Float64], Float64] | None = None
    #: The torch module that ``vjp`` goes through, where there is one: the engine of a solver that trains on a
    #: device. See :func:`hcal.maps.torch_engine.as_map`.
    module: Any = None

    def log_probs(self, theta: Float64, x: Float64) -> Float64:
        """Return the log-probabilities (N, K) alone."""
        return self.vjp(theta, x)[0]


def log_softmax_vjp(scores: Float64) -> tuple[Float64, Pullback]:
    """Return log-softmax of scores (N, K), and its pullback; ``scores`` is overwritten.

    >>> log_probs, pull = log_softmax_vjp(np.zeros((1, 2)))
    >>> pull(np.array([[-1.0, 0.0]]))
    array([[-0.5,  0.5]])
    """
    scores -= scores.max(axis=1, keepdims=True)
    probs = np.exp(scores)
    mass = probs.sum(axis=1, keepdims=True)
    probs /= mass
    scores -= np.log(mass)

    def pull(gradient: Gradient) -> Float64:
        if not isinstance(gradient, OneEntry):
            through: Float64 = gradient - probs * gradient.sum(axis=1, keepdims=True)
            return through
        np.multiply(probs, -gradient.value[:, None], out=probs)
        probs[np.arange(len(probs)), gradient.column] += gradient.value
        return probs

    return scores, pull
