"""``hcal.reliability``: reliability diagrams of the positive class, the top label or every class.

One picture holds the curves of one model, of several models or of the segments of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np

from hcal.class_names import ClassName, number_of_class
from hcal.evaluation import drawing
from hcal.evaluation.axes import Axis, probability_axis
from hcal.evaluation.curves import (
    BINNINGS,
    HISTOGRAM_CELLS,
    Binning,
    CurveOptions,
    JudgedEvent,
    ReliabilityCurve,
    curve_of,
    judged_event,
)
from hcal.extras import pyplot
from hcal.frames import AnyArray, ColumnName, refuse_other_index, to_numpy
from hcal.inputs import check_confidence
from hcal.metrics.binned import check_bins
from hcal.metrics.sample import Sample, Vector, as_sample, check_integer
from hcal.numerics import IntArray, is_ragged
from hcal.renamed import renamed
from hcal.results import Result
from hcal.row_segments import Segments
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

#: How many curves are printed, how many panels and how many curves of one panel are drawn.
_PRINTED: Final = 5
_PANELS: Final = 9
_TOGETHER: Final = len(drawing.COLOURS)
#: The width of a printed bar in characters.
_WIDTH: Final = 30
#: Bins with a smaller share of the rows do not stretch an axis.
_SHARE_ON_AXIS: Final = 0.005

DiagramLevel = Literal["top-label", "class-wise", "positive"]


@dataclass(frozen=True, repr=False)
class Reliability(Result):
    """Reliability curves: of one predictor or several, of all rows or of segments, or of every class.

    Attributes
    ----------
    curves : tuple of ReliabilityCurve
        ``diagram[0]``, or ``diagram["label"]``.
    level : {"top-label", "class-wise", "positive"}
    confidence : float
    n : int
        Rows.
    axis : Axis
        An axis that suits the probabilities: zoomed in, or logarithmic, where positives are rare.
    shares : array of shape (curves, cells)
        The share of each curve's rows in cells of equal width on the axis.

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
    axis: Axis = field(default_factory=Axis)
    shares: Vector = field(default_factory=lambda: np.zeros((0, HISTOGRAM_CELLS)))

    def __len__(self) -> int:
        return len(self.curves)

    def __getitem__(self, i: int | str) -> ReliabilityCurve:
        if isinstance(i, str):
            return self._labelled(i)
        try:
            return self.curves[i]
        except IndexError:
            last = f"{len(self) - 1}, of the {self.curves[-1].title}"
            raise IndexError(
                f"this diagram has no curve {i}: its last curve is {last}; level='class-wise' has "
                "one curve a class"
            ) from None

    def _labelled(self, label: str) -> ReliabilityCurve:
        by_label = {curve.label: curve for curve in self.curves}
        if label not in by_label:
            raise KeyError(f"{label!r} is no curve of this diagram; it has {', '.join(by_label)}")
        return by_label[label]

    def __str__(self) -> str:
        digits = 3 if self.axis.high > 0.2 and not self.axis.log else 5
        parts = [_text(self.curves[i], digits) for i in self._worst(_PRINTED)]
        if len(self) > len(parts):
            kind = "classes" if self.level == "class-wise" else "curves"
            parts.append(f"… and {len(self) - len(parts)} {kind} with smaller errors")
        head = f"Reliability of {self.n:,} rows ({self.level})"
        key = f"* outside the {self.confidence:.0%} band"
        return "\n\n".join([f"{head}; {key}", *parts])

    def _headline(self) -> list[str]:
        worst = [self.curves[i] for i in self._worst(_PRINTED)]
        errors = ", ".join(f"{curve.label} {curve.error_words}" for curve in worst)
        return [f"Reliability of {self.n:,} rows ({self.level}); errors: {errors}"]

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each bin with rows, curve by curve."""
        return [record for curve in self.curves for record in curve.to_records()]

    # -- pictures ---------------------------------------------------------------------------------

    def _draw(self, figure: Figure) -> bool:
        if self.level == "class-wise":
            self._draw_panels(figure, self._worst(_PANELS))
            return True
        figure.set_size_inches(4.8, 5.4)
        self._draw_together(figure.add_subplot(), self._first_curves(), None)
        return True

    def plot(
        self,
        ax: Axes | None = None,
        *,
        classes: Sequence[int] | None = None,
        curves: Sequence[str] | None = None,
        title: str | None = None,
        colors: Sequence[ColorType] | None = None,
        legend: bool = True,
    ) -> Axes | Figure:
        """Draw observed frequency against predicted probability, with the share of rows below.

        A single curve has its consistency band, and several have the confidence interval of each point. The axes show
        the part of [0, 1] where the probabilities are; what lies outside is drawn at the edge.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; of a class-wise diagram a single class.
        classes : list of int, optional
            Which curves of a class-wise diagram; by default the nine with the largest error.
        curves : list of str, optional
            The labels of the models or segments to draw; by default the first seven.
        title : str, optional
        colors : list of matplotlib colours, optional
            One a curve; by default colours that colour-blind readers can tell apart.
        legend : bool

        Returns
        -------
        Axes, or Figure with one panel a class
        """
        if self.level == "class-wise":
            return self._plot_classes(ax, classes, title)
        if classes is not None:
            raise ValueError("classes chooses panels of level='class-wise'; name curves= instead")
        if ax is None:
            ax = pyplot().subplots(figsize=(4.8, 5.4), layout="constrained")[1]
        chosen = self._first_curves() if curves is None else [self._place_of(c) for c in curves]
        self._draw_together(ax, chosen, title, colors=colors, legend=legend)
        return ax

    def _place_of(self, label: str) -> int:
        self._labelled(label)
        return [curve.label for curve in self.curves].index(label)

    def _first_curves(self) -> list[int]:
        return list(range(min(len(self), _TOGETHER)))

    def _draw_together(
        self,
        ax: Axes,
        chosen: Sequence[int],
        title: str | None,
        *,
        colors: Sequence[ColorType] | None = None,
        legend: bool = True,
    ) -> None:
        """Draw curves in one panel, with the share of their rows below."""
        palette = drawing.colours_on(ax) if colors is None else list(colors)
        if len(palette) < len(chosen):
            raise ValueError(f"colors has {len(palette)} entries for {len(chosen)} curves")
        panel = drawing.Panel(ax, self.axis, self.confidence)
        panel.prepare()
        if len(chosen) == 1:
            curve = self.curves[chosen[0]]
            panel.draw_alone(curve, palette[0])
            title = f"{curve.label}: error {curve.error_words}" if title is None else title
        else:
            for k, colour in zip(chosen, palette, strict=False):
                panel.draw_beside(self.curves[k], colour)
        if len(chosen) == _TOGETHER < len(self) and self.level != "class-wise":
            panel.note(f"{_TOGETHER} of {len(self)}; curves= chooses others")
        panel.draw_shares([self.shares[k] for k in chosen], palette)
        panel.finish(title, legend=legend)

    def _plot_classes(
        self, ax: Axes | None, classes: Sequence[int] | None, title: str | None
    ) -> Axes | Figure:
        if classes is None:
            classes = self._worst(_PANELS)
        if bad := [k for k in classes if not 0 <= k < len(self)]:
            raise ValueError(f"classes must lie in 0..{len(self) - 1}, got {bad[0]}")
        if len(classes) == 1:
            if ax is None:
                ax = pyplot().subplots(figsize=(4.8, 5.4), layout="constrained")[1]
            self._draw_together(ax, classes, title)
            return ax
        if ax is not None:
            raise ValueError("ax holds one curve: choose one class with classes=[k]")
        figure: Figure = pyplot().figure(layout="constrained")
        self._draw_panels(figure, classes)
        if title is not None:
            figure.suptitle(title)
        return figure

    def _draw_panels(self, figure: Figure, classes: Sequence[int]) -> None:
        columns = int(np.ceil(np.sqrt(len(classes))))
        rows = int(np.ceil(len(classes) / columns))
        figure.set_size_inches(3.2 * columns, 3.7 * rows)
        for position, k in enumerate(classes, start=1):
            panel: Axes = figure.add_subplot(rows, columns, position)
            self._draw_together(panel, [k], None, legend=position == 1)

    def _worst(self, count: int) -> list[int]:
        errors = [-curve.error for curve in self.curves]
        return [int(k) for k in np.argsort(errors, kind="stable")[:count]]


@renamed(ci="confidence")
def reliability(  # noqa: PLR0913 - a public door
    probs: AnyArray,
    y: AnyArray = None,
    *,
    level: DiagramLevel | None = None,
    by: AnyArray = None,
    groups: AnyArray = None,
    bins: int = 15,
    binning: Binning = "equal-width",
    confidence: float = 0.95,
    sample_weight: AnyArray = None,
    positive: int | str | None = None,
    classes: Iterable[ClassName] | None = None,
    resamples: int = 200,
    random_state: int = 0,
) -> Reliability:
    """Return the reliability diagram of the predicted class, the positive class or every class, as data.

    Parameters
    ----------
    probs : array-like of shape (N, K), or dict of them
        A dict names several models, whose curves are drawn in one picture.
    y : array-like of shape (N,)
    level : {"top-label", "class-wise", "positive"}, optional
        By default ``"positive"`` with two classes, ``"top-label"`` with more.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row (a country, a tenant): one curve a segment, in the order of their names.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a user): bands and intervals are widened for it.
    bins : int
        The number of equal-width or equal-mass bins.
    binning : {"equal-width", "equal-mass", "corp", "smooth"}
        ``"corp"``: the steps of an isotonic regression are the bins. ``"smooth"``: a kernel regression with the
        bandwidth of smooth ECE.
    confidence : float
        Confidence of the consistency bands, and of the intervals of bins.
    sample_weight : array-like of shape (N,), optional
    positive : int or str, optional
        The class of the level ``"positive"``, by its number or name; the second by default.
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
    >>> models = {"first": [0.2, 0.9], "second": [0.4, 0.6]}
    >>> [curve.label for curve in reliability(models, [0, 1], bins=2).curves]
    ['first', 'second']
    """
    if binning not in BINNINGS:
        raise ValueError(
            f"binning must be one of {', '.join(map(repr, BINNINGS))}, got {binning!r}"
        )
    check_integer("resamples", resamples, 20)
    options = CurveOptions(binning, check_bins(bins), check_confidence(confidence), resamples)
    info = {"weight": sample_weight, "groups": groups, "by": by, "classes": classes}
    models = dict(probs) if isinstance(probs, Mapping) else {"": probs}
    if not models:
        raise ValueError("probs is empty: name at least one model")
    inputs = _inputs(models, y, info)
    first = inputs[0].sample
    level = _checked_level(level, first, several=len(inputs) > 1 or by is not None)
    number = number_of_class(positive, inputs[0].titles, first.k)

    columns: dict[str, Sequence[int | None]] = {
        "top-label": [None],
        "positive": [number],
        "class-wise": range(first.k),
    }
    rng = np.random.default_rng(random_state)
    events = [event for source in inputs for event in source.events(columns[level])]
    curves = tuple(curve_of(event, options, rng) for event in events)
    axis = _axis_of(events, curves)
    shares = np.array([_shares(event, axis) for event in events])
    return Reliability(curves, level, options.confidence, first.n, axis, shares)


def _checked_level(level: DiagramLevel | None, s: Sample, *, several: bool) -> DiagramLevel:
    if level is None:
        return "positive" if s.k == 2 else "top-label"
    if level not in ("top-label", "class-wise", "positive"):
        raise ValueError(f"level must be 'top-label', 'class-wise' or 'positive', got {level!r}")
    if level == "class-wise" and several:
        raise ValueError(
            "several models or segments are drawn in one panel: choose one class with "
            "level='positive', positive=k"
        )
    return level


def _inputs(
    models: Mapping[str, object], y: AnyArray, info: Mapping[str, AnyArray]
) -> list[_Input]:
    """Return the checked rows of every model, which must be the same rows with the same classes."""
    scores = list(models.values())
    others = {f"the model {name!r}": values for name, values in list(models.items())[1:]}
    refuse_other_index(scores[0], {**others, "y": y, **info})
    inputs = list[_Input]()
    for name, values in models.items():
        first = inputs[0].rows if inputs else None
        inputs.append(_Input.of(str(name), values, y, info, like=first))
    return inputs


@dataclass(frozen=True)
class _Input:
    """The checked rows of one model."""

    model: str
    sample: Sample
    groups: IntArray | None = None
    rows: Rows | None = None

    @classmethod
    def of(
        cls,
        model: str,
        probs: AnyArray,
        y: AnyArray,
        info: Mapping[str, AnyArray],
        like: Rows | None = None,
    ) -> _Input:
        """Check the rows of a model; named columns are put in the order of those of another model."""
        if isinstance(probs, Sample):
            sample = as_sample(probs, y, info["weight"])
            return cls(model, sample, groups=info["groups"])
        like = like if like is not None and _has_columns_of(probs, like) else None
        rows = Rows.of_predictions(probs, y, input="probs", like=like, **info)
        sample = as_sample(rows.scores, rows.y, info["weight"])
        return cls(model, sample, rows.groups, rows)

    @property
    def by(self) -> Segments | None:
        """The segment of each row."""
        return None if self.rows is None else self.rows.by

    @property
    def names(self) -> ClassNames | None:
        """The names of the classes."""
        return None if self.rows is None else self.rows.names

    @property
    def titles(self) -> Sequence[ColumnName] | None:
        """What the classes, or the columns, are called."""
        return None if self.rows is None else self.rows.names or self.rows.columns

    def events(self, columns: Sequence[int | None]) -> Iterator[JudgedEvent]:
        """Yield the event of every column (None: the top label), in every segment."""
        for column in columns:
            event = judged_event(
                self.sample, column, names=self.names, groups=self.groups, model=self.model
            )
            if self.by is None:
                yield event
                continue
            for code, segment in enumerate(self.by.names):
                yield _of_rows(event, self.by.rows_of(code), segment)


def _has_columns_of(probs: AnyArray, other: Rows) -> bool:
    """Return whether a frame has the columns of other rows, perhaps in another order."""
    columns = to_numpy(probs, "probs")[1].columns if not is_ragged(probs) else None
    return None not in (columns, other.columns) and set(columns or ()) == set(other.columns or ())


def _of_rows(event: JudgedEvent, rows: IntArray, segment: str) -> JudgedEvent:
    """Return an event in the rows of one segment."""
    return replace(
        event,
        p=event.p[rows],
        happened=event.happened[rows],
        weight=event.weight[rows],
        groups=None if event.groups is None else event.groups[rows],
        segment=segment,
    )


def _axis_of(events: Sequence[JudgedEvent], curves: Sequence[ReliabilityCurve]) -> Axis:
    """Return an axis that suits the probabilities of all curves, and the frequencies of bins with enough rows."""
    observed = []
    for curve in curves:
        enough = curve.weight > _SHARE_ON_AXIS * curve.weight.sum()
        observed.append(curve.observed[enough])
    return probability_axis(*(event.p for event in events), observed=np.concatenate(observed))


def _shares(event: JudgedEvent, axis: Axis) -> Vector:
    """Return the share of the rows in cells of equal width on an axis; what lies outside is in the end cells."""
    place = np.floor(axis.place(event.p) * HISTOGRAM_CELLS).astype(np.int64)
    place = np.minimum(place, HISTOGRAM_CELLS - 1)
    rows = np.bincount(place, event.weight, HISTOGRAM_CELLS)
    return np.asarray(rows / event.weight.sum())


def _text(curve: ReliabilityCurve, digits: int) -> str:
    """Return a line for every bin with rows: probability, frequency, band, and a bar with a mark at the probability."""
    width = digits + 4
    heads = (
        f"{'probability':<{2 * width - 2}}",
        f"{'stated':>{width}}",
        f"{'happened':>{width + 2}}",
    )
    lines = [
        f"{curve.label}: error {curve.error_words}",
        f"{' '.join(heads)}  {'if calibrated':>{2 * width}} {'rows':>9}",
    ]
    for b in np.flatnonzero(curve.full):
        mark = "*" if curve.outside[b] else " "
        edges = f"{curve.edges[b]:.{digits}f}–{curve.edges[b + 1]:.{digits}f}"
        band = f"{curve.low[b]:.{digits}f}–{curve.high[b]:.{digits}f}"
        stated = f"{curve.predicted[b]:>{width}.{digits}f}"
        happened = f"{curve.observed[b]:>{width + 1}.{digits}f}{mark}"
        rows = f"{band:>{2 * width}} {curve.weight[b]:>9,.0f}"
        lines.append(f"{edges}  {stated} {happened}  {rows}  {_bar(curve, int(b))}")
    return "\n".join(lines)


def _bar(curve: ReliabilityCurve, b: int) -> str:
    length = round(curve.observed[b] * _WIDTH)
    cells = ["█" if i < length else " " for i in range(_WIDTH + 1)]
    cells[round(curve.predicted[b] * _WIDTH)] = "│"
    return "".join(cells).rstrip()
