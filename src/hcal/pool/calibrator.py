"""PooledCalibrator, the default; :func:`fit_pool` is its fit for three and more classes from beginning to end."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import expit

from hcal.methods.base import CalibrationWarning, Calibrator, Fitted, Preserves
from hcal.methods.parameters import parameters
from hcal.numerics import Float64
from hcal.pool.map import (
    TIE,
    BinaryPoolMap,
    Curve,
    Margins,
    PoolMap,
    TopCurve,
    TopVersusRestMap,
    top_odds,
)
from hcal.pool.members import (
    RIDGE,
    CurveBasis,
    Matrix,
    Member,
    Shrinkage,
    TemperatureMember,
    TopVersusRest,
    left_out_scores,
    shrinkage_of,
    weigh,
    weighing_rows,
)
from hcal.pool.two_classes import fit_binary_pool
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic
from hcal.text import JsonObject

MEMBERS = ("temperature", "top-versus-rest", "matrix")
BINARY_MEMBERS = ("temperature", "quadratic", "spline")
#: Which predictions stay.
Preserve = Literal["auto", "accuracy", "order"] | None
#: Matrix scaling is a member for up to this many classes, because its K² parameters need many rows.
MATRIX_CLASSES = 32
#: How often the last curve may change its slope.
KNOTS = 12
#: The predicted class may change if that is right more often than wrong by so many standard deviations.
_DEVIATIONS = 3.0
#: The sharpness of the top if the order of all classes is to stay: then only exact ties share the top.
_EXACT = 1e12


@parameters
class PooledCalibrator(Calibrator):
    """The default: a weighted product of three calibrators, and one correction of how sure the top class is.

    The members are temperature scaling, a top-versus-rest model and (up to 32 classes) matrix scaling. Their weights
    maximise the leave-one-out likelihood. A curve then corrects the probability of the top class. With two classes the
    members are temperature scaling, a quadratic and a spline of the log-odds.

    Parameters
    ----------
    preserve : {"auto", "accuracy", "order", None}
        Which predictions stay. ``"auto"``: predicted classes stay unless held-out rows prove that changing them makes
        the model more accurate; with two classes the ranking stays, and predictions may cross 0.5. ``"accuracy"``: no
        predicted class changes. ``"order"``: the order of all classes stays. ``None``: predicted classes may change.
    input : {"logits", "probs", "log_probs"}
    verbose : bool
        Print on stderr what changed.

    Attributes
    ----------
    preserves : {"order", "accuracy", None}
        What the fit promises.
    fit_ : FitRecord
        ``notes`` say in plain words what changed; ``details`` hold the ``weights`` of the members,
        ``changed_predictions`` on the calibration rows, and, with three and more classes, ``held_out_accuracy``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(400, 3)) * 2
    >>> y = (np.exp(z).cumsum(1) / np.exp(z).sum(1, keepdims=True) > rng.random((400, 1))).argmax(1)
    >>> cal = PooledCalibrator().fit(3 * z, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"], cal.preserves
    (True, 'accuracy')
    """

    name = "pool"
    title = "Pooled calibration"
    weighted = True
    grouped = True
    map_types = (PoolMap, BinaryPoolMap, Margins, TopVersusRestMap, TopCurve, Curve)

    preserve: Preserve = "auto"
    verbose: bool = False

    def _fit(self, rows: Rows) -> Fitted:
        if self.preserve not in ("auto", "accuracy", "order", None):
            raise ValueError(
                f"preserve must be 'auto', 'accuracy', 'order' or None, got {self.preserve!r}"
            )
        fitted = self._fit_two(rows) if rows.n_classes == 2 else self._fit_many(rows)
        mass = np.bincount(rows.labels, weights=rows.weight, minlength=rows.n_classes)
        fitted.details["absent_classes"] = np.flatnonzero(mass == 0).tolist()
        return fitted

    def _fit_two(self, rows: Rows) -> Fitted:
        promised: Preserves = self.preserve if self.preserve != "auto" else None
        table, weights = fit_binary_pool(rows, keep=promised is not None)
        before = rows.x[:, 1] > rows.x[:, 0]
        after = table(rows.x)
        moved = (after[:, 1] > after[:, 0]) != before
        changed = float(rows.weights @ moved)
        threshold = float(expit(np.interp(0.0, table.values, table.knots)))
        note = _crossing_note(changed, rows.total, threshold)
        details = _details(BINARY_MEMBERS, weights, changed) | {"threshold": threshold}
        return Fitted(table, details=details, notes=(note,), preserves=promised)

    def _fit_many(self, rows: Rows) -> Fitted:
        learned, trial = fit_pool(rows, self.preserve)
        changed = 0.0
        if not learned.keep:
            moved = learned(rows.x).argmax(axis=1) != rows.x.argmax(axis=1)
            changed = float(rows.weights @ moved)
        notes = [] if self.preserve == "order" else _notes(learned.keep, trial, changed, rows.total)
        details = _details(MEMBERS, learned.weights, changed)
        after = trial.before if learned.keep else trial.after
        details["held_out_accuracy"] = {"before": trial.before, "after": after}
        kept: Preserves = "order" if self.preserve == "order" else "accuracy"
        preserves = kept if learned.keep else None
        return Fitted(learned, details=details, notes=tuple(notes), preserves=preserves)

    def _warn(self, fitted: Fitted) -> None:
        super()._warn(fitted)
        present = self.n_classes_ - len(fitted.details["absent_classes"])
        if present == 1:
            words = "all labels are of one class: nothing can be learned of the others"
            warnings.warn(f"{self.name}: {words}", CalibrationWarning, stacklevel=3)
        if self.verbose:
            for words in fitted.notes:
                print(f"{self.name}: {words}", file=sys.stderr)


# -- the pool from beginning to end -----------------------------------------------------------------


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


def _details(members: tuple[str, ...], weights: Float64, changed: float) -> JsonObject:
    by_member = dict(zip(members, weights.tolist(), strict=True))
    return {"weights": by_member, "changed_predictions": changed}


def _crossing_note(changed: float, total: float, threshold: float) -> str:
    """Return a sentence on how many predictions of two classes cross ½.

    >>> _crossing_note(12.0, 300.0, 0.31)
    "class 1 is now predicted when the model's own score is above 31.0 % (before: 50 %); 12 of 300 predictions change"
    """
    if changed == 0:
        return f"no prediction of {total:,.0f} crosses 50 %"
    return (
        f"class 1 is now predicted when the model's own score is above {100 * threshold:.1f} % "
        f"(before: 50 %); {changed:,.0f} of {total:,.0f} predictions change"
    )


def _notes(keep: bool, trial: Trial, changed: float, total: float) -> list[str]:
    """Return sentences on what happens to predicted classes, and what that is worth."""
    before = f"{100 * trial.before:.1f} %"
    after = f"{100 * trial.after:.1f} %"
    if keep and not trial.proven:
        return []
    if keep:
        return [
            f"Keeping the predicted classes costs accuracy: held-out rows have {before}, and "
            f"{after} if they may change. preserve='auto' lets them."
        ]
    verb = "rises" if trial.after >= trial.before else "falls"
    return [
        f"Predicted classes may change: on held-out rows accuracy {verb} from {before} to {after}. "
        "preserve='accuracy' keeps them.",
        f"{changed:,.0f} of {total:,.0f} predictions on the calibration rows change.",
    ]
