"""The constants of the objective, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weighting = Literal["kmeans", "uniform"]

#: A centroid half-way between two centres, up to this relative rounding, belongs to the lower cluster.
#: Without it the sums of tied probabilities, equal on paper, would fall to either side at random.
HALF_WAY = 1 + 1e-10

#: A window whose probabilities sum to its number of marks, up to this relative rounding, has no error.
#: Without it the sign of 0, and so the slope of the window, would be what the order of additions leaves.
EVEN = 1e-9


@dataclass(frozen=True)
class ObjectiveSettings:
    """Constants of eq:EventEnsembleLoss and eq:finalloss, with the paper's values as defaults.

    Parameters
    ----------
    window : int
        M, the number of consecutive events in a window.
    epsilon : float
        The error that is tolerated.
    scale : float
        r, a constant factor.
    clusters, iterations : int
        Of the 1-D k-means that weights the windows; the number of Lloyd iterations is exact.
    weighting : {"kmeans", "uniform"}
    norm : {1, 2}
        2 squares the windowed error, without a root.

    Examples
    --------
    >>> ObjectiveSettings(window=0)
    Traceback (most recent call last):
    ...
    ValueError: window must be an integer of at least 1, got 0
    """

    window: int = 200
    epsilon: float = 1e-20
    scale: float = 1e5
    clusters: int = 15
    iterations: int = 25
    weighting: Weighting = "kmeans"
    norm: int = 1

    def __post_init__(self) -> None:
        for name in ("window", "clusters", "iterations"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon!r}")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale!r}")
        if self.weighting not in ("kmeans", "uniform"):
            raise ValueError(f"weighting must be 'kmeans' or 'uniform', got {self.weighting!r}")
        if self.norm not in (1, 2):
            raise ValueError(f"norm must be 1 or 2, got {self.norm!r}")
