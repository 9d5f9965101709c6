"""The default for three and more classes, from beginning to end."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from hcal.numerics import Float64
from hcal.pool.map import TIE, Margins, PoolMap, TopCurve, top_odds
from hcal.pool.members import (
    RIDGE,
    CurveBasis,
    Matrix,
    TemperatureMember,
    TopVersusRest,
    shrinkage_of,
)
from hcal.pool.weighing import Member, Shrinkage, left_out_scores, weigh, weighing_rows
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic

Preserve = Literal["auto", "accuracy", "order"] | None

#: Matrix scaling is a member for up to this many classes, because its K² parameters need many rows.
MATRIX_CLASSES = 32
#: How often the last curve may change its slope.
KNOTS = 12
#: The predicted class may change if that is right more often than wrong by so many standard deviations.
_DEVIATIONS = 3.0
#: The sharpness of the top if the order of all classes is to stay: then only exact ties share the top.
_EXACT = 1e12


class Pool(NamedTuple):
    """What was fitted, and what left-out rows say of the predicted classes."""

    map: PoolMap
    trial: Trial


def fit_pool(rows: Rows, preserve: Preserve) -> Pool:
    """Fit the members, weigh them on rows left out of their fits, correct the top, and keep the prediction."""
    members = fit_members(rows, preserve)
    margins = members[0].margins
    shrinkage = shrinkage_of(rows, margins)

    left_out = left_out_scores(members, rows, partial(fit_members, preserve=preserve))
    seen = rows[weighing_rows(rows)]
    weights = weigh(left_out, seen, shrinkage)
    scores = left_out @ weights

    trial = try_predictions(scores, seen)
    keep = trial.stays(preserve)
    top = TopScores.of(scores, seen, margins, keep=keep)
    return Pool(pool_map(members, weights, correct_top(top, shrinkage), keep=keep), trial)


def fit_members(rows: Rows, preserve: Preserve) -> list[Member]:
    """Fit temperature scaling, top-versus-rest and, up to 32 classes, matrix scaling.

    If the order of all classes is to stay, a class is told from another by its score alone.
    """
    ordered = preserve == "order"
    temperature = TemperatureMember(sharpness=_EXACT if ordered else 1 / TIE).fit(rows)
    margins = temperature.margins
    top = TopVersusRest(margins, shrinkage_of(rows, margins), bent=not ordered).fit(rows)
    if ordered or rows.n_classes > MATRIX_CLASSES:
        return [temperature, top]
    return [temperature, top, Matrix(margins).fit(rows)]


class Trial(NamedTuple):
    """The accuracy on left-out rows if predicted classes stay, and if the pool may change them."""

    before: float
    after: float
    proven: bool  # whether changing them is proven to help

    def stays(self, preserve: Preserve) -> bool:
        """Return whether the predicted classes stay."""
        return preserve is not None and (preserve != "auto" or not self.proven)


def try_predictions(scores: Float64, rows: Rows) -> Trial:
    """Compare the predicted classes with those of left-out scores (N, K), by McNemar's test.

    Without a difference, a row that only one of the two gets right is a fair coin.
    """
    weight = rows.weights
    before = rows.x.argmax(axis=1) == rows.labels
    after = scores.argmax(axis=1) == rows.labels
    gain = float(weight @ after) - float(weight @ before)
    deviation = np.sqrt(float(weight**2 @ (after != before)) + 1.0)
    return Trial(
        before=float(np.average(before, weights=weight)),
        after=float(np.average(after, weights=weight)),
        proven=bool(gain > _DEVIATIONS * deviation),
    )


class TopScores(NamedTuple):
    """The pool's log-odds of the top of each row, what the row looks like, and how far its label is the top."""

    odds: Float64  # (N,)
    spread: Float64  # (N,)
    hit: Float64  # (N,)
    weight: Float64  # (N,)

    @classmethod
    def of(cls, scores: Float64, rows: Rows, margins: Margins, *, keep: bool) -> TopScores:
        """Return them for left-out scores (N, K); the top is that of the rows' own scores if it stays."""
        margin = margins(rows.x)
        top = margin if keep else scores.max(axis=1, keepdims=True) - scores
        shares = margins.shares(top)
        return cls(
            odds=top_odds(scores, shares)[:, 0],
            spread=margins.spread_of(margin)[:, 0],
            hit=shares[np.arange(len(rows)), rows.labels],
            weight=rows.weights,
        )


def correct_top(top: TopScores, shrinkage: Shrinkage) -> TopCurve:
    """Fit what is added to the log-odds of the top: a curve of them, and a multiple of the spread of the row.

    It counts as far as it helps rows that were left out of its fit, and as errors allow.
    """
    basis = CurveBasis.of(top.odds, top.weight, KNOTS)
    fitted = fit_logistic(
        np.append(basis.design(top.odds), top.spread[:, None], axis=1),
        top.hit,
        top.weight,
        ridge=np.append(basis.ridge(), RIDGE),
        offset=top.odds,
    )
    left_out_correction = (fitted.left_out - top.odds)[:, None]
    helpful = fit_logistic(
        left_out_correction, top.hit, top.weight, ridge=RIDGE, offset=top.odds
    ).theta[0]
    theta = shrinkage.share(KNOTS) * max(helpful, 0.0) * fitted.theta
    return TopCurve(curve=basis.curve(theta[:-1]), by_spread=np.array(theta[-1]))


def pool_map(members: list[Member], weights: Float64, last: TopCurve, *, keep: bool) -> PoolMap:
    """Join what was fitted to the map that predicts."""
    matrix = None
    for member in members:
        if isinstance(member, TopVersusRest):
            top = member.map
        elif isinstance(member, Matrix):
            matrix = member.matrix
    return PoolMap(
        margins=members[0].margins,
        top=top,
        matrix=matrix,
        weights=np.append(weights, np.zeros(3 - len(weights))),
        last=last,
        keep=keep,
    )
