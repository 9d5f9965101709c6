"""Fit on rows that do not fit in memory: on a sample of them that does not depend on how they are cut into blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.io import Batch, Batches, Piece, read_piece, rows_from
from hcal.io.class_names import check_classes
from hcal.passes import Runner

Method = TypeVar("Method", bound=Calibrator)
#: A block of rows, rows of a file, or a function that reads blocks where the work is done.
RowPiece = Batch | Piece | Callable[[], Batch | Iterable[Batch]]
#: What is kept of rows: their hashes and scores, labels, weights and groups by name.
_Rows = dict[str, NDArray[Any]]

#: Rows of a sample: with ten classes the default's fit then needs 0.8 GB.
SAMPLE_ROWS = 300_000
#: Scores (rows × classes) of a sample at most: 160 MB of float64, of which a fit needs several times.
SAMPLE_SCORES = 20_000_000
_TOP = np.iinfo(np.uint64).max


def fit_batches(
    calibrator: Method,
    batches: Batches | Iterable[RowPiece] | Callable[[], Iterable[RowPiece]],
    *,
    sample_rows: int = SAMPLE_ROWS,
    n_rows: int | None = None,
    run: Runner | None = None,
    classes: Any = None,
) -> Method:
    """Fit a calibrator on blocks of rows, of which one at a time is in memory.

    A calibrator has few parameters: some 100,000 rows fix them far better than the next data set resembles this
    one. So every method is fitted in memory, on the rows with the smallest hashes of their numbers: a random
    sample that is the same however the rows are cut into blocks. Where it holds all rows, the fit is that in
    memory.

    ``info_["batches"]`` says how many rows there were and how many were used.

    Parameters
    ----------
    calibrator : Calibrator
    batches : Batches of :func:`hcal.io.batches`, iterable of Batch, or a function that returns one
        Or of functions that read batches where the work is done.
    sample_rows : int
        Rows of the sample; with more than 66 classes fewer, so that it holds at most 20 million scores.
    n_rows : int, optional
        How many rows there are, if you know: less is then sent from where they are read.
    run : callable, optional
        (function, pieces) ↦ the function's result for every piece: where the blocks are read. By default here.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; by default those that the batches know.

    Returns
    -------
    Calibrator
        The same object, fitted.

    Examples
    --------
    >>> from hcal.calibrators.ts import TemperatureScaling
    >>> z, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> blocks = [Batch(z[i : i + 2], "logits", y[i : i + 2], i) for i in (0, 2)]
    >>> cal = fit_batches(TemperatureScaling(), blocks)
    >>> cal.predict_proba(z[:1]).round(6), cal.info_["batches"]["rows"]
    (array([[0.25, 0.75]]), 4)
    """
    if sample_rows < 1:
        raise ValueError(f"sample_rows must be at least 1, got {sample_rows}")
    known = getattr(batches, "n_rows", None) if n_rows is None else n_rows
    sample = _Sample(sample_rows, known)
    pieces: Iterable[RowPiece] = batches() if callable(batches) else batches
    if run is None:
        for piece in pieces:
            sample.add(_draw(calibrator.input, sample.limit, piece))
    else:
        pieces = batches.pieces() if isinstance(batches, Batches) else pieces
        for drawn in run(partial(_draw, calibrator.input, sample.limit), pieces):
            sample.add(drawn)
    rows = sample.result()
    names = getattr(batches, "classes", None) if classes is None else classes
    n_classes = rows["scores"].shape[1] if rows["scores"].ndim == 2 else 2
    names = None if names is None else check_classes(names, n_classes)
    texts = None if names is None else [str(name) for name in names]  # labels are positions
    calibrator.fit(rows["scores"], rows["y"], rows.get("weight"), groups=rows.get("groups"), classes=texts)
    calibrator.class_names_ = names
    used = len(rows["y"])
    words = f"all {used:,} rows" if used == sample.seen else f"a sample of {used:,} of {sample.seen:,} rows"
    facts = {"rows": sample.seen, "rows_used": used, "words": f"fitted on {words}"}
    calibrator.info_["batches"] = facts
    return calibrator


class _Sample:
    """The rows of the smallest hashes among those seen so far."""

    def __init__(self, most: int, n_rows: int | None) -> None:
        self.most, self.seen = most, 0
        self.limit = _TOP if n_rows is None else _limit(most, n_rows)
        self._parts: list[_Rows] = []
        self._pending = 0

    def add(self, drawn: tuple[int, _Rows | None]) -> None:
        seen, rows = drawn
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
        self._parts.append(rows)
        self._pending += len(rows["y"])
        if self._pending > self.most // 4 + 1000:  # copying the sample for every block would cost
            self._thin()

    def _thin(self) -> None:
        whole = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.argsort(whole["hash"], kind="stable")[: self.most]
        if len(order) == self.most:
            self.limit = min(self.limit, int(whole["hash"][order[-1]]))
        self._parts, self._pending = [{name: column[order] for name, column in whole.items()}], 0

    def result(self) -> _Rows:
        if not self._parts:
            raise ValueError("there are no rows to fit on")
        self._thin()
        return self._parts[0]


def _limit(most: int, n_rows: int) -> int:
    """Return the hash below which ``most`` of so many rows lie, but for a chance below 1e-8."""
    share = (most + 6 * most**0.5 + 20) / max(n_rows, 1)
    return _TOP if share >= 1 else int(share * _TOP)


def _form(rows: _Rows) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, ['N', *rows[name].shape[1:]]))}" for name in sorted(rows))


def _draw(input: inputs.InputKind, limit: int, piece: RowPiece) -> tuple[int, _Rows | None]:
    """Return how many rows a piece has, and those whose hashes do not pass the limit."""
    seen, parts = 0, []
    for batch in _open(piece):
        _check(batch, input)
        number = np.arange(batch.start, batch.start + len(batch), dtype=np.uint64)
        hashes = _mix(number + np.uint64(0x9E3779B97F4A7C15))
        columns = {"hash": hashes, "scores": batch.scores, "y": batch.y}
        columns |= {"weight": batch.weight, "groups": batch.groups}
        near = np.flatnonzero(hashes <= np.uint64(limit))
        parts.append({name: np.asarray(col)[near] for name, col in columns.items() if col is not None})
        seen += len(batch)
    if not parts:
        return seen, None
    return seen, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _open(piece: RowPiece) -> Iterator[Batch]:
    """Yield the batches that a piece is, or reads; empty ones are left out."""
    found = read_piece(piece) if isinstance(piece, Piece) else piece() if callable(piece) else piece
    for batch in [found] if isinstance(found, Batch) else found:
        if not isinstance(batch, Batch):
            raise TypeError(f"batches must hold hcal.io.Batch objects, got {type(batch).__name__}")
        if len(batch):
            yield batch


def _check(batch: Batch, input: inputs.InputKind) -> None:
    """Name every fault of a batch with its rows."""
    with rows_from(batch.start):
        if batch.kind != input:
            raise ValueError(f"the batch holds {batch.kind}, but the calibrator takes input={input!r}")
        if batch.y is None:
            raise ValueError("the batch has no labels")
        scores, _ = inputs.check_scores(batch.scores, input=input)
        inputs.check_labels(batch.y, *scores.shape)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all 64 (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
