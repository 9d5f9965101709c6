"""``hcal compare``: fit several methods and show which does best on rows that they have not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option, echo

from hcal.cli import console, options
from hcal.cli.options import Files, Shown, command, names_of


@command(
    "hcal compare task.npz --methods ts,iso,pool",
    "hcal compare tasks/ --methods pool,h --out results.jsonl",
)
def compare(
    *,
    files: Annotated[Files, "time"],
    test: Annotated[
        Path | None, Option(help="test on this file; else the test part, else folds")
    ] = None,
    methods: Annotated[
        str | None, Option(help="registry names separated by commas; default: all")
    ] = None,
    metrics: Annotated[str | None, Option(help="names separated by commas")] = None,
    sort: Annotated[str | None, Option(help="a metric: the best method first")] = None,
    folds: Annotated[int, Option(help="number of folds of a file without a test part")] = 5,
    out: Annotated[
        Path | None, Option(help="a file for finished results; an interrupted run resumes")
    ] = None,
    latex: Annotated[bool, Option("--latex", help="print a LaTeX table")] = False,
    markdown: Annotated[bool, Option("--markdown", help="print a markdown table")] = False,
    jobs: Annotated[int | None, Option(help="processes; -1 for all cores")] = None,
    scheduler: Annotated[str | None, Option(help="address of a Dask scheduler")] = None,
    shown: Shown,
) -> None:
    """Fit several methods and show which does best on rows that they have not seen."""
    import hcal
    from hcal.evaluation.comparison import FOLDS, Task, named_files
    from hcal.io.finding import files_of

    options.check_output(out, *files.file, test, files.labels)
    wanted: dict[str, Any] = {
        "methods": names_of(methods), "metrics": names_of(metrics), "results": out, "n_jobs": jobs,
        "scheduler": scheduler, "progress": False if shown.silent else None,
    }  # fmt: skip
    if files.several and (test is not None or files.labels is not None):
        raise ValueError("--test and --labels go with one file; several files are a task each")

    def task(asked: Files, name: str) -> Task:
        learn = asked.read(part="cal")
        if test is None and not learn.part:
            return Task.from_data(name, learn, folds=folds)
        asked = replace(asked, input=learn.kind)
        unseen = (asked if test is None else asked.of(test)).read().in_order_of(learn.classes)
        return Task.from_data(name, learn, unseen)

    tasks: dict[str, Any] = {}
    if not files.several:
        tasks["task"] = task(files, "task")
    for name, path in named_files(files_of(files.file)).items() if files.several else ():
        plain = not files.options() and folds == FOLDS  # then the file is read where it is needed
        tasks[name] = path if plain else task(files.of(path), name)
    table = hcal.compare(tasks=tasks, **wanted)
    table = table if sort is None else table.sorted(sort)

    def show() -> None:
        if latex or markdown:
            echo(table.to_latex() if latex else table.to_markdown())
        else:
            console.out().print(table)

    shown.show(table.to_dict, show)
