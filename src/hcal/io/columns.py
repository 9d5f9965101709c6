"""Which columns of a table, or arrays of a file, play which part: said by the caller or by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

from hcal.io.limits import one_line
from hcal.inputs import INPUT_KINDS, InputKind

#: Where a bare matrix waits for its name.
BARE: Final = "_bare"
#: Columns that the caller chose stand under their part, which no file can hold by accident.
SCORES: Final = "@scores"
ROLES: Final = ("label", "id", "group", "weight")
#: Beside labels, the arrays that may hold text.
TEXT_ROLES: Final = ("label", "id", "group")
#: An array of a file that names its classes in the order of the columns.
CLASSES: Final = "classes"

_PREFIX: Final = re.compile(r"(?i:(?P<log>log[_ ]?)?(?P<kind>logit|prob)s?)(?:[_ .\-]|(?=\[))?")
_KINDS: Final[Mapping[tuple[bool, str], InputKind]] = {
    (False, "logit"): "logits",
    (False, "prob"): "probs",
    (True, "prob"): "log_probs",
}


@dataclass(frozen=True)
class Columns:
    """What a file calls its parts; None where the usual names (``logits_0`` …, ``y``) are meant.

    Attributes
    ----------
    scores : str, optional
        A pattern (``"logit_*"``), names with commas between them, or the name of one array.
    label, id, group, weight : str, optional
        Names of columns or arrays.

    Examples
    --------
    >>> Columns(scores="logit_*", label="target").wanted()
    {'label': 'target'}
    """

    scores: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    weight: str | None = None

    def wanted(self) -> dict[str, str]:
        """Return the parts that the caller named, apart from the scores."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


#: The usual names.
ANY: Final = Columns()


def role_key(role: str) -> str:
    """Return where the column of a part stands among the arrays of a table."""
    return f"@{role}"


def may_be_text(key: str, *, labels: bool = False) -> bool:
    """Whether an array of that name may hold text: labels, ids, groups and names of classes.

    ``labels`` says whether the whole file holds labels.

    >>> may_be_text("y_cal"), may_be_text("@id"), may_be_text("logits")
    (True, True, False)
    """
    base = key.removesuffix("_cal").removesuffix("_test")
    scores = base in INPUT_KINDS or key in (SCORES, role_key("weight"))
    return labels if key == BARE else not scores


def match_scores(names: Sequence[str], wish: str) -> list[str]:
    """Return the columns that the caller calls scores, in the order of the classes.

    Numbered columns come by their number, others as the file or the caller has them.

    ``wish`` is a pattern, or names with commas between them; ``names`` are the columns that have no other
    part.

    >>> match_scores(["id", "logit_1", "logit_0"], "logit_*")
    ['logit_0', 'logit_1']
    >>> match_scores(["dog", "cat", "id"], "cat,dog")
    ['cat', 'dog']
    """
    if any(c in wish for c in "*?["):
        pattern = re.compile(translate(wish))
        found = [n for n in names if pattern.match(n)]
        if not found:
            raise ValueError(f"no column matches {one_line(repr(wish), 60)}; it holds: {listed(names)}")
        numbers = _numbers(class_parts(found, wish))
        return found if numbers is None else [found[numbers.index(i)] for i in sorted(numbers)]
    found = [name.strip() for name in wish.split(",")]
    for name in found:
        if name not in names:
            raise ValueError(f"it has no column {one_line(repr(name), 60)}; it holds: {listed(names)}")
    if len(set(found)) < len(found):
        raise ValueError(f"{one_line(repr(wish), 60)} names a column twice")
    return found


def class_parts(columns: Sequence[str], wish: str | None = None) -> list[str]:
    """Return what is left of columns' names without what they share: what the star stands for, or no prefix.

    >>> class_parts(["logit_cat", "logit_dog"]), class_parts(["m1:cat", "m1:dog"], "m1:*")
    (['cat', 'dog'], ['cat', 'dog'])
    """
    if wish is not None and wish.count("*") == 1 and not any(c in wish for c in "?["):
        start, _, end = wish.partition("*")
        return [c[len(start) : len(c) - len(end)] for c in columns]
    return [_PREFIX.sub("", c, count=1) if _PREFIX.match(c) else c for c in columns]


def named_classes(columns: Sequence[str], wish: str | None = None) -> tuple[str, ...] | None:
    """Return the names that score columns give to their classes; None where they only count them.

    >>> named_classes(["probs_cat", "probs_dog"]), named_classes(["logits_0", "logits_1"])
    (('cat', 'dog'), None)
    """
    parts = [part.strip("[] ") for part in class_parts(columns, wish)]
    if len(parts) < 2 or _numbers(parts) is not None or len(set(parts)) < len(parts) or not all(parts):
        return None
    return tuple(parts)


def _numbers(parts: Sequence[str]) -> list[int] | None:
    """Return numbers 0..K−1 or 1..K in any order, or None where the parts are something else."""
    digits = [p.strip("[] ").removeprefix("column ") for p in parts]
    if not all(d.isdecimal() and len(d) < 8 for d in digits):
        return None
    found = [int(d) for d in digits]
    counted = (list(range(len(found))), list(range(1, len(found) + 1)))
    return found if sorted(found) in counted else None


def kind_by_name(column: str) -> InputKind | None:
    """Return the kind of scores that a column's name states, if it states one.

    >>> kind_by_name("logit_cat"), kind_by_name("log_prob_3"), kind_by_name("cat")
    ('logits', 'log_probs', None)
    """
    match = _PREFIX.match(column)
    return None if match is None else _KINDS.get((bool(match["log"]), match["kind"].lower()))


def listed(names: Iterable[str]) -> str:
    """Return names in one short line, for messages.

    >>> listed(["b", "a"])
    'b, a'
    """
    shown = [n for n in names if not n.startswith("@") and n != BARE]
    return one_line(", ".join(shown), 120) or "nothing"
