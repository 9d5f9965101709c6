"""Requirements such as ``ece_ew<0.02`` that a result must meet, for scheduled jobs and continuous integration."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from hcal.results import Result
from hcal.text import JsonObject, one_line, quoted

#: A number, or a grade of the report.
GateValue = float | str
#: The grades of a report, the worst first.
GRADES: Final = ("bad", "few", "care", "good")

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_FORM: Final = re.compile(r"\s*([A-Za-z_][\w.]*(?:\(\w+\))?)\s*(<=|>=|==|<|>)\s*(\S+)\s*")


#: As people write numbers: float() also takes 1_0, ٣ and nan.
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Gated(Protocol):
    """A result that requirements can speak of."""

    def gate_values(self) -> Mapping[str, GateValue]:
        """Return the values that requirements can name."""


@dataclass(frozen=True)
class Requirement:
    """One requirement: the name of a value, how it is compared, and with what.

    Examples
    --------
    >>> requirement = Requirement.parse("ece_ew < 0.02")
    >>> requirement, requirement.is_met_by(0.01), requirement.is_met_by(float("nan"))
    (Requirement(name='ece_ew', comparison='<', limit=0.02), True, False)
    """

    name: str
    comparison: str
    limit: GateValue

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Return the requirement that a text states."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(
                "a requirement is NAME<NUMBER, such as 'ece_ew<0.02' or 'grade>=good', "
                f"got {quoted(text)}"
            )
        name, comparison, limit = match.groups()
        if name == "grade":
            if limit not in GRADES:
                raise ValueError(f"the grades are {' < '.join(GRADES)}, got {quoted(limit)}")
            return cls(name, comparison, limit)
        return cls(name, comparison, _number(limit, text))

    def __str__(self) -> str:
        limit = self.limit if isinstance(self.limit, str) else f"{self.limit:.15g}"
        return f"{self.name}{self.comparison}{limit}"

    def is_met_by(self, value: GateValue) -> bool:
        """Return whether a value meets the requirement; NaN meets none."""
        compare = _COMPARISONS[self.comparison]
        if self.name == "grade":
            return compare(GRADES.index(str(value)), GRADES.index(str(self.limit)))
        number = float(value)
        return not math.isnan(number) and compare(number, float(self.limit))


@dataclass(frozen=True, repr=False)
class Gate(Result):
    """Which requirements a result meets.

    Attributes
    ----------
    passed : bool
        Whether all requirements are met.
    checks : list of dict
        For every requirement its text, the value, whether it is met, and the value in words.
    """

    schema: ClassVar[str] = "hcal/gate/1"

    checks: list[JsonObject]

    @property
    def passed(self) -> bool:
        """Whether all requirements are met."""
        return all(check["met"] for check in self.checks)

    @property
    def failures(self) -> list[str]:
        """One sentence for every requirement that is not met."""
        return [
            f"required {check['requirement']}, but {check['name']} is {check['words']}"
            for check in self.checks
            if not check["met"]
        ]

    def to_records(self) -> list[JsonObject]:
        """Return one row a requirement."""
        return self.checks

    def _content(self) -> JsonObject:
        return {"passed": self.passed, "checks": self.checks}

    def _headline(self) -> list[str]:
        if self.passed:
            return [f"All {len(self.checks)} requirements are met."]
        return self.failures


def require(result: Gated, requirements: Iterable[str] | str) -> Gate:
    """Compare a result with requirements, such as those of a release.

    Parameters
    ----------
    result : Evaluation, ReportVerdict or Certificate
        What :func:`hcal.evaluate`, :func:`hcal.report` or :func:`hcal.certify` returned.
    requirements : str or iterable of str
        ``"ece_ew<0.02"`` names a metric. ``"change(nll)<0"`` names the change that calibration makes, and needs an
        evaluation before and after it. ``"grade>=good"`` names the grade of a report, where bad < few < care < good.

    Returns
    -------
    Gate
        Its ``passed`` says whether all requirements are met, and its ``failures`` which are not.

    Examples
    --------
    >>> import hcal
    >>> result = hcal.evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 1], metrics=["brier", "accuracy"])
    >>> hcal.require(result, ["brier<0.5", "accuracy>=0.9"])
    required accuracy>=0.9, but accuracy is 0.5
    """
    if not hasattr(result, "gate_values"):
        raise ValueError(
            "requirements speak of what hcal.evaluate, hcal.report or hcal.certify returned, got "
            f"{type(result).__name__}"
        )
    texts = [requirements] if isinstance(requirements, str) else list(requirements)
    if not texts:
        raise ValueError("there is no requirement: a gate without one would let everything pass")
    parsed = [Requirement.parse(text) for text in texts]
    values = dict(result.gate_values())
    for requirement in parsed:
        if requirement.name not in values:
            raise ValueError(missing_words(requirement.name, values))
    return Gate([_check(requirement, values[requirement.name]) for requirement in parsed])


def _check(requirement: Requirement, value: GateValue) -> JsonObject:
    return {
        "requirement": str(requirement),
        "name": requirement.name,
        "value": value,
        "met": requirement.is_met_by(value),
        "words": _words(requirement, value),
    }


def missing_words(name: str, values: Iterable[str]) -> str:
    """Return why a requirement cannot be checked, and what would help; ``values`` are the names there are."""
    names = list(values)
    if name == "grade":
        return "'grade' is a value of the report alone: require it of hcal report"
    if name.startswith("change(") and name[7:-1] in names:
        return (
            f"{quoted(name)} compares before and after calibration: pass a calibrator (--model) "
            "to an evaluation or a report, and the metric"
        )
    return f"there is no value {quoted(name)}; there are {one_line(', '.join(names), 400)}"


def _number(text: str, requirement: str) -> float:
    if text.lower() == "nan":
        raise ValueError(f"{quoted(requirement)}: nothing can be compared with NaN")
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{quoted(requirement)}: {quoted(text)} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{quoted(requirement)}: a limit must be a finite number")
    return number


def _words(requirement: Requirement, value: GateValue) -> str:
    """Return a value in words; with all digits where fewer would seem to meet the requirement."""
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return "NaN: these rows do not tell"
    rounded = f"{value:.4g}"
    misleads = requirement.is_met_by(float(rounded)) != requirement.is_met_by(value)
    return repr(value) if misleads else rounded
