"""The bounded, safeguarded one-dimensional temperature solver.

The temperature is found as β = 1/T. The mean NLL of softmax(β z) is convex in β, so its slope increases with β; so does
the mean confidence. Each solver here finds the root of such an increasing function and never fails silently: the two
cases without a finite optimum are recognised from the data beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hcal.compiled import in_threads
from hcal.numerics import NOTHING, Float64, FloatArray, IntArray, row_blocks

# The range of log(β · scale of the logits). Beyond e^±16 a softmax is uniform or saturated in float64.
LOG_BETA_BOUNDS = (-16.0, 16.0)

# The accuracy of log β.
_TOLERANCE = 1e-11
# Rows are processed in blocks of about this many events, so that temporary arrays stay in the cache.
_BLOCK_EVENTS = 262_144


@dataclass(frozen=True)
class Temperature:
    """A solved temperature: β = 1/T, and whether the optimum lies inside the bracket."""

    beta: float
    converged: bool
    message: str = ""
    evaluations: int = 0


def _below_top(logits: FloatArray, rows: slice) -> Float64:
    """Return z − max z of a block of rows, in float64."""
    block = logits[rows].astype(np.float64, copy=False)
    return np.asarray(block - block.max(axis=1, keepdims=True))


def logit_scale(logits: FloatArray) -> float:
    """Return the mean distance of logits (N, K) to the top one of their row; 0 when all rows are constant.

    A mean below 1e-190 counts as 0, because the inverse temperature for it would be too large for a file.

    >>> logit_scale(np.array([[0.0, 4.0]]))
    2.0
    """
    blocks = row_blocks(logits.shape, _BLOCK_EVENTS)
    parts = in_threads(
        lambda rows: -_below_top(logits, rows).mean(axis=1).sum(), blocks, events=logits.size
    )
    scale = float(sum(parts)) / len(logits)
    return scale if scale > NOTHING else 0.0


def label_derivatives(logits: FloatArray, y: IntArray, beta: float, unit: float = 1.0) -> Float64:
    """Return the NLL of every row under softmax(β z), and its first and second derivative in β: (3, N).

    z are the logits divided by ``unit``; with their own scale as the unit, squares cannot overflow.

    >>> label_derivatives(np.array([[0.0, 1.0]]), np.array([1]), 0.0).round(4).tolist()
    [[0.6931], [-0.5], [0.25]]
    """
    out = np.empty((3, len(y)))

    def of_block(rows: slice) -> None:
        d = _below_top(logits, rows)
        d /= unit
        e = np.exp(beta * d)
        mass, own = e.sum(axis=1), d[np.arange(len(d)), y[rows]]
        e *= d
        mean = e.sum(axis=1) / mass
        variance = np.einsum("nk,nk->n", e, d) / mass - mean**2
        out[:, rows] = np.log(mass) - beta * own, mean - own, np.maximum(variance, 0)

    in_threads(of_block, row_blocks(logits.shape, _BLOCK_EVENTS), events=logits.size)
    return out


def top_probability(logits: FloatArray, beta: float) -> Float64:
    """Return the largest softmax(β z) of every row (N,); its mean increases with β, from 1/K at β = 0.

    >>> top_probability(np.array([[0.0, 4.0]]), 0.0)
    array([0.5])
    """
    blocks = row_blocks(logits.shape, _BLOCK_EVENTS)
    return np.concatenate(
        [1 / np.exp(beta * _below_top(logits, rows)).sum(axis=1) for rows in blocks]
    )


def solve_increasing(
    slope: Callable[[float], float], bounds: tuple[float, float] = LOG_BETA_BOUNDS
) -> Temperature:
    """Find the root of an increasing function of β by bracketed search in log β (``bounds``).

    If the function has the same sign in the whole bracket, the better end is returned with ``converged=False`` and a
    message.

    >>> round(solve_increasing(lambda beta: beta - 2.0).beta, 6)
    2.0
    """
    from scipy.optimize import brentq

    low, high = bounds
    if slope(float(np.exp(low))) >= 0:
        return Temperature(
            float(np.exp(low)), False, "no root in the bracket: T is at its upper bound"
        )
    if slope(float(np.exp(high))) <= 0:
        return Temperature(
            float(np.exp(high)), False, "no root in the bracket: T is at its lower bound"
        )
    root, report = brentq(
        lambda t: slope(float(np.exp(t))), low, high, xtol=1e-10, rtol=1e-12, full_output=True
    )
    return Temperature(float(np.exp(root)), True, "", report.function_calls + 2)


def solve_temperature(
    logits: FloatArray, y: IntArray, weight: Float64 | None = None
) -> Temperature:
    """Find the temperature of least mean NLL: Newton in log β, kept inside a shrinking bracket.

    It works at any scale of the logits, in float32 and float64. If there is no finite optimum, the result has
    ``converged=False`` and a message, and

    - T is at its upper bound (uniform probabilities) if the scores carry no information about the labels or are
      reversed;
    - if every label has the top score, T gives a mean confidence of (N+1)/(N+2) (the rule of succession), or is 1 if
      the scores are already more confident than that.

    >>> solved = solve_temperature(np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0]))
    >>> round(2 * solved.beta, 6)  # log 3
    1.098612
    """
    scale, total = logit_scale(logits), float(len(y) if weight is None else weight.sum())
    share = np.full(len(y), 1 / total) if weight is None else weight / total
    if scale == 0:
        return Temperature(1.0, True, "all rows are constant: every T gives the same probabilities")

    def derivatives(beta: float) -> tuple[float, float]:
        _, slope, curvature = label_derivatives(logits, y, beta, scale) @ share
        return float(slope), float(curvature)

    if derivatives(0.0)[0] >= 0:
        message = "the scores carry no information about the labels (or are reversed); T is at its upper bound"
        return Temperature(float(np.exp(LOG_BETA_BOUNDS[0])) / scale, False, message, 1)
    top = logits[np.arange(len(y)), y] == logits.max(axis=1)
    if not np.any(~top & (share > 0)):
        target = (total + 1) / (total + 2)
        sure = solve_increasing(
            lambda b: float(share @ top_probability(logits, b / scale)) - target
        )
        message = "every label has the top score, so no T is best; T gives a mean confidence of (N+1)/(N+2), or is 1"
        return Temperature(max(sure.beta / scale, 1.0), False, message)
    solved = solve_newton(derivatives)
    return replace(solved, beta=solved.beta / scale)


def solve_newton(
    derivatives: Callable[[float], tuple[float, float]], start: float = 1.0
) -> Temperature:
    """Find the root of a slope by Newton steps in log β from ``start``, kept inside a shrinking bracket.

    ``derivatives`` returns slope and curvature at β.

    >>> round(solve_newton(lambda beta: (beta - 2.0, 1.0)).beta, 6)
    2.0
    """
    low, high = bounds = LOG_BETA_BOUNDS
    t = float(np.log(start))
    for evaluation in range(1, 101):  # noqa: B007 - the last number is returned
        beta = float(np.exp(t))
        slope, curvature = derivatives(beta)
        if slope < 0:
            low = t
        else:
            high = t
        # Far from the root the curvature may vanish (saturation), so the step is limited.
        step = float(np.clip(-slope / max(beta * curvature, 1e-300), -3, 3)) if slope else 0.0
        if abs(step) > _TOLERANCE and not low < t + step < high:
            step = (low + high) / 2 - t
        t += step
        if abs(step) <= _TOLERANCE:
            break
    for end, name in ((bounds[0], "upper"), (bounds[1], "lower")):
        if abs(t - end) < 1e-6:
            return Temperature(float(np.exp(t)), False, f"T is at its {name} bound", evaluation)
    return Temperature(float(np.exp(t)), True, "", evaluation)
