"""``hcal compare``: fit several methods and show which does best on rows that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

from hcal.cli import console
from hcal.cli.options import (
    Metrics,
    WithBy,
    WithGroups,
    WithLabels,
    WithWeight,
    check_output,
    command,
    names_of,
    stated_options,
    with_file,
)
from hcal.text import JsonObject

if TYPE_CHECKING:
    from hcal.evaluation.comparison import Task
    from hcal.evaluation.comparison_table import Comparison


@command(
    "compare",
    "hcal compare task.npz --methods ts,iso,pool",
    "hcal compare tasks/ --methods pool,h --out results.jsonl",
)
@dataclass(frozen=True, kw_only=True)
class Compare(WithWeight, WithBy, WithGroups, WithLabels):
    """Fit several methods and show which does best on rows that they have not seen."""

    test: Annotated[
        Path | None, Option(help="test on this file; else the test part, else folds")
    ] = None
    methods: Annotated[
        str | None, Option(help="registry names separated by commas; default: all")
    ] = None
    metrics: Metrics = None
    sort: Annotated[str | None, Option(help="a metric: the best method first")] = None
    folds: Annotated[int, Option(help="number of folds of a file without a test part")] = 5
    out: Annotated[
        Path | None, Option(help="a file for finished results; an interrupted run resumes")
    ] = None
    latex: Annotated[bool, Option("--latex", help="print a LaTeX table")] = False
    markdown: Annotated[bool, Option("--markdown", help="print a markdown table")] = False
    jobs: Annotated[int | None, Option(help="processes; -1 for all cores")] = None
    scheduler: Annotated[str | None, Option(help="address of a Dask scheduler")] = None

    def run(self) -> None:
        """Fit all methods and print the table."""
        import hcal

        check_output(self.out, *self.file, self.test, self.labels)
        if self.several and (self.test is not None or self.labels is not None):
            raise ValueError("--test and --labels go with one file; several files are a task each")
        table = hcal.compare(
            tasks=self._tasks(),
            methods=names_of(self.methods),
            metrics=names_of(self.metrics),
            results=self.out,
            n_jobs=self.jobs,
            scheduler=self.scheduler,
            progress=False if self.silent else None,
        )
        table = table if self.sort is None else table.sorted(self.sort)
        self.show(table.to_dict(), lambda: self._show(table))

    def _tasks(self) -> JsonObject:
        """Return the tasks by their names: of one file, or one of each file."""
        from hcal.evaluation.comparison import FOLDS, named_files
        from hcal.io.files import files_of

        if not self.several:
            return {"task": self._task("task")}
        files = named_files(files_of(self.file))
        if not stated_options(self) and self.folds == FOLDS:
            return dict(files)  # then a file is read where it is needed
        return {name: with_file(self, path)._task(name) for name, path in files.items()}

    def _task(self, name: str) -> Task:
        """Return the rows of one file as a task."""
        from hcal.evaluation.comparison import Task

        learn = self.read(part="cal")
        if self.test is None and not learn.part:
            return Task.from_data(name, learn, folds=self.folds)
        alike = replace(self, input=learn.kind)
        other = alike if self.test is None else with_file(alike, self.test)
        unseen = other.read().in_order_of(learn.classes)
        return Task.from_data(name, learn, unseen)

    def _show(self, table: Comparison) -> None:
        if self.latex or self.markdown:
            echo(table.to_latex() if self.latex else table.to_markdown())
        else:
            console.out().print(table)
