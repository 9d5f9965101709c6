"""``hcal evaluate``, ``report``, ``certify``, ``compare`` and ``watch``: measure how well a model is calibrated."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option, echo

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

if TYPE_CHECKING:
    from hcal.certificates import Monitor
    from hcal.evaluation import Evaluation
    from hcal.io import DataFile


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
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    calibrator, asked = (
        options.load_model(model, multilabel=True),
        {"metrics": names_of(metrics), "confidence": confidence},
    )
    if getattr(calibrator, "name", "") == "multilabel":
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
    shown.show(found.to_dict, lambda: found.show(draw=diagram))


def _measure(
    files: Files, blocks: Blocks, calibrator: Any, positive: str | None, asked: Any, quiet: bool
) -> Measured:
    """Measure the probabilities of files, or a model's; a pass over blocks keeps a sample for the diagram."""
    import numpy as np

    import hcal
    from hcal import inputs, leakage
    from hcal.evaluation.evaluator import overlap_note

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
        probs = raw if calibrator is None else np.asarray(calibrator.predict_proba(data.values))
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
            probs = inputs.check_probs(calibrator.predict_proba(data.values))[0]
        result = hcal.evaluate(
            probs, y, baseline=None if calibrator is None else raw, positive=number, **asked
        )
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    notes = overlap_note(leakage.fit_overlap(calibrator, data.values))
    return Measured(data, calibrator, number, result, raw, probs, changed, {}, [], notes)


# -- report, certify, compare, watch ----------------------------------------------------------------------


@command(
    "hcal report test.npz -o report.html",
    "hcal report study.csv --label y --cross-fit -o report.html",
)
def report(
    *,
    files: Files,
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
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Write one HTML page that says whether the probabilities can be trusted."""
    from hcal.reporting import Source, measure_blocks, measure_report, write_page

    options.check_output(output, *files.file, model, files.labels)
    calibrator = options.load_model(model)
    wanted: Any = {
        "confidence": confidence,
        "threshold": tuple(threshold),
        "cost": parse_cost(cost),
        "cross_fit": cross_fit,
    }
    if blocks.asked(files):
        source = files.batches(blocks.batch_rows, calibrator)
        wanted["positive"] = options.class_number(positive, source.classes)
        with blocks.working(f"measuring {source.name}", source.n_rows, quiet=shown.silent) as told:
            content = measure_blocks(source, calibrator, **wanted, **told)
    else:
        data = files.read(calibrator)
        wanted |= {
            "positive": options.class_number(positive, data.classes),
            "class_names": _text_names(data),
        }
        file = (
            str(data.path),
            data.part,
            data.kind,
            data.checksum(),
            str(model or ""),
            files.options(),
        )
        wanted |= {"input": data.kind, "groups": data.by or None, "source": Source(*file)}
        with console.working(f"measuring {console.shape_of(data)}", quiet=shown.silent):
            content = measure_report(
                data.values, data.labels(), method if cross_fit else calibrator, **wanted
            )
    verdict = write_page(output, content)
    for alarm in verdict.alarms:
        console.say("warning", "yellow", alarm)

    def show() -> None:
        console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
        console.show_lines("\n".join(verdict.sentences))
        console.out().print(f"\nwrote [bold]{console.name(output)}[/]: open it in any browser")

    parts = ("grade", "headline", "chips", "sentences", "alarms")
    shown.show({"report": str(output), **{name: getattr(verdict, name) for name in parts}}, show)


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
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    import hcal
    from hcal.certificates.certification import certify_batches

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
            found = hcal.certify(*rows, groups=data.groups, by=data.by or None, **wanted)
    shown.show(found.to_dict, lambda: console.show_lines(str(found)))


@command(
    "hcal compare task.npz --methods ts,iso,pool",
    "hcal compare tasks/ --methods pool,h --out results.jsonl",
)
def compare(
    *,
    files: Files,
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
    from hcal.io.files import files_of

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


@command("hcal watch monday.npz tuesday.npz --model model.hcal --state watch.json")
def watch(
    *,
    files: Annotated[Files, "groups", "by", "weight", "labels"],
    model: Model = None,
    confidence: Annotated[
        float | None, Option(help="probability of no false alarm over all time; 0.95 by default")
    ] = None,
    tolerance: Annotated[
        str | None,
        Option(help="error that raises no alarm; default: auto (by the fit) with --model, else 0"),
    ] = None,
    state: Annotated[
        Path | None, Option(help="continue from this file if it exists, and update it")
    ] = None,
    reset: Annotated[
        bool, Option("--reset", help="forget the evidence so far, keep the settings")
    ] = False,
    since: Annotated[str | None, Option(help="show recent rows from this date on")] = None,
    date: Annotated[str | None, Option(help="the date of these files; today by default")] = None,
    reference: Annotated[
        Path | None, Option(help="compare scores with this file's, without labels")
    ] = None,
    prometheus: Annotated[Path | None, Option(help="write counts for a textfile collector")] = None,
    shown: Shown,
) -> None:
    """Check batches of predictions and labels as they come: is the model still calibrated?"""
    import hcal
    from hcal.certificates.monitor_file import shared_state
    from hcal.io import atomic_path

    for path in (state, prometheus):
        options.check_output(path, *files.file, model, reference)
    calibrator = options.load_model(model)
    settings = {"confidence": confidence, "tolerance": tolerance}

    def begin() -> Monitor:
        return _new_monitor(settings, calibrator)

    drifts: dict[str, Any] = {}
    # Other processes wait until this one has added its files, so that no row is lost.
    with nullcontext(begin()) if state is None else shared_state(state, begin) as monitor:
        _check_settings(monitor, settings, state)
        if reset:
            monitor.reset()
        for file in files.file:
            data = _watch_file(monitor, files.of(file), calibrator, date)
            lines = [f"{console.name(file.name)}: {console.name(monitor)}"]
            if reference is not None:
                old = replace(files.of(reference), unlabelled="error").read(calibrator)
                drifts[file.name] = hcal.drift(old.values, data.values, input=data.kind)
                lines.append(f"  {console.name(drifts[file.name])}")
            if not shown.silent:
                console.out().print("\n".join(lines))
    if prometheus is not None:
        with atomic_path(prometheus) as temporary:
            temporary.write_text(monitor.prometheus(), encoding="utf-8")
    alarm = None if monitor.alarm is None else vars(monitor.alarm)
    found = {
        "rows": monitor.n,
        "log_evidence": monitor.log_evidence,
        "alarm": alarm,
        "files": monitor.files,
    }
    found |= {
        "windows": monitor.windows(since),
        "drift": {name: drift.to_dict() for name, drift in drifts.items()},
    }
    shown.show(found, lambda: None)
    if alarm is not None:
        raise Exit(3)  # 1 is an error, 2 a wrong command


def _new_monitor(settings: dict[str, Any], calibrator: Any) -> Monitor:
    """Return a monitor without rows; without a model nothing but a number can be the tolerance."""
    from hcal.certificates import Monitor

    tolerance = settings["tolerance"]
    if tolerance is None:
        tolerance = "0" if calibrator is None else "auto"
    if tolerance == "auto" and calibrator is None:
        raise ValueError(
            "--tolerance auto is decided by the fit of a model: add --model, or a number"
        )
    confidence = 0.95 if settings["confidence"] is None else settings["confidence"]
    allowed = "auto" if tolerance == "auto" else float(tolerance)
    return Monitor(confidence=confidence, tolerance=allowed, calibrator=calibrator)


def _check_settings(monitor: Monitor, settings: dict[str, Any], state: Path | None) -> None:
    """Refuse options that differ from those with which the state was begun."""
    for name, value in settings.items():
        begun = getattr(monitor, name)
        if value is None or str(begun) == str(value):
            continue
        if value == "auto" or begun == "auto" or float(begun) != float(value):
            raise ValueError(
                f"--{name} is {value}, and {state} was begun with {begun}: leave it out, or choose another --state"
            )


def _watch_file(monitor: Any, file: Files, calibrator: Any, date: str | None) -> DataFile:
    """Add the rows of a file to a monitor; the first file with class names names the classes for all."""
    from datetime import UTC, datetime

    import numpy as np

    from hcal.class_names import reorder

    data = file.read(calibrator)
    probs = (
        _own_probs(data)
        if calibrator is None
        else np.asarray(calibrator.predict_proba(data.values))
    )
    y, names = data.labels(), _text_names(data)
    if names is not None:
        monitor.classes = tuple(names) if monitor.classes is None else monitor.classes
        order = reorder(names, monitor.classes) or range(len(names))
        probs, y = probs[:, order], np.argsort(order)[y]
    labels = y if monitor.classes is None else np.array(monitor.classes)[y]
    day = date or datetime.now(UTC).date().isoformat()
    monitor.update(probs, labels, name=data.path.name, digest=data.checksum(), date=day)
    return data
