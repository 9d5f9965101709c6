"""Empirical Bayes for segments: how much the segments differ, and the most probable correction of each.

The common calibrator gives each row the log-odds x_k = ln p_k − ln p_0 of class k against class 0. Segment s has

    x_k + slope_s · (x_k − mean of x_k) + term_sk,

so ``slope`` is the deviation of the inverse temperature from 1, and the terms are the intercepts of the classes. Both
are normal deviations from a shift that all segments share, and the shift is one more draw from the same normal:

    slope_s ~ N(shift, σ²),   term_s ~ N(shift, τ² I) as differences of K class terms,   shift ~ N(0, the same).

The shift is there because a calibrator of a mixture of segments is flatter than each of them. The two deviations σ
and τ are those of greatest evidence, the likelihood with all corrections integrated out (Laplace's approximation;
MacKay: Bayesian Interpolation, Neural Computation 1992). Half of the prior probability is that segments do not differ
at all; the other half is spread evenly over the pairs of deviations that are tried. The corrections are multiplied by
the posterior probability that segments differ, so that a chance finding moves little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logsumexp

from hcal.numerics import Float64, IntArray, row_blocks, run_starts
from hcal.rows import Rows

#: The deviations that are tried: 0, and powers of two. A factor of two changes an evidence near its top by little.
TERM_DEVIATIONS = (0.0, *(2.0**power for power in range(-7, 4)))
SLOPE_DEVIATIONS = (0.0, *(2.0**power for power in range(-7, 2)))
#: Where the search begins among them: 1/4 and 1/8.
_START = (6, 5)
#: With more classes than this, segments differ in their temperature alone.
MOST_CLASSES_WITH_TERMS = 32
#: Newton's method ends when a step is expected to gain less than this many nats: in the search, and at the end.
_ROUGH, _EXACT = 1e-5, 1e-16
_MOST_STEPS, _MOST_HALVINGS = 100, 40
#: Rows are summed in blocks of about this many numbers, which fit in the cache.
_BLOCK_NUMBERS = 2**17
#: The number of a row's segment if it has none of those that were fitted.
UNKNOWN = -1


@dataclass(frozen=True)
class Corrections:
    """What the segments were found to be.

    Attributes
    ----------
    slopes : array of shape (S,)
        Factors of ln p, not negative.
    offsets : array of shape (S, K), or None
        Added to slope · ln p; None where segments differ in their temperature alone.
    slope_deviation, term_deviation : float
        By how much slopes and class terms of segments deviate from what they share.
    differ : float
        The probability that the segments differ at all.
    """

    slopes: Float64
    offsets: Float64 | None
    slope_deviation: float
    term_deviation: float
    differ: float


@dataclass(frozen=True)
class _SortedRows:
    """Rows sorted by segment, with log-odds of J = K − 1 classes against class 0; arrays are (J, N) or (N,)."""

    odds: Float64
    centred: Float64
    label: IntArray
    weight: Float64
    code: IntArray
    n_segments: int
    with_terms: bool

    @property
    def n_parameters(self) -> int:
        """The parameters P of a segment: a slope, and J terms where there are any."""
        return 1 + (len(self.odds) if self.with_terms else 0)


@dataclass(frozen=True)
class _Sums:
    """Of every segment: log-likelihood (S,), gradient (S, P) and negative second derivative (S, P, P)."""

    value: Float64
    gradient: Float64
    curvature: Float64


@dataclass(frozen=True)
class _Fit:
    """Most probable corrections (S, P) under two deviations, and the evidence of these."""

    theta: Float64
    evidence: float


def shrink(rows: Rows, log_probs: Float64, n_segments: int) -> Corrections:
    """Return the corrections of the segments 0..S−1 of rows that the common calibrator did not see.

    Parameters
    ----------
    rows : Rows
        With labels and segments.
    log_probs : array of shape (N, K)
        Of the common calibrator.
    n_segments : int

    Examples
    --------
    >>> code = np.repeat([0, 1], 500)
    >>> y = np.tile([0, 1, 1, 1], 250)
    >>> y[500:] = 1 - y[500:]
    >>> from hcal.row_segments import Segments
    >>> rows = Rows.of(np.zeros((1000, 2)), y, input="logits", by=Segments(code, ("a", "b")))
    >>> shrink(rows, np.log(np.full((1000, 2), 0.5)), 2).offsets.round(1)
    array([[-0.5,  0.5],
           [ 0.5, -0.5]])
    """
    data, means = _data(rows, log_probs, n_segments)
    place, fits = _search(data)
    slope_deviation = SLOPE_DEVIATIONS[place[1]]
    term_deviation = TERM_DEVIATIONS[place[0]]
    best = _most_probable(data, term_deviation, slope_deviation, fits[place].theta, _EXACT)
    differ = _probability_of_difference(fits, with_terms=data.with_terms)
    slope = best.theta[:, 0]
    terms = best.theta[:, 1:]
    if (slope < -1).any():
        terms = np.where((slope < -1)[:, None], _terms_without_slope(data, term_deviation), terms)
        slope = np.maximum(slope, -1.0)

    slope = differ * slope
    terms = differ * terms
    offsets = None
    if data.with_terms:
        offsets = np.zeros((n_segments, log_probs.shape[1]))
        offsets[:, 1:] = terms - slope[:, None] * means
        offsets -= offsets.mean(axis=1, keepdims=True)
    return Corrections(1 + slope, offsets, slope_deviation, term_deviation, differ)


def _data(rows: Rows, log_probs: Float64, n_segments: int) -> tuple[_SortedRows, Float64]:
    """Return the rows sorted by segment, and the mean log-odds (J,) of each class."""
    assert rows.by is not None
    order = np.argsort(rows.by.codes, kind="stable")
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    odds = np.ascontiguousarray((log_probs[order, 1:] - log_probs[order, :1]).T)
    with_terms = rows.n_classes <= MOST_CLASSES_WITH_TERMS
    means = odds @ weight[order] / weight.sum() if with_terms else np.zeros(len(odds))
    data = _SortedRows(
        odds=odds,
        centred=odds - means[:, None],
        label=rows.labels[order],
        weight=weight[order],
        code=rows.by.codes[order],
        n_segments=n_segments,
        with_terms=with_terms,
    )
    return data, means


# -- the two deviations ---------------------------------------------------------------------------


def _search(data: _SortedRows) -> tuple[tuple[int, int], dict[tuple[int, int], _Fit]]:
    """Climb the evidence from neighbour to neighbour; return the best place in the two lists, and all fits.

    For small deviations the evidence is flat, so the places at 0 are looked at last.
    """
    fits: dict[tuple[int, int], _Fit] = {}
    place = _START if data.with_terms else (0, _START[1])
    while True:
        near = [place, *_neighbours(place, data.with_terms)]
        for spot in near:
            _add_fit(fits, data, spot, fits[place].theta if place in fits else None)
        best = max(near, key=lambda spot: fits[spot].evidence)
        if best == place:
            break
        place = best
    for spot in ((place[0], 0), (0, place[1]), (0, 0)):
        _add_fit(fits, data, spot, None)
        if fits[spot].evidence >= fits[place].evidence:
            place = spot
    return place, fits


def _probability_of_difference(fits: dict[tuple[int, int], _Fit], *, with_terms: bool) -> float:
    """Return the posterior probability that segments differ; pairs that the climb did not reach count as nothing."""
    n_pairs = (len(TERM_DEVIATIONS) if with_terms else 1) * len(SLOPE_DEVIATIONS) - 1
    gains = [fit.evidence - fits[0, 0].evidence for spot, fit in fits.items() if spot != (0, 0)]
    return float(expit(logsumexp(gains) - np.log(n_pairs)))


def _neighbours(place: tuple[int, int], with_terms: bool) -> list[tuple[int, int]]:
    term, slope = place
    spots = [(term, slope - 1), (term, slope + 1)]
    if with_terms:
        spots += [(term - 1, slope), (term + 1, slope)]
    most = (len(TERM_DEVIATIONS), len(SLOPE_DEVIATIONS))
    return [spot for spot in spots if 0 <= spot[0] < most[0] and 0 <= spot[1] < most[1]]


def _add_fit(
    fits: dict[tuple[int, int], _Fit],
    data: _SortedRows,
    spot: tuple[int, int],
    start: Float64 | None,
) -> None:
    if spot not in fits:
        fits[spot] = _most_probable(
            data, TERM_DEVIATIONS[spot[0]], SLOPE_DEVIATIONS[spot[1]], start, _ROUGH
        )


# -- the corrections under two deviations ---------------------------------------------------------


@dataclass(frozen=True)
class _Prior:
    """The parameters that are free (A of P), and the precision (A, A) of their deviations."""

    free: list[int]
    precision: Float64

    def deviations(self, theta: Float64) -> Float64:
        """Return how far the free parameters (S, A) are from what the segments share."""
        free = theta[:, self.free]
        return free - self._shift(free)

    def penalty(self, theta: Float64) -> float:
        """Return minus the logarithm of the prior density, up to its constant."""
        free = theta[:, self.free]
        shift = self._shift(free)
        from_shift = free - shift
        spread = np.einsum("sa,ab,sb->", from_shift, self.precision, from_shift)
        return 0.5 * float(spread + shift @ self.precision @ shift)

    @staticmethod
    def _shift(free: Float64) -> Float64:
        # The shift itself is drawn around 0, as if one more segment were exactly like the common map.
        return np.asarray(free.sum(axis=0) / (len(free) + 1))


def _prior(data: _SortedRows, term_deviation: float, slope_deviation: float) -> _Prior:
    n_terms = data.n_parameters - 1
    precision = np.zeros((data.n_parameters, data.n_parameters))
    free = []
    if slope_deviation > 0:
        free.append(0)
        precision[0, 0] = 1 / slope_deviation**2
    if term_deviation > 0 and n_terms:
        free += list(range(1, data.n_parameters))
        # Differences of K independent class terms: no class is special.
        precision[1:, 1:] = (np.eye(n_terms) - 1 / (n_terms + 1)) / term_deviation**2
    return _Prior(free, precision[np.ix_(free, free)])


def _most_probable(
    data: _SortedRows,
    term_deviation: float,
    slope_deviation: float,
    start: Float64 | None,
    tolerance: float,
) -> _Fit:
    """Return the corrections of greatest posterior density by Newton's method, all segments at once."""
    prior = _prior(data, term_deviation, slope_deviation)
    theta = np.zeros((data.n_segments, data.n_parameters))
    if not prior.free:
        return _Fit(theta, float(_sums(data, theta).value.sum()))
    if start is not None:
        theta[:, prior.free] = start[:, prior.free]
    sums = _sums(data, theta)
    value = float(sums.value.sum()) - prior.penalty(theta)
    for _ in range(_MOST_STEPS):
        step, expected = _newton_step(data, sums, prior, theta)
        if expected < tolerance * max(1.0, abs(value)):
            break
        for halving in range(_MOST_HALVINGS):
            moved = theta.copy()
            moved[:, prior.free] += step * 0.5**halving
            moved_sums = _sums(data, moved)
            moved_value = float(moved_sums.value.sum()) - prior.penalty(moved)
            if moved_value >= value:
                break
        else:
            break  # rounding: no step gains anything
        theta = moved
        sums = moved_sums
        value = moved_value
    return _Fit(theta, value + _log_volume(data, sums, prior))


def _newton_step(
    data: _SortedRows, sums: _Sums, prior: _Prior, theta: Float64
) -> tuple[Float64, float]:
    """Return Newton's step (S, A) and the gain that it is expected to bring.

    The shift couples the segments. Given a step of the shift, segments are solved one by one; the step of the shift
    then solves one small system.
    """
    precision = prior.precision
    residual = sums.gradient[:, prior.free] - prior.deviations(theta) @ precision
    solved, pulled = _solve(sums, prior, residual)
    coupling = (data.n_segments + 1) * np.eye(len(precision)) - pulled.sum(axis=0)
    step = solved + pulled @ np.linalg.solve(coupling, solved.sum(axis=0))
    return step, 0.5 * float((residual * step).sum())


def _solve(sums: _Sums, prior: _Prior, residual: Float64) -> tuple[Float64, Float64]:
    """Return (H + Λ)⁻¹ residual (S, A) and (H + Λ)⁻¹ Λ (S, A, A) of every segment."""
    curved = _curved(sums, prior)
    spread = np.broadcast_to(prior.precision, curved.shape)
    both = np.linalg.solve(curved, np.concatenate([residual[:, :, None], spread], axis=2))
    return both[:, :, 0], both[:, :, 1:]


def _curved(sums: _Sums, prior: _Prior) -> Float64:
    return np.asarray(sums.curvature[:, prior.free][:, :, prior.free] + prior.precision)


def _log_volume(data: _SortedRows, sums: _Sums, prior: _Prior) -> float:
    """Return the logarithm of the posterior's volume relative to the prior's (Laplace)."""
    n_segments = data.n_segments
    residual = np.zeros((n_segments, len(prior.free)))
    _, pulled = _solve(sums, prior, residual)
    of_shift = (n_segments + 1) * prior.precision - prior.precision @ pulled.sum(axis=0)
    before = (n_segments + 1) * np.linalg.slogdet(prior.precision)[1]
    after = np.linalg.slogdet(_curved(sums, prior))[1].sum() + np.linalg.slogdet(of_shift)[1]
    return 0.5 * float(before - after)


def _terms_without_slope(data: _SortedRows, term_deviation: float) -> Float64:
    """Return the class terms (S, J) where the slope of a segment is 0, so that its rows all get the same odds."""
    flat = _SortedRows(
        odds=data.odds - data.centred,
        centred=np.zeros_like(data.centred),
        label=data.label,
        weight=data.weight,
        code=data.code,
        n_segments=data.n_segments,
        with_terms=data.with_terms,
    )
    return _most_probable(flat, term_deviation, 0.0, None, _EXACT).theta[:, 1:]


# -- sums over rows -------------------------------------------------------------------------------


def _sums(data: _SortedRows, theta: Float64) -> _Sums:
    """Return the log-likelihood of every segment and its derivatives at corrections (S, P)."""
    n_terms = data.n_parameters - 1
    pairs = [(j, k) for j in range(n_terms) for k in range(j, n_terms)]
    n_columns = 3 + 2 * n_terms + len(pairs)
    totals = np.zeros((data.n_segments, n_columns))
    for rows in row_blocks((len(data.label), n_columns + 4 * len(data.odds)), _BLOCK_NUMBERS):
        columns = _columns(data, theta, rows, pairs)
        starts = run_starts(data.code[rows])
        totals[data.code[rows][starts]] += np.add.reduceat(columns, starts, axis=1).T

    curvature = np.zeros((data.n_segments, data.n_parameters, data.n_parameters))
    curvature[:, 0, 0] = totals[:, 2 + n_terms]
    for j in range(n_terms):
        curvature[:, 0, 1 + j] = curvature[:, 1 + j, 0] = totals[:, 3 + n_terms + j]
    for number, (j, k) in enumerate(pairs):
        mixed = totals[:, 3 + 2 * n_terms + number]
        curvature[:, 1 + j, 1 + k] = curvature[:, 1 + k, 1 + j] = mixed
    return _Sums(totals[:, 0], totals[:, 1 : 2 + n_terms], curvature)


def _columns(
    data: _SortedRows, theta: Float64, rows: slice, pairs: list[tuple[int, int]]
) -> Float64:
    """Return what each row adds to the sums, (columns, rows): value, gradient, second derivatives."""
    code = data.code[rows]
    label = data.label[rows]
    weight = data.weight[rows]
    centred = data.centred[:, rows]
    scores = data.odds[:, rows] + theta[code, 0] * centred
    if data.with_terms:
        scores += theta[code, 1:].T

    # Class 0 has the score 0, so the largest score counts from there.
    top = np.maximum(scores.max(axis=0), 0.0)
    exponentials = np.exp(scores - top)
    total = np.exp(-top) + exponentials.sum(axis=0)
    probs = exponentials / total
    mean = (probs * centred).sum(axis=0)

    columns = [
        weight * (_of_label(scores, label) - top - np.log(total)),
        weight * (_of_label(centred, label) - mean),
    ]
    weighted = weight * probs
    around = centred - mean
    if data.with_terms:
        columns += [weight * (label == j + 1) - weighted[j] for j in range(len(probs))]
    columns.append((weighted * around**2).sum(axis=0) + weight * mean**2 * (1 - probs.sum(axis=0)))
    if data.with_terms:
        columns += list(weighted * around)
        columns += [weighted[j] * ((j == k) - probs[k]) for j, k in pairs]
    return np.stack(columns)


def _of_label(values: Float64, label: IntArray) -> Float64:
    """Return the value (N,) of the label's class among values (J, N) of the classes 1..J; that of class 0 is 0."""
    chosen = np.take_along_axis(values, np.maximum(label - 1, 0)[None, :], axis=0)[0]
    return np.where(label > 0, chosen, 0.0)
