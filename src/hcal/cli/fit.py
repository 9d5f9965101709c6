"""``hcal fit``: what the terminal shows after it."""

from __future__ import annotations

from pathlib import Path

from hcal.calibrators.base import Calibrator
from hcal.cli import console
from hcal.cli.files import shape_of
from hcal.data import DataFile


def show_fit(calibrator: Calibrator, data: DataFile, output: Path) -> None:
    """Print the scores before and after, and what to do next."""
    out = console.out()
    scores = calibrator.scores_
    title = console.name(f"{calibrator.title} on {shape_of(data)}")
    note = "the rows it learned from; judge it on others"
    out.print(console.before_after(scores["before"], scores["after"], title=f"{title} [dim]({note})[/]"))
    model = console.name(output)
    out.print(f"\nwrote [bold]{model}[/]")
    if data.part:
        out.print(f"next:  [cyan]hcal evaluate {console.name(data.path)} --model {model}[/]")
    else:
        out.print(f"next:  [cyan]hcal apply {model} NEW.npz -o probs.npz[/]")


#: Fewer rows than this are met with a sentence.
FEW_ROWS = 100


def warn_of_few_rows(rows: int) -> list[str]:
    """Say on standard error that a calibration set is tiny, and return what was said.

    Parameters
    ----------
    rows : int

    Returns
    -------
    list of str
    """
    if rows >= FEW_ROWS:
        return []
    text = (
        f"{rows} rows are very few to learn from: what they show is mostly chance. "
        "Some hundreds, and others to judge on, are a start"
    )
    console.say("warning", "yellow", text)
    return [text]
