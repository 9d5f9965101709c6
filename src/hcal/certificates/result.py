"""The answer of ``hcal.certify``: sentences first, then the table, then everything for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.certificates import sentences
from hcal.certificates.bounds import Gain, large_deviation_reach, markov_reach
from hcal.certificates.classes import ClassCertificates, certify_classes, certify_groups, class_tolerance
from hcal.certificates.event import EventCertificate, certify_event, part_name
from hcal.certificates.windows import EventTable
from hcal.extras import pyplot
from hcal.numerics import IntArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from hcal.leakage import Overlap

#: What counts as close enough: five points of probability.
TOLERANCE = 0.05
#: First line of a certificate of probabilities, which do not tell where they come from.
ASSUMED = "Assumed: none of these rows was used to fit the predictor, and rows are independent of each other."
REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the whole vector: "
    "each prediction is seen once, so no number of rows bounds them without assumptions (Gupta, Podkopaev "
    'and Ramdas, 2020); assume="monotone" gives a bound on the first',
)
NLL_REFUSED = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"


def found_rows(overlap: Overlap | None) -> str:
    """Return the first line of a certificate of a calibrator: what is known of the rows it was fitted on."""
    if overlap is None:
        return ASSUMED
    told = overlap.sentence or "None of these rows was used to fit the calibrator."
    return f"{told} Assumed: rows are independent of each other."


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
    notes : tuple of str

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
    classes: ClassCertificates | None = None
    gain: Gain | None = None
    groups: tuple[EventCertificate, ...] = ()
    tolerance: float = TOLERANCE
    basis: str = ASSUMED
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

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
    def smooth(self) -> float:
        """The largest certified bound on a smooth calibration error, over all events and classes."""
        bounds = [e.bound for e in self.events.values()]
        return max(bounds + ([] if self.classes is None else [float(self.classes.smooth.max())]))

    @property
    def at_least(self) -> float:
        """h-calibration to within any h below this is refuted, for some event; 0 where nothing is."""
        found = [e.at_least for e in self.events.values()]
        return max(found + ([] if self.classes is None else [float(self.classes.at_least.max())]))

    @property
    def refuted(self) -> bool:
        """Whether exact calibration is refuted for some event."""
        some = any(e.exact_refuted for e in self.events.values())
        return some or (self.classes is not None and bool(self.classes.exact_refuted.any()))

    def rows_needed(self, bound: float) -> int | None:
        """Return about how many rows would prove every event's smooth error to be at most ``bound``.

        Returns
        -------
        int, or None where it takes more than a million rows
        """
        found = [e.rows_needed(bound) for e in [*self.events.values(), *self._kept]]
        return None if any(f is None for f in found) else max(f for f in found if f is not None)

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.all_sentences(self)

    # -- for machines -----------------------------------------------------------------------------

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
            "paper": self.paper(),
            "refused": list(self.refused),
            "notes": list(self.notes),
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def paper(self) -> list[dict[str, float | str]]:
        """Return ours beside the paper's bounds at the same failure: half widths at every resolution."""
        event = next(iter(self.events.values()), None)
        if event is None:
            return []
        rows: list[dict[str, float | str]] = []
        w = event.windows
        for level in w.levels:
            here = w.level == level
            m = float(w.rows[here].mean())
            ours = float((np.maximum(w.high - w.observed, w.observed - w.low))[here].mean())
            middle = float(w.observed[here].mean())
            rows.append({"resolution": part_name(level), "rows": m, "ours": ours,
                         "markov": markov_reach(m, event.failure),
                         "large_deviation": large_deviation_reach(middle, m, event.failure)})  # fmt: skip
        return rows

    # -- for people -------------------------------------------------------------------------------

    def plot(self, event: str | None = None) -> Figure:
        """Draw the cumulative curve with its simultaneous band, and the window intervals.

        Parameters
        ----------
        event : str, optional
            ``"top label"`` or another name of ``events``, or ``"class k"``; the first one by default.
        """
        return _draw(self._event(event), self.level)

    def _event(self, name: str | None) -> EventCertificate:
        known = {e.name: e for e in [*self.events.values(), *self._kept]}
        if name is None:
            return self.headline
        if name not in known:
            raise ValueError(f"no certificate of {name!r} is kept; there are {', '.join(known)}")
        return known[name]

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title_justify="left", box=None, pad_edge=False)
        rows = sentences.table(self)
        for i, column in enumerate(rows[0]):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows[1:]:
            table.add_row(*row)
        return Group(*(Text(line) for line in self.sentences), Text(""), table)

    def __str__(self) -> str:
        import io

        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=110, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())

    __repr__ = __str__


def checked_classes(k: int, positive: int) -> IntArray:
    """Return the classes whose probabilities are certified: all of them, or of two the positive one."""
    return np.arange(k) if k > 2 else np.array([positive])


def certify_tables(
    events: dict[str, EventTable],
    classes: IntArray | None,
    class_table: Callable[[int], EventTable],
    groups: dict[str, EventTable],
    *,
    share: float,
    assume: str | None,
    names: Sequence[str | int] | None,
    tolerance: float,
    **about: Any,
) -> Certificate:
    """Certify events, classes and groups from their tables, each family with its share of the failure.

    ``about`` are the other fields of the certificate.
    """
    every = None
    if classes is not None:
        every = certify_classes(class_table, classes, share, tolerance=tolerance, assume=assume, names=names)
    return Certificate(
        events={name: certify_event(name, t, failure=share, assume=assume) for name, t in events.items()},
        classes=every,
        groups=certify_groups(groups, share),
        tolerance=tolerance,
        **about,
    )


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
    top.fill_between(
        band.at, band.low, band.high, step="post", color="#2166ac", alpha=0.18, label="the truth"
    )
    top.step(band.at, band.estimate, where="post", color="#2166ac", label="observed")
    top.set(xlim=(0, 1), ylabel="cumulated gap", title="rising: stated too high; falling: too low")
    top.legend(frameon=False)
    for i in np.flatnonzero((w.aligned > 0) & (w.level >= 0)):
        ends = [event.table.low[w.first[i]], event.table.high[w.last[i] - 1] + 0.002]
        colour = "#b2182b" if w.at_least[i] > 0 else "#8c8c8c"
        bottom.fill_between(ends, w.gap_low[i], w.gap_high[i], color=colour, alpha=0.2, linewidth=0)
        bottom.plot(ends, [w.stated[i] - w.observed[i]] * 2, color=colour)
    bottom.set(
        xlabel="stated probability", ylabel="stated − true, each window", title="red: proven to be off"
    )
    for ax in (top, bottom):
        ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    figure.suptitle(
        f"{event.name}, {event.n:,} rows: at most {100 * event.bound:.1f} points off ({level:.0%})"
    )
    return figure
