"""The bounded, safeguarded one-dimensional temperature solver.

A temperature is found as β = 1/T: the mean NLL of softmax(β z) is convex in β, its slope increases with β,
and so does the mean confidence. Everything here is the search for a root of an increasing function that
cannot fail silently: the two cases without a finite optimum are recognised from the data beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hcal.compiled import each
from hcal.numerics import NOTHING, Float64, FloatArray, IntArray, row_blocks

# log(β · scale of the logits) of the search. Outside of e^±16 a softmax is uniform or saturated in float64.
LOG_BETA_BOUNDS = (-16.0, 16.0)

# Rows are visited in blocks of about this many events, so that temporaries stay in the cache.
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
    below: Float64 = block - block.max(axis=1, keepdims=True)
    return below


def logit_scale(logits: FloatArray) -> float:
    """Return the mean distance of logits (N, K) to the top one of their row; 0 when all rows are constant.

    A mean below 1e-280 counts as none: no file could hold an inverse temperature for it.

    >>> logit_scale(np.array([[0.0, 4.0]]))
    2.0
    """
    blocks = row_blocks(logits.shape, _BLOCK_EVENTS)
    parts = each(lambda rows: -_below_top(logits, rows).mean(axis=1).sum(), blocks, events=logits.size)
    scale = float(sum(parts)) / len(logits)
    return scale if scale > NOTHING else 0.0


def _derivatives(
    logits: FloatArray, y: IntArray, weight: Float64, unit: float
) -> Callable[[float], tuple[float, float]]:
    """Return β ↦ (first, second) derivative in β of the mean NLL of softmax(β z), z measured in ``unit``.

    The first is the mean of E_p[z] − z_y and increases with β; the second is the mean of Var_p[z]. In a unit
    of their own, squares of the scores cannot overflow. ``weight`` sums to 1.
    """
    blocks = row_blocks(logits.shape, _BLOCK_EVENTS)

    def derivatives(beta: float) -> tuple[float, float]:
        def of_block(rows: slice) -> tuple[float, float]:
            d = _below_top(logits, rows)
            d /= unit
            e = np.exp(beta * d)
            mass = e.sum(axis=1)
            e *= d
            mean = e.sum(axis=1) / mass
            variance = np.einsum("nk,nk->n", e, d) / mass - mean**2
            gap = mean - d[np.arange(len(d)), y[rows]]
            return float(weight[rows] @ gap), float(weight[rows] @ np.maximum(variance, 0))

        slope, curvature = zip(*each(of_block, blocks, events=logits.size), strict=True)
        return sum(slope), sum(curvature)

    return derivatives


def label_derivatives(logits: FloatArray, y: IntArray, beta: float) -> tuple[Float64, Float64]:
    """Return the NLL (N,) of every row under softmax(β z), and its derivative in β.

    >>> label_derivatives(np.array([[0.0, 1.0]]), np.array([1]), 0.0)[1]
    array([-0.5])
    """
    loss, slope = np.empty(len(y)), np.empty(len(y))
    for rows in row_blocks(logits.shape, _BLOCK_EVENTS):
        d = _below_top(logits, rows)
        e = np.exp(beta * d)
        mass = e.sum(axis=1)
        own = d[np.arange(len(d)), y[rows]]
        loss[rows] = np.log(mass) - beta * own
        slope[rows] = np.einsum("nk,nk->n", e, d) / mass - own
    return loss, slope


def top_probability(logits: FloatArray, beta: float) -> Float64:
    """Return the largest softmax(β z) of every row (N,).

    >>> top_probability(np.array([[0.0, 4.0]]), 0.0)
    array([0.5])
    """
    top = np.empty(len(logits))
    for rows in row_blocks(logits.shape, _BLOCK_EVENTS):
        top[rows] = 1 / np.exp(beta * _below_top(logits, rows)).sum(axis=1)
    return top


def confidence_of_beta(logits: FloatArray, weight: Float64 | None) -> Callable[[float], float]:
    """Return β ↦ mean over rows of the largest softmax(β z): increasing in β, from 1/K.

    >>> confidence_of_beta(np.array([[0.0, 4.0]]), None)(0.0)
    0.5
    """
    return lambda beta: float(np.average(top_probability(logits, beta), weights=weight))


def solve_increasing(
    slope: Callable[[float], float], bounds: tuple[float, float] = LOG_BETA_BOUNDS
) -> Temperature:
    """Find the root of an increasing function of β by bracketed search in log β (``bounds``).

    Never fails silently: when the function has one sign in the whole bracket, the better end comes back with
    ``converged=False`` and a sentence.

    >>> round(solve_increasing(lambda beta: beta - 2.0).beta, 6)
    2.0
    """
    from scipy.optimize import brentq

    low, high = bounds
    if slope(float(np.exp(low))) >= 0:
        return Temperature(float(np.exp(low)), False, "no root in the bracket: T is at its upper bound")
    if slope(float(np.exp(high))) <= 0:
        return Temperature(float(np.exp(high)), False, "no root in the bracket: T is at its lower bound")
    root, report = brentq(
        lambda t: slope(float(np.exp(t))), low, high, xtol=1e-10, rtol=1e-12, full_output=True
    )
    return Temperature(float(np.exp(root)), True, "", report.function_calls + 2)


def solve_temperature(logits: FloatArray, y: IntArray, weight: Float64 | None = None) -> Temperature:
    """Find the temperature of least mean NLL: Newton in log β, kept inside a shrinking bracket.

    Works at any scale of the logits, in float32 and float64, and never fails silently. Without a finite
    optimum it says so (``converged=False``) and takes

    - uniform probabilities (T at its upper bound) when the scores say nothing or the opposite of the labels;
    - when every label has the top score, the T whose mean confidence is (N+1)/(N+2) (the rule of
      succession), or T = 1 where the scores are surer than that already.

    >>> solved = solve_temperature(np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0]))
    >>> round(2 * solved.beta, 6)  # log 3
    1.098612
    """
    w = np.ones(len(y)) if weight is None else weight
    scale, total = logit_scale(logits), float(w.sum())
    if scale == 0:
        return Temperature(1.0, True, "all rows are constant: every T gives the same probabilities")
    derivatives = _derivatives(logits, y, w / total, scale)
    if derivatives(0.0)[0] >= 0:
        message = (
            "the scores carry no information about the labels (or are reversed); T is at its upper bound"
        )
        return Temperature(float(np.exp(LOG_BETA_BOUNDS[0])) / scale, False, message, 1)
    top = logits[np.arange(len(y)), y] == logits.max(axis=1)
    if not np.any(~top & (w > 0)):
        return _succession(confidence_of_beta(logits, w), scale, total)
    solved = _newton(derivatives)
    return replace(solved, beta=solved.beta / scale)


def _succession(confidence: Callable[[float], float], scale: float, total: float) -> Temperature:
    target = (total + 1) / (total + 2)
    beta = solve_increasing(lambda b: confidence(b / scale) - target).beta / scale
    message = (
        "every label has the top score, so no finite T is best; "
        "T is where the mean confidence is (N+1)/(N+2), or 1 if that is surer"
    )
    return Temperature(max(beta, 1.0), False, message)


def _newton(derivatives: Callable[[float], tuple[float, float]], tolerance: float = 1e-11) -> Temperature:
    low, high = bounds = LOG_BETA_BOUNDS
    t = (low + high) / 2
    evaluation = 0
    while evaluation < 100:
        evaluation += 1
        beta = float(np.exp(t))
        slope, curvature = derivatives(beta)
        if slope < 0:
            low = t
        else:
            high = t
        # Far from the root the curvature may vanish (saturation): then the step is cut, not trusted.
        step = float(np.clip(-slope / max(beta * curvature, 1e-300), -3, 3)) if slope else 0.0
        if abs(step) > tolerance and not low < t + step < high:
            step = (low + high) / 2 - t
        t += step
        if abs(step) <= tolerance:
            break
    for end, name in ((bounds[0], "upper"), (bounds[1], "lower")):
        if abs(t - end) < 1e-6:
            return Temperature(float(np.exp(t)), False, f"T is at its {name} bound", evaluation)
    return Temperature(float(np.exp(t)), True, "", evaluation)
