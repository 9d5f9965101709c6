"""Blocks of rows as a fit reads them, and the first look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.calibrators.calibration_rows import RowSketch
from hcal.calibrators.floor import apply_floor, floor_of, least_believed
from hcal.io.blocks import Batch, read_piece, rows_from
from hcal.io.reading import Piece
from hcal.io.row_sample import RowSample, SampledRows
from hcal.numerics import Float64, FloatArray, IntArray, bounded

#: A block of rows, rows of a file, or a function that reads blocks where the work is done.
RowPiece = Batch | Piece | Callable[[], Batch | Iterable[Batch]]


def open_piece(piece: RowPiece) -> Iterator[Batch]:
    """Yield the batches that a piece is, or reads; empty ones are left out.

    >>> [batch.start for batch in open_piece(lambda: Batch(np.zeros((1, 2)), "logits", np.array([0]), 7))]
    [7]
    """
    found = read_piece(piece) if isinstance(piece, Piece) else piece() if callable(piece) else piece
    for batch in [found] if isinstance(found, Batch) else found:
        if not isinstance(batch, Batch):
            raise TypeError(f"batches must hold hcal.io.Batch objects, got {type(batch).__name__}")
        if len(batch):
            yield batch


def checked_batch(
    batch: Batch, input: inputs.InputKind, n_classes: int | None = None
) -> tuple[FloatArray, IntArray, Float64]:
    """Return the logits (B, K), labels and weights (B,) of a batch, every fault named with its rows.

    >>> checked_batch(Batch(np.array([[0.0, 2.0]]), "logits", None, 40), "logits")
    Traceback (most recent call last):
    ...
    ValueError: counting from row 40: the batch has no labels
    """
    with rows_from(batch.start):
        if batch.kind != input:
            raise ValueError(f"the batch holds {batch.kind}, but the calibrator takes input={input!r}")
        if batch.y is None:
            raise ValueError("the batch has no labels")
        x, _ = inputs.check_logits(batch.scores, input=input, n_classes=n_classes)
        y = inputs.check_labels(batch.y, *x.shape)
        weight = _weight(batch)
    return bounded(x), y, weight


def _weight(batch: Batch) -> Float64:
    if batch.weight is None or not np.any(batch.weight):  # a block may weigh nothing, all of them may not
        return np.ones(len(batch)) if batch.weight is None else np.zeros(len(batch))
    weight = inputs.check_weight(batch.weight, len(batch))
    assert weight is not None
    return weight


@dataclass(frozen=True)
class PieceReader:
    """Reads a piece as a method sees it: checked, floored, in its float width. It travels to the rows."""

    input: inputs.InputKind
    n_classes: int
    floor: NDArray[np.float64] | None
    native_float32: bool

    def __call__(self, piece: RowPiece) -> Iterator[tuple[FloatArray, IntArray, Float64]]:
        """Yield logits (B, K), labels (B,) and weights (B,) of every block that weighs something."""
        for batch in open_piece(piece):
            x, y, weight = checked_batch(batch, self.input, self.n_classes)
            if weight.any():
                x = apply_floor(x, self.floor)
                yield x if self.native_float32 else x.astype(np.float64, copy=False), y, weight


class Survey:
    """What a fit must know of all rows before it begins: a partial result (:mod:`hcal.partial`).

    ``counts`` and ``mass`` (K,) are rows and weight of every class, ``weighted`` says whether rows came with
    weights, ``weighing`` how many weigh something. ``sample`` makes, of the number of classes, a
    :class:`RowSample` to be filled on the way.
    """

    def __init__(
        self, input: inputs.InputKind = "logits", sample: Callable[[int], RowSample] | None = None
    ) -> None:
        self.input, self._make_sample = input, sample
        self.counts, self.mass = np.zeros(0, dtype=np.int64), np.zeros(0)
        self.weighted, self.weighing, self.sketch = False, 0, RowSketch()
        self.sample: RowSample | None = None
        self._least, self._no_zeros = 0.0, True

    @property
    def n_classes(self) -> int:
        """K; 0 before the first rows."""
        return len(self.mass)

    def update(self, batch: Batch) -> Self:
        """Add a batch."""
        x, y, weight = checked_batch(batch, self.input)
        self._begin(x.shape[1])
        self.counts += np.bincount(y, minlength=self.n_classes)
        self.mass += np.bincount(y, weights=weight, minlength=self.n_classes)
        self.weighted |= batch.weight is not None
        self.weighing += int(np.count_nonzero(weight))
        self.sketch.update(x, y)
        if self.sample is not None:
            # As they came: the fit of a sample is a fit like any other, checks and all.
            self.sample.update(np.asarray(batch.scores), y, weight, batch.start)
        if self.input != "logits":
            self._add_floor(*least_believed(x, weight))
        return self

    def _begin(self, n_classes: int) -> None:
        if self.n_classes and self.n_classes != n_classes:
            raise ValueError(f"batches differ: {self.n_classes} classes in some, {n_classes} in others")
        if not self.n_classes:
            self.counts, self.mass = np.zeros(n_classes, dtype=np.int64), np.zeros(n_classes)
            self.sample = None if self._make_sample is None else self._make_sample(n_classes)

    def _add_floor(self, least: float, no_zeros: bool) -> None:
        self._least, self._no_zeros = min(self._least, least), self._no_zeros and no_zeros

    def merge(self, other: Survey) -> Self:
        """Add what another has seen."""
        if not other.n_classes:
            return self
        self._begin(other.n_classes)
        self.counts += other.counts
        self.mass += other.mass
        self.weighted |= other.weighted
        self.weighing += other.weighing
        self.sketch.merge(other.sketch)
        if self.sample is not None and other.sample is not None:
            self.sample.merge(other.sample)
        self._add_floor(other._least, other._no_zeros)
        return self

    @property
    def state(self) -> dict[str, Any]:
        """What was seen."""
        sample = None if self.sample is None else self.sample.state
        own = {"least": self._least, "no_zeros": self._no_zeros, "weighted": self.weighted}
        sums = {"counts": self.counts, "mass": self.mass, "weighing": self.weighing}
        return {"input": self.input, **sums, **own, "sketch": self.sketch.state, "sample": sample}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from a state."""
        found = cls(state["input"])
        found.counts, found.mass = np.array(state["counts"]), np.array(state["mass"])
        found.weighing = state["weighing"]
        found._least, found._no_zeros, found.weighted = state["least"], state["no_zeros"], state["weighted"]
        found.sketch = RowSketch.from_state(state["sketch"])
        if state["sample"] is not None:
            found.sample = RowSample.from_state(state["sample"])
        return found

    def result(self) -> Survey:
        """Return itself, once there are rows with weight."""
        if not self.mass.any():
            raise ValueError(
                "there are no rows to fit on" if not self.counts.any() else "all weights are zero"
            )
        return self

    def drawn(self) -> SampledRows:
        """Return the sample."""
        assert self.sample is not None
        return self.sample.result()

    def floor(self) -> NDArray[np.float64]:
        """Return the floor of the probabilities seen; see :func:`hcal.calibrators.floor.learn_floor`."""
        total = float(self.mass.sum()) if self.weighted else float(self.counts.sum())
        return floor_of(self._least, self._no_zeros, total, self.n_classes)
