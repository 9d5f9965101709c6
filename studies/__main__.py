"""``python -m studies``: the ablations of the paper's study, its numbers, and the pages made from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hcal.bench.methods import resolve_methods
from hcal.bench.run import Plan
from hcal.bench.store import export_results
from hcal.bench.tasks import find_tasks
from hcal.cli import console
from hcal.cli.bench import ResultsArg, execute
from hcal.metrics import list_metrics
from studies.ablations import ablation_methods
from studies.page import write_page
from studies.published import read_published
from studies.theory_page import write_theory_page

app = typer.Typer(help=__doc__, no_args_is_help=True)
PageOpt = Annotated[Path, typer.Option("--out", "-o", help="the page to write")]


@app.command()
def ablations(
    sets: Annotated[str, typer.Argument(help="names of studies.ablations.ABLATIONS by commas, or all")],
    tasks: Annotated[str, typer.Option(help="folders or files, by commas")],
    out: Annotated[Path, typer.Option("--out", "-o", help="results file; an existing one is continued")],
    jobs: Annotated[int, typer.Option(help="processes at a time; 0: one a core", min=0)] = 0,
    timeout: Annotated[float, typer.Option(help="seconds after which a fit is given up")] = 3600.0,
    device: Annotated[str, typer.Option(help="of torch, such as cuda")] = "",
) -> None:
    """Train and measure configurations of the objective, the maps and the training."""
    with console.friendly():
        found, _ = find_tasks(tasks)
        wanted = [m for name in sets.split(",") for m in ablation_methods(name.strip())]
        plan = Plan(
            found,
            [*resolve_methods("ts"), *wanted],
            list_metrics(),
            jobs=jobs or os.cpu_count() or 1,
            timeout_s=timeout,
            device=device or None,
        )
        execute(plan, out)


@app.command()
def theory(out: PageOpt = Path("studies/theory-checked.md")) -> None:
    """Check the paper's theorems by experiment and write the page with its plots."""
    with console.friendly():
        for path in write_theory_page(out):
            console.out().print(str(path), markup=False)


@app.command()
def page(
    results: ResultsArg,
    out: PageOpt = Path("docs/reproduction.md"),
    published: Annotated[Path | None, typer.Option(help="the paper's numbers, as a results file")] = None,
    ablations: Annotated[Path | None, typer.Option(help="the results file of the ablations")] = None,
) -> None:
    """Write the reproduction page; every number on it comes from the results files."""
    with console.friendly():
        for path in write_page(results, out, published=published, ablations=ablations):
            console.out().print(str(path), markup=False)


@app.command()
def published(
    tables: Annotated[Path, typer.Argument(help="the paper's results (paper_tables.csv)", metavar="TABLES")],
    out: Annotated[Path, typer.Option("--out", "-o", help="a .csv or .parquet results file")],
    tex: Annotated[Path | None, typer.Option(help="the paper's source, for its printed rows")] = None,
) -> None:
    """Turn the paper's published numbers into a results file, for the reproduction page."""
    with console.friendly():
        export_results(read_published(tables, tex), out)


if __name__ == "__main__":
    app()
