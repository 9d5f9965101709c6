"""How the rows of a file are asked for, and which of its columns or arrays play which part.

A column is a score because its name says so (``logits_0``) or because the caller chose it; nothing is guessed
from the numbers. A model remembers its request, so that the next file needs no options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from hcal.inputs import INPUT_KINDS, InputKind
from hcal.io.files import one_line, quoted

Part = Literal["cal", "test"]
OptionScore = Literal["sum", "length", "mutual-information"]
#: An array of a file that names its classes in the order of the columns.
CLASSES: Final = "classes"
#: The name of the one array of a file that names none.
BARE: Final = "_bare"
#: Columns, or arrays, beside the scores.
ROLES: Final = ("label", "id", "group", "weight")
_CHOICES: Final = {
    "input": INPUT_KINDS,
    "unit": ("fraction", "percent"),
    "option_score": ("sum", "length", "mutual-information"),
    "unlabelled": ("error", "drop"),
    "unreadable": ("error", "drop"),
    "ranges": ("error", "middle"),
}
#: What a model keeps; a file of labels, and what to do with bad rows, belong to one call.
_REMEMBERED: Final = ("scores", *ROLES, "input", "unit", "option_score", "classes", "ignore_index")
#: What changes the meaning of the numbers, with what it is by default: it cannot differ between a model and a file.
_MEANING: Final = {"input": None, "unit": "fraction", "option_score": "sum"}
_LONGEST: Final = 10_000
_PREFIX: Final = re.compile(r"(logits?|log[_ ]?probs?|probs?|p(?=[_ .\-\[]))[_ .\-]?", re.IGNORECASE)


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
    ignore_index : int, optional
        The label of rows to leave out, as of pixels that nobody labelled (often 255 or −100).
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
    unlabelled: str = "error"
    unreadable: str = "error"
    ranges: str = "error"
    ignore_index: int | None = None
    optional: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                what = {"input": "the kind of scores", "option_score": "score"}.get(name, name)
                raise ValueError(f"{what} must be one of {', '.join(choices)}, got {value!r}")
        for name in ("scores", *ROLES):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _LONGEST):
                raise ValueError(f"{name} must be the name of a column, got {quoted(value)}")
        if self.ignore_index is not None and type(self.ignore_index) is not int:
            raise ValueError(f"ignore_index must be an integer, got {quoted(self.ignore_index)}")

    def to_json(self) -> dict[str, Any]:
        """Return what a model remembers, as plain values."""
        found = {name: getattr(self, name) for name in _REMEMBERED}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items() if v is not None}

    @classmethod
    def from_json(cls, told: Any) -> Request:
        """Return what a model's header remembers, or refuse what is no such thing."""
        if not isinstance(told, Mapping) or not set(told) <= set(_REMEMBERED):
            raise ValueError(f"'request' must be an object with some of {', '.join(_REMEMBERED)}")
        names = told.get("classes")
        if not isinstance(names, list | None) or not all(isinstance(name, str) for name in names or ()):
            raise ValueError("'request.classes' must be a list of names")
        return cls(**{**told, "classes": None if names is None else tuple(names)})

    def for_model(self, remembered: Any) -> Request:
        """Return this request with what it leaves open as a model remembers it.

        A file may lack the label, id, group and weight that only the model names. What would change the
        meaning of the numbers is refused.
        """
        model = Request.from_json(remembered or {})
        for name, default in _MEANING.items():
            ours, theirs = getattr(self, name), getattr(model, name) or default
            if None not in (ours, theirs) and ours != theirs:
                what = name.replace("_", " ")
                raise ValueError(f"the model was fitted with {what} {theirs}, so {ours} cannot be right")
        filled = {n: getattr(model, n) for n in _REMEMBERED if getattr(self, n) is None}
        lacking = {role for role in ROLES if filled.get(role) is not None}
        return replace(self, **filled, optional=self.optional | lacking)

    @property
    def roles(self) -> dict[str, str]:
        """The columns beside the scores that were named."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}

    @property
    def plain(self) -> bool:
        """Whether nothing was said about columns."""
        return self.scores is None and self.labels is None and not self.roles


# -- which columns are what ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What to read of one file.

    Attributes
    ----------
    kind : {"logits", "probs", "log_probs"}
    scores : list of str
        The columns, in the order of the classes, or one array.
    roles : dict of str
        Label, id, group and weight, by the names of their columns.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    classes : tuple of str, or None
        Names that the columns give to their classes.
    """

    kind: InputKind
    scores: list[str]
    roles: dict[str, str]
    part: str = ""
    classes: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """All columns to read."""
        return list(dict.fromkeys([*self.scores, *self.roles.values()]))


def plan_of(names: Sequence[str], request: Request, part: Part, *, table: bool) -> Plan:
    """Decide which columns of a table, or which arrays, are what; arrays may have parts.

    >>> plan_of(["y", "probs_1", "probs_0"], Request(), "test", table=True).scores
    ['probs_0', 'probs_1']
    >>> plan_of(["id", "a", "b"], Request(scores="a,b", input="logits"), "test", table=True).classes
    ('a', 'b')
    """
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise ValueError(f"two columns are named {quoted(twice)}")
    roles = _roles(names, request, part)
    free = [n for n in names if n not in roles.values() and n != CLASSES]
    scores, kind, suffix = _find_scores(free, request, ("",) if table else (f"_{part}", ""))
    label = f"y{suffix}"
    if "label" not in roles and request.labels is None and label in free and label not in scores:
        roles["label"] = label
    return Plan(kind, scores, roles, suffix.lstrip("_"), named_classes(scores, request.scores))


def _roles(names: Sequence[str], request: Request, part: Part) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, name in request.roles.items():
        if role == "label" and request.labels is not None:
            continue
        held = next((n for n in (f"{name}_{part}", name) if n in names), None)
        if held is not None:
            found[role] = held
        elif role not in request.optional:
            raise _lacks(name, names)
    return found


def _lacks(name: str, names: Iterable[str]) -> ValueError:
    return ValueError(f"it has no {quoted(name)}; it holds: {_listed(names)}")


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(n for n in names if n != BARE), 120) or "nothing"


def _find_scores(names: Sequence[str], request: Request, suffixes: Sequence[str]) -> tuple[list[str], InputKind, str]:
    """Return the columns, or the array, of the scores, what they are, and the suffix of their part."""
    if request.scores is not None:
        suffix = next((s for s in suffixes if request.scores + s in names), "")
        columns = match_scores(names, request.scores + suffix)
        return columns, _kind(request, columns[0], request.scores), suffix
    wanted: tuple[Any, ...] = (request.input,) if request.input else INPUT_KINDS
    for suffix in suffixes:
        found = [(columns, kind, suffix) for kind in wanted if (columns := _columns_of(kind + suffix, names))]
        if len(found) > 1:
            kinds = " and ".join(kind + suffix for _, kind, _ in found)
            raise ValueError(f"it holds {kinds}: choose one with input= (--input)")
        if found:
            return found[0]
    if BARE in names:
        return [BARE], _kind(request), ""
    what = request.input or "logits, probs or log_probs"
    parts = f", nor a part of that name with {suffixes[0]}" if suffixes[0] else ""
    advice = "name the columns with scores= and label= (--scores, --label)"
    raise ValueError(f"it has no {what}{parts}; it holds: {_listed(names)}: {advice}")


def _kind(request: Request, *names: str) -> InputKind:
    """Return what the scores are, as the request or the first of some names says."""
    for kind in (request.input, *map(kind_by_name, names)):
        if kind is not None:
            return kind  # type: ignore[no-any-return]
    raise ValueError("it does not say what its numbers are: input='logits', 'probs' or 'log_probs' (--input)")


def _columns_of(kind: str, names: Sequence[str]) -> list[str]:
    """Return what is named by a kind: one array or column of lists, numbered columns, or one a class."""
    if kind in names:
        return [kind]
    found = [n for n in names if re.match(rf"{kind}(?=[_ .\[\d])", n)]
    parts = [n[len(kind) :].strip("_ .[]") for n in found]
    if len(found) < 2:
        return []
    numbered = _by_number(found, parts)
    if all(map(str.isdecimal, parts)) and not numbered:
        named = one_line(", ".join(found), 80)
        raise ValueError(f"the columns {kind}_0, {kind}_1, … have gaps or the same number: {named}")
    return numbered or found


def match_scores(names: Sequence[str], wanted: str) -> list[str]:
    """Return the columns that the caller calls scores: a pattern, or names with commas between them.

    Numbered columns come by their number, others as the file or the caller has them.

    >>> match_scores(["id", "logit_1", "logit_0"], "logit_*"), match_scores(["dog", "cat", "id"], "cat,dog")
    (['logit_0', 'logit_1'], ['cat', 'dog'])
    """
    if any(c in wanted for c in "*?["):
        found = [n for n in names if fnmatchcase(n, wanted)]
        if not found:
            raise ValueError(f"no column matches {quoted(wanted)}; it holds: {_listed(names)}")
        return _by_number(found, _class_parts(found, wanted)) or found
    found = [name.strip() for name in wanted.split(",")]
    for name in found:
        if name not in names:
            raise _lacks(name, names)
    if len(set(found)) < len(found):
        raise ValueError(f"{quoted(wanted)} names a column twice")
    return found


def _class_parts(columns: Sequence[str], wanted: str | None) -> list[str]:
    """Return what columns' names do not share: what the star stands for, or all but the prefix."""
    if wanted is not None and wanted.count("*") == 1 and not any(c in wanted for c in "?["):
        start, _, end = wanted.partition("*")
        return [c.removeprefix(start).removesuffix(end).strip("[] ") for c in columns]
    return [_PREFIX.sub("", c, count=1).strip("[] ") if _PREFIX.match(c) else c for c in columns]


def named_classes(columns: Sequence[str], wanted: str | None = None) -> tuple[str, ...] | None:
    """Return the names that score columns give to their classes; None where they only count them.

    >>> named_classes(["probs_cat", "probs_dog"]), named_classes(["logits_0", "logits_1"])
    (('cat', 'dog'), None)
    """
    parts = _class_parts(columns, wanted)
    named = len(parts) > 1 and all(parts) and len(set(parts)) == len(parts)
    return tuple(parts) if named and not _by_number(parts, parts) else None


def _by_number(columns: list[str], parts: Sequence[str]) -> list[str]:
    """Return columns in the order of their numbers 0..K−1 or 1..K; nothing where they have other parts."""
    if not all(part.isdecimal() and len(part) < 8 for part in parts):
        return []
    found = dict(zip(map(int, parts), columns, strict=True))
    numbers = sorted(found)
    gaps = numbers[0] > 1 or numbers[-1] - numbers[0] + 1 != len(columns) or len(numbers) < len(columns)
    return [] if gaps else [found[number] for number in numbers]


def kind_by_name(column: str) -> InputKind | None:
    """Return the kind of scores that a column's name states, if it states one.

    >>> [kind_by_name(name) for name in ("logit_cat", "log_prob_3", "p_cat", "cat", "price")]
    ['logits', 'log_probs', 'probs', None, None]
    """
    match = _PREFIX.match(column)
    if match is None:
        return None
    start = match[1].lower()
    return "log_probs" if start.startswith(("log_", "log ", "logp")) else "logits" if start[0] == "l" else "probs"
