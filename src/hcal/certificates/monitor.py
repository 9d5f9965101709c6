"""A monitor for a predictor in production: evidence against calibration that you may read after every row.

The evidence is an e-process: the capital of bets against calibration (:mod:`hcal.certificates.bets`). If the predictor
is calibrated given the past, the capital is a non-negative martingale that starts at 1. By Ville's inequality it ever
reaches 1/α with probability at most α, however often one looks. The capital is spread over all bets and over cash, and
after every block of rows a small, shrinking share of it is spread again as at the start. This is a mixture over all
sequences of bets (still a martingale), and it detects a drift that starts late. After an alarm the capital restarts
at 1.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date as day_of_text
from typing import Self

import numpy as np

from hcal import inputs
from hcal.certificates import monitor_file
from hcal.certificates.bets import FAMILIES, Gamblers, log_mean
from hcal.certificates.event import TOLERANCE, class_tolerance
from hcal.class_names import ClassName, check_classes, class_part, class_title
from hcal.fit_record import FittedModel
from hcal.frames import AnyArray, ColumnName
from hcal.numerics import Float64, IntArray
from hcal.renamed import renamed
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject, printable, quoted

#: Rows in a block, after which the capital is redistributed. Fixed, so that the size of batches has no influence.
BLOCK = 128
#: Blocks in the recent window. An alarm that is not raised again within so many blocks is over.
RECENT = 20
#: Columns of the top label and of every checked class in arrays of shape (…, 1 + C).
_EVENTS = {"top-label": slice(0, 1), "class-wise": slice(1, None)}
_KEPT = 1000  # the last so many files and alarms are kept
_MOST_CLASSES = 1 << 20
#: The version of the saved state.
SCHEMA = 5


@dataclass(frozen=True)
class Alarm:
    """When calibration was refuted, for which event, and how large the error was.

    Attributes
    ----------
    row : int
        Number of rows seen when the alarm was first raised.
    family : {"top-label", "class-wise"}
        The family of events with the most evidence.
    event : str
        The event with the most evidence: the top label, or a class.
    direction : str
        Such as ``"over-confident"`` or ``"stated too low at or above 0.5"``.
    evidence : float
        The capital; calibration is refuted at level 1/evidence.
    rows : int
        Number of recent rows, up to row ``last``, over which ``stated`` and ``observed`` are averages.
    stated, observed : float
        Mean probability of the event, and its frequency.
    last : int
        Number of rows seen when the alarm was last raised.
    until : int or None
        Number of rows seen when the alarm ended; None while it lasts.

    Examples
    --------
    >>> import numpy as np
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> stated = rng.uniform(0.6, 1, 4000)
    >>> monitor = hcal.Monitor()
    >>> _ = monitor.update(stated, (rng.random(4000) < 0.3).astype(int))
    >>> monitor.alarm.direction
    'stated too high'
    """

    row: int
    family: str
    event: str
    direction: str
    evidence: float
    rows: int
    stated: float
    observed: float
    last: int
    until: int | None = None

    def __str__(self) -> str:
        size = f"stated {self.stated:.1%}, observed {self.observed:.1%}".replace("%", " %")
        where = f"{self.last - self.rows + 1:,} to {self.last:,}"
        end = "" if self.until is None else f"; over since row {self.until:,}"
        return (
            f"{printable(self.event)} is {printable(self.direction)}: {size} in rows {where}{end}"
        )


class Monitor:
    """Test a stream of predictions and labels, with a limit on the probability of ever raising a false alarm.

    The monitor checks the top label and the probability of every class (with two classes, that of class 1). The null
    hypothesis is that, given the past, each event happens with its stated probability, to within the tolerance; an
    alarm rejects it by Ville's inequality. After an alarm the evidence restarts, with the same guarantee. The alarm is
    over when it has not been raised again for 2,560 rows.

    The sizes of the updates have no influence, and several threads may update one monitor. Processes share the state
    file of a monitor with :func:`hcal.certificates.monitor_file.update_state`.

    Parameters
    ----------
    confidence : float
        The probability of a false alarm over all time is at most 1 − ``confidence``, however often one looks.
    tolerance : float or "auto"
        Errors of at most this raise no alarm; 0 tests exact calibration. ``"auto"`` allows 5 points for an event of
        frequency one half and less for rarer ones; the frequencies are those of the fit of ``calibrator``.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns: alarms use them, and labels may be given by them.
    calibrator : Calibrator, optional
        The fitted calibrator whose probabilities are watched; ``tolerance="auto"`` needs it.

    Attributes
    ----------
    n : int
        Rows seen.
    alarm : Alarm or None
        The present alarm.
    alarms : list of Alarm
        Alarms that are over.
    files : list of dict
        Name, digest, date and sums of the last 1,000 updates that had a name.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, 4000)
    >>> fine, worse = rng.random(4000) < p, rng.random(4000) < p - 0.1
    >>> monitor = Monitor().update(p, fine.astype(int))
    >>> monitor.alarm is None
    True
    >>> monitor.update(p, worse.astype(int)).alarm.direction
    'stated too high'
    """

    @renamed(level="confidence")
    def __init__(
        self,
        *,
        confidence: float = 0.95,
        tolerance: float | str = 0.0,
        classes: Collection[ClassName] | None = None,
        calibrator: FittedModel | None = None,
    ) -> None:
        self.confidence = inputs.check_confidence(confidence)
        self.tolerance = _check_tolerance(tolerance)
        self.classes = None if classes is None else check_classes(classes, max(len(classes), 2))
        #: Tolerance of the top label and of every checked class, (1 + C,), where the calibrator's fit decides it.
        self._automatic: Float64 | None = None
        if self.tolerance == "auto":
            self._automatic = automatic_tolerance(calibrator)
        self._lock = threading.RLock()
        self.reset()

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def reset(self) -> Self:
        """Forget all rows, alarms and files; the settings stay."""
        with self._lock:
            self.n = 0
            self.n_classes = 0
            self.alarm: Alarm | None = None
            self.alarms: list[Alarm] = []
            self.files: list[JsonObject] = []
            self._gamblers: dict[str, Gamblers] = {}
            self._past = 0.0  # log-evidence of all rows before the last restart
            self._raised = False  # whether an alarm was raised in the current block
            #: Tolerance of the top label and of every checked class, (1 + C,).
            self._allowed = np.zeros(2)
            #: Sums of rows, claims, marks and variances over the whole stream, and over each recent block, (4, 1 + C).
            self._total = np.zeros((4, 2))
            self._recent: deque[Float64] = deque(maxlen=RECENT)
        return self

    # -- rows -------------------------------------------------------------------------------------

    def update(
        self,
        probs: AnyArray,
        y: AnyArray,
        *,
        name: str | None = None,
        digest: str = "",
        date: str = "",
    ) -> Self:
        """Add rows in the order in which they came.

        Parameters
        ----------
        probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        y : array-like of shape (N,)
        name, digest, date : str, optional
            The file that the rows come from, and its day (2026-05-01). They are kept in ``files``, and the same
            digest is refused a second time.
        """
        check_day(date)
        with self._lock:
            self._refuse_twice(name, digest)
            rows = Rows.of_predictions(probs, y, input="probs", classes=self.classes)
            self._expect_classes(rows.n_classes)
            if self.classes is None and not self.n:
                self.classes = rows.names or _names_of(rows.columns)
            checked = rows.x
            labels = rows.labels
            before = self._total[:, self._column]
            ends = range(BLOCK - self.n % BLOCK, len(checked), BLOCK)
            for part, part_labels in zip(
                np.split(checked, ends), np.split(labels, ends), strict=True
            ):
                if len(part):
                    self._add(*self._claims(part, part_labels))
            if name is not None:
                sums = (self._total[:, self._column] - before).tolist()
                file = {"name": name, "digest": digest, "date": date, "sums": sums}
                self.files = [*self.files, file][-_KEPT:]
        return self

    def _refuse_twice(self, name: str | None, digest: str) -> None:
        for file in self.files if digest else ():
            if file["digest"] == digest:
                raise ValueError(
                    f"{printable(name)} was added before, as {printable(file['name'])} "
                    f"({file['date']})"
                )

    def _expect_classes(self, n_classes: int) -> None:
        """Begin with this number of classes, or refuse another one than that of the rows before."""
        if not self.n_classes:
            self._begin(n_classes)
        if n_classes != self.n_classes:
            raise ValueError(f"probs has {n_classes} classes, this monitor checks {self.n_classes}")

    def _begin(self, n_classes: int) -> None:
        columns = 1 + (n_classes if n_classes > 2 else 1)
        automatic = self._automatic
        allowed = np.full(columns, self.tolerance) if automatic is None else automatic.copy()
        if len(allowed) != columns:
            raise ValueError(
                f"probs has {n_classes} classes, and the calibrator that decides the tolerance "
                f"{max(len(allowed) - 1, 2)}: pass the probabilities of that calibrator"
            )
        self.n_classes = n_classes
        self._allowed = allowed
        self._total = np.zeros((4, columns))
        self._restart()

    @property
    def _column(self) -> int:
        """Column of the sums that ``windows`` shows: P(class 1) with two classes, else the top label."""
        return 1 if self.n_classes == 2 else 0

    def _restart(self) -> None:
        """Start every event with a capital of 1."""
        self._gamblers = {
            family: Gamblers(bets, self._allowed[_EVENTS[family]])
            for family, bets in FAMILIES.items()
        }

    def _claims(self, p: Float64, y: IntArray) -> tuple[Float64, Float64]:
        """Return claims and marks of the top label and of every checked class, (N, 1 + C) each."""
        top = p.argmax(axis=1)
        classes = [1] if self.n_classes == 2 else list(range(self.n_classes))
        top_claim = p[np.arange(len(p)), top][:, None]
        top_mark = (top == y)[:, None]
        claims = np.concatenate([top_claim, p[:, classes]], axis=1)
        marks = np.concatenate([top_mark, y[:, None] == classes], axis=1)
        return claims, marks.astype(np.float64)

    def _add(self, claims: Float64, marks: Float64) -> None:
        """Add rows (N, 1 + C) of one block, row by row: the state does not depend on how a block was split."""
        if self.n % BLOCK == 0:
            self._recent.append(np.zeros_like(self._total))
        gains = {
            family: gamblers.gains(claims[:, _EVENTS[family]], marks[:, _EVENTS[family]])
            for family, gamblers in self._gamblers.items()
        }
        rows = np.stack([np.ones_like(claims), claims, marks, claims * (1 - claims)])
        recent = _running(self._recent[-1], rows)
        crossing = None if self._raised else self._first_crossing(gains)
        if crossing is not None:
            self._hold(gains, crossing)
            complete = list(self._recent)[:-1]
            earlier = np.sum(complete, axis=0) if complete else 0.0
            self._raise_alarm(self.n + crossing + 1, earlier + recent[:, crossing])
        self._hold(gains, -1)
        self.n += len(claims)
        self._recent[-1] = recent[:, -1]
        self._total = _running(self._total, rows)[:, -1]
        if self.n % BLOCK == 0:
            self._end_block()

    def _first_crossing(self, gains: dict[str, Float64]) -> int | None:
        """Return the first row after which the evidence is large enough for an alarm; None if there is none."""
        capitals = [
            log_mean(gamblers.capital_after(gains[family]))
            for family, gamblers in self._gamblers.items()
        ]
        enough = log_mean(np.stack(capitals, axis=1)) >= self.threshold
        return int(enough.argmax()) if enough.any() else None

    def _hold(self, gains: dict[str, Float64], row: int) -> None:
        """Give every bet what it has gained after a row."""
        for family, gamblers in self._gamblers.items():
            gamblers.gained = gains[family][row]

    def _raise_alarm(self, row: int, sums: Float64) -> None:
        alarm = self._describe(row, sums)
        # While an alarm lasts it keeps its first row, but its numbers are those of the latest rows.
        self.alarm = alarm if self.alarm is None else replace(alarm, row=self.alarm.row)
        self._raised = True

    def _end_block(self) -> None:
        if self._raised:
            # The capital is spread as at the start, so a later drift of another kind is found as fast.
            self._past = self.log_evidence
            self._raised = False
            self._restart()
            return
        for gamblers in self._gamblers.values():
            gamblers.deal(1 / (self.n // BLOCK + 1))
        if self.alarm is not None and self.n - self.alarm.last >= RECENT * BLOCK:
            self.alarms = [*self.alarms, replace(self.alarm, until=self.n)][-_KEPT:]
            self.alarm = None

    def _describe(self, row: int, sums: Float64) -> Alarm:
        """Return an alarm on the event and the bet with the most capital; ``sums`` (4, 1 + C) are of recent rows."""
        capitals = self._capitals()
        family = list(self._gamblers)[int(capitals.argmax())]
        event, direction = self._gamblers[family].leader()
        number = 1 if self.n_classes == 2 else event
        column = _EVENTS[family].start + event
        rows = float(sums[0, column])
        return Alarm(
            row=row,
            family=family,
            event="top label" if family == "top-label" else class_title(number, self.classes),
            direction=direction,
            evidence=float(np.exp(min(float(log_mean(capitals)), 700.0))),
            rows=int(rows),
            stated=float(sums[1, column]) / rows,
            observed=float(sums[2, column]) / rows,
            last=row,
        )

    # -- results ----------------------------------------------------------------------------------

    @property
    def threshold(self) -> float:
        """The log-evidence that raises the alarm, log(1/(1 − confidence))."""
        return float(-np.log1p(-self.confidence))

    @property
    def log_evidence(self) -> float:
        """Logarithm of the capital since the first row, over all families and restarts."""
        with self._lock:
            return self._past + float(log_mean(self._capitals())) if self._gamblers else 0.0

    @property
    def evidence(self) -> float:
        """The capital since its last restart. Calibration is refuted at level α once it reaches 1/α."""
        with self._lock:
            return float(np.exp(min(self.log_evidence - self._past, 700.0)))

    def strongest(self) -> Alarm:
        """Return the present alarm, or one that describes the event with the most evidence; needs at least one row."""
        with self._lock:
            return self.alarm or self._describe(self.n, np.sum(self._recent, axis=0))

    def _capitals(self) -> Float64:
        return np.array([log_mean(gamblers.capital) for gamblers in self._gamblers.values()])

    def windows(self, since: str | None = None) -> dict[str, dict[str, float]]:
        """Compare what was stated and observed in the recent rows with the rows before them.

        Parameters
        ----------
        since : str, optional
            An ISO date: the recent rows are those of files of that date or later. By default they are the last
            2,560 rows, or fewer.

        Returns
        -------
        dict
            ``"before"`` and ``"recent"``, each with rows, stated, observed, gap (stated − observed) and the
            gap's standard error if calibrated; of P(class 1) with two classes, else of the top label.
        """
        check_day(since)
        with self._lock:
            if since is None:
                sums = [block[:, self._column] for block in self._recent]
            else:
                sums = [np.array(file["sums"]) for file in self.files if file["date"] >= since]
            recent = np.sum([np.zeros(4), *sums], axis=0)
            before = self._total[:, self._column] - recent
        return {"before": _window(before), "recent": _window(recent)}

    def __str__(self) -> str:
        with self._lock:
            limit = 1 / (1 - self.confidence)
            evidence = f"{self.n:,} rows, evidence {self.evidence:.3g} (alarm at {limit:g})"
            if self.alarm is not None:
                return f"ALARM at row {self.alarm.row:,}: {self.alarm}; {evidence}"
            past = f"; {len(self.alarms)} earlier, the last over" if self.alarms else ""
            return f"no alarm: {evidence}{past}"

    def __repr__(self) -> str:
        return f"<Monitor: {self}>"

    def prometheus(self) -> str:
        """Return the numbers as Prometheus text, for a textfile collector.

        Examples
        --------
        >>> print(Monitor().update([0.8] * 5, [1] * 5).prometheus().splitlines()[1])
        hcal_monitor_rows_total 5
        """
        with self._lock:
            recent = self.windows()["recent"]
            values = {
                "rows_total": ("counter", self.n),
                "alarm": ("gauge", int(self.alarm is not None)),
                "alarms_total": ("counter", len(self.alarms) + (self.alarm is not None)),
                "evidence_log10": ("gauge", self.log_evidence / np.log(10)),
                "recent_stated": ("gauge", recent["stated"]),
                "recent_observed": ("gauge", recent["observed"]),
            }
        lines = [
            f"# TYPE hcal_monitor_{name} {kind}\nhcal_monitor_{name} {value:.10g}\n"
            for name, (kind, value) in values.items()
        ]
        return "".join(lines)

    # -- saving -----------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, Float64]:
        """Return every array that the evidence depends on, by name."""
        arrays = {"total": self._total, "allowed": self._allowed}
        for family, gamblers in self._gamblers.items():
            arrays[f"{family} weights"] = gamblers.weights
            arrays[f"{family} start"] = gamblers.start
            arrays[f"{family} gained"] = gamblers.gained
        return arrays

    @property
    def state(self) -> JsonObject:
        """Everything that is needed to continue later, as plain values."""
        with self._lock:
            automatic = None if self._automatic is None else self._automatic.tolist()
            return {
                "schema": SCHEMA,
                "confidence": self.confidence,
                "tolerance": self.tolerance,
                "automatic": automatic,
                "classes": None if self.classes is None else list(self.classes),
                "n": self.n,
                "n_classes": self.n_classes,
                "raised": self._raised,
                "past": self._past,
                "alarm": None if self.alarm is None else asdict(self.alarm),
                "alarms": [asdict(alarm) for alarm in self.alarms],
                "files": self.files,
                "arrays": {name: array.tolist() for name, array in self._arrays().items()},
                "recent": [block.tolist() for block in self._recent],
            }

    @classmethod
    def from_state(cls, state: JsonObject) -> Monitor:
        """Restore a monitor from its :attr:`state`; a malformed state raises ValueError with the reason.

        Examples
        --------
        >>> monitor = Monitor().update([[0.2, 0.8]] * 5, [1] * 5)
        >>> Monitor.from_state(monitor.state).evidence == monitor.evidence
        True
        """
        schema = state.get("schema") if isinstance(state, dict) else None
        if schema != SCHEMA:
            raise ValueError(
                f"the state has schema {schema!r:.40}; this hcal reads {SCHEMA}: start a new one"
            )
        monitor = cls._of_settings(state)
        values = monitor_file.checked(state, monitor._form(state), "the state")
        for name, array in monitor._arrays().items():
            array[...] = values["arrays"][name]
            sums = array.sum(axis=1) if name.endswith("weights") else np.ones(1)
            if (np.abs(sums - 1) > 1e-6).any():
                raise ValueError(f"{name} must sum to 1")
        monitor.n = values["n"]
        monitor._raised = values["raised"]
        monitor._past = values["past"]
        monitor.files = state["files"]
        monitor.alarms = [Alarm(**alarm) for alarm in values["alarms"]]
        monitor.alarm = None if values["alarm"] is None else Alarm(**values["alarm"])
        monitor._recent.extend(values["recent"])
        if monitor.n % BLOCK and not monitor._recent:
            raise ValueError("recent must hold the current block")
        return monitor

    @classmethod
    def _of_settings(cls, state: JsonObject) -> Monitor:
        """Return a monitor without rows that has the settings of a state."""
        is_automatic = state["tolerance"] == "auto"
        tolerance = 0.0 if is_automatic else state["tolerance"]
        monitor = cls(confidence=state["confidence"], tolerance=tolerance, classes=state["classes"])
        if is_automatic:
            allowed = np.array(state["automatic"], dtype=np.float64)
            if allowed.ndim != 1 or not ((allowed >= 0) & (allowed < 1)).all():
                raise ValueError("automatic has the wrong type, shape or value")
            monitor.tolerance = "auto"
            monitor._automatic = allowed
        n_classes = monitor_file.checked(state["n_classes"], 0, "n_classes")
        if n_classes > _MOST_CLASSES:
            raise ValueError(f"n_classes must be at most {_MOST_CLASSES:,}")
        if n_classes:
            monitor._begin(n_classes)
            if monitor.classes is not None:
                monitor.classes = check_classes(monitor.classes, n_classes)
        return monitor

    def _form(self, state: JsonObject) -> JsonObject:
        """Return a template of a valid state with these settings: types, shapes and least values of the arrays."""
        least = {
            name: np.full_like(array, -np.inf if name.endswith(("start", "gained")) else 0.0)
            for name, array in self._arrays().items()
        }
        alarm = asdict(Alarm(0, "", "", "", 0.0, 0, 0.0, 0.0, 0))
        return self.state | {
            "alarm": None if state["alarm"] is None else alarm,
            "alarms": [alarm],
            "arrays": least,
            "automatic": state["automatic"],
            "classes": state["classes"],
            "files": [{"name": "", "digest": "", "date": "", "sums": np.zeros(4)}],
            "recent": [least["total"]],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file, atomically.

        Processes that share the file use :func:`hcal.certificates.monitor_file.update_state` instead.
        """
        monitor_file.write_state(path, self.state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Monitor:
        """Return the monitor that :meth:`save` wrote; any other file raises ValueError."""
        return monitor_file.read_state(path, cls.from_state)


def automatic_tolerance(calibrator: FittedModel | None) -> Float64:
    """Return the tolerance of the top label and of every checked class, (1 + C,), from a calibrator's fit.

    It is :func:`hcal.certificates.event.class_tolerance` of each class's frequency in the fit, and of the top label's
    mean probability there.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 100, [1] * 90 + [0] * 10)
    >>> automatic_tolerance(cal).round(3)
    array([0.03, 0.03])
    """
    record = getattr(calibrator, "fit_", None)
    if record is None:
        raise ValueError(
            "tolerance='auto' is decided by the fit of a calibrator: pass calibrator=, a fitted "
            "one, or a number as tolerance, such as 0.05"
        )
    frequencies = record.frequencies if record.prior is None else record.prior
    # After a change of the class frequencies the mean confidence is not known: that of the widest tolerance.
    confidence = 0.5 if record.after is None else record.after["mean_confidence"]
    checked = frequencies[1:] if len(frequencies) == 2 else frequencies
    return class_tolerance(np.append(confidence, checked), TOLERANCE)


def check_day(text: str | None) -> None:
    """Refuse text that is no day: days are compared as text, and 2026-5-1 would be after 2026-10-01.

    >>> check_day("2026-5-1")
    Traceback (most recent call last):
    ...
    ValueError: a day is written as 2026-05-01, got '2026-5-1'
    """
    if not text:
        return
    try:
        is_day = day_of_text.fromisoformat(text).isoformat() == text
    except (ValueError, TypeError):
        is_day = False
    if not is_day:
        raise ValueError(f"a day is written as 2026-05-01, got {quoted(text)}")


def _check_tolerance(tolerance: float | np.number | str) -> float | str:
    if isinstance(tolerance, str) and tolerance == "auto":
        return tolerance
    if not (isinstance(tolerance, int | float | np.number) and 0 <= tolerance < 1):
        raise ValueError(f"tolerance must lie in 0..1 or be 'auto', got {tolerance!r}")
    return float(tolerance)


def _running(start: Float64, rows: Float64) -> Float64:
    """Return the sums (4, N, 1 + C) after each row, added one after the other to the sums at the start."""
    from_start = np.concatenate([start[:, None], rows], axis=1)
    return np.cumsum(from_start, axis=1)[:, 1:]


def _names_of(columns: Sequence[ColumnName] | None) -> ClassNames | None:
    """Return the names of the classes that the names of a frame's columns contain; later frames are read by them."""
    texts = [name for name in columns or () if isinstance(name, str)]
    if columns is None or len(texts) < len(columns):
        return None
    return check_classes([class_part(name) for name in texts], len(texts))


def _window(sums: Float64) -> dict[str, float]:
    rows, claimed, happened, variance = sums.tolist()
    divisor = max(rows, 1.0)
    return {
        "rows": rows,
        "stated": claimed / divisor,
        "observed": happened / divisor,
        "gap": (claimed - happened) / divisor,
        "standard_error": float(np.sqrt(max(variance, 0.0))) / divisor,
    }
