"""What the terminal shows: tables, warnings, errors without tracebacks."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

#: What went wrong by the user's hand or disk, as opposed to by ours.
_EXPECTED = (ValueError, OSError, ImportError)


def out() -> Console:
    """Return a console on standard output, looked up late so that tests and pipes see it."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Return a console on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def friendly() -> Iterator[None]:
    """Turn errors into one sentence and exit code 1, and warnings into one line on standard error."""
    if os.environ.get("HCAL_DEBUG"):
        yield
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            yield
    except BrokenPipeError:  # the reader of our output has gone: `hcal evaluate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except _EXPECTED as error:
        say("error", "red", _sentence(error))
        raise typer.Exit(1) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        say("internal error", "red", f"{type(error).__name__}: {error}")
        err().print("This is a bug in hcal. Run again with HCAL_DEBUG=1 for the traceback.")
        raise typer.Exit(1) from None


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
        say("warning", "yellow", str(message))


def say(word: str, colour: str, text: str) -> None:
    """Print ``word: text`` on standard error, the text as it is."""
    console = err()
    console.print(f"[bold {colour}]{word}:[/]", end=" ")
    console.print(text, markup=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output; NaN has no place in JSON and becomes null."""
    sys.stdout.write(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value


@contextmanager
def working(text: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner with a clock on a terminal while something runs; nothing in pipes."""
    console = err()
    if quiet or not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def fitting(calibrator: Calibrator, text: str, *, quiet: bool) -> Iterator[None]:
    """Show that a fit runs: the method's own bar where it has one, else a spinner; nothing if quiet."""
    from hcal.runtime.progress import silent

    own_bar = "verbose" in calibrator.get_params(deep=False)
    with silent() if quiet else nullcontext(), working(text, quiet=quiet or own_bar):
        yield


def before_after(before: Mapping[str, float], after: Mapping[str, float], *, title: str) -> Table:
    """Return a table of scores before and after; a fall is green, accuracy and confidence have no colour.

    Parameters
    ----------
    before, after : dict of floats
    title : str

    Returns
    -------
    rich.table.Table
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", style="cyan", no_wrap=True)
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("", no_wrap=True)
    for name, value in before.items():
        change = _change(name, value, after[name])
        table.add_row(_LABELS.get(name, name), f"{value:.4f}", f"{after[name]:.4f}", change)
    return table


_LABELS = {"mean_confidence": "mean confidence", "ece_ew": "ECE (ece_ew)"}
_NEUTRAL = ("accuracy", "mean_confidence")


def _change(name: str, before: float, after: float) -> str:
    if name in _NEUTRAL or before <= 0:
        return "" if abs(after - before) > 5e-5 else "[dim]same[/]"
    ratio = after / before
    if abs(ratio - 1) < 0.005:
        return "[dim]same[/]"
    return f"[green]−{1 - ratio:.0%}[/]" if ratio < 1 else f"[red]+{ratio - 1:.0%}[/]"
