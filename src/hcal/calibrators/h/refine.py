"""Stage 1, *refine*: an order-preserving map with a scale of its own for every row.

margins m_k → s(x)·g(m_k): g continuous, increasing, piecewise linear and shared by all rows and classes;
s(x) > 0 log-linear in the row's features. Fitted by NLL. Temperature scaling is the case g = identity,
s = 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators.h.refine_problem import KNOTS as KNOTS
from hcal.calibrators.h.refine_problem import WIDEST as WIDEST
from hcal.calibrators.h.refine_problem import RefineProblem, problem_blocks, sum_blocks, sum_curvatures
from hcal.calibrators.h.rows import Float64, Rows, Scaler, fit_scaler, look
from hcal.calibrators.h.temperature import careful_temperature
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.numerics import FloatArray, IntArray, row_blocks
from hcal.runtime.threads import each
from hcal.solvers.lbfgs import lbfgs
from hcal.solvers.newton import newton
from hcal.solvers.rows import FitRows
from hcal.solvers.temperature import Temperature, temperature_of

#: This many nearest classes count one by one while fitting; those beyond in groups of 2, 4, 8, …
_EXACT = 24
_ITERATIONS = 100
#: From this many scores on stage 1 is solved to the end by Newton, alike on every engine; below, quasi-Newton
#: steps end early, and results/ speak of that. See docs/decisions/195-solved-to-the-end.md.
EXACT_EVENTS = 1_000_000
#: Entries of a block of rows while they are sorted.
_SORTED = 500_000
#: |ln| of a slope of g, and of what a feature may add to a row's scale: beyond, numbers overflow.
_STEEPEST, _STRONGEST = 7.0, 3.0


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
    """Return refined margins (N, K) and standardised features (N, F) of rows at the stage's temperature."""
    x = stage.scaler()(rows.feature)
    margin = curve(stage.values, rows.margin)
    scale = np.exp(np.clip(x @ stage.weights, -WIDEST, WIDEST))
    margin *= scale.astype(margin.dtype)[:, None]
    return margin, x


def apply_refined(stage: Refined, logits: FloatArray) -> tuple[IntArray, FloatArray, Float64]:
    """Return top classes (N,), refined margins (N, K) and standardised features (N, F) of logits."""
    rows = look(logits, float(stage.beta))
    return rows.top, *refine(stage, rows)


def curve(values: Float64, margin: FloatArray) -> FloatArray:
    """Return the piecewise linear g through (KNOTS, values) at margins of any shape.

    In float64 segment by segment, which cannot invert a pair; in float32 as a sum of hinges, which is
    several times faster and good to its last digits.

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


def fit_refined(logits: Logits, y: IntArray, weight: Float64) -> tuple[Refined, bool, str]:
    """Fit the first stage by NLL; beside it, whether its temperature has an optimum, and a sentence if not.

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
    parts = problem_blocks(seen, label, counts, scaler(feature), weight)
    curvature = partial(sum_curvatures, parts) if logits.size >= EXACT_EVENTS else None
    problem = RefineProblem(
        partial(sum_blocks, parts), float(weight.sum()), float(weight @ (label > 0)), curvature
    )
    return _solve(problem, solved, scaler)


def _fit_there(
    logits: DeviceRows, y: IntArray, weight: Float64, solved: Temperature
) -> tuple[Refined, bool, str]:
    from hcal.calibrators.h._tensors import RefinedSums

    sums = RefinedSums(logits, y, weight, solved.beta)
    feature = sums.feature.cpu().numpy()
    scaler = fit_scaler(feature, weight)
    sums.standardise(scaler(feature))
    curvature = sums.curvature if logits.size >= EXACT_EVENTS else None
    return _solve(RefineProblem(sums, float(weight.sum()), sums.errors, curvature), solved, scaler)


def fit_refined_rows(rows: FitRows, logits: FloatArray, weight: Float64) -> tuple[Refined, bool, str]:
    """Fit the first stage as :func:`fit_refined` does, on rows that are not in memory.

    ``logits`` (S, K) and ``weight`` (S,) are a sample of them: the range of the features is what it shows.
    """
    solved = temperature_of(rows)
    feature = _compress(logits, np.zeros(len(logits), dtype=np.int64), solved.beta)[3]
    scaler = fit_scaler(feature, weight)
    (lost,) = rows.sum(_lost)

    def sums(slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
        value, by_slope, by_feature = rows.sum(partial(_sum_rows, solved.beta, scaler, slope, c))
        return value, by_slope, by_feature

    def curvature(slope: Float64, c: Float64) -> Float64:
        return np.asarray(rows.sum(partial(_curve_rows, solved.beta, scaler, slope, c))[0])

    # The rule of fit_refined: rows in memory and by blocks must end at the same place.
    exact = rows.total * len(rows.mass) >= EXACT_EVENTS
    return _solve(RefineProblem(sums, rows.total, lost, curvature if exact else None), solved, scaler)


def _lost(logits: FloatArray, y: IntArray, weight: Float64) -> tuple[float]:
    return (float(weight @ (logits[np.arange(len(y)), y] < logits.max(axis=1))),)


def _sum_rows(
    beta: float, scaler: Scaler, slope: Float64, c: Float64, logits: FloatArray, y: IntArray, weight: Float64
) -> tuple[float, Float64, Float64]:
    return sum_blocks(_blocks_of(beta, scaler, logits, y, weight), slope, c)


def _curve_rows(
    beta: float, scaler: Scaler, slope: Float64, c: Float64, logits: FloatArray, y: IntArray, weight: Float64
) -> tuple[Float64]:
    return (sum_curvatures(_blocks_of(beta, scaler, logits, y, weight), slope, c),)


def _blocks_of(beta: float, scaler: Scaler, logits: FloatArray, y: IntArray, weight: Float64) -> Any:
    seen, label, counts, feature = _compress(logits, y, beta)
    return problem_blocks(seen, label, counts, scaler(feature), weight)


def _solve(problem: RefineProblem, solved: Temperature, scaler: Scaler) -> tuple[Refined, bool, str]:
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

    each(fill, row_blocks((n, k), _SORTED), events=n * k)
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
