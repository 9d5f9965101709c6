"""``hcal.reliability``: the reliability diagram of the positive class, the top label or every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hcal.evaluation.curves import BINNINGS, Binning, ReliabilityCurve, binned_curve, corp_curve, smooth_curve
from hcal.io.class_names import check_classes, encode
from hcal.metrics.binned import check_bins
from hcal.metrics.sample import as_sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Curves of a class-wise diagram that are printed and drawn, the worst first; characters from 0 to 1.
_PRINTED, _PANELS, _WIDTH = 5, 9, 30


@dataclass(frozen=True, repr=False)
class Reliability:
    """Reliability curves of one predictor: the top label, the positive class, or every class.

    Examples
    --------
    >>> import hcal
    >>> diagram = hcal.reliability([[0.2, 0.8], [0.3, 0.7], [0.9, 0.1]], [1, 0, 0], bins=5)
    >>> diagram.level, diagram.curves[0].observed
    ('positive', array([0. , nan, nan, 0.5, nan]))
    """

    curves: tuple[ReliabilityCurve, ...]
    level: str
    ci: float
    n: int

    def __len__(self) -> int:
        return len(self.curves)

    def __getitem__(self, i: int) -> ReliabilityCurve:
        try:
            return self.curves[i]
        except IndexError:
            one = f"this diagram has one curve, of the {self.curves[0].title}: take [0]"
            many = f"this diagram has the curves 0..{len(self) - 1}, one a class"
            more = "; level='class-wise' has one a class" if self.level != "class-wise" else ""
            raise IndexError(f"{one if len(self) == 1 else many}{more}; got [{i}]") from None

    def __str__(self) -> str:
        parts = [_text(self.curves[i]) for i in self._worst(_PRINTED)]
        if len(self) > len(parts):
            parts.append(f"… and {len(self) - len(parts)} classes with smaller errors")
        head = f"Reliability of {self.n:,} rows ({self.level}); * outside the {self.ci:.0%} band"
        return "\n\n".join([head, *parts])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, ready for JSON (None where a bin is empty).

        Returns
        -------
        dict
        """
        names = ("edges", "weight", "predicted", "observed", "low", "high")
        curves = [
            {"title": c.title, "error": c.error, "binning": c.binning}
            | {n: [None if np.isnan(v) else float(v) for v in getattr(c, n)] for n in names}
            | ({} if c.parts is None else {"parts": vars(c.parts)})
            for c in self.curves
        ]
        return {"level": self.level, "ci": self.ci, "n": self.n, "curves": curves}

    def plot(self, ax: Axes | None = None, *, classes: Sequence[int] | None = None) -> Axes | Figure:
        """Draw the diagram: frequency against probability, bands in grey, the share of rows below.

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
        from hcal.evaluation.drawing import draw_curve, draw_panels

        if classes is None:
            classes = self._worst(_PANELS)
        if bad := [k for k in classes if not 0 <= k < len(self)]:
            raise ValueError(f"classes must lie in 0..{len(self) - 1}, got {bad[0]}")
        if len(classes) == 1:
            return draw_curve(self.curves[classes[0]], self.ci, ax)
        if ax is not None:
            raise ValueError("ax holds one curve: choose one class with classes=[k]")
        return draw_panels([self.curves[k] for k in classes], self.ci)

    def _worst(self, count: int) -> list[int]:
        return [int(k) for k in np.argsort([-c.error for c in self.curves], kind="stable")[:count]]


def reliability(
    probs: Any,
    y: Any = None,
    *,
    level: Literal["top-label", "class-wise", "positive"] | None = None,
    bins: int = 15,
    binning: Binning = "equal-width",
    ci: float = 0.95,
    sample_weight: Any = None,
    positive: int = 1,
    classes: Any = None,
    resamples: int = 200,
    random_state: int = 0,
) -> Reliability:
    """Return the reliability diagram of the predicted class, or one of every class, as data.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    level : {"top-label", "class-wise", "positive"}, optional
        The positive class of two classes, the top label of more, by default.
    bins : int
        Of the equal-width and equal-mass kinds.
    binning : {"equal-width", "equal-mass", "corp", "smooth"}
        ``"corp"``: the steps of the isotonic fit are the bins. ``"smooth"``: a kernel regression of the width
        that smooth ECE finds.
    ci : float
        Level of the consistency bands.
    sample_weight : array-like of shape (N,), optional
    positive : int
        The class of the level ``"positive"``.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns, where ``y`` holds names.
    resamples, random_state : int
        Sets of events drawn for the bands of ``"corp"`` and ``"smooth"``, and their seed.

    Returns
    -------
    Reliability

    Examples
    --------
    >>> reliability([[0.2, 0.8], [0.3, 0.7]], [1, 1], bins=1).curves[0].predicted
    array([0.75])
    """
    if binning not in BINNINGS:
        raise ValueError(f"binning must be one of {', '.join(map(repr, BINNINGS))}, got {binning!r}")
    if not isinstance(resamples, int | np.integer) or resamples < 20:
        raise ValueError(f"resamples must be an integer of at least 20, got {resamples!r}")
    if not 0 < ci < 1:
        raise ValueError(f"ci must be a level between 0 and 1, such as 0.95, got {ci!r}")
    names = None if classes is None else check_classes(classes, len(classes))
    s = as_sample(probs, y if names is None or y is None else encode(y, names), sample_weight)
    bins = check_bins(bins)
    if level is None:
        level = "positive" if s.k == 2 else "top-label"
    if not 0 <= positive < s.k:
        raise ValueError(f"positive must be a class of 0..{s.k - 1}, got {positive!r}")
    shown: dict[str, Any] = {"top-label": [None], "positive": [positive], "class-wise": range(s.k)}
    if level not in shown:
        raise ValueError(f"level must be 'top-label', 'class-wise' or 'positive', got {level!r}")
    rng = np.random.default_rng(random_state)

    def curve(k: int | None) -> ReliabilityCurve:
        title, p, event = "top label", s.data.conf, s.data.hit
        if k is not None:
            title = f"class {k if names is None else names[k]}"
            p, event = s.data.probs[:, k].astype(np.float64), (s.y == k).astype(np.float64)
        if binning in ("corp", "smooth"):
            drawn = corp_curve if binning == "corp" else smooth_curve
            return drawn(title, p, event, s.w, ci, resamples, rng)
        return binned_curve(title, p, event, s.w, bins=bins, binning=binning, level=ci)

    return Reliability(tuple(curve(k) for k in shown[level]), level, ci, s.n)


def _text(curve: ReliabilityCurve) -> str:
    """Every bin with rows as a line: its probability, frequency and band, and a bar with a mark on it."""
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
