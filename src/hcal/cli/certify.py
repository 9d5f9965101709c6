"""``hcal certify`` and ``hcal watch``: from files to what is proven, and to what has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hcal
from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.calibrators.files import load
from hcal.certificates import Certificate, Monitor
from hcal.certificates.streaming import certify_batches
from hcal.cli import console
from hcal.cli.evaluate import TIMES, own_probs, text_names
from hcal.cli.files import Ask, calibrator_and_data, shape_of
from hcal.cli.report import class_number, same_file
from hcal.cli.scale import Scale, describe, open_batches
from hcal.evaluation import learned_from
from hcal.io import DataFile
from hcal.io.class_names import reorder


def certify_file(
    data: DataFile,
    calibrator: Calibrator | None,
    *,
    level: float,
    assume: str | None,
    positive: str | None = None,
) -> Certificate:
    """Certify what a file holds, or what a calibrator makes of it; never on the rows of the fit.

    With a calibrator the gain over the file's own probabilities is certified too; ``positive`` is the name or
    number of the class to certify of two.
    """
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    number = class_number(positive, data.classes)
    options: dict[str, Any] = {"level": level, "assume": assume, "positive": number}
    options |= {"groups": data.groups, "classes": text_names(data)}
    if calibrator is None:
        return hcal.certify(raw, y, **options)
    told = learned_from(calibrator, data.values) + same_file(calibrator, data)
    if told:
        raise ValueError(f"no certificate: {told[0]}")
    return hcal.certify(calibrator, data.values, y, baseline=raw, **options)


def run_certify(
    model: Path | None, ask: Ask, wanted: dict[str, Any], scale: Scale, *, quiet: bool
) -> Certificate:
    """Certify what was asked for, by blocks where that was asked for or files are many."""
    if scale.by_blocks(ask):
        calibrator = None if model is None else load(model)
        source = open_batches(ask, scale, calibrator, model)
        with scale.working(f"certifying {describe(source)}", source, quiet=quiet) as told:
            positive = class_number(wanted["positive"], source.classes)
            return certify_batches(source, calibrator, **wanted | {"positive": positive}, **told)
    ask.check_memory(TIMES)
    calibrator, data = calibrator_and_data(model, ask)
    with console.working(f"certifying {shape_of(data)}", quiet=quiet):
        return certify_file(data, calibrator, **wanted)


def open_monitor(state: Path | None, level: float, tolerance: float) -> Monitor:
    """Return the monitor that a file holds, or a new one of that level and tolerance."""
    if state is not None and state.exists():
        return Monitor.load(state)
    return Monitor(level, tolerance)


def watch_batch(monitor: Monitor, data: DataFile, calibrator: Calibrator | None) -> None:
    """Add one file's rows to a monitor, in their order; the first that names classes names them for all."""
    probs = own_probs(data) if calibrator is None else calibrator.predict_proba(data.values)
    y, names = data.labels(), text_names(data)
    if names is not None:
        monitor.classes = tuple(names) if monitor.classes is None else monitor.classes
        order = reorder(names, monitor.classes) or range(len(names))
        probs, y = probs[:, order], np.argsort(order)[y]
    monitor.update(probs, y if monitor.classes is None else np.array(monitor.classes)[y])


def save_picture(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, atomically, in the format of the extension."""
    from hcal.io.atomic import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
