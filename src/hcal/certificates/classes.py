"""Every class at once: the certificate of one class, K times, each with its share of the failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.certificates.event import EventCertificate, Refutation, certify_event
from hcal.certificates.table import BINS, EventTable, bin_of, table_of_bins, table_of_rows
from hcal.io.class_names import class_title
from hcal.metrics.sample import BLOCK, Data, Vector
from hcal.runtime.jit import compiled
from hcal.numerics import FloatArray, IntArray

#: Up to this many probabilities every class is sorted exactly; beyond it fine bins stand in.
EXACT_ENTRIES = 1 << 25
#: Classes, those furthest off, whose full certificates are kept.
KEPT = 16


@dataclass(frozen=True)
class ClassCertificates:
    """What is proven about every class's own probability, all classes at once.

    Attributes
    ----------
    classes : array of shape (C,)
        The classes certified; class 1 alone where there are two.
    frequency, stated : array of shape (C,)
        How often the class occurs, and what is stated on average.
    low, high : array of shape (C,)
        Interval of stated − true mean probability.
    smooth : array of shape (C,)
        Upper bounds on the smooth calibration errors.
    reach : array of shape (C,)
        Half width of the cumulative curves' bands.
    at_least : array of shape (C,)
        How far off some window is proven to be.
    exact_refuted : array of shape (C,)
    needed : int or None
        Rows that would certify the class furthest from its tolerance within it; 0 where all are certified
        already, None where no number of rows would.
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
    smooth: Vector
    reach: Vector
    at_least: Vector
    exact_refuted: Vector
    refutations: dict[int, Refutation]
    kept: dict[int, EventCertificate]
    needed: int | None
    names: Sequence[str | int] | None = None

    def title(self, k: int) -> str:
        """Return what sentences call a class: by its name, or by its number."""
        return class_title(k, self.names)

    @property
    def worst(self) -> int:
        """The class with the largest bound on its smooth calibration error."""
        return int(self.classes[self.smooth.argmax()])

    def direction(self, k: int) -> str:
        """Return the direction in which a class is proven wrong: over, under, or an empty string."""
        found = self.refutations.get(k)
        return "" if found is None else found.direction

    def to_dict(self) -> dict[str, Any]:
        """Return one plain dictionary of lists, classes in their order."""
        names = ("frequency", "stated", "low", "high", "smooth", "reach", "at_least")
        columns: dict[str, Any] = {name: getattr(self, name).tolist() for name in names}
        return {
            "classes": self.classes.tolist(),
            "names": None if self.names is None else [self.names[k] for k in self.classes.tolist()],
            **columns,
            "exactly_calibrated_refuted": self.exact_refuted.astype(bool).tolist(),
            "refuted": {str(k): vars(r) for k, r in self.refutations.items()},
            "worst_class": self.worst,
            "smooth_at_most": float(self.smooth.max()),
            "mean_smooth_at_most": float(self.smooth.mean()),
        }


def class_tolerance(frequency: Vector, tolerance: float) -> Vector:
    """Return the tolerance of a class in proportion to the spread of its own label: 2·√(π(1 − π))·tolerance.

    At a frequency π of one half it is the tolerance itself, at 1 % a fifth of it: an error that would be
    small for a common class may be all there is to say about a rare one.

    Examples
    --------
    >>> class_tolerance(np.array([0.5, 0.01]), 0.05).round(3)
    array([0.05, 0.01])
    """
    # No row of a class tells no more than that it is rarer than about one in so many rows.
    spread = np.sqrt(np.maximum(frequency * (1 - frequency), 1e-6))
    return np.asarray(2 * spread * tolerance)


def certify_classes(
    tables: Iterable[EventTable],
    classes: IntArray,
    failure: float,
    *,
    tolerance: float,
    assume: str | None = None,
    names: Sequence[str | int] | None = None,
) -> ClassCertificates:
    """Certify every class from its table.

    ``tables`` are made when asked for, in the order of ``classes`` (C,), so that one is in memory at a time.
    ``failure`` is for all of them together; rows needed are counted for ``tolerance``, see
    :func:`class_tolerance`.
    """
    rows: list[tuple[float, ...]] = []
    kept: dict[int, EventCertificate] = {}
    refutations: dict[int, Refutation] = {}
    hardest: tuple[float, float, EventCertificate | None] = (0.0, 0.0, None)
    for k, table in zip(classes.tolist(), tables, strict=True):
        found = certify_event(class_title(k, names), table, failure=failure / len(classes), assume=assume)
        base = float(table.prefix[1][-1] / table.n)
        limit = float(class_tolerance(np.array(base), tolerance))
        hardest = max(hardest, (found.smooth / limit, limit, found), key=lambda h: h[0])
        rows.append((base, float(table.prefix[0][-1] / table.n), *found.overall, found.smooth,
                     found.band.reach, found.at_least, found.exact_refuted))  # fmt: skip
        if found.refutation is not None:
            refutations[k] = found.refutation
        kept[k] = found
        if len(kept) > KEPT:
            del kept[min(kept, key=lambda j: (kept[j].at_least, kept[j].smooth))]
    frequency, stated, low, high, smooth, reach, at_least, refuted = np.asarray(rows, dtype=np.float64).T
    return ClassCertificates(
        classes, frequency, stated, low, high, smooth, reach, at_least, refuted, refutations, kept,
        _needed(*hardest), names,
    )  # fmt: skip


def certify_columns(
    data: Data,
    classes: IntArray,
    failure: float,
    *,
    tolerance: float,
    assume: str | None,
    names: Sequence[str | int] | None,
) -> ClassCertificates:
    """Certify every class of a sample, or the one of two, where the predictions are."""
    if data.tensor is None or len(classes) < data.k or data.n * data.k > EXACT_ENTRIES:
        tables = class_tables(data, classes)
        return certify_classes(tables, classes, failure, tolerance=tolerance, assume=assume, names=names)
    from hcal.certificates.device import class_columns

    def full(k: int) -> EventCertificate:
        table = table_of_rows(data.column(k), data.y == k)
        return certify_event(class_title(k, names), table, failure=failure / len(classes), assume=assume)

    columns, refutations = class_columns(data, failure / len(classes), full)
    frequency, stated, low, high, smooth, reach, at_least, refuted = columns
    limit = class_tolerance(frequency, tolerance)
    ratio = smooth / limit
    hardest = int(ratio.argmax())
    furthest = np.lexsort((classes, smooth, at_least))[-KEPT:]
    return ClassCertificates(
        classes, frequency, stated, low, high, smooth, reach, at_least, refuted, refutations,
        {int(k): full(int(k)) for k in np.sort(furthest)},
        _needed(float(ratio[hardest]), float(limit[hardest]), full(hardest)), names,
    )  # fmt: skip


def _needed(ratio: float, limit: float, found: EventCertificate | None) -> int | None:
    return 0 if ratio <= 1 or found is None else found.rows_needed(limit)


def class_tables(data: Data, classes: IntArray) -> Iterable[EventTable]:
    """Yield the table of every class: exact where the sample is small, in fine bins where it is large."""
    if data.n * len(classes) <= EXACT_ENTRIES:
        for k in classes.tolist():
            yield table_of_rows(data.column(k), data.y == k)
        return
    cells = ClassBins(data.k)
    start = 0
    for block in data.row_blocks():
        cells.add(block, data.y[start : start + len(block)])
        start += len(block)
    for k in classes.tolist():
        yield cells.table(k)


class ClassBins:
    """Counts, claims and marks of every class in the stream's fine bins; adds up over parts and machines."""

    def __init__(self, n_classes: int) -> None:
        self.counted = np.zeros((n_classes, BINS, 2))  # rows, and sums of their claims
        self.happened = np.zeros((n_classes, BINS))

    def add(self, probs: FloatArray, y: IntArray) -> None:
        """Add rows; a block of rows at a time keeps memory bounded."""
        k = len(self.counted)
        step = max(1, BLOCK // k)
        for i in range(0, len(probs), step):
            self._count(np.ascontiguousarray(probs[i : i + step]))
        own = bin_of(probs[np.arange(len(y)), y])
        np.add.at(self.happened, (y, own), 1.0)

    def _count(self, block: FloatArray) -> None:
        if compiled():
            from hcal.certificates._compiled import accumulate

            accumulate(self.counted, block)
            return
        for k, column in enumerate(np.ascontiguousarray(block.T)):
            which = bin_of(column)
            self.counted[k, :, 0] += np.bincount(which, minlength=BINS)
            self.counted[k, :, 1] += np.bincount(which, weights=column, minlength=BINS)

    def table(self, k: int) -> EventTable:
        """Return the table of one class."""
        return table_of_bins(self.counted[k, :, 0], self.counted[k, :, 1], self.happened[k])
