"""The report as one self-contained HTML page: no script, style, font or picture from anywhere else."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from hcal import inputs
from hcal._version import __version__
from hcal.class_names import ClassName
from hcal.evaluation.axes import tick
from hcal.frames import AnyArray
from hcal.io import atomic_path
from hcal.methods import Calibrator
from hcal.progress import progress
from hcal.renamed import renamed
from hcal.reporting import sentences, tables
from hcal.reporting.content import VIEWS, Content, measure_report
from hcal.reporting.verdict import ReportVerdict, verdict_of
from hcal.reporting.what_if import what_if
from hcal.text import without_controls

#: The files of the page: the template, and the style and the script that it holds.
_FILES = ("page.html", "style.css", "script.js")


@renamed(ci="confidence", batch_rows="scores=hcal.io.batches(files, rows=…)")
def report(  # noqa: PLR0913 - a public door
    calibrator: Calibrator | str | None,
    scores: AnyArray,
    y: AnyArray,
    path: str | os.PathLike[str],
    *,
    input: inputs.InputKind | None = None,
    classes: Iterable[ClassName] | None = None,
    by: AnyArray = None,
    groups: AnyArray = None,
    positive: ClassName | None = None,
    confidence: float = 0.95,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    cross_fit: bool = False,
) -> ReportVerdict:
    """Write one self-contained HTML page that shows whether the probabilities can be trusted.

    Parameters
    ----------
    calibrator : Calibrator or None
        Fitted: the page shows before and after. None: the scores as they are. With ``cross_fit`` the method
        to fit, by name or unfitted.
    scores : array-like of shape (N, K), or (N,) for a binary score
        What the model said about rows that the calibrator has not seen. Or, with ``y=None``, files or blocks of rows
        as :func:`hcal.evaluate` takes them: the headline numbers are of all rows, the rest of a sample if they do not
        fit into memory.
    y : array-like of shape (N,)
    path : path-like
        Written atomically.
    input : {"logits", "probs", "log_probs"}, optional
        What ``scores`` holds; the calibrator's own kind, or ``"logits"``, by default.
    classes : sequence of K str or int, optional
        Names of the classes; the calibrator's own by default.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row (a country, a tenant). The verdict says which segments are proven to be off, and
        a table lists them all, the worst first.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a user): intervals and proofs count whole groups, of
        which a proof needs at least 20. With files, ``by`` and ``groups`` are names of columns.
    positive : int or str, optional
        The positive class of two, by its number or name; the second by default. If the names are integers, it is
        a name.
    confidence : float
        Level of intervals and bands.
    threshold : float or sequence of float
        Thresholds of P(positive) that matter to you.
    cost : dict, optional
        ``{"fn": 10, "fp": 1}``: what a missed positive and a false alarm cost.
    cross_fit : bool
        Predict every row by a fit without it: for data too small to split.

    Returns
    -------
    ReportVerdict
        What the page says first: ``headline``, ``chips``, ``sentences``, ``alarms``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "report.html"
    >>> scores, y = [[2.0, 0.0], [0.0, 1.0]], ["cat", "dog"]
    >>> verdict = report(None, scores, y, path, classes=["cat", "dog"])
    >>> path.exists(), bool(verdict.headline)
    (True, True)
    """
    with progress("writing a report"):
        content = measure_report(
            scores,
            y,
            calibrator,
            input=input,
            classes=classes,
            confidence=confidence,
            positive=positive,
            groups=groups,
            by=by,
            threshold=threshold,
            cost=cost,
            cross_fit=cross_fit,
        )
        return write_page(path, content)


def build_report(
    scores: AnyArray, y: AnyArray, calibrator: Calibrator | None = None, **options: Any
) -> str:
    """Return the report as one self-contained HTML page.

    Parameters
    ----------
    scores, y, calibrator, **options
        As for :func:`hcal.reporting.measure_report`.

    Examples
    --------
    >>> "Calibration report" in build_report([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    True
    """
    return render(measure_report(scores, y, calibrator, **options))


def write_page(path: str | os.PathLike[str], content: Content) -> ReportVerdict:
    """Write a measured report to a file, atomically, and return its verdict."""
    with atomic_path(Path(path)) as temporary:
        temporary.write_text(render(content), encoding="utf-8")
    return verdict_of(content)


def render(content: Content) -> str:
    """Write the page as HTML."""
    folder = files("hcal.reporting")
    page, style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = sentences.percent
    environment.filters["number"] = sentences.number
    environment.filters["digest"] = _digest
    verdict = verdict_of(content)
    html = environment.from_string(page).render(
        content=content,
        verdict=verdict,
        name=Path(content.source.name).name,
        style=style,
        script=script,
        version=__version__,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        steps=sentences.next_steps(content, verdict.grade),
        views=VIEWS,
        tables=tables,
        class_rows=sentences.class_rows(content),
        what_if=what_if(content),
        tick=tick,
    )
    return without_controls(html)  # names of classes may hold terminal escapes


def _digest(text: str) -> str:
    """Name a script or style for the page's policy: a browser runs what has this hash and nothing else."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
