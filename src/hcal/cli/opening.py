"""What the commands begin with: the file, the model that fits it, and the method to learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.io import DataFile
    from hcal.io.request import OptionScore


def new_calibrator(method: str | None, data: DataFile, params: dict[str, Any]) -> Calibrator:
    """Return the method that was asked for; of questions, the one that takes any number of options."""
    from hcal.calibrators import make_calibrator
    from hcal.calibrators.multiple_choice import MultipleChoiceCalibrator

    if not data.questions:
        return make_calibrator(method or "h", **params, input=data.kind)
    make_calibrator(method or "ts")  # an unknown name is an error now
    unknown = sorted(set(params) - {"min_questions"})
    if unknown:
        raise ValueError(f"questions have no parameter {unknown[0]!r}; they have min_questions")
    return MultipleChoiceCalibrator(method or "ts", **params)


def for_prior(calibrator: Any, prior: str | None, scores: Any) -> Any:
    """Return the calibrator for the class frequencies that --prior names."""
    if prior is None:
        return calibrator
    if prior == "estimate":
        return calibrator.with_prior_from(scores)
    try:
        frequencies = [float(part) for part in prior.split(",")]
    except ValueError:
        raise ValueError(f"--prior takes numbers with commas, or 'estimate', got {prior!r}") from None
    return calibrator.with_prior(frequencies)


def fit_on(calibrator: Any, data: DataFile) -> None:
    """Fit on what a file holds: questions by their labels alone, others with weights and names of classes."""
    if data.questions:
        calibrator.fit(data.values, data.labels())
    else:
        calibrator.fit(data.values, data.labels(), data.weight, classes=data.classes)


def check_score(name: str) -> OptionScore:
    """Return what --score says, or name what it can say."""
    from hcal.io.request import OPTION_SCORES

    if name not in OPTION_SCORES:
        raise ValueError(f"--score must be one of {', '.join(OPTION_SCORES)}, got {name!r}")
    return name  # type: ignore[return-value]
