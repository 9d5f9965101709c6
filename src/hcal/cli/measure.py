"""``hcal evaluate``, ``report`` and ``certify``: measure how well a model is calibrated."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from hcal.cli import console
from hcal.cli.config import arguments_of
from hcal.cli.options import (
    EachRowOnce,
    InBlocks,
    Method,
    Metrics,
    Model,
    Output,
    Positive,
    Requiring,
    WithBy,
    WithGroups,
    WithLabels,
    WithWeight,
    check_output,
    class_called,
    class_number,
    command,
    file_facts,
    load_model,
    names_of,
    stated_options,
)
from hcal.text import JsonObject

if TYPE_CHECKING:
    from hcal.certificates.certification import Certified
    from hcal.certificates.survey import Side, Survey
    from hcal.evaluation import Evaluation
    from hcal.io import DataFile
    from hcal.io.sources import RowSource
    from hcal.methods.base import Calibrator
    from hcal.methods.multilabel import MultilabelCalibrator
    from hcal.reporting import ReportVerdict, Source


@command("evaluate", "hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json")
@dataclass(frozen=True, kw_only=True)
class Evaluate(Requiring, InBlocks, WithWeight, WithBy, WithGroups, WithLabels):
    """Measure how far probabilities can be trusted, before and after a calibrator."""

    model: Model = None
    metrics: Metrics = None
    confidence: Annotated[
        float | None, Option(help="add intervals of this level, such as 0.95")
    ] = None
    positive: Positive = None
    diagram: Annotated[bool, Option(help="draw a reliability diagram in the terminal")] = True

    def run(self) -> None:
        """Print every metric, by level, and the reliability diagrams."""
        self.expect(model=self.model is not None)
        calibrator = load_model(self.model, multilabel=True)
        if calibrator is not None and calibrator.name == "multilabel":
            self._run_labels(calibrator)
            return

        from hcal.evaluation.evaluator import chosen_metrics
        from hcal.evaluation.measurement import Settings, evaluate_survey, survey_source

        names = names_of(self.metrics)
        with self.opened(calibrator, "measuring") as rows:
            settings = Settings(
                metrics=None if names is None else tuple(chosen_metrics(names)),
                confidence=self.confidence,
                positive=class_number(self.positive, rows.source.names),
            )
            survey = survey_source(rows.source, settings, calibrator)
            result = evaluate_survey(survey, settings)
        facts = file_facts(rows.data) | _model_facts(self.model, calibrator) | self.checks(result)
        self.show(
            result.to_dict() | facts,
            lambda: self._show(rows.data, result, survey, settings.positive),
        )
        self.check(result)

    def _run_labels(self, calibrator: Calibrator) -> None:
        """Measure a calibrator of several labels a row."""
        if self.require:
            raise ValueError(
                "--require speaks of one result: a calibrator of several labels has one for each "
                "label"
            )
        data = self.read(calibrator)
        # A file may hold such a calibrator, although hcal.load is said to return a Calibrator.
        scores = cast("MultilabelCalibrator", calibrator).evaluate(data.values, data.y)
        lines = []
        for label, values in scores.items():
            numbers = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
            lines.append(f"{label}: {numbers}")
        self.show(
            {
                "schema": "hcal/evaluate_labels/1",
                "file": console.title_of(data.path),
                "labels": scores,
            },
            lambda: console.show_lines("\n".join(lines)),
        )

    def _show(self, data: DataFile, result: Evaluation, survey: Survey, positive: int) -> None:
        """Print the metrics by level and the reliability diagrams."""
        out = console.out()
        part = f", {data.part} part" if data.part else ""
        out.print(f"[bold]{console.name(data.name)}[/]{part}, from {data.kind}")
        out.print(result)
        if result.changed is not None:
            out.print(f"{result.changed:,} of {result.n:,} predicted classes changed")
        if not self.diagram:
            return
        if survey.after is None:
            _draw("", survey, survey.before, positive)
            return
        _draw("before", survey, survey.before, positive)
        _draw("after", survey, survey.after, positive)


def _draw(title: str, survey: Survey, side: Side, positive: int) -> None:
    """Print a reliability diagram, in the bins of the ECE."""
    import hcal

    rows = survey.rows
    diagram = hcal.reliability(
        side.probs,
        rows.labels,
        sample_weight=rows.weight,
        groups=rows.groups,
        positive=positive,
        # Labels that are integers count as positions where the names are texts.
        classes=None if rows.names is None else list(map(str, rows.names)),
    )
    console.out().print(f"\n[bold]{title}[/]" if title else "")
    console.show_lines(diagram)


def _model_facts(path: Path | None, calibrator: Calibrator | None) -> JsonObject:
    """Return what JSON says of the model."""
    if calibrator is None:
        return {}
    return {"model": console.title_of(path or ""), "method": calibrator.name}


@command(
    "report",
    "hcal report test.npz -o report.html",
    "hcal report study.csv --label y --cross-fit -o report.html",
)
@dataclass(frozen=True, kw_only=True)
class Report(Requiring, EachRowOnce, InBlocks, WithBy, WithGroups, WithLabels):
    """Write one HTML page that says whether the probabilities can be trusted."""

    output_type = "html"

    output: Output
    model: Model = None
    confidence: Annotated[float, Option(help="level of intervals and bands")] = 0.95
    positive: Positive = None
    threshold: Annotated[list[float] | None, Option(help="a decision threshold; repeatable")] = None
    cost: Annotated[str | None, Option(help="the costs of errors, such as fn=10,fp=1")] = None
    cross_fit: Annotated[
        bool, Option("--cross-fit", help="fit and test a method on the same rows, by folds")
    ] = False
    method: Method = None

    def run(self) -> None:
        """Measure the rows, write the page, and print what it says first."""
        from hcal.reporting import measure_report, write_page

        check_output(self.output, *self.file, self.model, self.labels)
        self.expect(grade=True, model=self.model is not None or self.cross_fit)
        calibrator = load_model(self.model)
        costs = parse_cost(self.cost)
        run = self._run_facts()
        with self.opened(calibrator, "measuring") as rows:
            content = measure_report(
                rows.source,
                None,
                self.method if self.cross_fit else calibrator,
                source=self._source(rows.data, run),
                confidence=self.confidence,
                positive=class_called(self.positive, rows.source.names),
                threshold=tuple(self.threshold or ()),
                cost=costs,
                cross_fit=self.cross_fit,
            )
            verdict = write_page(self.output, content)
        for alarm in verdict.alarms:
            console.say("warning", "yellow", alarm)
        facts = {"report": console.title_of(self.output), "run": run, **self.checks(verdict)}
        self.show(verdict.to_dict() | facts, lambda: self._show(verdict))
        self.check(verdict)

    def _source(self, data: DataFile, run: JsonObject) -> Source:
        """Return where the rows of a report come from, and the command that repeats it."""
        from hcal.io import checksum
        from hcal.reporting import Source

        name = str(data.path) if len(self.file) == 1 else data.name
        return Source(
            name=console.title_of(name) if console.title_of(data.path) == "-" else name,
            part=data.part,
            kind=data.kind,
            checksum=data.checksum(),
            model="" if self.model is None else console.title_of(self.model),
            options=stated_options(self),
            model_checksum="" if self.model is None else checksum(self.model),
            command=shlex.join(run["command"]),
            run=run,
        )

    def _run_facts(self) -> JsonObject:
        """Return what repeats the report: the command with all options, versions, and hashes of what it reads."""
        from hcal.io import checksum
        from hcal.io.files import files_of
        from hcal.reporting.tables import versions

        files = files_of(self.file)
        files += [path for path in (self.model, self.labels) if path is not None]
        return {
            "command": arguments_of("report", self),
            "versions": versions(),
            "sha256": {console.title_of(path): checksum(path) for path in files},
        }

    def _show(self, verdict: ReportVerdict) -> None:
        console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
        console.show_lines("\n".join(verdict.sentences))
        page = console.name(console.title_of(self.output))
        console.out().print(f"\nwrote [bold]{page}[/]: open it in any browser")


def parse_cost(text: str | None) -> dict[str, float] | None:
    """Return the costs that a text like ``fn=10,fp=1`` states.

    >>> parse_cost("fn=10, fp=1")
    {'fn': 10.0, 'fp': 1.0}
    """
    if text is None:
        return None
    costs = {}
    try:
        for part in text.split(","):
            name, value = part.split("=")
            costs[name.strip()] = float(value)
    except ValueError:
        costs = {}
    if set(costs) != {"fn", "fp"}:
        raise ValueError(f"--cost takes fn=10,fp=1, got {text!r}")
    return costs


@command(
    "certify", "hcal certify test.npz --model model.hcal", "hcal certify cal.npz --out-of-fold iso"
)
@dataclass(frozen=True, kw_only=True)
class Certify(Requiring, EachRowOnce, InBlocks, WithBy, WithGroups, WithLabels):
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""

    model: Model = None
    confidence: Annotated[
        float, Option(help="probability with which all statements hold together")
    ] = 0.95
    assume: Annotated[
        str | None, Option(help="monotone: add bounds for a true rate that never falls")
    ] = None
    positive: Positive = None
    out_of_fold: Annotated[
        str | None, Option(help="fit this method on these rows by folds, and certify it")
    ] = None
    fresh: Annotated[
        bool, Option("--fresh", help="no row of this hcal apply output was used in the fit")
    ] = False

    def run(self) -> None:
        """Print what is proven."""
        self.expect()
        calibrator = load_model(self.model)
        with self.opened(calibrator, "certifying") as rows:
            made_by = rows.data.made_by
            if calibrator is None and made_by and not self.fresh:
                raise ValueError(
                    f"{rows.data.name} was written by hcal apply with the model {made_by}: "
                    "certify the scores with --model, which recognises rows of its fit, or add "
                    "--fresh if none of these rows was used in the fit"
                )
            result = self._certified(calibrator, rows.source)
        facts = file_facts(rows.data) | _model_facts(self.model, calibrator) | self.checks(result)
        self.show(result.to_dict() | facts, lambda: console.show_lines(str(result)))
        self.check(result)

    def _certified(self, calibrator: Calibrator | None, source: RowSource) -> Certified:
        """Return the certificate of probabilities, of a calibrator, or of a method by folds."""
        import hcal

        positive = class_called(self.positive, source.names)
        if self.out_of_fold is None:
            judged = (source,) if calibrator is None else (calibrator, source)
            return hcal.certify(
                *judged,
                confidence=self.confidence,
                baseline=None if calibrator is None else "scores",
                assume=self.assume,
                input=source.kind if calibrator is None else None,
                positive=positive,
            )
        method = hcal.make_calibrator(self.out_of_fold, input=source.kind)
        return hcal.certify(
            method, source, out_of_fold=True, confidence=self.confidence, positive=positive
        )
