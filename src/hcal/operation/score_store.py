"""Scores that wait for their labels, in one SQLite file: written when a model predicts, joined when labels come.

A label often comes weeks after its prediction. The store keeps the probabilities by the id of the row. When the labels
come it gives them back together, once, and counts the labels that fit no row.

A monitor that gets the joined rows has a state file of its own. So joined rows are pending in the store until that
file is written: a run that ends in between is finished by the next one, and no row is lost or counts twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from hcal import inputs
from hcal.certificates.monitor import Monitor
from hcal.certificates.monitor_file import shared_state
from hcal.class_names import ClassName, check_classes, encode
from hcal.frames import AnyArray, ColumnName, refuse_other_index
from hcal.io.files import check_regular
from hcal.numerics import Float64, IntArray
from hcal.operation.monitoring import update_by_name
from hcal.results import Result
from hcal.rows import Rows
from hcal.text import one_line, printable, quoted

if TYPE_CHECKING:
    import sqlite3

#: The layout of the file; another one is refused.
_VERSION: Final = 1
#: How many days rows are kept in a new file, unless the caller says so.
_KEEP_DAYS: Final = 90
#: How long a process waits for others that write to the same file, in seconds.
_PATIENCE: Final = 60.0
#: From here on a float stands for several whole numbers.
_EXACT: Final = 2.0**53
#: A longer text is no id; the limit on rows would not limit the file.
_LONGEST_ID: Final = 1000
#: How many ids one statement asks for.
_IDS_AT_ONCE: Final = 500

_TABLES: Final = """
CREATE TABLE scores (
  id TEXT PRIMARY KEY,
  day TEXT NOT NULL,
  probs BLOB NOT NULL,
  labelled TEXT
) WITHOUT ROWID;
CREATE INDEX scores_by_day ON scores (day);
CREATE TABLE pending (
  place INTEGER PRIMARY KEY,
  digest TEXT NOT NULL,
  state TEXT NOT NULL,
  name TEXT NOT NULL,
  day TEXT NOT NULL,
  label INTEGER NOT NULL,
  probs BLOB NOT NULL
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counts (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
"""
_STATEMENTS: Final = [sql for sql in _TABLES.split(";") if sql.strip()]
#: What a store counts over all time.
_COUNTS: Final = ("scored", "joined", "unknown", "twice", "deleted", "deleted_unlabelled")


@dataclass(frozen=True, repr=False)
class Joined(Result):
    """Stored probabilities and the labels that came for them.

    Attributes
    ----------
    ids : list of str
        The rows that have both, in the order of the labels.
    probs : array of shape (N, K)
    y : array of int of shape (N,)
    unknown : int
        Labels for ids that the store does not hold: they were never scored, or their scores were deleted.
    twice : int
        Labels for ids that already had one; the first one counts.
    waiting : int
        Stored rows that still have no label.
    """

    schema: ClassVar[str] = "hcal/joined/1"

    ids: list[str]
    probs: Float64
    y: IntArray
    unknown: int
    twice: int
    waiting: int

    def _headline(self) -> list[str]:
        counts = (
            f"{self.unknown:,} for unknown ids, {self.twice:,} for ids that had a label already"
        )
        return [
            f"{len(self.ids):,} rows have scores and labels now, {self.waiting:,} still wait; "
            f"labels left out: {counts}"
        ]


class ScoreStore:
    """Probabilities by the id of their row, until the labels come.

    Several processes and threads may use the same file. A row is added once: the same id again is refused, unless
    its probabilities are the same, as after a job that was repeated.

    Parameters
    ----------
    path : path-like
        The SQLite file; it is made if it does not exist.
    keep_days : int, optional
        Rows are deleted this many days after their prediction, labelled or not. The file remembers the number; a new
        file has 90.
    most_rows : int
        The most rows that the file holds; more are refused, and nothing is deleted for them.
    classes : sequence of K str or int, optional
        Names of the classes; labels may then be names. The file remembers them.

    Examples
    --------
    >>> import tempfile
    >>> store = ScoreStore(f"{tempfile.mkdtemp()}/scores.sqlite")
    >>> store.add(["a", "b"], [[0.2, 0.8], [0.6, 0.4]])
    2
    >>> store.join(["b", "c"], [0, 1])
    1 rows have scores and labels now, 1 still wait; labels left out: 1 for unknown ids, 0 for ids that had a label ...
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_days: int | None = None,
        most_rows: int = 10_000_000,
        classes: Sequence[ClassName] | None = None,
    ) -> None:
        if keep_days is not None and keep_days < 1:
            raise ValueError(f"keep_days must be at least 1, got {keep_days}")
        if most_rows < 1:
            raise ValueError(f"most_rows must be at least 1, got {most_rows}")
        self.path = Path(path)
        self.most_rows = most_rows
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"no such directory: {printable(self.path.parent)}")
        if self.path.exists():
            check_regular(self.path)
        with self._connected() as connection:
            _prepare(connection)
            self.keep_days = _remembered_days(connection, keep_days)
            self.classes = _remembered_classes(connection, classes)

    def add(self, ids: AnyArray, probs: AnyArray, *, day: str | date | None = None) -> int:
        """Add predictions and return how many rows are new; ids of equal predictions are passed over.

        Parameters
        ----------
        ids : sequence of N str or int
        probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
            Columns that have names are put in the order of ``classes``, or of the first columns with names.
        day : date or str, optional
            The day of the prediction (2026-05-01); today (UTC) by default. A day that has not come is refused, and so
            is one whose rows would be deleted at once.
        """
        refuse_other_index(probs, {"ids": ids})
        with self._connected() as connection:
            order = self.classes or _listed(connection, "columns")
        rows = Rows.of_predictions(probs, input="probs", classes=order)
        checked = np.ascontiguousarray(rows.scores, dtype=np.float64)
        names = _texts(ids, len(checked))
        if len(set(names)) < len(names):
            raise ValueError("an id stands twice among the rows to add: an id names one row")
        today = day_that_has_come(day)
        with self._connected() as connection:
            _set_classes(connection, checked.shape[1])
            _set_columns(connection, rows.columns)
            stored = _stored(connection, names)
            new = [number for number, name in enumerate(names) if name not in stored]
            for number, name in enumerate(names):
                if name in stored and stored[name][0] != checked[number].tobytes():
                    raise ValueError(
                        f"the id {one_line(name, 60)} is stored with other probabilities: an id "
                        "names one prediction"
                    )
            if new:
                self._refuse_outdated(connection, today)
            self._delete_old(connection, today)
            total = _count(connection) + len(new)
            if total > self.most_rows:
                raise ValueError(
                    f"{printable(self.path)} would hold {total:,} rows, and most_rows is "
                    f"{self.most_rows:,}: keep fewer days, or allow more rows"
                )
            connection.executemany(
                "INSERT INTO scores VALUES (?, ?, ?, NULL)",
                ((names[number], today, checked[number].tobytes()) for number in new),
            )
            _count_up(connection, scored=len(new))
        return len(new)

    def join(
        self,
        ids: AnyArray,
        y: AnyArray,
        *,
        day: str | date | None = None,
        then: Callable[[Joined], object] | None = None,
    ) -> Joined:
        """Return the stored probabilities of labelled rows, each once, and mark the rows as labelled.

        Parameters
        ----------
        ids : sequence of N str or int
        y : array-like of shape (N,)
            Integers 0..K−1, or names of classes.
        day : date or str, optional
            The day on which the labels came; today (UTC) by default.
        then : callable, optional
            What to do with the joined rows before they are marked as labelled; if it fails, they stay unlabelled.
        """
        with self._connected() as connection:
            result = self._joined(connection, ids, y, day_that_has_come(day))
            if then is not None:
                then(result)
        return result

    def update_monitor(
        self,
        state: str | os.PathLike[str],
        ids: AnyArray,
        y: AnyArray,
        *,
        begin: Callable[[], Monitor] | None = None,
        day: str | date | None = None,
    ) -> tuple[Joined, Monitor]:
        """Join labels with their scores and add the rows to the state file of a monitor: both, or neither.

        Parameters
        ----------
        state : path-like
            The state file, which several processes may share.
        ids, y, day
            As for :meth:`join`.
        begin : callable, optional
            Returns the monitor to start with if there is no file yet; ``Monitor()`` by default.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> store = ScoreStore(f"{folder}/scores.sqlite")
        >>> _ = store.add(["a", "b"], [[0.2, 0.8], [0.6, 0.4]])
        >>> joined, monitor = store.update_monitor(f"{folder}/watch.json", ["b"], [0])
        >>> monitor.n
        1
        """
        with shared_state(state, begin or Monitor) as monitor:
            joined = self.add_to_monitor(monitor, ids, y, state=state, day=day)
        return joined, monitor

    def add_to_monitor(
        self,
        monitor: Monitor,
        ids: AnyArray,
        y: AnyArray,
        *,
        state: str | os.PathLike[str] | None = None,
        name: str = "labels",
        day: str | date | None = None,
    ) -> Joined:
        """Join labels with their scores and add the rows to a monitor.

        Parameters
        ----------
        monitor : Monitor
        ids, y, day
            As for :meth:`join`.
        state : path-like, optional
            The state file that the monitor was read from, which nobody else changes in the meantime. It is written
            here; rows that an earlier run joined and did not write are added first.
        name : str
            What the labels are called among the files of the monitor.
        """
        today = day_that_has_come(day)
        owner = None if state is None else os.path.realpath(state)
        if owner is not None:
            self._finish(monitor, owner)
        with self._connected() as connection:
            joined = self._joined(connection, ids, y, today)
            batch = _Batch(joined.probs, joined.y, _digest(joined), name, today)
            batch.add_to(monitor, self.classes)
            if owner is not None:
                _set_pending(connection, owner, batch)
        if owner is not None and joined.ids:
            monitor.save(owner)
            self._forget_pending(owner)
        return joined

    def _finish(self, monitor: Monitor, owner: str) -> None:
        """Add rows that a run joined for a state file and did not write there, because it ended too early."""
        with self._connected() as connection:
            batches = _pending(connection, owner)
        for batch in batches:
            batch.add_to(monitor, self.classes)
        if batches:
            monitor.save(owner)
            self._forget_pending(owner)

    def _forget_pending(self, owner: str) -> None:
        with self._connected() as connection:
            connection.execute("DELETE FROM pending WHERE state = ?", (owner,))

    def _joined(
        self, connection: sqlite3.Connection, ids: AnyArray, y: AnyArray, today: str
    ) -> Joined:
        """Mark rows as labelled, count what does not fit, and return the rows with their labels."""
        refuse_other_index(ids, {"y": y})
        names = _texts(ids, len(np.asarray(y)))
        n_classes = _classes_of(connection)
        labels = self._labels(y, len(names), n_classes)
        stored = _stored(connection, names)
        joined: dict[str, int] = {}
        twice = 0
        for name, label in zip(names, labels.tolist(), strict=True):
            if name not in stored:
                continue
            if name in joined or stored[name][1] is not None:
                twice += 1
                continue
            joined[name] = label
        connection.executemany(
            "UPDATE scores SET labelled = ? WHERE id = ?", ((today, name) for name in joined)
        )
        result = Joined(
            ids=list(joined),
            probs=_probs([stored[name][0] for name in joined], n_classes),
            y=np.array(list(joined.values()), dtype=np.int64),
            unknown=sum(name not in stored for name in names),
            twice=twice,
            waiting=_count(connection, "WHERE labelled IS NULL"),
        )
        self._delete_old(connection, today)
        _count_up(connection, joined=len(joined), unknown=result.unknown, twice=twice)
        return result

    @property
    def counts(self) -> dict[str, int]:
        """What was counted since the file began, and the rows that wait for a label now.

        ``unknown`` labels came for ids that were never scored or were deleted, ``twice`` for ids that had a label;
        ``deleted_unlabelled`` rows never got one.
        """
        with self._connected() as connection:
            stored = dict(connection.execute("SELECT name, count FROM counts"))
            waiting = _count(connection, "WHERE labelled IS NULL")
        return {**{name: stored.get(name, 0) for name in _COUNTS}, "waiting": waiting}

    def delete_old(self, *, day: str | date | None = None) -> int:
        """Delete rows that are older than ``keep_days`` on a day, and return how many there were."""
        with self._connected() as connection:
            return self._delete_old(connection, day_that_has_come(day))

    def __len__(self) -> int:
        with self._connected() as connection:
            return _count(connection)

    def _labels(self, y: AnyArray, n_rows: int, n_classes: int) -> IntArray:
        names = None if self.classes is None else check_classes(self.classes, n_classes)
        return inputs.check_labels(encode(y, names), n_rows, n_classes)

    def _first_kept(self, day: str) -> str:
        """Return the first day whose rows are kept on a day."""
        ordinal = date.fromisoformat(day).toordinal() - self.keep_days
        return date.fromordinal(max(ordinal, 1)).isoformat()

    def _refuse_outdated(self, connection: sqlite3.Connection, day: str) -> None:
        """Refuse the day of new rows that are too old beside the newest of the store."""
        query = "SELECT max(day) FROM scores WHERE day <= ?"
        newest = connection.execute(query, (_tomorrow(),)).fetchone()[0]
        if newest is not None and day < self._first_kept(newest):
            raise ValueError(
                f"rows of {day} would be deleted at once: the store has rows of {newest} and keeps "
                f"{self.keep_days} days"
            )

    def _delete_old(self, connection: sqlite3.Connection, today: str) -> int:
        first = self._first_kept(today)
        unlabelled = _count(connection, "WHERE day < ? AND labelled IS NULL", first)
        deleted = connection.execute("DELETE FROM scores WHERE day < ?", (first,)).rowcount
        _count_up(connection, deleted=deleted, deleted_unlabelled=unlabelled)
        return deleted

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that others wait for; it is undone where an error is raised."""
        import sqlite3  # some builds of Python do without it, and only stores need it

        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE)) as connection:
                connection.isolation_level = None  # transactions begin and end here
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{printable(self.path)}: {one_line(error, 120)}") from None


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file; refuse a file with another layout."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    stated = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    tables = {_words_of(sql) for (sql,) in stated}
    # A view or a trigger of that name could run for ever.
    if version == _VERSION and tables == {_words_of(sql) for sql in _STATEMENTS}:
        return
    if tables:
        raise ValueError("the file is not a store of scores, or of another version of hcal")
    for statement in _STATEMENTS:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _words_of(sql: object) -> str:
    return " ".join(str(sql).split())


def _set_classes(connection: sqlite3.Connection, n_classes: int) -> None:
    """Remember how many classes the first rows have; refuse rows with another number."""
    before = _setting(connection, "classes")
    if before is None:
        _set(connection, "classes", str(n_classes))
    elif _whole(before, "classes") != n_classes:
        raise ValueError(f"probs has {n_classes} classes, and the rows before have {before}")


def _classes_of(connection: sqlite3.Connection) -> int:
    before = _setting(connection, "classes")
    if before is None:
        raise ValueError("the store holds no scores yet: add predictions before their labels")
    return _whole(before, "classes")


def _whole(text: str, name: str) -> int:
    """Return a number among the settings of a store."""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 8):
        raise ValueError(f"{name} in the store is no number: {quoted(text)}")
    return int(text)


def _remembered_days(connection: sqlite3.Connection, keep_days: int | None) -> int:
    """Return how many days rows are kept: as the caller says, which is remembered, else as before."""
    stored = _setting(connection, "keep_days")
    if keep_days is None:
        return _KEEP_DAYS if stored is None else _whole(stored, "keep_days")
    _set(connection, "keep_days", str(keep_days))
    return keep_days


def _remembered_classes(
    connection: sqlite3.Connection, classes: Sequence[ClassName] | None
) -> list[ClassName] | None:
    """Return the names of the classes, which the first caller who knows them decides."""
    stored = _listed(connection, "names")
    if classes is None:
        return stored
    names = [name.item() if isinstance(name, np.generic) else name for name in classes]
    if stored is not None and stored != names:
        raise ValueError(
            f"the store was begun with the classes {one_line(stored, 120)}, not with "
            f"{one_line(names, 120)}"
        )
    _set(connection, "names", json.dumps(names))
    return names


def _setting(connection: sqlite3.Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _set(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))


def _count(connection: sqlite3.Connection, condition: str = "", *values: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM scores {condition}", values).fetchone()
    return int(row[0])


def _count_up(connection: sqlite3.Connection, **counts: int) -> None:
    """Add to what the store counts over all time."""
    connection.executemany(
        "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET count = count + "
        "excluded.count",
        counts.items(),
    )


@dataclass(frozen=True)
class _Batch:
    """Joined rows on their way to a monitor; the digest says which they are."""

    probs: Float64
    y: IntArray
    digest: str
    name: str
    day: str

    def add_to(self, monitor: Monitor, classes: Sequence[ClassName] | None) -> None:
        """Add the rows, unless the monitor has them already."""
        if not len(self.y) or any(file["digest"] == self.digest for file in monitor.files):
            return
        file = {"name": self.name, "digest": self.digest, "date": self.day}
        update_by_name(monitor, self.probs, self.y, classes, **file)


def _digest(joined: Joined) -> str:
    """Return what tells joined rows from all others: an id is joined once."""
    text = json.dumps([joined.ids, joined.y.tolist()])
    return hashlib.sha256(text.encode() + joined.probs.tobytes()).hexdigest()


def _set_pending(connection: sqlite3.Connection, owner: str, batch: _Batch) -> None:
    """Keep joined rows until the state file of their monitor is written."""
    connection.executemany(
        "INSERT INTO pending (digest, state, name, day, label, probs) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (batch.digest, owner, batch.name, batch.day, label, probs.tobytes())
            for label, probs in zip(batch.y.tolist(), batch.probs, strict=True)
        ),
    )


def _pending(connection: sqlite3.Connection, owner: str) -> list[_Batch]:
    """Return the rows that are pending for a state file, in the order in which they were joined."""
    rows = connection.execute(
        "SELECT digest, name, day, label, probs FROM pending WHERE state = ? ORDER BY place",
        (owner,),
    ).fetchall()
    batches = []
    for (digest, name, day), group in groupby(rows, key=lambda row: row[:3]):
        content = list(group)
        n_classes = _classes_of(connection)
        probs = _probs([row[4] for row in content], n_classes)
        y = inputs.check_labels(np.array([row[3] for row in content]), len(content), n_classes)
        batches.append(_Batch(probs, y, digest, name, day))
    return batches


def _set_columns(connection: sqlite3.Connection, columns: Sequence[ColumnName] | None) -> None:
    """Remember the names of the first columns that have names."""
    if columns is not None and _setting(connection, "columns") is None:
        _set(connection, "columns", json.dumps(list(columns)))


def _listed(connection: sqlite3.Connection, name: str) -> list[ColumnName] | None:
    """Return names of classes (``names``) or of columns (``columns``) that the file remembers."""
    text = _setting(connection, name)
    try:
        stored = None if text is None else json.loads(text)
    except json.JSONDecodeError:
        raise ValueError(f"the {name} in the store are no JSON") from None
    if stored is not None and not isinstance(stored, list):
        raise ValueError(f"the {name} in the store are no list")
    return stored


def _stored(
    connection: sqlite3.Connection, names: list[str]
) -> dict[str, tuple[bytes, str | None]]:
    """Return the probabilities, and the day of the label, of those ids that the store holds."""
    stored: dict[str, tuple[bytes, str | None]] = {}
    for first in range(0, len(names), _IDS_AT_ONCE):
        chunk = names[first : first + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(chunk))
        rows = connection.execute(
            f"SELECT id, probs, labelled FROM scores WHERE id IN ({marks})", chunk
        )
        stored.update({name: (probs, labelled) for name, probs, labelled in rows})
    return stored


def _probs(stored: list[bytes], n_classes: int) -> Float64:
    """Return stored probabilities (N, K); what is in a file is checked as any other input is."""
    if not stored:
        return np.empty((0, n_classes))
    if any(not isinstance(row, bytes) or len(row) != 8 * n_classes for row in stored):
        raise ValueError(f"a row of the store does not hold {n_classes} probabilities")
    rows = np.frombuffer(b"".join(stored)).reshape(-1, n_classes)
    return np.asarray(inputs.check_probs(rows)[0])


def _texts(ids: AnyArray, n_rows: int) -> list[str]:
    """Return ids as text; a missing id, and a number of ids that is not that of the rows, are refused."""
    values = inputs.check_names(ids, n_rows, "ids").tolist()
    return [_text(value) for value in values]


def _text(value: object) -> str:
    """Return an id as text: 7, 7.0 and "7" are one id."""
    if not isinstance(value, float):
        text = str(value)
        if len(text) > _LONGEST_ID:
            raise ValueError(
                f"an id has {len(text):,} characters: at most {_LONGEST_ID:,} are kept"
            )
        return text
    if abs(value) >= _EXACT:
        raise ValueError(f"the id {value:.0f} is a float, which has no digits for it: pass text")
    return str(int(value)) if value.is_integer() else str(value)


def day_that_has_come(day: str | date | None) -> str:
    """Return a day (UTC) as text; one that has not come, by which all rows would be too old, is refused."""
    today = datetime.now(UTC).date().isoformat()
    if day is None:
        return today
    if isinstance(day, datetime) and day.tzinfo is not None:
        day = day.astimezone(UTC)
    try:
        text = date.fromisoformat(day if isinstance(day, str) else day.isoformat()[:10]).isoformat()
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"a day is written as 2026-05-01, got {one_line(repr(day), 60)}") from None
    if text > _tomorrow():
        raise ValueError(f"the day {text} has not come yet: today is {today} (UTC)")
    return text


def _tomorrow() -> str:
    """Return the last day that may have come: east of Greenwich it is tomorrow already."""
    return (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
