"""The answer of ``hcal.certify``: sentences first, then the table, then everything for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.certificates import sentences
from hcal.certificates.bounds import Gain
from hcal.certificates.event import EventCertificate, Refutation, class_tolerance
from hcal.extras import pyplot
from hcal.io.class_names import class_title
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray
from hcal.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ClassCertificates:
    """What is proven about every class's own probability, all classes at once.

    Attributes
    ----------
    classes : array of shape (C,)
        The classes certified; the positive one alone where there are two.
    frequency, stated : array of shape (C,)
        How often the class occurs, and what is stated on average.
    low, high : array of shape (C,)
        Interval of stated − true mean probability.
    bound : array of shape (C,)
        Upper bounds on the smooth calibration errors.
    at_least : array of shape (C,)
        How far off some window is proven to be.
    exact_refuted : array of shape (C,)
    refutations : dict of Refutation
        By class, for those with one.
    kept : dict of EventCertificate
        The full certificates of the classes that are furthest off.
    names : sequence of K str or int, or None
        Of all classes, by their number.
    """

    classes: IntArray
    frequency: Vector
    stated: Vector
    low: Vector
    high: Vector
    bound: Vector
    at_least: Vector
    exact_refuted: Vector
    refutations: dict[int, Refutation]
    kept: dict[int, EventCertificate]
    names: Sequence[str | int] | None = None

    def title(self, k: int) -> str:
        """Return what sentences call a class: by its name, or by its number."""
        return printable(class_title(k, self.names))

    @property
    def worst(self) -> int:
        """The class with the largest bound on its smooth calibration error."""
        return int(self.classes[self.bound.argmax()])

    def to_dict(self) -> dict[str, Any]:
        """Return one plain dictionary of lists, classes in their order."""
        columns = ("classes", "frequency", "stated", "low", "high", "bound", "at_least")
        return {
            **{name: getattr(self, name).tolist() for name in columns},
            "names": None if self.names is None else [self.names[k] for k in self.classes.tolist()],
            "exactly_calibrated_refuted": self.exact_refuted.astype(bool).tolist(),
            "refuted": {str(k): vars(r) for k, r in self.refutations.items()},
            "worst_class": self.worst,
            "smooth_at_most": float(self.bound.max()),
            "mean_smooth_at_most": float(self.bound.mean()),
        }


@dataclass(frozen=True)
class Certificate:
    """What n fresh rows prove about a fixed predictor. ``print`` it, ``plot`` it, or take ``to_dict()``.

    Attributes
    ----------
    level : float
        All statements hold together with at least this probability over the labels.
    n, k : int
        Rows and classes.
    events : dict of EventCertificate
        The top label, and any class or subset asked for, by name.
    classes : ClassCertificates or None
        Every class's own probability.
    gain : Gain or None
        Over the baseline.
    groups : tuple of EventCertificate
        Worst first.
    tolerance : float
        What counts as close enough; see :attr:`limit`.
    basis : str
        Where the rows come from, as far as it is known, and what is assumed: the first sentence.
    refused : tuple of str
        What cannot be certified, and why.

    Examples
    --------
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([1, 1, 1], size=5000)
    >>> y = (p.cumsum(1) > rng.random((5000, 1))).argmax(1)
    >>> certificate = hcal.certify(p, y)
    >>> certificate.refuted, certificate.smooth < 0.1
    (False, True)
    """

    level: float
    n: int
    k: int
    events: dict[str, EventCertificate]
    classes: ClassCertificates | None
    gain: Gain | None
    groups: tuple[EventCertificate, ...]
    tolerance: float
    basis: str
    refused: tuple[str, ...]

    @property
    def top(self) -> EventCertificate | None:
        """The certificate of the top label, where it was asked for."""
        return self.events.get("top label")

    @property
    def _kept(self) -> list[EventCertificate]:
        return [] if self.classes is None else list(self.classes.kept.values())

    @property
    def headline(self) -> EventCertificate:
        """The event that is spoken of first: P(positive) of two classes, else the top label."""
        if self._kept and (self.k == 2 or not self.events):
            return self._kept[0]
        return self.top or next(iter(self.events.values()))

    @property
    def limit(self) -> float:
        """Tolerance of the headline: of two classes that of the positive one, 1.9 points at 4 % positives."""
        if self.k > 2:
            return self.tolerance
        return float(class_tolerance(np.array(self.headline.observed), self.tolerance))

    @property
    def estimate(self) -> float:
        """Estimated mean absolute difference of probability and truth, less what noise adds; not a proof."""
        return self.headline.estimate

    @property
    def bound(self) -> float:
        """Proven: the headline's smooth calibration error is at most this."""
        return self.headline.bound

    @property
    def share_far(self) -> float:
        """Estimated share of rows whose probability is off by more than 5 points; not a proof."""
        return self.headline.share_far

    @property
    def _families(self) -> list[EventCertificate | ClassCertificates]:
        return [*self.events.values(), *([] if self.classes is None else [self.classes])]

    @property
    def smooth(self) -> float:
        """The largest certified bound on a smooth calibration error, over all events and classes."""
        return max(float(np.max(family.bound)) for family in self._families)

    @property
    def at_least(self) -> float:
        """h-calibration to within any h below this is refuted, for some event; 0 where nothing is."""
        return max(float(np.max(family.at_least)) for family in self._families)

    @property
    def refuted(self) -> bool:
        """Whether exact calibration is refuted for some event."""
        return any(bool(np.any(family.exact_refuted)) for family in self._families)

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.all_sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        plain = ("level", "n", "k", "sentences", "estimate", "bound", "share_far", "at_least")
        return {
            **{name: getattr(self, name) for name in plain},
            "headline": self.headline.name,
            "tolerance": self.limit,
            "smooth_at_most": self.smooth,
            "exactly_calibrated_refuted": self.refuted,
            "events": {name: e.to_dict() for name, e in self.events.items()},
            "classes": None if self.classes is None else self.classes.to_dict(),
            "gain": None if self.gain is None else vars(self.gain),
            "groups": [g.group_row() for g in self.groups],
            "refused": list(self.refused),
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def plot(self, event: str | None = None) -> Figure:
        """Draw the cumulative curve with its simultaneous band, and the window intervals.

        Parameters
        ----------
        event : str, optional
            ``"top label"`` or another name of ``events``, or ``"class k"``; the headline by default.
        """
        known = {e.name: e for e in [*self.events.values(), *self._kept]}
        if event is not None and event not in known:
            raise ValueError(f"no certificate of {event!r} is kept; there are {', '.join(known)}")
        return _draw(self.headline if event is None else known[event], self.level)

    def __str__(self) -> str:
        return "\n".join([*self.sentences, "", *sentences.table_lines(self)])

    __repr__ = __str__


@dataclass(frozen=True)
class OutOfFoldCertificate:
    """What is proven about the out-of-fold predictions of a method.

    Every row's probability comes from a fit without the row's fold. The statements are averages over folds of
    what is proven about each fold's fit; they are about fits on a part of the rows, not on all of them.

    Attributes
    ----------
    level : float
    folds : tuple of Certificate
        Of every fold's predictions, each with its share of the failure.
    pooled : Certificate
        Of all out-of-fold predictions as if they came from one predictor. Only its estimates are used: it is
        no proof, because predictions of one fold depend on the labels of the others.
    """

    level: float
    folds: tuple[Certificate, ...]
    pooled: Certificate

    @property
    def n(self) -> int:
        """Rows."""
        return self.pooled.n

    @property
    def overall(self) -> tuple[float, float]:
        """Interval of mean probability − true rate."""
        low, high = np.array([f.headline.overall for f in self.folds]).T
        return self._mean(low), self._mean(high)

    @property
    def bound(self) -> float:
        """Proven: the smooth calibration error of the out-of-fold predictions is at most this."""
        return self._mean([f.bound for f in self.folds])

    @property
    def estimate(self) -> float:
        """Estimated mean absolute difference of probability and truth; not a proof."""
        return self.pooled.estimate

    @property
    def share_far(self) -> float:
        """Estimated share of rows whose probability is off by more than 5 points; not a proof."""
        return self.pooled.share_far

    @property
    def refuted(self) -> bool:
        """Whether some fold's fit is proven not to be exactly calibrated."""
        return any(f.refuted for f in self.folds)

    def _mean(self, values: Any) -> float:
        return float(np.average(values, weights=[f.n for f in self.folds]))

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.out_of_fold_sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        plain = ("level", "n", "sentences", "overall", "estimate", "bound", "share_far", "refuted")
        told = {name: getattr(self, name) for name in plain}
        return told | {"k": self.pooled.k, "folds": [f.to_dict() for f in self.folds]}

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    __repr__ = __str__


def _draw(event: EventCertificate, level: float) -> Figure:
    """Draw the cumulative curve with its band, and below it the gap of every window with its interval."""
    figure: Figure
    figure, (top, bottom) = pyplot().subplots(2, 1, figsize=(7.2, 7.0), layout="constrained", sharex=True)
    band, w = event.band, event.windows
    top.fill_between(band.at, band.low, band.high, step="post", color="C0", alpha=0.18, label="the truth")
    top.step(band.at, band.estimate, where="post", color="C0", label="observed")
    top.set(xlim=(0, 1), ylabel="cumulated gap", title="rising: stated too high; falling: too low")
    top.legend(frameon=False)
    for i in np.flatnonzero((w.aligned > 0) & (w.level >= 0)):
        ends = [event.table.low[w.first[i]], event.table.high[w.last[i] - 1] + 0.002]
        colour = "C3" if w.at_least[i] > 0 else "C7"
        bottom.fill_between(ends, w.gap_low[i], w.gap_high[i], color=colour, alpha=0.2, linewidth=0)
        bottom.plot(ends, [w.stated[i] - w.observed[i]] * 2, color=colour)
    words = {"xlabel": "stated probability", "ylabel": "stated − true, each window"}
    bottom.set(title="red: proven to be off", **words)
    for ax in (top, bottom):
        ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    told = f"at most {100 * event.bound:.1f} points off ({level:.0%})"
    figure.suptitle(f"{event.name}, {event.n:,} rows: {told}")
    return figure
