"""From scores and labels to the report: measured, rendered, written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hcal import inputs
from hcal.calibrators import calibration_rows
from hcal.calibrators.base import Calibrator
from hcal.io.class_names import check_classes, encode
from hcal.io.probabilities import to_probs
from hcal.evaluation import coincidence, coinciding_rows, learned_from
from hcal.reporting.content import Content, Source, gather
from hcal.reporting.page import render
from hcal.reporting.verdict import ReportVerdict, judge_report


def report(
    calibrator: Calibrator | None,
    scores: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    input: inputs.InputKind | None = None,
    classes: Any = None,
    groups: Any = None,
    positive: Any = 1,
    ci: float = 0.95,
) -> ReportVerdict:
    """Write one self-contained HTML page that shows whether the probabilities can be trusted.

    Parameters
    ----------
    calibrator : Calibrator or None
        Fitted: the page shows before and after. None: the scores as they are.
    scores : array-like of shape (N, K), or (N,) for a binary score
        What the model said about rows that the calibrator has not seen.
    y : array-like of shape (N,)
    path : path-like
        Written atomically.
    input : {"logits", "probs", "log_probs"}, optional
        What ``scores`` holds; the calibrator's own kind, or ``"logits"``, by default.
    classes : sequence of K str or int, optional
        Names of the classes; the calibrator's own by default.
    groups : array-like of shape (N,), optional
        A group of each row: a section on groups, the worst first.
    positive : int or str
        The positive class of two, by its number or name.
    ci : float
        Level of intervals and bands.

    Returns
    -------
    ReportVerdict
        What the page says first: ``headline``, ``sentences``, ``alarms``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "report.html"
    >>> scores, y = [[2.0, 0.0], [0.0, 1.0]], ["cat", "dog"]
    >>> verdict = report(None, scores, y, path, classes=["cat", "dog"])
    >>> path.exists(), bool(verdict.headline)
    (True, True)
    """
    own = None if calibrator is None else getattr(calibrator, "class_names_", None)
    names = own if classes is None else check_classes(classes, len(classes))
    content = measure_report(
        scores, encode(y, names), calibrator, input=input, groups=groups, ci=ci,
        class_names=None if names is None else [str(n) for n in names],
        positive=names.index(positive) if names is not None and positive in names else positive,
    )  # fmt: skip
    write_page(path, content)
    return judge_report(content)


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
    scores, y, calibrator, input, groups, ci
        As for :func:`report`.
    class_names : sequence of K str, optional
    source : Source, optional
        Name, part and checksum of the file, for the page.
    calibration : array-like of shape (M, K), optional
        Scores that the calibrator learned from; rows in common raise an alarm on the page.
    notes : sequence of str
        More alarms.
    positive : int
        The positive class of two.

    Examples
    --------
    >>> measure_report([[2.0, 0.0], [0.0, 1.0]], [0, 1]).counts
    array([1, 1])
    """
    kind = input or ("logits" if calibrator is None else calibrator.input)
    own = getattr(calibrator, "uncalibrated", None)  # of questions with different numbers of options
    raw = to_probs(scores, kind) if own is None else own(scores)
    labels = inputs.check_labels(y, *raw.shape)
    probs = None
    if calibrator is not None:
        probs = inputs.check_probs(calibrator.predict_proba(scores))[0]
    told = [*notes, *learned_from(calibrator, scores)]
    seen = 0.0
    if calibrator is not None:
        rows = calibration_rows.checked_rows(calibrator, scores)
        seen = calibration_rows.share_seen(calibrator, rows, labels)
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


def build_report(scores: Any, y: Any, calibrator: Calibrator | None = None, **options: Any) -> str:
    """Return the report as one self-contained HTML page.

    Parameters
    ----------
    scores, y, calibrator, **options
        As for :func:`measure_report`.

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
    """Write a measured report to a file, atomically."""
    from hcal.io.atomic import atomic_path

    with atomic_path(Path(path)) as temporary:
        temporary.write_text(render(content), encoding="utf-8")
