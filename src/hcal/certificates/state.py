"""Alarms, and what the state file of a monitor may hold: every value is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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


_NONE, _NUMBER = type(None), (int, float)
#: What the state of a monitor, a file in it and an alarm hold, and of which types each may be.
STATE = {
    "schema": (int,), "level": _NUMBER, "tolerance": (*_NUMBER, str), "events": (list,), "positive": (int,),
    "classes": (list, _NONE), "n": (int,), "n_classes": (int,), "raised": (bool,), "merged": _NUMBER,
    "base": _NUMBER, "alarm": (dict, _NONE), "alarms": (list,), "files": (list,), "loudest": (list, _NONE),
    "arrays": (dict,), "history": (list,), "recent": (list,),
}  # fmt: skip
FILE = {"name": (str,), "digest": (str,), "date": (str,), "sums": (list,)}
ALARM = {
    "row": (int,), "family": (str,), "event": (str,), "direction": (str,), "evidence": _NUMBER,
    "rows": (int,), "stated": _NUMBER, "observed": _NUMBER, "last": (int,), "until": (int, _NONE),
}  # fmt: skip


def check_kinds(value: Any, kinds: Mapping[str, tuple[type, ...]], name: str) -> dict[str, Any]:
    """Return a dictionary that holds exactly the declared keys, each of its type, and no NaN or infinity."""
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise ValueError(f"{name} must hold {', '.join(kinds)}")
    for key, allowed in kinds.items():
        found = value[key]
        if type(found) not in allowed or (isinstance(found, float) and not math.isfinite(found)):
            raise ValueError(f"{name}: {key} must be {' or '.join(kind.__name__ for kind in allowed)}")
    return value


def check_numbers(value: Any, shape: tuple[int, ...], name: str, low: float = -np.inf) -> Float64:
    """Return finite numbers of at least ``low`` as an array of a given shape."""
    found = np.asarray(value, dtype=np.float64) if not isinstance(value, str | dict | bool) else None
    if found is None or found.shape != shape or not np.isfinite(found).all() or (found < low).any():
        least = "" if low == -np.inf else f" of at least {low:g}"
        raise ValueError(f"{name} must hold finite numbers{least} in shape {shape}")
    return found
