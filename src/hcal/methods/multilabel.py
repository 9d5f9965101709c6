"""Multi-label problems: one binary calibrator for each label, and a common one for labels with few rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from hcal.frames import AnyArray, ColumnName, Origin, refuse_other_index, restore, to_numpy
from hcal.inputs import InputKind
from hcal.methods.base import CalibrationWarning, Calibrator
from hcal.methods.parameters import Estimator
from hcal.methods.registry import make_calibrator
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.text import JsonObject, one_line

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
    kind_ : {"logits", "probs"}
        What the scores of the fit were.

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
    kind_: InputKind

    def __init__(self, method: str = "pool", *, input: InputKind = "logits") -> None:
        self.method = method
        self.input = input

    def fit(self, scores: AnyArray, y: AnyArray, *, labels: AnyArray = None) -> Self:
        """Learn from held-out scores and the labels that were present.

        Parameters
        ----------
        scores : array-like of shape (N, L)
        y : array-like of shape (N, L)
            1 where a label is present, 0 where not.
        labels : sequence of L str, optional
            Names of the labels; those of a frame's columns unless given. The columns of frames, of scores and of y,
            are put in their order by name.
        """
        x, origin = self._check(scores)
        names = label_names(labels, origin.columns or to_numpy(y, "y")[1].columns, x.shape[1])
        x = in_order_of(names, x, origin, "scores")
        refuse_other_index(scores, {"y": y})
        truth = check_indicators(y, names)
        if len(truth) != len(x):
            raise ValueError(f"y has {len(truth)} rows, scores has {len(x)}")
        self.label_names_ = names
        self.kind_ = self.input
        positives = truth.sum(axis=0)
        fewer = np.minimum(positives, len(truth) - positives).astype(np.float64)
        self.own_weight_ = fewer / (fewer + HALF_OWN)
        step = max(1, x.size // _MOST_POOLED)
        self.members_ = {"common": self._member(x.ravel()[::step], truth.ravel()[::step])}
        for j in np.flatnonzero(fewer):
            self.members_[str(j)] = self._member(x[:, j], truth[:, j])
        return self

    def predict_proba(self, scores: AnyArray) -> AnyArray:
        """Return the calibrated probability (N, L) that each label is present, in the library of the input.

        Columns that have names are put in the order of the fit by name.
        """
        x, origin = self._check(scores)
        x = in_order_of(self.label_names_, x, origin, "scores")
        out = np.empty(x.shape)
        for j in range(x.shape[1]):
            odds = _log_odds(self.members_["common"].predict_proba(x[:, j]))
            member = self.members_.get(str(j))
            if member is not None:
                member_odds = _log_odds(member.predict_proba(x[:, j]))
                odds += self.own_weight_[j] * (member_odds - odds)
            out[:, j] = 1 / (1 + np.exp(-odds))
        return restore(out, origin, self.label_names_ if self._named() else None)

    def evaluate(self, scores: AnyArray, y: AnyArray) -> dict[str, dict[str, float]]:
        """Return NLL, Brier score and ECE of every label by its name, and their ``"mean"``."""
        from hcal.metrics import brier, ece_ew, nll

        probs = to_numpy(self.predict_proba(scores), "scores")[0]
        refuse_other_index(scores, {"y": y})
        truth = check_indicators(y, self.label_names_)
        if len(truth) != len(probs):
            raise ValueError(f"y has {len(truth)} rows, scores has {len(probs)}")
        table: dict[str, dict[str, float]] = {}
        for name, p, present in zip(self.label_names_, probs.T, truth.T, strict=True):
            table[name] = {
                "nll": nll(p, present),
                "brier": brier(p, present),
                "ece_ew": ece_ew(p, present),
            }
        means = {}
        for metric in ("nll", "brier", "ece_ew"):
            means[metric] = float(np.mean([row[metric] for row in table.values()]))
        return table | {"mean": means}

    def facts(self) -> JsonObject:
        """Return what a model file stores in addition to the members."""
        return {"labels": list(self.label_names_), "own_weight": self.own_weight_.tolist()}

    def restore(self, members: dict[str, Calibrator], facts: JsonObject) -> Self:
        """Set the fitted attributes from a model file, after checking them."""
        names = facts.get("labels")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            raise ValueError("'labels' must be a list of names")
        weight = facts.get("own_weight", ())
        is_sized = isinstance(weight, list) and len(weight) == len(names)
        if not is_sized or not all(isinstance(w, float | int) and 0 <= w <= 1 for w in weight):
            raise ValueError("'own_weight' must be one number in [0, 1] for each label")
        possible = {"common", *map(str, range(len(names)))}
        are_binary = all(member.n_classes_ == 2 for member in members.values())
        if "common" not in members or not set(members) <= possible or not are_binary:
            raise ValueError("the members must be 'common' and binary calibrators of the labels")
        self.members_ = members
        self.label_names_ = tuple(names)
        self.kind_ = members["common"].prediction_.kind
        self.own_weight_ = np.array(weight, dtype=np.float64)
        return self

    def _member(self, x: FloatArray, hit: IntArray) -> Calibrator:
        with warnings.catch_warnings():
            # They are about one label among many, which the common calibrator supports.
            warnings.simplefilter("ignore", CalibrationWarning)
            return make_calibrator(self.method, input=self.kind_).fit(x, hit)

    def _named(self) -> bool:
        """Return whether the labels have names of their own, and not only numbers."""
        return self.label_names_ != tuple(map(str, range(len(self.label_names_))))

    def _check(self, scores: AnyArray) -> tuple[FloatArray, Origin]:
        """Return checked scores (N, L) of the kind that was fitted, and where they come from."""
        kind = self.kind_ if hasattr(self, "members_") else self.input
        if kind not in ("logits", "probs"):
            raise ValueError(f'input must be "logits" or "probs", got {kind!r}')
        array, origin = to_numpy(scores, "scores")
        if array.ndim != 2 or not array.size:
            raise ValueError(
                f"scores must have shape (N, L), one column a label, got {array.shape}"
            )
        x = array.astype(np.float64)
        if not np.isfinite(x).all():
            raise ValueError("scores contains NaN or infinite values")
        if kind == "probs" and (x.min() < 0 or x.max() > 1):
            raise ValueError('scores must lie in [0, 1]; if these are logits, say input="logits"')
        return x, origin


def label_names(
    labels: AnyArray, columns: Sequence[ColumnName] | None, n_labels: int
) -> tuple[str, ...]:
    """Return the names of the labels: those passed in, those of the columns, or numbers.

    >>> label_names(None, ("cat", "dog"), 2), label_names(None, None, 2)
    (('cat', 'dog'), ('0', '1'))
    """
    names = labels if labels is not None else columns
    if names is None:
        names = range(n_labels)
    texts = tuple(map(str, names))
    if len(texts) != n_labels:
        raise ValueError(f"labels has {len(texts)} names for {n_labels} columns")
    if len(set(texts)) < n_labels:
        raise ValueError(f"two labels have the same name: {one_line(', '.join(texts), 120)}")
    return texts


def in_order_of(names: tuple[str, ...], array: NumpyArray, origin: Origin, what: str) -> NumpyArray:
    """Return the columns of scores or labels (N, L) in the order of the names; others are refused with both lists.

    >>> in_order_of(("a", "b"), np.array([[1, 2]]), Origin("pandas", None, columns=("b", "a")), "y")
    array([[2, 1]])
    """
    content = "one column of 0 and 1" if what == "y" else "one column"
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(
            f"{what} has shape {array.shape} for {len(names)} labels: {content} for each label"
        )
    if origin.columns is None:
        return array
    place = {str(column): k for k, column in enumerate(origin.columns)}
    if place.keys() == set(names):
        return array[:, [place[name] for name in names]]
    if set(names) == set(map(str, range(len(names)))):
        return array  # the labels of the fit have no names
    columns = one_line(", ".join(map(str, origin.columns)), 120)
    labels = one_line(", ".join(names), 120)
    raise ValueError(f"the columns of {what} are {columns}, and the labels are {labels}")


def check_indicators(y: AnyArray, names: tuple[str, ...]) -> IntArray:
    """Return labels (N, L) of 0 and 1 as integers, columns in the order of the names of the labels.

    >>> check_indicators([[True, False]], ("cat", "dog"))
    array([[1, 0]])
    """
    array, origin = to_numpy(y, "y")
    array = in_order_of(names, array, origin, "y")
    if not np.isin(array, (0, 1)).all():
        raise ValueError("y must hold 0 and 1: whether each label is present")
    return array.astype(np.int64)


def _log_odds(probs: FloatArray) -> Float64:
    least = np.finfo(np.float64).tiny
    log_absent = np.log(np.maximum(probs[:, 0], least))
    log_present = np.log(np.maximum(probs[:, 1], least))
    return np.asarray(log_present - log_absent)
