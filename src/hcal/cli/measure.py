"""``hcal evaluate``, ``report`` and ``certify``: measure how well a model is calibrated."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hcal.cli import console, options
from hcal.cli.options import (
    Blocks,
    Files,
    Method,
    Model,
    Output,
    Positive,
    Shown,
    command,
    names_of,
    opened,
)
from hcal.cli.require import Requirements

if TYPE_CHECKING:
    from hcal.certificates.survey import Side, Survey
    from hcal.evaluation import Evaluation
    from hcal.io import DataFile
    from hcal.reporting import ReportVerdict, Source


# -- evaluate ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The result of ``hcal evaluate``, with the rows for the diagrams before and after calibration."""

    data: DataFile
    calibrator: Any
    positive: int
    survey: Survey
    result: Evaluation

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        import hcal

        result = self.result
        content: dict[str, Any] = {
            "file": str(self.data.path),
            "part": self.data.part or None,
            "input": self.data.kind,
            "rows": result.n,
            "classes": result.k,
            "class_names": self.data.classes,
            "metrics": result.values,
            "by_chance": result.by_chance,
            "accuracy": result.accuracy,
            "mean_confidence": result.mean_confidence,
            "how": result.how,
            "sample_rows": result.sample_rows,
        }
        if result.groups:
            content["groups"] = [group.group_row() for group in result.groups]
        if result.confidence is not None:
            content["confidence"] = result.confidence
            content["intervals"] = {name: result.interval(name) for name in result.results}
        if self.calibrator is not None:
            content["method"] = self.calibrator.name
            content["before"] = {name: diff.before for name, diff in result.differences.items()}
            if result.before is not None:
                content["before_by_chance"] = result.before.by_chance
            content["argmax_changed"] = result.changed
        if result.assessment is not None:
            content["assessment"] = result.assessment.to_dict()
        y = self.survey.rows.labels
        if result.k == 2 and not self.survey.is_sample and 0 < (y == self.positive).sum() < len(y):
            panel = hcal.clinical(self._final.probs, y, positive=self.positive)
            content["clinical"] = panel.to_dict()
        return content | {"collapsed": result.collapsed, "warnings": result.warnings}

    def show(self, *, draw: bool) -> None:
        """Print the metrics by level and the reliability diagram."""
        out = console.out()
        part = f", {self.data.part} part" if self.data.part else ""
        out.print(f"[bold]{console.name(self.data.name)}[/]{part}, from {self.data.kind}")
        out.print(self.result)
        if self.calibrator is not None:
            out.print(f"{self.result.changed:,} of {self.result.n:,} predicted classes changed")
        if not draw:
            return
        if self.survey.after is None:
            self._draw("", self.survey.before)
            return
        self._draw("before", self.survey.before)
        self._draw("after", self.survey.after)

    @property
    def _final(self) -> Side:
        return self.survey.before if self.survey.after is None else self.survey.after

    def _draw(self, title: str, side: Side) -> None:
        """Print a reliability diagram."""
        import hcal

        rows = self.survey.rows
        diagram = hcal.reliability(
            side.probs, rows.labels, bins=10, positive=self.positive, classes=rows.names
        )
        console.out().print(f"\n[bold]{title}[/]" if title else "")
        console.show_lines(diagram)


@command("hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json")
def evaluate(
    *,
    files: Annotated[Files, "time"],
    model: Model = None,
    metrics: Annotated[str | None, Option(help="names separated by commas; default: all")] = None,
    confidence: Annotated[
        float | None, Option(help="add intervals of this level, such as 0.95")
    ] = None,
    positive: Positive = None,
    diagram: Annotated[bool, Option(help="draw a reliability diagram in the terminal")] = True,
    requirements: Requirements,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    requirements.expect(model=model is not None)
    calibrator = options.load_model(model, multilabel=True)
    if getattr(calibrator, "name", "") == "multilabel":
        requirements.refuse("a calibrator of several labels")
        data = files.read(calibrator)
        scores = calibrator.evaluate(data.values, data.y)
        lines = [
            f"{label}: " + ", ".join(f"{k} {v:.4f}" for k, v in each.items())
            for label, each in scores.items()
        ]
        shown.show(
            {"file": str(data.path), "labels": scores}, lambda: console.show_lines("\n".join(lines))
        )
        return
    measured = _measure(files, blocks, calibrator, positive, names_of(metrics), confidence, shown)
    facts = requirements.facts(measured.result)
    shown.show(lambda: measured.to_dict() | facts, lambda: measured.show(draw=diagram))
    requirements.apply(measured.result)


def _measure(
    files: Annotated[Files, "time"],
    blocks: Blocks,
    calibrator: Any,
    positive: str | None,
    metrics: list[str] | None,
    confidence: float | None,
    shown: Shown,
) -> Measured:
    """Measure the probabilities of files, or a model's."""
    from hcal.evaluation.evaluator import chosen_metrics
    from hcal.evaluation.measurement import Settings, evaluate_survey, survey_source

    with opened(files, blocks, calibrator, "measuring", quiet=shown.silent) as rows:
        settings = Settings(
            metrics=None if metrics is None else tuple(chosen_metrics(metrics)),
            confidence=confidence,
            positive=options.class_number(positive, rows.source.names),
        )
        survey = survey_source(rows.source, settings, calibrator)
        result = evaluate_survey(survey, settings)
    return Measured(rows.data, calibrator, settings.positive, survey, result)


# -- report, certify ----------------------------------------------------------------------


@command(
    "hcal report test.npz -o report.html",
    "hcal report study.csv --label y --cross-fit -o report.html",
)
def report(
    *,
    files: Annotated[Files, "weight", "time"],
    output: Output,
    model: Model = None,
    confidence: Annotated[float, Option(help="level of intervals and bands")] = 0.95,
    positive: Positive = None,
    threshold: Annotated[list[float], Option(help="a decision threshold; repeatable")] = [],  # noqa: B006
    cost: Annotated[str | None, Option(help="the costs of errors, such as fn=10,fp=1")] = None,
    cross_fit: Annotated[
        bool, Option("--cross-fit", help="fit and test a method on the same rows, by folds")
    ] = False,
    method: Method = None,
    requirements: Requirements,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Write one HTML page that says whether the probabilities can be trusted."""
    from hcal.reporting import measure_report, write_page

    options.check_output(output, *files.file, model, files.labels)
    requirements.expect(grade=True, model=model is not None or cross_fit)
    calibrator = options.load_model(model)
    costs = parse_cost(cost)
    with opened(files, blocks, calibrator, "measuring", quiet=shown.silent) as rows:
        content = measure_report(
            rows.source,
            None,
            method if cross_fit else calibrator,
            source=_source_of(rows.data, files, model),
            confidence=confidence,
            positive=options.class_number(positive, rows.source.names),
            threshold=tuple(threshold),
            cost=costs,
            cross_fit=cross_fit,
        )
    verdict = write_page(output, content)
    for alarm in verdict.alarms:
        console.say("warning", "yellow", alarm)
    facts = {"report": str(output), **verdict.to_dict(), **requirements.facts(verdict)}
    shown.show(facts, partial(_show_verdict, verdict, output))
    requirements.apply(verdict)


def _show_verdict(verdict: ReportVerdict, output: Path) -> None:
    console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
    console.show_lines("\n".join(verdict.sentences))
    console.out().print(f"\nwrote [bold]{console.name(output)}[/]: open it in any browser")


def _source_of(data: DataFile, files: Files, model: Path | None) -> Source:
    """Return where the rows of a report come from, and the command that repeats it."""
    from hcal.io import checksum
    from hcal.reporting import Source

    return Source(
        name=str(data.path) if len(files.file) == 1 else data.name,
        part=data.part,
        kind=data.kind,
        checksum=data.checksum(),
        model=str(model or ""),
        options=files.options(),
        model_checksum="" if model is None else checksum(model),
        command=shlex.join(["hcal", *sys.argv[1:]]) if len(sys.argv) > 1 else "",
    )


def parse_cost(text: str | None) -> dict[str, float] | None:
    """Return the costs that a text like ``fn=10,fp=1`` states.

    >>> parse_cost("fn=10, fp=1")
    {'fn': 10.0, 'fp': 1.0}
    """
    if text is None:
        return None
    try:
        found = {
            name.strip(): float(value)
            for name, value in (part.split("=") for part in text.split(","))
        }
    except ValueError:
        found = {}
    if set(found) != {"fn", "fp"}:
        raise ValueError(f"--cost takes fn=10,fp=1, got {text!r}")
    return found


@command("hcal certify test.npz --model model.hcal", "hcal certify cal.npz --out-of-fold iso")
def certify(
    *,
    files: Annotated[Files, "weight", "time"],
    model: Model = None,
    confidence: Annotated[
        float, Option(help="probability with which all statements hold together")
    ] = 0.95,
    assume: Annotated[
        str | None, Option(help="monotone: add bounds for a true rate that never falls")
    ] = None,
    positive: Positive = None,
    out_of_fold: Annotated[
        str | None, Option(help="fit this method on these rows by folds, and certify it")
    ] = None,
    fresh: Annotated[
        bool, Option("--fresh", help="no row of this hcal apply output was used in the fit")
    ] = False,
    requirements: Requirements,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    import hcal
    from hcal.certificates.assembly import Terms
    from hcal.certificates.certification import certify_source

    requirements.expect()
    calibrator = options.load_model(model)
    terms = Terms(confidence, assume=assume)
    with opened(files, blocks, calibrator, "certifying", quiet=shown.silent) as rows:
        made_by = rows.data.made_by
        if calibrator is None and made_by and not fresh:
            raise ValueError(
                f"{rows.data.name} was written by hcal apply with the model {made_by}: certify the scores with "
                "--model, which recognises rows of its fit, or add --fresh if none of these rows was used in the fit"
            )
        number = options.class_number(positive, rows.source.names)
        if out_of_fold is None:
            found = certify_source(rows.source, terms, number, calibrator=calibrator, gain=True)
        else:
            method = hcal.make_calibrator(out_of_fold, input=rows.source.kind)
            found = hcal.certify(
                method, rows.source, out_of_fold=True, confidence=confidence, positive=number
            )
    facts = requirements.facts(found)
    shown.show(lambda: found.to_dict() | facts, lambda: console.show_lines(str(found)))
    requirements.apply(found)
