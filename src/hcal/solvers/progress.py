"""A progress bar that appears only where somebody waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

# Fits shorter than this stay silent.
PATIENCE_S: Final = 3.0

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """Keep bars that nobody asked for away while the block runs, in this thread alone.

    Examples
    --------
    >>> with silence(), progress("fit", 2) as advance:
    ...     advance(1)
    """
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


@contextmanager
def progress(title: str, total: int, *, verbose: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on stderr by so many steps.

    The bar shows at once if ``verbose``; else after three seconds, and only on a terminal.

    Parameters
    ----------
    title : str
    total : int
    verbose : bool

    Examples
    --------
    >>> with progress("fit", 2) as advance:
    ...     advance(1)
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=not verbose)
    task = bar.add_task(title, total=total)
    start, shown = time.monotonic(), False

    def advance(steps: int) -> None:
        nonlocal shown
        late = not _SILENT.get() and sys.stderr.isatty() and time.monotonic() - start > PATIENCE_S
        if not shown and (verbose or late):
            bar.start()
            shown = True
        bar.advance(task, steps)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
