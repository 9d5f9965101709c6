"""``hcal bench``: tasks × methods × metrics into one results file; its tables and figures.

Imports stay inside the commands: this module loads with every ``hcal`` command.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hcal.cli import console
from hcal.cli.options import names_of

if TYPE_CHECKING:
    from hcal.bench.run import Plan
    from hcal.bench.store import Cell, Results

app = typer.Typer(help="Compare methods on many tasks: run, table, figures, export.", no_args_is_help=True)

ResultsArg = Annotated[Path, typer.Argument(help="a results file (.csv or .parquet)", metavar="RESULTS")]
TasksOpt = Annotated[
    str, typer.Option("--tasks", help="folders, files, the paper's task names or synthetic:NAME, by commas")
]
OutOpt = Annotated[Path, typer.Option("--out", "-o", help="results file; an existing one is continued")]


@app.command()
def run(
    tasks: TasksOpt,
    out: OutOpt,
    methods: Annotated[str, typer.Option(help="names, all, quick, by commas")] = "quick",
    metrics: Annotated[str, typer.Option(help="names by commas, or all")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="the quick selection of methods")] = False,
    seeds: Annotated[int, typer.Option(help="seeds of the methods that use one", min=1)] = 1,
    bootstrap: Annotated[int, typer.Option(help="replicates kept for paired intervals", min=0)] = 0,
    bootstrap_tasks: Annotated[
        str, typer.Option(help="the tasks that get replicates, by commas; default all")
    ] = "",
    jobs: Annotated[int, typer.Option(help="processes at a time; 0: one a core", min=0)] = 0,
    timeout: Annotated[float, typer.Option(help="seconds after which a fit is given up")] = 3600.0,
    device: Annotated[str, typer.Option(help="of torch, for the methods that take one, such as cuda")] = "",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="try failed cells again")] = False,
    scheduler: Annotated[
        str,
        typer.Option(
            help="address of a Dask scheduler, whose workers run the fits instead", metavar="ADDRESS"
        ),
    ] = "",
) -> None:
    """Fit and measure tasks × methods × seeds; stop and start it as you like."""
    with console.friendly():
        from hcal.bench.methods import resolve_methods
        from hcal.bench.run import Plan
        from hcal.bench.tasks import find_tasks

        found, skipped = find_tasks(tasks)
        for word in skipped:
            console.err().print(f"skipped {word}", markup=False)
        plan = Plan(
            found,
            resolve_methods("quick" if quick else methods),
            _metric_names(metrics),
            seeds=seeds,
            bootstrap=bootstrap,
            bootstrap_tasks=names_of(bootstrap_tasks) or None,
            jobs=jobs or os.cpu_count() or 1,
            timeout_s=timeout,
            device=device or None,
            retry_failed=retry_failed,
            scheduler=scheduler or None,
        )
        execute(plan, out)


def execute(plan: Plan, out: Path) -> None:
    """Run a plan with a progress bar and say how it went."""
    from hcal.bench.run import run as run_plan

    try:
        with _Bar() as bar:
            results = run_plan(plan, out, bar)
    except KeyboardInterrupt:
        console.err().print(f"stopped; the same command continues {out}", markup=False)
        raise typer.Exit(130) from None
    _say_how_it_went(results, out)


def _metric_names(text: str) -> list[str]:
    from hcal.bench.catalog import GROUPS
    from hcal.metrics import METRICS, get_metric

    if text == "all":
        return [name for group in GROUPS.values() for name in group if name in METRICS]
    return [get_metric(name.strip()).name for name in text.split(",")]


class _Bar:
    """A progress bar with time left on a terminal, a line a cell in a log, and a line for each failure."""

    def __enter__(self) -> _Bar:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
        )  # fmt: skip
        self._out = console.err()
        self._live = self._out.is_terminal
        self._bar = progress.Progress(
            *columns, console=self._out, speed_estimate_period=1800, disable=not self._live
        )
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None)
        self._start, self._first = time.monotonic(), 0
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int, cell: Cell | None) -> None:
        if cell is None:
            self._first = done
        text = f"{cell.key.task} · {cell.key.method}" if cell else "cells"
        self._bar.update(self._task, completed=done, total=total, description=f"{text:<34.34}")
        if cell and not self._live:
            left = (time.monotonic() - self._start) / (done - self._first) * (total - done)
            self._out.print(f"{done}/{total} {text} · about {left / 60:.0f} min left", markup=False)
        if cell and not cell.ok:
            key = cell.key
            self._out.print(f"failed {key.task} {key.method} {key.seed}: {cell.error}", markup=False)


def _say_how_it_went(results: Results, out: Path) -> None:
    failures = results.failures()
    console.out().print(
        f"{len(results.good)} cells in {out}"
        + (f", {len(failures)} failed (hcal bench run … --retry-failed tries them again)" if failures else "")
        + f"\nnext: hcal bench table {out}",
        markup=False,
    )


@app.command()
def table(
    results: ResultsArg,
    metric: Annotated[str, typer.Option(help="metrics by commas; default: the overview tables")] = "",
    format: Annotated[str, typer.Option(help="terminal, markdown, latex or html")] = "terminal",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write to a file")] = None,
    tasks: Annotated[str, typer.Option(help="only these tasks, by commas")] = "",
    methods: Annotated[str, typer.Option(help="only these methods, by commas")] = "",
) -> None:
    """Print the paper's tables from a results file: per metric, AE and ARE, ranks, accuracy."""
    with console.friendly():
        from hcal.bench.render import render_tables, write_text
        from hcal.bench.store import read_results
        from hcal.bench.tables import all_tables, metric_table

        if out:
            console.refuse_inputs(out, results)
        kept = read_results(results).select(names_of(tasks) or None, names_of(methods) or None)
        tables = [metric_table(kept, m) for m in names_of(metric) or []] or all_tables(kept)
        text = render_tables(tables, format)
        if out:
            write_text(out, text)
        elif format == "terminal":
            console.out().print(text, markup=False, end="")
        else:
            typer.echo(text)


@app.command()
def figures(
    results: ResultsArg,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the figures")] = Path("figures"),
    task: Annotated[str, typer.Option(help="task of the reliability diagrams")] = "",
    format: Annotated[str, typer.Option(help="png, pdf or svg")] = "png",
) -> None:
    """Draw the figures of a results file."""
    with console.friendly():
        from hcal.bench.figures import draw_all
        from hcal.bench.store import read_results

        for path in draw_all(read_results(results), out, task=task or None, suffix=format):
            console.out().print(str(path), markup=False)


@app.command()
def export(
    results: ResultsArg,
    out: Annotated[Path, typer.Option("--out", "-o", help="a .csv or .parquet file")],
) -> None:
    """Write a compact copy of a results file, sorted, without superseded cells."""
    with console.friendly():
        from hcal.bench.store import export_results, read_results

        console.refuse_inputs(out, results)
        export_results(read_results(results), out)
