"""The report as one self-contained HTML page: no script, style, font or picture from anywhere else."""

from __future__ import annotations

import math
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from hcal.evaluation.diagram import ReliabilityCurve
from hcal.reporting import charts, tables
from hcal.reporting.advice import what_now
from hcal.reporting.binary import binary
from hcal.reporting.content import HEADLINE, Content, ReportSide
from hcal.reporting.groups import groups
from hcal.reporting.markup import arrow, number, section, sides, tip
from hcal.reporting.verdict import ReportVerdict, judge_report

_SHOWN = 15  # small multiples before "show all"
_TITLES = {"ece_ew": "Calibration error (ECE)", "nll": "NLL", "brier": "Brier score", "accuracy": "Accuracy"}


#: The four ways to look at the predicted class: in words, and on the button.
_VIEWS = {
    "by_width": ("equal-width bins", "Equal width"),
    "by_mass": ("equal-mass bins", "Equal mass"),
    "isotonic": ("steps of the isotonic fit", "Isotonic"),
    "smooth": ("points of the smooth curve", "Smooth"),
}
_EXPLAINED = {
    "isotonic": "The best increasing fit of what happened (CORP): its steps are the bins, nobody chose them.",
    "smooth": "A kernel regression of what happened, as wide as the smooth calibration error itself.",
}


def render(content: Content) -> str:
    """Write the page as HTML."""
    verdict = judge_report(content)
    sections = [
        _verdict(verdict),
        _headline(content),
        what_now(content, verdict),
        binary(content),
        groups(content),
        _reliability(content),
        _confidence(content),
        _classes(content),
        tables.metrics(content),
        _mapping(content),
        tables.data(content),
        tables.method(content),
    ]
    style, script = (f"\n{_asset(name)}" for name in ("style.css", "script.js"))
    return _PAGE.format(
        title=escape(f"Calibration report: {content.source.name}"),
        name=escape(content.source.name),
        subtitle=escape(_subtitle(content)),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        sections="\n".join(s for s in sections if s),
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


def _asset(name: str) -> str:
    return files("hcal.reporting").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Name a script or style for the page's policy: a browser runs what has this hash and nothing else."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _subtitle(content: Content) -> str:
    part = f", {content.source.part} part" if content.source.part else ""
    method = f", calibrated by {content.calibrator.title}" if content.calibrator is not None else ""
    return f"{len(content.y):,} rows, {len(content.names):,} classes{part}{method}"


# -- verdict and headline -------------------------------------------------------------------------


def _verdict(verdict: ReportVerdict) -> str:
    words = {"good": "Safe", "care": "With care", "few": "Cannot tell", "bad": "Not safe"}[verdict.grade]
    alarms = "".join(f"<li>{escape(alarm)}</li>" for alarm in verdict.alarms)
    alert = f'<ul class="alarms" role="alert">{alarms}</ul>' if alarms else ""
    sentences = "".join(f"<p>{escape(s)}</p>" for s in verdict.sentences)
    return (
        f'<section id="verdict" class="verdict {verdict.grade}" aria-labelledby="verdict-title">'
        f'<p class="grade"><span>{words}</span></p><h2 id="verdict-title">{escape(verdict.headline)}</h2>'
        f'{sentences}{alert}<p class="fine">{escape(verdict.rule)}</p></section>'
    )


def _headline(content: Content) -> str:
    cards = [_card(content, name) for name in HEADLINE]
    cards.insert(3, _confidence_card(content))
    return f'<section id="headline" aria-label="Headline numbers" class="cards">{"".join(cards)}</section>'


def _card(content: Content, name: str) -> str:
    metric = content.before.headline.results[name].metric
    shares = name in ("ece_ew", "accuracy")
    rows = [
        (side, number(s.headline[name], shares), _interval(s, name, shares)) for side, s in sides(content)
    ]
    return _card_html(_TITLES[name], metric.explain, rows, _trend(content, name))


def _confidence_card(content: Content) -> str:
    rows = [(side, number(s.metrics.mean_confidence, True), "") for side, s in sides(content)]
    return _card_html("Mean confidence", "what the model states on average; compare with accuracy", rows, "")


def _card_html(title: str, explain: str, rows: list[tuple[str, str, str]], trend: str) -> str:
    lines = "".join(
        f'<p class="figure {side}"><span class="side">{side if len(rows) == 2 else "now"}</span> '
        f'<b>{value}</b> <span class="interval">{interval}</span></p>'
        for side, value, interval in rows
    )
    return f'<div class="card"><h3>{tip(title, explain)}</h3>{lines}<p class="trend">{trend}</p></div>'


def _trend(content: Content, name: str) -> str:
    if content.after is None:
        return ""
    before, after = content.before.headline[name], content.after.headline[name]
    if name == "accuracy":
        return "unchanged" if before == after else f"{100 * (after - before):+.2f} points"
    if before <= 0 or abs(after / before - 1) < 0.0005:
        return "unchanged"
    ratio = after / before - 1
    return arrow(ratio, better=ratio < 0)


def _interval(side: ReportSide, name: str, share: bool) -> str:
    found = side.headline.interval(name)
    return "" if found is None else f"{number(found[0], share)} – {number(found[1], share)}"


# -- diagrams -------------------------------------------------------------------------------------


def _reliability(content: Content) -> str:
    lead = (
        "Each dot is a bin of rows: how confident the model was, and how often it was right. On the diagonal "
        "the two agree. Grey is the consistency band: where the dot lies in "
        f"{charts.percent(content.ci, 0)} of the cases if the model is calibrated."
    )
    views = []
    for view, (label, _) in _VIEWS.items():
        figures = "".join(
            _figure(charts.reliability_chart(getattr(s, view)[0], side), side, len(sides(content)))
            for side, s in sides(content)
        )
        tables = "".join(_bins_table(getattr(s, view)[0], side) for side, s in sides(content))
        hidden = "" if view == "by_width" else " hidden"
        views.append(
            f'<div class="view" id="{view}"{hidden}><div class="pair">{figures}</div>'
            f"{_words(content, view)}"
            f"<details><summary>The numbers ({label})</summary>{tables}</details></div>"
        )
    buttons = "".join(
        f'<button type="button" data-view="{view}" '
        f'aria-pressed="{"true" if view == "by_width" else "false"}">{button}</button>'
        for view, (_, button) in _VIEWS.items()
    )
    control = f'<div class="switch" role="group" aria-label="Bins or curve">{buttons}</div>'
    legend = (
        '<p class="legend"><span><i class="key-dot"></i>inside the band</span>'
        '<span><i class="key-ring"></i>outside: more than chance</span>'
        '<span><i class="key-small"></i>fewer than 10 rows</span>'
        '<span><i class="key-band"></i>consistency band</span></p>'
    )
    return section("reliability", "Does it mean what it says?", lead, control + legend + "".join(views))


def _words(content: Content, view: str) -> str:
    """What a curve without bins shows, and its number on each side."""
    if view not in _EXPLAINED:
        return ""
    told = []
    for side, s in sides(content):
        curve = getattr(s, view)[0]
        value = f"the smooth calibration error is {charts.percent(curve.error, 2)}"
        if curve.parts is not None:
            p = curve.parts
            value = (
                f"the predicted class's Brier score is {p.miscalibration:.4f} (miscalibration) − "
                f"{p.discrimination:.4f} (discrimination) + {p.uncertainty:.4f} (uncertainty)"
            )
        told.append(f"{side.capitalize()}: {value}" if len(sides(content)) == 2 else value)
    return f'<p class="fine">{_EXPLAINED[view]} {escape(". ".join(told))}.</p>'


def _figure(drawing: str, side: str, sides: int) -> str:
    caption = {"before": "Before calibration", "after": "After calibration"}[side] if sides == 2 else ""
    return (
        f'<figure class="{side}">{f"<figcaption>{caption}</figcaption>" if caption else ""}{drawing}</figure>'
    )


def _bins_table(curve: ReliabilityCurve, side: str) -> str:
    rows = "".join(
        f"<tr><td>{curve.edges[b]:.3f} – {curve.edges[b + 1]:.3f}</td><td>{curve.weight[b]:,.0f}</td>"
        f"<td>{curve.predicted[b]:.4f}</td><td>{curve.observed[b]:.4f}</td>"
        f"<td>{curve.low[b]:.4f} – {curve.high[b]:.4f}</td></tr>"
        for b in np.flatnonzero(curve.weight > 0)
    )
    head = "<tr><th>bin</th><th>rows</th><th>stated</th><th>right</th><th>band</th></tr>"
    return f'<div class="scroll"><table class="numbers"><caption>{side}</caption>{head}{rows}</table></div>'


def _confidence(content: Content) -> str:
    lead = (
        "How many rows were stated with which confidence, on a logarithmic axis: right predictions in the "
        "colour of the side, wrong ones in grey. The solid line is the mean confidence, the dashed one the "
        "accuracy; they should meet."
    )
    figures = []
    top = max(math.ceil(math.log10(len(content.y))), 1)
    for side, s in sides(content):
        conf = s.probs.max(axis=1).astype(np.float64)
        drawing = charts.confidence(conf, s.probs.argmax(axis=1) == content.y, side, top=top)
        figures.append(_figure(drawing, side, len(sides(content))))
    return section("confidence", "How confident is it?", lead, f'<div class="pair">{"".join(figures)}</div>')


def _mapping(content: Content) -> str:
    if content.after is None:
        return ""
    lead = (
        "What the calibrator does to a logit, measured from the top class of its row: in along the bottom, "
        "out along the side. The dashed diagonal changes nothing; a flatter curve makes the model less sure. "
        "Dots away from the line mean that classes or rows are treated differently."
    )
    drawing, words = charts.mapping(content.before.probs, content.after.probs)
    figure = f'<figure class="after">{drawing}</figure><p class="aside">{escape(words)}</p>'
    return section("map", "The map itself", lead, f'<div class="pair">{figure}</div>')


# -- classes --------------------------------------------------------------------------------------


def _classes(content: Content) -> str:
    final = content.final.by_class
    proven = _proven(content)
    order = np.lexsort((np.array([-c.error for c in final.curves]), -proven))
    stamps = "".join(_stamp(content, int(k), place) for place, k in enumerate(order))
    many = len(order) > _SHOWN
    lead = (
        "Reliability of each class's own probability with consistency bands: classes that are proven wrong "
        "first, then by error. "
        + ("The light dashed line is before, the solid one after calibration." if content.after else "")
    )
    hidden = "" if many else " hidden"
    controls = (
        f'<div class="filters"{hidden}><label>Find a class <input type="search" id="find" '
        'autocomplete="off" placeholder="name or number"></label>'
        '<label>Order <select id="order"><option value="worst">proven wrong first</option>'
        '<option value="number">by number</option><option value="rows">most rows first</option></select>'
        "</label>"
        f'<button type="button" id="all" aria-expanded="false">Show all {len(order):,}</button>'
        '<span id="found" role="status"></span></div>'
    )
    body = f'{controls}<div class="stamps" id="stamps" data-shown="{_SHOWN}">{stamps}</div>'
    return section("classes", "Class by class", lead, body)


def _proven(content: Content) -> NDArray[np.float64]:
    """How far off each class is proven to be; of two classes, the negative one mirrors the positive one."""
    certificate = content.final.headline.certificate
    out = np.zeros(len(content.names))
    if certificate is not None and certificate.classes is not None:
        out[certificate.classes.classes] = certificate.classes.at_least
    return out


def _stamp(content: Content, k: int, place: int) -> str:
    name = content.names[k]
    after, before = content.final.by_class[k], content.before.by_class[k]
    frequency = content.counts[k] / len(content.y)
    stated = float(content.final.probs[:, k].mean())
    error = charts.percent(after.error, 2)
    if content.after is not None:
        error = f"{charts.percent(before.error, 2)} → {error}"
    drawing = charts.small(before if content.after is not None else None, after, name)
    hidden = " hidden" if place >= _SHOWN else ""
    return (
        f'<div class="stamp-card" data-k="{k}" data-name="{escape(name.lower())}" data-place="{place}" '
        f'data-rows="{content.counts[k]}"{hidden}><h3>{escape(name)}</h3>{drawing}'
        f'<p>error {error}</p><p class="fine">stated {charts.percent(stated)}, '
        f"is {charts.percent(frequency)} · {content.counts[k]:,} rows</p></div>"
    )
