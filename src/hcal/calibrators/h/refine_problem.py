"""The problem of stage 1: the NLL of compressed rows, with its first and second derivatives.

Parameters are the log-slopes of g and the weights of a row's features in the log of its scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators.h.rows import N_FEATURES, Float64, few
from hcal.numerics import IntArray, row_blocks, softmax
from hcal.runtime.threads import each

#: Knots of g, in temperature-scaled margins: dense where probability mass is.
KNOTS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32], dtype=np.float64)
#: |ln| of a row's scale: beyond, rows decide nothing any more, and numbers overflow.
WIDEST = 30.0
#: Entries of a block of rows, and of a part of it while second derivatives are taken: both stay in the cache.
_ROWS_EVENTS, _CURVED_EVENTS = 60_000, 4_000
# Ridge on the change of log-slope from segment to segment, and on the feature weights, in units of 1/N.
_SMOOTH, _RIDGE = 1.0, 1.0


def problem_blocks(
    seen: Float64, label: Float64, counts: Float64, x: Float64, weight: Float64
) -> list[_Block]:
    """Cut rows into blocks of a fixed size: temporaries stay in the cache, and sums are the same anyhow."""
    both = np.concatenate([seen, label[:, None]], axis=1)
    segment = np.minimum(np.searchsorted(KNOTS, both, side="right") - 1, len(KNOTS) - 2)
    log_counts = np.log(counts)
    return [
        _Block(segment[b], both[b] - KNOTS[segment[b]], log_counts, x[b], weight[b])
        for b in row_blocks(both.shape, _ROWS_EVENTS)
    ]


def sum_blocks(parts: list[_Block], slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
    """Return the summed NLL and its gradients in the slopes and the features' weights."""
    found = each(lambda block: block(slope, c), parts, events=sum(block.beyond.size for block in parts))
    loss, by_slope, by_feature = zip(*found, strict=True)
    return float(sum(loss)), np.sum(by_slope, axis=0), np.sum(by_feature, axis=0)


def sum_curvatures(parts: list[_Block], slope: Float64, c: Float64) -> Float64:
    """Return the second derivatives (P, P) of the summed NLL."""
    found = each(lambda block: block.curvature(slope, c), parts, events=sum(b.beyond.size for b in parts))
    return np.asarray(np.sum(found, axis=0))


def second_derivatives(seen: Any, label: Any, p: Any, x: Any, weight: Any) -> Float64:
    """Return the Hessian (J + F, J + F) of Σ_n w_n·(ln Σ_g e^{c_g − u_ng} + u_n,label), u = s(x)·g(margin).

    All are arrays, or all tensors. ``seen`` (N, G, J) is ∂u/∂ log-slope of the groups (u is linear in the
    slopes, so it is their sum), ``label`` (N, J) the same of the label; ``p`` (N, G) are the probabilities of
    the groups times the ``weight`` (N,), ``x`` (N, F) the features.
    """
    n_slopes = seen.shape[2]
    flat = seen.reshape(-1, n_slopes)
    first = (p[:, None, :] @ seen)[:, 0]  # Σ_g p·∂u, and the same times u
    second = ((p * seen.sum(2))[:, None, :] @ seen)[:, 0]
    mean = first / weight[:, None]
    # Of the log-sum: the mean of squares less the square of the mean, row by row.
    slopes = flat.T @ (flat * p.reshape(-1)[:, None]) - mean.T @ first
    mixed = second - mean * first.sum(1)[:, None]
    # Of u itself, which is exponential in its parameters: its second derivatives are its first ones.
    pulled = label * weight[:, None] - first
    mixed = mixed + pulled
    out = np.zeros((n_slopes + x.shape[1],) * 2)
    out[:n_slopes, :n_slopes] = _here(slopes) + np.diag(_here(pulled.sum(0)))
    out[:n_slopes, n_slopes:] = _here(mixed.T @ x)
    out[n_slopes:, :n_slopes] = out[:n_slopes, n_slopes:].T
    out[n_slopes:, n_slopes:] = _here(x.T @ (mixed.sum(1)[:, None] * x))
    return out


def _here(values: Any) -> Float64:
    return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy())


def segment_shares(margin: Float64) -> Float64:
    """Return how much of every segment of g lies below margins: (...,) ↦ (..., J).

    >>> segment_shares(np.array([0.75]))[0, :3]
    array([0.5 , 0.25, 0.  ])
    """
    wide = np.append(np.diff(KNOTS)[:-1], np.inf)  # the last slope goes on for ever
    shares: Float64 = margin[..., None] - KNOTS[:-1]
    np.maximum(shares, 0.0, out=shares)
    np.minimum(shares, wide, out=shares)
    return shares


class RefineProblem:
    """The mean NLL of stage 1 with its gradient; parameters are log-slopes of g and the features' weights."""

    size = len(KNOTS) - 1 + N_FEATURES

    def __init__(
        self,
        sums: Callable[..., tuple[float, Float64, Float64]],
        total: float,
        errors: float,
        curvature: Callable[..., Float64] | None = None,
    ):
        self.sums, self.total, self.curvature = sums, total, curvature
        self.strength = few(total, errors) / total

    def split(self, theta: Float64) -> tuple[Float64, Float64]:
        """Return the log-slopes and the features' weights."""
        return theta[: len(KNOTS) - 1], theta[len(KNOTS) - 1 :]

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
        """Return the penalised mean NLL and its gradient."""
        log_slope, c = self.split(theta)
        slope = np.exp(log_slope)
        loss, gradient_s, gradient_c = self.sums(slope, c)
        loss, gradient_s, gradient_c = loss / self.total, gradient_s / self.total, gradient_c / self.total
        gradient_s *= slope
        step = np.diff(log_slope)
        smooth, ridge = _SMOOTH * self.strength, _RIDGE * self.strength
        penalty = smooth * step @ step + ridge * (c @ c + 0.1 * log_slope @ log_slope)
        gradient_s += 0.2 * ridge * log_slope
        gradient_s[1:] += 2 * smooth * step
        gradient_s[:-1] -= 2 * smooth * step
        gradient_c += 2 * ridge * c
        return loss + float(penalty), np.concatenate([gradient_s, gradient_c])

    def hessian(self, theta: Float64) -> Float64:
        """Return the second derivatives (P, P)."""
        assert self.curvature is not None
        log_slope, c = self.split(theta)
        n, smooth, ridge = len(log_slope), _SMOOTH * self.strength, _RIDGE * self.strength
        step = np.diff(np.eye(n), axis=0)
        out = self.curvature(np.exp(log_slope), c) / self.total
        out[:n, :n] += 2 * smooth * step.T @ step + 0.2 * ridge * np.eye(n)
        out[n:, n:] += 2 * ridge * np.eye(len(c))
        return out


class _Block(NamedTuple):
    """Some rows of the problem: cells of the margins, how far into them, and the rest of the rows."""

    segment: IntArray
    beyond: Float64
    log_counts: Float64
    x: Float64
    weight: Float64

    def __call__(self, slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
        """Return the weighted NLL, and its gradients in the slopes and in the features' weights."""
        start = np.concatenate([[0.0], np.cumsum(slope * np.diff(KNOTS))[:-1]])
        g = slope[self.segment]
        g *= self.beyond
        g += start[self.segment]
        scale = np.exp(np.clip(self.x @ c, -WIDEST, WIDEST))
        lo = g[:, :-1] * -scale[:, None]
        lo += self.log_counts
        peak = lo.max(axis=1, keepdims=True)
        lo -= peak
        e = np.exp(lo, out=lo)
        mass = e.sum(axis=1, keepdims=True)
        value = (peak + np.log(mass))[:, 0] + scale * g[:, -1]
        # d value / d(scale·g): minus the probability for the seen margins, one for the label's.
        pull = np.empty_like(g)
        np.multiply(e, -self.weight[:, None] / mass, out=pull[:, :-1])
        pull[:, -1] = self.weight
        gradient_c = self.x.T @ (np.einsum("ng,ng->n", pull, g) * scale)
        pull *= scale[:, None]
        return float(self.weight @ value), self._to_slopes(pull), gradient_c

    def curvature(self, slope: Float64, c: Float64) -> Float64:
        """Return the second derivatives of the weighted NLL in the log-slopes and the features' weights."""
        size = len(slope) + len(c)
        parts = row_blocks(self.segment.shape, _CURVED_EVENTS)
        return sum((self._curvature(slope, c, part) for part in parts), start=np.zeros((size, size)))

    def _curvature(self, slope: Float64, c: Float64, part: slice) -> Float64:
        scale = np.exp(np.clip(self.x[part] @ c, -WIDEST, WIDEST))
        by_slope = segment_shares(KNOTS[self.segment[part]] + self.beyond[part])
        by_slope *= slope * scale[:, None, None]
        seen, label = np.ascontiguousarray(by_slope[:, :-1]), by_slope[:, -1]
        p = softmax(self.log_counts - seen.sum(axis=2)) * self.weight[part, None]
        return second_derivatives(seen, label, p, self.x[part], self.weight[part])

    def _to_slopes(self, pull: Float64) -> Float64:
        """Turn a gradient with respect to g into one with respect to the slopes of its segments."""
        n = len(KNOTS) - 1
        cell = self.segment.ravel()
        through = np.bincount(cell, weights=pull.ravel(), minlength=n)
        pull *= self.beyond
        inside = np.bincount(cell, weights=pull.ravel(), minlength=n)
        after = np.concatenate([np.cumsum(through[::-1])[::-1][1:], [0.0]])
        return np.asarray(inside + np.diff(KNOTS) * after)
