"""``hcal.reliability``: reliability diagrams as data, ready to plot.

A diagram shows, bin by bin, how often an event happened against how probable it was said to be. The
*consistency band* of a bin is where its frequency lies in 95 % of the cases if the predictions are calibrated
(Bröcker and Smith, 2007): a point outside it is evidence, a point inside it is not. The band is a binomial
quantile at the bin's mean probability; the exact law, a sum of unequal coins, is never wider.

Two kinds of curve need no bins: ``"corp"`` (isotonic regression, :mod:`hcal.evaluation.corp`) and
``"smooth"`` (kernel regression, :mod:`hcal.evaluation.smooth`). Their bands come from events drawn with the
predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik

from hcal.io.class_names import check_classes, encode
from hcal.evaluation.corp import (
    Parts,
    isotonic_band,
    isotonic_parts,
    isotonic_steps,
    pool_probabilities,
)
from hcal.evaluation.smooth import smooth_curve
from hcal.metrics.binned import check_bins
from hcal.metrics.sample import Sample, Vector, as_sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Binning = Literal["equal-width", "equal-mass", "corp", "smooth"]
BINNINGS: tuple[str, ...] = get_args(Binning)


@dataclass(frozen=True)
class ReliabilityCurve:
    """One reliability curve; arrays have shape (bins,), NaN where a bin is empty.

    Attributes
    ----------
    title : str
    edges : array of shape (bins + 1,)
        Bins (lo, hi]; the first one also takes 0.
    weight : array
        Rows (or their weights) in the bin.
    predicted, observed : array
        Mean probability, and frequency of the event.
    low, high : array
        Consistency band of ``observed``.
    error : float
        Σ_b (n_b/N)|predicted − observed|; of a smooth curve, the smooth calibration error.
    binning : {"equal-width", "equal-mass", "corp", "smooth"}
    parts : Parts or None
        Of a CORP curve: the event's Brier score as miscalibration − discrimination + uncertainty.
    """

    title: str
    edges: Vector
    weight: Vector
    predicted: Vector
    observed: Vector
    low: Vector
    high: Vector
    error: float
    binning: Binning = "equal-width"
    parts: Parts | None = None

    @property
    def along(self) -> bool:
        """Whether the band runs along the curve, as there are no bins that somebody chose."""
        return self.binning in ("corp", "smooth")

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Which bins lie outside their consistency band."""
        with np.errstate(invalid="ignore"):
            return (self.observed < self.low) | (self.observed > self.high)


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

    def __str__(self) -> str:
        from hcal.evaluation.diagram_text import diagram_text

        return diagram_text(self)

    __repr__ = __str__

    def __getitem__(self, i: int) -> ReliabilityCurve:
        return self.curves[i]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, ready for JSON (None where a bin is empty).

        Returns
        -------
        dict
        """
        names = ("edges", "weight", "predicted", "observed", "low", "high")
        curves = [
            {"title": c.title, "error": c.error, "binning": c.binning}
            | {n: _plain(getattr(c, n)) for n in names}
            | ({} if c.parts is None else {"parts": vars(c.parts)})
            for c in self.curves
        ]
        return {"level": self.level, "ci": self.ci, "n": self.n, "curves": curves}

    def plot(
        self, ax: Axes | None = None, *, classes: Sequence[int] | None = None, panels: int = 9
    ) -> Axes | Figure:
        """Draw the diagram: frequency against probability, bands in grey, the share of rows below.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw a single curve.
        classes : list of int, optional
            Which curves of a class-wise diagram; by default those with the largest error.
        panels : int
            At most so many classes by default.

        Returns
        -------
        Axes of a single curve, or Figure with one panel a class
        """
        from hcal.evaluation.drawing import draw_curve, draw_panels

        if classes is not None:
            bad = [k for k in classes if not 0 <= k < len(self)]
            if bad:
                raise ValueError(f"classes must lie in 0..{len(self) - 1}, got {bad[0]}")
        if len(self) == 1 or (classes is not None and len(classes) == 1):
            return draw_curve(self.curves[0 if classes is None else classes[0]], self.ci, ax)
        if ax is not None:
            raise ValueError("ax holds one curve: choose one class with classes=[k]")
        if classes is None:
            classes = np.argsort([-c.error for c in self.curves], kind="stable")[:panels].tolist()
        return draw_panels([self.curves[k] for k in classes], self.ci)


def _plain(x: Vector) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in x]


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
    if level not in (None, "top-label", "class-wise", "positive"):
        raise ValueError(f"level must be 'top-label', 'class-wise' or 'positive', got {level!r}")
    if binning not in BINNINGS:
        raise ValueError(f"binning must be one of {', '.join(map(repr, BINNINGS))}, got {binning!r}")
    if not isinstance(resamples, int | np.integer) or resamples < 20:
        raise ValueError(f"resamples must be an integer of at least 20, got {resamples!r}")
    if not 0 < ci < 1:
        raise ValueError(f"ci must be a level between 0 and 1, such as 0.95, got {ci!r}")
    names = None if classes is None else check_classes(classes, len(classes))
    s = as_sample(probs, y if names is None else encode(y, names), sample_weight)
    bins = check_bins(bins)
    if level is None:
        level = "positive" if s.k == 2 else "top-label"
    if not 0 <= positive < s.k:
        raise ValueError(f"positive must be a class of 0..{s.k - 1}, got {positive!r}")
    rng = np.random.default_rng(random_state)

    def curve(title: str, p: Vector, event: Vector) -> ReliabilityCurve:
        if binning in ("corp", "smooth"):
            return (_corp if binning == "corp" else _smooth)(title, p, event, s.w, ci, resamples, rng)
        return _curve(title, p, event, s, bins, binning, ci)

    if level == "top-label":
        curves = [curve("top label", s.data.conf, s.data.hit)]
    else:
        chosen = [positive] if level == "positive" else range(s.k)
        columns = ((k, s.data.probs[:, k].astype(np.float64)) for k in chosen)
        title = [f"class {k}" for k in range(s.k)] if names is None else [f"class {name}" for name in names]
        curves = [curve(title[k], p, (s.y == k).astype(np.float64)) for k, p in columns]
    return Reliability(tuple(curves), level, ci, s.n)


def _corp(
    title: str, p: Vector, event: Vector, w: Vector, ci: float, resamples: int, rng: np.random.Generator
) -> ReliabilityCurve:
    pooled = pool_probabilities(p, event, w)
    steps = isotonic_steps(pooled)
    inner = (pooled.p[steps.first[1:]] + pooled.p[steps.first[1:] - 1]) / 2
    low, high = isotonic_band(pooled, steps.predicted, ci, resamples, rng)
    gap = steps.weight @ np.abs(steps.predicted - steps.observed) / w.sum()
    edges = np.concatenate([[0.0], inner, [1.0]])
    parts = isotonic_parts(pooled)
    return ReliabilityCurve(
        title, edges, steps.weight, steps.predicted, steps.observed, low, high, float(gap), "corp", parts
    )


def _smooth(
    title: str, p: Vector, event: Vector, w: Vector, ci: float, resamples: int, rng: np.random.Generator
) -> ReliabilityCurve:
    found = smooth_curve(p, event, w, ci, resamples, rng)
    edges = np.linspace(0, 1, len(found.weight) + 1)
    at = np.where(np.isnan(found.observed), np.nan, (edges[1:] + edges[:-1]) / 2)
    weight = np.where(np.isnan(at), 0.0, found.weight)
    return ReliabilityCurve(
        title, edges, weight, at, found.observed, found.low, found.high, found.error, "smooth"
    )


def _curve(
    title: str, p: Vector, event: Vector, s: Sample, bins: int, binning: Binning, ci: float
) -> ReliabilityCurve:
    edges = np.linspace(0, 1, bins + 1)
    if binning == "equal-mass":
        edges = np.quantile(p, edges)
        edges[0], edges[-1] = 0.0, 1.0
    which = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, bins - 1)
    w, sum_p, sum_e, square = (
        np.bincount(which, weights=x, minlength=bins).astype(np.float64, copy=False)
        for x in (s.w, s.w * p, s.w * event, s.w**2)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        predicted, observed, size = sum_p / w, sum_e / w, w**2 / square
    low, high = consistency_band(predicted, size, ci)
    gap = np.nansum(np.abs(sum_p - sum_e)) / s.total
    return ReliabilityCurve(title, edges, w, predicted, observed, low, high, float(gap), binning)


def consistency_band(p: Vector, n: Vector, level: float) -> tuple[Vector, Vector]:
    """Return where the frequency of n events of probability p lies with at least the given probability.

    Shapes: p, n, low, high (bins,), NaN where a bin is empty.

    >>> consistency_band(np.array([0.5]), np.array([100.0]), 0.95)
    (array([0.4]), array([0.6]))
    """
    safe = np.clip(np.nan_to_num(p, nan=0.5), 1e-300, 1 - 1e-16)
    size = np.maximum(np.nan_to_num(n, nan=1.0), 1.0)
    ends = []
    for q in ((1 - level) / 2, (1 + level) / 2):
        # The smallest number of events whose binomial distribution function reaches q.
        count = np.clip(np.ceil(np.nan_to_num(bdtrik(q, size, safe), nan=0.0) - 1e-9), 0, size)
        ends.append(np.where(np.isnan(p), np.nan, count / size))
    # Certain events (p = 0 or 1) have no spread.
    certain = (p <= 0) | (p >= 1)
    return np.where(certain, p, ends[0]), np.where(certain, p, ends[1])
