"""Where the tables of events come from, rows in memory or bins of a stream, and one certificate of either.

A stream needs O(bins·K) memory, whatever N. Windows and curve are taken at the edges of fine fixed bins (64 to
a power of two, towards 0 and towards 1), which no label can move: what is certified is as valid as from the
rows, and as tight to within the width of a bin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, check_level
from hcal.certificates.event import TOLERANCE, EventCertificate, Refutation
from hcal.certificates.result import Certificate, ClassCertificates
from hcal.certificates.windows import BINS, EventTable, bin_of
from hcal.io.class_names import ClassName, check_classes
from hcal.metrics.sample import Data, Sample
from hcal.numerics import Float64, FloatArray, IntArray, row_blocks
from hcal.text import printable

Names = Sequence[ClassName] | None
_BLOCK = 1 << 22  # probabilities that are put into bins at a time

#: First line of a certificate of probabilities, which do not tell where they come from.
_ASSUMED = "Assumed: none of these rows was used to fit the predictor, and rows are independent of each other."
_REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the whole vector: "
    "each prediction is seen once, so no number of rows bounds them without assumptions (Gupta, Podkopaev "
    "and Ramdas, 2020)"
)
_NLL = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"
_GAIN = "a gain over a baseline: its bound needs the rows one after the other, and these came in blocks"


class Rows:
    """The events of rows in memory."""

    def __init__(self, sample: Sample, groups: Any = None, positive: int = 1) -> None:
        self.data, self.n, self.n_classes, self.positive = sample.data, sample.n, sample.k, positive
        self._groups = [] if groups is None else _each_group(groups, self.n)

    def main_table(self) -> EventTable:
        """Return the table of the event of the headline."""
        return EventTable.of_rows(*_main_event(self.data, self.positive))

    def class_table(self, k: int) -> EventTable:
        """Return the table of one class."""
        return EventTable.of_rows(self.data.column(k), self.data.y == k)

    def group_tables(self) -> dict[str, EventTable]:
        """Return the table of every group, of the event of the headline."""
        p, c = _main_event(self.data, self.positive)
        return {name: EventTable.of_rows(p[rows], c[rows]) for name, rows in self._groups}


class CertificateStream:
    """Accumulate what a certificate needs, block by block; parts of several machines merge.

    Parameters
    ----------
    n_classes : int
    positive : int
        The class that is certified where there are two.
    fitted_on : dict of arrays, optional
        Fingerprint of the rows that the predictor was fitted on, which are refused; the logits of every block
        are then passed to :meth:`update`.

    Examples
    --------
    >>> a, b = CertificateStream(2), CertificateStream(2)
    >>> _ = a.update([[0.2, 0.8]] * 50, [1] * 40 + [0] * 10)
    >>> _ = b.update([[0.6, 0.4]] * 50, [0] * 30 + [1] * 20)
    >>> a.merge(b).result().refuted
    False
    """

    def __init__(self, n_classes: int, *, positive: int = 1, fitted_on: leakage.Fingerprint | None = None) -> None:
        if not isinstance(n_classes, int | np.integer) or n_classes < 2:
            raise ValueError(f"n_classes must be an integer of at least 2, got {n_classes!r}")
        self.n_classes, self.positive, self.n = int(n_classes), int(positive), 0
        self.fitted_on = fitted_on
        # Each (…, 3, BINS): rows, sums of their claims, and how often the event happened.
        self._main = np.zeros((3, BINS))
        self._classes = np.zeros((self.n_classes, 3, BINS))
        self._groups: dict[str, Float64] = {}
        self._rows: leakage.Fingerprint | None = None

    def update(self, probs: Any, y: Any, groups: Any = None, *, logits: Any = None) -> Self:
        """Add a block of rows.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        groups : array-like of shape (N,), optional
        logits : array of shape (N, K), optional
            What the predictor was given, to be compared with ``fitted_on``.
        """
        data = Data(probs, y)
        if data.k != self.n_classes:
            raise ValueError(f"probs has {data.k} classes, this certificate was made for {self.n_classes}")
        p, c = _main_event(data, self.positive)
        self._main += _cells(p, c)
        for rows in row_blocks(data.probs.shape, _BLOCK):
            self._add_classes(data.probs[rows], data.y[rows])
        if groups is not None:
            self._add_groups({name: _cells(p[g], c[g]) for name, g in _each_group(groups, data.n)})
        if logits is not None and self.fitted_on is not None:
            self._rows = leakage.merge_fingerprints(self._rows, leakage.fingerprint(logits))
        self.n += data.n
        return self

    def _add_classes(self, p: FloatArray, y: IntArray) -> None:
        cell = np.arange(self.n_classes, dtype=np.int64) * BINS + bin_of(p)
        size, shape = self.n_classes * BINS, (self.n_classes, BINS)
        self._classes[:, 0] += np.bincount(cell.ravel(), minlength=size).reshape(shape)
        self._classes[:, 1] += np.bincount(cell.ravel(), weights=p.ravel(), minlength=size).reshape(shape)
        np.add.at(self._classes[:, 2], (y, bin_of(p[np.arange(len(y)), y])), 1.0)

    def _add_groups(self, groups: dict[str, Float64]) -> None:
        for name, cells in groups.items():
            self._groups[name] = self._groups.get(name, 0) + cells

    def merge(self, other: CertificateStream) -> Self:
        """Add what another accumulator has seen; in any order, the sum is the same."""
        if (self.n_classes, self.positive) != (other.n_classes, other.positive):
            raise ValueError("only accumulators of the same classes can be merged")
        self._main += other._main
        self._classes += other._classes
        self._add_groups(other._groups)
        self._rows = leakage.merge_fingerprints(self._rows, other._rows)
        self.n += other.n
        return self

    def main_table(self) -> EventTable:
        """Return the table of the event of the headline."""
        return EventTable.of_bins(*self._main)

    def class_table(self, k: int) -> EventTable:
        """Return the table of one class."""
        return EventTable.of_bins(*self._classes[k])

    def group_tables(self) -> dict[str, EventTable]:
        """Return the table of every group."""
        return {name: EventTable.of_bins(*cells) for name, cells in self._groups.items()}

    def result(
        self, level: float = 0.95, tolerance: float = TOLERANCE, classes: Any = None,
        assume: str | None = None,
    ) -> Certificate:  # fmt: skip
        """Return the certificate of everything seen so far.

        Parameters
        ----------
        level, tolerance : float
        classes : sequence of K str or int, optional
            Names of the classes: sentences and tables use them.
        assume : {"monotone"}, optional
        """
        if self.n == 0:
            raise ValueError("nothing to certify: no part was added yet")
        found = None
        if self.fitted_on is not None and self._rows is not None:
            found = leakage.overlap(self.fitted_on, self._rows)
        names = None if classes is None else check_classes(classes, self.n_classes)
        return certify_source(self, found, level, tolerance, names, assume=assume)


def certify_source(
    source: Rows | CertificateStream, overlap: leakage.Overlap | None, level: float, tolerance: float,
    names: Names, gain: Callable[[float], Gain] | None = None, assume: str | None = None,
) -> Certificate:  # fmt: skip
    """Certify the headline, the classes, the groups and a gain, or refuse the rows of the fit.

    The event of the headline has half of the failure whatever else is asked for, so that its numbers are the
    same everywhere. The others share the rest equally.
    """
    failure, k = check_level(level), source.n_classes
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    if assume not in (None, "monotone"):
        raise ValueError(f"assume must be 'monotone' or None, got {assume!r}")
    basis, groups = _first_line(overlap), source.group_tables()
    share = failure / 2 / max((k > 2) + bool(groups) + (gain is not None), 1)
    refused = [_REFUSED] + [_NLL] * (gain is not None) + [_GAIN] * isinstance(source, CertificateStream)
    classes = _certify_classes(source, share, names) if k > 2 else None
    proven = headline(source, failure / 2, names), classes, None if gain is None else gain(share)
    return Certificate(
        float(level), source.n, k, *proven, _certify_groups(groups, share), tolerance, basis, tuple(refused),
        assume,
    )  # fmt: skip


def headline(source: Rows | CertificateStream, failure: float, names: Names) -> EventCertificate:
    """Certify the event that is spoken of first: P(positive) of two classes, else the top label."""
    name = "top label"
    if source.n_classes == 2:
        positive = f"class {source.positive}" if names is None else names[source.positive]
        name = f"P({printable(positive)})"
    return EventCertificate(name, source.main_table(), failure)


def _first_line(overlap: leakage.Overlap | None) -> str:
    """Return what is known of the rows of the fit, and what is assumed."""
    if overlap is None:
        return _ASSUMED
    if overlap.refused:
        raise leakage.RowsOfTheFitError(
            f"no certificate: a{overlap.sentence[1:-1]}, and on its own rows a calibrator looks better than it "
            "is. Use other rows, or out_of_fold=True"
        )
    told = overlap.sentence or "None of these rows was used to fit the calibrator."
    return f"{told} Assumed: rows are independent of each other."


def _certify_classes(source: Rows | CertificateStream, failure: float, names: Names) -> ClassCertificates:
    """Certify every class; ``failure`` is for all of them together."""
    rows: list[tuple[float, ...]] = []
    refutations: dict[int, Refutation] = {}
    for k in range(source.n_classes):
        e = EventCertificate("", source.class_table(k), failure / source.n_classes)
        rows.append((e.observed, e.stated, *e.overall, e.bound, e.at_least, e.exact_refuted))
        if e.refutation is not None:
            refutations[k] = e.refutation
    rate, stated, low, high, bound, least, exact = np.array(rows, dtype=np.float64).T
    return ClassCertificates(rate, stated, low, high, bound, least, exact, refutations, names)


def _certify_groups(tables: dict[str, EventTable], failure: float) -> tuple[EventCertificate, ...]:
    """Certify every group, worst first: proven gaps before possible ones; ``failure`` is for all together."""
    found = [EventCertificate(name, table, failure / len(tables)) for name, table in tables.items()]
    found.sort(key=lambda g: (g.proven_gap, g.at_least, max(map(abs, g.overall))), reverse=True)
    return tuple(found)


def _each_group(groups: Any, n: int) -> list[tuple[str, Any]]:
    """Return the name of every group, of any kind that can be told apart, and which rows are its own (N,).

    >>> [(name, rows.tolist()) for name, rows in _each_group(["b", "a", "b"], 3)]
    [('a', [False, True, False]), ('b', [True, False, True])]
    """
    values, _ = inputs.to_numpy(groups, "groups")
    if values.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one group a row; got {values.shape}")
    missing = np.array([v is None or v != v for v in values.tolist()])
    if missing.any():
        raise ValueError(f"groups has a missing value at row {int(missing.argmax())}")
    names, which = np.unique(values.astype(str), return_inverse=True)
    return [(str(name), which.reshape(-1) == g) for g, name in enumerate(names)]


def _main_event(data: Data, positive: int) -> tuple[Float64, Any]:
    """Return claims and marks of the event of the headline: P(positive) of two classes, else the top label."""
    return (data.column(positive), data.y == positive) if data.k == 2 else (data.conf, data.hit)


def _cells(p: Any, c: Any) -> Float64:
    """Rows, claims and marks in the fine bins, shape (3, BINS)."""
    which = bin_of(p)
    return np.stack([np.bincount(which, weights=w, minlength=BINS) for w in (np.ones(len(p)), p, c)])
