"""Calibrators on top-k scores: methods that treat all classes alike need k + 1 numbers a row, not K."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, cast

import numpy as np

from hcal import inputs
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.registry import get_calibrator, list_calibrators
from hcal.io.provenance import fingerprint
from hcal.io.top_k import TopK
from hcal.metrics.sample import Sample
from hcal.metrics.summary import score_sample
from hcal.numerics import Float64, IntArray

Method = TypeVar("Method", bound=Calibrator)


class GroupedMethod(Protocol):
    """What a method writes to take rows in which groups of classes share a score.

    ``scores`` (N, G) are ln p of one class of each group and ``log_sizes`` (N, G) ln of how many classes it
    has; labels are columns.
    """

    def _fit_grouped(
        self, scores: Float64, log_sizes: Float64, y: IntArray, weight: Float64 | None, n_classes: int
    ) -> Fitted:
        """Learn the state."""

    def _predict_grouped(self, scores: Float64, log_sizes: Float64) -> Float64:
        """Return the probability of one class of each group (N, G)."""


def methods_of_top_k() -> list[str]:
    """Return the methods that take :class:`hcal.io.top_k.TopK`.

    >>> methods_of_top_k()
    ['ets', 'ts', 'uncal']
    """
    return [name for name in list_calibrators() if hasattr(get_calibrator(name), "_predict_grouped")]


def _grouped(calibrator: Calibrator) -> GroupedMethod:
    if not hasattr(calibrator, "_predict_grouped"):
        raise ValueError(
            f"{calibrator.name!r} needs the scores of all classes; methods that take the top k are "
            f"{', '.join(methods_of_top_k())}"
        )
    return cast(GroupedMethod, calibrator)


def fit_top_k(calibrator: Method, top: TopK, y: Any, sample_weight: Any = None) -> Method:
    """Fit one of :func:`methods_of_top_k` on top-k scores; ``calibrator.fit(top, y)`` comes here.

    Labels (N,) are integers 0..K−1, listed in their row or not.

    >>> from hcal.calibrators.ts import TemperatureScaling
    >>> top = TopK([[0.9, 0.05]] * 4, [[7, 3]] * 4, n_classes=1000)
    >>> cal = fit_top_k(TemperatureScaling(), top, [7, 7, 3, 500])
    >>> cal.predict_proba(top).top()[1].round(3)
    array([0.63, 0.63, 0.63, 0.63])
    """
    method = _grouped(calibrator)
    _check_tail(calibrator, top)
    calibrator._forget()
    columns = top.columns_of(y)
    labels = inputs.check_labels(y, len(top), top.n_classes)
    weight = calibrator._check_weight(sample_weight, len(top))
    calibrator._warn_of_weight(weight)
    fitted = method._fit_grouped(*top.events(), columns, weight, top.n_classes)
    mass = np.bincount(labels, weights=weight, minlength=top.n_classes)
    fitted.info["class_frequencies"] = (mass / mass.sum()).tolist()
    listed = columns < top.indices.shape[1]
    fitted.info["top_k"] = {
        "k": top.indices.shape[1],
        "labels_listed": float(np.average(listed, weights=weight)),
        "tail_as": top.tail_as,
    }
    fitted.info["fitted_on"] = fingerprint(np.column_stack([top.groups()[0], top.indices]))
    calibrator._remember(fitted, top.n_classes)
    calibrator.scores_ = {
        "before": score_sample(Sample(top, labels, weight)),
        "after": score_sample(Sample(predict_top_k(calibrator, top), labels, weight)),
    }
    calibrator._warn(fitted)
    return calibrator


def predict_top_k(calibrator: Calibrator, top: TopK) -> TopK:
    """Return calibrated probabilities of the listed classes, in the same places, and of the tail."""
    method = _grouped(calibrator)
    calibrator._check_fitted()
    if top.n_classes != calibrator.n_classes_:
        raise ValueError(
            f"the scores are of {top.n_classes} classes, but the calibrator was fitted on "
            f"{calibrator.n_classes_}"
        )
    if {"prior_log_ratio", "input_floor"} & set(calibrator.state_):
        raise ValueError(
            "this calibrator moves single classes or small probabilities (with_prior, or input='probs'), "
            "which top-k scores do not show: fit one on them, or with input='logits'"
        )
    _check_tail(calibrator, top)
    fitted_as = calibrator.info_.get("top_k", {}).get("tail_as", "classes")
    if fitted_as != top.tail_as:
        raise ValueError(
            f"the calibrator was fitted with tail_as={fitted_as!r}, the scores say {top.tail_as!r}"
        )
    scores, sizes = top.events()
    probs = method._predict_grouped(scores, sizes)
    return top.with_probs(probs[:, :-1], probs[:, -1] * np.exp(sizes[:, -1]))


def _check_tail(calibrator: Calibrator, top: TopK) -> None:
    if top.tail_as == "event" and getattr(calibrator, "mixes_uniform", False):
        raise ValueError(
            f"{calibrator.name!r} mixes with the uniform over all classes, so the tail cannot be one event: "
            "say tail_as='classes'"
        )
