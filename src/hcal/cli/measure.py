"""``hcal evaluate``, ``report``, ``certify``, ``compare`` and ``watch``: from files to what is known of a model."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import hcal
from hcal import inputs
from hcal.cli import console
from hcal.cli.files import Blocks, Files, class_number, load_model, of_file, shape_of
from hcal.evaluation import Evaluation, learned_from
from hcal.io import DataFile
from hcal.io.class_names import reorder
from hcal.io.probabilities import to_probs


def text_names(data: Any) -> list[str] | None:
    """Return the names of a file's classes as text: its labels are positions, and must not be looked up."""
    return None if data.classes is None else [str(name) for name in data.classes]


def own_probs(data: DataFile) -> Any:
    """Return the probabilities (N, K) that a file holds or implies: softmax of its logits."""
    return to_probs(data.values, data.kind)


# -- evaluate ---------------------------------------------------------------------------------------------


class Measured:
    """What ``hcal evaluate`` found: before, after where there is a model, and rows to draw."""

    def __init__(self, data: Any, calibrator: Any, before: Evaluation | None, result: Evaluation) -> None:
        self.data, self.calibrator, self.before, self.result = data, calibrator, before, result
        self.changed = 0
        self.more: dict[str, Any] = {}
        self.sentences: list[str] = []
        self.notes: list[str] = []
        self.sides: list[tuple[str, Any]] = []
        self.y: Any = None
        self.positive = 1

    @property
    def name_of_positive(self) -> str:
        """The positive class of two, by its name."""
        return str(self.positive if self.data.classes is None else self.data.classes[self.positive])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able summary."""
        result, data = self.result, self.data
        found: dict[str, Any] = {
            "file": str(data.path), "part": data.part or None, "input": data.kind, "rows": result.n,
            "classes": result.k, "class_names": data.classes, "metrics": result.to_dict(),
            "accuracy": result.accuracy, "mean_confidence": result.mean_confidence,
        }  # fmt: skip
        if result.groups:
            found["groups"] = [g.group_row() for g in result.groups]
        if result.ci is not None:
            found |= {"ci": result.ci, "intervals": {n: result.interval(n) for n in result.results}}
        if self.before is not None:
            found |= {
                "method": self.calibrator.name,
                "before": self.before.to_dict(),
                "argmax_changed": self.changed,
            }
        if result.assessment is not None:
            found["assessment"] = result.assessment.to_dict()
        warnings = [*result.warnings, *self.notes]
        return found | self.more | {"collapsed": result.collapsed, "warnings": warnings}


def evaluate(
    model: Path | None,
    files: Files,
    blocks: Blocks,
    metrics: Any,
    ci: float | None,
    positive: str | None,
    *,
    quiet: bool,
) -> Measured:
    """Measure what files hold and, with a model, what it makes of them."""
    calibrator = load_model(model)
    if blocks.asked(files):
        return _evaluate_blocks(calibrator, files, blocks, metrics, ci, quiet=quiet)
    data = files.read(calibrator)
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    options: dict[str, Any] = {
        "sample_weight": data.weight,
        "groups": data.groups,
        "classes": text_names(data),
    }
    options["positive"] = class_number(positive, data.classes)
    with console.working(f"measuring {shape_of(data)}", quiet=quiet):
        before = hcal.evaluate(raw, y, metrics, ci, **options)
        found = Measured(data, calibrator, None, before)
        probs = raw
        if calibrator is not None:
            probs = inputs.check_probs(calibrator.predict_proba(data.values))[0]
            baseline = before if ci is None else raw
            result = hcal.evaluate(probs, y, metrics, ci, baseline=baseline, **options)
            found = Measured(data, calibrator, before, result)
            found.changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    if raw.shape[1] == 2 and 0 < np.count_nonzero(y) < len(y):
        panel = hcal.clinical(probs, y, positive=options["positive"])
        found.more["clinical"] = panel.to_dict()
    found.sides = [("before", raw), ("after", probs)] if calibrator is not None else [("", raw)]
    found.y, found.notes, found.positive = y, learned_from(calibrator, data.values), options["positive"]
    return found


def _evaluate_blocks(
    calibrator: Any, files: Files, blocks: Blocks, metrics: Any, ci: float | None, *, quiet: bool
) -> Measured:
    from hcal.evaluation.blocks import evaluate_batches

    source = files.batches(blocks.batch_rows, calibrator)
    with blocks.working(f"measuring {source.name}", source.n_rows, quiet=quiet) as told:
        done = evaluate_batches(source, calibrator, metrics, ci, **told)
    sample = done.sample
    data = replace(source.first, values=sample.scores, y=sample.y, more=tuple(source.paths[1:]))
    raw = own_probs(data)
    found = Measured(data, calibrator, done.before, done.result)
    found.y, found.changed = inputs.check_labels(sample.y, *raw.shape), done.argmax_changed
    found.sides = [("", raw)]
    if calibrator is not None:
        found.sides = [("before", raw), ("after", np.asarray(calibrator.predict_proba(data.values)))]
    found.more = {"how": done.how, "sample_rows": done.sample_rows}
    found.sentences = done.sentences
    if done.learned_from:
        share = (
            f"about {done.learned_from:.0%} of these rows are among those that the calibrator learned from"
        )
        found.notes = [f"{share}: test it on others"]
    return found


def show_evaluation(found: Measured, *, draw: bool) -> None:
    """Print the metrics by level and the reliability diagram."""
    out, data, result = console.out(), found.data, found.result
    part = f", {data.part} part" if data.part else ""
    out.print(
        f"[bold]{console.name(data.name)}[/]{part}: {result.n:,} rows, {result.k} classes, from {data.kind}"
    )
    after = f"{result.mean_confidence:.4f}"
    confidence = after if found.before is None else f"{found.before.mean_confidence:.4f} → {after}"
    out.print(f"accuracy {result.accuracy:.4f}, mean confidence {confidence}")
    if result.positive is not None:
        out.print(console.name(result.positive.words))
    out.print()
    out.print(_table(found, explain=out.width >= 110 and result.ci is None))
    if found.before is not None:
        out.print(f"\n{found.changed:,} of {result.n:,} predicted classes changed")
    if result.groups:
        from hcal.certificates.sentences import group_sentences

        out.print("\n" + "\n".join(group_sentences(result.groups)), markup=False)
    said = [*(result.assessment.sentences if result.assessment is not None else []), *found.sentences]
    if said:
        out.print("\n" + "\n".join(said), markup=False)
    for warning in [*result.warnings, *found.notes]:
        console.say("warning", "yellow", warning)
    if draw:
        two = result.positive is not None and result.k == 2
        at = found.positive if two else 0
        event = f"P({found.name_of_positive})" if two else "confidence"
        for title, probs in found.sides:
            curve = hcal.reliability(probs, found.y, level="class-wise" if two else "top-label", bins=10)[at]
            out.print()
            out.print(console.draw_reliability(curve, title=title, event=event))
        out.print(f"[dim]{console.LEGEND}[/]")


def _table(found: Measured, *, explain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", style="cyan", no_wrap=True)
    sides = [e for e in (found.before, found.result) if e is not None]
    for head in ("before", "after") if len(sides) == 2 else ("value",):
        table.add_column(head, justify="right", no_wrap=True)
    if explain:
        table.add_column("", no_wrap=True, overflow="ellipsis")
    level = ""
    for name, each in found.result.results.items():
        if each.metric.level != level:
            level = each.metric.level
            table.add_row(f"[bold]{level}[/]")
        words = [f"[dim]{each.metric.explain}[/]"] if explain else []
        table.add_row(f"  {name}", *(_value(e, name) for e in sides), *words)
    return table


def _value(evaluation: Evaluation, name: str) -> str:
    interval = evaluation.interval(name)
    reach = "" if interval is None else f" [dim]({_short(interval[0])} … {_short(interval[1])})[/]"
    return f"{_short(evaluation[name])}{reach}"


def _short(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


# -- report, certify, compare, watch ----------------------------------------------------------------------


def report(
    output: Path,
    model: Path | None,
    files: Files,
    blocks: Blocks,
    *,
    ci: float,
    positive: str | None,
    threshold: list[float],
    cost: dict[str, float] | None,
    method: str | None,
    cross_fit: bool,
    quiet: bool,
) -> Any:
    """Write the page and return its verdict."""
    from hcal.reporting import Source, measure_blocks, measure_report, verdict_of, write_page

    calibrator = load_model(model)
    options: dict[str, Any] = {"ci": ci, "threshold": tuple(threshold), "cost": cost}
    if blocks.asked(files):
        source = files.batches(blocks.batch_rows, calibrator)
        options["positive"] = class_number(positive, source.classes)
        with console.working(f"measuring {source.name}", quiet=quiet):
            content = measure_blocks(source, calibrator, **options)
    else:
        data = files.read(calibrator)
        options |= {"positive": class_number(positive, data.classes), "class_names": text_names(data)}
        named = "" if model is None else str(model)
        options["source"] = Source(
            str(data.path), data.part, data.kind, data.checksum(), named, files.options()
        )
        with console.working(f"measuring {shape_of(data)}", quiet=quiet):
            if cross_fit:
                crossed = hcal.cross_fit(
                    method or "pool", data.values, data.labels(), groups=data.groups, input=data.kind
                )
                options["crossed"], calibrator = crossed, crossed.calibrator
            content = measure_report(
                data.values, data.labels(), calibrator, input=data.kind, groups=data.groups, **options
            )
    write_page(output, content)
    return verdict_of(content)


def certify(
    model: Path | None,
    files: Files,
    blocks: Blocks,
    *,
    positive: str | None,
    out_of_fold: str | None,
    fresh: bool,
    quiet: bool,
    **wanted: Any,
) -> Any:
    """Certify what files hold, or what a model makes of them; never on the rows of its fit."""
    calibrator = load_model(model)
    if blocks.asked(files):
        from hcal.certificates.certification import certify_batches

        source = files.batches(blocks.batch_rows, calibrator)
        wanted["positive"] = class_number(positive, source.classes)
        with blocks.working(f"certifying {source.name}", source.n_rows, quiet=quiet) as told:
            return certify_batches(source, calibrator, **wanted, **told)
    data = files.read(calibrator)
    if calibrator is None and data.made_by and not fresh:
        raise ValueError(
            f"{data.name} was written by hcal apply with the model {data.made_by}: certify the scores with --model, "
            "which recognises rows of its fit, or add --fresh if none of these rows was used in the fit"
        )
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    wanted |= {
        "positive": class_number(positive, data.classes),
        "groups": data.groups,
        "classes": text_names(data),
    }
    with console.working(f"certifying {shape_of(data)}", quiet=quiet):
        if out_of_fold is not None:
            method = hcal.make_calibrator(out_of_fold, input=data.kind)
            return hcal.certify(method, data.values, y, out_of_fold=True, **wanted)
        if calibrator is None:
            return hcal.certify(raw, y, **wanted)
        return hcal.certify(calibrator, data.values, y, baseline=raw, **wanted)


def compare(files: Files, test: Path | None, *, folds: int, **options: Any) -> Any:
    """Compare methods on a file with two parts, on two files, out of fold on one, or on many task files."""
    if files.several:
        from hcal.io.reading import files_of

        return hcal.compare(tasks=[str(path) for path in files_of(files.file) or []], **options)
    learn = files.read(part="cal")
    judge = None
    if test is not None or learn.part:
        asked = replace(files, group=None, input=learn.kind)
        judge = (of_file(asked, test) if test is not None else asked).read().in_order_of(learn.classes)
    rows: dict[str, Any] = {"folds": folds, "groups": learn.groups}
    if judge is not None:
        rows = {"test_logits": judge.values, "test_y": judge.labels()}
    return hcal.compare(learn.values, learn.labels(), **rows, input=learn.kind, **options)


def watch(monitor: Any, file: Path, files: Files, calibrator: Any, date: str | None) -> None:
    """Add one file's rows to a monitor, in their order; the first that names classes names them for all."""
    data = of_file(files, file).read(calibrator)
    probs = own_probs(data) if calibrator is None else np.asarray(calibrator.predict_proba(data.values))
    y, names = data.labels(), text_names(data)
    if names is not None:
        monitor.classes = tuple(names) if monitor.classes is None else monitor.classes
        order = reorder(names, monitor.classes) or range(len(names))
        probs, y = probs[:, order], np.argsort(order)[y]
    labels = y if monitor.classes is None else np.array(monitor.classes)[y]
    day = date or datetime.datetime.now(datetime.UTC).date().isoformat()
    monitor.update(probs, labels, name=file.name, digest=data.checksum(), date=day)


def parse_cost(text: str | None) -> dict[str, float] | None:
    """Return what ``fn=10,fp=1`` says.

    >>> parse_cost("fn=10, fp=1")
    {'fn': 10.0, 'fp': 1.0}
    """
    if text is None:
        return None
    try:
        found = {name.strip(): float(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ValueError(f"--cost takes fn=10,fp=1, got {text!r}") from None
    if set(found) != {"fn", "fp"}:
        raise ValueError(f"--cost takes fn=10,fp=1, got {text!r}")
    return found


def score_drift(reference: Path, file: Path, files: Files, calibrator: Any) -> Any:
    """Return how far the scores of a file are from those of a reference, without labels."""
    asked = replace(files, unlabelled="error")
    old, new = (of_file(asked, path).read(calibrator) for path in (reference, file))
    return hcal.drift(old.values, new.values, input=new.kind)
