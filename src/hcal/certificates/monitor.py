"""``hcal.Monitor``: is it still calibrated? An e-process that may be looked at after every row.

For each family of events a gambler bets against calibration (:mod:`hcal.certificates.bets`). If the predictor
is calibrated given the past, the capital is a non-negative martingale that starts at 1, so that it ever
reaches 1/α with probability at most α (Ville): looking often costs nothing. Capital is spread over all bets
and over cash, and after every block of rows a small, shrinking share is dealt anew: a mixture over all
sequences of bets, which is a martingale too, and finds a drift that starts late.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.certificates.bets import (
    FAMILIES,
    Gamblers,
    log_average,
    log_mean,
    log_payoffs,
    log_vector_payoffs,
)
from hcal.io.class_names import ClassName, check_classes, class_title, encode
from hcal.numerics import Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows after which shares are dealt anew; fixed, so that batches of any size give the same evidence.
BLOCK = 128
_SCHEMA = 1


@dataclass(frozen=True)
class Alarm:
    """When calibration was refuted, and what spoke against it.

    Attributes
    ----------
    row : int
        How many rows had been seen.
    family : {"top-label", "class-wise", "vector"}
        Which family held most of the evidence.
    event : str
        The top label, a class, or the whole vector.
    direction : str
        Such as ``"over-confident"`` or ``"stated too low at or above 0.5"``.
    evidence : float
        The capital; calibration is refuted at level 1/evidence.
    """

    row: int
    family: str
    event: str
    direction: str
    evidence: float


class Monitor:
    """Watch a stream of predictions and labels; the alarm is false with probability at most ``level``, ever.

    Parameters
    ----------
    level : float
        Probability of a false alarm over all time, however often one looks.
    tolerance : float
        Events that are off by at most this are no reason for an alarm; 0 watches for any miscalibration.
    events : sequence of {"top-label", "class-wise", "vector"}, optional
        Families; all of them by default. The whole vector has no tolerance: with one it is left out.
    positive : int
        The class that is watched where there are two.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns: alarms use them, and labels may be given by them.

    Attributes
    ----------
    n : int
        Rows seen.
    alarm : Alarm or None
    evidence : float
        The capital now. Calibration is refuted at level α once it has reached 1/α.
    history : array of shape (H, 1 + families)
        Rows, and log₁₀ of each family's evidence, at the end of every block.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, 4000)
    >>> fine, worse = rng.random(4000) < p, rng.random(4000) < p - 0.1
    >>> monitor = Monitor().update(p, fine.astype(int))
    >>> monitor.alarm is None
    True
    >>> monitor.update(p, worse.astype(int)).alarm.direction
    'over-confident'
    """

    def __init__(
        self,
        level: float = 0.05,
        tolerance: float = 0.0,
        *,
        events: Sequence[str] | None = None,
        positive: int = 1,
        classes: Sequence[ClassName] | None = None,
    ) -> None:
        if not (isinstance(level, int | float | np.number) and 0 < level < 1):
            raise ValueError(f"level must lie between 0 and 1, such as 0.05, got {level!r}")
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance must lie in 0..1, got {tolerance!r}")
        self.level, self.tolerance, self.positive = float(level), float(tolerance), int(positive)
        self.classes = None if classes is None else check_classes(classes, len(classes))
        self.events = self._families(events)
        self.n, self.n_classes = 0, 0
        self.alarm: Alarm | None = None
        self._gamblers: dict[str, Gamblers] = {}
        self._merged = 0.0  # log-evidence of merged streams
        self._loudest: tuple[float, dict[str, Any]] | None = None  # of these: its log-evidence, its words
        self._history: list[tuple[float, ...]] = []

    def _families(self, events: Sequence[str] | None) -> tuple[str, ...]:
        chosen = tuple(FAMILIES) if events is None else tuple([events] if isinstance(events, str) else events)
        unknown = [e for e in chosen if e not in FAMILIES]
        if unknown or not chosen:
            raise ValueError(f"events are {', '.join(FAMILIES)}; got {unknown[0] if unknown else 'none'!r}")
        if self.tolerance and events is None:
            chosen = tuple(e for e in chosen if e != "vector")
        if self.tolerance and "vector" in chosen:
            raise ValueError("the whole vector has no tolerance: watch 'top-label' or 'class-wise' with one")
        return chosen

    # -- watching ---------------------------------------------------------------------------------

    def update(self, probs: Any, y: Any) -> Self:
        """Add rows in the order in which they came.

        Parameters
        ----------
        probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        y : array-like of shape (N,)
        """
        p, _ = inputs.check_probs(probs)
        labels = inputs.check_labels(encode(y, self.classes), *p.shape)
        if self.classes is not None:
            check_classes(self.classes, p.shape[1])
        if not self.n_classes:
            self._begin(p.shape[1])
        if p.shape[1] != self.n_classes:
            raise ValueError(f"probs has {p.shape[1]} classes, this monitor watches {self.n_classes}")
        at = 0
        while at < len(p):
            rows = slice(at, at + min(BLOCK - self.n % BLOCK, len(p) - at))
            self._block(p[rows].astype(np.float64, copy=False), labels[rows])
            at = rows.stop
        return self

    def _begin(self, k: int) -> None:
        self.n_classes = k
        sizes = {"top-label": 1, "class-wise": k if k > 2 else 1, "vector": 1}
        self._gamblers = {f: Gamblers(sizes[f], len(FAMILIES[f])) for f in self.events}

    def _block(self, p: Float64, y: NDArray[np.int64]) -> None:
        paths = np.stack(
            [log_average(self._gamblers[f].path(self._logs(f, p, y))) for f in self.events], axis=1
        )
        total = log_average(paths) + self._merged
        if self.alarm is None and total.max() >= -np.log(self.level):
            first = int((total >= -np.log(self.level)).argmax())
            self.alarm = self._describe(self.n + first + 1, paths[first], float(total[first]))
        self.n += len(p)
        if self.n % BLOCK == 0:
            for gamblers in self._gamblers.values():
                gamblers.deal(1 / (self.n // BLOCK + 1))
            self._history.append((self.n, *(float(v) for v in paths[-1] / np.log(10))))

    def _logs(self, family: str, p: Float64, y: NDArray[np.int64]) -> Float64:
        if family == "vector":
            return log_vector_payoffs(p, y)[:, None]
        if family == "top-label":
            top = p.argmax(axis=1)
            claims, marks = p[np.arange(len(p)), top][:, None], (top == y)[:, None]
        elif self.n_classes == 2:
            claims, marks = p[:, self.positive, None], (y == self.positive)[:, None]
        else:
            claims, marks = p, y[:, None] == np.arange(self.n_classes)
        return log_payoffs(claims, marks, FAMILIES[family], self.tolerance)

    def _describe(self, row: int, families: Float64, log_evidence: float) -> Alarm:
        family = self.events[int(families.argmax())]
        event, bet = self._gamblers[family].leader()
        watched = self.positive if self.n_classes == 2 else event
        name = {"top-label": "top label", "vector": "whole vector"}.get(family)
        name = class_title(watched, self.classes) if name is None else name
        evidence = float(np.exp(min(log_evidence, 700.0)))
        return Alarm(row, family, name, FAMILIES[family][bet].words, evidence)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the capital now, over all families and merged streams."""
        if not self._gamblers:
            return self._merged
        each = [g.start + log_mean(g.gained, g.weights) for g in self._gamblers.values()]
        return float(log_average(np.array([log_average(e) for e in each]))) + self._merged

    @property
    def evidence(self) -> float:
        """The capital now."""
        return float(np.exp(min(self.log_evidence, 700.0)))

    @property
    def history(self) -> Float64:
        """Rows, and log₁₀ of the evidence of each family, at the end of every block."""
        return np.array(self._history, dtype=np.float64).reshape(-1, 1 + len(self.events))

    # -- merging and saving -----------------------------------------------------------------------

    def merge(self, other: Monitor) -> Self:
        """Add the evidence of another, independent stream: capitals multiply.

        The product of capitals of independent streams is a martingale again: the alarm keeps its level. It is
        the evidence against "both streams are calibrated", and this monitor goes on from there. Streams
        that share rows must not be merged. An earlier alarm of either stream stays; it had
        that stream's own level.

        Parameters
        ----------
        other : Monitor
            Of the same level, tolerance and families.
        """
        mine, theirs = ((m.level, m.tolerance, m.events, m.positive) for m in (self, other))
        if mine != theirs:
            raise ValueError("only monitors of the same level, tolerance and events can be merged")
        if self.n_classes and other.n_classes and self.n_classes != other.n_classes:
            raise ValueError(f"{other.n_classes} classes cannot be merged with {self.n_classes}")
        voices = [voice for m in (self, other) if (voice := m._voice()) is not None]
        self._loudest = max(voices, key=lambda voice: voice[0], default=None)
        self._merged += other.log_evidence
        if self.alarm is None and other.alarm is not None:
            self.alarm = other.alarm
        if self.alarm is None and self._loudest and self.log_evidence >= -np.log(self.level):
            evidence = float(np.exp(min(self.log_evidence, 700.0)))
            self.alarm = Alarm(**self._loudest[1] | {"row": self.n + other.n, "evidence": evidence})
        return self

    def _voice(self) -> tuple[float, dict[str, Any]] | None:
        """Log-evidence and words of the strongest single stream among this one and those merged into it."""
        own = self.log_evidence - self._merged
        if not self._gamblers or (self._loudest is not None and self._loudest[0] > own):
            return self._loudest
        families = np.array([log_average(g.start) for g in self._gamblers.values()])
        return own, asdict(self._describe(self.n, families, own))

    def result(self) -> Alarm | None:
        """Return the alarm, or None while there is none."""
        return self.alarm

    @property
    def state(self) -> dict[str, Any]:
        """Everything needed to go on later, as plain values."""
        gamblers = {
            f: {name: getattr(g, name).tolist() for name in ("weights", "start", "gained")}
            for f, g in self._gamblers.items()
        }
        return {
            "schema": _SCHEMA,
            "level": self.level,
            "tolerance": self.tolerance,
            "events": list(self.events),
            "positive": self.positive,
            "classes": self.classes,
            "n": self.n,
            "n_classes": self.n_classes,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "merged": self._merged,
            "loudest": self._loudest,
            "gamblers": gamblers,
            "history": [list(h) for h in self._history],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Monitor:
        """Return the monitor whose :attr:`state` this is.

        Examples
        --------
        >>> monitor = Monitor().update([[0.2, 0.8]] * 5, [1] * 5)
        >>> Monitor.from_state(monitor.state).evidence == monitor.evidence
        True
        """
        if state.get("schema") != _SCHEMA:
            raise ValueError(f"the state has schema {state.get('schema')!r}; this hcal reads {_SCHEMA}")
        made = cls(
            state["level"], state["tolerance"], events=state["events"], positive=state["positive"],
            classes=state.get("classes"),  # none in older states
        )  # fmt: skip
        if state["n_classes"]:
            made._begin(state["n_classes"])
        made.n, made._merged = state["n"], state["merged"]
        made._loudest = tuple(state["loudest"]) if state.get("loudest") else None  # none in older states
        made.alarm = None if state["alarm"] is None else Alarm(**state["alarm"])
        made._history = [tuple(h) for h in state["history"]]
        for family, held in state["gamblers"].items():
            for name, values in held.items():
                setattr(made._gamblers[family], name, np.array(values))
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file, atomically."""
        from hcal.io.atomic import atomic_path

        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(self.state, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Monitor:
        """Return the monitor that :meth:`save` wrote."""
        try:
            return cls.from_state(json.loads(Path(path).read_text(encoding="utf-8")))
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not the state of a monitor ({error})") from None

    # -- for people -------------------------------------------------------------------------------

    def __str__(self) -> str:
        limit = f"alarm at {1 / self.level:g}"
        seen = f"{self.n:,} rows seen, evidence against calibration {self.evidence:.3g} ({limit})"
        if self.alarm is None:
            return f"no alarm: {seen}"
        a = self.alarm
        return f"ALARM at row {a.row:,}: {a.event} ({a.family}) is {a.direction}; {seen}"

    def __repr__(self) -> str:
        return f"<Monitor: {self}>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the evidence of every family over time, and the line where the alarm sounds."""
        from hcal.certificates.drawing import draw_evidence

        return draw_evidence(self, ax)
