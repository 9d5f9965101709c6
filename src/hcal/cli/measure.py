"""``hcal evaluate``, ``report`` and ``certify``: measure how well a model is calibrated."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
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
)
from hcal.cli.require import Requirements

if TYPE_CHECKING:
    from hcal.evaluation import Evaluation
    from hcal.io import DataFile
    from hcal.reporting import ReportVerdict, Source


def _text_names(data: Any) -> list[str] | None:
    """Return the names of a file's classes as text, so that labels that are integers count as positions."""
    return None if data.classes is None else [str(name) for name in data.classes]


def _own_probs(data: DataFile) -> Any:
    """Return the probabilities (N, K) that a file holds or implies: softmax of its logits."""
    from hcal.inputs import to_probs

    return to_probs(data.values, data.kind)


# -- evaluate ---------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """The result of ``hcal evaluate``: the metrics, and the rows for the diagrams before and after calibration."""

    data: DataFile
    calibrator: Any
    positive: int
    result: Evaluation
    raw: Any
    probs: Any
    changed: int
    more: dict[str, Any]
    sentences: list[str]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        import hcal

        result, data = self.result, self.data
        found: dict[str, Any] = {
            "file": str(data.path), "part": data.part or None, "input": data.kind, "rows": result.n,
            "classes": result.k, "class_names": data.classes, "metrics": result.values,
            "accuracy": result.accuracy, "mean_confidence": result.mean_confidence,
        }  # fmt: skip
        if result.groups:
            found["groups"] = [g.group_row() for g in result.groups]
        if result.confidence is not None:
            found |= {
                "confidence": result.confidence,
                "intervals": {n: result.interval(n) for n in result.results},
            }
        if self.calibrator is not None:
            before = {name: change.before for name, change in result.differences.items()}
            found |= {
                "method": self.calibrator.name,
                "before": before,
                "argmax_changed": self.changed,
            }
        if result.assessment is not None:
            found["assessment"] = result.assessment.to_dict()
        y = data.labels()
        if result.k == 2 and len(y) == result.n and 0 < (y == self.positive).sum() < len(y):
            found["clinical"] = hcal.clinical(self.probs, y, positive=self.positive).to_dict()
        warnings = [*result.warnings, *self.notes]
        return found | self.more | {"collapsed": result.collapsed, "warnings": warnings}

    def show(self, *, draw: bool) -> None:
        """Print the metrics by level and the reliability diagram."""
        import hcal

        out, data, result = console.out(), self.data, self.result
        part = f", {data.part} part" if data.part else ""
        out.print(f"[bold]{console.name(data.name)}[/]{part}, from {data.kind}")
        out.print(result)
        if self.calibrator is not None:
            out.print(f"{self.changed:,} of {result.n:,} predicted classes changed")
        console.show_lines("\n".join(self.sentences))
        for note in self.notes:
            console.say("warning", "yellow", note)
        sides = (
            {"": self.raw} if self.calibrator is None else {"before": self.raw, "after": self.probs}
        )
        for title, probs in sides.items() if draw else ():
            names = _text_names(data)
            diagram = hcal.reliability(
                probs, data.labels(), bins=10, positive=self.positive, classes=names
            )
            out.print(f"\n[bold]{title}[/]" if title else "")
            console.show_lines(diagram)


@command("hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json")
def evaluate(
    *,
    files: Files,
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
    calibrator, asked = (
        options.load_model(model, multilabel=True),
        {"metrics": names_of(metrics), "confidence": confidence},
    )
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
    found = _measure(files, blocks, calibrator, positive, asked, shown.silent)
    facts = requirements.facts(found.result)
    shown.show(lambda: found.to_dict() | facts, lambda: found.show(draw=diagram))
    requirements.apply(found.result)


def _measure(
    files: Files, blocks: Blocks, calibrator: Any, positive: str | None, asked: Any, quiet: bool
) -> Measured:
    """Measure the probabilities of files, or a model's; a pass over blocks keeps a sample for the diagram."""
    import numpy as np

    import hcal
    from hcal import inputs, leakage
    from hcal.evaluation.evaluator import overlap_note
    from hcal.fit_record import predict_with_segments

    if blocks.asked(files):
        from hcal.evaluation.blocks import evaluate_batches

        source = files.batches(blocks.batch_rows, calibrator)
        number = options.class_number(positive, source.classes)
        with blocks.working(f"measuring {source.name}", source.n_rows, quiet=quiet) as told:
            done = evaluate_batches(source, calibrator, positive=number, **asked, **told)
        data = replace(
            source.first, values=done.sample.scores, y=done.sample.y, more=tuple(source.paths[1:])
        )
        raw = _own_probs(data)
        probs = raw
        if calibrator is not None:
            probs = np.asarray(predict_with_segments(calibrator, data.values, data.segments))
        found = (
            done.argmax_changed,
            {"how": done.how, "sample_rows": len(done.sample)},
            done.sentences,
        )
        return Measured(
            data, calibrator, number, done.result, raw, probs, *found, overlap_note(done.overlap)
        )
    data = files.read(calibrator)
    raw = probs = _own_probs(data)
    y, number = data.labels(), options.class_number(positive, data.classes)
    asked = asked | {
        "sample_weight": data.weight,
        "groups": data.groups,
        "by": data.by or None,
        "classes": _text_names(data),
    }
    with console.working(f"measuring {console.shape_of(data)}", quiet=quiet):
        if calibrator is not None:
            probs = predict_with_segments(calibrator, data.values, data.segments)
            probs = inputs.check_probs(probs)[0]
        result = hcal.evaluate(
            probs, y, baseline=None if calibrator is None else raw, positive=number, **asked
        )
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    notes = overlap_note(leakage.fit_overlap(calibrator, data.values))
    return Measured(data, calibrator, number, result, raw, probs, changed, {}, [], notes)


# -- report, certify ----------------------------------------------------------------------


@command(
    "hcal report test.npz -o report.html",
    "hcal report study.csv --label y --cross-fit -o report.html",
)
def report(
    *,
    files: Annotated[Files, "weight"],
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
    from hcal.reporting import measure_blocks, measure_report, write_page

    options.check_output(output, *files.file, model, files.labels)
    requirements.expect(grade=True, model=model is not None or cross_fit)
    calibrator = options.load_model(model)
    costs = parse_cost(cost)
    if blocks.asked(files):
        source = files.batches(blocks.batch_rows, calibrator)
        with blocks.working(f"measuring {source.name}", source.n_rows, quiet=shown.silent) as work:
            content = measure_blocks(
                source,
                calibrator,
                source=_source_of(source.first, files, model),
                confidence=confidence,
                positive=options.class_number(positive, source.classes),
                threshold=tuple(threshold),
                cost=costs,
                cross_fit=cross_fit,
                **work,
            )
    else:
        data = files.read(calibrator)
        with console.working(f"measuring {console.shape_of(data)}", quiet=shown.silent):
            content = measure_report(
                data.values,
                data.labels(),
                method if cross_fit else calibrator,
                input=data.kind,
                classes=_text_names(data),
                source=_source_of(data, files, model),
                confidence=confidence,
                positive=options.class_number(positive, data.classes),
                groups=data.groups,
                by=data.by or None,
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
    files: Annotated[Files, "weight"],
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
    from hcal.certificates.certification import certify_batches

    requirements.expect()
    calibrator = options.load_model(model)
    wanted: dict[str, Any] = {"confidence": confidence, "assume": assume}
    if blocks.asked(files):
        source = files.batches(blocks.batch_rows, calibrator)
        wanted["positive"] = options.class_number(positive, source.classes)
        with blocks.working(f"certifying {source.name}", source.n_rows, quiet=shown.silent) as told:
            found = certify_batches(source, calibrator, **wanted, **told)
    else:
        data = files.read(calibrator)
        if calibrator is None and data.made_by and not fresh:
            raise ValueError(
                f"{data.name} was written by hcal apply with the model {data.made_by}: certify the scores with "
                "--model, which recognises rows of its fit, or add --fresh if none of these rows was used in the fit"
            )
        y = data.labels()
        rows: list[Any] = [_own_probs(data), y]
        wanted |= {
            "positive": options.class_number(positive, data.classes),
            "classes": _text_names(data),
        }
        if out_of_fold is not None:
            wanted["out_of_fold"] = True
            rows = [hcal.make_calibrator(out_of_fold, input=data.kind), data.values, y]
        elif calibrator is not None:
            wanted["baseline"] = rows[0]
            rows = [calibrator, data.values, y]
        with console.working(f"certifying {console.shape_of(data)}", quiet=shown.silent):
            found = hcal.certify(
                *rows, groups=data.groups, by=data.segments | data.by or None, **wanted
            )
    facts = requirements.facts(found)
    shown.show(lambda: found.to_dict() | facts, lambda: console.show_lines(str(found)))
    requirements.apply(found)
