"""Progress of long computations: a bar on a terminal, and messages of the logger ``hcal``.

A bar appears when a computation has lasted two seconds, on a terminal alone. It says what runs and how long it will
take. A computation inside another one gets a second line under it. The logger gets the same at the level DEBUG; like
any library's it is silent until a program adds a handler.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
logger: Final = logging.getLogger("hcal")
logger.addHandler(logging.NullHandler())

#: Computations shorter than this many seconds show no bar.
PATIENCE: Final = 2.0
_patience: ContextVar[float] = ContextVar("patience", default=PATIENCE)
#: The bars of the computation that runs around this one.
_bars: ContextVar[Bars | None] = ContextVar("bars", default=None)

AdvanceBy = Callable[[int], None]


@contextmanager
def silent() -> Iterator[None]:
    """Suppress progress bars inside the ``with`` block (in this thread), except those asked for by ``verbose``."""
    before = _patience.set(math.inf)
    try:
        yield
    finally:
        _patience.reset(before)


@contextmanager
def progress(title: str, total: int | None = None, *, verbose: bool = False) -> Iterator[AdvanceBy]:
    """Yield a function that advances a bar on standard error by a number of steps.

    Parameters
    ----------
    title : str
        What runs.
    total : int, optional
        The number of steps; None if nobody knows it, and then the bar only moves.
    verbose : bool
        Show the bar at once; otherwise after two seconds and only on a terminal.
    """
    start = time.monotonic()
    logger.debug("%s: begins%s", title, "" if total is None else f", {total:,} steps")
    patience = 0.0 if verbose else _patience.get()
    outer = _bars.get()
    if outer is not None and math.isfinite(patience):
        line = outer.line(title, total)
        try:
            yield line
        finally:
            line.remove()
    elif math.isfinite(patience) and (verbose or _on_terminal()):
        bars = Bars(patience, keep=verbose)
        token = _bars.set(bars)
        try:
            yield bars.line(title, total)
        finally:
            _bars.reset(token)
            bars.stop()
    else:
        yield _ignore
    logger.debug("%s: took %.1f s", title, time.monotonic() - start)


class Bars:
    """The bars of one computation and of those inside it, which appear together after some seconds."""

    def __init__(self, patience: float, *, keep: bool) -> None:
        # Rich is imported by who shows a bar, and by nobody else.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        self._display = Progress(
            "{task.description}",
            BarColumn(),
            "{task.fields[count]}",
            "left:",
            TimeRemainingColumn(),
            "so far:",
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=not keep,
        )
        self._timer = threading.Timer(patience, self._display.start)
        self._timer.daemon = True
        if patience:
            self._timer.start()
        else:
            self._display.start()

    def line(self, title: str, total: int | None) -> Line:
        """Add a bar."""
        count = "" if total is None else f"0/{total:,}"
        return Line(self._display, self._display.add_task(title, total=total, count=count), total)

    def stop(self) -> None:
        """Take the bars from the terminal."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._display.live.is_started:
            self._display.stop()


class Line:
    """Advances one bar."""

    def __init__(self, display: Progress, task: TaskID, total: int | None) -> None:
        self._display = display
        self._task = task
        self._total = total
        self._done = 0

    def __call__(self, steps: int) -> None:
        """Advance the bar by some steps."""
        self._done += steps
        count = "" if self._total is None else f"{self._done:,}/{self._total:,}"
        self._display.update(self._task, advance=steps, count=count)

    def remove(self) -> None:
        """Take the bar from the display."""
        self._display.remove_task(self._task)


def _on_terminal() -> bool:
    """Whether a bar can be seen; threads that work beside the main one show none."""
    main = threading.current_thread() is threading.main_thread()
    return main and sys.stderr is not None and sys.stderr.isatty()


def _ignore(steps: int) -> None:
    """Advance nothing."""
