"""``hcal fit``, ``apply``, ``info`` and ``export``: models are learned, used, described and taken along."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hcal import leakage
from hcal._version import __version__
from hcal.calibrators.files import save
from hcal.cli import console
from hcal.cli.files import Blocks, Files, for_prior, load_model, new_calibrator, of_file, shape_of
from hcal.io import DataFile, can_write, checksum, write_blocks
from hcal.io.atomic import check_new_folder
from hcal.io.files import files_of
from hcal.io.reading import read_blocks

#: Fewer rows than this, or fewer of the rarer of two classes, are met with a sentence.
FEW_ROWS, FEW_OF_A_CLASS = 100, 20
#: Unless --sample-rows says otherwise, a fit by blocks learns from so many rows.
SAMPLE_ROWS = 1_000_000


def fit(
    files: Files,
    blocks: Blocks,
    output: Path,
    *,
    method: str | None,
    params: dict[str, Any],
    sample_rows: int | None,
    multilabel: bool,
    quiet: bool,
) -> tuple[Any, dict[str, Any]]:
    """Learn from files, save the model, and return it with what there is to tell."""
    if sample_rows is not None or (blocks.asked(files) and not multilabel):
        calibrator, what, rows, told = _fit_blocks(files, blocks, method, params, sample_rows, quiet=quiet)
    else:
        data = files.read(part="cal")
        calibrator = new_calibrator(method, data, params, multilabel=multilabel)
        what, rows = shape_of(data), len(data.values)
        told = [] if multilabel else _few_rows(data)
        with console.fitting(calibrator, f"fitting {calibrator.name} on {what}", quiet=quiet):
            _fit_on(calibrator, data, multilabel=multilabel)
        _remember(calibrator, files, data)
    save(calibrator, output)
    for text in told:
        console.say("warning", "yellow", text)
    found = {"model": str(output), "method": calibrator.name, "rows": rows, "what": what, "warnings": told}
    return calibrator, found | facts(calibrator)


def _fit_on(calibrator: Any, data: DataFile, *, multilabel: bool) -> None:
    if multilabel:
        calibrator.fit(data.values, data.y, labels=data.classes)
    elif data.questions:
        calibrator.fit(data.values, data.labels())
    else:
        calibrator.fit(data.values, data.labels(), data.weight, groups=data.groups, classes=data.classes)


def _fit_blocks(
    files: Files,
    blocks: Blocks,
    method: str | None,
    params: dict[str, Any],
    sample_rows: int | None,
    *,
    quiet: bool,
) -> tuple[Any, str, int, list[str]]:
    from hcal.calibrators.batches import fit_batches

    source = files.batches(blocks.batch_rows, part="cal")
    source.check_labels()
    if source.first.questions:
        raise ValueError("questions with their options are read whole: leave --batch-rows and --workers out")
    calibrator = new_calibrator(method, source.first, params)
    what = f"{source.name} ({source.n_rows or 0:,} × {source.n_classes:,})"
    with blocks.working(f"fitting {calibrator.name} on {what}", source.n_rows, quiet=quiet) as told:
        fit_batches(calibrator, source, sample_rows=sample_rows or SAMPLE_ROWS, run=told["runner"])
    _remember(calibrator, files, source.first)
    return calibrator, what, source.n_rows or 0, []


def _remember(calibrator: Any, files: Files, data: DataFile) -> None:
    """Keep with the model how its rows were asked for, and which file they came from."""
    if not hasattr(calibrator, "info_"):
        return
    asked = {**files.request().to_json(), "input": data.kind}
    asked.pop("classes", None)
    calibrator.info_["request"] = asked
    calibrator.info_["fitted_on"] = {"file": data.name, "part": data.part, "sha256": data.checksum()}
    calibrator.info_["fitted_at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _few_rows(data: DataFile) -> list[str]:
    """Return a sentence where a calibration set is tiny."""
    rows = len(data.values)
    found, counts = np.unique(data.labels(), return_counts=True)
    if rows < FEW_ROWS:
        return [
            f"{rows} rows are very few to learn from: what they show is mostly chance. "
            "Some hundreds, and others to test on, are a start"
        ]
    if data.n_classes == 2 and len(found) == 2 and counts.min() < FEW_OF_A_CLASS:
        rare = found[counts.argmin()]
        name = rare if data.classes is None else data.classes[int(rare)]
        return [
            f"only {counts.min()} of {rows:,} rows are of class {name}: what is learned of it is mostly chance"
        ]
    return []


def facts(calibrator: Any) -> dict[str, Any]:
    """Return what is known of a fitted calibrator, JSON-able."""
    if calibrator.name == "multilabel":
        return {"labels": list(calibrator.label_names_), "own_weight": calibrator.own_weight_.tolist()}
    names = getattr(calibrator, "class_names_", None)
    return {
        "title": calibrator.title,
        "input": calibrator.input,
        "classes": calibrator.n_classes_,
        "class_names": None if names is None else list(names),
        "preserves": calibrator.preserves,
        "converged": calibrator.converged_,
        "params": calibrator.get_params(deep=False),
        "scores": calibrator.scores_,
        "info": calibrator.info_,
    }


def show_fit(calibrator: Any, found: dict[str, Any], files: Files) -> None:
    """Print the scores before and after, what changed, and what to do next."""
    out, model = console.out(), console.name(found["model"])
    if calibrator.name == "multilabel":
        out.print(
            f"calibrated {len(found['labels'])} labels on {console.name(found['what'])}\nwrote [bold]{model}[/]"
        )
        return
    title = console.name(f"{calibrator.title} on {found['what']}")
    note = "the rows it learned from; test it on others"
    scores = calibrator.scores_
    out.print(console.before_after(scores["before"], scores["after"], title=f"{title} [dim]({note})[/]"))
    for note in calibrator.info_.get("notes", []):
        out.print(f"\n{console.name(note)}")
    if sampled := calibrator.info_.get("batches"):
        out.print(f"\n{console.name(sampled['words'])}")
    out.print(f"\nwrote [bold]{model}[/]")
    first = files.file[0]
    if calibrator.info_.get("fitted_on", {}).get("part"):
        out.print(f"next:  [cyan]hcal evaluate {console.name(first)} --model {model}[/]")
    else:
        suffix = first.suffix if first.suffix in (".csv", ".parquet", ".feather", ".jsonl") else ".npz"
        out.print(f"next:  [cyan]hcal apply {model} NEW{first.suffix} -o probs{suffix}[/]")


def apply(
    model: Path,
    files: Files,
    blocks: Blocks,
    output: Path,
    *,
    prior: str | None,
    keep: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Write the probabilities of new rows, block by block; many files give as many files of the same names."""
    calibrator = load_model(model)
    paths = files_of(files.file) or []
    many = len(paths) > 1 and not output.suffix
    if many:
        check_new_folder(output)
        output.mkdir(parents=True, exist_ok=True)
        targets = [output / (path.name if can_be_written(path) else f"{path.stem}.npz") for path in paths]
    else:
        can_write(output)
        targets = [output]
    if prior is not None:
        calibrator = for_prior(
            calibrator, prior, files.read(calibrator).values if prior == "estimate" else None
        )
    pieces = list(zip([of_file(files, p) for p in paths] if many else [files], targets, strict=True))
    done = []
    work = _Apply(calibrator, blocks.batch_rows, keep)
    with blocks.working(f"applying {calibrator.name}", None, quiet=quiet) as told:
        for each in (told["runner"] or map)(work, pieces):
            done.append(each)
            told.get("advance", lambda _: None)(each[0])
    rows = sum(n for n, _ in done)
    return {
        "output": str(output),
        "files": len(done),
        "rows": rows,
        "mean_confidence": sum(total for _, total in done) / max(rows, 1),
        "method": calibrator.name,
        "model": leakage.model_fingerprint(calibrator),
    }


def can_be_written(path: Path) -> bool:
    """Whether probabilities can be written in the format of a file's ending."""
    try:
        can_write(path)
    except (ValueError, FileNotFoundError):
        return False
    return True


class _Apply:
    """Applies a calibrator to one source and writes one file; returns rows and the sum of confidences."""

    def __init__(self, calibrator: Any, batch_rows: int | None, keep: bool) -> None:
        self.calibrator, self.batch_rows, self.keep = calibrator, batch_rows, keep

    def __call__(self, piece: tuple[Files, Path]) -> tuple[int, float]:
        files, target = piece
        cal = self.calibrator
        if files.request(cal).plain and all(path.suffix.lower() == ".jsonl" for path in files.file):
            whole = files.read(cal, keep=self.keep)
            parts, n_rows = iter([whole]), len(whole.values)
        else:
            source = files.batches(self.batch_rows, cal, keep=self.keep)
            n_rows = source.n_rows or 0
            parts = (data for each in source.pieces() for _, data in read_blocks(each))
        first = next(parts)
        asked = files.request(cal)
        names = {role: name for role in ("id", "label") if (name := getattr(asked, role)) is not None}
        if first.questions:
            names.setdefault("id", "doc_id")
        total = 0.0
        made_by = leakage.model_fingerprint(cal) if hasattr(cal, "prediction_") else ""
        with write_blocks(target, n_rows, classes=first.classes, names=names, model=made_by) as write:
            for data in _chained(first, parts):
                probs = np.asarray(cal.predict_proba(data.values))
                kept = dict(data.beside)
                if data.questions:
                    kept["options"] = np.isfinite(data.values).sum(axis=1)
                write(probs, data.y, ids=data.ids, kept=kept)
                total += float(probs.max(axis=1).sum())
        return n_rows, total


def _chained(first: Any, rest: Any) -> Any:
    yield first
    yield from rest


def info(model: Path) -> dict[str, Any]:
    """Return what a model file says of itself."""
    calibrator = load_model(model)
    found = {"model": str(model), "sha256": checksum(model), "hcal": __version__, "method": calibrator.name}
    if hasattr(calibrator, "map_"):
        found["fingerprint"] = leakage.model_fingerprint(calibrator)
        found["rows"] = int(calibrator.fitted_on_["rows"])
        found["arrays"] = {name: list(a.shape) for name, a in calibrator.map_.arrays().items()}
    return found | facts(calibrator)


def show_info(found: dict[str, Any]) -> None:
    """Print what a model file says of itself, one fact a line."""
    out, told = console.out(), found.get("info", {})
    lines = {
        "file": f"{found['model']} (sha256 {found['sha256'][:16]}…)",
        "method": f"{found['method']}, {found.get('title', '')}",
        "classes": found.get("class_names") or found.get("classes") or found.get("labels"),
        "input": found.get("input"),
        "preserves": found.get("preserves"),
        "fitted": f"{told.get('fitted_at', 'date unknown')} on {found.get('rows', 'an unknown number of')} rows",
        "from": told.get("fitted_on", {}).get("file"),
        "asked for": ", ".join(f"{k} {v}" for k, v in told.get("request", {}).items()) or None,
    }
    for name, value in lines.items():
        if value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.print(f"[cyan]{name:<10}[/] {console.name(shown)}")
    if scores := found.get("scores"):
        out.print(console.before_after(scores["before"], scores["after"], title="on the calibration rows"))
    for note in told.get("notes", []):
        out.print(console.name(note))
