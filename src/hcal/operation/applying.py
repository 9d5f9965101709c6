"""Apply a calibrator to files: probabilities for every row, in files that mirror the folders of the inputs."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from hcal.fit_record import (
    fitted_names,
    fitted_request,
    fitted_segments,
    predict_with_segments,
    unknown_segments,
)
from hcal.io.blocks import Batches, NoRowsError, batches
from hcal.io.files import FilesLike, NamedFiles, check_output, paths_of, sources_of
from hcal.io.reading import DataFile, column_names, read, read_blocks
from hcal.io.records import is_answers
from hcal.io.request import Request
from hcal.io.targets import Pair, is_folder, mirrored, prepare_folder, relative_names
from hcal.io.writing import BlockWriter, can_write, write_blocks
from hcal.leakage import model_fingerprint
from hcal.methods.base import Calibrator
from hcal.numerics import FloatArray
from hcal.passes import Advance, Runner
from hcal.progress import progress
from hcal.results import Result
from hcal.rows import OneColumn

#: How many rows of a finished file are compared with what the calibrator gives now, before a run goes on.
_COMPARED: Final = 256
#: How far two computations of one probability may differ: blocks of another size round in another way.
_ROUNDING: Final = 1e-5


@dataclass(frozen=True, repr=False)
class Applied(Result):
    """What :func:`apply` wrote.

    Attributes
    ----------
    output : str
        The file or the folder.
    files, rows : int
        How many files and rows this call wrote.
    finished : int
        Files of an interrupted run that were complete already.
    empty : int
        Inputs without rows, for which nothing is written.
    unknown : int
        Rows whose segment the fit did not see; they got the common calibrator.
    mean_confidence : float
        The mean of the largest probability of each row that this call wrote.
    method, model : str
        The calibrator's method, and its fingerprint.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import hcal
    >>> cal = hcal.TemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", logits=[[0.0, 2.0]])
    ...     applied = hcal.apply(cal, f"{folder}/new.npz", f"{folder}/probs.npz")
    >>> applied.rows, round(applied.mean_confidence, 2)
    (1, 0.75)
    """

    schema: ClassVar[str] = "hcal/apply/1"

    output: str
    files: int
    rows: int
    finished: int
    empty: int
    unknown: int
    mean_confidence: float
    method: str
    model: str

    def _headline(self) -> list[str]:
        in_files = f" in {self.files:,} files" if self.files != 1 else ""
        confidence = f", mean confidence {self.mean_confidence:.4f}" if self.rows else ""
        lines = [f"wrote {self.output}: {self.rows:,} rows{in_files}{confidence}"]
        if self.unknown:
            lines.append(
                f"{self.unknown:,} rows have a segment that the fit did not see: they got the "
                "common calibrator"
            )
        if self.finished:
            lines.append(f"{_files(self.finished)} complete already")
        if self.empty:
            lines.append(f"{_files(self.empty)} without rows, for which nothing was written")
        return lines


def _files(count: int) -> str:
    """Return a number of files with their verb.

    >>> _files(1), _files(2000)
    ('1 file was', '2,000 files were')
    """
    return f"{count:,} file was" if count == 1 else f"{count:,} files were"


def apply(  # noqa: PLR0913 - a public door
    calibrator: Calibrator,
    source: FilesLike,
    output: str | os.PathLike[str],
    *,
    request: Request | None = None,
    keep: bool = False,
    batch_rows: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    runner: Runner | None = None,
    advance: Advance = None,
) -> Applied:
    """Write calibrated probabilities for the rows of files.

    Parameters
    ----------
    calibrator : Calibrator
        A fitted one; it knows the columns that it was fitted on.
    source : path-like, or sequence of them
        A file, a folder or a pattern, as for :func:`hcal.io.read`.
    output : path-like
        A file, or a folder that gets a file for each input, at the same place below it. A file is replaced. A folder
        must be new or empty, unless ``resume`` or ``overwrite`` is given.
    request : Request, optional
        The names of the columns, where they differ from those of the fit.
    keep : bool
        Whether to copy all other columns.
    batch_rows : int, optional
        The most rows that are read at a time.
    resume : bool
        Go on with an interrupted run: files that are complete stay. Each is checked first: it has as many rows as
        its input and is not older, and it begins as the calibrator's output does now.
    overwrite : bool
        Write files again where the folder has them.
    runner : callable, optional
        Who works on the files, such as ``hcal.passes.Processes(4)``; this process by default.
    advance : callable, optional
        Is called with the number of rows after each file.

    Returns
    -------
    Applied

    Examples
    --------
    >>> import hcal, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for country in ("DE", "FR"):
    ...     (folder / f"in/country={country}").mkdir(parents=True)
    ...     np.savez(folder / f"in/country={country}/part-0.npz", logits=[[0.0, 1.0], [2.0, 0.0]])
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 1.0], [2.0, 0.0]] * 4, [1, 0, 0, 0] * 2)
    >>> hcal.apply(cal, folder / "in", folder / "out").files
    2
    >>> sorted(path.relative_to(folder / "out").as_posix() for path in folder.rglob("out/**/*.npz"))
    ['country=DE/part-0.npz', 'country=FR/part-0.npz']
    """
    if resume and overwrite:
        raise ValueError(
            "resume=True (--resume) keeps complete files and overwrite=True (--overwrite) "
            "replaces them: give one"
        )
    target = Path(output)
    check_output(target, paths_of(source))
    sources = sources_of(source)
    job = _Job(
        calibrator,
        _request_of(calibrator, request),
        batch_rows,
        keep,
        model_fingerprint(calibrator) if hasattr(calibrator, "prediction_") else "",
    )
    if is_folder(target, sources):
        pairs = mirrored(sources, Path(os.path.abspath(target)))
        prepare_folder(target, pairs, replace=resume or overwrite)
        pending = [pair for pair in pairs if not (resume and job.is_complete(pair))]
        finished = len(pairs) - len(pending)
        tasks = [_Task((pair.source,), pair.target) for pair in pending]
    else:
        can_write(target)
        if keep and target.suffix.lower() == ".npy":
            raise ValueError(f"{target} holds one matrix: keep=True (--keep) needs a table or .npz")
        finished = 0
        tasks = [_Task(*_one_target(sources, target))]
    return _run(job, tasks, finished, target, runner, advance)


def _one_target(
    sources: Sequence[NamedFiles], target: Path
) -> tuple[tuple[Path, ...], Path, Mapping[Path, str]]:
    """Return the files that are written to one file, and by what name its rows say which file they come from."""
    names = {file: name.as_posix() for file, name in relative_names(sources).items()}
    several = len(sources) > 1 or not sources[0].is_one_file
    absolute = {Path(os.path.abspath(file)): name for file, name in names.items()}
    return tuple(names), Path(os.path.abspath(target)), absolute if several else {}


def _request_of(calibrator: Calibrator, request: Request | None) -> Request:
    """Return how rows are asked for; what is left open is as in the calibrator's fit."""
    return (request or Request()).for_model(fitted_request(calibrator))


def _run(
    job: _Job,
    tasks: Sequence[_Task],
    finished: int,
    output: Path,
    runner: Runner | None,
    advance: Advance,
) -> Applied:
    """Work on all files and add up what was written."""
    # Workers may have another working folder.
    absolute = [
        replace(task, files=tuple(Path(os.path.abspath(f)) for f in task.files)) for task in tasks
    ]
    files = 0
    rows = 0
    empty = 0
    unknown = 0
    confidence = 0.0
    score_range = OneColumn()
    with progress("writing files", len(absolute)) as file_done:
        for written in (runner or map)(job, absolute):
            rows += written.rows
            confidence += written.confidence
            unknown += written.unknown
            score_range.merge(written.range)
            files += written.rows > 0
            empty += written.rows == 0
            file_done(1)
            if advance is not None:
                advance(written.rows)
    if empty and not files and not finished:
        raise ValueError(f"{absolute[0].files[0].name} has no rows")
    _check_kind_of_all(job, score_range, output)
    mean = confidence / rows if rows else float("nan")
    return Applied(
        output=str(output),
        files=files,
        rows=rows,
        finished=finished,
        empty=empty,
        unknown=unknown,
        mean_confidence=mean,
        method=job.calibrator.name,
        model=job.made_by,
    )


def _check_kind_of_all(job: _Job, score_range: OneColumn, output: Path) -> None:
    """Refuse files that are too small to show alone that their scores are of another kind."""
    try:
        job.check_kind(score_range)
    except ValueError as error:
        raise ValueError(f"{error}; delete {output}, which was written from these scores") from None


@dataclass(frozen=True)
class _Task:
    """The files whose rows go into one file; ``names`` says what their rows are marked with, if there are several."""

    files: tuple[Path, ...]
    target: Path
    names: Mapping[Path, str] | None = None


@dataclass(frozen=True)
class _WrittenPart:
    """How many rows were written, the sum of their confidences, rows of unknown segments, and the range of scores."""

    rows: int
    confidence: float
    unknown: int = 0
    range: OneColumn = field(default_factory=OneColumn)


@dataclass(frozen=True)
class _Job:
    """What is done with each file; it works in this process or in another."""

    calibrator: Calibrator
    request: Request
    batch_rows: int | None
    keep: bool
    made_by: str

    def __call__(self, task: _Task) -> _WrittenPart:
        """Write the probabilities of some files to one file."""
        rows = self._rows(task.files)
        if rows is None:
            return _WrittenPart(0, 0.0)
        confidence = 0.0
        unknown = 0
        score_range = OneColumn()
        writer = self._writer(task.target, rows.first, rows.n_rows)
        with writer as write, progress(task.target.name, rows.n_rows) as advance:
            for data in rows:
                advance(len(data.values))
                probs = self._write(write, data, task.names, score_range)
                confidence += float(probs.max(axis=1).sum())
                unknown += unknown_segments(self.calibrator, data.segments)
            self.check_kind(score_range)
        return _WrittenPart(rows.n_rows, confidence, unknown, score_range)

    def check_kind(self, score_range: OneColumn) -> None:
        """Refuse scores that look like probabilities where those of the fit did not."""
        record = getattr(self.calibrator, "fit_", None)
        if record is not None:
            score_range.check(record.score_range)

    def is_complete(self, pair: Pair) -> bool:
        """Whether the target is what this job would write: by its age, its rows and columns, and its first rows."""
        target = pair.target
        if not target.is_file() or target.stat().st_mtime < pair.source.stat().st_mtime:
            return False
        rows = self._rows((pair.source,))
        if rows is None:
            return False
        with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
            beginning = Path(folder, target.name)
            head = rows.first.rows(np.arange(min(len(rows.first.values), _COMPARED)))
            with self._writer(beginning, head, len(head.values)) as write:
                self._write(write, head, None, OneColumn())
            return _begins_as(target, beginning, rows.n_rows)

    def _rows(self, files: Sequence[Path]) -> _Rows | None:
        """Return the rows of files; None if they have none."""
        order = fitted_names(self.calibrator)
        if is_answers(files, self.request):
            data = read(files, self.request, keep=self.keep, order=order)
            return _Rows(data, len(data.values), None)
        try:
            source = batches(files, self.request, rows=self.batch_rows, order=order, keep=self.keep)
        except NoRowsError:
            return None
        return _Rows(source.first, source.n_rows, source)

    def _writer(
        self, target: Path, first: DataFile, n_rows: int
    ) -> AbstractContextManager[BlockWriter]:
        roles = self.request.roles
        names = {role: name for role, name in roles.items() if role in ("id", "label")}
        if first.questions:
            names.setdefault("id", "doc_id")
        return write_blocks(target, n_rows, classes=first.classes, names=names, model=self.made_by)

    def _write(
        self,
        write: BlockWriter,
        data: DataFile,
        names: Mapping[Path, str] | None,
        score_range: OneColumn,
    ) -> FloatArray:
        """Write the probabilities of some rows and return them."""
        with warnings.catch_warnings():
            # Rows of unknown segments are counted over all blocks and files.
            warnings.filterwarnings("ignore", ".*that the fit did not see")
            probs = self._predicted(data, score_range)
        kept = dict(data.beside)
        if names and not data.more:
            column = "source_file" if "file" in {*self.request.roles.values(), *kept} else "file"
            kept[column] = np.full(len(probs), names[data.path])
        if data.questions:
            kept = {"options": np.isfinite(data.values).sum(axis=1), **kept}
        write(probs, data.y, ids=data.ids, kept=kept)
        return probs

    def _predicted(self, data: DataFile, score_range: OneColumn) -> FloatArray:
        """Return the probabilities of some rows, and add them to the range of scores."""
        cal = self.calibrator
        if data.questions or not isinstance(cal, Calibrator):
            return np.asarray(predict_with_segments(cal, data.values, data.segments))
        by = {"by": data.segments} if fitted_segments(cal) else {}
        rows = cal.rows_like(data.values, complete=False, **by)
        score_range.update(rows)
        return np.asarray(cal.probs_of(rows))


@dataclass(frozen=True)
class _Rows:
    """Rows to be read, at once or block by block."""

    first: DataFile
    n_rows: int
    source: Batches | None

    def __iter__(self) -> Iterator[DataFile]:
        if self.source is None:
            yield self.first
            return
        for piece in self.source.pieces():
            for _, data in read_blocks(piece):
                yield data


def _begins_as(target: Path, beginning: Path, n_rows: int) -> bool:
    """Whether a file has so many rows, and the same columns and first rows as another."""
    request = Request(input="probs")
    try:
        if column_names(target) != column_names(beginning):
            return False
        expected = read(beginning, request).values
        output = batches(target, request, rows=_COMPARED)
    except (ValueError, OSError):
        return False  # what cannot be read is written again
    same_rows = output.n_rows == n_rows
    head = output.first.values[: len(expected)]
    return same_rows and bool(np.allclose(head, expected, rtol=0, atol=_ROUNDING, equal_nan=True))
