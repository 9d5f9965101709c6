"""The segments and classes that are proven to be off by more than their tolerance, with the rows that they hold.

Errors of opposite sign cancel in an average over all rows, so a verdict looks at the parts too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.certificates import Certificate, EventCertificate
from hcal.certificates.event import class_tolerance
from hcal.certificates.sentences import points
from hcal.numerics import FloatArray
from hcal.text import printable

#: The most segments or classes that a sentence names.
_NAMED: Final = 8


@dataclass(frozen=True)
class SegmentOff:
    """A segment or class that is proven to be off by more than its tolerance.

    Attributes
    ----------
    name : str
    rows : int
        Rows of the segment; of a class, the rows whose probability of it lies in the worst window.
    off : int
        Those of the rows that are proven to be off by more than the tolerance: all, or those of some windows.
    at_least : float
        The proven gap: of the mean over all its rows, else of its worst window.
    direction : {"over", "under"}
        Whether the probabilities are too high or too low.
    """

    name: str
    rows: int
    off: int
    at_least: float
    direction: str

    @property
    def words(self) -> str:
        """The segment and its error, in words."""
        height = "high" if self.direction == "over" else "low"
        rows = f"{self.rows:,} rows"
        if self.off < self.rows:
            rows = f"{self.off:,} of {self.rows:,} rows"
        return f"{printable(self.name)} ({rows} too {height} by at least {points(self.at_least)})"


@dataclass(frozen=True)
class SegmentsOff:
    """The segments that are proven to be off by more than the tolerance, the worst first.

    Attributes
    ----------
    segments : tuple of SegmentOff
    of_segments, of_rows : int
        All segments, and all rows.
    tolerance : float
    """

    segments: tuple[SegmentOff, ...]
    of_segments: int
    of_rows: int
    tolerance: float

    def __bool__(self) -> bool:
        return bool(self.segments)

    @property
    def rows(self) -> int:
        """How many rows the segments that are off hold."""
        return sum(segment.rows for segment in self.segments)

    @property
    def share(self) -> float:
        """The share of all rows that the segments that are off hold."""
        return self.rows / self.of_rows

    @property
    def share_proven(self) -> float:
        """The share of all rows that are proven to be off by more than the tolerance."""
        return sum(segment.off for segment in self.segments) / self.of_rows

    @property
    def count(self) -> str:
        """How many segments are off, and how many rows they hold, in words."""
        return (
            f"{len(self.segments):,} of {self.of_segments:,} segments, "
            f"with {self.rows:,} of {self.of_rows:,} rows"
        )

    @property
    def words(self) -> str:
        """A sentence that names the worst segments."""
        if not self.segments:
            return (
                f"None of the {self.of_segments:,} segments is proven to be off by more than "
                f"{points(self.tolerance)}."
            )
        verb = "is" if len(self.segments) == 1 else "are"
        return (
            f"{self.count}, {verb} proven to be off by more than {points(self.tolerance)}: "
            f"{_named(self.segments)}."
        )


@dataclass(frozen=True)
class ClassesOff:
    """The classes whose probabilities are proven to be off by more than the class's tolerance, the worst first.

    Attributes
    ----------
    classes : tuple of SegmentOff
    of_classes, of_rows : int
        All classes, and all rows.
    rows : int
        How many rows have such a probability, in a window that is proven to be off.
    """

    classes: tuple[SegmentOff, ...]
    of_classes: int
    of_rows: int
    rows: int

    def __bool__(self) -> bool:
        return bool(self.classes)

    @property
    def share_proven(self) -> float:
        """The share of all rows that have a probability that is proven to be off."""
        return self.rows / self.of_rows

    @property
    def count(self) -> str:
        """How many classes are off, and in how many rows they are, in words."""
        return (
            f"{len(self.classes):,} of {self.of_classes:,} classes, "
            f"in {self.rows:,} of {self.of_rows:,} rows"
        )

    @property
    def words(self) -> str:
        """A sentence that names the worst classes."""
        if not self.classes:
            classes = f"None of the {self.of_classes:,} classes"
            return f"{classes} is proven to be off by more than its tolerance."
        verb = "is" if len(self.classes) == 1 else "are"
        return (
            f"{self.count}, {verb} proven to be off by more than the class's tolerance: "
            f"{_named(self.classes)}."
        )


def _named(parts: tuple[SegmentOff, ...]) -> str:
    """Return the worst segments or classes by name, and how many more there are."""
    named = ", ".join(part.words for part in parts[:_NAMED])
    rest = len(parts) - _NAMED
    return f"{named} and {rest:,} more" if rest > 0 else named


def segments_off(certificate: Certificate) -> SegmentsOff | None:
    """Return the segments of a certificate that are proven to be off; None if it has no segments."""
    if not certificate.subgroups:
        return None
    limit = certificate.limit
    judged = [_segment_off(subgroup, limit) for subgroup in certificate.subgroups]
    off = [segment for segment in judged if segment is not None]
    off.sort(key=_at_least, reverse=True)
    return SegmentsOff(tuple(off), len(certificate.subgroups), certificate.n, limit)


def _at_least(segment: SegmentOff) -> float:
    return segment.at_least


def _segment_off(event: EventCertificate, limit: float) -> SegmentOff | None:
    """Return how far a segment is proven to be off: as a whole, else in some windows; None if it is not."""
    if event.proven_gap > limit:
        return SegmentOff(event.name, event.n, event.n, event.proven_gap, event.proven)
    window = event.refutation
    if window is None or window.at_least <= limit:
        return None
    off = round(share_far(event, limit) * event.n)
    return SegmentOff(event.name, event.n, off, window.at_least, window.direction)


def classes_off(certificate: Certificate, probs: FloatArray) -> ClassesOff | None:
    """Return the classes of a certificate of these probabilities that are proven to be off; None with two classes.

    A row counts once, however many of its probabilities lie in a window that is proven to be off.
    """
    proofs = certificate.classes
    if proofs is None:
        return None
    limits = class_tolerance(proofs.frequency, certificate.tolerance)
    off = []
    in_windows = np.zeros(len(probs), dtype=bool)
    for k, window in proofs.refutations.items():
        if window.at_least <= limits[k]:
            continue
        part = SegmentOff(
            proofs.title(k), window.rows, window.rows, window.at_least, window.direction
        )
        off.append(part)
        low, high = window.claims
        in_windows |= (probs[:, k] >= low) & (probs[:, k] <= high)
    off.sort(key=_at_least, reverse=True)
    return ClassesOff(tuple(off), len(limits), certificate.n, int(in_windows.sum()))


def share_far(event: EventCertificate, limit: float) -> float:
    """Return the share of rows that lie in a window proven to be off by more than the limit."""
    windows = event.windows
    table = event.table
    far = windows.at_least > limit
    opened = np.zeros(len(table.count) + 1)
    np.add.at(opened, windows.first[far], 1)
    np.add.at(opened, windows.last[far], -1)
    covered = np.cumsum(opened[:-1]) > 0
    return float(table.count[covered].sum() / table.n)
