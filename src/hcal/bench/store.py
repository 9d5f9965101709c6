"""The results file: one tidy CSV, appended cell by cell, that a crash cannot corrupt.

A *cell* is one task × method × seed. Its rows are written in one call and end with a ``status`` row; a cell
without its status row was cut off by a crash, counts as never run, and is removed when the file is next
opened for writing. Metrics have ``pre`` (uncalibrated) and ``post``; facts (fit time, argmax changes, …)
have ``post`` only; ``note`` holds JSON (reliability bins, loss curve, bootstrap replicates, the error).
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hcal.bench.catalog import method_key, metric_key
from hcal.io.limits import BROKEN, one_line, open_regular
from hcal.extras import load_extra

COLUMNS: Final = ("task", "method", "seed", "metric", "pre", "post", "note")
#: Metric -> its name in results files, where that is another: pooled events were all that ``hce`` had when
#: the first files were written, and a name in a file must not change its meaning (decision 150).
_STORED_NAMES: Final = {"hce_pooled": "hce", "hce": "hce_class"}
_METRIC_NAMES: Final = {stored: name for name, stored in _STORED_NAMES.items()}
STATUS: Final = "status"
#: Rows that describe the cell rather than measure calibration error.
FACTS: Final = (
    "fit_s", "fit_cpu_s", "predict_s", "peak_mb", "argmax_changes", "order_inversions", "collapsed",
    "reliability", "loss_curve", STATUS,
)  # fmt: skip


class Key(NamedTuple):
    """What names a cell."""

    task: str
    method: str
    seed: int


@dataclass
class Cell:
    """All that is stored of one cell."""

    key: Key
    #: Metric or fact -> value before and after calibration.
    pre: dict[str, float] = field(default_factory=dict)
    post: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # metric or fact -> decoded JSON

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end."""
        return bool(self.notes.get(STATUS, {}).get("status") == "ok")

    @property
    def error(self) -> str:
        """What went wrong, or nothing."""
        return str(self.notes.get(STATUS, {}).get("error", ""))

    def rows(self) -> Iterator[list[str]]:
        """Yield the CSV rows of this cell, the status row last."""
        names = {**self.pre, **self.post, **self.notes}
        for name in sorted(names, key=lambda n: (n == STATUS, metric_key(n))):
            note = json.dumps(self.notes[name], separators=(",", ":")) if name in self.notes else ""
            numbers = (_text(self.pre.get(name)), _text(self.post.get(name)))
            stored = _STORED_NAMES.get(name, name)
            yield [self.key.task, self.key.method, str(self.key.seed), stored, *numbers, note]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


class Store:
    """The results file, open for appending by one process at a time.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.csv"
    >>> cell = Cell(Key("a", "ts", 0), {"nll": 1.0}, {"nll": 0.5}, {"status": {"status": "ok"}})
    >>> with Store(path) as store:
    ...     store.append(cell)
    >>> read_results(path).value("a", "ts", "nll")
    0.5
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"{self.path} is not a regular file: results are not written there")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(self._fd, self.path)
            self._repair()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, cell: Cell) -> None:
        """Write one cell in one call, and wait until it is on the disk."""
        self._write(cell.rows())

    def _write(self, rows: Iterable[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        data = memoryview(text.getvalue().encode())
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def _repair(self) -> None:
        """Cut off what follows the last complete cell; write the header of an empty file."""
        data = self.path.read_bytes()
        try:
            good = _complete_length(data)
        except ValueError as error:
            raise ValueError(f"{self.path.name} is not a results file: {error}") from None
        if good < len(data):
            os.ftruncate(self._fd, good)
        if good == 0:
            self._write([COLUMNS])


def _lock(fd: int, path: Path) -> None:
    """Refuse a second writer; the lock vanishes with the process, however it dies."""
    try:
        import fcntl
    except ImportError:  # no such lock on Windows: one writer at a time is then the user's care
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BlockingIOError(f"another benchmark run is writing {path}") from None


def _complete_length(data: bytes) -> int:
    """Return how many bytes form the header and complete cells."""
    header = ",".join(COLUMNS).encode() + b"\n"
    if not data.startswith(header):
        if data.strip() and not header.startswith(data):
            raise ValueError(f"it begins with {data[:60]!r}")
        return 0
    # JSON escapes its newlines, so a row is a line, and the fourth field is never inside a quoted note.
    good, start = len(header), len(header)
    while (end := data.find(b"\n", start)) >= 0:
        fields = data[start:end].split(b",", 4)
        if len(fields) == 5 and fields[3] == STATUS.encode():
            good = end + 1
        start = end + 1
    return good


class Results:
    """Everything a results file holds, as cells with lookups; what tables and figures read.

    A later cell replaces an earlier one of the same key (a retry).
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells: dict[Key, Cell] = {c.key: c for c in cells}
        self.good = {k: c for k, c in self.cells.items() if c.ok}
        self._seeds: dict[tuple[str, str], list[int]] = {}
        self._before: dict[str, dict[str, float]] = {}
        for key in sorted(self.good):
            self._seeds.setdefault((key.task, key.method), []).append(key.seed)
            self._before[key.task] = self.good[key].pre | self._before.get(key.task, {})
        self.tasks = sorted({k.task for k in self.good})
        self.methods = sorted({k.method for k in self.good}, key=method_key)
        found = {name for c in self.good.values() for name in c.post}
        self.metrics = sorted(found - set(FACTS) - {"mean_confidence"}, key=metric_key)

    def seeds(self, task: str, method: str) -> list[int]:
        """Return the seeds of a task and method that ran to their end."""
        return self._seeds.get((task, method), [])

    def values(self, task: str, method: str, metric: str) -> NDArray[np.float64]:
        """Return the value after calibration for each seed; shape (seeds,)."""
        cells = [self.good[Key(task, method, s)] for s in self.seeds(task, method)]
        return np.array([c.post[metric] for c in cells if metric in c.post], dtype=np.float64)

    def value(self, task: str, method: str, metric: str) -> float:
        """Return the mean over seeds after calibration; NaN where nothing ran."""
        found = self.values(task, method, metric)
        return float(found.mean()) if found.size else float("nan")

    def before(self, task: str, metric: str) -> float:
        """Return the uncalibrated value of a metric on a task; NaN where nothing ran."""
        return self._before.get(task, {}).get(metric, float("nan"))

    def table(self, metric: str, *, relative: bool = False) -> NDArray[np.float64]:
        """Return the array (tasks, methods) of a metric, or of its ratio to the uncalibrated value."""
        rows = [[self.value(t, m, metric) for m in self.methods] for t in self.tasks]
        out = np.array(rows, dtype=np.float64).reshape(len(self.tasks), len(self.methods))
        if relative:
            out = out / np.array([[self.before(t, metric)] for t in self.tasks])
        return out

    def select(self, tasks: Sequence[str] | None = None, methods: Sequence[str] | None = None) -> Results:
        """Return the part with the given tasks and methods."""
        keep = [
            c
            for k, c in self.cells.items()
            if (tasks is None or k.task in tasks) and (methods is None or k.method in methods)
        ]
        return Results(keep)

    def failures(self) -> list[Cell]:
        """Return the cells that did not run to their end."""
        return [c for c in self.cells.values() if not c.ok]


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read ``.csv`` or ``.parquet`` results, also while a run is writing them; incomplete cells are left out.

    >>> read_results("no such file")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: no such file
    """
    source = Path(path)
    with open_regular(source) as file:
        data = file.read()
    try:
        return Results(_cells(_parquet_rows(data) if source.suffix == ".parquet" else _csv_rows(data)))
    except BROKEN as error:
        raise ValueError(f"{source.name} is not a results file: {one_line(error)}") from None


def _csv_rows(data: bytes) -> Iterator[list[str]]:
    text = data[: _complete_length(data)].decode()
    csv.field_size_limit(10_000_000)
    reader = csv.reader(io.StringIO(text, newline=""))
    next(reader, None)
    yield from reader


def _parquet_rows(data: bytes) -> Iterator[list[str]]:
    pa = load_extra("reading .parquet", "pyarrow", "frames")
    from pyarrow import parquet

    columns = parquet.read_table(pa.BufferReader(data)).to_pydict()
    for row in zip(*(columns[c] for c in COLUMNS), strict=True):
        yield ["" if v is None else str(v) for v in row]


def _cells(rows: Iterable[Sequence[str]]) -> Iterator[Cell]:
    cell: Cell | None = None
    for task, method, seed, stored, pre, post, note in rows:
        metric = _METRIC_NAMES.get(stored, stored)
        key = Key(task, method, int(seed))
        if cell is None or cell.key != key:
            cell = Cell(key)
        if pre:
            cell.pre[metric] = float(pre)
        if post:
            cell.post[metric] = float(post)
        if note:
            cell.notes[metric] = json.loads(note)
        if metric == STATUS:
            yield cell
            cell = None


def export_results(results: Results, path: str | os.PathLike[str]) -> None:
    """Write results as a compact file in sorted order, without superseded cells: ``.csv`` or ``.parquet``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "kept.csv"
    >>> export_results(Results([Cell(Key("a", "ts", 0), notes={"status": {"status": "ok"}})]), path)
    >>> len(read_results(path).cells)
    1
    """
    from hcal.io.atomic import atomic_path

    keys = sorted(results.cells, key=lambda k: (k.task, method_key(k.method), k.seed))
    rows = [row for key in keys for row in results.cells[key].rows()]
    with atomic_path(path) as temporary:
        if Path(path).suffix == ".parquet":
            _write_parquet(rows, temporary)
        else:
            with temporary.open("w", newline="", encoding="utf-8") as f:
                csv.writer(f, lineterminator="\n").writerows([COLUMNS, *rows])


def _write_parquet(rows: list[list[str]], path: Path) -> None:
    pa = load_extra("writing .parquet", "pyarrow", "frames")
    from pyarrow import parquet

    columns: dict[str, list[Any]] = {name: [r[i] for r in rows] for i, name in enumerate(COLUMNS)}
    columns["seed"] = [int(s) for s in columns["seed"]]
    for name in ("pre", "post"):
        columns[name] = [float(v) if v else None for v in columns[name]]
    parquet.write_table(pa.table(columns), path)
