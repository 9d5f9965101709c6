"""``hcal refit``: fit a model again on new rows, with all that its file remembers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hcal.cli import console
from hcal.cli.options import (
    InBlocks,
    ModelFirst,
    Output,
    SampleRows,
    WithGroups,
    WithLabels,
    WithTime,
    WithWeight,
    check_output,
    command,
    load_model,
)

if TYPE_CHECKING:
    from hcal.io import DataFile
    from hcal.methods.base import Calibrator
    from hcal.rows import Rows


@command(
    "refit",
    "hcal refit model.hcal new.csv -o next.hcal",
    "hcal refit model.hcal 'days/*.parquet' --half-life 60d -o next.hcal",
)
@dataclass(frozen=True, kw_only=True)
class Refit(InBlocks, WithTime, WithWeight, WithGroups, WithLabels, ModelFirst):
    """Fit a model again on new rows: method, columns, segments and half-life are those of its last fit."""

    schema = "hcal/refit/1"
    output_type = "hcal"

    output: Output
    half_life: Annotated[
        str | None, Option(help="another half-life than that of the last fit, such as 90d")
    ] = None
    sample_rows: SampleRows = None

    def run(self) -> None:
        """Fit the model, write it, and print old beside new."""
        import hcal
        from hcal.operation.fitting import model_facts, remember_file

        check_output(self.output, self.model, *self.file, self.labels)
        old = load_model(self.model)
        rows, data = self._labelled(old)
        with console.working(f"fitting {old.name} on {len(rows):,} rows", quiet=self.silent):
            new = hcal.refit(old, rows, half_life=self.half_life)
        remember_file(new, self.request(old), data)
        hcal.save(new, self.output)
        facts = {"model": console.title_of(self.output), "old": console.title_of(self.model)}
        self.show(model_facts(new).to_dict() | facts, lambda: self._show(new, data.name))

    def _labelled(self, old: Calibrator) -> tuple[Rows, DataFile]:
        """Return the rows to learn from, or a random sample, and the file as it was read."""
        from hcal.io.blocks import rows_of
        from hcal.io.sources import SAMPLE_ROWS

        if self.sample_rows is None and not self.by_blocks:
            data = self.read(old, part="cal")
            data.labels()
            return rows_of(data), data
        batches = self.batches(old, part="cal")
        batches.check_labels()
        with self.working(f"reading {batches.name}", batches.n_rows) as (runner, advance):
            source = batches.as_source(runner=runner, advance=advance)
            return source.sample(self.sample_rows or SAMPLE_ROWS), batches.first

    def _show(self, new: Calibrator, name: str) -> None:
        """Print old beside new on the newest rows, the notes, and the next command to try."""
        out = console.out()
        record = new.fit_
        comparison = record.details.get("refit")
        if comparison is not None:
            which = console.name(comparison["which"])
            title = f"{console.name(new.title)} on {which} [dim]({comparison['rows']:,})[/]"
            scores = {"before": comparison["old"], "after": comparison["new"]}
            out.print(console.before_after(scores, title, heads=("old", "new")))
        for note in record.notes:
            out.print(f"\n{console.name(note)}")
        if record.source_rows > record.rows:
            out.print(f"\n{record.sampled}")
        output = console.name(console.title_of(self.output))
        out.print(f"\nwrote [bold]{output}[/]")
        out.print(f"next:  [cyan]hcal report NEWER{Path(name).suffix} --model {output}[/]")
