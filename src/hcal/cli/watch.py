"""``hcal watch``: check batches of predictions and labels as they come."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from hcal.cli import console, options
from hcal.cli.decide import probabilities, text_names
from hcal.cli.options import Files, Model, Shown, command
from hcal.cli.require import FAILED

if TYPE_CHECKING:
    from hcal.certificates import Monitor
    from hcal.io import DataFile


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
        if prometheus is not None:  # while no other process can write newer counts
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
        raise Exit(FAILED)


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
    """Add the rows of a file to a monitor; the first file with class names names the classes for all.

    A file that was added before is passed over, so that a job that is repeated ends with the present alarm.
    """
    from datetime import UTC, datetime

    import numpy as np

    from hcal.class_names import reorder

    data = file.read(calibrator)
    digest = data.checksum()
    before = [entry for entry in monitor.files if entry["digest"] == digest]
    if before:
        words = f"{data.path.name} was added before, as {before[0]['name']} ({before[0]['date']})"
        console.say("note", "cyan", f"{words}: its rows do not count again")
        return data
    probs = probabilities(data, calibrator)
    y, names = data.labels(), text_names(data)
    if names is not None:
        monitor.classes = tuple(names) if monitor.classes is None else monitor.classes
        order = reorder(names, monitor.classes) or range(len(names))
        probs, y = probs[:, order], np.argsort(order)[y]
    labels = y if monitor.classes is None else np.array(monitor.classes)[y]
    day = date or datetime.now(UTC).date().isoformat()
    monitor.update(probs, labels, name=data.path.name, digest=digest, date=day)
    return data
