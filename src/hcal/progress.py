"""A progress bar that appears only where somebody waits."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Fits shorter than this many seconds stay silent.
_patience: ContextVar[float] = ContextVar("patience", default=3.0)


@contextmanager
def silent() -> Iterator[None]:
    """Let no bar come up by itself, in this thread and for the while."""
    before = _patience.set(math.inf)
    try:
        yield
    finally:
        _patience.reset(before)


@contextmanager
def progress(title: str, total: int, *, verbose: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on stderr by so many steps.

    The bar shows at once if ``verbose``; else after three seconds, and only on a terminal.
    """
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,.0f}/{task.total:,.0f}, left:"),
        bars.TimeRemainingColumn(),
        bars.TimeElapsedColumn(),
    )
    bar = bars.Progress(*columns, console=Console(stderr=True), transient=not verbose)
    task = bar.add_task(title, total=total)
    start, shown, patience = time.monotonic(), False, _patience.get()

    def advance(steps: int) -> None:
        nonlocal shown
        late = sys.stderr.isatty() and time.monotonic() - start > patience
        if not shown and (verbose or late):
            bar.start()
            shown = True
        bar.advance(task, steps)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
