"""The default calibrator in the operations of :mod:`hcal.runtime.ops`, for PyTorch and ONNX.

The same stages as :mod:`hcal.calibrators.h.model`, line by line; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.h.blend import FLOOR, Blend
from hcal.calibrators.h.events import Curve
from hcal.calibrators.h.keep import JUST_BELOW
from hcal.calibrators.h.model import Model
from hcal.calibrators.h.refine import KNOTS, WIDEST, Refined
from hcal.calibrators.h.rows import FAR, TINY
from hcal.runtime.ops import Ops


def graph_two(state: Mapping[str, NDArray[Any]], ops: Ops, logits: Any) -> Any:
    """Return probabilities (..., 2) of float64 logits (..., 2): the table of two classes."""
    gap = ops.matmul(logits, ops.const([[-1.0], [1.0]]))
    odds = ops.piecewise(gap, state["table.knots"], state["table.values"])
    signed = ops.matmul(odds, ops.const([[-1.0, 1.0]]))
    return _sigmoid(ops, signed)


def graph_model(model: Model, ops: Ops, logits: Any) -> Any:
    """Return probabilities (..., K) of float64 logits (..., K)."""
    is_top = _top(model, ops, logits)
    k = len(model.rest.bias)
    margin = ops.minimum((ops.max(logits) - logits) * float(model.refined.beta), FAR)
    x = _standard(model.refined, ops, _features(ops, margin, is_top, k))
    scale = _dot(ops, x, model.refined.weights)
    refined = ops.piecewise(margin, KNOTS, model.refined.values) * ops.exp(ops.clip(scale, -WIDEST, WIDEST))
    below = ops.sum(ops.where(is_top, refined * 0.0, ops.exp(refined * -1.0)))
    odds = ops.log(ops.maximum(below, float(np.finfo(np.float64).tiny))) * -1.0
    odds = _curve(model.curve, ops, odds, x, is_top)
    odds = _curve(model.final, ops, odds, [], is_top)
    scores = ops.const(model.rest.bias) - refined * float(model.rest.kappa)
    if model.blend is not None:
        return _pooled(model, model.blend, ops, logits, margin, refined, odds, scores, is_top)
    return _joined(model, ops, _sigmoid(ops, odds), scores, is_top)


def _joined(model: Model, ops: Ops, q: Any, scores: Any, is_top: Any) -> Any:
    """Return probabilities from P(top) and the scores of the other classes."""
    rest = ops.softmax(ops.where(is_top, scores * 0.0 - 1e300, scores))
    if model.lift is not None:
        q, rest = _keep(ops, q, rest, is_top, len(model.rest.bias), model.lift)
    return ops.where(is_top, q + rest * 0.0, rest * (q * -1.0 + 1.0))


def _top(model: Model, ops: Ops, logits: Any) -> Any:
    if model.blend is None:
        return ops.top(logits)
    prefer = ops.const(model.blend.prefer) + logits * 0.0
    return ops.top(ops.where(logits < ops.max(logits), logits * 0.0 - 1.0, prefer))


def _pooled(
    model: Model,
    blend: Blend,
    ops: Ops,
    logits: Any,
    margin: Any,
    refined: Any,
    odds: Any,
    scores: Any,
    is_top: Any,
) -> Any:
    """Return what :func:`hcal.calibrators.h.model.pooled_scores` and the last curve make of the stages."""
    below = ops.log_softmax(ops.where(is_top, scores * 0.0 - 1e300, scores))
    events = ops.where(is_top, _log_sigmoid(ops, odds) + scores * 0.0, below + _log_sigmoid(ops, odds * -1.0))
    x = ops.minimum(margin, float(blend.cap)) * -1.0
    pooled = x * float(blend.scale) + ops.const(blend.bias)
    if blend.matrix.size:
        pooled = pooled + ops.matmul(x, ops.const(blend.matrix.T))
    pooled = pooled + ops.maximum(events, -FLOOR) * float(blend.events)
    pooled = pooled - ops.minimum(refined, FLOOR) * float(blend.refined)
    top = ops.top(pooled) if model.lift is None else is_top
    others = ops.where(top, pooled * 0.0 - 1e300, pooled)
    highest = ops.max(others)
    own = ops.sum(ops.where(top, pooled, pooled * 0.0))
    left = own - highest - ops.log(ops.sum(ops.exp(others - highest)))
    assert model.last is not None
    q = _sigmoid(ops, _curve(model.last, ops, left, [], top))
    probs = _joined(model, ops, q, pooled, top)
    if model.lift is None:
        return probs
    return _level_ties(ops, probs, logits < ops.max(logits), len(model.rest.bias))


def _level_ties(ops: Ops, probs: Any, lower: Any, k: int) -> Any:
    """Return what :func:`hcal.calibrators.h.blend.level_ties` does; ``lower`` marks classes not on top."""
    none = probs * 0.0
    one = none + 1.0
    tied = ops.sum(ops.where(lower, none, one))
    level = ops.sum(ops.where(lower, none, probs)) / tied
    mean = ops.sum(ops.where(lower, probs, none)) / ops.maximum(tied * -1.0 + k, 1.0)
    highest = ops.max(ops.where(lower, probs, none))
    under = mean < level * JUST_BELOW  # the usual case
    flat = one / (tied + (tied * -1.0 + k) * JUST_BELOW)
    w = ops.clip((highest - level * JUST_BELOW) / ops.maximum(highest - mean, 1e-300), 0.0, 1.0)
    others = ops.where(under, probs * (w * -1.0 + 1.0) + mean * w, flat * JUST_BELOW)
    levelled = ops.where(lower, others, ops.where(under, level + none, flat))
    return ops.where(tied < none + 1.5, probs, levelled)


def _log_sigmoid(ops: Ops, odds: Any) -> Any:
    """Return ln σ(odds), exact on both sides."""
    size = ops.maximum(odds, odds * -1.0)
    return ops.minimum(odds, 0.0) - ops.log(ops.exp(size * -1.0) + 1.0)


def _features(ops: Ops, margin: Any, is_top: Any, k: int) -> list[Any]:
    logp = ops.log_softmax(margin * -1.0)
    half = ops.exp(logp * 0.5)
    runner_up = ops.max(ops.where(is_top, margin * 0.0 - 1e300, margin * -1.0)) * -1.0
    surprise = ops.sum(ops.where(is_top, logp, logp * 0.0)) * -1.0
    entropy = ops.sum(half * half * logp) * -1.0
    return [
        ops.log(runner_up + 1.0),
        ops.log(surprise + TINY),
        ops.log(entropy + TINY),
        ops.log(ops.sum(margin) / float(k) + 1.0),
        ops.log(ops.sum(half)),
        ops.log(ops.sum(ops.exp(logp * 0.25))),
    ]


def _standard(refined: Refined, ops: Ops, features: list[Any]) -> list[Any]:
    scaler = refined.scaler()
    return [
        ops.clip((f - float(mean)) / float(deviation), float(low), float(high))
        for f, mean, deviation, low, high in zip(features, *scaler, strict=True)
    ]


def _dot(ops: Ops, columns: list[Any], weights: Any) -> Any:
    total = columns[0] * float(weights[0])
    for column, w in zip(columns[1:], weights[1:], strict=True):
        total = total + column * float(w)
    return total


def _curve(curve: Curve, ops: Ops, odds: Any, x: list[Any], is_top: Any) -> Any:
    mean, deviation, low, high = (float(v) for v in curve.scaler)
    z = ops.clip((odds - mean) / deviation, low, high)
    hinges = [ops.maximum(z - float(knot), 0.0) for knot in curve.knots]
    fixed = float(curve.weights[0])
    change = _dot(ops, [z, *hinges, *x], curve.weights[1:]) + fixed
    terms = ops.sum(ops.where(is_top, ops.const(curve.classes), ops.const(curve.classes) * 0.0))
    return odds + change + terms


def _sigmoid(ops: Ops, odds: Any) -> Any:
    cut = ops.clip(odds, -FAR, FAR)
    return ops.exp(cut) / (ops.exp(cut) + 1.0)


def _keep(ops: Ops, q: Any, rest: Any, is_top: Any, k: int, lift: float) -> tuple[Any, Any]:
    largest = ops.max(rest)
    share = largest * (q * -1.0 + 1.0)
    lowest = 1.0 / k / JUST_BELOW
    lifted = q + (share - q) * (0.5 * lift)
    lost = q < share * JUST_BELOW
    held = ops.where(lost, ops.maximum(lifted, lowest), q)
    if k == 2:
        return held, rest
    even = 1.0 / (k - 1)
    # Where nothing is lost the weight is 0; the divisor is kept from 0 there.
    room = held * JUST_BELOW / ops.maximum(held * -1.0 + 1.0, 1e-12)
    w = ops.clip((largest - room) / ops.maximum(largest - even, 1e-12), 0.0, 1.0)
    w = ops.where(lost, ops.where(lifted < lowest, w * 0.0 + 1.0, w), w * 0.0)
    return held, ops.where(is_top, rest * 0.0, rest * (w * -1.0 + 1.0) + w * even)
