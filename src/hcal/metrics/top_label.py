"""Top-label errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.metrics.scores import _checked


def ece_ew(probs: Any, y: Any, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the expected calibration error over equal-width bins (lo, hi].

    Examples
    --------
    >>> ece_ew([[0.25, 0.75]], [1])
    0.25
    """
    p, labels, weight = _checked(probs, y, sample_weight)
    conf = p.max(axis=1).astype(np.float64)
    hit = (p.argmax(axis=1) == labels).astype(np.float64)
    w = np.ones(len(p)) if weight is None else weight
    edges = np.linspace(0, 1, bins + 1)
    which = np.clip(np.searchsorted(edges, conf, side="left") - 1, 0, bins - 1)
    gap = np.bincount(which, weights=w * (conf - hit), minlength=bins)
    return float(np.abs(gap).sum() / w.sum())
