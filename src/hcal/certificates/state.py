"""Alarms, and what the state file of a monitor may hold: every value is checked before it is used."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hcal.numerics import Float64
from hcal.text import printable


@dataclass(frozen=True)
class Alarm:
    """When calibration was refuted, what spoke against it, and by how much.

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
    rows : int
        Recent rows that ``stated`` and ``observed`` are averages of: the last ones up to ``last``.
    stated, observed : float
        Mean probability of the event (of the top label for the whole vector), and how often it happened.
    last : int
        How many rows had been seen when it was raised last.
    until : int or None
        Rows seen when the alarm was over; None while it lasts.
    """

    row: int
    family: str
    event: str
    direction: str
    evidence: float
    rows: int = 0
    stated: float = 0.0
    observed: float = 0.0
    last: int = 0
    until: int | None = None

    def __str__(self) -> str:
        size = f"stated {self.stated:.1%}, observed {self.observed:.1%}".replace("%", " %")
        where = f"{self.last - self.rows + 1:,} to {self.last:,}"
        end = "" if self.until is None else f"; over since row {self.until:,}"
        return f"{printable(self.event)} is {printable(self.direction)}: {size} in rows {where}{end}"


def check_whole(value: Any, name: str, high: int) -> int:
    """Return a whole number of 0..high."""
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return value


def check_numbers(value: Any, shape: tuple[int, ...], name: str, low: float = -np.inf) -> Float64:
    """Return finite numbers of at least ``low`` as an array of a given shape."""
    found = np.asarray(value, dtype=np.float64) if not isinstance(value, str | dict | bool) else None
    if found is None or found.shape != shape or not np.isfinite(found).all() or (found < low).any():
        least = "" if low == -np.inf else f" of at least {low:g}"
        raise ValueError(f"{name} must hold finite numbers{least} in shape {shape}")
    return found


def check_listed(value: Any, kind: type, longest: int, name: str) -> list[Any]:
    """Return a list of values of one kind that is not too long."""
    if not isinstance(value, list) or len(value) > longest or not all(isinstance(v, kind) for v in value):
        raise ValueError(f"{name} must be a list of at most {longest} {kind.__name__}")
    return value


def check_file(value: dict[str, Any]) -> dict[str, Any]:
    """Return what is remembered of a file: name, digest, date and sums."""
    if not all(isinstance(value.get(name), str) for name in ("name", "digest", "date")):
        raise ValueError("a file must have a name, a digest and a date")
    texts = {name: value[name] for name in ("name", "digest", "date")}
    return texts | {"sums": check_numbers(value.get("sums"), (4,), "files.sums", low=0.0).tolist()}


def check_alarm(value: Any) -> Alarm:
    """Return a dictionary as the alarm that it describes."""
    kinds = {f.name: f.type for f in fields(Alarm)}
    types = {"int": (int,), "float": (int, float), "str": (str,), "int | None": (int, type(None))}
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise ValueError(f"an alarm must hold {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(value[name], types[str(kind)]) or value[name] != value[name]:
            raise ValueError(f"an alarm's {name} must be {kind}")
    return Alarm(**value)
