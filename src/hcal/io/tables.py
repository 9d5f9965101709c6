"""Which columns of a table, or arrays of a file, play which part: said by the caller or by their names.

A column is a score because its name says so (``logits_0``), because the caller chose it, or because the
caller said that all free columns are scores. Then a column that looks like something else (an index, an ``id``, a
``label``) is refused by name. Nothing is guessed from the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.inputs import INPUT_KINDS, InputKind, to_numpy
from hcal.io.arrays import BARE
from hcal.io.limits import one_line
from hcal.io.request import Request

Part = Literal["cal", "test"]
#: An array of a file that names its classes in the order of the columns.
CLASSES: Final = "classes"

_PREFIX: Final = re.compile(
    r"(?i:(?P<log>log[_ ]?)?(?P<kind>logit|prob|p(?=[_ .\-\[]))s?)(?:[_ .\-]|(?=\[))?"
)
_KINDS: Final[Mapping[tuple[bool, str], InputKind]] = {
    (False, "logit"): "logits",
    (False, "prob"): "probs",
    (False, "p"): "probs",
    (True, "prob"): "log_probs",
}
_NOT_SCORES: Final = re.compile(
    r"|unnamed: ?\d+|__index_level_\d+__|(row|sample)?[_ ]?(id|ids|index|idx|nr|number)|row|uuid|key"
    r"|(true|pred|predicted)?[_ ]?(label|labels|target|targets|class|classes|prediction|predictions)"
    r"|y[_ ](true|pred|hat)|pred|truth|folds?|splits?|groups?|parts?|(sample[_ ]?)?weights?"
    r"|date|time|timestamp",
    re.IGNORECASE,
)
_WAY_OUT: Final = (
    "does not look like scores: leave it out (labels are named y), or name the scores logits_0, logits_1, …"
)
#: What stands for "no label", where no class has that name.
MISSING: Final = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "None"})


class UnknownKindError(ValueError):
    """A file does not say whether it holds logits, probs or log_probs, or holds several of them."""


class OtherColumnError(ValueError):
    """A column is among the scores that does not look like one."""


class UnlabelledError(ValueError):
    """Rows have no label."""


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
    listed : str, optional
        The array that lists the names of the classes.
    free : bool
        Whether the scores are all columns that nobody named.
    """

    kind: InputKind
    scores: list[str]
    roles: dict[str, str] = field(default_factory=dict)
    part: str = ""
    classes: tuple[str, ...] | None = None
    listed: str | None = None
    free: bool = False

    @property
    def columns(self) -> list[str]:
        """All columns to read."""
        return list(dict.fromkeys([*self.scores, *self.roles.values()]))


def plan_of(
    names: Sequence[str], request: Request, part: Part, *, table: bool, index: Iterable[str] = ()
) -> Plan:
    """Decide which columns, or arrays, are what.

    ``index`` are columns that the file itself calls an index.

    >>> plan_of(["y", "probs_1", "probs_0"], Request(), "test", table=True).scores
    ['probs_0', 'probs_1']
    >>> plan_of(["id", "a", "b"], Request(scores="a,b", input="logits"), "test", table=True).classes
    ('a', 'b')
    """
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise ValueError(f"two columns are named {one_line(repr(twice), 60)}")
    roles = _roles(names, request, part)
    taken = set(roles.values())
    free = [n for n in names if n not in taken and n != CLASSES]
    if table:
        scores, kind, bare = _score_columns(free, request)
        suffix = ""
    else:
        scores, kind, suffix = _score_array(free, request, part)
        bare = False
    label = f"y{suffix}"
    if "label" not in roles and request.labels is None and label in free and label not in scores:
        roles["label"] = label
    if bare:
        scores = [n for n in scores if n not in roles.values()]
        for name in scores:
            if name in index or _NOT_SCORES.fullmatch(name.strip()):
                what = f"the column {one_line(repr(name), 60)}" if name.strip() else "a column without a name"
                raise OtherColumnError(f"{what} {_WAY_OUT}")
    listed = CLASSES if CLASSES in names and not table else None
    classes = named_classes(scores, request.scores) if table else None
    return Plan(kind, scores, roles, suffix.lstrip("_"), classes, listed, bare)


def _roles(names: Sequence[str], request: Request, part: Part) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, name in request.roles.items():
        if role == "label" and request.labels is not None:
            continue
        held = next((n for n in (f"{name}_{part}", name) if n in names), None)
        if held is not None:
            found[role] = held
        elif role not in request.optional:
            raise _lacks("column", name, names)
    return found


def _lacks(what: str, name: str, names: Iterable[str]) -> ValueError:
    return ValueError(f"it has no {what} {one_line(repr(name), 60)}; it holds: {listed_names(names)}")


def _score_columns(names: Sequence[str], request: Request) -> tuple[list[str], InputKind, bool]:
    """Return the columns of the scores, what they are, and whether nobody named them."""
    if request.scores is not None:
        scores = match_scores(names, request.scores)
        return scores, _kind(request, scores[0], request.scores), False
    wanted: tuple[Any, ...] = (request.input,) if request.input else INPUT_KINDS
    found = {kind: columns for kind in wanted if (columns := _columns_of(kind, names))}
    if len(found) > 1:
        raise UnknownKindError(f"it holds {' and '.join(found)}: choose one")
    for kind, columns in found.items():
        return columns, kind, False
    free = [n for n in names if n != "y"]
    other = next((k for k in INPUT_KINDS if _columns_of(k, names)), None)
    if other is not None or not free:
        raise ValueError(
            f"it has no {request.input or 'logits, probs or log_probs'}; it holds: {listed_names(names)}"
        )
    return free, _kind(request), True


def _kind(request: Request, *names: str) -> InputKind:
    """Return what the scores are, as the request or the first of some names says."""
    known: list[InputKind | None] = [request.input, *map(kind_by_name, names)]
    for kind in known:
        if kind is not None:
            return kind
    raise UnknownKindError("it does not say what its numbers are")


def _columns_of(kind: str, names: Sequence[str]) -> list[str]:
    """Return the columns of a kind: one column of lists, numbered ones by number, or one a class."""
    if kind in names:
        return [kind]
    found = [n for n in names if re.match(rf"{kind}(?=[_ .\[\d])", n)]
    parts = [n[len(kind) :].strip("_ .[]") for n in found]
    if not all(p.isdecimal() and len(p) < 8 for p in parts):
        return found if len(found) > 1 else []
    in_order = sorted(zip(map(int, parts), found, strict=True))
    for (number, first), (other, second) in pairwise(in_order):
        if number == other:
            raise ValueError(f"the columns {first!r} and {second!r} have the same number")
    numbers = [number for number, _ in in_order]
    if numbers and _numbers(parts) is None:
        raise ValueError(f"the columns {kind}_0, {kind}_1, … have gaps: found {one_line(numbers, 80)}")
    return [name for _, name in in_order]


def _score_array(names: Sequence[str], request: Request, part: Part) -> tuple[list[str], InputKind, str]:
    """Return the array of the scores, what it holds, and the suffix of its part."""
    if request.scores is not None:
        held = next((n for n in (f"{request.scores}_{part}", request.scores) if n in names), None)
        if held is None:
            raise _lacks("array", request.scores, names)
        return [held], _kind(request, held), held.removeprefix(request.scores)
    wanted: tuple[Any, ...] = (request.input,) if request.input else INPUT_KINDS
    for suffix in (f"_{part}", ""):
        found = [k for k in wanted if k + suffix in names]
        if len(found) > 1:
            raise UnknownKindError(f"it holds {' and '.join(k + suffix for k in found)}: choose one")
        if found:
            return [found[0] + suffix], found[0], suffix
    if BARE in names:
        return [BARE], _kind(request), ""
    what = request.input or "logits, probs or log_probs"
    role = "calibration" if part == "cal" else "test"
    raise ValueError(
        f"it has no {what} (nor a {role} part of that name with _{part}); "
        f"it holds: {listed_names(sorted(names))}"
    )


def match_scores(names: Sequence[str], wish: str) -> list[str]:
    """Return the columns that the caller calls scores: a pattern, or names with commas between them.

    Numbered columns come by their number, others as the file or the caller has them.

    >>> match_scores(["id", "logit_1", "logit_0"], "logit_*"), match_scores(["dog", "cat", "id"], "cat,dog")
    (['logit_0', 'logit_1'], ['cat', 'dog'])
    """
    if any(c in wish for c in "*?["):
        pattern = re.compile(translate(wish))
        found = [n for n in names if pattern.match(n)]
        if not found:
            raise ValueError(f"no column matches {one_line(repr(wish), 60)}; it holds: {listed_names(names)}")
        numbers = _numbers(_class_parts(found, wish))
        return found if numbers is None else [found[numbers.index(i)] for i in sorted(numbers)]
    found = [name.strip() for name in wish.split(",")]
    for name in found:
        if name not in names:
            raise _lacks("column", name, names)
    if len(set(found)) < len(found):
        raise ValueError(f"{one_line(repr(wish), 60)} names a column twice")
    return found


def _class_parts(columns: Sequence[str], wish: str | None = None) -> list[str]:
    """Return what columns' names do not share: what the star stands for, or all but the prefix."""
    if wish is not None and wish.count("*") == 1 and not any(c in wish for c in "?["):
        start, _, end = wish.partition("*")
        return [c[len(start) : len(c) - len(end)] for c in columns]
    return [_PREFIX.sub("", c, count=1) if _PREFIX.match(c) else c for c in columns]


def named_classes(columns: Sequence[str], wish: str | None = None) -> tuple[str, ...] | None:
    """Return the names that score columns give to their classes; None where they only count them.

    >>> named_classes(["probs_cat", "probs_dog"]), named_classes(["logits_0", "logits_1"])
    (('cat', 'dog'), None)
    """
    parts = [part.strip("[] ") for part in _class_parts(columns, wish)]
    if len(parts) < 2 or _numbers(parts) is not None or len(set(parts)) < len(parts) or not all(parts):
        return None
    return tuple(parts)


def _numbers(parts: Sequence[str]) -> list[int] | None:
    """Return numbers 0..K−1 or 1..K in any order, or None where the parts are something else."""
    digits = [p.strip("[] ").removeprefix("column ") for p in parts]
    if not all(d.isdecimal() and len(d) < 8 for d in digits):
        return None
    found = [int(d) for d in digits]
    return found if sorted(found) in (list(range(len(found))), list(range(1, len(found) + 1))) else None


def kind_by_name(column: str) -> InputKind | None:
    """Return the kind of scores that a column's name states, if it states one.

    >>> [kind_by_name(name) for name in ("logit_cat", "log_prob_3", "p_cat", "cat", "price")]
    ['logits', 'log_probs', 'probs', None, None]
    """
    match = _PREFIX.match(column)
    return None if match is None else _KINDS.get((bool(match["log"]), match["kind"].lower()))


def listed_names(names: Iterable[str]) -> str:
    """Return names in one short line, for messages."""
    return one_line(", ".join(n for n in names if n != BARE), 120) or "nothing"


def refuse_identifiers(columns: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
    """Refuse a free column of whole numbers among columns that are not: a number of a row, or a label."""
    # A column of one value (a class that is never predicted) says nothing.
    whole = [len(c) and (np.rint(c) == c).all() for c in columns]
    varies = [bool(w) and bool((c != c[0]).any()) for w, c in zip(whole, columns, strict=True)]
    if any(varies) and not all(whole):
        name = one_line(repr(names[varies.index(True)]), 60)
        raise OtherColumnError(f"the column {name} holds whole numbers, others do not: it {_WAY_OUT}")


# -- cells ------------------------------------------------------------------------------------------


def typed(cells: Sequence[Any], *, text: bool = False, ids: bool = False) -> NDArray[Any]:
    """Return cells of labels, ids or groups as integers where all are, as other numbers, or as text.

    A missing one is NaN among numbers and empty among text. ``text`` says that other cells have shown to be
    text, whatever these look like; ids that do not look like plain integers stay text.

    >>> typed(["0017", "2"], ids=True), typed(["1", None]), typed([True, False])
    (array(['0017', '2'], dtype='<U4'), array([ 1., nan]), array([1, 0]))
    """
    plain = (int(c) if isinstance(c, bool) else c for c in cells)
    texts = ["" if c is None or c != c else str(c).strip() for c in plain]
    known = [t for t in texts if t not in MISSING]
    if text or not known:
        return np.array(texts, dtype=np.str_)
    whole = all(t.lstrip("-").isdecimal() and len(t) < 19 and str(int(t)) == t for t in known)
    if whole and len(known) == len(texts):
        return np.array([int(t) for t in texts], dtype=np.int64)
    if whole or (not ids and all(map(is_number, known))):
        return np.array([np.nan if t in MISSING else float(t) for t in texts])
    return np.array(texts, dtype=np.str_)


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def missing_labels(y: Any, classes: Sequence[Any] | None = None) -> NDArray[np.bool_]:
    """Return which labels are missing (N,): None, NaN, or a text such as "" or "NA" that no class is named.

    >>> missing_labels(["cat", "", None, "NA"]).tolist()
    [False, True, True, True]
    """
    labels = y if isinstance(y, np.ndarray) else to_numpy(y, "y")[0]
    if labels.dtype.kind == "f":
        return np.asarray(np.isnan(labels))
    if labels.dtype.kind not in "OUST":
        return np.zeros(labels.shape, dtype=bool)
    nothing = MISSING - {str(name) for name in classes or ()}
    flat = [v is None or v != v or str(v).strip() in nothing for v in labels.ravel().tolist()]
    return np.array(flat, dtype=bool).reshape(labels.shape)


def drop_unlabelled(scores: Any, y: Any, *others: Any) -> tuple[Any, ...]:
    """Return scores, labels and whatever else has a value a row, without the rows that have no label.

    Parameters
    ----------
    scores : array-like of shape (N, K) or (N,)
    y : array-like of shape (N,)
        None, NaN and empty text are no labels.
    others : array-like of shape (N,)
        Weights or groups.

    Returns
    -------
    tuple
        As many as were given, in their order.

    Examples
    --------
    >>> drop_unlabelled(np.eye(3), [0, None, 2])[1]
    [0, 2]
    """
    kept = ~missing_labels(y)
    return tuple(_rows(values, kept) for values in (scores, y, *others))


def _rows(values: Any, kept: NDArray[np.bool_]) -> Any:
    if len(values) != len(kept):
        raise ValueError(f"{len(values)} rows beside {len(kept)} labels")
    if isinstance(values, list | tuple):
        found = [value for value, keep in zip(values, kept, strict=True) if keep]
        return type(values)(found)
    if hasattr(values, "loc"):
        return values.loc[kept]
    return values.filter(kept) if hasattr(values, "filter") else values[kept]
