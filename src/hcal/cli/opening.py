"""What the commands begin with: the file, the model that fits it, and the method to learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.data import DataFile, Part
    from hcal.data.lm_eval import OptionScore


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
    return MultipleChoiceCalibrator(method or "ts", **params)  # type: ignore[return-value]


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


def calibrator_and_data(
    model: Path | None, file: list[Path], kind: str | None, labels: Path | None, score: str
) -> tuple[Calibrator | None, DataFile]:
    """Return the model, where one is named, and what the files hold."""
    from hcal.calibrators.files import load
    from hcal.data import read_data

    if model is None:
        return None, read_data(file, kind=kind, labels=labels, score=check_score(score))
    calibrator = load(model)
    return calibrator, read_for(calibrator, model, file, kind=kind, labels=labels, score=score)


def read_for(
    calibrator: Calibrator,
    model: Path,
    file: list[Path],
    *,
    kind: str | None,
    labels: Path | None = None,
    part: Part = "test",
    score: str = "sum",
) -> DataFile:
    """Read the kind of scores that the calibrator was fitted on; say so where the file has another."""
    from hcal.data import read_data

    if kind is not None and kind != calibrator.input:
        raise ValueError(f"{model.name} was fitted on {calibrator.input}, so --input {kind} cannot be right")
    try:
        return read_data(file, part=part, kind=calibrator.input, labels=labels, score=check_score(score))
    except ValueError as error:
        raise ValueError(f"{error} ({model.name} was fitted on {calibrator.input})") from None


def check_score(name: str) -> OptionScore:
    """Return what --score says, or name what it can say."""
    from hcal.data.lm_eval import OPTION_SCORES

    if name not in OPTION_SCORES:
        raise ValueError(f"--score must be one of {', '.join(OPTION_SCORES)}, got {name!r}")
    return name  # type: ignore[return-value]
