"""What the terminal shows: tables, warnings, errors without tracebacks."""

from __future__ import annotations

import csv
import json
import lzma
import os
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hcal.text import printable

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

#: What went wrong by the user's hand, disk or memory, as opposed to by ours.
_EXPECTED = (ValueError, OSError, ImportError, MemoryError, csv.Error, zlib.error, lzma.LZMAError)
#: Columns of a pipe or a file, which has no width of its own.
WIDE = 160
#: An error is one line, and no longer than this.
_LONGEST = 600


def out() -> Console:
    """Return a console on standard output, looked up late so that tests and pipes see it."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Return a console on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_wide(shown: Any) -> None:
    """Print a table of many columns: where the width is not that of a terminal, as wide as it likes."""
    console = out()
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    console.print(shown)


def name(text: object) -> str:
    """Return a name of a file (or other text of the user): its brackets are no markup, its escapes are shown.

    >>> print(name("data[bold].hcal"))
    data\\[bold].hcal
    """
    return escape(printable(" ".join(str(text).splitlines())))


@contextmanager
def friendly() -> Iterator[None]:
    """Turn errors into one sentence and exit code 1 (130 for Ctrl-C), and warnings into a line on stderr."""
    if os.environ.get("HCAL_DEBUG"):
        yield
        return
    from hcal.io.atomic import Terminated, ended_by_sigterm

    try:
        _forgive_encodings()
        with ended_by_sigterm(), warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            yield
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk behind a pipe or a redirection shows here, not after us
    except BrokenPipeError:  # the reader of our output has gone: `hcal evaluate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("stopped", "yellow", "nothing was half-written")
        raise typer.Exit(130) from None
    except Terminated as ended:
        say("stopped", "yellow", "nothing was half-written")
        raise typer.Exit(int(str(ended.code))) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        _explain(error)
        raise typer.Exit(1) from None


def _forgive_encodings() -> None:
    """Print a question mark for a character that the terminal's encoding lacks, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _explain(error: Exception) -> None:
    if _out_of_memory(error):
        say("error", "red", f"not enough memory: {error}" if str(error) else "not enough memory")
    elif isinstance(error, _EXPECTED) or type(error).__module__.startswith(("safetensors", "pyarrow")):
        say("error", "red", _sentence(error))
    else:
        say("internal error", "red", f"{type(error).__name__}: {error}")
        err().print("This is a bug in hcal. Run again with HCAL_DEBUG=1 for the traceback.")
    _drop_output()


def _drop_output() -> None:
    """Throw away what standard output could not take, or Python would complain once more at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; torch says so with a RuntimeError."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (str(error) or type(error).__name__) + _hint(error)


def _hint(error: BaseException) -> str:
    """Return the option that helps; the library's own words know of no options."""
    from hcal.io import (
        MissingLabelsError,
        NeedsBlocksError,
        UnknownKindError,
        UnnamedClassesError,
        UnnamedScoresError,
    )

    if isinstance(error, UnknownKindError):
        return " (add --input logits, probs or log_probs; for some columns of a table --scores)"
    if isinstance(error, MissingLabelsError):
        return " (or name the column with --label, or a file of labels with --labels)"
    if isinstance(error, UnnamedScoresError):
        return " (name the columns with --scores and --label)"
    if isinstance(error, NeedsBlocksError):
        return " (add --batch-rows 65536)"
    if isinstance(error, UnnamedClassesError):
        return " (--classes cat,dog,…; of a single score the second is its class)"
    return ""


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
    """Print ``word: text`` on one line of standard error, the text as it is."""
    console = err()
    console.print(f"[bold {colour}]{word}:[/]", end=" ")
    line = printable(" ".join(text.split()))
    console.print(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…", markup=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output; NaN has no place in JSON and becomes null."""
    if sys.stdout is None:
        raise OSError("standard output is closed: there is nowhere to print the JSON")
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    sys.stdout.write(json.dumps(_finite(data), indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n")
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
        progress.add_task(escape(text), total=None)
        yield


@contextmanager
def fitting(calibrator: Calibrator, text: str, *, quiet: bool) -> Iterator[None]:
    """Show that a fit runs: the method's own bar where it has one, else a spinner; nothing if quiet."""
    from hcal.progress import silent

    own_bar = "verbose" in calibrator.get_params(deep=False)
    with silent() if quiet else nullcontext(), working(text, quiet=quiet or own_bar):
        yield


def before_after(before: Mapping[str, float], after: Mapping[str, float], *, title: str) -> Table:
    """Return a table of scores before and after; a fall is green, accuracy and confidence have no colour."""
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


def draw_reliability(curve: Any, *, title: str = "", event: str = "confidence", width: int = 40) -> Any:
    """Draw a curve as text: ``█`` accuracy, ``│`` mean confidence; a gap beyond chance is coloured.

    ``width`` is in characters from 0 to 1.

    >>> import hcal
    >>> curve = hcal.reliability([[0.05, 0.95]] * 12, [1] * 6 + [0] * 6, bins=10).curves[0]
    >>> print(draw_reliability(curve, width=20).plain)
    confidence  0     accuracy     1     gap     rows
    0.90–1.00   ██████████░░░░░░░░░│  +0.450*      12
    """
    from numpy import flatnonzero
    from rich.text import Text

    text = Text()
    if title:
        text.append(title + "\n", style="bold")
    happened = "accuracy" if event == "confidence" else "observed"
    text.append(f"{event:<10.10}  0{happened:^{width - 2}}1     gap     rows", style="dim")
    beyond = curve.outside
    for b in flatnonzero(curve.weight > 0):
        gap = float(curve.predicted[b] - curve.observed[b])
        text.append(f"\n{curve.edges[b]:.2f}–{curve.edges[b + 1]:.2f}   ")
        _bar(text, float(curve.observed[b]), float(curve.predicted[b]), width)
        style = ("red" if gap > 0 else "yellow") if beyond[b] else "green"
        text.append(f" {gap:+.3f}{'*' if beyond[b] else ' '}", style=style)
        text.append(f" {curve.weight[b]:7,.0f}", style="dim")
    return text


LEGEND = "bar: what happened, │: what was stated; ░ over-confident, ▓ under-confident, * beyond chance (95 %)"


def _bar(text: Any, accuracy: float, confidence: float, width: int) -> None:
    full, mark = round(accuracy * width), round(confidence * width)
    cells = ["█" if i < full else ("░" if i < mark else " ") for i in range(width + 1)]
    cells[mark:full] = ["▓"] * max(full - mark, 0)  # under-confident: the part of the bar beyond the mark
    cells[mark] = "│"
    for i, cell in enumerate(cells):
        text.append(cell, style="bold" if i == mark else ("blue" if cell in "█▓" else "red"))
