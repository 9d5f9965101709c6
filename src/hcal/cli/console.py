"""Output to the terminal: tables, warnings, and errors without tracebacks."""

from __future__ import annotations

import csv
import json
import logging
import lzma
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from hcal.text import json_without_controls, printable, without_nan

if TYPE_CHECKING:
    from rich.table import Table

    from hcal.io import DataFile

#: Errors that the input, the disk or the memory causes; all others are bugs in hcal.
_EXPECTED = (ValueError, OSError, ImportError, MemoryError, csv.Error, zlib.error, lzma.LZMAError)
#: How torch says that memory is exhausted.
_NO_MEMORY = re.compile("out of memory|can't allocate memory", re.IGNORECASE)
#: The name of standard input and output, and how folders begin that stand for them while a command runs.
STANDARD = Path("-")
STREAMS = "hcal-stream-"
#: The most characters of an error message, which is one line.
_LONGEST = 600


def out() -> Console:
    """Return a console on the current standard output, which tests may have replaced."""
    return Console(highlight=False, soft_wrap=True)


def show_lines(text: object) -> None:
    """Print text line by line without interpreting markup; control characters are shown as escapes."""
    for line in str(text).splitlines():
        out().print(printable(line), markup=False)


def name(text: object) -> str:
    """Return the name of a file, or other text of the user, for printing: brackets are not read as markup.

    >>> print(name("data[bold].hcal"))
    data\\[bold].hcal
    """
    return escape(printable(" ".join(str(text).splitlines())))


def title_of(path: Path | str) -> str:
    """Return the name of a file for a person: ``-`` for standard input and output.

    >>> title_of(Path("days/monday.csv"))
    'days/monday.csv'
    """
    parent = Path(path).parent.name
    return "-" if parent.startswith(STREAMS) else str(path)


class Notes(logging.Handler):
    """Show what hcal logs as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message."""
        word = {"INFO": "note"}.get(record.levelname, record.levelname.lower())
        say(word, "cyan", record.getMessage())


@contextmanager
def logged(level: str) -> Iterator[None]:
    """Show what hcal logs from a level on, for as long as a command runs."""
    logger = logging.getLogger("hcal")
    before = logger.level
    notes = Notes()
    logger.addHandler(notes)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(notes)


@contextmanager
def friendly(level: str = "info") -> Iterator[None]:
    """Turn errors into one sentence and an exit code; show warnings and notes on standard error."""
    with logged(level):
        if os.environ.get("HCAL_DEBUG"):
            yield
            return
        with _explained():
            yield


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors into one sentence and an exit code, and warnings into lines."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a character that the terminal's encoding lacks
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            yield
        if sys.stdout is not None:
            # A full disk behind a pipe or a redirection shows here, not after us.
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone: `hcal evaluate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt as ended:
        say("stopped", "yellow", "nothing was half-written")
        raise typer.Exit(ended.args[0] if ended.args else 130) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        _explain(error)
        raise typer.Exit(1) from None


def stop(number: int, _frame: FrameType | None) -> None:
    """End a command on a signal as on Ctrl-C, so that temporary files are removed; SIGTERM gives the exit code 143."""
    raise KeyboardInterrupt(128 + number)


def _explain(error: Exception) -> None:
    """Print an error as one line; discard what could not be written to standard output."""
    text = str(error)
    of_a_reader = type(error).__module__.startswith(("safetensors", "pyarrow"))
    torch_ran_out = isinstance(error, RuntimeError) and _NO_MEMORY.search(text)
    if torch_ran_out or isinstance(error, MemoryError):
        what = f"not enough memory: {text}".removesuffix(": ")
        advice = "a command that has --batch-rows can read its file by blocks (--batch-rows 65536)"
        say("error", "red", f"{what}; {advice}")
    elif isinstance(error, OSError) and error.strerror:
        say("error", "red", f"{error.strerror}: {error.filename or ''}".removesuffix(": "))
    elif of_a_reader or isinstance(error, _EXPECTED):
        say("error", "red", text or type(error).__name__)
    else:
        say("internal error", "red", f"{type(error).__name__}: {text}")
        say("note", "cyan", "this is a bug in hcal; run again with HCAL_DEBUG=1 for the traceback")
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
        say("warning", "yellow", str(message))


def say(word: str, colour: str, text: str) -> None:
    """Print ``word: text`` on one line of standard error; the text is not read as markup."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold {colour}]{word}:[/]", end=" ")
    line = printable(" ".join(text.split()))
    console.print(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…", markup=False)


def print_json(data: Mapping[str, object]) -> None:
    """Print one JSON object on standard output; NaN, which JSON does not have, becomes null."""
    if sys.stdout is None:
        raise OSError("standard output is closed: there is nowhere to print the JSON")
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    text = json.dumps(without_nan(data), indent=2, ensure_ascii=ascii_only, allow_nan=False)
    sys.stdout.write(json_without_controls(text) + "\n")
    sys.stdout.flush()


@contextmanager
def working(text: str, total: int | None = None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show on a terminal what runs for longer than two seconds; yield a function that advances the bar."""
    from hcal.progress import progress, silent

    with silent() if quiet else nullcontext(), progress(name(text), total) as advance:
        yield advance


def shape_of(data: DataFile) -> str:
    """Return the name, shape and part of a file, for a progress line."""
    shape = " × ".join(f"{n:,}" for n in data.values.shape)
    return f"{data.name} ({shape}{f', {data.part} part' if data.part else ''})"


def before_after(
    scores: Mapping[str, Mapping[str, float]],
    title: str,
    heads: tuple[str, str] = ("before", "after"),
) -> Table:
    """Return a table of scores before and after; lower is green, except for accuracy and mean confidence."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", style="cyan", no_wrap=True)
    for head in (*heads, ""):
        table.add_column(head, justify="right", no_wrap=True)
    labels = {"mean_confidence": "mean confidence", "ece_ew": "ECE (ece_ew)"}
    for metric, before in scores["before"].items():
        after = scores["after"][metric]
        ratio = after / before if before > 0 else 1.0
        change = f"[green]−{1 - ratio:.0%}[/]" if ratio < 1 else f"[red]+{ratio - 1:.0%}[/]"
        if metric in ("accuracy", "mean_confidence"):
            change = "" if abs(after - before) > 5e-5 else "[dim]same[/]"
        elif abs(ratio - 1) < 0.005:
            change = "[dim]same[/]"
        table.add_row(labels.get(metric, metric), f"{before:.4f}", f"{after:.4f}", change)
    return table
