"""Certificates of data that do not fit in memory: update by blocks, merge across machines, then certify.

Memory is O(bins·K), whatever N. The windows and the curve are taken at the edges of fine fixed bins (64 to a
power of two, towards 0 and towards 1), which no label can move: what is certified is as valid as from the
rows, and as tight to within the width of a bin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import check_level
from hcal.certificates.classes import group_names
from hcal.certificates.result import (
    ASSUMED,
    REFUSED,
    TOLERANCE,
    Certificate,
    certify_tables,
    checked_classes,
    found_rows,
)
from hcal.certificates.windows import BINS, EventTable, bin_of, table_of_bins
from hcal.io.class_names import check_classes
from hcal.numerics import Float64, FloatArray, IntArray, row_blocks

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.io.blocks import Batches
    from hcal.io.reading import Piece
    from hcal.passes import Runner

_BLOCK = 1 << 22  # probabilities that are put into bins at a time
_GAIN = "a gain over a baseline: its bound needs the rows one after the other"


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
    >>> a.merge(b).certify().refuted
    False
    """

    def __init__(
        self, n_classes: int, *, positive: int = 1, fitted_on: leakage.Fingerprint | None = None
    ) -> None:
        if not isinstance(n_classes, int | np.integer) or n_classes < 2:
            raise ValueError(f"n_classes must be an integer of at least 2, got {n_classes!r}")
        self.n_classes, self.positive, self.n = int(n_classes), int(positive), 0
        self.fitted_on = fitted_on
        # Each (…, 3, BINS): rows, sums of their claims, and how often the event happened.
        self._classes = np.zeros((self.n_classes, 3, BINS))
        self._top = np.zeros((3, BINS))
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
        p = inputs.check_probs(probs)[0]
        labels = inputs.check_labels(y, *p.shape)
        if p.shape[1] != self.n_classes:
            raise ValueError(
                f"probs has {p.shape[1]} classes, this certificate was made for {self.n_classes}"
            )
        top = p.argmax(axis=1)
        claims, marks = p[np.arange(len(p)), top], top == labels
        self._top += _cells(claims, marks)
        for rows in row_blocks(p.shape, _BLOCK):
            self._add_classes(p[rows], labels[rows])
        if groups is not None:
            if self.n_classes == 2:
                claims, marks = p[:, self.positive], labels == self.positive
            names, which = group_names(groups, len(p))
            self._add_groups({n: _cells(claims[which == g], marks[which == g]) for g, n in enumerate(names)})
        if logits is not None and self.fitted_on is not None:
            self._add_rows(leakage.fingerprint(logits))
        self.n += len(p)
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

    def _add_rows(self, rows: leakage.Fingerprint | None) -> None:
        if rows is not None:
            self._rows = rows if self._rows is None else leakage.merge_fingerprints(self._rows, rows)

    def merge(self, other: CertificateStream) -> Self:
        """Add what another accumulator has seen; in any order, the sum is the same."""
        if (self.n_classes, self.positive) != (other.n_classes, other.positive):
            raise ValueError("only accumulators of the same classes can be merged")
        self._top += other._top
        self._classes += other._classes
        self._add_groups(other._groups)
        self._add_rows(other._rows)
        self.n += other.n
        return self

    def class_table(self, k: int) -> EventTable:
        """Return the table of one class."""
        return table_of_bins(*self._classes[k])

    def certify(
        self,
        *,
        level: float = 0.95,
        assume: str | None = None,
        tolerance: float = TOLERANCE,
        classes: Any = None,
    ) -> Certificate:
        """Return the certificate of everything seen so far.

        Parameters
        ----------
        level : float
        assume : {"monotone"}, optional
        tolerance : float
        classes : sequence of K str or int, optional
            Names of the classes: sentences and tables use them.
        """
        if self.n == 0:
            raise ValueError("nothing to certify: no part was added yet")
        names = None if classes is None else check_classes(classes, self.n_classes)
        basis = ASSUMED
        if self.fitted_on is not None and self._rows is not None:
            basis = found_rows(leakage.refuse_rows_of_the_fit(self.fitted_on, self._rows))
        share = check_level(level) / (2 + bool(self._groups))
        return certify_tables(
            {"top label": table_of_bins(*self._top)},
            checked_classes(self.n_classes, self.positive),
            self.class_table,
            {name: table_of_bins(*cells) for name, cells in self._groups.items()},
            share=share,
            assume=assume,
            names=names,
            level=float(level),
            n=self.n,
            k=self.n_classes,
            tolerance=tolerance,
            basis=basis,
            refused=(*REFUSED, _GAIN),
            notes=("From blocks of rows: windows and curve at the edges of fine bins.",),
        )

    def result(self) -> Certificate:
        """Return the certificate of everything seen so far, at the usual level; see :meth:`certify`."""
        return self.certify()


def _cells(p: Any, c: Any) -> Float64:
    """Rows, claims and marks in the fine bins, shape (3, BINS)."""
    which = bin_of(p)
    weights = (None, p.astype(np.float64), np.asarray(c, dtype=np.float64))
    return np.stack([np.bincount(which, weights=w, minlength=BINS).astype(np.float64) for w in weights])


def certify_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    *,
    level: float = 0.95,
    assume: str | None = None,
    positive: int = 1,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
) -> Certificate:
    """Certify a source's probabilities, or what a calibrator makes of them, in one pass over its rows.

    Parameters
    ----------
    source : Batches
        Of files, with labels.
    calibrator : Calibrator, optional
        Its own rows are refused.
    level, assume, positive
        As for :func:`hcal.certify`.
    runner, advance
        Who works on the pieces (this process by default), and who is told how many rows were done.

    Examples
    --------
    >>> import tempfile, hcal
    >>> path = f"{tempfile.mkdtemp()}/a.npz"
    >>> np.savez(path, probs=[[0.2, 0.8]] * 100, y=[1] * 80 + [0] * 20)
    >>> certify_batches(hcal.io.batches(path, rows=30)).refuted
    False
    """
    from hcal.passes import add_up

    source.check_labels()
    fitted_on = getattr(calibrator, "fitted_on_", None)
    empty = partial(CertificateStream, source.n_classes, positive=positive, fitted_on=fitted_on)
    function = partial(_certify_piece, empty, calibrator)
    whole = add_up(function, source.pieces(), empty, runner=runner, advance=advance, size=len)
    return whole.certify(level=level, assume=assume, classes=source.classes)


def _certify_piece(
    empty: Callable[[], CertificateStream], calibrator: Calibrator | None, piece: Piece
) -> CertificateStream:
    from hcal.io.blocks import read_piece, rows_from
    from hcal.io.probabilities import to_probs

    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            if calibrator is None:
                part.update(to_probs(batch.scores, batch.kind), batch.y, batch.groups)
                continue
            x = inputs.check_logits(batch.scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]
            part.update(calibrator.predict_proba(batch.scores), batch.y, batch.groups, logits=x)
    return part
