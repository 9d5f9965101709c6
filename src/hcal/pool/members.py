"""Three and more classes: fit the members of the pool, weigh them on left-out rows, and join them to one map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hcal.compiled import each
from hcal.methods.folds import deal_folds
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.pool import map as maps
from hcal.pool.map import Curve, Events, PoolMap, Rest, as_array
from hcal.pool.regression import fit_logistic, fit_matrix, fit_shares, fit_temperature, pool_weights

#: How strongly few rows are shrunk. A factor e in temperature, or a weight that differs from an equal share by 1, must
#: gain about this many nats of log-likelihood. The pool needs about this many errors to differ from temperature
#: scaling, and every knot of a curve needs as many again.
CAUTION = 5.0
#: Ridge penalties: of coefficients (in standard deviations of what they multiply), of constants, of class terms and of
#: matrix scaling. The last two are multiplied by K.
RIDGE, CONSTANT_RIDGE, CLASS_RIDGE, MATRIX_RIDGE = 1.0, 0.01, 0.1, 0.125
#: Matrix scaling is a member for up to this many classes, because its K² parameters need many rows.
MATRIX_CLASSES = 32
#: Members are weighed on at most this many scores.
_HELD_SCORES = 4_000_000
FOLDS = 5
_BLOCK = 400_000
#: The number of quantiles at which a curve may change its slope.
HINGES = 8
#: The sharpness of the top if the order of all classes is to stay: then only exact ties share the top.
_EXACT = 1e12


class Held(NamedTuple):
    """What members say of rows that they have not seen, and how many rows they can learn from."""

    scores: Float64  # (J, S, K)
    rows: IntArray  # (S,)
    errors: float  # the weight of the rows whose label is not the top class


def fit_members(x: Float64, y: IntArray, weight: Float64, *, classes: bool) -> tuple[PoolMap, Held]:
    """Fit the members on logits (N, K), and compute what each would say of a row if that row had been left out.

    The members come as a map that still lacks their weights and the last curve. Without ``classes`` a class is told
    from another by its score alone, so the order of all classes is kept.
    """
    n, k = x.shape
    temperature = fit_temperature(x, y, weight, CAUTION)
    beta, sharpness = temperature.beta, 1 / maps.TIE if classes else _EXACT
    cap = float(np.log(k * (max(float(weight.sum()), 1000.0) + 1.0)))
    blocks = row_blocks(x.shape, _BLOCK)

    def margins(rows: slice | IntArray) -> Float64:
        part = x[rows]
        return np.asarray(beta * (part.max(axis=1, keepdims=True) - part))

    # For every row: the classes that share the top, the margin of the second best, the spread, the label's share.
    gap, log_mean, own = np.empty(n), np.empty(n), np.empty(n)

    def describe(b: slice) -> tuple[IntArray, IntArray, Float64]:
        margin = margins(b)
        share = maps.top_shares(margin, sharpness)
        row, top = np.nonzero(share)
        gap[b], log_mean[b] = maps.runner_up(margin)[:, 0], maps.log_mean_margin(margin)[:, 0]
        own[b] = share[np.arange(len(share)), y[b]]
        return row + b.start, top, share[row, top]

    pairs = each(describe, blocks, events=x.size)
    row, top, part = (np.concatenate(column) for column in zip(*pairs, strict=True))
    errors = float(weight @ (1 - own))
    few = 1.0 + (CAUTION * HINGES / (1.0 + errors)) ** 2
    rest, left_out, lost = _fit_rest(
        margins, y, weight * (1 - own), log_mean, sharpness, few, classes=classes
    )

    def odds_of(b: slice) -> Float64:
        margin = margins(b)
        return np.asarray(
            -maps.split_top(rest(margin), maps.top_shares(margin, sharpness))[1][:, 0]
        )

    odds = np.concatenate(each(odds_of, blocks, events=x.size))
    by_odds, by_gap = Bends.of(odds, weight, HINGES), Bends.of(gap, weight, 0)
    design = np.concatenate([np.ones((n, 1)), by_odds.design(odds), by_gap.design(gap)], axis=1)
    ridge = few * np.concatenate([[CONSTANT_RIDGE], np.full(design.shape[1] - 1, RIDGE)])
    terms = np.full(k, few * CLASS_RIDGE * k) if classes else None
    hit = (top == y[row]).astype(np.float64)
    fit = fit_logistic(
        odds[row], design[row], hit, weight[row] * part, ridge, top if classes else None, terms
    )
    half = 1 + HINGES + 1
    events = Events(
        rest=rest,
        by_odds=by_odds.curve(fit.theta[0], fit.theta[1:half]),
        by_gap=by_gap.curve(0.0, fit.theta[half:]),
        bias=fit.terms if classes else np.zeros(k),
    )
    some = np.arange(0, n, -(-n * k // _HELD_SCORES))
    margin = margins(some)
    held = [-np.minimum(margin * (1 + temperature.left_out[some])[:, None], cap)]
    at_top = np.bincount(row, weights=part * fit.left_out, minlength=n)[some, None]
    below, shares = rest(margin), maps.top_shares(margin, sharpness)
    _, here, there = np.intersect1d(some, lost, assume_unique=True, return_indices=True)
    below[here] += left_out[there]
    held.append(maps.join_events(at_top, below - maps.split_top(below, shares)[1], shares))
    matrix = None
    if classes and k <= MATRIX_CLASSES:
        matrix, left_out = fit_matrix(
            -np.minimum(margins(slice(n)), cap), y, weight, some, MATRIX_RIDGE * k
        )
        held.append(left_out)
    fitted = PoolMap(
        beta=as_array(beta), sharpness=as_array(sharpness), cap=as_array(cap), events=events, matrix=matrix,
        weights=np.zeros(3), last=events.by_gap, keep=False,
    )  # fmt: skip
    return fitted, Held(np.stack(held), some, errors)


def _fit_rest(
    margins: Callable[[IntArray], Float64],
    y: IntArray,
    weight: Float64,
    log_mean: Float64,
    sharpness: float,
    few: float,
    *,
    classes: bool,
) -> tuple[Rest, Float64, IntArray]:
    """Fit the classes below the top on the rows whose label is not the top class; ``weight`` (N,) is 0 elsewhere.

    Beside the fit: what is added to the scores of each such row if that row is left out, and the rows.
    """
    mean = float(log_mean.mean())
    deviation = float(log_mean.std()) + 1e-6
    standard = (log_mean - mean) / deviation
    spread = np.array([mean, deviation, *np.quantile(standard, [0.001, 0.999])])
    lost = np.flatnonzero(weight > 0)
    k = margins(lost[:0]).shape[1]
    every = (
        -(-len(lost) * k // _HELD_SCORES) or 1
    )  # rows are ordered by content, so this is a systematic sample
    lost, weight = lost[::every], weight * every
    margin = margins(lost)
    if len(lost) == 0:
        return (
            Rest(slopes=np.eye(1, 2 + len(maps.BENDS))[0], spread=spread, bias=np.zeros(k)),
            np.zeros((0, k)),
            lost,
        )
    with np.errstate(divide="ignore"):
        log_mass = np.log(1 - maps.top_shares(margin, sharpness))
    bends = np.array([0.0, *maps.BENDS] if classes else [0.0])[:, None]
    basis = np.empty((len(lost), len(bends) + classes, k))
    hinges = np.subtract(margin[:, None], bends, out=basis[:, : len(bends)])
    np.maximum(hinges, 0.0, out=hinges)
    if classes:
        basis[:, -1] = margin * np.clip(standard[lost], *spread[2:])[:, None]
    ridge = few * CLASS_RIDGE * k if classes else np.inf
    found = fit_shares(basis, log_mass, y[lost], weight[lost], few * RIDGE, ridge)
    slopes = np.zeros(2 + len(maps.BENDS))
    slopes[: len(found.slopes)] = found.slopes
    if not classes:
        slopes[0] = max(slopes[0], 0.0)
    return Rest(slopes=slopes, spread=spread, bias=found.bias * classes), found.left_out, lost


class Bends(NamedTuple):
    """The range and the knots of a curve, from the distribution of its argument."""

    low: float
    high: float
    knots: Float64
    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Float64, weight: Float64, hinges: int) -> Bends:
        """Return knots at quantiles of values (N,), and the range."""
        order = np.argsort(values, kind="stable")
        before = np.cumsum(weight[order]) - 0.5 * weight[order]
        at = np.concatenate([[0.001], np.linspace(0.03, 0.97, hinges), [0.999]]) * float(
            weight.sum()
        )
        low, *knots, high = np.interp(at, before, values[order])
        mean = float(np.average(values, weights=weight))
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weight))) + 1e-6
        return cls(float(low), float(high), np.array(knots), mean, deviation)

    def design(self, values: Float64) -> Float64:
        """Return the columns (N, 1 + H) of the regression that fits the curve, in standard deviations."""
        inside = np.clip(values, self.low, self.high)[:, None]
        return (
            np.concatenate([inside - self.mean, np.maximum(inside - self.knots, 0.0)], axis=1)
            / self.deviation
        )

    def curve(self, constant: float, weights: Float64) -> Curve:
        """Return the curve of fitted weights (1 + H,)."""
        own = weights / self.deviation
        return Curve(
            low=as_array(self.low),
            high=as_array(self.high),
            knots=self.knots,
            weights=np.concatenate([[constant - own[0] * self.mean], own]),
        )


def held_by_groups(
    x: Float64, y: IntArray, weight: Float64, groups: IntArray, *, classes: bool
) -> Float64:
    """Return the scores (J, N, K) of members that were fitted without the fold of a row, which holds its group."""
    fold, parts = deal_folds(x, FOLDS, groups), []
    for number in range(int(fold.max()) + 1):
        inside = fold != number
        members = fit_members(x[inside], y[inside], weight[inside], classes=classes)[0]
        parts.append(np.stack(members.members(*members.margins(x[~inside]))))
    return np.concatenate(parts, axis=1)[:, np.argsort(np.argsort(fold, kind="stable"))]


def doubt_of(errors: float) -> float:
    """Return how far the pool is shrunk to temperature scaling: 1 without errors to learn from, near 0 with many.

    >>> [round(doubt_of(errors), 2) for errors in (0, 5, 50)]
    [1.0, 0.5, 0.01]
    """
    return 1.0 / (1.0 + (errors / CAUTION) ** 2)


def hold(n_members: int, errors: float) -> tuple[Float64, float]:
    """Return the weights that members are shrunk to, and the ridge penalty that does it.

    >>> center, ridge = hold(2, errors=5.0)
    >>> center, round(ridge, 6)
    (array([0.75, 0.25]), 10.0)
    """
    doubt = doubt_of(errors)
    center = np.full(n_members, (1.0 - doubt) / n_members)
    center[0] += doubt
    return center, CAUTION / (1.0 - doubt + 1e-9)


class Pooled(NamedTuple):
    """The whole map, and what held-out rows say of changed predictions."""

    map: PoolMap
    accuracy: tuple[
        float, float
    ]  # of the predictions as they are, and as the pool would change them
    proven: bool  # whether changing them is proven to help


def fit_pool(
    members: PoolMap, held: Held, x: Float64, y: IntArray, weight: Float64, keep: bool | None
) -> Pooled:
    """Weigh the members, test whether predictions should change, and fit the last curve.

    ``keep``: whether the predicted classes stay; None lets the test decide.
    """
    x, y, weight = x[held.rows], y[held.rows], weight[held.rows]
    weights = np.zeros(3)
    weights[: len(held.scores)] = pool_weights(
        held.scores, y, weight, *hold(len(held.scores), held.errors)
    )
    scores = np.tensordot(weights[: len(held.scores)], held.scores, 1)
    kept, free = x.argmax(axis=1) == y, scores.argmax(axis=1) == y
    # McNemar's test at three deviations: without a difference, a row that only one gets right is a fair coin.
    gain = float(weight @ free) - float(weight @ kept)
    proven = bool(gain > 3.0 * np.sqrt(float(weight**2 @ (free != kept)) + 1.0))
    keep = not proven if keep is None else keep
    shares = members.margins(x)[1]
    if not keep:
        shares = maps.top_shares(scores.max(axis=1, keepdims=True) - scores, members.sharpness)
    top, rest = maps.split_top(scores, shares)
    last = last_curve(
        (top - rest)[:, 0], shares[np.arange(len(y)), y], weight, doubt_of(held.errors)
    )
    before, after = (float(np.average(hits, weights=weight)) for hits in (kept, free))
    return Pooled(replace(members, weights=weights, last=last, keep=keep), (before, after), proven)


def last_curve(odds: Float64, hit: Float64, weight: Float64, doubt: float) -> Curve:
    """Fit a correction of the pool's log-odds of the top (N,), scaled by what predicts left-out rows best."""
    bends = Bends.of(odds, weight, HINGES)
    design = np.concatenate([np.ones((len(odds), 1)), bends.design(odds)], axis=1)
    ridge = np.concatenate([[CONSTANT_RIDGE], np.full(design.shape[1] - 1, RIDGE)])
    fit = fit_logistic(odds, design, hit, weight, ridge)
    share = fit_logistic(
        odds, (fit.left_out - odds)[:, None], hit, weight, np.array([RIDGE])
    ).theta[0]
    theta = (1.0 - doubt) * max(share, 0.0) * fit.theta
    return bends.curve(theta[0], theta[1:])
