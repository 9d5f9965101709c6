"""The paper's own bounds on a window, at the same probability of failure, to stand beside ours.

Proposition 2 bounds a weighted mean of window gaps by Ξ + α with failure at most 1/(α√M) (Markov's
inequality), Ξ the observed gaps; Theorem 6 lets the failure of one window, fixed beforehand, fall
exponentially with M at the rate of its relative entropy.
"""

from __future__ import annotations

import numpy as np

from hcal.certificates.bounds import kl_interval


def markov_reach(rows: float, failure: float) -> float:
    """Return the α of the paper's Ξ + α at a probability of failure: 1/(failure·√M), at most 1.

    >>> markov_reach(160_000, 0.05)
    0.05
    >>> markov_reach(200, 0.05)
    1.0
    """
    return min(1.0, 1 / (failure * float(np.sqrt(rows))))


def large_deviation_reach(observed: float, rows: float, failure: float) -> float:
    """Return how far the truth of one window, fixed beforehand, can be from what was observed.

    >>> round(large_deviation_reach(0.9, 2000, 0.05), 4)
    0.0192
    """
    low, high = kl_interval(observed, np.log(2 / failure) / rows)
    return float(np.maximum(observed - low, high - observed))
