"""Stage 1, *refine*: an order-preserving map with a scale of its own for every row.

margins m_k → s(x)·g(m_k): g continuous, increasing, piecewise linear and shared by all rows and classes;
s(x) > 0 log-linear in the row's features. Fitted by NLL. Temperature scaling is the case g = identity,
s = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators.h.rows import N_FEATURES, Float64, Rows, Scaler, blocks, few, fit_scaler, look
from hcal.calibrators.h.temperature import careful_temperature
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.runtime.numerics import FloatArray, IntArray, softmax
from hcal.runtime.threads import each
from hcal.solvers.lbfgs import lbfgs
from hcal.solvers.newton import newton
from hcal.solvers.rows import FitRows
from hcal.solvers.temperature import Temperature, temperature_of

#: Knots of g, in temperature-scaled margins: dense where probability mass is.
KNOTS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32], dtype=np.float64)
#: This many nearest classes count one by one while fitting; those beyond in groups of 2, 4, 8, …
_EXACT = 24
_ITERATIONS = 100
#: From this many scores on stage 1 is solved to the end by Newton, the same on every engine; below, quasi-Newton
#: steps end early, and results/ speak of that. See docs/decisions/195-solved-to-the-end.md.
EXACT_EVENTS = 1_000_000
#: Entries of a block of rows: while they are sorted, and while the compressed problem is evaluated.
_SORTED, _ROWS_EVENTS = 500_000, 60_000
#: |ln| of a row's scale and of a slope of g, and of what a feature may add to the former: beyond, rows decide
#: nothing any more, and numbers overflow.
WIDEST, _STEEPEST, _STRONGEST = 30.0, 7.0, 3.0
# Ridge on the change of log-slope from segment to segment, and on the feature weights, in units of 1/N.
_SMOOTH, _RIDGE = 1.0, 1.0


class Refined(NamedTuple):
    """The fitted first stage."""

    beta: Float64
    values: Float64  # g at KNOTS; the last segment's slope goes on for ever
    weights: Float64
    mean: Float64
    deviation: Float64
    low: Float64
    high: Float64

    def scaler(self) -> Scaler:
        """Return the scaler of the features."""
        return Scaler(self.mean, self.deviation, self.low, self.high)


def refine(stage: Refined, rows: Rows) -> tuple[FloatArray, Float64]:
    """Return refined margins (N, K) and standardised features (N, F) of rows at the stage's temperature.

    Examples
    --------
    >>> refine(identity_refined(1.0), look(np.array([[3.0, 0.0, 1.0]]), 1.0))[0]
    array([[0., 3., 2.]])
    """
    x = stage.scaler()(rows.feature)
    margin = curve(stage.values, rows.margin)
    scale = np.exp(np.clip(x @ stage.weights, -WIDEST, WIDEST))
    margin *= scale.astype(margin.dtype)[:, None]
    return margin, x


def apply_refined(stage: Refined, logits: FloatArray) -> tuple[IntArray, FloatArray, Float64]:
    """Return top classes (N,), refined margins (N, K) and standardised features (N, F) of logits.

    Examples
    --------
    >>> stage = identity_refined(1.0)
    >>> apply_refined(stage, np.array([[3.0, 0.0, 1.0]]))[1]
    array([[0., 3., 2.]])
    """
    rows = look(logits, float(stage.beta))
    return rows.top, *refine(stage, rows)


def curve(values: Float64, margin: FloatArray) -> FloatArray:
    """Return the piecewise linear g through (KNOTS, values) at margins of any shape.

    In float64 segment by segment, which cannot invert a pair; in float32 as a sum of hinges, which is
    several times faster and good to its last digits.

    Examples
    --------
    >>> curve(2 * KNOTS, np.array([1.0, 100.0]))
    array([  2., 200.])
    """
    slopes = np.diff(values) / np.diff(KNOTS)
    if margin.dtype == np.float32:
        return _hinges(slopes, margin)
    out: FloatArray = np.interp(margin, KNOTS, values)
    out += slopes[-1] * np.maximum(margin - KNOTS[-1], 0.0)
    return out


def _hinges(slopes: Float64, margin: FloatArray) -> FloatArray:
    one = margin.dtype.type
    out = margin * one(slopes[0])
    beyond = np.empty_like(margin)
    for knot, change in zip(KNOTS[1:-1], np.diff(slopes), strict=True):
        if abs(change) > 1e-9:
            np.subtract(margin, one(knot), out=beyond)
            np.maximum(beyond, one(0), out=beyond)
            beyond *= one(change)
            out += beyond
    return out


def identity_refined(beta: float) -> Refined:
    """Return the first stage that is temperature scaling by β.

    Examples
    --------
    >>> float(identity_refined(0.5).beta)
    0.5
    """
    zero, one = np.zeros(6), np.ones(6)
    return Refined(np.array(beta), KNOTS.copy(), zero, zero, one, -one, one)


def fit_refined(logits: Logits, y: IntArray, weight: Float64) -> tuple[Refined, bool, str]:
    """Fit the first stage by NLL.

    Parameters
    ----------
    logits : array of shape (N, K)
    y : array of shape (N,)
    weight : array of shape (N,)

    Returns
    -------
    Refined, bool, str
        The stage, and whether the temperature inside it has an optimum, with a sentence if not.

    Examples
    --------
    >>> z = np.array([[0.0, 2.0]] * 1000)
    >>> stage, good, _ = fit_refined(z, np.array([1, 1, 1, 0] * 250), np.ones(1000))
    >>> margin = apply_refined(stage, z[:1])[1]
    >>> good, (1 / np.exp(-margin).sum(axis=1)).round(2)
    (True, array([0.75]))
    """
    solved = careful_temperature(logits, y, weight)
    if isinstance(logits, DeviceRows):
        return _fit_there(logits, y, weight, solved)
    seen, label, counts, feature = _compress(logits, y, solved.beta)
    scaler = fit_scaler(feature, weight)
    parts = _problem_blocks(seen, label, counts, scaler(feature), weight)
    curvature = partial(_sum_curvatures, parts) if logits.size >= EXACT_EVENTS else None
    problem = _Problem(
        partial(_sum_blocks, parts), float(weight.sum()), float(weight @ (label > 0)), curvature
    )
    return _solve(problem, solved, scaler)


def _fit_there(
    logits: DeviceRows, y: IntArray, weight: Float64, solved: Temperature
) -> tuple[Refined, bool, str]:
    from hcal.calibrators.h.tensors import RefinedSums

    sums = RefinedSums(logits, y, weight, solved.beta)
    feature = sums.feature.cpu().numpy()
    scaler = fit_scaler(feature, weight)
    sums.standardise(scaler(feature))
    curvature = sums.curvature if logits.size >= EXACT_EVENTS else None
    return _solve(_Problem(sums, float(weight.sum()), sums.errors, curvature), solved, scaler)


def fit_refined_rows(rows: FitRows, logits: FloatArray, weight: Float64) -> tuple[Refined, bool, str]:
    """Fit the first stage by NLL on rows that are not in memory.

    Parameters
    ----------
    rows : FitRows
    logits : array of shape (S, K)
        A sample of them: the range of the features is what it shows.
    weight : array of shape (S,)

    Returns
    -------
    Refined, bool, str
        As :func:`fit_refined`.
    """
    solved = temperature_of(rows)
    feature = _compress(logits, np.zeros(len(logits), dtype=np.int64), solved.beta)[3]
    scaler = fit_scaler(feature, weight)
    (lost,) = rows.sum(_lost)

    def sums(slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
        value, by_slope, by_feature = rows.sum(partial(_sum_rows, solved.beta, scaler, slope, c))
        return value, by_slope, by_feature

    return _solve(_Problem(sums, rows.total, lost), solved, scaler)


def _lost(logits: FloatArray, y: IntArray, weight: Float64) -> tuple[float]:
    return (float(weight @ (logits[np.arange(len(y)), y] < logits.max(axis=1))),)


def _sum_rows(
    beta: float, scaler: Scaler, slope: Float64, c: Float64, logits: FloatArray, y: IntArray, weight: Float64
) -> tuple[float, Float64, Float64]:
    seen, label, counts, feature = _compress(logits, y, beta)
    return _sum_blocks(_problem_blocks(seen, label, counts, scaler(feature), weight), slope, c)


def _solve(problem: _Problem, solved: Temperature, scaler: Scaler) -> tuple[Refined, bool, str]:
    limit = np.where(np.arange(problem.size) < len(KNOTS) - 1, _STEEPEST, _STRONGEST)
    start = np.zeros(problem.size)
    if problem.curvature is not None:
        solution = newton(problem, problem.hessian, start, limit=limit)
    else:
        bounds: list[tuple[float | None, float | None]] = [(-end, end) for end in limit.tolist()]
        solution = lbfgs(problem, start, bounds=bounds, max_iterations=_ITERATIONS, tolerance=1e-6, gain=1e-9)
    log_slope, weights = problem.split(solution.theta)
    values = np.concatenate([[0.0], np.cumsum(np.exp(log_slope) * np.diff(KNOTS))])
    return Refined(np.array(solved.beta), values, weights, *scaler), solved.converged, solved.message


def _compress(logits: FloatArray, y: IntArray, beta: float) -> tuple[Float64, Float64, Float64, Float64]:
    """Return each row's margins in groups (N, G), the label's margin (N,), group sizes (G,), features (N, F).

    The nearest classes stay as they are. Farther ones are grouped in sorted order, a group standing at the
    margin that keeps its probability mass under temperature scaling: exact there, and close nearby because
    a group's members are neighbours in the sorted order.
    """
    n, k = logits.shape
    edges = group_edges(k)
    counts = np.diff(edges).astype(np.float64)
    seen, label, feature = np.empty((n, len(counts))), np.empty(n), np.empty((n, 6))

    def fill(part: slice) -> None:
        rows = look(logits[part], beta)
        label[part] = rows.margin[np.arange(len(rows.top)), y[part]]
        feature[part] = rows.feature
        if len(counts) == k:
            seen[part] = rows.margin
        else:
            seen[part] = _grouped(np.sort(rows.margin, axis=1), edges)

    each(fill, blocks(n, k, _SORTED), events=n * k)
    return seen, label, counts, feature


def _grouped(margin: FloatArray, edges: IntArray) -> FloatArray:
    """Return where each group of sorted margins (N, K) stands, (N, G)."""
    counts = np.diff(edges)
    first = margin[:, edges[:-1]]  # a group's smallest margin, taken out so that the mass cannot underflow
    shifted = margin - np.repeat(first, counts, axis=1)
    mass = np.add.reduceat(np.exp(-shifted), edges[:-1], axis=1)
    return np.asarray(first - np.log(mass / counts))


def group_edges(n_classes: int) -> IntArray:
    """Return where groups begin, and the end: singles first, then 2, 4, 8, … classes a group, four each.

    Examples
    --------
    >>> group_edges(30)[-5:]
    array([23, 24, 26, 28, 30])
    """
    edges, size = list(range(min(n_classes, _EXACT) + 1)), 2
    while edges[-1] < n_classes:
        for _ in range(4):
            if edges[-1] < n_classes:
                edges.append(min(edges[-1] + size, n_classes))
        size *= 2
    return np.array(edges)


def _problem_blocks(
    seen: Float64, label: Float64, counts: Float64, x: Float64, weight: Float64
) -> list[_Block]:
    """Cut rows into blocks of a fixed size: temporaries stay in the cache, and sums are the same anyhow."""
    both = np.concatenate([seen, label[:, None]], axis=1)
    segment = np.minimum(np.searchsorted(KNOTS, both, side="right") - 1, len(KNOTS) - 2)
    log_counts = np.log(counts)
    return [
        _Block(segment[b], both[b] - KNOTS[segment[b]], log_counts, x[b], weight[b])
        for b in blocks(len(both), both.shape[1], _ROWS_EVENTS)
    ]


def _sum_blocks(parts: list[_Block], slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
    """Return the summed NLL and its gradients in the slopes and the features' weights."""
    found = each(lambda block: block(slope, c), parts, events=sum(block.beyond.size for block in parts))
    loss, by_slope, by_feature = zip(*found, strict=True)
    return float(sum(loss)), np.sum(by_slope, axis=0), np.sum(by_feature, axis=0)


def _sum_curvatures(parts: list[_Block], slope: Float64, c: Float64) -> Float64:
    found = each(lambda block: block.curvature(slope, c), parts, events=sum(b.beyond.size for b in parts))
    return np.asarray(np.sum(found, axis=0))


def second_derivatives(by_slope: Any, u: Any, p: Any, pull: Any, x: Any, weight: Any) -> Any:
    """Return the Hessian (J + F, J + F) of Σ_n w_n·(ln Σ_g e^{c_g − u_ng} + u_n,label), u = s(x)·g(margin).

    Parameters
    ----------
    by_slope : array or tensor of shape (N, G + 1, J)
        ∂u/∂ log-slope; the label comes last.
    u : array or tensor of shape (N, G + 1)
    p : array or tensor of shape (N, G)
        Probabilities of the groups, times the weight.
    pull : array or tensor of shape (N, G + 1)
        Derivatives of the weighted NLL in u.
    x : array or tensor of shape (N, F)
    weight : array or tensor of shape (N,)
    """
    seen = by_slope[:, :-1]
    n_rows, n_groups, n_slopes = seen.shape
    flat = seen.reshape(n_rows * n_groups, n_slopes)
    # Of the log-sum: the mean of squares less the square of the mean, row by row.
    mean = (p[:, :, None] * seen).sum(1) / weight[:, None]
    mean_u = (p * u[:, :-1]).sum(1) / weight
    slopes = flat.T @ (flat * p.reshape(-1)[:, None]) - mean.T @ (mean * weight[:, None])
    mixed = ((p * u[:, :-1])[:, :, None] * seen).sum(1) - mean * (mean_u * weight)[:, None]
    features = (p * u[:, :-1] ** 2).sum(1) - mean_u**2 * weight
    # Of u itself, which is exponential in its parameters: its second derivatives are its first ones.
    pulled = (pull[:, :, None] * by_slope).sum(1)
    mixed = (mixed + pulled).T @ x
    features = (features + (pull * u).sum(1))[:, None] * x
    out = np.zeros((n_slopes + x.shape[1],) * 2)
    out[:n_slopes, :n_slopes] = _here(slopes) + np.diag(_here(pulled.sum(0)))
    out[:n_slopes, n_slopes:] = _here(mixed)
    out[n_slopes:, :n_slopes] = out[:n_slopes, n_slopes:].T
    out[n_slopes:, n_slopes:] = _here(x.T @ features)
    return out


def _here(values: Any) -> Float64:
    return values if isinstance(values, np.ndarray) else np.asarray(values.cpu().numpy())


class _Problem:
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
        return theta[: len(KNOTS) - 1], theta[len(KNOTS) - 1 :]

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
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
        scale = np.exp(np.clip(self.x @ c, -WIDEST, WIDEST))
        # d(scale·g)/d log-slope, for the groups of classes and, last, the label: (n, G + 1, J).
        place = np.arange(len(slope))
        cell = self.segment[..., None]
        by_slope = np.where(
            place < cell, np.diff(KNOTS), np.where(place == cell, self.beyond[..., None], 0.0)
        )
        by_slope *= slope * scale[:, None, None]
        u = by_slope.sum(axis=2)
        p = softmax(self.log_counts - u[:, :-1]) * self.weight[:, None]
        pull = np.concatenate([-p, self.weight[:, None]], axis=1)
        return second_derivatives(by_slope, u, p, pull, self.x, self.weight)

    def _to_slopes(self, pull: Float64) -> Float64:
        """Turn a gradient with respect to g into one with respect to the slopes of its segments."""
        n = len(KNOTS) - 1
        cell = self.segment.ravel()
        through = np.bincount(cell, weights=pull.ravel(), minlength=n)
        pull *= self.beyond
        inside = np.bincount(cell, weights=pull.ravel(), minlength=n)
        after = np.concatenate([np.cumsum(through[::-1])[::-1][1:], [0.0]])
        return np.asarray(inside + np.diff(KNOTS) * after)
