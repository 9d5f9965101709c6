"""Kuiper's statistic: how far the cumulated gap between confidence and accuracy rises and falls in all."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample, as_value


@documented_metric()
def kuiper(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the range of the cumulated gap: max − min over all intervals of confidence, no bins.

    Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu: Metrics of calibration for probabilistic predictions, JMLR
    2022 (ECCE-R). It is the largest |mean gap · share of rows| of any interval of confidences; ``ks`` looks
    only at those that begin at 0. Rows of equal confidence enter together.

    Examples
    --------
    >>> round(kuiper([[0.25, 0.75], [0.4, 0.6]], [1, 1]), 6)
    0.325
    """
    s = as_sample(probs, y, sample_weight)
    highest, lowest = s.ranked.walk(_ends(s))
    return as_value(_range(highest, lowest) / s.ranked.total)


def kuiper_null(s: Sample, draws: int, rng: np.random.Generator) -> Vector:
    """Return Kuiper statistics of hits drawn with the confidences as their probabilities, shape (draws,)."""
    ends = _ends(s)
    return np.concatenate([_range(*r.walk(ends)) / s.n for r in s.drawn_ranked(draws, rng)])


def _ends(s: Sample) -> Any:
    """Return the last row of every run of equal confidences."""
    return np.flatnonzero(np.diff(s.data.conf_sorted, append=np.inf) > 0)


def _range(highest: Any, lowest: Any) -> Any:
    """Return the reach of walks that start at 0."""
    return np.maximum(highest, 0) - np.minimum(lowest, 0)
