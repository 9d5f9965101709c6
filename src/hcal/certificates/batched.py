"""``hcal.certify`` of rows that come block by block: in one pass, and never on rows of the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from hcal.calibrators.base import Calibrator
from hcal.calibrators.calibration_rows import KEY, SeenRows, checked_rows
from hcal.certificates.result import Certificate
from hcal.certificates.run import refuse_share
from hcal.certificates.streaming import CertificateStream
from hcal.io.blocks import Batches, read_piece, rows_from
from hcal.io.reading import Piece
from hcal.io.probabilities import to_probs
from hcal.numerics import IntArray
from hcal.passes import Driver, add_up


@dataclass
class _Part:
    stream: CertificateStream
    seen: SeenRows

    def merge(self, other: Self) -> Self:
        """Add what another part has seen."""
        self.stream.merge(other.stream)
        self.seen.merge(other.seen)
        return self


def _empty(n_classes: int, positive: int, calibrator: Calibrator | None) -> _Part:
    kept = None if calibrator is None else calibrator.info_.get(KEY)
    return _Part(CertificateStream(n_classes, positive=positive), SeenRows(kept))


def _certify(empty: Callable[[], _Part], calibrator: Calibrator | None, piece: Piece) -> _Part:
    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            y: IntArray = np.asarray(batch.y)
            if calibrator is None:
                probs = to_probs(batch.scores, batch.kind)
            else:
                probs = calibrator.predict_proba(batch.scores)
                part.seen.update(checked_rows(calibrator, batch.scores), y)
            part.stream.update(probs, y, batch.groups)
    return part


def certify_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    *,
    level: float = 0.95,
    assume: str | None = None,
    positive: int = 1,
    driver: Driver | None = None,
    advance: Callable[[int], None] | None = None,
) -> Certificate:
    """Certify a source's probabilities, or what a calibrator makes of them, in one pass over its rows.

    Parameters
    ----------
    source : Batches
        Of files, with labels.
    calibrator : Calibrator, optional
    level, assume, positive
        As for :func:`hcal.certify`.
    driver, advance
        As for :func:`hcal.calibrators.batched.apply_batches`.

    Returns
    -------
    Certificate
        Of :class:`CertificateStream`: without the gain over a baseline.

    Raises
    ------
    RowsOfTheFitError
        Where rows that the calibrator learned from are among these.

    Examples
    --------
    >>> import tempfile, hcal
    >>> path = f"{tempfile.mkdtemp()}/a.npz"
    >>> np.savez(path, probs=[[0.2, 0.8]] * 100, y=[1] * 80 + [0] * 20)
    >>> certify_batches(hcal.io.batches(path, rows=30)).refuted
    False
    """
    source.check_labels()
    empty = partial(_empty, source.n_classes, positive, calibrator)
    function = partial(_certify, empty, calibrator)
    whole = add_up(function, source.pieces(), empty, driver=driver, advance=advance, size=len)
    if calibrator is not None:
        refuse_share(whole.seen.result(), calibrator.name)
    return whole.stream.certify(level=level, assume=assume, classes=source.classes)
