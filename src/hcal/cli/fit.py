"""``hcal fit``: what the terminal shows after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
    for note in calibrator.info_.get("notes", []):
        out.print(f"\n{console.name(note)}")
    model = console.name(output)
    out.print(f"\nwrote [bold]{model}[/]")
    if data.part:
        out.print(f"next:  [cyan]hcal evaluate {console.name(data.path)} --model {model}[/]")
    else:
        out.print(f"next:  [cyan]hcal apply {model} NEW{data.path.suffix} -o probs{_written(data)}[/]")


def _is_binary(data: DataFile) -> bool:
    return data.values.ndim == 1 or data.values.shape[1] == 2


def _written(data: DataFile) -> str:
    """Return the type of the next output: that of the input where it can be written."""
    tables = (".csv", ".parquet", ".feather", ".jsonl", ".xlsx")
    return data.path.suffix if data.path.suffix in tables and not data.questions else ".npz"


#: Fewer rows than this, or fewer of the rarer of two classes, are met with a sentence.
FEW_ROWS, FEW_OF_A_CLASS = 100, 20


def warn_of_few_rows(data: DataFile) -> list[str]:
    """Say on standard error that a calibration set is tiny, and return what was said.

    Parameters
    ----------
    data : DataFile

    Returns
    -------
    list of str
    """
    rows, told = len(data.values), []
    found, counts = np.unique(data.labels(), return_counts=True)
    if rows < FEW_ROWS:
        told.append(
            f"{rows} rows are very few to learn from: what they show is mostly chance. "
            "Some hundreds, and others to judge on, are a start"
        )
    elif _is_binary(data) and len(found) == 2 and counts.min() < FEW_OF_A_CLASS:
        rare = found[counts.argmin()]
        name = rare if data.classes is None else data.classes[int(rare)]
        told.append(
            f"only {counts.min()} of {rows:,} rows are of class {name}: what is learned of it is chance"
        )
    for text in told:
        console.say("warning", "yellow", text)
    return told
