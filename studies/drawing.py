"""How figures and pages of the studies are written: one palette, no dates, whole files or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hcal.extras import load_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Distinguishable also without colour vision (after Okabe and Ito).
PALETTE: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)
#: h-calibration is the subject of every figure and has the same colour in all of them.
SUBJECT: Final = "#D55E00"

_SETTINGS: Final[Any] = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "hcal",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
}


@contextmanager
def styled() -> Iterator[Any]:
    """Yield ``matplotlib.pyplot`` with these settings, on a canvas that needs no screen."""
    matplotlib = load_extra("figures", "matplotlib", "plot")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(_SETTINGS):
        plt.switch_backend("Agg")
        yield plt


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure without the date, so that the same numbers give the same file, and release it."""
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = {".png": {"Software": None}, ".svg": {"Date": None}}
    temporary = path.with_name(f".{path.name}.part{path.suffix}")
    figure.savefig(temporary, dpi=160, bbox_inches="tight", metadata=stamp.get(path.suffix))
    os.replace(temporary, path)
    plt.close(figure)
    return path


def write_text(path: Path, text: str) -> None:
    """Write a page in UTF-8, whatever the locale, whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def replace_between(path: Path, marks: tuple[str, str], lines: list[str]) -> None:
    """Replace what stands between two marks of a page."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(marks[0], 1)
    after = rest.split(marks[1], 1)[1]
    text = [before + marks[0], "", *lines, "", marks[1] + after]
    write_text(path, "\n".join(text))
