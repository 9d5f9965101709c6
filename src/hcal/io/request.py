"""How the rows of a file are asked for: remembered by a model, so that the next file needs no options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from hcal.inputs import INPUT_KINDS
from hcal.io.limits import one_line

Unit = Literal["fraction", "percent"]
OptionScore = Literal["sum", "length", "mutual-information"]
OnBadRow = Literal["error", "drop"]
OPTION_SCORES: Final[tuple[str, ...]] = get_args(OptionScore)
#: Columns, or arrays, beside the scores.
ROLES: Final = ("label", "id", "group", "weight")
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "input": INPUT_KINDS,
    "unit": get_args(Unit),
    "option_score": OPTION_SCORES,
    "unlabelled": get_args(OnBadRow),
    "unreadable": get_args(OnBadRow),
    "ranges": ("error", "middle"),
}
#: What a model keeps; a file of labels, and what to do with bad rows, belong to one call.
_REMEMBERED: Final = ("scores", *ROLES, "input", "unit", "option_score", "classes")
#: What changes the meaning of the numbers: it cannot differ between a model and a file.
_MEANING: Final = ("input", "unit", "option_score")
_LONGEST: Final = 10_000


@dataclass(frozen=True)
class Request:
    """What a file calls its parts and what its numbers are; None where the usual names are meant.

    Attributes
    ----------
    scores : str, optional
        A pattern (``"logit_*"``), names with commas between them, or the name of one array. By default
        ``logits``, ``probs`` or ``log_probs``: an array, or columns ``logits_0``, ``logits_1``, ….
    label, id, group, weight : str, optional
        Names of columns or arrays; labels are in ``y`` by default.
    input : {"logits", "probs", "log_probs"}, optional
        What the scores are, where their names do not say.
    unit : {"fraction", "percent"}, optional
        ``"percent"``: probabilities, or stated confidences, go up to 100.
    option_score : {"sum", "length", "mutual-information"}, optional
        What the score of an option is in samples of lm-evaluation-harness.
    classes : tuple of K str, optional
        Names of the classes in the order of the columns, where the columns do not say.
    labels : Path, optional
        A second file with the labels.
    unlabelled : {"error", "drop"}
        What happens to rows without a label.
    unreadable : {"error", "drop"}
        What happens to answers whose stated confidence cannot be read.
    ranges : {"error", "middle"}
        Whether a stated "70-80 %" is unreadable or 0.75.
    optional : frozenset of str
        The parts of ``label, id, group, weight`` that a file may lack.

    Examples
    --------
    >>> model = Request(scores="p_*", label="y", input="probs")
    >>> Request(id="key").for_model(model.to_json())
    Request(scores='p_*', label='y', id='key', ..., input='probs', ..., optional=frozenset({'label'}))
    """

    scores: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    weight: str | None = None
    input: Any = None
    unit: Any = None
    option_score: Any = None
    classes: tuple[str, ...] | None = None
    labels: Path | None = None
    unlabelled: OnBadRow = "error"
    unreadable: OnBadRow = "error"
    ranges: Literal["error", "middle"] = "error"
    optional: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                what = {"input": "the kind of scores", "option_score": "score"}.get(name, name)
                raise ValueError(f"{what} must be one of {', '.join(choices)}, got {value!r}")
        for name in ("scores", *ROLES):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _LONGEST):
                raise ValueError(f"{name} must be the name of a column, got {one_line(repr(value), 60)}")

    def to_json(self) -> dict[str, Any]:
        """Return what a model remembers, as plain values."""
        found = {name: getattr(self, name) for name in _REMEMBERED if getattr(self, name) is not None}
        return {name: list(value) if name == "classes" else value for name, value in found.items()}

    @classmethod
    def from_json(cls, told: Any) -> Request:
        """Return what a model's header remembers, or refuse what is no such thing."""
        if not isinstance(told, Mapping) or not set(told) <= set(_REMEMBERED):
            raise ValueError(f"'request' must be an object with some of {', '.join(_REMEMBERED)}")
        names = told.get("classes")
        if names is not None and (not isinstance(names, list) or not all(isinstance(n, str) for n in names)):
            raise ValueError("'request.classes' must be a list of names")
        return cls(**{**told, "classes": None if names is None else tuple(names)})

    def for_model(self, remembered: Any) -> Request:
        """Return this request with what it leaves open as a model remembers it.

        A file may lack the label, id, group and weight that only the model names. What would change the
        meaning of the numbers is refused.
        """
        model = remembered if isinstance(remembered, Request) else Request.from_json(remembered or {})
        for name in _MEANING:
            ours, theirs = getattr(self, name), getattr(model, name)
            default = {"unit": "fraction", "option_score": "sum"}.get(name)
            if ours is not None and ours != (theirs or default or ours):
                what = name.replace("_", " ")
                raise ValueError(
                    f"the model was fitted with {what} {theirs or default}, so {ours} cannot be right"
                )
        filled = {n: getattr(model, n) for n in _REMEMBERED if getattr(self, n) is None}
        lacking = {role for role in ROLES if getattr(self, role) is None and getattr(model, role) is not None}
        return replace(self, **filled, optional=self.optional | lacking)

    @property
    def roles(self) -> dict[str, str]:
        """The columns beside the scores that were named."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}

    @property
    def plain(self) -> bool:
        """Whether nothing was said about columns."""
        return self.scores is None and self.labels is None and not self.roles
