"""Certificates of rows that come in blocks, from counts that can be added up over blocks and machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from hcal import leakage
from hcal.certificates.certification import Terms, assemble
from hcal.certificates.event import TOLERANCE, EventCounts
from hcal.certificates.result import Certificate
from hcal.class_names import ClassName, check_classes
from hcal.frames import AnyArray
from hcal.metrics.sample import Data, check_integer
from hcal.renamed import renamed
from hcal.rows import BlockOrder, Rows

_GAIN = (
    "a gain over a baseline: its bound needs the rows one after the other, and these came in blocks"
)


class CertificateStream:
    """Accumulate the counts that a certificate needs, block by block; accumulators of several machines merge.

    Rows must be independent of each other: counts do not tell which rows belong to one group.

    Parameters
    ----------
    n_classes : int
    positive : int
        With two classes, the class whose probability is certified.
    fitted_on : dict of arrays, optional
        Fingerprint of the rows that the predictor was fitted on. Pass the logits of every block to
        :meth:`update` too, and :meth:`result` refuses rows of the fit.

    Examples
    --------
    >>> a, b = CertificateStream(2), CertificateStream(2)
    >>> _ = a.update([[0.2, 0.8]] * 50, [1] * 40 + [0] * 10)
    >>> _ = b.update([[0.6, 0.4]] * 50, [0] * 30 + [1] * 20)
    >>> a.merge(b).result().refuted
    False
    """

    def __init__(
        self, n_classes: int, *, positive: int = 1, fitted_on: leakage.Fingerprint | None = None
    ) -> None:
        self.n_classes = check_integer("n_classes", n_classes, 2)
        self.positive = int(positive)
        self.n = 0
        self.fitted_on = fitted_on
        self.counts = EventCounts(self.n_classes, self.positive)
        self.order = BlockOrder()
        self._rows: leakage.Fingerprint | None = None

    @renamed(groups="by")
    def update(
        self, probs: AnyArray, y: AnyArray, by: AnyArray = None, *, logits: AnyArray = None
    ) -> Self:
        """Add a block of rows.

        Parameters
        ----------
        probs : array-like of shape (N, K)
            Columns that have names are put in the order of the first block by name.
        y : array-like of shape (N,)
        by : array-like of shape (N,), optional
            The subgroup of each row.
        logits : array of shape (N, K), optional
            The predictor's input, to be compared with ``fitted_on``.
        """
        rows = self.order.put(Rows.of_predictions(probs, y, input="probs", by=by))
        data = Data(rows.scores, rows.labels)
        if data.k != self.n_classes:
            raise ValueError(
                f"probs has {data.k} classes, this certificate was made for {self.n_classes}"
            )
        self.counts.update(data, rows.by)
        if logits is not None and self.fitted_on is not None:
            self._rows = leakage.merge_fingerprints(self._rows, leakage.fingerprint(logits))
        self.n += data.n
        return self

    def merge(self, other: CertificateStream) -> Self:
        """Add the counts of another accumulator; the order of merging does not matter."""
        if (self.n_classes, self.positive) != (other.n_classes, other.positive):
            raise ValueError("only accumulators of the same classes can be merged")
        self.order.merge(other.order)
        self.counts.merge(other.counts)
        self._rows = leakage.merge_fingerprints(self._rows, other._rows)
        self.n += other.n
        return self

    @renamed(level="confidence")
    def result(
        self,
        confidence: float = 0.95,
        tolerance: float = TOLERANCE,
        classes: Iterable[ClassName] | None = None,
        assume: str | None = None,
    ) -> Certificate:
        """Return the certificate of all rows added so far.

        Parameters
        ----------
        confidence, tolerance : float
        classes : sequence of K str or int, optional
            Names of the classes for sentences and tables.
        assume : {"monotone"}, optional
        """
        if self.n == 0:
            raise ValueError("nothing to certify: no part was added yet")
        overlap = None
        if self.fitted_on and self._rows:
            overlap = leakage.overlap(self.fitted_on, self._rows)
        names = None if classes is None else check_classes(classes, self.n_classes)
        terms = Terms(confidence, tolerance, assume, refused=(_GAIN,))
        return assemble(self.counts.events(), terms, names, overlap)
