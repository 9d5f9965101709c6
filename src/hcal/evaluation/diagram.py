"""``hcal.reliability``: the reliability diagram of the positive class, the top label or every class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hcal.evaluation.curves import (
    BINNINGS,
    Binning,
    ReliabilityCurve,
    binned_curve,
    corp_curve,
    smooth_curve,
)
from hcal.extras import pyplot
from hcal.inputs import check_confidence
from hcal.metrics.binned import check_bins
from hcal.metrics.sample import Sample, as_sample, check_integer
from hcal.renamed import renamed
from hcal.results import Result
from hcal.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of the HTML report (reporting/style.css). Filled dots lie inside their band, rings outside it.
_BLUE, _FILL, _GREY = "#1d5fae", "#bcd6f2", "#c3c9d2"
#: How many curves of a class-wise diagram are printed and drawn, and the width of a printed bar in characters.
_PRINTED, _PANELS, _WIDTH = 5, 9, 30


@dataclass(frozen=True, repr=False)
class Reliability(Result):
    """Reliability curves of one predictor: the top label, the positive class, or every class.

    Examples
    --------
    >>> import hcal
    >>> diagram = hcal.reliability([[0.2, 0.8], [0.3, 0.7], [0.9, 0.1]], [1, 0, 0], bins=5)
    >>> diagram.level, diagram.curves[0].observed
    ('positive', array([0. , nan, nan, 0.5, nan]))
    """

    schema: ClassVar[str] = "hcal/reliability/1"

    curves: tuple[ReliabilityCurve, ...]
    level: str
    confidence: float
    n: int

    def __len__(self) -> int:
        return len(self.curves)

    def __getitem__(self, i: int) -> ReliabilityCurve:
        try:
            return self.curves[i]
        except IndexError:
            last = f"{len(self) - 1}, of the {self.curves[-1].title}; level='class-wise' has one curve a class"
            raise IndexError(f"this diagram has no curve {i}: its last curve is {last}") from None

    def __str__(self) -> str:
        parts = [_text(self.curves[i]) for i in self._worst(_PRINTED)]
        if len(self) > len(parts):
            parts.append(f"… and {len(self) - len(parts)} classes with smaller errors")
        head = f"Reliability of {self.n:,} rows ({self.level}); * outside the {self.confidence:.0%} band"
        return "\n\n".join([head, *parts])

    def _headline(self) -> list[str]:
        worst = [self.curves[i] for i in self._worst(_PRINTED)]
        errors = ", ".join(f"{curve.title} {curve.error:.4f}" for curve in worst)
        return [f"Reliability of {self.n:,} rows ({self.level}); errors: {errors}"]

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary for each bin with rows, curve by curve."""
        return [record for curve in self.curves for record in curve.to_records()]

    def _draw(self, figure: Any) -> bool:
        self._draw_panels(figure, self._worst(_PANELS))
        return True

    def plot(
        self, ax: Axes | None = None, *, classes: Sequence[int] | None = None
    ) -> Axes | Figure:
        """Draw observed frequency against predicted probability, with grey bands and the share of rows below.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw a single curve.
        classes : list of int, optional
            Which curves of a class-wise diagram; by default the nine with the largest error.

        Returns
        -------
        Axes of a single curve, or Figure with one panel a class
        """
        if classes is None:
            classes = self._worst(_PANELS)
        if bad := [k for k in classes if not 0 <= k < len(self)]:
            raise ValueError(f"classes must lie in 0..{len(self) - 1}, got {bad[0]}")
        if len(classes) == 1:
            return draw_curve(self.curves[classes[0]], self.confidence, ax)
        if ax is not None:
            raise ValueError("ax holds one curve: choose one class with classes=[k]")
        figure: Figure = pyplot().figure(layout="constrained")
        self._draw_panels(figure, classes)
        return figure

    def _draw_panels(self, figure: Figure, classes: Sequence[int]) -> None:
        columns = math.ceil(math.sqrt(len(classes)))
        rows = math.ceil(len(classes) / columns)
        inches = 4.6 if len(classes) == 1 else 3.1
        figure.set_size_inches(inches * columns, inches * rows)
        for position, k in enumerate(classes, start=1):
            panel: Any = figure.add_subplot(rows, columns, position)
            draw_curve(self.curves[k], self.confidence, panel)
            if position > 1:
                panel.get_legend().remove()

    def _worst(self, count: int) -> list[int]:
        return [int(k) for k in np.argsort([-c.error for c in self.curves], kind="stable")[:count]]


@renamed(ci="confidence")
def reliability(
    probs: Any,
    y: Any = None,
    *,
    level: Literal["top-label", "class-wise", "positive"] | None = None,
    bins: int = 15,
    binning: Binning = "equal-width",
    confidence: float = 0.95,
    sample_weight: Any = None,
    positive: int = 1,
    classes: Any = None,
    resamples: int = 200,
    random_state: int = 0,
) -> Reliability:
    """Return the reliability diagram of the predicted class, the positive class or every class, as data.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    level : {"top-label", "class-wise", "positive"}, optional
        By default ``"positive"`` with two classes, ``"top-label"`` with more.
    bins : int
        The number of equal-width or equal-mass bins.
    binning : {"equal-width", "equal-mass", "corp", "smooth"}
        ``"corp"``: the steps of an isotonic regression are the bins. ``"smooth"``: a kernel regression with the
        bandwidth of smooth ECE.
    confidence : float
        Level of the consistency bands.
    sample_weight : array-like of shape (N,), optional
    positive : int
        The class of the level ``"positive"``.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns, where ``y`` holds names.
    resamples, random_state : int
        How many simulations the bands of ``"corp"`` and ``"smooth"`` use, and their seed.

    Returns
    -------
    Reliability

    Examples
    --------
    >>> reliability([[0.2, 0.8], [0.3, 0.7]], [1, 1], bins=1).curves[0].predicted
    array([0.75])
    """
    if binning not in BINNINGS:
        raise ValueError(
            f"binning must be one of {', '.join(map(repr, BINNINGS))}, got {binning!r}"
        )
    check_integer("resamples", resamples, 20)
    confidence = check_confidence(confidence)
    names = None
    if isinstance(probs, Sample):
        s = as_sample(probs, y, sample_weight)
    else:
        rows = Rows.of_predictions(probs, y, input="probs", weight=sample_weight, classes=classes)
        names = rows.names
        s = as_sample(rows.scores, rows.y, sample_weight)
    bins = check_bins(bins)
    if level is None:
        level = "positive" if s.k == 2 else "top-label"
    if not 0 <= positive < s.k:
        raise ValueError(f"positive must be a class of 0..{s.k - 1}, got {positive!r}")
    shown: dict[str, Any] = {"top-label": [None], "positive": [positive], "class-wise": range(s.k)}
    if level not in shown:
        raise ValueError(f"level must be 'top-label', 'class-wise' or 'positive', got {level!r}")
    make: Callable[..., ReliabilityCurve] = partial(binned_curve, bins=bins, binning=binning)
    if binning in ("corp", "smooth"):
        drawn: dict[str, Any] = {"resamples": resamples, "rng": np.random.default_rng(random_state)}
        make = partial(corp_curve if binning == "corp" else smooth_curve, **drawn)

    def curve(k: int | None) -> ReliabilityCurve:
        title, p, event = "top label", s.data.top_conf, s.data.top_hit
        if k is not None:
            title = f"class {k if names is None else names[k]}"
            p, event = s.data.probs[:, k].astype(np.float64), (s.y == k).astype(np.float64)
        return make(title, p, event, s.w, level=confidence)

    return Reliability(tuple(curve(k) for k in shown[level]), level, confidence, s.n)


def _text(curve: ReliabilityCurve) -> str:
    """Return a line for every bin with rows: probability, frequency, band, and a bar with a mark at the probability."""
    lines = [
        f"{curve.title}: error {curve.error:.4f}",
        f"{'probability':<12} {'stated':>7} {'happened':>9}  {'if calibrated':>14} {'rows':>9}",
    ]
    for b in np.flatnonzero(curve.weight > 0):
        mark = "*" if curve.outside[b] else " "
        band = f"{curve.low[b]:.3f}–{curve.high[b]:.3f}"
        length = round(curve.observed[b] * _WIDTH)
        cells = ["█" if i < length else " " for i in range(_WIDTH + 1)]
        cells[round(curve.predicted[b] * _WIDTH)] = "│"
        lines.append(
            f"{curve.edges[b]:.3f}–{curve.edges[b + 1]:.3f}  {curve.predicted[b]:>7.3f} "
            f"{curve.observed[b]:>8.3f}{mark}  {band:>14} {curve.weight[b]:>9,.0f}  {''.join(cells).rstrip()}"
        )
    return "\n".join(lines)


# -- pictures: what needs matplotlib -------------------------------------------------------------------


def draw_curve(curve: ReliabilityCurve, confidence: float, ax: Axes | None = None) -> Axes:
    """Draw one curve: its points (rings if outside the band), the band, the diagonal and the share of rows."""
    if ax is None:
        ax = pyplot().subplots(figsize=(4.6, 4.6), layout="constrained")[1]
    full = curve.weight > 0
    x, seen = curve.predicted[full], curve.observed[full]
    share = curve.weight / curve.weight.sum()
    bars: dict[str, Any] = {
        "align": "edge",
        "color": _FILL,
        "edgecolor": "white",
        "label": "share of rows",
    }
    ax.bar(curve.edges[:-1], share, np.diff(curve.edges), **bars)
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
    out, band = curve.outside[full], f"{confidence:.0%} if calibrated"
    if curve.along:  # a band along the curve, as there are many points
        ax.fill_between(
            x, curve.low[full], curve.high[full], color=_GREY, alpha=0.6, linewidth=0, label=band
        )
    else:
        ax.vlines(x, curve.low[full], curve.high[full], color=_GREY, linewidth=5, label=band)
    ax.plot(x, seen, color=_BLUE, linewidth=1.6 if curve.binning == "smooth" else 1)
    size = 1.5 if curve.binning == "smooth" else 4
    ax.plot(x[~out], seen[~out], "o", color=_BLUE, markersize=size, label="inside the band")
    ring: dict[str, Any] = {
        "markerfacecolor": "white",
        "markeredgecolor": _BLUE,
        "markeredgewidth": size / 3,
    }
    ax.plot(x[out], seen[out], "o", markersize=size, label="outside: more than chance", **ring)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="observed frequency")
    ax.set_title(f"{curve.title}: error {curve.error:.4f}", fontsize=10)
    ax.set_aspect("equal")
    ax.legend(loc="upper left", fontsize=7, frameon=False)
    return ax
