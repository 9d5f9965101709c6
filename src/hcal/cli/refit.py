"""``hcal refit``: fit a model again on new rows, with all that its file remembers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hcal.cli import console
from hcal.cli.models import facts, remember
from hcal.cli.options import (
    Blocks,
    Files,
    ModelFile,
    Output,
    Shown,
    check_output,
    command,
    load_model,
)

if TYPE_CHECKING:
    from hcal.io import DataFile
    from hcal.rows import Rows


@command(
    "hcal refit model.hcal new.csv -o next.hcal",
    "hcal refit model.hcal 'days/*.parquet' --half-life 60d -o next.hcal",
)
def refit(
    *,
    model: ModelFile,
    files: Annotated[Files, "by"],
    output: Output,
    half_life: Annotated[
        str | None, Option(help="another half-life than that of the last fit, such as 90d")
    ] = None,
    sample_rows: Annotated[
        int | None, Option(help="learn from a random sample of this many rows")
    ] = None,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Fit a model again on new rows: method, columns, segments and half-life are those of its last fit."""
    import hcal

    check_output(output, model, *files.file, files.labels)
    old = load_model(model)
    rows, data = _labelled(files, blocks, old, sample_rows, quiet=shown.silent)
    with console.working(f"fitting {old.name} on {len(rows):,} rows", quiet=shown.silent):
        new = hcal.refit(old, rows, half_life=half_life)
    remember(new, files.request(old), data)
    hcal.save(new, output)
    shown.show(
        {"model": str(output), "old": str(model), "method": new.name, **facts(new)},
        lambda: _show(new, data.name, output),
    )


def _labelled(
    files: Files, blocks: Blocks, old: Any, sample_rows: int | None, *, quiet: bool
) -> tuple[Rows, DataFile]:
    """Return the rows to learn from, or a random sample, and the file as it was read."""
    from hcal.io.blocks import rows_of
    from hcal.io.sources import SAMPLE_ROWS

    if sample_rows is None and not blocks.asked(files):
        data = files.read(old, part="cal")
        data.labels()
        return rows_of(data), data
    batches = files.batches(blocks.batch_rows, old, part="cal")
    batches.check_labels()
    with blocks.working(f"reading {batches.name}", batches.n_rows, quiet=quiet) as work:
        return batches.as_source(**work).sample(sample_rows or SAMPLE_ROWS), batches.first


def _show(new: Any, name: str, output: Path) -> None:
    """Print old beside new on the newest rows, the notes, and the next command to try."""
    out = console.out()
    record = new.fit_
    comparison = record.details.get("refit")
    if comparison is not None:
        title = f"{console.name(new.title)} on {console.name(comparison['which'])} [dim]({comparison['rows']:,})[/]"
        scores = {"before": comparison["old"], "after": comparison["new"]}
        out.print(console.before_after(scores, title, heads=("old", "new")))
    for note in record.notes:
        out.print(f"\n{console.name(note)}")
    if record.source_rows > record.rows:
        out.print(f"\n{record.sampled}")
    out.print(f"\nwrote [bold]{console.name(output)}[/]")
    out.print(
        f"next:  [cyan]hcal report NEWER{Path(name).suffix} --model {console.name(output)}[/]"
    )
