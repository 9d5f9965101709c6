"""A strictly increasing function of one logit as the integral of a positive network, in numpy.

The network is evaluated at the midpoints of equal cells, never at the events: its values are the slopes of a
piecewise linear function, which a look-up then applies to every logit. Same protocol as
:mod:`hcal.maps.protocol`, so any objective can be fitted with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hcal.maps.lookup import Cells
from hcal.maps.protocol import Map, Pullback, log_softmax_vjp
from hcal.runtime.gradients import Gradient
from hcal.numerics import Float64, prefix_sums

_LEAST_SLOPE = 1e-8


def tabulate(theta: Float64, hidden: int, cells: Cells) -> Float64:
    """Return the values (count + 1,) at the edges of the cells, increasing from 0."""
    slopes, _ = _slopes(theta, hidden, cells.middles)
    return prefix_sums(slopes * cells.width)


def monotone_net(hidden: int, cells: Cells, random_state: int = 0) -> Map:
    """Return softmax of m(x), m(x) = ∫ (ELU(g(t)) + 1 + 1e-8) dt, g an MLP 1 → hidden → hidden → 1 with ReLU.

    ``cells``, in which g is evaluated, cover the logits. The start is uniform ±1/√fan-in, the first layer
    counting an unused second input.

    >>> monotone_net(2, Cells(0.0, 1.0, 4)).start.size
    13
    """
    width = cells.width

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        slopes, back = _slopes(theta, hidden, cells.middles)
        values = prefix_sums(slopes * width)
        at = cells.index(x)
        beyond = x - (cells.low + width * at)
        log_probs, pull = log_softmax_vjp(values[at] + slopes[at] * beyond)

        def pullback(g: Gradient) -> Float64:
            d = pull(g)
            mass = np.bincount(at.ravel(), weights=d.ravel(), minlength=cells.count)
            own = np.bincount(at.ravel(), weights=(d * beyond).ravel(), minlength=cells.count)
            above = np.cumsum(mass[::-1])[::-1] - mass
            return back(own + width * above)

        return log_probs, pullback

    rng, h = np.random.RandomState(random_state), hidden
    sizes = [(h, 2), (h, 2), (h * h, h), (h, h), (h, h), (1, h)]
    start = np.concatenate([rng.uniform(-1, 1, n) / np.sqrt(fan_in) for n, fan_in in sizes])
    return Map("monotone_net", start, vjp)


def _slopes(theta: Float64, hidden: int, t: Float64) -> tuple[Float64, Callable[[Float64], Float64]]:
    """Return ELU(g(t)) + 1 + 1e-8 and its pullback to θ = (w₁, b₁, W₂, b₂, w₃, b₃)."""
    h = hidden
    w1, b1, w2, b2, w3, b3 = np.split(theta, np.cumsum([h, h, h * h, h, h]))
    a1 = np.maximum(np.outer(t, w1) + b1, 0)
    a2 = np.maximum(a1 @ w2.reshape(h, h).T + b2, 0)
    g = a2 @ w3 + b3
    below = np.exp(np.minimum(g, 0))
    slopes: Float64 = np.where(g > 0, g + 1, below) + _LEAST_SLOPE

    def back(d: Float64) -> Float64:
        dg = d * np.where(g > 0, 1.0, below)
        d2 = np.outer(dg, w3) * (a2 > 0)
        d1 = (d2 @ w2.reshape(h, h)) * (a1 > 0)
        parts = [d1.T @ t, d1.sum(axis=0), (d2.T @ a1).ravel(), d2.sum(axis=0), a2.T @ dg, [dg.sum()]]
        return np.concatenate(parts)

    return slopes, back
