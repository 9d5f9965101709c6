"""Text that comes from outside (names of classes, groups and files), made safe to show."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: object) -> str:
    r"""Return a name with control characters, such as terminal escapes, shown as escapes.

    >>> print(printable("caf\u00e9 \x1b[31mred"))
    café \x1b[31mred
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
