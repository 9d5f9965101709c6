"""Text output: names from outside made safe to print, and values that JSON can hold."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

#: What becomes an object in JSON: numbers, text, lists and objects by their names.
JsonObject = dict[str, Any]

_CONTROLS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

#: What a spreadsheet computes: a formula, or a sign before a call of a function or of another program.
_FORMULA: Final = re.compile(r"\s*(=|[+\-@].*(\||\w\())", re.DOTALL)


def printable(text: object) -> str:
    r"""Return a name with control characters, such as terminal escapes, shown as escapes.

    >>> print(printable("caf\u00e9 \x1b[31mred"))
    café \x1b[31mred
    >>> printable("5\N{NO-BREAK SPACE}%")
    '5 %'
    """
    plain = str(text).replace("\N{NO-BREAK SPACE}", " ")
    return "".join(char if char.isprintable() else _escape(char) for char in plain)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def without_controls(text: str) -> str:
    r"""Return a whole page or file with control characters, and marks that reverse text, shown as escapes.

    >>> print(without_controls("one\nred \x1b[31m"))
    one
    red \x1b[31m
    """
    return _CONTROLS.sub(lambda match: _escape(match[0]), text)


def json_without_controls(text: str) -> str:
    r"""Return JSON with the control characters that JSON allows, and marks that reverse text, as its escapes.

    >>> print(json_without_controls('"\u202ered"'))
    "\u202ered"
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def spreadsheet_text(text: str) -> str:
    """Return text for a cell of a csv file: what a spreadsheet would compute gets an apostrophe before it.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("@SUM(1)"), spreadsheet_text("-x7"), spreadsheet_text("cifar10")
    ("'=1+1", "'@SUM(1)", '-x7', 'cifar10')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def text_of_spreadsheet(cell: str) -> str:
    """Return the text of a cell that :func:`spreadsheet_text` wrote.

    >>> text_of_spreadsheet("'=1+1"), text_of_spreadsheet("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell


def without_nan(value: object) -> object:
    """Return plain values for JSON: numpy numbers become Python numbers; NaN and infinite ones become null.

    >>> without_nan({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    return None if isinstance(value, float) and value - value != 0.0 else value


def one_line(text: object, length: int = 240) -> str:
    """Return a message on one line and of bounded length.

    >>> one_line("first\\n   second")
    'first second'
    >>> len(one_line("x" * 10**6))
    240
    """
    words = str(text)[: 16 * length].split()
    cut = printable(" ".join(words))
    return cut if len(cut) <= length else cut[: length - 1] + "…"


def quoted(value: object) -> str:
    """Return a value from a file or a caller as messages quote it.

    >>> quoted("a\\n") + quoted("x" * 1000)[-2:]
    "'a\\\\n'x…"
    """
    return one_line(repr(value), 60)


def share_words(share: float) -> str:
    """Return a share in per cent, with three digits; a dash where there is none.

    >>> share_words(0.12345), share_words(float("nan"))
    ('12.3 %', '–')
    """
    return "–" if math.isnan(share) else f"{100 * share:.3g} %"
