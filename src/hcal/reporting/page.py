"""The report as one self-contained HTML page: no script, style, font or picture from anywhere else."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from hcal import inputs
from hcal.calibrators import Calibrator
from hcal.io.class_names import check_classes, encode
from hcal.reporting import sections
from hcal.reporting.content import Content, measure_blocks, measure_report
from hcal.reporting.sections import change, number, section, tip
from hcal.reporting.verdict import ReportVerdict, next_steps, verdict_of

_TITLES = {"ece_ew": "Calibration error (ECE)", "nll": "NLL", "brier": "Brier score", "accuracy": "Accuracy"}


def report(
    calibrator: Calibrator | str | None,
    scores: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    input: inputs.InputKind | None = None,
    classes: Any = None,
    groups: Any = None,
    positive: Any = 1,
    ci: float = 0.95,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    cross_fit: bool = False,
    batch_rows: int | None = None,
) -> ReportVerdict:
    """Write one self-contained HTML page that shows whether the probabilities can be trusted.

    Parameters
    ----------
    calibrator : Calibrator or None
        Fitted: the page shows before and after. None: the scores as they are. With ``cross_fit`` the method
        to fit, by name or unfitted.
    scores : array-like of shape (N, K), or (N,) for a binary score
        What the model said about rows that the calibrator has not seen. With ``batch_rows``: a file, a
        folder or a pattern of files, which hold the labels too (``y=None``).
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
    threshold : float or sequence of float
        Thresholds of P(positive) that matter to you.
    cost : dict, optional
        ``{"fn": 10, "fp": 1}``: what a missed positive and a false alarm cost.
    cross_fit : bool
        Predict every row by a fit without it: for data too small to split.
    batch_rows : int, optional
        Read files in blocks of so many rows; numbers are of all rows, pictures of a sample.

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
    own = None if isinstance(calibrator, str) else getattr(calibrator, "class_names_", None)
    names = own if classes is None else check_classes(classes, len(classes))
    options: dict[str, Any] = {
        "ci": ci,
        "threshold": threshold,
        "cost": cost,
        "class_names": None if names is None else [str(n) for n in names],
        "positive": names.index(positive) if names is not None and positive in names else positive,
    }
    if batch_rows is not None:
        from hcal.io import batches

        if isinstance(calibrator, str):
            raise ValueError("cross_fit needs all rows at once: leave batch_rows out")
        content = measure_blocks(batches(scores, rows=batch_rows), calibrator, **options)
    else:
        labels = encode(y, names)
        crossed = None
        if cross_fit:
            from hcal.evaluation.crossfit import cross_fit as fit_out_of_fold

            kind: Any = input or getattr(calibrator, "input", "logits")
            crossed = fit_out_of_fold(calibrator or "pool", scores, labels, groups=groups, input=kind)
            calibrator, input = crossed.calibrator, kind
        if isinstance(calibrator, str):
            raise ValueError(f"fit {calibrator!r} first, or pass cross_fit=True")
        content = measure_report(
            scores, labels, calibrator, input=input, groups=groups, crossed=crossed, **options
        )
    write_page(path, content)
    return verdict_of(content)


def build_report(scores: Any, y: Any, calibrator: Calibrator | None = None, **options: Any) -> str:
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


def write_page(path: str | os.PathLike[str], content: Content) -> None:
    """Write a measured report to a file, atomically."""
    from hcal.io.atomic import atomic_path

    with atomic_path(Path(path)) as temporary:
        temporary.write_text(render(content), encoding="utf-8")


def render(content: Content) -> str:
    """Write the page as HTML."""
    verdict = verdict_of(content)
    parts = [
        _verdict(verdict),
        _cards(content),
        _now(content, verdict),
        sections.reliability(content),
        sections.clinical(content),
        sections.groups(content),
        sections.classes(content),
        sections.mapping(content),
        sections.metrics(content),
        sections.data_and_method(content),
    ]
    style, script = (
        f"\n{files('hcal.reporting').joinpath(name).read_text(encoding='utf-8')}"
        for name in ("style.css", "script.js")
    )
    return _PAGE.format(
        title=escape(f"Calibration report: {Path(content.source.name).name}"),
        name=escape(Path(content.source.name).name),
        subtitle=escape(_subtitle(content)),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        sections="\n".join(part for part in parts if part),
        created=escape(content.created),
        version=escape(content.versions.get("hcal", "")),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="hcal {version}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{style_hash}'; \
script-src '{script_hash}'; img-src data:; base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#verdict">Skip to the verdict</a>
<header>
<div><p class="eyebrow">Calibration report</p><h1>{name}</h1><p class="subtitle">{subtitle}</p></div>
<div class="tools">
<button type="button" id="theme" aria-label="Switch between light and dark">Light / dark</button>
<button type="button" id="print">Print</button></div>
</header>
<main>
{sections}
</main>
<footer><p>Made by hcal {version} on {created}. This page is complete: it loads nothing.</p></footer>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    """Name a script or style for the page's policy: a browser runs what has this hash and nothing else."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _subtitle(content: Content) -> str:
    part = f", {content.source.part} part" if content.source.part else ""
    method = f", calibrated by {content.calibrator.title}" if content.calibrator is not None else ""
    folds = ", each row predicted by a fit without it" if content.crossed is not None else ""
    return f"{content.n:,} rows, {len(content.names):,} classes{part}{method}{folds}"


def _verdict(verdict: ReportVerdict) -> str:
    chips = "".join(
        f'<div class="chip"><dt>{escape(title)}</dt><dd>{escape(words)}</dd></div>'
        for title, words in verdict.chips.items()
    )
    alarms = "".join(f"<li>{escape(alarm)}</li>" for alarm in verdict.alarms)
    alert = f'<ul class="alarms" role="alert">{alarms}</ul>' if alarms else ""
    sentences = "".join(f"<p>{escape(s)}</p>" for s in verdict.sentences)
    return (
        f'<section id="verdict" class="verdict {verdict.grade}" aria-labelledby="verdict-title">'
        f'<h2 id="verdict-title">{escape(verdict.headline)}</h2><dl class="chips">{chips}</dl>{alert}'
        f"<details><summary>In detail, and the rule</summary>{sentences}"
        f'<p class="fine">{escape(verdict.rule)}</p></details></section>'
    )


def _cards(content: Content) -> str:
    cards = []
    if content.binary:
        rates = [(side, s.headline.positive) for side, s in content.sides]
        stated = [(side, number(r.stated, True), "") for side, r in rates if r is not None]
        observed = f"observed {number(float((content.y == content.positive).mean()), True)}"
        words = "what is stated on average; it should be the observed rate"
        cards.append(_card(f"Mean {content.event}", words, stated, observed))
    for name, title in _TITLES.items():
        shares = name in ("ece_ew", "accuracy")
        rows = []
        for side, s in content.sides:
            found = s.headline.interval(name)
            reach = "" if found is None else f"{number(found[0], shares)} – {number(found[1], shares)}"
            rows.append((side, number(s.headline[name], shares), reach))
        trend = ""
        if content.after is not None:
            before, after = content.before.headline[name], content.after.headline[name]
            trend = change(before, after, name != "accuracy")
        metric = content.before.headline.results[name].metric
        cards.append(_card(title, metric.explain, rows, trend))
    if not content.binary:
        stated = [(side, number(s.metrics.mean_confidence, True), "") for side, s in content.sides]
        cards.append(
            _card("Mean confidence", "what the model states on average; compare with accuracy", stated, "")
        )
    return f'<section id="headline" aria-label="Headline numbers" class="cards">{"".join(cards)}</section>'


def _card(title: str, explain: str, rows: list[tuple[str, str, str]], trend: str) -> str:
    lines = "".join(
        f'<p class="figure {side}{"" if len(rows) == 2 else " single"}">'
        f'<span class="side">{side if len(rows) == 2 else ""}</span> '
        f'<b>{value}</b> <span class="interval">{interval}</span></p>'
        for side, value, interval in rows
    )
    return f'<div class="card"><h3>{tip(title, explain)}</h3>{lines}<p class="trend">{trend}</p></div>'


def _now(content: Content, verdict: ReportVerdict) -> str:
    """What to do next, with commands, and what the probabilities are good for already."""
    steps = "".join(
        f'<li>{escape(words)}<span class="command"><code>{escape(command)}</code>'
        '<button type="button" data-copy>Copy</button></span></li>'
        for words, command in next_steps(content, verdict)
    )
    body = (f'<ol class="steps">{steps}</ol>' if steps else "") + sections.decisions(content)
    lead = (
        "The next step, and what can be decided today. The intervals of a table hold all at once, at "
        f"{100 * content.ci:g} %."
    )
    return section("now", "What now?", lead, body) if body else ""
