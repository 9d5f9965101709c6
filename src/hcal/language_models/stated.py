"""Confidences that a model, or a grader, states about answers: in numbers on a scale, or in words.

A text states a confidence only if it can be read in one way. "50/50", "between 70 and 80 %", "at least 90 %" and
"95 % confident, 5 % doubt" cannot: such answers are unreadable, and they are counted and quoted.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.io.scale import Scale
from hcal.language_models.answers import is_right
from hcal.numerics import Float64, IntArray
from hcal.text import quoted

#: The confidence that words stand for if no number is stated; pass another table to :func:`read_stated`.
WORDS: Final[Mapping[str, float]] = {
    "certain": 0.99, "almost certain": 0.95, "highly likely": 0.9, "very likely": 0.9,
    "likely": 0.7, "probable": 0.7, "better than even": 0.6, "about even": 0.5, "toss-up": 0.5,
    "possible": 0.4,
    "unlikely": 0.2, "improbable": 0.2, "very unlikely": 0.1, "highly unlikely": 0.1,
    "almost no chance": 0.05, "impossible": 0.01,
}  # fmt: skip
#: How many examples of what cannot be read a message quotes.
_EXAMPLES: Final = 3


@dataclass(frozen=True)
class Stated:
    """Stated confidences, and whether the answers were right: for hcal a problem with two classes.

    Attributes
    ----------
    confidence : array of shape (N,)
        The stated probability that the answer is right.
    correct : array of shape (N,), or None
        1 where the answer was right; None if no record says so.
    unread : list of int
        The numbers of the records whose confidence could not be read; they are not among the N.
    quotes : list of str
        What these records say, and where.

    Examples
    --------
    >>> from hcal.language_models import read_stated
    >>> stated = read_stated([{"confidence": "95 %", "correct": True}])
    >>> stated.confidence, stated.correct
    (array([0.95]), array([1]))
    """

    confidence: Float64
    correct: IntArray | None
    unread: list[int]
    quotes: Sequence[str] = ()

    @property
    def note(self) -> str:
        """How many confidences could not be read, with examples; an empty text if there are none."""
        if not self.unread:
            return ""
        examples = ", ".join(self.quotes[:_EXAMPLES])
        return (
            f"{len(self.unread):,} answers whose confidence cannot be read were dropped, such as "
            f"{examples}"
        )


def read_stated(
    records: Iterable[Mapping[str, object]],
    *,
    unit: str = "fraction",
    ranges: str = "error",
    unreadable: str = "drop",
    words: Mapping[str, float] = WORDS,
    places: Sequence[str] | None = None,
) -> Stated:
    """Read the confidences that a model, or a grader, states about answers.

    Parameters
    ----------
    records : iterable of mappings
        Each with ``confidence`` (a number, or a text such as "85%", "95,5 %", "9/10", "8 out of 10" or
        "very likely") and either ``correct`` (true or false, yes or no) or ``answer`` and ``target``, a text or a
        list of texts, which are compared by :func:`normal_answer`.
    unit : str
        What plain numbers are: ``"fraction"`` (up to 1), ``"percent"`` (up to 100), or the ends of another scale,
        such as ``"0-10"`` or ``"1-5"`` for a grader. A number with a per cent sign is always a percentage.
    ranges : {"error", "middle"}
        Whether "70-80 %" counts as unreadable or as 0.75.
    unreadable : {"drop", "error"}
        What happens to records whose confidence cannot be read for certain.
    words : mapping of str to float
        What words mean if no number is stated; :data:`WORDS` by default.
    places : sequence of str, optional
        How error messages name the records.

    Examples
    --------
    >>> rows = [
    ...     {"answer": "Paris.", "target": ["paris", "Paname"], "confidence": "95,5 %"},
    ...     {"answer": "Lyon", "target": "Paris", "confidence": 0.6},
    ...     {"correct": "yes", "confidence": "50/50"},
    ... ]
    >>> stated = read_stated(rows)
    >>> stated.confidence, stated.correct, stated.unread, stated.quotes
    (array([0.955, 0.6  ]), array([1, 0]), [2], ["'50/50' (record 2)"])
    """
    reader = Reader(Scale.of(unit), ranges=ranges, words=words)
    confidences = list[float]()
    correct = list[bool | None]()
    unread = dict[int, str]()
    for number, record in enumerate(records):
        where = f"record {number}" if places is None else places[number]
        if not isinstance(record, Mapping):
            raise ValueError(f"{where}: no answer with its 'confidence'")
        right = is_right(record, where)
        statement = record.get("confidence")
        confidence = reader.read(statement)
        if confidence is None:
            unread[number] = f"{quoted(statement)} ({where})"
            continue
        confidences.append(confidence)
        correct.append(right)
    reader.check_scale(n_read=len(confidences))
    quotes = list(unread.values())
    if not confidences or (unread and unreadable != "drop"):
        raise _unreadable(len(unread) + len(confidences), quotes, reader)
    return Stated(np.array(confidences), answers_of(correct), list(unread), quotes)


def answers_of(correct: Sequence[bool | None]) -> IntArray | None:
    """Return 1 for right and 0 for wrong answers; None if no record says which; refuse some that do not."""
    missing = [number for number, right in enumerate(correct) if right is None]
    if len(missing) == len(correct):
        return None
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(correct):,} answers have neither 'correct' nor 'answer' and "
            "'target', and the others have: leave them out"
        )
    return np.array(correct, dtype=np.int64)


def _unreadable(total: int, quotes: Sequence[str], reader: Reader) -> ValueError:
    examples = ", ".join(quotes[:_EXAMPLES])
    advice = "unreadable='drop' (--unreadable drop) goes on without them"
    if reader.outside:
        advice = f"{reader.about_scale()}; or {advice}"
    return ValueError(
        f"{len(quotes):,} of {total:,} confidences cannot be read, such as {examples}: {advice}"
    )


# -- one confidence -------------------------------------------------------------------------------

_DIGITS: Final = r"(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?"
_PERCENT: Final = r"\s*(?:%|per ?cents?\b|pct\b)"
#: A number that nothing else hangs on, with a per cent sign if it has one.
_QUANTITY: Final = re.compile(rf"({_DIGITS})({_PERCENT})?")
_RANGE: Final = re.compile(
    rf"(?:between |from )?({_DIGITS})({_PERCENT})?\s*"
    rf"(?:-|to|and|bis|\.\.+)\s*({_DIGITS})({_PERCENT})?"
)
_RATIO: Final = re.compile(
    rf"({_DIGITS})\s*(?:/|out of)\s*({_DIGITS})"
    rf"(?!\s*(?:/|{_PERCENT}|(?!times|cases|points|marks|stars)[a-z]+s\b))"
)
#: A number of things that a confidence rests on: "of 3 sources: 85 %".
_COUNT: Final = re.compile(r"(?<![\d%] )\b(?:of|from|in|with|after|among) \d+ [a-z]+s\b")
#: With these words a number is a bound, the opposite of a confidence, denied, or one of several.
_TURNING: Final = (
    "not", "no", "never", "nor", "neither", "cannot", "without", "nicht", "kein",
    "at least", "at most", "less", "more", "fewer", "greater", "higher", "lower", "better",
    "worse", "under", "over", "above", "below", "beyond", "up to", "min", "minimum", "max",
    "maximum", "or", "vs", "versus", "if", "unless", r"doubt\w*", r"uncertain\w*", "unsure",
    r"unlikel\w*", r"improbabl\w*", r"wrong\w*", r"incorrect\w*", r"mistake\w*",
    r"false\w*", r"error\w*", r"risk\w*", r"fail\w*",
)  # fmt: skip
_TURNED: Final = re.compile(rf"\b(?:{'|'.join(_TURNING)})\b|n't\b|[<>≤≥±]")
#: Words beside a confidence in words that do not change it.
_NEUTRAL: Final = frozenset(
    {
        "i", "am", "i'm", "it", "it's", "is", "that", "this", "the", "a", "my", "answer",
        "confidence", "level", "think", "believe", "feel", "say", "would", "be", "correct",
        "right", "probability", "chance", "here",
    }
)  # fmt: skip
#: Ratios of one number to itself that are marks, and not even odds.
_FULL_MARKS: Final = (5.0, 10.0, 100.0)
_LONGEST_TEXT: Final = 2000


class Reader:
    """Reads confidences one by one, and notices whether the scale can be right."""

    def __init__(self, scale: Scale, *, ranges: str, words: Mapping[str, float]) -> None:
        self._scale = scale
        self._ranges = ranges
        self._words = {statement_text(name): value for name, value in words.items()}
        #: Plain numbers on the scale, and those outside of it.
        self.inside = list[float]()
        self.outside = list[float]()

    def read(self, statement: object) -> float | None:
        """Return a stated confidence as a number from 0 to 1; None if it is not certain what was stated."""
        if isinstance(statement, bool) or not isinstance(statement, str | int | float):
            return None
        if not isinstance(statement, str):
            return self._on_scale(_number(statement))
        text = statement_text(statement)
        if not text or len(text) > _LONGEST_TEXT:
            return None
        if not any(char.isdigit() for char in text):
            return self._in_words(text)
        return self._in_numbers(text)

    def check_scale(self, n_read: int) -> None:
        """Raise a ValueError if more plain numbers lie outside of the scale than confidences could be read."""
        if len(self.outside) > n_read:
            raise ValueError(
                f"{len(self.outside):,} of {len(self.outside) + n_read:,} confidences are not "
                f"between {self._scale.low:g} and {self._scale.high:g}: {self.about_scale()}"
            )

    def about_scale(self) -> str:
        """Return what to do about numbers outside of the scale."""
        numbers = [*self.outside, *self.inside]
        return (
            f"plain numbers go from {min(numbers):g} to {max(numbers):g}, and were read on a scale "
            f"from {self._scale}; say their scale, such as unit='0-10' (--unit 0-10), or "
            "unit='percent'"
        )

    def _on_scale(self, number: float) -> float | None:
        """Return the share of a plain number, None outside of the scale or where its unit is in doubt."""
        if not math.isfinite(number) or self._scale.is_in_doubt(number):
            return None
        share = self._scale.share(number)
        if not 0 <= share <= 1:
            self.outside.append(number)
            return None
        self.inside.append(number)
        return share

    def _in_words(self, text: str) -> float | None:
        """Return what the only phrase of the table in a text stands for; None if other words may change it."""
        phrases = sorted(self._words, key=len, reverse=True)
        for phrase in phrases:
            before, matching, after = _around(text, phrase)
            if matching:
                others = re.findall(r"[\w'-]+", f"{before} {after}")
                is_plain = all(word in _NEUTRAL for word in others)
                return float(self._words[phrase]) if is_plain else None
        return None

    def _in_numbers(self, text: str) -> float | None:
        """Return the only quantity in a text."""
        text = _COUNT.sub(" ", text)
        if _TURNED.search(text):
            return None
        for pattern, value_of in (
            (_RANGE, self._range),
            (_RATIO, self._mark),
            (_QUANTITY, self._one),
        ):
            match = pattern.search(text)
            if match is not None:
                return value_of(match) if _stands_alone(text, match) else None
        return None

    def _range(self, match: re.Match[str]) -> float | None:
        """Return the middle of a range if the caller wants it."""
        low, high = float(match[1]), float(match[3])
        if self._ranges != "middle" or not low < high:
            return None
        if match[2] or match[4]:
            is_mixed = match[4] is None or (match[2] is None and low < 1 < high)
            return None if is_mixed or high > 100 else (low + high) / 200
        shares = [self._on_scale(low), self._on_scale(high)]
        return None if None in shares else self._scale.share((low + high) / 2)

    def _mark(self, match: re.Match[str]) -> float | None:
        """Return a ratio; on a scale from 1 to 5, "4/5" is the mark 4, as "4" is."""
        if self._scale.low != 0 and float(match[2]) == self._scale.high:
            return self._on_scale(float(match[1]))
        return _ratio(match)

    def _one(self, match: re.Match[str]) -> float | None:
        """Return a single number, a percentage or one on the scale."""
        number = float(match[1])
        if match[2] is None:
            return self._on_scale(number)
        return number / 100 if number <= 100 else None


def _number(value: float) -> float:
    """Return a number of JSON as a float, infinite where it is larger than all."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _ratio(match: re.Match[str]) -> float | None:
    """Return a ratio; None for odds such as 50/50 or 60/40, and for more than all.

    >>> [_ratio(_RATIO.search(text)) for text in ("9/10", "10/10", "1/2", "50/50", "60/40", "24/7")]
    [0.9, 1.0, 0.5, None, None, None]
    """
    part = float(match[1])
    total = float(match[2])
    if not 0 <= part <= total or total == 0 or math.isinf(total):
        return None
    are_odds = part + total == 100 or (part == total and total not in _FULL_MARKS)
    return None if are_odds else part / total


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    """Whether nothing hangs on a quantity, and no other digit stands in the text."""
    before, after = text[: match.start()], text[match.end() :]
    if any(char.isdigit() for char in before + after):
        return False
    # A sign, a currency or a unit right before or after makes it another quantity; "confidence - 80 %" does not.
    hangs_before = re.search(r"(?:[\w.,'/:+$€£#]|(?:^|[^\w\s])\s*-\s*|-)$", before)
    is_separator = re.search(r"\w\s+-\s+$", before)
    hangs_after = re.match(r"[\w'/:‰°$€£^*+%-]|[.,]\w|\s*(?:‰|:\s*\d|times\b|x\b|of\b|in\b)", after)
    return (not hangs_before or bool(is_separator) or _ends_label(before)) and not hangs_after


def _ends_label(before: str) -> bool:
    """Whether a colon or an equals sign before a quantity ends its label: "confidence:0.8"."""
    return bool(re.search(r"[a-z]\s*[:=]\s*$", before))


def _around(text: str, phrase: str) -> tuple[str, str, str]:
    """Return what stands before a phrase, the phrase, and what stands after it; empty texts if it does not occur."""
    match = re.search(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", text)
    if match is None:
        return "", "", ""
    return text[: match.start()], phrase, text[match.end() :]


def statement_text(text: str) -> str:
    """Return a text in lower case with ASCII digits, decimal points, and one kind of dash.

    A comma between digits is a decimal comma, unless three digits follow: "1,000" may be a thousand, so it stays and
    makes the number unreadable. So do raised digits and fractions such as ½.

    >>> statement_text("８５％"), statement_text("95,5 %"), statement_text("70–80"), statement_text("1,000")
    ('85%', '95.5 %', '70-80', '1,000')
    """
    chars = [_plain_char(char) for char in text.casefold()]
    joined = " ".join("".join(chars).split())
    return re.sub(r"(?<![\d.,])(\d+),(\d{1,2}|\d{4,}|(?<=0,)\d{3})(?![\d.,])", r"\1.\2", joined)


def _plain_char(char: str) -> str:
    """Return a character as the patterns of this module know it."""
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if char in "‐‑‒–—―−﹣－":
        return "-"
    if char in "％٪﹪":
        return "%"
    if char in "．٫":
        return "."
    if char in "*_`":  # marks of bold text and of code
        return " "
    return {"，": ",", "’": "'", "／": "/", "⁄": "/", "：": ":"}.get(char, char)
