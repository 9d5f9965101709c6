"""How the pictures of the gallery look: one style, colours that colour-blind readers can tell apart, SVG files.

The pictures have no background. In the dark theme ``assets/site.css`` turns their lightness round and keeps the hues.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from cycler import cycler

#: Okabe and Ito's colours, without the yellow that white paper swallows; the first is the blue of hcal's diagrams.
COLOURS = ["#1d5fae", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
INK = "#24292f"

STYLE = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.edgecolor": "#8c959f",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.figsize": (6.4, 4.0),
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "savefig.facecolor": "none",
    "svg.hashsalt": "hcal",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

#: The order of the lessons: from one model to special questions.
LESSONS = [
    "reliability",
    "whom_to_call",
    "segments",
    "rare_positives",
    "decomposition",
    "ten_classes",
    "how_many_rows",
    "compare",
    "certificate",
    "monitor",
    "label_shift",
    "ageing",
    "clinical",
    "language_model",
    "training",
    "canonical",
    "month_by_month",
    "sql_and_javascript",
]


def use_style(gallery: dict[str, Any], name: str) -> None:
    """Give every example the same look, whatever the one before it has set."""
    mpl.rcdefaults()
    mpl.rcParams.update(STYLE)


def as_svg(block: Any, variables: Any, gallery: Any) -> str:
    """Keep each figure as an SVG file."""
    from sphinx_gallery.scrapers import matplotlib_scraper

    return str(matplotlib_scraper(block, variables, gallery, format="svg"))


def by_lesson(name: str) -> int:
    """Sort the examples by lesson; an example without a place comes last."""
    lesson = name.removesuffix(".py")
    return LESSONS.index(lesson) if lesson in LESSONS else len(LESSONS)
