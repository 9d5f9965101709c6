"""The pool of more than two classes, as one set of scores: what a linear map, the curve and the events add.

A log-linear pool multiplies its candidates. Those that are linear in the margins (the identity, temperature,
vector and matrix scaling) become one matrix; the refined margins and the events add theirs. The pooled
top-label event is then corrected by a curve of its own, fitted out of fold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from hcal.calibrators.h.events import Rest
from hcal.calibrators.h.keep import JUST_BELOW
from hcal.calibrators.h.rows import Float64
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.numerics import FloatArray, IntArray

#: Candidates do not say less than e^−this of a class: one row must not decide the weights of all.
FLOOR = 30.0


class Blend(NamedTuple):
    """Weights of the pool."""

    events: Float64  # () of the events
    refined: Float64  # () of the refined margins
    cap: Float64  # () margins beyond it count as this in the linear part
    matrix: Float64  # (K, K) the linear part; (0, 0) where it is a multiple of the margins
    scale: Float64  # () the multiple
    bias: Float64  # (K,)
    prefer: Float64  # (K,) among classes that tie on top, the one with the highest of these is taken


def no_blend(n_classes: int) -> Blend:
    """Return the pool of the events alone.

    >>> float(no_blend(3).events)
    1.0
    """
    one, none = np.array(1.0), np.array(0.0)
    return Blend(one, none, one, np.zeros((0, 0)), none, np.zeros(n_classes), np.zeros(n_classes))


def linear_scores(blend: Blend, margin: FloatArray) -> FloatArray:
    """Return the linear part (N, K) of margins (N, K), in their width."""
    kind = margin.dtype.type
    x = -np.minimum(margin, kind(blend.cap))
    out: FloatArray = x * kind(blend.scale)
    if blend.matrix.size:
        out += x @ blend.matrix.T.astype(margin.dtype)
    out += blend.bias.astype(margin.dtype)
    return out


def event_scores(q_odds: Float64, rest: Rest, refined: FloatArray, top: IntArray) -> FloatArray:
    """Return ln P of the events model (N, K), not below −FLOOR."""
    kind = refined.dtype
    scores = refined * kind.type(-rest.kappa)
    scores += rest.bias.astype(kind)
    rows = np.arange(len(top))
    scores[rows, top] = -np.inf
    highest = scores.max(axis=1, keepdims=True)
    scores -= highest
    below = np.log(np.exp(scores).sum(axis=1, dtype=np.float64))
    scores += (log_expit(-q_odds) - below).astype(kind)[:, None]
    scores[rows, top] = log_expit(q_odds)
    return np.maximum(scores, kind.type(-FLOOR), out=scores)


def blended(blend: Blend, linear: FloatArray, events: FloatArray, refined: FloatArray) -> FloatArray:
    """Return the pooled scores (N, K)."""
    kind = linear.dtype.type
    linear = linear + events * kind(blend.events)
    linear -= np.minimum(refined, kind(FLOOR)) * kind(blend.refined)
    return linear


def split_top(scores: Any, top: IntArray) -> tuple[Float64, Any]:
    """Return the log-odds of the top class (N,) and the shares of the others (N, K), 0 at the top.

    Scores are an array or a tensor, and so are the shares.

    >>> odds, rest = split_top(np.zeros((1, 3)), np.array([0]))
    >>> odds.round(4), rest
    (array([-0.6931]), array([[0. , 0.5, 0.5]]))
    """
    if not isinstance(scores, np.ndarray):
        from hcal.calibrators.h import _tensors

        return _tensors.split_top(scores, top)
    rows = np.arange(len(top))
    own = scores[rows, top].astype(np.float64)
    rest = scores.copy()
    rest[rows, top] = -np.inf
    highest = rest.max(axis=1, keepdims=True)
    rest -= highest
    np.exp(rest, out=rest)
    total = rest.sum(axis=1, dtype=np.float64)
    rest /= total.astype(rest.dtype)[:, None]
    return np.asarray(own - highest[:, 0] - np.log(total)), rest


def tied_on_top(logits: FloatArray) -> NDArray[np.bool_]:
    """Return which rows have two or more highest logits, (N,)."""
    return np.asarray((logits == logits.max(axis=1, keepdims=True)).sum(axis=1) > 1)


def top_class(logits: Logits, prefer: Float64 | None) -> IntArray:
    """Return the top class of every row; of tied ones the preferred, so that a numbering does not matter.

    >>> top_class(np.array([[1.0, 1.0, 0.0]]), np.array([0.0, 1.0, 2.0]))
    array([1])
    """
    if isinstance(logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        return np.asarray(_tensors.top_class(logits.tensor, prefer).cpu().numpy())
    top: IntArray = logits.argmax(axis=1)
    if prefer is None:
        return top
    rows = np.flatnonzero(tied_on_top(logits))
    if rows.size:
        part = logits[rows]
        top[rows] = np.where(part == part.max(axis=1, keepdims=True), prefer, -np.inf).argmax(axis=1)
    return top


def level_ties(probs: FloatArray, logits: FloatArray) -> None:
    """Give classes that tie on top one probability, their mean, and draw others below it, in place.

    Others above the mean are drawn to their own mean as far as it needs; where that is above too, all classes
    get the same but for a hair.

    >>> probs = np.array([[0.5, 0.1, 0.35, 0.05]])
    >>> level_ties(probs, np.array([[1.0, 1.0, 0.0, 0.0]]))
    >>> probs.round(4)
    array([[0.3, 0.3, 0.3, 0.1]])
    """
    rows = np.flatnonzero(tied_on_top(logits))
    if not rows.size:
        return
    part, p = logits[rows], probs[rows].astype(np.float64)
    tied = part == part.max(axis=1, keepdims=True)
    n_tied = tied.sum(axis=1)
    n_other = np.maximum(tied.shape[1] - n_tied, 1)
    level = np.sum(p, axis=1, where=tied) / n_tied
    mean = np.sum(p, axis=1, where=~tied) / n_other
    highest = np.max(p, axis=1, where=~tied, initial=0.0)
    under = mean >= level * JUST_BELOW
    level = np.where(under, 1.0 / (n_tied + (tied.shape[1] - n_tied) * JUST_BELOW), level)
    mean = np.where(under, level * JUST_BELOW, mean)
    w = np.clip((highest - level * JUST_BELOW) / np.maximum(highest - mean, 1e-300), 0.0, 1.0)
    w = np.where(under, 1.0, w)[:, None]
    others = (1.0 - w) * p + w * mean[:, None]
    probs[rows] = np.where(tied, level[:, None], others)
