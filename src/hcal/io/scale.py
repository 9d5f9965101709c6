"""What plain numbers stand for that are no probabilities yet: a fraction, per cent, or the marks of a grader."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.numerics import NumpyArray
from hcal.text import quoted

#: The ends of a scale, as a text names them.
_ENDS: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)-(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True)
class Scale:
    """From where to where plain numbers go: 0 to 1, 0 to 100 for per cent, 0 to 10 for many graders."""

    low: float
    high: float

    @classmethod
    def of(cls, unit: str) -> Scale:
        """Return the scale that a unit names: ``fraction``, ``percent``, or the two ends, such as ``0-10``.

        >>> Scale.of("1-5")
        Scale(low=1.0, high=5.0)
        """
        if unit in _UNITS:
            return _UNITS[unit]
        match = _ENDS.fullmatch(unit)
        if match is None or not float(match[1]) < float(match[2]):
            raise ValueError(
                "unit must be 'fraction', 'percent', or the ends of a scale such as '0-10', got "
                f"{quoted(unit)}"
            )
        return cls(float(match[1]), float(match[2]))

    def share(self, number: float) -> float:
        """Return where a number stands between the ends, 0 to 1."""
        return float(self.shares(np.asarray(number)))

    def shares(self, numbers: NumpyArray) -> NumpyArray:
        """Return where numbers stand between the ends.

        >>> Scale.of("percent").shares(np.array([25.0, 50.0]))
        array([0.25, 0.5 ])
        """
        return (numbers - self.low) / (self.high - self.low)

    def is_in_doubt(self, number: float) -> bool:
        """Whether a number on this scale of per cent may as well be a fraction, such as 0.9."""
        return self == _UNITS["percent"] and 0 < number <= 1

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


_UNITS: Final = {"fraction": Scale(0.0, 1.0), "percent": Scale(0.0, 100.0)}
