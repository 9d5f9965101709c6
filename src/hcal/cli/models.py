"""``hcal fit``, ``apply``, ``info`` and ``export``: fit a calibrator, use it, describe it, and export it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from hcal.cli import console
from hcal.cli.options import (
    Files,
    InBlocks,
    Method,
    ModelFirst,
    Output,
    SampleRows,
    WithBy,
    WithGroups,
    WithLabels,
    WithTime,
    WithWeight,
    check_output,
    command,
    joint_model,
    load_model,
)
from hcal.text import JsonObject, one_line, quoted

if TYPE_CHECKING:
    from hcal.io import DataFile
    from hcal.language_models import JointConfidence
    from hcal.methods.base import Calibrator
    from hcal.operation.fitting import Trainable

#: Options of a fit that joined confidences do not know.
_NOT_JOINED: Final = (
    "scores",
    "input",
    "labels",
    "time",
    "half_life",
    "multilabel",
    "preserve",
    "param",
    "sample_rows",
    "jobs",
    "batch_rows",
    "scheduler",
)
#: Values that people write differently from JSON.
_WORDS: Final = {"None": None, "none": None, "True": True, "False": False}


@command(
    "fit",
    "hcal fit cal.npz -o model.hcal",
    "hcal fit t.csv --scores 'p_*' --label y --id id -o model.hcal",
    "hcal fit t.csv --by country -o model.hcal",
    "hcal fit --config hcal.toml",
)
@dataclass(frozen=True, kw_only=True)
class Fit(InBlocks, WithTime, WithWeight, WithBy, WithGroups, WithLabels):
    """Learn a calibrator from scores and labels of held-out rows."""

    schema = "hcal/fit/1"
    output_type = "hcal"

    output: Output
    method: Method = None
    preserve: Annotated[
        str | None, Option(help="what must not change: auto, accuracy, order or none")
    ] = None
    param: Annotated[
        list[str] | None, Option(help="a parameter of the method, name=value; repeatable")
    ] = None
    multilabel: Annotated[
        bool, Option("--multilabel", help="several labels a row: y is a matrix of 0 and 1")
    ] = False
    half_life: Annotated[
        str | None, Option(help="with --time: a row counts half when so much older, such as 90d")
    ] = None
    sample_rows: SampleRows = None
    confidences: Annotated[
        str | None,
        Option(help="confidences of an answer to join: columns with kinds, said=stated,mean=probs"),
    ] = None

    def run(self) -> None:
        """Fit the calibrator, write it, and print the scores before and after."""
        from hcal.methods.files import save
        from hcal.operation.fitting import cautions, model_facts, remember_file

        if self.half_life is not None and self.multilabel:
            raise ValueError("--half-life fits one label a row: leave out --multilabel")
        check_output(self.output, *self.file, self.labels)
        if self.confidences is not None:
            self._join(self.confidences)
            return
        warnings: list[str] = []
        if self.sample_rows is not None or (self.by_blocks and not self.multilabel):
            calibrator, data, rows, what = self._fit_sample()
        else:
            data = self.read(part="cal")
            rows = len(data.values)
            what = console.shape_of(data)
            calibrator = self._fit_file(data, what)
            warnings = [] if self.multilabel else cautions(data)
        remember_file(calibrator, self.request(), data)
        save(calibrator, self.output)
        for text in warnings:
            console.say("warning", "yellow", text)
        facts = {
            "model": console.title_of(self.output),
            "rows": rows,
            "what": what,
            "warnings": warnings,
        }
        self.show(model_facts(calibrator).to_dict() | facts, lambda: self._show(calibrator, what))

    def _join(self, confidences: str) -> None:
        """Join confidences of an answer, which stand in several columns of one table."""
        from hcal.methods.files import save
        from hcal.operation.fitting import joint_facts
        from hcal.operation.joint_files import fit_joint, parse_kinds

        _refuse_beside_joint(self, *_NOT_JOINED)
        [path] = self.file
        kinds = parse_kinds(confidences)
        with console.working(f"joining the confidences of {path.name}", quiet=self.silent):
            joint = fit_joint(path, kinds, self.request(), self.method or "pool")
        save(joint, self.output)
        what = f"{path.name} ({joint.fit_.rows:,} × {len(kinds)})"
        facts = {
            "model": console.title_of(self.output),
            "rows": joint.fit_.rows,
            "what": what,
            "warnings": [],
        }
        self.show(joint_facts(joint).to_dict() | facts, lambda: self._show(joint, what))

    def _new_calibrator(self, data: DataFile) -> Trainable:
        """Return a calibrator with the chosen method and parameters, for the kind of rows in a file."""
        from hcal.operation.fitting import calibrator_for

        pairs = list(self.param or [])
        if self.preserve is not None:
            pairs.append(f"preserve={self.preserve}")
        return calibrator_for(
            data,
            self.method,
            parse_params(pairs),
            multilabel=self.multilabel,
            segmented=self.by is not None,
        )

    def _fit_file(self, data: DataFile, what: str) -> Trainable:
        """Fit to all rows of a file."""
        from hcal.operation.fitting import fit_to_file

        calibrator = self._new_calibrator(data)
        with console.working(f"fitting {calibrator.name} on {what}", quiet=self.silent):
            return fit_to_file(calibrator, data, half_life=self.half_life)

    def _fit_sample(self) -> tuple[Trainable, DataFile, int, str]:
        """Fit to a random sample of rows that are read by blocks."""
        from hcal.io.sources import SAMPLE_ROWS
        from hcal.methods import Calibrator

        source = self.batches(part="cal")
        source.check_labels()
        what = f"{source.name} ({source.n_rows:,} × {source.n_classes:,})"
        calibrator = self._new_calibrator(source.first)
        work = self.working(f"fitting {calibrator.name} on {what}", source.n_rows)
        with work as (runner, advance):
            rows = source.as_source(runner=runner, advance=advance)
            sample = rows.sample(self.sample_rows or SAMPLE_ROWS)
            assert isinstance(calibrator, Calibrator)  # others are not read by blocks
            calibrator.fit(sample, half_life=self.half_life)
        return calibrator, source.first, source.n_rows, what

    def _show(self, calibrator: Trainable | JointConfidence, what: str) -> None:
        """Print the scores before and after calibration, notes about the fit, and the next command to try."""
        out = console.out()
        model = console.name(console.title_of(self.output))
        rows = console.name(what)
        from hcal.methods.multilabel import MultilabelCalibrator

        if isinstance(calibrator, MultilabelCalibrator):
            labels = len(calibrator.label_names_)
            out.print(f"calibrated {labels} labels on {rows}\nwrote [bold]{model}[/]")
            return
        learned = "[dim](the rows it learned from; test it on others)[/]"
        title = f"{console.name(calibrator.title)} on {rows} {learned}"
        record = calibrator.fit_
        scores = {"before": record.before or {}, "after": record.after or {}}
        out.print(console.before_after(scores, title))
        notes = [*record.notes, *([record.sampled] if record.source_rows > record.rows else [])]
        for note in notes:
            out.print(f"\n{console.name(note)}")
        out.print(f"\nwrote [bold]{model}[/]")
        first = self.file[0]
        if record.part:
            out.print(f"next:  [cyan]hcal evaluate {console.name(first)} --model {model}[/]")
        else:
            kind = first.suffix
            out.print(f"next:  [cyan]hcal apply {model} NEW{kind} -o probs{kind}[/]")


def parse_params(pairs: list[str]) -> JsonObject:
    """Parse ``name=value`` pairs; a value is None, True, False or JSON, and otherwise text.

    >>> parse_params(["bins=30", "preserve=None", "events=top-label"])
    {'bins': 30, 'preserve': None, 'events': 'top-label'}
    """
    params: JsonObject = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--param expects name=value, got {quoted(pair)}")
        try:
            params[name] = _WORDS[value] if value in _WORDS else json.loads(value)
        except json.JSONDecodeError:
            params[name] = value
        except (RecursionError, ValueError):
            raise ValueError(
                f"--param {one_line(name, 40)}: its value is nested too deeply, or too long a "
                "number"
            ) from None
    if "input" in params:
        raise ValueError("say what the file holds with --input, not --param input=…")
    return params


@command(
    "apply",
    "hcal apply model.hcal new.csv -o probs.csv",
    "hcal apply model.hcal 'days/*.parquet' -o calibrated/",
    "cat new.csv | hcal apply model.hcal - -o - --format csv",
)
@dataclass(frozen=True, kw_only=True)
class Apply(InBlocks, WithLabels, ModelFirst):
    """Turn new scores into calibrated probabilities; the model knows the columns it was fitted on."""

    output: Output
    keep: Annotated[bool, Option("--keep", help="copy all other columns to the output")] = False
    prior: Annotated[
        str | None, Option(help="class frequencies of the new rows, with commas; or 'estimate'")
    ] = None
    resume: Annotated[
        bool, Option("--resume", help="go on with an interrupted run: complete files stay")
    ] = False
    overwrite: Annotated[
        bool, Option("--overwrite", help="write into a folder that is not empty")
    ] = False

    def run(self) -> None:
        """Write the probabilities, and print how many rows there are."""
        import hcal

        check_output(self.output, self.model)
        joint = joint_model(self.model)
        if joint is not None:
            self._apply_joint(joint)
            return
        calibrator = load_model(self.model, multilabel=True)
        if self.prior is not None:
            calibrator = _for_prior(calibrator, self.prior, self)
        with self.working(f"applying {calibrator.name}") as (runner, _):
            applied = hcal.apply(
                calibrator,
                self.file,
                self.output,
                request=self.request(),
                keep=self.keep,
                batch_rows=self.batch_rows,
                resume=self.resume,
                overwrite=self.overwrite,
                runner=runner,
            )
        if applied.unknown and self.silent:
            sentence = "have a segment that the fit did not see: they got the common calibrator"
            console.say("warning", "yellow", f"{applied.unknown:,} rows {sentence}")
        applied = replace(applied, output=console.title_of(self.output))
        self.show(applied.to_dict(), lambda: console.show_lines(applied))

    def _apply_joint(self, joint: JointConfidence) -> None:
        """Write the P(correct) of the answers of one table."""
        from hcal.operation.joint_files import apply_joint

        _refuse_beside_joint(self, "prior", "resume", "overwrite", "jobs", "batch_rows", "scores")
        [path] = self.file
        check_output(self.output, path)
        request = self.request().for_model(joint.fit_.request)
        applied = apply_joint(joint, path, self.output, request, keep=self.keep)
        applied = replace(applied, output=console.title_of(self.output))
        self.show(applied.to_dict(), lambda: console.show_lines(applied))


def _refuse_beside_joint(command: Files, *names: str) -> None:
    """Refuse options that joined confidences do not know, and more than one file."""
    stated = [name for name in names if getattr(command, name) not in (None, False)]
    if stated:
        option = stated[0].replace("_", "-")
        raise ValueError(f"confidences are columns of one table: leave out --{option}")
    if command.several:
        raise ValueError("confidences are columns of one table: pass one file")


def _for_prior(calibrator: Calibrator, prior: str, files: Files) -> Calibrator:
    """Return the calibrator for the class frequencies that --prior names."""
    from hcal.segments import SegmentedCalibrator

    if prior == "estimate":
        data = files.read(calibrator)
        if isinstance(calibrator, SegmentedCalibrator):
            return calibrator.with_prior_from(data.values, by=data.segments)
        return calibrator.with_prior_from(data.values)
    try:
        frequencies = [float(part) for part in prior.split(",")]
    except ValueError:
        raise ValueError(
            f"--prior takes numbers with commas, or 'estimate', got {prior!r}"
        ) from None
    return calibrator.with_prior(frequencies)


@command("info", "hcal info model.hcal")
@dataclass(frozen=True, kw_only=True)
class Info(ModelFirst):
    """Show what a model file holds: method, classes, columns, when and on what it was fitted."""

    def run(self) -> None:
        """Print what the file holds."""
        from hcal._version import __version__
        from hcal.io import checksum
        from hcal.leakage import model_fingerprint
        from hcal.operation.fitting import joint_facts, model_facts

        facts: JsonObject = {
            "model": console.title_of(self.model),
            "sha256": checksum(self.model),
            "hcal": __version__,
        }
        joint = joint_model(self.model)
        if joint is not None:
            content = joint_facts(joint).to_dict() | facts
            self.show(content, lambda: _show_info(content))
            return
        calibrator = load_model(self.model, multilabel=True)
        if hasattr(calibrator, "map_"):
            facts["fingerprint"] = model_fingerprint(calibrator)
            arrays = calibrator.map_.arrays()
            facts["arrays"] = {name: list(array.shape) for name, array in arrays.items()}
        content = model_facts(calibrator).to_dict() | facts
        self.show(content, lambda: _show_info(content))


def _show_info(content: JsonObject) -> None:
    """Print the facts about a model file, one per line."""
    out = console.out()
    fit = content["fit"] or {}
    options = [f"{name} {value}" for name, value in fit.get("request", {}).items()]
    lines = {
        "file": f"{content['model']} (sha256 {content['sha256'][:16]}…)",
        "method": f"{content['method']}, {content['title'] or ''}",
        "classes": fit.get("names") or content["classes"] or content["labels"],
        "input": content["input"],
        "preserves": content["preserves"],
        "segments": _segments_in_words(fit),
        "fitted": f"{fit['date']} on {fit['rows']:,} rows" if fit else None,
        "from": fit.get("file"),
        "weighs": _coefficients_in_words(content["coefficients"]),
        "options": ", ".join(options) or None,
    }
    for name, value in lines.items():
        if value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.print(f"[cyan]{name:<10}[/] {console.name(text)}")
    if fit.get("before"):
        out.print(console.before_after(fit, "on the calibration rows"))
    for note in fit.get("notes", []):
        out.print(console.name(note))


def _coefficients_in_words(coefficients: dict[str, float] | None) -> str | None:
    """Return by how much the log-odds of a right answer grow with a standard deviation of each confidence."""
    if coefficients is None:
        return None
    return ", ".join(f"{name} {value:+.2f}" for name, value in coefficients.items())


def _segments_in_words(fit: JsonObject) -> str | None:
    """Return how many segments a model has, and by which columns."""
    names = fit.get("segments")
    if names is None:
        return None
    listing = one_line(", ".join(names), 80)
    return f"{len(names):,} by {fit.get('segment_title') or 'segment'}: {listing}"


@command(
    "export",
    "hcal export model.hcal -o model.onnx",
    "hcal export model.hcal -o model.sql --dialect duckdb --table scores --columns logit",
)
@dataclass(frozen=True, kw_only=True)
class Export(ModelFirst):
    """Write a model for use without hcal: .onnx, .sql, .mjs, or .json for any language."""

    schema = "hcal/export/1"

    output: Output
    width: Annotated[str | None, Option(help="the floats of an ONNX graph: float32 or float64")] = (
        None
    )
    dialect: Annotated[str | None, Option(help="of SQL: duckdb, postgres or sqlite")] = None
    table: Annotated[str | None, Option(help="the table of scores that SQL reads")] = None
    columns: Annotated[
        str | None, Option(help="the columns of scores that SQL reads, separated by commas")
    ] = None

    def run(self) -> None:
        """Write the model."""
        from hcal.integrations.export import export

        check_output(self.output, self.model)
        names = None if self.columns is None else [n.strip() for n in self.columns.split(",")]
        options = {
            "width": self.width,
            "dialect": self.dialect,
            "table": self.table,
            "columns": names,
        }
        # Each option is of one type of file, which refuses the others.
        stated = {name: value for name, value in options.items() if value is not None}
        export(load_model(self.model), self.output, **stated)
        output = console.title_of(self.output)
        self.show(
            {"model": console.title_of(self.model), "output": output},
            lambda: console.out().print(f"wrote [bold]{console.name(output)}[/]"),
        )
