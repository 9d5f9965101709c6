"""``hcal fit``, ``apply``, ``info`` and ``export``: fit a calibrator, use it, describe it, and export it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hcal.cli import console
from hcal.cli.options import (
    Blocks,
    Files,
    Method,
    ModelFile,
    Output,
    Shown,
    check_output,
    command,
    load_model,
)
from hcal.text import one_line, quoted

if TYPE_CHECKING:
    from hcal.io import DataFile, Request

#: With fewer rows than this, or fewer rows of the rarer of two classes, ``hcal fit`` warns.
FEW_ROWS, FEW_OF_A_CLASS = 100, 20
#: Values that people write differently from JSON.
_WORDS = {"None": None, "none": None, "True": True, "False": False}


@command(
    "hcal fit cal.npz -o model.hcal",
    "hcal fit t.csv --scores 'p_*' --label y --id id -o model.hcal",
    "hcal fit t.csv --by country -o model.hcal",
)
def fit(
    *,
    files: Files,
    output: Output,
    method: Method = None,
    preserve: Annotated[
        str | None, Option(help="what must not change: auto, accuracy, order or none")
    ] = None,
    param: Annotated[
        list[str], Option(help="a parameter of the method, name=value; repeatable")
    ] = [],  # noqa: B006
    multilabel: Annotated[
        bool, Option("--multilabel", help="several labels a row: y is a matrix of 0 and 1")
    ] = False,
    half_life: Annotated[
        str | None, Option(help="with --time: a row counts half when so much older, such as 90d")
    ] = None,
    sample_rows: Annotated[
        int | None, Option(help="learn from a random sample of this many rows")
    ] = None,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Learn a calibrator from scores and labels of held-out rows."""
    from hcal.methods.files import save

    if half_life is not None and multilabel:
        raise ValueError("--half-life fits one label a row: leave out --multilabel")
    check_output(output, *files.file, files.labels)
    params = parse_params([*param, *([] if preserve is None else [f"preserve={preserve}"])])
    warned: list[str] = []
    if sample_rows is not None or (blocks.asked(files) and not multilabel):
        from hcal.io.sources import SAMPLE_ROWS

        source = files.batches(blocks.batch_rows, part="cal")
        source.check_labels()
        data, rows = source.first, source.n_rows
        what = f"{source.name} ({rows:,} × {source.n_classes:,})"
        calibrator = _new_calibrator(method, data, params, segmented=files.by is not None)
        with blocks.working(
            f"fitting {calibrator.name} on {what}", rows, quiet=shown.silent
        ) as told:
            sample = source.as_source(**told).sample(sample_rows or SAMPLE_ROWS)
            calibrator.fit(sample, half_life=half_life)
    else:
        data = files.read(part="cal")
        rows, what = len(data.values), console.shape_of(data)
        calibrator = _new_calibrator(
            method, data, params, multilabel=multilabel, segmented=files.by is not None
        )
        with console.working(
            f"fitting {calibrator.name} on {what}", quiet=shown.silent, calibrator=calibrator
        ):
            if multilabel:
                calibrator.fit(data.values, data.y, labels=data.classes)
            else:
                warned = _warnings(data)
                more: dict[str, Any] = {
                    "sample_weight": data.weight,
                    "groups": data.groups,
                    "classes": data.classes,
                    "time": data.time,
                    "half_life": half_life,
                }
                if files.by is not None:
                    more["by"] = data.by
                calibrator.fit(data.values, data.labels(), **({} if data.questions else more))
    remember(calibrator, files.request(), data)
    save(calibrator, output)
    for text in warned:
        console.say("warning", "yellow", text)
    found = {
        "model": str(output),
        "method": calibrator.name,
        "rows": rows,
        "what": what,
        "warnings": warned,
    }
    shown.show(
        found | facts(calibrator), lambda: _show_fit(calibrator, what, output, files.file[0])
    )


def parse_params(pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs; a value is None, True, False or JSON, and otherwise text.

    >>> parse_params(["bins=30", "preserve=None", "events=top-label"])
    {'bins': 30, 'preserve': None, 'events': 'top-label'}
    """
    params: dict[str, Any] = {}
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
                f"--param {one_line(name, 40)}: its value is nested too deeply, or too long a number"
            ) from None
    if "input" in params:
        raise ValueError("say what the file holds with --input, not --param input=…")
    return params


def _new_calibrator(
    method: str | None,
    data: DataFile,
    params: dict[str, Any],
    *,
    multilabel: bool = False,
    segmented: bool = False,
) -> Any:
    """Return a calibrator with the chosen method and parameters, for the kind of rows in a file."""
    if segmented:
        return _new_segmented(method, data, params, multilabel=multilabel)
    if multilabel:
        from hcal.methods.multilabel import MultilabelCalibrator

        return MultilabelCalibrator(method or "pool", input=data.kind, **params)
    if not data.questions:
        from hcal.methods import make_calibrator

        return make_calibrator(method or "pool", **params, input=data.kind)
    from hcal.language_models import MultipleChoiceCalibrator

    if unknown := sorted(set(params) - {"min_questions"}):
        raise ValueError(f"questions have no parameter {unknown[0]!r}; they have min_questions")
    return MultipleChoiceCalibrator(method or "ts", **params)


def _new_segmented(
    method: str | None, data: DataFile, params: dict[str, Any], *, multilabel: bool
) -> Any:
    """Return a calibrator with a correction of each segment; the parameters are those of the common calibrator."""
    from hcal.methods import make_calibrator
    from hcal.segments import SegmentedCalibrator

    if multilabel:
        raise ValueError("--by fits segments of one label a row: leave out --multilabel, or --by")
    if data.questions:
        raise ValueError(
            f"{data.path.name} holds questions with options: --by fits segments of rows with classes"
        )
    common = make_calibrator(method or "pool", **params)
    return SegmentedCalibrator(common if params else common.name, input=data.kind)


def _warnings(data: DataFile) -> list[str]:
    """Return a warning if a calibration set is tiny or its two classes seem to be swapped."""
    from numpy import unique

    from hcal.inputs import to_probs
    from hcal.metrics.scores import swapped

    rows, names = len(data.values), data.classes or range(data.n_classes)
    two = data.n_classes == 2 and not data.questions
    if two and (
        said := swapped(to_probs(data.values, data.kind), data.labels(), f"class {names[1]}")
    ):
        return said
    found, counts = unique(data.labels(), return_counts=True)
    if rows < FEW_ROWS:
        advice = (
            "what they show is mostly chance. Some hundreds, and others to test on, are a start"
        )
        return [f"{rows} rows are very few to learn from: {advice}"]
    if two and len(found) == 2 and (few := counts.min()) < FEW_OF_A_CLASS:
        rare = names[int(found[counts.argmin()])]
        return [
            f"only {few} of {rows:,} rows are of class {rare}: what is learned of it is mostly chance"
        ]
    return []


def remember(calibrator: Any, request: Request, data: DataFile) -> None:
    """Store in the model how its rows were read and from which file."""
    from hcal.fit_record import fitted_segments

    if not hasattr(calibrator, "remember_source"):
        return
    columns = {**request.to_json(), "input": data.kind}
    columns.pop("classes", None)
    subgroups = columns.pop("by", None)
    if fitted_segments(calibrator):
        columns.setdefault("segments", subgroups)
    calibrator.remember_source(columns, data.name, data.part, data.checksum())


def facts(calibrator: Any) -> dict[str, Any]:
    """Return the facts about a fitted calibrator as plain values for JSON."""
    if calibrator.name == "multilabel":
        return {
            "labels": list(calibrator.label_names_),
            "own_weight": calibrator.own_weight_.tolist(),
        }
    return {
        "title": calibrator.title,
        "input": calibrator.input,
        "classes": calibrator.n_classes_,
        "preserves": calibrator.preserves,
        "params": calibrator.get_params(deep=False),
        "fit": calibrator.fit_.to_json(),
    }


def _show_fit(calibrator: Any, what: str, output: Path, first: Path) -> None:
    """Print the scores before and after calibration, notes about the fit, and the next command to try."""

    out, model, what = console.out(), console.name(output), console.name(what)
    if calibrator.name == "multilabel":
        out.print(
            f"calibrated {len(calibrator.label_names_)} labels on {what}\nwrote [bold]{model}[/]"
        )
        return
    title = f"{console.name(calibrator.title)} on {what} [dim](the rows it learned from; test it on others)[/]"
    record = calibrator.fit_
    out.print(console.before_after(record.to_json(), title))
    for note in [*record.notes, *([record.sampled] if record.source_rows > record.rows else [])]:
        out.print(f"\n{console.name(note)}")
    out.print(f"\nwrote [bold]{model}[/]")
    if record.part:
        out.print(f"next:  [cyan]hcal evaluate {console.name(first)} --model {model}[/]")
    else:
        output = Path(f"probs{first.suffix}")
        out.print(f"next:  [cyan]hcal apply {model} NEW{first.suffix} -o {output}[/]")


@command(
    "hcal apply model.hcal new.csv -o probs.csv",
    "hcal apply model.hcal 'days/*.parquet' -o calibrated/",
)
def apply(
    *,
    model: ModelFile,
    files: Annotated[Files, "groups", "by", "weight", "time"],
    output: Output,
    keep: Annotated[bool, Option("--keep", help="copy all other columns to the output")] = False,
    prior: Annotated[
        str | None, Option(help="class frequencies of the new rows, with commas; or 'estimate'")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="go on with an interrupted run: complete files stay")
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="write into a folder that is not empty")
    ] = False,
    blocks: Blocks,
    shown: Shown,
) -> None:
    """Turn new scores into calibrated probabilities; the model knows the columns it was fitted on."""
    import hcal

    check_output(output, model)
    calibrator = load_model(model, multilabel=True)
    if prior is not None:
        calibrator = _for_prior(calibrator, prior, files)
    with blocks.working(f"applying {calibrator.name}", None, quiet=shown.silent) as progress:
        applied = hcal.apply(
            calibrator,
            files.file,
            output,
            request=files.request(),
            keep=keep,
            batch_rows=blocks.batch_rows,
            resume=resume,
            overwrite=overwrite,
            **progress,
        )
    if applied.unknown and shown.silent:
        sentence = "have a segment that the fit did not see: they got the common calibrator"
        console.say("warning", "yellow", f"{applied.unknown:,} rows {sentence}")
    shown.show(applied.to_dict, lambda: console.show_lines(applied))


def _for_prior(calibrator: Any, prior: str, files: Files) -> Any:
    """Return the calibrator for the class frequencies that --prior names."""
    from hcal.fit_record import fitted_segments

    if prior == "estimate":
        data = files.read(calibrator)
        if fitted_segments(calibrator):
            return calibrator.with_prior_from(data.values, by=data.segments)
        return calibrator.with_prior_from(data.values)
    try:
        frequencies = [float(part) for part in prior.split(",")]
    except ValueError:
        raise ValueError(
            f"--prior takes numbers with commas, or 'estimate', got {prior!r}"
        ) from None
    return calibrator.with_prior(frequencies)


@command("hcal info model.hcal")
def info(*, model: ModelFile, shown: Shown) -> None:
    """Show what a model file holds: method, classes, columns, when and on what it was fitted."""
    from hcal._version import __version__
    from hcal.io import checksum
    from hcal.leakage import model_fingerprint

    calibrator = load_model(model, multilabel=True)
    found = {
        "model": str(model),
        "sha256": checksum(model),
        "hcal": __version__,
        "method": calibrator.name,
    }
    if hasattr(calibrator, "map_"):
        found["fingerprint"] = model_fingerprint(calibrator)
        found["arrays"] = {name: list(a.shape) for name, a in calibrator.map_.arrays().items()}
    found |= facts(calibrator)
    shown.show(found, lambda: _show_info(found))


def _show_info(found: dict[str, Any]) -> None:
    """Print the facts about a model file, one per line."""
    out = console.out()
    fit = found.get("fit", {})
    lines = {
        "file": f"{found['model']} (sha256 {found['sha256'][:16]}…)",
        "method": f"{found['method']}, {found.get('title', '')}",
        "classes": fit.get("names") or found.get("classes") or found.get("labels"),
        "input": found.get("input"),
        "preserves": found.get("preserves"),
        "segments": _segments_in_words(fit),
        "fitted": f"{fit['date']} on {fit['rows']:,} rows" if fit else None,
        "from": fit.get("file"),
        "options": ", ".join(f"{k} {v}" for k, v in fit.get("request", {}).items()) or None,
    }
    for name, value in lines.items():
        if value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.print(f"[cyan]{name:<10}[/] {console.name(shown)}")
    if fit.get("before"):
        out.print(console.before_after(fit, "on the calibration rows"))
    for note in fit.get("notes", []):
        out.print(console.name(note))


def _segments_in_words(fit: dict[str, Any]) -> str | None:
    """Return how many segments a model has, and by which columns."""
    names = fit.get("segments")
    if names is None:
        return None
    listing = one_line(", ".join(names), 80)
    return f"{len(names):,} by {fit.get('segment_title') or 'segment'}: {listing}"


@command(
    "hcal export model.hcal -o model.onnx",
    "hcal export model.hcal -o model.sql --dialect duckdb --table scores --columns logit",
)
def export(
    *,
    model: ModelFile,
    output: Output,
    width: Annotated[
        str | None, Option(help="the floats of an ONNX graph: float32 or float64")
    ] = None,
    dialect: Annotated[str | None, Option(help="of SQL: duckdb, postgres or sqlite")] = None,
    table: Annotated[str | None, Option(help="the table of scores that SQL reads")] = None,
    columns: Annotated[
        str | None, Option(help="the columns of scores that SQL reads, separated by commas")
    ] = None,
    shown: Shown,
) -> None:
    """Write a model for use without hcal: .onnx, .sql, .mjs, or .json for any language."""
    from hcal.integrations.export import export as write

    check_output(output, model)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    options = {"width": width, "dialect": dialect, "table": table, "columns": names}
    stated = {name: value for name, value in options.items() if value is not None}
    write(load_model(model), output, **stated)
    shown.show(
        {"output": str(output)},
        lambda: console.out().print(f"wrote [bold]{console.name(output)}[/]"),
    )
