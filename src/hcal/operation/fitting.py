"""Fit a calibrator to the rows of a file, as ``hcal fit`` does, and describe what was fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from hcal.fit_record import fitted_segments
from hcal.inputs import to_probs
from hcal.io.reading import DataFile
from hcal.io.request import Request
from hcal.language_models import JointConfidence, MultipleChoiceCalibrator
from hcal.methods import Calibrator, make_calibrator
from hcal.methods.multilabel import MultilabelCalibrator
from hcal.metrics.scores import swapped
from hcal.results import Result
from hcal.segments import SegmentedCalibrator
from hcal.text import JsonObject

#: What files can be fitted with: rows of one label, rows of several labels, questions with options.
Trainable = Calibrator | MultilabelCalibrator | MultipleChoiceCalibrator

#: With fewer rows than this, or fewer rows of the rarer of two classes, a fit learns mostly chance.
FEW_ROWS: Final = 100
FEW_OF_A_CLASS: Final = 20


def calibrator_for(
    data: DataFile,
    method: str | None,
    params: JsonObject,
    *,
    multilabel: bool = False,
    segmented: bool = False,
) -> Trainable:
    """Return an unfitted calibrator for the kind of rows in a file: classes, labels, segments or questions.

    Parameters
    ----------
    data : DataFile
    method : str, optional
        A registry name; ``"pool"`` by default, ``"ts"`` for questions.
    params : dict
        Parameters of the method.
    multilabel, segmented : bool
        Whether a row has several labels; whether each segment gets a correction.
    """
    if segmented:
        return _segmented(data, method, params, multilabel=multilabel)
    if multilabel:
        return MultilabelCalibrator(method or "pool", input=data.kind, **params)
    if not data.questions:
        return make_calibrator(method or "pool", **params, input=data.kind)
    unknown = sorted(set(params) - {"min_questions"})
    if unknown:
        raise ValueError(f"questions have no parameter {unknown[0]!r}; they have min_questions")
    return MultipleChoiceCalibrator(method or "ts", **params)


def _segmented(
    data: DataFile, method: str | None, params: JsonObject, *, multilabel: bool
) -> SegmentedCalibrator:
    """Return a calibrator with a correction of each segment; the parameters are the common calibrator's."""
    if multilabel:
        raise ValueError("--by fits segments of one label a row: leave out --multilabel, or --by")
    if data.questions:
        raise ValueError(
            f"{data.path.name} holds questions with options: --by fits segments of rows with "
            "classes"
        )
    common = make_calibrator(method or "pool", **params)
    return SegmentedCalibrator(common if params else common.name, input=data.kind)


def fit_to_file(
    calibrator: Trainable, data: DataFile, *, half_life: str | None = None
) -> Trainable:
    """Fit a calibrator to all that was read from a file: scores, labels, weights, groups, times and segments."""
    if isinstance(calibrator, MultilabelCalibrator):
        return calibrator.fit(data.values, data.y, labels=data.classes)
    if isinstance(calibrator, MultipleChoiceCalibrator):
        return calibrator.fit(data.values, data.labels())
    if isinstance(calibrator, SegmentedCalibrator):
        return calibrator.fit(
            data.values,
            data.labels(),
            data.weight,
            by=data.by,
            groups=data.groups,
            classes=data.classes,
            time=data.time,
            half_life=half_life,
        )
    return calibrator.fit(
        data.values,
        data.labels(),
        data.weight,
        groups=data.groups,
        classes=data.classes,
        time=data.time,
        half_life=half_life,
    )


def cautions(data: DataFile) -> list[str]:
    """Return a warning if a calibration set is tiny or its two classes seem to be swapped."""
    n_rows = len(data.values)
    names = data.classes or range(data.n_classes)
    labels = data.labels()
    two = data.n_classes == 2 and not data.questions
    if two:
        warnings = swapped(to_probs(data.values, data.kind), labels, f"class {names[1]}")
        if warnings:
            return warnings
    if n_rows < FEW_ROWS:
        return [
            f"{n_rows} rows are very few to learn from: what they show is mostly chance. Some "
            "hundreds, and others to test on, are a start"
        ]
    classes, counts = np.unique(labels, return_counts=True)
    if two and len(classes) == 2 and counts.min() < FEW_OF_A_CLASS:
        rare = names[int(classes[counts.argmin()])]
        return [
            f"only {counts.min()} of {n_rows:,} rows are of class {rare}: what is learned of it "
            "is mostly chance"
        ]
    return []


def remember_file(calibrator: object, request: Request, data: DataFile) -> None:
    """Store in a fitted calibrator how its rows were read and from which file."""
    if not hasattr(calibrator, "remember_source"):
        return
    segmented = bool(fitted_segments(calibrator))
    columns = request.for_refit(data.kind, segmented=segmented)
    calibrator.remember_source(columns, data.name, data.part, data.checksum())


@dataclass(frozen=True, repr=False)
class ModelFacts(Result):
    """What a fitted calibrator is.

    Attributes
    ----------
    method, title : str
        The registry name, and the name for people.
    input : {"logits", "probs", "log_probs"}
    classes : int
        The number of classes.
    preserves : str or None
        What is promised: ``"order"``, ``"accuracy"``, or nothing.
    params : dict
        The parameters of the method.
    fit : dict
        The record of the fit: rows, names, file, date, version, scores before and after, notes.
    labels, own_weight : list
        Of several labels a row: their names, and how much each counts beside all together.
    coefficients : dict of float
        Of joined confidences: by how much the log-odds grow with a standard deviation of each.
    """

    schema: ClassVar[str] = "hcal/info/1"

    method: str
    title: str | None = None
    input: str | None = None
    classes: int | None = None
    preserves: str | None = None
    params: JsonObject | None = None
    fit: JsonObject | None = None
    labels: list[str] | None = None
    own_weight: list[float] | None = None
    coefficients: dict[str, float] | None = None


def model_facts(calibrator: Trainable) -> ModelFacts:
    """Return what a fitted calibrator is, as plain values.

    >>> model_facts(make_calibrator("ts").fit([[0.0, 1.0]] * 4, [1, 1, 0, 1])).preserves
    'order'
    """
    if isinstance(calibrator, MultilabelCalibrator):
        return ModelFacts(
            calibrator.name,
            labels=list(calibrator.label_names_),
            own_weight=calibrator.own_weight_.tolist(),
        )
    return ModelFacts(
        calibrator.name,
        title=calibrator.title,
        input=calibrator.input,
        classes=calibrator.n_classes_,
        preserves=calibrator.preserves,
        params=calibrator.get_params(deep=False),
        fit=calibrator.fit_.to_json(),
    )


def joint_facts(joint: JointConfidence) -> ModelFacts:
    """Return what joined confidences are, as plain values."""
    return ModelFacts(
        joint.name,
        title=joint.title,
        classes=2,
        params=joint.get_params(deep=False),
        fit=joint.fit_.to_json(),
        coefficients=joint.coefficients_,
    )
