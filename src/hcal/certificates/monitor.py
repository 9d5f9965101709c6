"""A monitor for a predictor in production: evidence against calibration that you may read after every row.

The evidence is an e-process: the capital of bets against calibration (:mod:`hcal.certificates.bets`). If the predictor
is calibrated given the past, the capital is a non-negative martingale that starts at 1. By Ville's inequality it ever
reaches 1/α with probability at most α, however often one looks. The capital is spread over all bets and over cash, and
after every block of rows a small, shrinking share of it is spread again as at the start. This is a mixture over all
sequences of bets (still a martingale), and it detects a drift that starts late. After an alarm the capital restarts
at 1.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from hcal import inputs
from hcal.certificates.bets import FAMILIES, Gamblers, log_mean
from hcal.certificates.bounds import check_level
from hcal.certificates.event import TOLERANCE, class_tolerance
from hcal.class_names import check_classes, class_title, encode
from hcal.io.files import atomic_path, open_regular
from hcal.numerics import Float64, IntArray
from hcal.text import printable

#: Rows in a block, after which the capital is redistributed. Fixed, so that the size of batches has no influence.
BLOCK = 128
#: Blocks in the recent window. An alarm that is not raised again within so many blocks is over.
RECENT = 20
#: Columns of the top label and of every checked class in arrays of shape (…, 1 + C).
_EVENTS = {"top-label": slice(0, 1), "class-wise": slice(1, None)}
_KEPT = 1000  # the last so many files and alarms are kept
_LARGEST_FILE = 1 << 28
_MOST_CLASSES = 1 << 20
_SCHEMA = 4


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
    """Test a stream of predictions and labels; the probability of ever raising a false alarm is at most ``level``.

    The monitor checks the top label and the probability of every class (with two classes, that of class 1). The null
    hypothesis is that, given the past, each event happens with its stated probability, to within the tolerance; an
    alarm rejects it by Ville's inequality. After an alarm the evidence restarts, with the same guarantee. The alarm is
    over when it has not been raised again for 2,560 rows.

    Parameters
    ----------
    level : float
        Probability of a false alarm over all time, however often one looks.
    tolerance : float or "auto"
        Errors of at most this raise no alarm; 0 tests exact calibration. ``"auto"`` allows 5 points for an event of
        frequency one half and less for rarer ones; the frequencies are the means of the first probabilities.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns: alarms use them, and labels may be given by them.

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

    def __init__(
        self, level: float = 0.05, tolerance: float | str = 0.0, *, classes: Any = None
    ) -> None:
        check_level(level)
        if tolerance != "auto" and not (
            isinstance(tolerance, int | float | np.number) and 0 <= tolerance < 1
        ):
            raise ValueError(f"tolerance must lie in 0..1 or be 'auto', got {tolerance!r}")
        self.level, self.tolerance = (
            float(level),
            "auto" if tolerance == "auto" else float(tolerance),
        )
        self.classes = None if classes is None else check_classes(classes, max(len(classes), 2))
        self.reset()

    def reset(self) -> Self:
        """Forget all rows, alarms and files; the settings stay."""
        self.n, self.n_classes = 0, 0
        self.alarm: Alarm | None = None
        self.alarms: list[Alarm] = []
        self.files: list[dict[str, Any]] = []
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
        self, probs: Any, y: Any, *, name: str | None = None, digest: str = "", date: str = ""
    ) -> Self:
        """Add rows in the order in which they came.

        Parameters
        ----------
        probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        y : array-like of shape (N,)
        name, digest, date : str, optional
            The file that the rows come from. It is kept in ``files``, and the same digest is refused a second time.
        """
        if digest and (seen := next((f for f in self.files if f["digest"] == digest), None)):
            raise ValueError(
                f"{printable(name)} was added before, as {printable(seen['name'])} ({seen['date']})"
            )
        p = inputs.check_probs(probs)[0].astype(np.float64)
        labels = inputs.check_labels(encode(y, self.classes), *p.shape)
        if self.classes is not None:
            check_classes(self.classes, p.shape[1])
        if not self.n_classes:
            self._begin(p.shape[1], p)
        if p.shape[1] != self.n_classes:
            raise ValueError(
                f"probs has {p.shape[1]} classes, this monitor checks {self.n_classes}"
            )
        before, ends = self._total[:, self._column], range(BLOCK - self.n % BLOCK, len(p), BLOCK)
        for part, marks in zip(np.split(p, ends), np.split(labels, ends), strict=True):
            self._block(part, marks)
        if name is not None:
            sums = (self._total[:, self._column] - before).tolist()
            self.files = [
                *self.files,
                {"name": name, "digest": digest, "date": date, "sums": sums},
            ][-_KEPT:]
        return self

    def _begin(self, k: int, p: Float64 | None = None) -> None:
        self.n_classes = k
        self._total = np.zeros((4, 1 + (k if k > 2 else 1)))
        self._allowed = np.full(
            self._total.shape[1], 0.0 if self.tolerance == "auto" else self.tolerance
        )
        if p is not None and self.tolerance == "auto":
            stated = self._claims(p, np.zeros(len(p), dtype=np.int64))[0].mean(axis=0)
            self._allowed = class_tolerance(stated, TOLERANCE)
        self._restart()

    @property
    def _column(self) -> int:
        """Column of the sums that ``windows`` shows: P(class 1) with two classes, else the top label."""
        return 1 if self.n_classes == 2 else 0

    def _restart(self) -> None:
        """Start every event with a capital of 1."""
        self._gamblers = {
            f: Gamblers(bets, self._allowed[_EVENTS[f]]) for f, bets in FAMILIES.items()
        }

    def _claims(self, p: Float64, y: IntArray) -> tuple[Float64, Float64]:
        """Return claims and marks of the top label and of every checked class, (N, 1 + C) each."""
        top = p.argmax(axis=1)
        chosen = [1] if self.n_classes == 2 else list(range(self.n_classes))
        claims = np.concatenate([p[np.arange(len(p)), top][:, None], p[:, chosen]], axis=1)
        return claims, np.concatenate([(top == y)[:, None], y[:, None] == chosen], axis=1).astype(
            np.float64
        )

    def _block(self, p: Float64, y: IntArray) -> None:
        claims, marks = self._claims(p, y)
        each = [
            g.path(claims[:, _EVENTS[f]], marks[:, _EVENTS[f]]) for f, g in self._gamblers.items()
        ]
        paths = np.stack([log_mean(capitals) for capitals in each], axis=1)
        total = log_mean(paths)
        rows = np.stack([np.ones_like(claims), claims, marks, claims * (1 - claims)])
        if self.n % BLOCK == 0:
            self._recent.append(np.zeros_like(self._total))
        if not self._raised and total.max() >= -np.log(self.level):
            first = int((total >= -np.log(self.level)).argmax())
            sums = sum(self._recent) + rows[:, : first + 1].sum(axis=1)
            raised = self._describe(self.n + first + 1, paths[first], float(total[first]), sums)
            # While an alarm lasts it keeps its first row, but its numbers are those of the latest rows.
            self.alarm = raised if self.alarm is None else replace(raised, row=self.alarm.row)
            self._raised = True
        self.n += len(p)
        self._recent[-1] = self._recent[-1] + rows.sum(axis=1)
        self._total = self._total + rows.sum(axis=1)
        if self.n % BLOCK == 0:
            self._end_block()

    def _end_block(self) -> None:
        if self._raised:
            # The capital is spread as at the start, so a later drift of another kind is found as fast.
            self._past, self._raised = self.log_evidence, False
            self._restart()
            return
        for gamblers in self._gamblers.values():
            gamblers.deal(1 / (self.n // BLOCK + 1))
        if self.alarm is not None and self.n - self.alarm.last >= RECENT * BLOCK:
            self.alarms = [*self.alarms, replace(self.alarm, until=self.n)][-_KEPT:]
            self.alarm = None

    def _describe(self, row: int, families: Float64, log_evidence: float, sums: Float64) -> Alarm:
        family = list(self._gamblers)[int(families.argmax())]
        event, words = self._gamblers[family].leader()
        number = 1 if self.n_classes == 2 else event
        name = "top label" if family == "top-label" else class_title(number, self.classes)
        evidence = float(np.exp(min(log_evidence, 700.0)))
        many, claimed, happened = (float(v) for v in sums[:3, _EVENTS[family].start + event])
        return Alarm(
            row, family, name, words, evidence, int(many), claimed / many, happened / many, row
        )

    # -- results ----------------------------------------------------------------------------------

    @property
    def log_evidence(self) -> float:
        """Logarithm of the capital since the first row, over all families and restarts."""
        return self._past + float(log_mean(self._capitals())) if self._gamblers else 0.0

    @property
    def evidence(self) -> float:
        """The capital since its last restart. Calibration is refuted at level α once it reaches 1/α."""
        return float(np.exp(min(self.log_evidence - self._past, 700.0)))

    def strongest(self) -> Alarm:
        """Return the present alarm, or one that describes the event with the most evidence; needs at least one row."""
        return self.alarm or self._describe(
            self.n, self._capitals(), self.log_evidence, np.sum(self._recent, axis=0)
        )

    def _capitals(self) -> Float64:
        return np.array([log_mean(g.capital) for g in self._gamblers.values()])

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
        files = [f["sums"] for f in self.files if since is not None and f["date"] >= since]
        blocks = [block[:, self._column] for block in self._recent if since is None]
        recent = np.sum([np.zeros(4), *files, *blocks], axis=0)
        return {"before": _window(self._total[:, self._column] - recent), "recent": _window(recent)}

    def __str__(self) -> str:
        seen = f"{self.n:,} rows, evidence {self.evidence:.3g} (alarm at {1 / self.level:g})"
        if self.alarm is None:
            past = f"; {len(self.alarms)} earlier, the last over" if self.alarms else ""
            return f"no alarm: {seen}{past}"
        return f"ALARM at row {self.alarm.row:,}: {self.alarm}; {seen}"

    def __repr__(self) -> str:
        return f"<Monitor: {self}>"

    def prometheus(self) -> str:
        """Return the numbers as Prometheus text, for a textfile collector.

        Examples
        --------
        >>> print(Monitor().update([0.8] * 5, [1] * 5).prometheus().splitlines()[1])
        hcal_monitor_rows_total 5
        """
        recent = self.windows()["recent"]
        values = {
            "rows_total": ("counter", self.n), "alarm": ("gauge", int(self.alarm is not None)),
            "alarms_total": ("counter", len(self.alarms) + (self.alarm is not None)),
            "evidence_log10": ("gauge", self.log_evidence / np.log(10)),
            "recent_stated": ("gauge", recent["stated"]), "recent_observed": ("gauge", recent["observed"]),
        }  # fmt: skip
        return "".join(
            f"# TYPE hcal_monitor_{k} {t}\nhcal_monitor_{k} {v:.10g}\n"
            for k, (t, v) in values.items()
        )

    # -- saving -----------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, Float64]:
        """Return every array that the evidence depends on, by name."""
        found = {"total": self._total, "allowed": self._allowed}
        for family, g in self._gamblers.items():
            found |= {
                f"{family} {name}": getattr(g, name) for name in ("weights", "start", "gained")
            }
        return found

    @property
    def state(self) -> dict[str, Any]:
        """Everything that is needed to continue later, as plain values."""
        return {
            "schema": _SCHEMA, "level": self.level, "tolerance": self.tolerance,
            "classes": None if self.classes is None else list(self.classes), "n": self.n,
            "n_classes": self.n_classes, "raised": self._raised, "past": self._past,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "alarms": [asdict(a) for a in self.alarms], "files": self.files,
            "arrays": {name: array.tolist() for name, array in self._arrays().items()},
            "recent": [r.tolist() for r in self._recent],
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Monitor:
        """Restore a monitor from its :attr:`state`; a malformed state raises ValueError with the reason.

        Examples
        --------
        >>> monitor = Monitor().update([[0.2, 0.8]] * 5, [1] * 5)
        >>> Monitor.from_state(monitor.state).evidence == monitor.evidence
        True
        """
        schema = state.get("schema") if isinstance(state, dict) else None
        if schema != _SCHEMA:
            raise ValueError(
                f"the state has schema {schema!r:.40}; this hcal reads {_SCHEMA}: start a new one"
            )
        made = cls(state["level"], state["tolerance"], classes=state["classes"])
        if _checked(state["n_classes"], 0, "n_classes") > _MOST_CLASSES:
            raise ValueError(f"n_classes must be at most {_MOST_CLASSES:,}")
        if state["n_classes"]:
            made._begin(state["n_classes"])
            made.classes = (
                None if made.classes is None else check_classes(made.classes, made.n_classes)
            )
        # A template of a valid state with these settings: its types and shapes, and the least values of its arrays.
        least = {name: np.full_like(array, -np.inf if name.endswith(("start", "gained")) else 0.0)
                 for name, array in made._arrays().items()}  # fmt: skip
        alarm = asdict(Alarm(0, "", "", "", 0.0, 0, 0.0, 0.0, 0))
        form = made.state | {"alarms": [alarm], "arrays": least, "recent": [least["total"]]}
        form |= {"alarm": None if state["alarm"] is None else alarm, "classes": state["classes"]}
        form["files"] = [{"name": "", "digest": "", "date": "", "sums": np.zeros(4)}]
        found = _checked(state, form, "the state")
        for name, array in made._arrays().items():
            array[...] = found["arrays"][name]
            if name.endswith("weights") and (np.abs(array.sum(axis=1) - 1) > 1e-6).any():
                raise ValueError(f"{name} must sum to 1")
        made.n, made._raised, made._past = (found[name] for name in ("n", "raised", "past"))
        made.alarms, made.files = [Alarm(**a) for a in found["alarms"]], state["files"]
        made.alarm = None if found["alarm"] is None else Alarm(**found["alarm"])
        made._recent.extend(found["recent"])
        if made.n % BLOCK and not made._recent:
            raise ValueError("recent must hold the current block")
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file, atomically."""
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(self.state, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Monitor:
        """Return the monitor that :meth:`save` wrote; any other file raises ValueError."""
        with open_regular(Path(path)) as file:
            text = file.read(_LARGEST_FILE)  # a longer file is cut off, so it is no valid JSON
        try:
            return cls.from_state(json.loads(text))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            reason = printable(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise ValueError(f"{printable(path)} is not the state of a monitor: {reason}") from None


def _checked(value: Any, form: Any, name: str) -> Any:
    """Return ``value`` if it has the keys, types and shapes of ``form`` and finite numbers that are not below it."""
    kind = type(form)
    if kind is dict and isinstance(value, dict) and set(value) == set(form):
        return {key: _checked(value[key], form[key], key) for key in form}
    if kind is list and isinstance(
        value, list
    ):  # any number of values, each of the form of the first
        return [_checked(each, form[0], name) for each in value]
    if kind is np.ndarray:
        value = np.asarray(value, dtype=np.float64)
        right = value.shape == form.shape and bool((np.isfinite(value) & (value >= form)).all())
    elif form is None:
        right = value is None or type(value) is int
    else:
        low, high = (0, 2**53) if kind is int else (-1e308, 1e308)
        right = (
            kind in (str, bool, int, float)
            and type(value) is kind
            and (kind is str or low <= value < high)
        )
    if not right:
        raise ValueError(f"{name} has the wrong type, shape or value")
    return value


def _window(sums: Float64) -> dict[str, float]:
    rows, claimed, happened, variance = (float(v) for v in sums)
    many = max(rows, 1.0)
    return {
        "rows": rows, "stated": claimed / many, "observed": happened / many,
        "gap": (claimed - happened) / many, "standard_error": float(np.sqrt(max(variance, 0.0))) / many,
    }  # fmt: skip
