"""Certificates of data that do not fit in memory: update by parts, merge across machines, then certify.

Memory is O(bins·K), whatever N. The windows and the curve are taken at the edges of fine fixed bins (64 to a
power of two, towards 0 and towards 1), which no label can move: what is certified is as valid as from the
rows, and as tight to within the width of a bin.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from hcal import inputs
from hcal.certificates.bounds import check_level
from hcal.certificates.classes import ClassBins, certify_classes
from hcal.certificates.event import certify_event
from hcal.certificates.groups import GroupCertificate, group_names, worst_first
from hcal.certificates.result import Certificate
from hcal.certificates.run import REFUSED, TOLERANCE
from hcal.certificates.table import BINS, bin_of, table_of_bins
from hcal.io.class_names import check_classes
from hcal.metrics.sample import Vector
from hcal.numerics import FloatArray, IntArray

_GAIN = "a gain over a baseline: its bound needs the rows one after the other"


class CertificateStream:
    """Accumulate what a certificate needs.

    Parameters
    ----------
    n_classes : int
    positive : int
        The class that is certified where there are two.

    Examples
    --------
    >>> a, b = CertificateStream(2), CertificateStream(2)
    >>> _ = a.update([[0.2, 0.8]] * 50, [1] * 40 + [0] * 10)
    >>> _ = b.update([[0.6, 0.4]] * 50, [0] * 30 + [1] * 20)
    >>> a.merge(b).certify().refuted
    False
    """

    def __init__(self, n_classes: int, *, positive: int = 1) -> None:
        if not isinstance(n_classes, int | np.integer) or n_classes < 2:
            raise ValueError(f"n_classes must be an integer of at least 2, got {n_classes!r}")
        self.n_classes, self.positive, self.n = int(n_classes), int(positive), 0
        self._top = np.zeros((3, BINS))
        self._groups: dict[str, Vector] = {}
        self._classes = ClassBins(self.n_classes)

    def update(self, probs: Any, y: Any, groups: Any = None) -> Self:
        """Add a part of the data.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        groups : array-like of shape (N,), optional
        """
        p, _ = inputs.check_probs(probs)
        labels = inputs.check_labels(y, *p.shape)
        if p.shape[1] != self.n_classes:
            raise ValueError(
                f"probs has {p.shape[1]} classes, this certificate was made for {self.n_classes}"
            )
        top = p.argmax(axis=1).astype(np.int64)
        conf = p[np.arange(len(p)), top]
        self._top += _cells(conf, top == labels)
        self._classes.add(p, labels)
        if groups is not None:
            self._add_groups(p, conf, top == labels, labels, groups)
        self.n += len(p)
        return self

    def _add_groups(self, p: FloatArray, conf: FloatArray, hit: Any, y: IntArray, groups: Any) -> None:
        claims, marks = (conf, hit) if self.n_classes > 2 else (p[:, self.positive], y == self.positive)
        names, which = group_names(groups, len(p))
        for g, name in enumerate(names):
            cells = _cells(claims[which == g], marks[which == g])
            self._groups[name] = self._groups.get(name, 0) + cells

    def merge(self, other: CertificateStream) -> Self:
        """Add what another accumulator has seen; in any order, the sum is the same."""
        if (self.n_classes, self.positive) != (other.n_classes, other.positive):
            raise ValueError("only accumulators of the same classes can be merged")
        self._top += other._top
        self._classes.counted += other._classes.counted
        self._classes.happened += other._classes.happened
        for name, cells in other._groups.items():
            self._groups[name] = self._groups.get(name, 0) + cells
        self.n += other.n
        return self

    @property
    def state(self) -> dict[str, Any]:
        """All sums as arrays by name, to be saved or sent; :meth:`from_state` takes them back."""
        arrays = {"top": self._top, "counted": self._classes.counted, "happened": self._classes.happened}
        arrays |= {f"group {name}": cells for name, cells in self._groups.items()}
        return {"n_classes": self.n_classes, "positive": self.positive, "n": self.n, "arrays": arrays}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> CertificateStream:
        """Return the accumulator whose :attr:`state` this is."""
        made = cls(state["n_classes"], positive=state["positive"])
        made.n = int(state["n"])
        arrays = dict(state["arrays"])
        made._top = np.array(arrays.pop("top"))
        made._classes.counted = np.array(arrays.pop("counted"))
        made._classes.happened = np.array(arrays.pop("happened"))
        made._groups = {name.removeprefix("group "): np.array(cells) for name, cells in arrays.items()}
        return made

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
        share = check_level(level) / (2 + bool(self._groups))
        chosen = np.arange(self.n_classes) if self.n_classes > 2 else np.array([self.positive])
        tables = (self._classes.table(k) for k in chosen.tolist())
        each = share / max(len(self._groups), 1)
        grouped = [
            GroupCertificate(name, certify_event(name, table_of_bins(*cells), failure=each))
            for name, cells in self._groups.items()
        ]
        top = certify_event("top label", table_of_bins(*self._top), failure=share, assume=assume)
        return Certificate(
            level=float(level),
            n=self.n,
            k=self.n_classes,
            events={"top label": top},
            classes=certify_classes(tables, chosen, share, tolerance=tolerance, assume=assume, names=names),
            groups=worst_first(grouped),
            tolerance=tolerance,
            refused=(*REFUSED, _GAIN),
            notes=("From a stream: windows and curve at the edges of fine bins.",),
        )

    def result(self) -> Certificate:
        """Return the certificate of everything seen so far, at the usual level; see :meth:`certify`."""
        return self.certify()


def _cells(p: FloatArray, c: Any) -> Vector:
    """Rows, claims and marks in the fine bins, shape (3, BINS)."""
    which = bin_of(p)
    weights = (None, p.astype(np.float64), np.asarray(c, dtype=np.float64))
    return np.stack([np.bincount(which, weights=w, minlength=BINS).astype(np.float64) for w in weights])
