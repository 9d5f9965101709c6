"""``hcal apply``: probabilities of new rows, all at once or block by block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hcal.calibrators.base import Calibrator
from hcal.calibrators.batched import apply_batches
from hcal.cli import console, opening
from hcal.cli.files import Ask, read_for, shape_of
from hcal.cli.scale import Scale, describe, open_batches
from hcal.io import Batches, can_write, write_probs
from hcal.io.atomic import check_new_folder

#: Peak of memory over the bytes of the scores: 3 for arrays, 5 for tables, whose columns are gathered.
TIMES: Final = 5


@dataclass(frozen=True)
class Written:
    """What ``hcal apply`` wrote: probabilities (rows × classes) in so many files."""

    output: Path
    rows: int
    classes: int
    mean_confidence: float
    method: str
    parts: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able summary."""
        return {**vars(self), "output": str(self.output)}

    def show(self) -> None:
        """Print one line."""
        parts = f" in {self.parts} files" if self.parts > 1 else ""
        console.out().print(
            f"wrote [bold]{console.name(self.output)}[/]: probs {self.rows:,} × {self.classes}{parts}, "
            f"mean confidence {self.mean_confidence:.4f}"
        )


def check_target(output: Path, *, blocks: bool) -> None:
    """Raise before the work begins where the output cannot be written."""
    if not blocks or output.suffix:
        can_write(output)
    else:
        check_new_folder(output)


def apply_file(
    calibrator: Calibrator, model: Path, ask: Ask, output: Path, prior: str | None, *, quiet: bool
) -> Written:
    """Apply a calibrator to rows that are all in memory."""
    ask.check_memory(TIMES, calibrator.input)
    data = read_for(calibrator, model, ask)
    with console.working(f"applying {calibrator.name} to {shape_of(data)}", quiet=quiet):
        calibrator = opening.for_prior(calibrator, prior, data.values)
        probs = calibrator.predict_proba(data.values)
    write_probs(output, probs, data.y, classes=data.classes, ids=data.ids)
    rows, classes = probs.shape
    return Written(output, rows, classes, float(probs.max(axis=1).mean()), calibrator.name)


def apply_blocks(
    calibrator: Calibrator,
    model: Path,
    ask: Ask,
    output: Path,
    prior: str | None,
    scale: Scale,
    *,
    quiet: bool,
) -> Written:
    """Apply a calibrator to rows that come by blocks; the rest as for :func:`apply_file`."""
    source = open_batches(ask, scale, calibrator, model)
    calibrator = opening.for_prior(calibrator, prior, _sample(source) if prior == "estimate" else None)
    with scale.working(f"applying {calibrator.name} to {describe(source)}", source, quiet=quiet) as told:
        done = apply_batches(calibrator, source, output, **told)
    return Written(output, done.rows, source.n_classes, done.mean_confidence, calibrator.name, done.parts)


def _sample(source: Batches) -> Any:
    """Return the scores of a sample of rows, for class frequencies that are estimated."""
    import numpy as np

    from hcal.evaluation.blocks import numbers_between, sample_numbers

    rows = sample_numbers(source.n_rows or 0, source.n_classes)
    found = []
    for batch in source:
        mine = numbers_between(rows, batch.start, batch.start + len(batch))
        found.append(batch.scores[mine - batch.start])
    console.say("note", "cyan", f"class frequencies are estimated from a seeded sample of {len(rows):,} rows")
    return np.concatenate(found)


def run_apply(
    model: Path, ask: Ask, output: Path, prior: str | None, scale: Scale, *, quiet: bool
) -> Written:
    """Load the model and apply it, by blocks where that was asked for or files are many."""
    from hcal.calibrators.files import load
    from hcal.cli.files import check_output

    blocks = scale.by_blocks(ask)
    check_target(output, blocks=blocks)
    check_output(output, model, *ask.file)
    calibrator = load(model)
    if blocks:
        return apply_blocks(calibrator, model, ask, output, prior, scale, quiet=quiet)
    return apply_file(calibrator, model, ask, output, prior, quiet=quiet)
