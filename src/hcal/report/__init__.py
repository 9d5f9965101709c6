"""``hcal report``: one self-contained HTML page that shows whether a model's probabilities can be trusted.

>>> import numpy as np, hcal
>>> rng = np.random.default_rng(0)
>>> logits = rng.normal(size=(200, 3)) * 4
>>> y = np.array([rng.choice(3, p=p) for p in hcal.softmax(logits / 3)])
>>> page = hcal.report.build_report(logits, y, hcal.make_calibrator("ts").fit(logits, y))
>>> page.startswith("<!doctype html>")
True
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hcal import fingerprint, inputs
from hcal.calibrators.base import Calibrator
from hcal.evaluation import coincidence, coinciding_rows, learned_from
from hcal.numerics import IntArray, softmax
from hcal.report.content import Content, Source, gather
from hcal.report.page import render

__all__ = ["Content", "Source", "build_report", "measure_report", "write_page", "write_report"]


def measure_report(
    scores: Any,
    y: Any,
    calibrator: Calibrator | None = None,
    *,
    input: inputs.InputKind | None = None,
    class_names: Sequence[str] | None = None,
    source: Source | None = None,
    calibration: Any = None,
    notes: Sequence[str] = (),
    ci: float = 0.95,
    positive: int = 1,
    groups: Any = None,
) -> Content:
    """Measure what a report shows, before and (with a calibrator) after calibration.

    Parameters
    ----------
    scores : array-like of shape (N, K), or (N,) for a binary score
        What the model said about rows that the calibrator has not seen.
    y : array-like of shape (N,)
    calibrator : Calibrator, optional
        Fitted.
    input : {"logits", "probs", "log_probs"}, optional
        What ``scores`` holds; the calibrator's own kind, or ``"logits"``, by default.
    class_names : sequence of K str, optional
    source : Source, optional
        Name, part and checksum of the file, for the page.
    calibration : array-like of shape (M, K), optional
        Scores that the calibrator learned from; rows in common raise an alarm on the page.
    notes : sequence of str
        More alarms.
    ci : float
        Level of intervals and bands.
    positive : int
        The positive class of two.
    groups : array-like of shape (N,), optional
        A group of each row: a section on groups, the worst first.

    Returns
    -------
    Content

    Examples
    --------
    >>> measure_report([[2.0, 0.0], [0.0, 1.0]], [0, 1]).counts
    array([1, 1])
    """
    kind = input or ("logits" if calibrator is None else calibrator.input)
    checked = inputs.check_probs(scores)[0] if kind == "probs" else None
    raw = softmax(inputs.check_logits(scores, input=kind)[0]) if checked is None else checked
    labels = inputs.check_labels(y, *raw.shape)
    probs = None
    if calibrator is not None:
        probs = inputs.check_probs(inputs.to_numpy(calibrator.predict_proba(scores))[0])[0]
    told = [*notes, *learned_from(calibrator, scores)]
    seen = 0.0 if calibrator is None else _seen(calibrator, scores, labels)
    if calibration is not None and (text := coincidence(calibration, scores)):
        seen = max(seen, coinciding_rows(calibration, scores))
        told.append(text)
    elif seen and not any("learned from" in note for note in told):
        told.append(f"about {seen:.0%} of the rows that the calibrator learned from are among these rows")
    where = source or Source(kind=kind)
    return gather(
        raw, labels, probs, calibrator=calibrator, source=where, names=class_names, notes=told, ci=ci,
        positive=positive, groups=groups, seen=seen,
    )  # fmt: skip


def _seen(calibrator: Calibrator, scores: Any, y: IntArray) -> float:
    x, _ = inputs.check_logits(scores, input=calibrator.input, n_classes=calibrator.n_classes_)
    return fingerprint.share_seen(calibrator, x, y)


def build_report(scores: Any, y: Any, calibrator: Calibrator | None = None, **options: Any) -> str:
    """Return the report as one self-contained HTML page.

    Parameters
    ----------
    scores, y, calibrator, **options
        As for :func:`measure_report`.

    Returns
    -------
    str

    Examples
    --------
    >>> "Calibration report" in build_report([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    True
    """
    return render(measure_report(scores, y, calibrator, **options))


def write_report(
    path: str | os.PathLike[str],
    scores: Any,
    y: Any,
    calibrator: Calibrator | None = None,
    **options: Any,
) -> None:
    """Write the report to a file, atomically.

    Parameters
    ----------
    path : path-like
    scores, y, calibrator, **options
        As for :func:`measure_report`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "report.html"
    >>> write_report(path, [[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> path.exists()
    True
    """
    write_page(path, measure_report(scores, y, calibrator, **options))


def write_page(path: str | os.PathLike[str], content: Content) -> None:
    """Write a measured report to a file, atomically.

    Parameters
    ----------
    path : path-like
    content : Content
    """
    from hcal.io import atomic_path

    with atomic_path(Path(path)) as temporary:
        temporary.write_text(render(content), encoding="utf-8")
