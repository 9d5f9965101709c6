"""``hcal certify`` and ``hcal watch``: from files to what is proven, and to what has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hcal
from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.certificates import Certificate, Monitor, refuse_scores_of_the_fit
from hcal.cli.evaluate import own_probs, text_names
from hcal.cli.report import class_number, same_file
from hcal.data import DataFile
from hcal.evaluation import learned_from


def certify_file(
    data: DataFile,
    calibrator: Calibrator | None,
    *,
    level: float,
    assume: str | None,
    positive: str | None = None,
) -> Certificate:
    """Certify what a file holds, or what a calibrator makes of it; never on the rows of the fit.

    Parameters
    ----------
    data : DataFile
    calibrator : Calibrator, optional
        The gain over the file's own probabilities is certified too.
    level : float
    assume : str, optional
    positive : str, optional
        Name or number of the class to certify of two.

    Returns
    -------
    Certificate
    """
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    number = class_number(positive, data.classes)
    options: dict[str, Any] = {"level": level, "groups": data.groups, "assume": assume, "positive": number}
    options["classes"] = text_names(data)
    if calibrator is None:
        return hcal.certify(raw, y, **options)
    told = learned_from(calibrator, data.values) + same_file(calibrator, data)
    if told:
        raise ValueError(f"no certificate: {told[0]}")
    refuse_scores_of_the_fit(calibrator, data.values, y)
    probs = inputs.check_probs(calibrator.predict_proba(data.values))[0]
    return hcal.certify(
        probs, y, baseline=raw, calibrator=calibrator, scores=data.values, out_of_fold=True, **options
    )


def open_monitor(state: Path | None, level: float, tolerance: float) -> Monitor:
    """Return the monitor that a file holds, or a new one.

    Parameters
    ----------
    state : Path, optional
    level, tolerance : float
        Of a new one.

    Returns
    -------
    Monitor
    """
    if state is not None and state.exists():
        return Monitor.load(state)
    return Monitor(level, tolerance)


def watch_batch(monitor: Monitor, data: DataFile, calibrator: Calibrator | None) -> None:
    """Add one file's rows to a monitor, in their order.

    Parameters
    ----------
    monitor : Monitor
    data : DataFile
    calibrator : Calibrator, optional
    """
    probs = own_probs(data) if calibrator is None else calibrator.predict_proba(data.values)
    monitor.update(probs, data.labels())


def save_picture(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, atomically, in the format of the extension."""
    from hcal.data.atomic import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
