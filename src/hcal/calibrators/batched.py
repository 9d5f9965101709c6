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
from hcal.io.blocks import Batches, rows_from
from hcal.io.reading import Piece, read_blocks
from hcal.io.writing import WRITTEN_TYPES, write_blocks
from hcal.passes import Driver, one_by_one

#: Probabilities, labels as the file has them, ids, other columns.
Block = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None, dict[str, Any]]
#: The files of a folder where the input's own type cannot be written.
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
        With an ending that can be written: one file, written by this process. Without one: a new folder,
        with a file of the same name for each input file (of one file: for each piece), of the type of the
        input where that can be written. Either appears when all is written, or not at all.
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
    >>> rows = hcal.io.batches(folder / "scores.npy", hcal.io.Request(input="logits"), rows=4)
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
    for start, data in read_blocks(piece):
        with rows_from(start):
            probs = calibrator.predict_proba(data.values)
        yield probs, data.y, data.ids, data.beside


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
    with write_blocks(output, rows, classes=source.classes, names=_names(source)) as write:
        for blocks in answers:
            confidence = 0.0  # of a piece: so the sum does not depend on who made it
            for probs, *beside in blocks:
                write(probs, *beside)
                confidence += float(probs.max(axis=1).sum(dtype=float))
                advance(len(probs))
            total += confidence
    return Applied(rows, 1, total / max(rows, 1))


def _names(source: Batches) -> dict[str, str]:
    """Return what the output calls the id: as the input does."""
    return {"id": source.first.columns["id"]} if "id" in source.first.columns else {}


def _to_folder(
    calibrator: Calibrator, source: Batches, output: Path, driver: Driver, advance: Any
) -> Applied:
    files = _files(source)
    total = 0.0
    with atomic_folder(output) as folder:
        work = partial(_write_file, calibrator, folder, source.classes, _names(source))
        for (_, pieces), confidence in zip(files, driver(work, files), strict=True):
            total += confidence
            advance(sum(map(len, pieces)))
    rows = sum(len(piece) for _, pieces in files for piece in pieces)
    return Applied(rows, len(files), total / max(rows, 1))


def _files(source: Batches) -> list[tuple[str, list[Piece]]]:
    """Return the files of an output folder, by name, and the pieces that each has."""
    pieces, suffix = source.pieces(), source.paths[0].suffix.lower()
    suffix = suffix if suffix in WRITTEN_TYPES else _USUAL_TYPE
    if len(source.paths) == 1:
        return [(f"part-{number:05d}{suffix}", [piece]) for number, piece in enumerate(pieces)]
    names = [path.with_suffix(suffix).name for path in source.paths]
    if len(set(names)) < len(names):  # of several folders: the names count them
        names = [f"{number:05d}-{name}" for number, name in enumerate(names)]
    paths = [path.absolute() for path in source.paths]
    return [(name, [p for p in pieces if p.path == path]) for name, path in zip(names, paths, strict=True)]


def _write_file(
    calibrator: Calibrator, folder: Path, classes: Any, names: dict[str, str], file: tuple[str, list[Piece]]
) -> float:
    """Write one file of a folder, and return its sum of confidences."""
    name, pieces = file
    confidence = 0.0
    with write_blocks(folder / name, sum(map(len, pieces)), classes=classes, names=names) as write:
        for piece in pieces:
            for probs, *beside in predicted(calibrator, piece):
                write(probs, *beside)
                confidence += float(probs.max(axis=1).sum(dtype=float))
    return confidence
