"""``hcal fit``: learn, all rows at once or by blocks, save, and say what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hcal.calibrators.base import Calibrator
from hcal.calibrators.batches import fit_batches
from hcal.calibrators.files import save
from hcal.cli import console, opening
from hcal.cli.files import Ask, shape_of
from hcal.cli.report import origin
from hcal.cli.scale import Scale, describe, open_batches
from hcal.io import DataFile

#: Peak of memory of a fit over the bytes of its scores, at least.
TIMES: Final = 10


@dataclass(frozen=True)
class FitDone:
    """What ``hcal fit`` did.

    ``data`` is what it learned from (of rows that came by blocks, some of the first), ``what`` their names
    and shape in words, ``told`` are warnings.
    """

    calibrator: Calibrator
    output: Path
    data: DataFile
    what: str
    rows: int
    told: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able summary."""
        c = self.calibrator
        return {
            "model": str(self.output), "method": c.name, "converged": c.converged_, "rows": self.rows,
            "classes": c.n_classes_, "class_names": c.class_names_, "scores": c.scores_, "info": c.info_,
            "warnings": self.told,
        }  # fmt: skip

    def show(self) -> None:
        """Print the scores before and after, and what to do next."""
        out, data = console.out(), self.data
        scores = self.calibrator.scores_
        title = console.name(f"{self.calibrator.title} on {self.what}")
        note = "the rows it learned from; judge it on others"
        out.print(console.before_after(scores["before"], scores["after"], title=f"{title} [dim]({note})[/]"))
        for note in self.calibrator.info_.get("notes", []):
            out.print(f"\n{console.name(note)}")
        if by_blocks := self.calibrator.info_.get("batches"):
            out.print(f"\n{by_blocks['words']}", markup=False)
        model = console.name(self.output)
        out.print(f"\nwrote [bold]{model}[/]")
        if data.part:
            out.print(f"next:  [cyan]hcal evaluate {console.name(data.path)} --model {model}[/]")
        else:
            out.print(f"next:  [cyan]hcal apply {model} NEW{data.path.suffix} -o probs{_written(data)}[/]")


def run_fit(
    method: str | None, ask: Ask, params: dict[str, Any], scale: Scale, output: Path, *, quiet: bool
) -> FitDone:
    """Learn from what was asked for, by blocks where that was asked for, and save the model."""
    if scale.asked:
        done = _fit_blocks(method, ask, params, scale, output, quiet=quiet)
    else:
        ask.check_memory(TIMES)
        data = ask.read(part="cal")
        calibrator = opening.new_calibrator(method, data, params)
        done = FitDone(calibrator, output, data, shape_of(data), len(data.values), warn_of_few_rows(data))
        with console.fitting(calibrator, f"fitting {calibrator.name} on {done.what}", quiet=quiet):
            opening.fit_on(calibrator, data)
        calibrator.info_["fitted_on"] = origin(data)
    save(done.calibrator, output)
    return done


def _fit_blocks(
    method: str | None, ask: Ask, params: dict[str, Any], scale: Scale, output: Path, *, quiet: bool
) -> FitDone:
    source = open_batches(ask, scale, part="cal")
    source.check_labels()
    calibrator, what = opening.new_calibrator(method, source.first, params), describe(source)
    if source.first.questions:
        raise ValueError("questions with their options are read whole: leave --batch-rows and --workers out")
    with (
        scale.driver() as driver,
        console.fitting(calibrator, f"fitting {calibrator.name} on {what}", quiet=quiet),
    ):
        fit_batches(calibrator, source, run=driver)
    calibrator.info_["fitted_on"] = {"file": source.name, "part": source.part}
    return FitDone(calibrator, output, source.first, what, source.n_rows or 0, [])


def _written(data: DataFile) -> str:
    """Return the type of the next output: that of the input where it can be written."""
    tables = (".csv", ".parquet", ".feather", ".jsonl")
    return data.path.suffix if data.path.suffix in tables and not data.questions else ".npz"


#: Fewer rows than this, or fewer of the rarer of two classes, are met with a sentence.
FEW_ROWS, FEW_OF_A_CLASS = 100, 20


def warn_of_few_rows(data: DataFile) -> list[str]:
    """Say on standard error that a calibration set is tiny, and return what was said."""
    rows, told = len(data.values), []
    found, counts = np.unique(data.labels(), return_counts=True)
    if rows < FEW_ROWS:
        told.append(
            f"{rows} rows are very few to learn from: what they show is mostly chance. "
            "Some hundreds, and others to judge on, are a start"
        )
    elif data.n_classes == 2 and len(found) == 2 and counts.min() < FEW_OF_A_CLASS:
        rare = found[counts.argmin()]
        name = rare if data.classes is None else data.classes[int(rare)]
        told.append(
            f"only {counts.min()} of {rows:,} rows are of class {name}: what is learned of it is chance"
        )
    for text in told:
        console.say("warning", "yellow", text)
    return told
