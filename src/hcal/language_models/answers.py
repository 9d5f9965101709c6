"""Whether an answer is right: as the record says, or by comparing it with the targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hcal.text import quoted

#: What stands for right and wrong in ``correct``.
_RIGHT: Final = frozenset({"1", "true", "yes", "correct", "right"})
_WRONG: Final = frozenset({"0", "false", "no", "incorrect", "wrong"})
#: What stands for an answer that nobody has judged.
_UNKNOWN: Final = (None, "")


def normal_answer(text: object) -> str:
    """Return an answer in the form in which answers are compared: lower case, single spaces, no outer punctuation.

    >>> normal_answer(" Paris. ") == normal_answer("paris"), normal_answer("The  Hague!"), normal_answer(4.0)
    (True, 'the hague', '4')
    """
    if isinstance(text, float) and math.isfinite(text) and text == int(text):
        text = int(text)
    return " ".join(str(text).split()).strip(" .,;:!?\"'`*()[]").casefold()


def is_right(record: Mapping[str, object], where: str) -> bool | None:
    """Return whether the answer of a record is right; None if nobody says so.

    >>> is_right({"answer": "The Hague.", "target": ["Den Haag", "The Hague"]}, "record 0")
    True
    """
    if "correct" in record:
        return _as_stated(record["correct"], where)
    if not {"answer", "target"} <= record.keys():
        return None
    targets = record["target"]
    if targets in _UNKNOWN or targets == []:
        return None
    listing = targets if isinstance(targets, list) else [targets]
    for name, value in (("answer", record["answer"]), *(("target", entry) for entry in listing)):
        if not isinstance(value, str | int | float):
            raise ValueError(f"{where}: {name!r} must be a text or a number, got {quoted(value)}")
    names = {normal_answer(target) for target in listing}
    return normal_answer(record["answer"]) in names


def _as_stated(value: object, where: str) -> bool | None:
    """Return what ``correct`` says."""
    if value in _UNKNOWN:
        return None
    word = normal_answer(value)
    if word not in _RIGHT | _WRONG:
        raise ValueError(f"{where}: 'correct' must be true or false, got {quoted(value)}")
    return word in _RIGHT
