"""What the caller says about a file (:class:`Request`), and which columns are read because of it (:class:`Plan`).

A column is a score because its name says so (``logits_0``) or because the caller named it. Nothing is guessed from
the values. A model file stores the request of its fit, so that later files need no options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, get_args

from hcal.class_names import PREFIX, class_part
from hcal.inputs import INPUT_KINDS, InputKind
from hcal.io.scale import Scale
from hcal.text import JsonObject, one_line, quoted

Part = Literal["cal", "test"]
OptionScore = Literal["sum", "length", "mutual-information", "mean", "least"]
#: The array of a file that holds the names of the classes, in the order of the columns.
CLASSES: Final = "classes"
#: The name that the single array of a file without names gets.
BARE: Final = "_bare"
#: The roles of columns or arrays other than the scores.
ROLES: Final = ("label", "id", "groups", "by", "segments", "weight", "time")
#: The roles that several columns can have.
_LISTS: Final = ("by", "segments")
_CHOICES: Final = {
    "input": INPUT_KINDS,
    "option_score": get_args(OptionScore),
    **dict.fromkeys(("unlabelled", "unreadable"), ("error", "drop")),
    "ranges": ("error", "middle"),
}
#: The fields that a model file stores. The others (labels of a second file, treatment of bad rows) concern one file.
_REMEMBERED: Final = ("scores", *ROLES, "input", "unit", "option_score", "classes", "ignore_index")
#: The fields that decide what the scores mean, with their defaults: a file must agree with the model.
_MEANING: Final = {"input": None, "unit": "fraction", "option_score": "sum"}
_LONGEST: Final = 10_000


@dataclass(frozen=True)
class Request:
    """The names of a file's columns and the meaning of its scores; None stands for the usual names.

    Attributes
    ----------
    scores : str, optional
        A pattern (``"logit_*"``), names separated by commas, or the name of one array. By default
        ``logits``, ``probs`` or ``log_probs``: an array, or columns ``logits_0``, ``logits_1``, ….
    label, id, weight, time : str, optional
        Names of columns or arrays; labels are in ``y`` by default.
    groups : str, optional
        The column of groups; rows of one group depend on each other.
    by : str, optional
        The column of subgroups to report on, or several names separated by commas.
    segments : str, optional
        The column of the segments that a calibrator was fitted by, or several; a file must have them.
    input : {"logits", "probs", "log_probs"}, optional
        What the scores are; needed where their names do not say it.
    unit : str, optional
        ``"percent"`` if probabilities, or stated confidences, go up to 100; the ends of another scale, such as
        ``"0-10"`` for the marks of a grader; ``"fraction"`` by default.
    option_score : {"sum", "length", "mutual-information", "mean", "least"}, optional
        How samples of lm-evaluation-harness score an option (the first three), and how the log-probabilities of
        generated tokens become one score (``"sum"``, ``"mean"``, ``"least"``); ``"sum"`` by default.
    classes : tuple of K str, optional
        Names of the classes in the order of the columns, if the names of the columns do not contain them.
    labels : Path, optional
        A second file with the labels.
    unlabelled : {"error", "drop"}
        What happens to rows without a label.
    ignore_index : int, optional
        Rows with this label are left out, for example pixels that nobody labelled (often 255 or −100).
    unreadable : {"error", "drop"}
        What happens to answers whose stated confidence cannot be read.
    ranges : {"error", "middle"}
        Whether a stated "70-80 %" counts as unreadable or as 0.75.
    optional : frozenset of str
        Which of ``label``, ``id``, ``groups``, ``by``, ``weight`` and ``time`` may be missing in a file.
    of_model : bool
        Whether a model's fit has said how rows are read, so that its classes are known.

    Examples
    --------
    >>> model = Request(scores="p_*", label="y", input="probs")
    >>> Request(id="key").for_model(model.to_json())
    Request(scores='p_*', label='y', id='key', ..., input='probs', ..., optional=frozenset({'label'}))
    """

    scores: str | None = None
    label: str | None = None
    id: str | None = None
    groups: str | None = None
    by: str | None = None
    segments: str | None = None
    weight: str | None = None
    time: str | None = None
    input: str | None = None
    unit: str | None = None
    option_score: str | None = None
    classes: tuple[str, ...] | None = None
    labels: Path | None = None
    unlabelled: str = "error"
    unreadable: str = "error"
    ranges: str = "error"
    ignore_index: int | None = None
    optional: frozenset[str] = frozenset()
    of_model: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                what = {"input": "the kind of scores", "option_score": "score"}.get(name, name)
                raise ValueError(f"{what} must be one of {', '.join(choices)}, got {value!r}")
        _check_unit(self.unit)
        for name in ("scores", *ROLES):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _LONGEST):
                raise ValueError(f"{name} must be the name of a column, got {quoted(value)}")
        if self.ignore_index is not None and type(self.ignore_index) is not int:
            raise ValueError(f"ignore_index must be an integer, got {quoted(self.ignore_index)}")

    @property
    def kind(self) -> InputKind | None:
        """What the scores are, if the request says it."""
        return next((kind for kind in INPUT_KINDS if kind == self.input), None)

    def to_json(self) -> JsonObject:
        """Return what a model file stores of this request, as plain values."""
        fields = {name: getattr(self, name) for name in _REMEMBERED}
        return {
            n: list(v) if isinstance(v, tuple) else v for n, v in fields.items() if v is not None
        }

    def for_refit(self, kind: InputKind, *, segmented: bool) -> JsonObject:
        """Return what a model remembers of the columns of its fit, whose scores were of this kind.

        >>> Request(scores="p_*", by="country").for_refit("probs", segmented=True)
        {'scores': 'p_*', 'input': 'probs', 'segments': 'country'}
        """
        columns = {**self.to_json(), "input": kind}
        columns.pop("classes", None)
        subgroups = columns.pop("by", None)
        if segmented:
            columns.setdefault("segments", subgroups)
        return columns

    @classmethod
    def from_json(cls, stored: object) -> Request:
        """Return the request that a model file stores; raise ValueError if it is not a valid one."""
        if not isinstance(stored, Mapping) or not set(stored) <= set(_REMEMBERED):
            raise ValueError(f"'request' must be an object with some of {', '.join(_REMEMBERED)}")
        names = stored.get("classes")
        if not isinstance(names, list | None) or not all(
            isinstance(name, str) for name in names or ()
        ):
            raise ValueError("'request.classes' must be a list of names")
        return cls(**{**stored, "classes": None if names is None else tuple(names)})

    def for_model(self, remembered: object) -> Request:
        """Return this request, with whatever it leaves open filled in from the request of a model's fit.

        A label, id, group, subgroup or weight that only the model names may be missing in the file, and the model's
        segments may not. A request that contradicts the model about the meaning of the scores is refused.
        """
        model = Request.from_json(remembered or {})
        for name, default in _MEANING.items():
            ours, theirs = getattr(self, name), getattr(model, name) or default
            if None not in (ours, theirs) and ours != theirs:
                what = name.replace("_", " ")
                raise ValueError(
                    f"the model was fitted with {what} {theirs}, so {ours} cannot be right"
                )
        filled = {n: getattr(model, n) for n in _REMEMBERED if getattr(self, n) is None}
        lacking = {role for role in ROLES if filled.get(role) is not None} - {"segments"}
        return replace(self, **filled, optional=self.optional | lacking, of_model=True)

    @property
    def roles(self) -> dict[str, str]:
        """The columns beside the scores that were named."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}

    def columns_of(self, role: str) -> list[str]:
        """Return the columns of a role that several can have: ``by`` or ``segments``.

        >>> Request(by="country, year").columns_of("by")
        ['country', 'year']
        """
        return _columns_named(getattr(self, role) or "")

    @property
    def plain(self) -> bool:
        """Whether no columns were named."""
        return self.scores is None and self.labels is None and not self.roles


def _check_unit(unit: object) -> None:
    if unit is None:
        return
    if not isinstance(unit, str):
        raise ValueError(f"unit must be a text, got {quoted(unit)}")
    Scale.of(unit)


# -- which columns are read ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What to read from one file.

    Attributes
    ----------
    kind : {"logits", "probs", "log_probs"}
    scores : list of str
        The columns in the order of the classes, or one array.
    roles : dict of str
        The columns of the label, id, groups and weight.
    by : list of str
        The columns of the subgroups.
    segments : list of str
        The columns of the segments of a calibrator.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    classes : tuple of str, or None
        Names of the classes that the names of the columns contain.
    from_one : bool
        Whether the columns are numbered from 1 to K, so that labels may be too.
    """

    kind: InputKind
    scores: list[str]
    roles: dict[str, str]
    by: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    part: str = ""
    classes: tuple[str, ...] | None = None
    from_one: bool = False

    @property
    def columns(self) -> list[str]:
        """All columns to read."""
        return list(dict.fromkeys([*self.scores, *self.roles.values(), *self.by, *self.segments]))

    @property
    def texts(self) -> frozenset[str]:
        """The columns that need not hold numbers."""
        roles = {name for role, name in self.roles.items() if role != "weight"}
        return frozenset({*roles, *self.by, *self.segments})


def plan_of(names: Sequence[str], request: Request, part: Part, *, table: bool) -> Plan:
    """Decide which columns of a table, or which arrays, hold the scores, labels and so on; only arrays have parts.

    >>> plan_of(["y", "probs_1", "probs_0"], Request(), "test", table=True).scores
    ['probs_0', 'probs_1']
    >>> plan_of(["id", "a", "b"], Request(scores="a,b", input="logits"), "test", table=True).classes
    ('a', 'b')
    """
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise ValueError(f"two columns are named {quoted(twice)}")
    roles: dict[str, str] = {}
    lists: dict[str, list[str]] = {role: [] for role in _LISTS}
    for role, listing in request.roles.items():
        if role == "label" and request.labels is not None:
            continue
        for name in _columns_named(listing) if role in _LISTS else [listing]:
            column = next((n for n in (f"{name}_{part}", name) if n in names), None)
            if column is None and role not in request.optional:
                raise _lacks(name, names)
            if column is not None and role in _LISTS:
                lists[role].append(column)
            elif column is not None:
                roles[role] = column
    taken = {CLASSES, *roles.values(), *lists["by"], *lists["segments"]}
    free = [n for n in names if n not in taken]
    scores, kind, suffix = _find_scores(free, request, ("",) if table else (f"_{part}", ""))
    label = f"y{suffix}"
    if "label" not in roles and request.labels is None and label in free and label not in scores:
        roles["label"] = label
    parts = _class_parts(scores, request.scores)
    different = len(parts) > 1 and all(parts) and len(set(parts)) == len(parts)
    # Numbers in another order than their own, as the caller listed them, are names.
    counted = _by_number(parts, parts) == parts
    return Plan(
        kind,
        scores,
        roles,
        by=lists["by"],
        segments=lists["segments"],
        part=suffix.lstrip("_"),
        classes=tuple(parts) if different and not counted else None,
        from_one=different and counted and int(parts[0]) == 1,
    )


def _columns_named(listing: str) -> list[str]:
    """Return the names of columns that a text lists, separated by commas."""
    return [name.strip() for name in listing.split(",") if name.strip()]


def _lacks(name: str, names: Iterable[str]) -> ValueError:
    return ValueError(f"it has no {quoted(name)}; it holds: {listed(names)}")


def listed(names: Iterable[str]) -> str:
    """Return the names of columns as messages list them."""
    return one_line(", ".join(n for n in names if n != BARE), 120) or "nothing"


def _find_scores(
    names: Sequence[str], request: Request, suffixes: Sequence[str]
) -> tuple[list[str], InputKind, str]:
    """Return the columns, or the array, of the scores, their kind, and the suffix of their part."""
    if request.scores is not None:
        suffix = next((s for s in suffixes if request.scores + s in names), "")
        columns = match_scores(names, request.scores + suffix)
        return columns, _kind(request, columns[0], request.scores), suffix
    kinds_to_try = (request.kind,) if request.kind else INPUT_KINDS
    for suffix in suffixes:
        matches: list[tuple[list[str], InputKind, str]] = [
            (columns, kind, suffix)
            for kind in kinds_to_try
            if (columns := _columns_of(kind + suffix, names))
        ]
        if len(matches) > 1:
            kinds = " and ".join(kind + suffix for _, kind, _ in matches)
            raise ValueError(f"it holds {kinds}: choose one with input= (--input)")
        if matches:
            return matches[0]
    if BARE in names:
        return [BARE], _kind(request), ""
    what = request.input or "logits, probs or log_probs"
    parts = f", nor a part of that name with {suffixes[0]}" if suffixes[0] else ""
    advice = "name the columns with scores= and label= (--scores, --label)"
    raise ValueError(f"it has no {what}{parts}; it holds: {listed(names)}: {advice}")


def _kind(request: Request, *names: str) -> InputKind:
    """Return the kind of the scores: what the request says, or else the first of some names that says it."""
    for kind in (request.kind, *map(kind_by_name, names)):
        if kind is not None:
            return kind
    raise ValueError(
        "it does not say what its numbers are: input='logits', 'probs' or 'log_probs' (--input)"
    )


def _columns_of(kind: str, names: Sequence[str]) -> list[str]:
    """Return the array or column of lists that is named by a kind, or the columns whose names begin with it."""
    if kind in names:
        return [kind]
    columns = [n for n in names if re.match(rf"{kind}(?=[_ .\[\d])", n)]
    if len(columns) < 2:
        return []
    parts = [n[len(kind) :].strip("_ .[]") for n in columns]
    numbered = _by_number(columns, parts)
    if all(map(str.isdecimal, parts)) and not numbered:
        listing = one_line(", ".join(columns), 80)
        raise ValueError(
            f"the columns {kind}_0, {kind}_1, … have gaps or the same number: {listing}"
        )
    return numbered or columns


def match_scores(names: Sequence[str], pattern: str) -> list[str]:
    """Return the columns that the caller calls scores: a pattern, or names separated by commas.

    Numbered columns are put into the order of their numbers. Others keep the order of the file, or of the caller.

    >>> match_scores(["id", "logit_1", "logit_0"], "logit_*"), match_scores(["dog", "cat", "id"], "cat,dog")
    (['logit_0', 'logit_1'], ['cat', 'dog'])
    """
    if any(c in pattern for c in "*?["):
        columns = [n for n in names if fnmatchcase(n, pattern)]
        if not columns:
            raise ValueError(f"no column matches {quoted(pattern)}; it holds: {listed(names)}")
        return _by_number(columns, _class_parts(columns, pattern)) or columns
    columns = [name.strip() for name in pattern.split(",")]
    for name in columns:
        if name not in names:
            raise _lacks(name, names)
    if len(set(columns)) < len(columns):
        raise ValueError(f"{quoted(pattern)} names a column twice")
    return columns


def _class_parts(columns: Sequence[str], pattern: str | None) -> list[str]:
    """Return the part of each column's name that names its class: what the star matches, or all but the prefix."""
    if pattern is not None and pattern.count("*") == 1 and not any(c in pattern for c in "?["):
        start, _, end = pattern.partition("*")
        return [c.removeprefix(start).removesuffix(end).strip("[] ") for c in columns]
    return [class_part(c) for c in columns]


def _by_number(columns: list[str], parts: Sequence[str]) -> list[str]:
    """Return columns in the order of their numbers 0..K−1 or 1..K; an empty list if they are not numbered so."""
    if not all(part.isdecimal() and len(part) < 8 for part in parts):
        return []
    by_number = dict(sorted(zip(map(int, parts), columns, strict=True)))
    complete = any(list(by_number) == list(range(first, first + len(columns))) for first in (0, 1))
    return list(by_number.values()) if complete else []


def kind_by_name(column: str) -> InputKind | None:
    """Return the kind of scores that the name of a column states, or None.

    >>> [kind_by_name(name) for name in ("logit_cat", "log_prob_3", "p_cat", "cat", "price")]
    ['logits', 'log_probs', 'probs', None, None]
    """
    match = PREFIX.match(column)
    return None if match is None else match.lastgroup  # type: ignore[return-value]
