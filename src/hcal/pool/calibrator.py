"""PooledCalibrator: the default."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from hcal.methods.base import CalibrationWarning, Calibrator, Fitted, Preserves
from hcal.methods.parameters import parameters
from hcal.numerics import Float64
from hcal.pool.map import BinaryPoolMap, Curve, Margins, PoolMap, TopCurve, TopVersusRestMap
from hcal.pool.pooling import Trial, fit_pool
from hcal.pool.two_classes import fit_binary_pool
from hcal.rows import Rows

MEMBERS = ("temperature", "top-versus-rest", "matrix")
BINARY_MEMBERS = ("temperature", "quadratic", "spline")


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

    preserve: Literal["auto", "accuracy", "order"] | None = "auto"
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


def _details(members: tuple[str, ...], weights: Float64, changed: float) -> dict[str, Any]:
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
