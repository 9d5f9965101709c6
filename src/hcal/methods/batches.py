"""Fit on data that is too large for memory, by a random sample that does not depend on how it is cut into blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.class_names import check_classes
from hcal.io import Batch, Batches, Piece, read_piece, rows_from
from hcal.methods.base import Calibrator
from hcal.passes import Runner
from hcal.rows import Rows

Method = TypeVar("Method", bound=Calibrator)
#: A block of rows, a part of a file, or a function that reads blocks in the process that works on them.
RowPiece = Batch | Piece | Callable[[], Batch | Iterable[Batch]]
#: Sampled rows: their hashes, scores, labels, weights and groups by name.
_Columns = dict[str, NDArray[Any]]

#: Rows of a sample. With ten classes, the fit of the default then needs 0.8 GB.
SAMPLE_ROWS = 300_000
#: The most scores (rows × classes) of a sample: 160 MB of float64, and a fit needs several times that.
SAMPLE_SCORES = 20_000_000
_TOP = np.uint64(np.iinfo(np.uint64).max)


def fit_batches(
    calibrator: Method,
    batches: Batches | Iterable[RowPiece] | Callable[[], Iterable[RowPiece]],
    *,
    sample_rows: int = SAMPLE_ROWS,
    run: Runner | None = None,
    classes: Any = None,
) -> Method:
    """Fit a calibrator on blocks of rows, of which one at a time is in memory.

    A calibrator has few parameters, and 100,000 rows determine them more accurately than new data will match. So every
    method is fitted in memory on a random sample: the rows whose row numbers have the smallest hashes, which does not
    depend on how the rows are cut into blocks. If the sample holds all rows, the result is that of an ordinary fit.

    ``fit_.source_rows`` says how many rows there were, and ``fit_.rows`` how many were used.

    Parameters
    ----------
    calibrator : Calibrator
    batches : Batches of :func:`hcal.io.batches`, iterable of Batch, or a function that returns one
        Also an iterable of functions that read batches in the process that works on them.
    sample_rows : int
        Rows of the sample; fewer with more than 66 classes, so that it holds at most 20 million scores.
    run : callable, optional
        Called with a function and pieces, it yields the function's result for every piece; by default ``map``.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; by default those of the batches.

    Returns
    -------
    Calibrator
        The same object, fitted.

    Examples
    --------
    >>> from hcal.methods.ts import TemperatureScaling
    >>> z, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> blocks = [Batch(z[i : i + 2], "logits", y[i : i + 2], i) for i in (0, 2)]
    >>> cal = fit_batches(TemperatureScaling(), blocks)
    >>> cal.predict_proba(z[:1]).round(6), cal.fit_.source_rows
    (array([[0.25, 0.75]]), 4)
    """
    if sample_rows < 1:
        raise ValueError(f"sample_rows must be at least 1, got {sample_rows}")
    pieces: Iterable[RowPiece] = batches() if callable(batches) else batches
    if run is not None and isinstance(batches, Batches):
        pieces = batches.pieces()
    sample, draw = _Sample(sample_rows), partial(_draw, calibrator.input, sample_rows)
    for seen, drawn in map(draw, pieces) if run is None else run(draw, pieces):
        sample.add(seen, drawn)
    rows = sample.rows()
    if rows is None:
        raise ValueError("there are no rows to fit on")
    names = getattr(batches, "classes", None) if classes is None else classes
    n_classes = rows["scores"].shape[1] if rows["scores"].ndim == 2 else 2
    names = None if names is None else check_classes(names, n_classes)
    checked = Rows.of(
        rows["scores"],
        rows["y"],
        input=calibrator.input,
        weight=rows.get("weight"),
        groups=rows.get("groups"),
        by=_by_title(rows),
    )
    # The labels of blocks are positions of classes already.
    calibrator.fit(replace(checked, names=names))
    calibrator.fit_ = replace(calibrator.fit_, source_rows=sample.seen)
    return calibrator


class _Sample:
    """The rows with the smallest hashes among those seen so far."""

    def __init__(self, most: int) -> None:
        self.most, self.seen, self._limit = most, 0, _TOP
        self._parts: list[_Columns] = []

    def add(self, seen: int, rows: _Columns | None) -> None:
        self.seen += seen
        if rows is None:
            return
        if self._parts and _form(rows) != _form(self._parts[0]):
            raise ValueError(
                f"batches differ: some have {_form(self._parts[0])}, others {_form(rows)}; all need the same "
                "classes, and weights and groups all or none"
            )
        if rows["scores"].ndim == 2:
            self.most = min(self.most, max(1, SAMPLE_SCORES // rows["scores"].shape[1]))
        near = np.flatnonzero(rows["hash"] <= self._limit)
        self._parts.append({name: column[near] for name, column in rows.items()})
        if (
            sum(len(part["y"]) for part in self._parts[1:]) > self.most // 4 + 1000
        ):  # not for every block: it copies
            self.rows()

    def rows(self) -> _Columns | None:
        """Return the sample, None before the first rows."""
        if not self._parts:
            return None
        whole = {
            name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]
        }
        order = np.arange(len(whole["hash"]))
        if len(order) > self.most:
            order = np.argpartition(whole["hash"], self.most - 1)[: self.most]
        order = order[np.argsort(whole["hash"][order])]  # numbers of rows have different hashes
        if len(order) == self.most:
            self._limit = whole["hash"][order[-1]]
        self._parts = [{name: column[order] for name, column in whole.items()}]
        return self._parts[0]


def _form(rows: _Columns) -> str:
    return ", ".join(
        f"{name} {'×'.join(map(str, ['N', *rows[name].shape[1:]]))}" for name in sorted(rows)
    )


def _draw(input: inputs.InputKind, most: int, piece: RowPiece) -> tuple[int, _Columns | None]:
    """Return the number of rows of a piece and a sample of them."""
    sample = _Sample(most)
    for batch in _open(piece):
        _check(batch, input)
        number = np.arange(batch.start, batch.start + len(batch), dtype=np.uint64)
        columns = {
            "hash": _mix(number + np.uint64(0x9E3779B97F4A7C15)),
            "scores": batch.scores,
            "y": batch.y,
        }
        columns |= {"weight": batch.weight, "groups": batch.groups, "by": _segments(batch)}
        sample.add(
            len(batch), {name: np.asarray(col) for name, col in columns.items() if col is not None}
        )
    return sample.seen, sample.rows()


def _segments(batch: Batch) -> NDArray[Any] | None:
    """Return the name of each row's segment in a column (B, 2) with the title, which is the same in every row."""
    if batch.by is None:
        return None
    names = np.asarray(batch.by.names)[batch.by.codes]
    return np.stack([names, np.full(len(names), batch.by.title)], axis=1)


def _by_title(rows: _Columns) -> dict[str, NDArray[Any]] | None:
    """Return the segments of sampled rows by their title."""
    columns = rows.get("by")
    return None if columns is None else {str(columns[0, 1]): columns[:, 0]}


def _open(piece: RowPiece) -> Iterator[Batch]:
    """Yield the batches of a piece, without empty ones."""
    found = read_piece(piece) if isinstance(piece, Piece) else piece() if callable(piece) else piece
    for batch in [found] if isinstance(found, Batch) else found:
        if not isinstance(batch, Batch):
            raise TypeError(f"batches must hold hcal.io.Batch objects, got {type(batch).__name__}")
        if len(batch):
            yield batch


def _check(batch: Batch, input: inputs.InputKind) -> None:
    """Check a batch; errors name the row in the whole data."""
    with rows_from(batch.start):
        if batch.kind != input:
            raise ValueError(
                f"the batch holds {batch.kind}, but the calibrator takes input={input!r}"
            )
        if batch.y is None:
            raise ValueError("the batch has no labels")
        scores, _ = inputs.check_scores(batch.scores, input=input)
        inputs.check_labels(batch.y, *scores.shape)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of every number (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
