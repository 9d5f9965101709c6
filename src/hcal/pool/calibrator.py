"""PooledCalibrator: the default."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from hcal.methods.base import CalibrationWarning, Calibrator, Fitted, Preserves
from hcal.methods.parameters import parameters
from hcal.numerics import Float64, IntArray
from hcal.pool.binary import fit_table
from hcal.pool.map import BinaryPoolMap, Curve, Events, PoolMap, Rest
from hcal.pool.members import Held, fit_members, fit_pool, held_by_groups
from hcal.rows import Rows


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
    info_ : dict
        ``weights`` of the members, ``notes`` in plain words on what changed, ``changed_predictions`` on the
        calibration rows, and, with three and more classes, ``held_out_accuracy``.

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
    map_types = (PoolMap, BinaryPoolMap, Events, Rest, Curve)

    preserve: Literal["auto", "accuracy", "order"] | None = "auto"
    verbose: bool = False

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        groups = rows.groups
        if self.preserve not in ("auto", "accuracy", "order", None):
            raise ValueError(
                f"preserve must be 'auto', 'accuracy', 'order' or None, got {self.preserve!r}"
            )
        w = np.ones(len(y)) if weight is None else weight
        fitted = (
            self._fit_two(x, y, w, groups) if x.shape[1] == 2 else self._fit_many(x, y, w, groups)
        )
        mass = np.bincount(y, weights=w, minlength=x.shape[1])
        fitted.details["absent_classes"] = np.flatnonzero(mass == 0).tolist()
        return fitted

    def _fit_two(self, x: Float64, y: IntArray, weight: Float64, groups: IntArray | None) -> Fitted:
        promised: Preserves = self.preserve if self.preserve != "auto" else None
        crossing = promised is not None
        u = x[:, 1] - x[:, 0]
        table, weights = fit_table(u, y, weight, groups, crossing=crossing)
        changed = float(weight @ ((table(x)[:, 1] > table(x)[:, 0]) != (u > 0)))
        threshold = float(expit(np.interp(0.0, table.values, table.knots)))
        told = _sides(changed, float(weight.sum()), threshold)
        details = _details(("temperature", "quadratic", "spline"), weights, changed) | {
            "threshold": threshold
        }
        return Fitted(table, details=details, notes=(told,), preserves=promised)

    def _fit_many(
        self, x: Float64, y: IntArray, weight: Float64, groups: IntArray | None
    ) -> Fitted:
        classes = self.preserve != "order"
        members, held = fit_members(x, y, weight, classes=classes)
        if groups is not None:
            held = Held(
                held_by_groups(x, y, weight, groups, classes=classes),
                np.arange(len(y)),
                held.errors,
            )
        fitted, accuracy, proven = fit_pool(
            members, held, x, y, weight, {"auto": None, None: False}.get(self.preserve, True)
        )
        changed = (
            0.0 if fitted.keep else float(weight @ (fitted(x).argmax(axis=1) != x.argmax(axis=1)))
        )
        notes = (
            _changes(fitted.keep, proven, accuracy, changed, float(weight.sum())) if classes else []
        )
        names = ("temperature", "events", "matrix")[: len(held.scores)]
        details = _details(names, fitted.weights, changed)
        details["held_out_accuracy"] = {"before": accuracy[0], "after": accuracy[not fitted.keep]}
        preserves: Preserves = ("accuracy" if classes else "order") if fitted.keep else None
        return Fitted(fitted, details=details, notes=tuple(notes), preserves=preserves)

    def _warn(self, fitted: Fitted) -> None:
        super()._warn(fitted)
        present = self.n_classes_ - len(fitted.details["absent_classes"])
        if present == 1:
            words = "all labels are of one class: nothing can be learned of the others"
            warnings.warn(f"{self.name}: {words}", CalibrationWarning, stacklevel=3)
        if self.verbose:
            for words in fitted.notes:
                print(f"{self.name}: {words}", file=sys.stderr)


def _details(names: tuple[str, ...], weights: Float64, changed: float) -> dict[str, Any]:
    pairs = dict(zip(names, weights.tolist(), strict=False))
    return {"weights": pairs, "changed_predictions": changed}


def _sides(changed: float, total: float, threshold: float) -> str:
    """Return a sentence on how many predictions of two classes cross ½.

    >>> _sides(12.0, 300.0, 0.31)
    "class 1 is now predicted when the model's own score is above 31.0 % (before: 50 %); 12 of 300 predictions change"
    """
    if changed == 0:
        return f"no prediction of {total:,.0f} crosses 50 %"
    return (
        f"class 1 is now predicted when the model's own score is above {100 * threshold:.1f} % (before: 50 %); "
        f"{changed:,.0f} of {total:,.0f} predictions change"
    )


def _changes(
    keep: bool, proven: bool, accuracy: tuple[float, float], changed: float, total: float
) -> list[str]:
    """Return sentences on what happens to predicted classes, and what that is worth."""
    before, after = (f"{100 * rate:.1f} %" for rate in accuracy)
    if keep:
        if not proven:
            return []
        return [
            f"Keeping the predicted classes costs accuracy: held-out rows have {before}, and {after} if they may "
            "change. preserve='auto' lets them."
        ]
    verb = "rises" if accuracy[1] >= accuracy[0] else "falls"
    return [
        f"Predicted classes may change: on held-out rows accuracy {verb} from {before} to {after}. "
        "preserve='accuracy' keeps them.",
        f"{changed:,.0f} of {total:,.0f} predictions on the calibration rows change.",
    ]
