"""Multi-label problems: one binary calibrator for each label, and a common one for labels with few rows."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np

from hcal import inputs
from hcal.methods.base import CalibrationWarning, Calibrator
from hcal.methods.parameters import Estimator
from hcal.methods.registry import make_calibrator
from hcal.numerics import Float64, FloatArray, IntArray

#: A label with this many positive (or negative, if fewer) rows is the average of its own and the common calibrator.
HALF_OWN = 20.0
#: The common calibrator is fitted on at most this many rows.
_MOST_POOLED = 200_000


class MultilabelCalibrator(Estimator):
    """Calibrated probabilities of labels that do not exclude each other: (N, L) scores in, (N, L) out.

    Every label gets a binary calibrator of its own and the log-odds of the result are averaged with those of one
    calibrator for all labels together, with the weight m/(m + 20) of its own; m is the number of its positive rows,
    or of its negative ones if they are fewer. A label without a positive row is calibrated as all labels are.

    Parameters
    ----------
    method : str
        A registry name; see :func:`hcal.list_calibrators`.
    input : {"logits", "probs"}
        Whether the scores are logits or probabilities (after a sigmoid).

    Attributes
    ----------
    members_ : dict of str to Calibrator
        ``"common"``, and ``"0"``, ``"1"``, … for the labels that have rows of both kinds.
    own_weight_ : array of shape (L,)
        The weight of each label's own calibrator.
    label_names_ : tuple of str

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(500, 3))
    >>> y = rng.random((500, 3)) < 1 / (1 + np.exp(-z))
    >>> cal = MultilabelCalibrator("platt").fit(3 * z, y)
    >>> cal.predict_proba(3 * z[:2]).shape
    (2, 3)
    """

    name: ClassVar[str] = "multilabel"
    members_: dict[str, Calibrator]
    own_weight_: Float64
    label_names_: tuple[str, ...]

    def __init__(self, method: str = "pool", *, input: inputs.InputKind = "logits") -> None:
        self.method = method
        self.input = input

    def fit(self, scores: Any, y: Any, *, labels: Any = None) -> Self:
        """Learn from held-out scores and the labels that were present.

        Parameters
        ----------
        scores : array-like of shape (N, L)
        y : array-like of shape (N, L)
            1 where a label is present, 0 where not.
        labels : sequence of L str, optional
            Names of the labels; those of a DataFrame's columns unless given.
        """
        x, columns = self._check(scores)
        truth = check_indicators(y, x.shape)
        names = (
            labels if labels is not None else columns if columns is not None else range(x.shape[1])
        )
        self.label_names_ = tuple(str(name) for name in names)
        if len(self.label_names_) != x.shape[1]:
            raise ValueError(f"labels has {len(self.label_names_)} names for {x.shape[1]} columns")
        positives = truth.sum(axis=0)
        fewer = np.minimum(positives, len(truth) - positives).astype(np.float64)
        self.own_weight_ = fewer / (fewer + HALF_OWN)
        step = max(1, x.size // _MOST_POOLED)
        self.members_ = {"common": self._member(x.ravel()[::step], truth.ravel()[::step])}
        for j in np.flatnonzero(fewer):
            self.members_[str(j)] = self._member(x[:, j], truth[:, j])
        return self

    def predict_proba(self, scores: Any) -> Any:
        """Return the calibrated probability (N, L) that each label is present, in the library of the input."""
        (x, _), known = self._check(scores), len(self.own_weight_)
        if x.shape[1] != known:
            raise ValueError(
                f"scores has {x.shape[1]} labels, but the calibrator was fitted on {known}"
            )
        out = np.empty(x.shape)
        for j in range(x.shape[1]):
            odds = _log_odds(self.members_["common"].predict_proba(x[:, j]))
            if (own := self.members_.get(str(j))) is not None:
                odds += self.own_weight_[j] * (_log_odds(own.predict_proba(x[:, j])) - odds)
            out[:, j] = 1 / (1 + np.exp(-odds))
        return inputs.restore(out, inputs.to_numpy(scores, "scores")[1])

    def evaluate(self, scores: Any, y: Any) -> dict[str, dict[str, float]]:
        """Return NLL, Brier score and ECE of every label by its name, and their ``"mean"``."""
        from hcal.metrics import brier, ece_ew, nll

        probs = np.asarray(self.predict_proba(scores))
        truth = check_indicators(y, probs.shape)
        found = {
            name: {"nll": nll(p, t), "brier": brier(p, t), "ece_ew": ece_ew(p, t)}
            for name, p, t in zip(self.label_names_, probs.T, truth.T, strict=True)
        }
        keys = next(iter(found.values()))
        return found | {
            "mean": {key: float(np.mean([v[key] for v in found.values()])) for key in keys}
        }

    def facts(self) -> dict[str, Any]:
        """Return what a model file stores in addition to the members."""
        return {"labels": list(self.label_names_), "own_weight": self.own_weight_.tolist()}

    def restore(self, members: dict[str, Calibrator], facts: dict[str, Any]) -> Self:
        """Set the fitted attributes from a model file, after checking them."""
        names, weight = facts.get("labels"), facts.get("own_weight", ())
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise ValueError("'labels' must be a list of names")
        sized = isinstance(weight, list) and len(weight) == len(names)
        if not sized or not all(isinstance(w, float | int) and 0 <= w <= 1 for w in weight):
            raise ValueError("'own_weight' must be one number in [0, 1] for each label")
        known = {"common", *map(str, range(len(names)))}
        if (
            "common" not in members
            or not set(members) <= known
            or any(m.n_classes_ != 2 for m in members.values())
        ):
            raise ValueError("the members must be 'common' and binary calibrators of the labels")
        self.members_, self.label_names_ = members, tuple(names)
        self.own_weight_ = np.array(weight, dtype=np.float64)
        return self

    def _member(self, x: FloatArray, hit: IntArray) -> Calibrator:
        with (
            warnings.catch_warnings()
        ):  # about one label among many; the common calibrator supports it
            warnings.simplefilter("ignore", CalibrationWarning)
            return make_calibrator(self.method, input=self.input).fit(x, hit)

    def _check(self, scores: Any) -> tuple[FloatArray, Any]:
        if self.input not in ("logits", "probs"):
            raise ValueError(f'input must be "logits" or "probs", got {self.input!r}')
        array, origin = inputs.to_numpy(scores, "scores")
        if array.ndim != 2 or not array.size:
            raise ValueError(
                f"scores must have shape (N, L), one column a label, got {array.shape}"
            )
        x = array.astype(np.float64)
        if not np.isfinite(x).all():
            raise ValueError("scores contains NaN or infinite values")
        if self.input == "probs" and (x.min() < 0 or x.max() > 1):
            raise ValueError('scores must lie in [0, 1]; if these are logits, say input="logits"')
        return x, origin.columns


def check_indicators(y: Any, shape: tuple[int, ...]) -> IntArray:
    """Return labels (N, L) of 0 and 1 as integers, or raise a ValueError that says what is wrong.

    >>> check_indicators([[True, False]], (1, 2))
    array([[1, 0]])
    """
    array, _ = inputs.to_numpy(y, "y")
    if array.shape != shape:
        raise ValueError(
            f"y has shape {array.shape}, scores has {shape}: one column of 0 and 1 for each label"
        )
    if not np.isin(array, (0, 1)).all():
        raise ValueError("y must hold 0 and 1: whether each label is present")
    return array.astype(np.int64)


def _log_odds(probs: FloatArray) -> Float64:
    tiny = np.finfo(np.float64).tiny
    return np.log(np.maximum(probs[:, 1], tiny)) - np.log(np.maximum(probs[:, 0], tiny))
