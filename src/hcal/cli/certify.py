"""``hcal certify`` and ``hcal watch``: from files to what is proven, and to what has changed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hcal
from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.certificates import Certificate, Monitor, refuse_scores_of_the_fit
from hcal.cli.evaluate import own_probs
from hcal.cli.report import same_file
from hcal.data import DataFile, read_arrays
from hcal.evaluation import learned_from


def certify_file(
    data: DataFile,
    calibrator: Calibrator | None,
    *,
    level: float,
    group: str | None,
    assume: str | None,
    positive: int = 1,
) -> Certificate:
    """Certify what a file holds, or what a calibrator makes of it; never on the rows of the fit.

    Parameters
    ----------
    data : DataFile
    calibrator : Calibrator, optional
        The gain over the file's own probabilities is certified too.
    level : float
    group : str, optional
        A column or array of the file.
    assume : str, optional
    positive : int

    Returns
    -------
    Certificate
    """
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    groups = None if group is None else read_groups(data, group)
    options: dict[str, Any] = {"level": level, "groups": groups, "assume": assume, "positive": positive}
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


def read_groups(data: DataFile, column: str) -> NDArray[Any]:
    """Return the group of every row: an array of the file's part, or a column of a table.

    Parameters
    ----------
    data : DataFile
    column : str

    Returns
    -------
    array of shape (N,)
    """
    path = data.path
    if path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as f:
            rows = list(csv.DictReader(f))
        if not rows or column not in rows[0]:
            raise ValueError(f"{path.name} has no column {column!r}")
        return np.array([row[column] for row in rows])
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet as pq

        if column not in pq.read_schema(path).names:
            raise ValueError(f"{path.name} has no column {column!r}")
        return np.asarray(pq.read_table(path, columns=[column])[column].to_numpy())
    arrays = read_arrays(path)
    for name in ([f"{column}_{data.part}"] if data.part else []) + [column]:
        if name in arrays:
            return arrays[name]
    raise ValueError(f"{path.name} has no array {column!r}; it holds: {', '.join(sorted(arrays))}")


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
