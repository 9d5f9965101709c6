"""Every class, and every group of rows, at once: each is one event with its share of the failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal import inputs
from hcal.certificates.event import EventCertificate, Refutation, certify_event
from hcal.certificates.windows import EventTable
from hcal.io.class_names import class_title
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray
from hcal.text import printable

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
        Rows that would prove the class furthest from its tolerance to be within it; 0 where all are, None
        where it takes more than a million.
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
        return printable(class_title(k, self.names))

    @property
    def worst(self) -> int:
        """The class with the largest bound on its smooth calibration error."""
        return int(self.classes[self.smooth.argmax()])

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
    table_of: Callable[[int], EventTable],
    classes: IntArray,
    failure: float,
    *,
    tolerance: float,
    assume: str | None = None,
    names: Sequence[str | int] | None = None,
) -> ClassCertificates:
    """Certify every class from its table.

    ``table_of`` makes the table of a class when asked, so that one is in memory at a time.
    ``failure`` is for all of them together; rows needed are counted for ``tolerance``, see
    :func:`class_tolerance`.
    """
    rows: list[tuple[float, ...]] = []
    kept: dict[int, EventCertificate] = {}
    refutations: dict[int, Refutation] = {}
    hardest: tuple[float, float, EventCertificate | None] = (0.0, 0.0, None)
    share = failure / len(classes)
    for k in classes.tolist():
        title = printable(class_title(k, names))
        found = certify_event(title, table_of(k), failure=share, assume=assume)
        limit = float(class_tolerance(np.array(found.observed), tolerance))
        hardest = max(hardest, (found.bound / limit, limit, found), key=lambda h: h[0])
        rows.append((found.observed, found.stated, *found.overall, found.bound, found.band.reach,
                     found.at_least, found.exact_refuted))  # fmt: skip
        if found.refutation is not None:
            refutations[k] = found.refutation
        kept[k] = found
        if len(kept) > KEPT:
            del kept[min(kept, key=lambda j: (kept[j].at_least, kept[j].bound))]
    frequency, stated, low, high, smooth, reach, at_least, refuted = np.asarray(rows, dtype=np.float64).T
    ratio, limit, worst = hardest
    needed = 0 if ratio <= 1 or worst is None else worst.rows_needed(limit)
    return ClassCertificates(
        classes, frequency, stated, low, high, smooth, reach, at_least, refuted, refutations, kept,
        needed, names,
    )  # fmt: skip


# -- groups of rows --------------------------------------------------------------------------------


def group_names(groups: Any, n: int) -> tuple[list[str], Any]:
    """Return the names of the groups, of any kind that can be told apart, and the number of each row's (N,).

    >>> group_names(["b", "a", "b"], 3)
    (['a', 'b'], array([1, 0, 1]))
    """
    values, _ = inputs.to_numpy(groups, "groups")
    if values.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one group a row; got {values.shape}")
    missing = np.array([v is None or v != v for v in values.tolist()])
    if missing.any():
        raise ValueError(f"groups has a missing value at row {int(missing.argmax())}")
    names, which = np.unique(values.astype(str), return_inverse=True)
    return [str(name) for name in names], which.reshape(-1)


def certify_groups(tables: Mapping[str, EventTable], failure: float) -> tuple[EventCertificate, ...]:
    """Certify every group from its table, worst first: proven gaps before possible ones.

    ``failure`` is for all groups together.

    >>> from hcal.certificates.windows import table_of_rows
    >>> p, tenth = np.full(500, 0.9), np.arange(500) % 10
    >>> tables = {"good": table_of_rows(p, tenth > 0), "bad": table_of_rows(p, tenth > 4)}
    >>> found = certify_groups(tables, 0.05)
    >>> [(g.name, g.proven) for g in found]
    [('bad', 'over'), ('good', '')]
    """
    share = failure / len(tables) if tables else failure
    found = [certify_event(name, table, failure=share) for name, table in tables.items()]

    def badness(g: EventCertificate) -> tuple[float, float, float]:
        low, high = g.overall
        return max(low, -high, 0.0), g.at_least, max(abs(low), abs(high))

    return tuple(sorted(found, key=badness, reverse=True))
