"""The bounded, safeguarded one-dimensional temperature solver.

The temperature is found as β = 1/T. The mean NLL of softmax(β z) is convex in β, so its slope increases with β; so does
the mean confidence. Each solver here finds the root of such an increasing function and never fails silently: the two
cases without a finite optimum are recognised from the data beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hcal.numerics import NOTHING, Float64, FloatArray, IntArray, in_threads, row_blocks

# The range of log(β · scale of the logits). Beyond e^±16 a softmax is uniform or saturated in float64.
LOG_BETA_BOUNDS = (-16.0, 16.0)

# The accuracy of log β.
_TOLERANCE = 1e-11
_NO_INFORMATION = (
    "the scores carry no information about the labels (or are reversed); T is at its upper bound"
)
_ALL_RIGHT = (
    "every label has the top score, so no T is best; "
    "T gives a mean confidence of (N+1)/(N+2), or is 1"
)
# Rows are processed in blocks of about this many events, so that temporary arrays stay in the cache.
_BLOCK_EVENTS = 262_144


@dataclass(frozen=True)
class SolvedTemperature:
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
    sums = in_threads(partial(_distance_to_top, logits), blocks, events=logits.size)
    scale = float(sum(sums)) / len(logits)
    return scale if scale > NOTHING else 0.0


def _distance_to_top(logits: FloatArray, rows: slice) -> float:
    mean_distances = -_below_top(logits, rows).mean(axis=1)
    return float(mean_distances.sum())


def label_derivatives(logits: FloatArray, y: IntArray, beta: float, unit: float = 1.0) -> Float64:
    """Return the NLL of every row under softmax(β z), and its first and second derivative in β: (3, N).

    z are the logits divided by ``unit``; with their own scale as the unit, squares cannot overflow.

    >>> label_derivatives(np.array([[0.0, 1.0]]), np.array([1]), 0.0).round(4).tolist()
    [[0.6931], [-0.5], [0.25]]
    """
    blocks = row_blocks(logits.shape, _BLOCK_EVENTS)
    of_block = partial(_block_derivatives, logits, y, beta, unit)
    return np.concatenate(in_threads(of_block, blocks, events=logits.size), axis=1)


def _block_derivatives(
    logits: FloatArray, y: IntArray, beta: float, unit: float, rows: slice
) -> Float64:
    depth = _below_top(logits, rows)
    depth /= unit
    mass_of_class = np.exp(beta * depth)
    mass = mass_of_class.sum(axis=1)
    label_depth = depth[np.arange(len(depth)), y[rows]]

    mass_of_class *= depth
    mean = mass_of_class.sum(axis=1) / mass
    variance = np.einsum("nk,nk->n", mass_of_class, depth) / mass - mean**2

    nll = np.log(mass) - beta * label_depth
    return np.stack([nll, mean - label_depth, np.maximum(variance, 0)])


def top_probability(logits: FloatArray, beta: float) -> Float64:
    """Return the largest softmax(β z) of every row (N,); its mean increases with β, from 1/K at β = 0.

    >>> top_probability(np.array([[0.0, 4.0]]), 0.0)
    array([0.5])
    """
    tops = []
    for rows in row_blocks(logits.shape, _BLOCK_EVENTS):
        mass = np.exp(beta * _below_top(logits, rows)).sum(axis=1)
        tops.append(1 / mass)
    return np.concatenate(tops)


def solve_increasing(
    slope: Callable[[float], float], bounds: tuple[float, float] = LOG_BETA_BOUNDS
) -> SolvedTemperature:
    """Find the root of an increasing function of β by bracketed search in log β (``bounds``).

    If the function has the same sign in the whole bracket, the better end is returned with ``converged=False`` and a
    message.

    >>> round(solve_increasing(lambda beta: beta - 2.0).beta, 6)
    2.0
    """
    from scipy.optimize import brentq

    low, high = bounds
    lowest_beta = float(np.exp(low))
    highest_beta = float(np.exp(high))
    if slope(lowest_beta) >= 0:
        message = "no root in the bracket: T is at its upper bound"
        return SolvedTemperature(lowest_beta, False, message)
    if slope(highest_beta) <= 0:
        message = "no root in the bracket: T is at its lower bound"
        return SolvedTemperature(highest_beta, False, message)
    in_log_beta = partial(_slope_in_log, slope)
    root, report = brentq(in_log_beta, low, high, xtol=1e-10, rtol=1e-12, full_output=True)
    return SolvedTemperature(float(np.exp(root)), True, "", report.function_calls + 2)


def _slope_in_log(slope: Callable[[float], float], log_beta: float) -> float:
    return slope(float(np.exp(log_beta)))


def solve_temperature(
    logits: FloatArray, y: IntArray, weight: Float64 | None = None
) -> SolvedTemperature:
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
    scale = logit_scale(logits)
    total = float(len(y) if weight is None else weight.sum())
    share = np.full(len(y), 1 / total) if weight is None else weight / total
    if scale == 0:
        message = "all rows are constant: every T gives the same probabilities"
        return SolvedTemperature(1.0, True, message)

    derivatives = partial(_mean_derivatives, logits, y, share, scale)
    slope_at_zero, _ = derivatives(0.0)
    if slope_at_zero >= 0:
        lowest_beta = float(np.exp(LOG_BETA_BOUNDS[0])) / scale
        return SolvedTemperature(lowest_beta, False, _NO_INFORMATION, 1)

    label_is_top = logits[np.arange(len(y)), y] == logits.max(axis=1)
    if label_is_top[share > 0].all():
        succession = (total + 1) / (total + 2)
        solved = solve_increasing(partial(confidence_gap, logits, share, scale, succession))
        return SolvedTemperature(max(solved.beta / scale, 1.0), False, _ALL_RIGHT)

    solved = solve_newton(derivatives)
    return replace(solved, beta=solved.beta / scale)


def _mean_derivatives(
    logits: FloatArray, y: IntArray, share: Float64, unit: float, beta: float
) -> tuple[float, float]:
    """Return the first and the second derivative of the mean NLL."""
    _, slope, curvature = label_derivatives(logits, y, beta, unit) @ share
    return float(slope), float(curvature)


def confidence_gap(
    logits: FloatArray, share: Float64, unit: float, target: float, beta: float
) -> float:
    """Return by how much the mean confidence is above a target."""
    return float(share @ top_probability(logits, beta / unit)) - target


def solve_newton(
    derivatives: Callable[[float], tuple[float, float]], start: float = 1.0
) -> SolvedTemperature:
    """Find the root of a slope by Newton steps in log β from ``start``, kept inside a shrinking bracket.

    ``derivatives`` returns slope and curvature at β.

    >>> round(solve_newton(lambda beta: (beta - 2.0, 1.0)).beta, 6)
    2.0
    """
    low, high = LOG_BETA_BOUNDS
    log_beta = float(np.log(start))
    for evaluation in range(1, 101):  # noqa: B007 - the last number is returned
        beta = float(np.exp(log_beta))
        slope, curvature = derivatives(beta)
        if slope < 0:
            low = log_beta
        else:
            high = log_beta

        step = 0.0
        if slope:
            # Far from the root the curvature may vanish (saturation), so the step is limited.
            step = float(np.clip(-slope / max(beta * curvature, 1e-300), -3, 3))
        if abs(step) > _TOLERANCE and not low < log_beta + step < high:
            step = (low + high) / 2 - log_beta
        log_beta += step
        if abs(step) <= _TOLERANCE:
            break

    beta = float(np.exp(log_beta))
    for bound, name in zip(LOG_BETA_BOUNDS, ("upper", "lower"), strict=True):
        if abs(log_beta - bound) < 1e-6:
            return SolvedTemperature(beta, False, f"T is at its {name} bound", evaluation)
    return SolvedTemperature(beta, True, "", evaluation)
