"""The critics of decision calibration: training one, and applying a sequence of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hcal.numerics import Float64
from hcal.solvers.optimise import lbfgs

# The published Adam schedule can move a weight by at most Σ lr = 25, and v is a difference of two; unbounded,
# a critic becomes a hard cut.
_REACH = 50.0


def action_weight(x: Float64, critic: Float64) -> Float64:
    """Return w₁ of the two action weights softmax(V x): only the difference v of V's rows matters.

    >>> action_weight(np.array([[0.5, 0.5]]), np.zeros(2))
    array([0.5])
    """
    return 0.5 * (1 + np.tanh(0.5 * (x @ critic)))


def critic_gain(x: Float64, residual: Float64, weight: Float64) -> Callable[[Float64], tuple[float, Float64]]:
    """Return v ↦ −Σ_a ‖Σ_i ω_i w_a(x_i)(Y_i − x_i)‖₂ and its gradient.

    ``x`` are the current predictions (N, K), ``residual`` is Y − x, ``weight`` (N,) sums to 1.

    >>> gain = critic_gain(np.array([[0.5, 0.5]]), np.array([[0.5, -0.5]]), np.ones(1))
    >>> round(-gain(np.zeros(2))[0], 4)
    0.7071
    """
    total = weight @ residual

    def loss(v: Float64) -> tuple[float, Float64]:
        w = action_weight(x, v)
        first = (weight * w) @ residual
        second = total - first
        norms = float(np.linalg.norm(first)), float(np.linalg.norm(second))
        direction = first / max(norms[0], 1e-12) - second / max(norms[1], 1e-12)
        slope = (residual @ direction) * weight * w * (1 - w)
        return -float(norms[0] + norms[1]), -(slope @ x)

    return loss


def train_critic(
    x: Float64, residual: Float64, weight: Float64, start: Float64, max_iterations: int = 200
) -> Float64:
    """Return the v that finds the largest violation, searched from ``start`` (K,)."""
    loss = critic_gain(x, residual, weight)
    box: list[tuple[float | None, float | None]] = [(-_REACH, _REACH)] * x.shape[1]
    return lbfgs(loss, start, bounds=box, max_iterations=max_iterations, tolerance=1e-9, gain=1e-12).theta


def adjustment(x: Float64, residual: Float64, weight: Float64, critic: Float64) -> Float64:
    """Return B (2, K), the weighted least-squares fit of Y − x by the action weights."""
    w = action_weight(x, critic)
    omega = np.stack([w, 1 - w], axis=1)
    gram = (omega.T * weight) @ omega
    target = (omega.T * weight) @ residual
    return np.asarray(np.linalg.lstsq(gram, target, rcond=1e-12)[0], dtype=np.float64)


def adjust(x: Float64, critic: Float64, shift: Float64) -> None:
    """Move the predictions x in place by one critic: x += w(x) B."""
    w = action_weight(x, critic)
    x += w[:, None] * shift[0]
    x += (1 - w)[:, None] * shift[1]
