"""Text output: names from outside made safe to print, and values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable(text: object) -> str:
    r"""Return a name with control characters, such as terminal escapes, shown as escapes.

    >>> print(printable("caf\u00e9 \x1b[31mred"))
    café \x1b[31mred
    >>> printable("5\N{NO-BREAK SPACE}%")
    '5 %'
    """
    shown = str(text).replace("\N{NO-BREAK SPACE}", " ")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown
    )


def without_nan(value: Any) -> Any:
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
