"""Names of versions before 0.4: a call that still uses one is told the new one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

#: Functions of earlier versions, and what to call instead.
GONE = {
    "fit_batches": "calibrator.fit(source), with files, blocks of hcal.rows.Rows, or "
    "hcal.integrations.dask.rows(…)"
}

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def renamed(
    **new_names: str,
) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """Decorate a public function (or ``__init__``) whose arguments got new names.

    The old name is refused with the new one; it is no alias.

    >>> @renamed(ci="confidence")
    ... def measure(confidence=None):
    ...     return confidence
    >>> measure(ci=0.95)
    Traceback (most recent call last):
    ...
    TypeError: measure() has no argument 'ci': since 0.4 it is called 'confidence'
    """

    def decorate(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            for old, new in new_names.items():
                if old in kwargs:
                    raise TypeError(
                        f"{name}() has no argument {old!r}: since 0.4 it is called {new!r}"
                    )
            return function(*args, **kwargs)

        return checked

    return decorate
