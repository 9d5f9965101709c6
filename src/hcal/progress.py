"""A progress bar for long computations."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Computations shorter than this many seconds show no bar.
_patience: ContextVar[float] = ContextVar("patience", default=3.0)


@contextmanager
def silent() -> Iterator[None]:
    """Suppress progress bars inside the ``with`` block (in this thread), except those asked for by ``verbose``."""
    before = _patience.set(math.inf)
    try:
        yield
    finally:
        _patience.reset(before)


@contextmanager
def progress(title: str, total: int, *, verbose: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on stderr by a number of steps.

    With ``verbose`` the bar is shown at once, otherwise after three seconds and only on a terminal.
    """
    from rich import progress as bars
    from rich.console import Console

    bar = bars.Progress(
        "{task.description}", bars.BarColumn(), "{task.completed:,.0f}/{task.total:,.0f}, left:",
        bars.TimeRemainingColumn(), bars.TimeElapsedColumn(), console=Console(stderr=True), transient=not verbose,
    )  # fmt: skip
    task = bar.add_task(title, total=total)
    patience = 0.0 if verbose else _patience.get() if sys.stderr.isatty() else math.inf
    start = time.monotonic()

    def advance(steps: int) -> None:
        if time.monotonic() - start >= patience:
            bar.start()
        bar.advance(task, steps)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
