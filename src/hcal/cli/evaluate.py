"""``hcal evaluate``: metrics by level, before and after, and a diagram in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

import hcal
from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.calibrators.files import load
from hcal.certificates.sentences import group_sentences
from hcal.cli import console, diagram
from hcal.cli.files import Ask, calibrator_and_data, shape_of
from hcal.cli.report import same_file
from hcal.cli.scale import Scale, describe, open_batches
from hcal.evaluation import Evaluation, learned_from
from hcal.evaluation.blocks import BatchedEvaluation, evaluate_batches
from hcal.io import Batches, DataFile
from hcal.io.probabilities import to_probs
from hcal.numerics import FloatArray, IntArray

#: Peak of memory over the bytes of the scores: 14 for float32 before and after a calibrator, 7 for float64.
TIMES: Final = 10


@dataclass(frozen=True)
class Measured:
    """What ``hcal evaluate`` found.

    ``raw`` (N, K) are the file's own probabilities and ``before`` their evaluation where there is a
    calibrator; ``probs`` (N, K) are the calibrator's, or the same object, and ``result`` is theirs. Where
    rows came by blocks (``streamed``) these arrays are a sample of them.
    """

    data: DataFile
    raw: FloatArray
    probs: FloatArray
    y: IntArray
    before: Evaluation | None
    result: Evaluation
    calibrator: Calibrator | None
    argmax_changed: int = 0
    streamed: BatchedEvaluation | None = None

    def to_dict(self, notes: Sequence[str] = ()) -> dict[str, Any]:
        """Return a JSON-able summary; ``notes`` join the warnings."""
        found: dict[str, Any] = {
            "file": str(self.data.path),
            "part": self.data.part or None,
            "input": self.data.kind,
            "rows": self.result.n,
            "classes": self.result.k,
            "class_names": self.data.classes,
            "metrics": self.result.to_dict(),
        }
        if self.result.groups:
            found["groups"] = [g.to_dict() for g in self.result.groups]
        if self.result.ci is not None:
            found |= {"ci": self.result.ci, "intervals": _intervals(self.result)}
        if self.before is not None and self.calibrator is not None:
            found |= {
                "method": self.calibrator.name,
                "before": self.before.to_dict(),
                "argmax_changed": self.argmax_changed,
            }
            if self.before.ci is not None:
                found["before_intervals"] = _intervals(self.before)
        if self.result.assessment is not None:
            found["assessment"] = self.result.assessment.to_dict()
        if self.streamed is not None:
            found |= {"how": self.streamed.how, "sample_rows": self.streamed.sample_rows}
        found |= {"accuracy": self.result.accuracy, "mean_confidence": self.result.mean_confidence}
        return found | {"collapsed": self.result.collapsed, "warnings": [*self.result.warnings, *notes]}


def _intervals(evaluation: Evaluation) -> dict[str, Any]:
    return {name: evaluation.interval(name) for name in evaluation.results}


def own_probs(data: DataFile) -> FloatArray:
    """Return the probabilities (N, K) that a file holds or implies: softmax of its logits."""
    return to_probs(data.values, data.kind)


def text_names(data: DataFile) -> list[str] | None:
    """Return the names of a file's classes as text: its labels are positions, and must not be looked up."""
    return None if data.classes is None else [str(name) for name in data.classes]


def measure(
    data: DataFile,
    calibrator: Calibrator | None = None,
    metrics: Sequence[str] | None = None,
    ci: float | None = None,
) -> Measured:
    """Measure the file's probabilities and, where given, the calibrator's.

    ``metrics`` are names or levels, all by default; ``ci`` is the level of the intervals.
    """
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    options: dict[str, Any] = {"sample_weight": data.weight, "groups": data.groups}
    options["classes"] = text_names(data)
    before = hcal.evaluate(raw, y, metrics, ci, **options)
    if calibrator is None:
        return Measured(data, raw, raw, y, None, before, None)
    probs = inputs.check_probs(calibrator.predict_proba(data.values))[0]
    result = hcal.evaluate(probs, y, metrics, ci, baseline=raw, **options)
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    return Measured(data, raw, probs, y, before, result, calibrator, changed)


def measure_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    metrics: Sequence[str] | None = None,
    ci: float | None = None,
    **told: Any,
) -> tuple[Measured, list[str]]:
    """Measure rows that come by blocks; return also what is to be said of them.

    ``told`` says who works on the pieces, and who is told of it.
    """
    found = evaluate_batches(source, calibrator, metrics, ci, **told)
    sample = found.sample
    data = DataFile(
        source.paths[0], source.kind, sample.scores, sample.y, source.part, source.classes,
        more=source.paths[1:],
    )  # fmt: skip
    raw = own_probs(data)
    probs = raw if calibrator is None else inputs.check_probs(calibrator.predict_proba(data.values))[0]
    y = inputs.check_labels(sample.y, *raw.shape)
    changed = found.argmax_changed
    measured = Measured(data, raw, probs, y, found.before, found.result, calibrator, changed, found)
    share = found.learned_from
    note = (
        f"about {share:.0%} of the rows that the calibrator learned from are among these: judge it on others"
    )
    return measured, [note] if share else []


def run_evaluate(
    model: Path | None,
    ask: Ask,
    metrics: Sequence[str] | None,
    ci: float | None,
    scale: Scale,
    *,
    quiet: bool,
) -> tuple[Measured, list[str]]:
    """Measure what was asked for, by blocks where asked for or files are many; return also what to say."""
    if scale.by_blocks(ask):
        calibrator = None if model is None else load(model)
        source = open_batches(ask, scale, calibrator, model)
        with scale.working(f"measuring {describe(source)}", source, quiet=quiet) as told:
            return measure_batches(source, calibrator, metrics, ci, **told)
    ask.check_memory(TIMES)
    calibrator, data = calibrator_and_data(model, ask)
    with console.working(f"measuring {shape_of(data)}", quiet=quiet):
        measured = measure(data, calibrator, metrics, ci)
    return measured, learned_from(calibrator, data.values) + same_file(calibrator, data)


def show(measured: Measured, *, draw: bool) -> None:
    """Print the metrics by level and the reliability diagram."""
    out = console.out()
    data, result = measured.data, measured.result
    part = f", {data.part} part" if data.part else ""
    title = f"[bold]{console.name(data.name)}[/]{part}"
    out.print(f"{title}: {result.n:,} rows, {result.k} classes, from {data.kind}")
    out.print(f"accuracy {result.accuracy:.4f}, mean confidence {_confidence(measured)}\n")
    out.print(_table(measured, explain=out.width >= 110 and result.ci is None))
    if measured.before is not None:
        out.print(f"\n{measured.argmax_changed:,} of {result.n:,} predictions changed their class")
    if result.groups:
        out.print("\n" + "\n".join(group_sentences(result.groups)), markup=False)
    if result.assessment is not None:
        out.print("\n" + "\n".join(result.assessment.sentences), markup=False)
    if measured.streamed is not None and measured.streamed.sentences:
        out.print("\n" + "\n".join(measured.streamed.sentences), markup=False)
    for warning in result.warnings:
        console.say("warning", "yellow", warning)
    if draw:
        _draw(measured)


def _confidence(measured: Measured) -> str:
    after = f"{measured.result.mean_confidence:.4f}"
    return after if measured.before is None else f"{measured.before.mean_confidence:.4f} → {after}"


def _table(measured: Measured, *, explain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", style="cyan", no_wrap=True)
    sides = [e for e in (measured.before, measured.result) if e is not None]
    for head in ("before", "after") if len(sides) == 2 else ("value",):
        table.add_column(head, justify="right", no_wrap=True)
    if explain:
        table.add_column("", no_wrap=True, overflow="ellipsis")
    level = ""
    for name, found in measured.result.results.items():
        if found.metric.level != level:
            level = found.metric.level
            table.add_row(f"[bold]{level}[/]")
        words = [f"[dim]{found.metric.explain}[/]"] if explain else []
        table.add_row(f"  {name}", *(_value(e, name) for e in sides), *words)
    return table


def _value(evaluation: Evaluation, name: str) -> str:
    interval = evaluation.interval(name)
    reach = "" if interval is None else f" [dim]({_short(interval[0])} … {_short(interval[1])})[/]"
    return f"{_short(evaluation[name])}{reach}"


def _short(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def _draw(measured: Measured) -> None:
    out = console.out()
    sides = [("before", measured.raw), ("after", measured.probs)]
    for title, probs in sides if measured.before is not None else [("", measured.probs)]:
        out.print()
        out.print(
            diagram.draw_text(hcal.reliability(probs, measured.y, level="top-label", bins=10)[0], title=title)
        )
    out.print(f"[dim]{diagram.LEGEND}[/]")
