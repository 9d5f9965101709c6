"""Apply a calibrator to rows that come block by block, and write what it says as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from hcal.calibrators.base import Calibrator
from hcal.io.atomic import atomic_folder
from hcal.io.batching import Batches, rows_from
from hcal.io.block_writing import BLOCK_TYPES, write_blocks
from hcal.io.pieces import Piece, read_data_blocks
from hcal.passes import Driver, one_by_one

#: Probabilities, labels as the file has them, ids.
Block = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]
#: The parts of a folder where the input's own type cannot be written block by block.
_USUAL_TYPE: Final = ".npz"


@dataclass(frozen=True)
class Applied:
    """What was written.

    Attributes
    ----------
    rows, parts : int
        How many rows there were, in how many files.
    mean_confidence : float
    """

    rows: int
    parts: int
    mean_confidence: float


def apply_batches(
    calibrator: Calibrator,
    source: Batches,
    output: str | Path,
    *,
    driver: Driver | None = None,
    advance: Callable[[int], None] | None = None,
) -> Applied:
    """Write the calibrated probabilities of all rows, with their labels and ids, in their order.

    Parameters
    ----------
    calibrator : Calibrator
    source : Batches
        Of files.
    output : path-like
        ``.npz .npy .csv`` or ``.parquet``: one file, written by this process. Without an ending: a new
        folder, a file for each piece, of the type of the input, written by whoever has the piece. Either
        appears when all is written, or not at all.
    driver : Driver, optional
        Who works on the pieces; this process by default. What is written does not depend on it.
    advance : callable, optional
        Told how many rows were done, again and again.

    Examples
    --------
    >>> import tempfile, numpy as np, hcal
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "scores.npy", np.tile([0.0, 2.0], (6, 1)))
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> rows = hcal.io.batches(folder / "scores.npy", kind="logits", rows=4)
    >>> apply_batches(cal, rows, folder / "probs.npy").rows
    6
    >>> np.load(folder / "probs.npy")[5].round(2).tolist()
    [0.25, 0.75]
    """
    advance = advance or (lambda rows: None)
    if Path(output).suffix:
        return _to_file(calibrator, source, Path(output), driver, advance)
    return _to_folder(calibrator, source, Path(output), driver or one_by_one, advance)


def predicted(calibrator: Calibrator, piece: Piece) -> Iterator[Block]:
    """Yield what a calibrator says of a piece, block by block."""
    for start, data in read_data_blocks(piece):
        with rows_from(start):
            probs = calibrator.predict_proba(data.values)
        yield probs, data.y, data.ids


def _blocks_of(calibrator: Calibrator, piece: Piece) -> list[Block]:
    return list(predicted(calibrator, piece))


def _to_file(
    calibrator: Calibrator, source: Batches, output: Path, driver: Driver | None, advance: Any
) -> Applied:
    pieces = source.pieces()
    rows, total = sum(map(len, pieces)), 0.0
    # Here a block is written before the next is made; from elsewhere the blocks of a piece come together.
    here = partial(predicted, calibrator)
    answers = map(here, pieces) if driver is None else driver(partial(_blocks_of, calibrator), pieces)
    with write_blocks(output, rows, classes=source.classes) as write:
        for blocks in answers:
            confidence = 0.0  # of a piece: so the sum does not depend on who made it
            for probs, y, ids in blocks:
                write(probs, y, ids)
                confidence += float(probs.max(axis=1).sum(dtype=float))
                advance(len(probs))
            total += confidence
    return Applied(rows, 1, total / max(rows, 1))


def _to_folder(
    calibrator: Calibrator, source: Batches, output: Path, driver: Driver, advance: Any
) -> Applied:
    pieces = source.pieces()
    suffix = source.paths[0].suffix.lower()
    total = 0.0
    with atomic_folder(output) as folder:
        suffix = suffix if suffix in BLOCK_TYPES else _USUAL_TYPE
        work = partial(_write_part, calibrator, folder, suffix, source.classes)
        for piece, confidence in zip(pieces, driver(work, list(enumerate(pieces))), strict=True):
            total += confidence
            advance(len(piece))
    rows = sum(map(len, pieces))
    return Applied(rows, len(pieces), total / max(rows, 1))


def _write_part(
    calibrator: Calibrator, folder: Path, suffix: str, classes: Any, numbered: tuple[int, Piece]
) -> float:
    """Write the file of a piece, under a name that only this piece has, and return its sum of confidences."""
    number, piece = numbered
    confidence = 0.0
    with write_blocks(folder / f"part-{number:05d}{suffix}", len(piece), classes=classes) as write:
        for probs, y, ids in predicted(calibrator, piece):
            write(probs, y, ids)
            confidence += float(probs.max(axis=1).sum(dtype=float))
    return confidence
