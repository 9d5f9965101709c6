"""Adjust probabilities to class frequencies that differ from those of the calibration set.

Under label shift P(x | k) stays the same and P(k) changes, so the true probabilities are multiplied by
P_new(k)/P_old(k) and normalised. The new frequencies can be learned from scores without labels, by EM (Saerens,
Latinne and Decaestecker, 2002; with calibrated probabilities: Alexandari, Kundaje and Shrikumar, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hcal.class_names import ClassName, class_title, places_of_classes
from hcal.frames import index_of
from hcal.numerics import Float64

#: How often each class occurs: in the order of the classes, or by their names in a dict or pandas Series.
Frequencies: TypeAlias = ArrayLike | Mapping[ClassName, float]

_STEPS: Final = 10_000
#: The old class frequencies count as much as this many rows when new ones are estimated.
STRENGTH: Final = 30.0
#: Rows that are a mixture of the old classes are said not to be in one of a hundred samples.
UNEXPLAINED_LEVEL: Final = 0.01


def check_frequencies(
    frequencies: Frequencies, n_classes: int, names: Sequence[ClassName] | None = None
) -> Float64:
    """Return class frequencies (K,) that sum to 1; those of a dict or of a pandas Series are taken by name.

    >>> check_frequencies([1, 3], 2), check_frequencies({"dog": 3, "cat": 1}, 2, ["cat", "dog"])
    (array([0.25, 0.75]), array([0.25, 0.75]))
    """
    titles = frequencies if isinstance(frequencies, Mapping) else index_of(frequencies)
    values = list(frequencies.values()) if isinstance(frequencies, Mapping) else frequencies
    numbers = np.asarray(values, dtype=np.float64)
    if titles is not None and numbers.ndim == 1:
        places = places_of_classes(list(titles), names, n_classes, "frequencies")
        numbers = numbers if places is None else numbers[places]
    if numbers.shape != (n_classes,):
        raise ValueError(
            f"frequencies must be one number for each of {n_classes} classes, got {numbers.shape}"
        )
    if not np.isfinite(numbers).all() or (numbers < 0).any() or numbers.sum() <= 0:
        raise ValueError("frequencies must be finite, not negative, and not all 0")
    return np.asarray(numbers / numbers.sum())


def log_ratio(new: Float64, old: Float64, names: Sequence[ClassName] | None = None) -> Float64:
    """Return ln new/old (K,), −∞ for a new frequency of 0; a class without calibration rows is refused.

    >>> log_ratio(np.array([0.5, 0.5]), np.array([0.25, 0.75])).round(3)
    array([ 0.693, -0.405])
    """
    unseen = np.flatnonzero((old == 0) & (new > 0))
    if unseen.size:
        title = class_title(int(unseen[0]), names)
        raise ValueError(
            f"{title} has no calibration row, so its probability cannot be adjusted: "
            "its frequency must be 0"
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(new) - np.log(np.where(old > 0, old, 1.0)))


def estimate_frequencies(probs: Float64, old: Float64, strength: float = 0.0) -> Float64:
    """Return the class frequencies (K,) of greatest likelihood, by EM; probs (N, K) belong to the old frequencies.

    The old frequencies count as much as ``strength`` more rows, so that few rows move them a little.

    >>> probs = np.array([[0.9, 0.1]] * 30 + [[0.1, 0.9]] * 70)
    >>> estimate_frequencies(probs, np.array([0.5, 0.5])).round(2)
    array([0.25, 0.75])
    >>> estimate_frequencies(probs[:1], np.array([0.5, 0.5]), STRENGTH).round(2)
    array([0.51, 0.49])
    """
    seen = old > 0
    relative = np.where(seen, probs / np.where(seen, old, 1.0), 0.0)
    new = old.copy()
    for _ in range(_STEPS):
        mixed = np.maximum(relative @ new, np.finfo(np.float64).tiny)
        counts = new * (relative.T @ (1.0 / mixed)) + strength * old
        step = counts / counts.sum()
        if np.abs(step - new).max() < 1e-10:
            return np.asarray(step)
        new = step
    return new


def frequency_ratio(probs: Float64, stated: Float64) -> Float64:
    """Return how many times as often each class occurs as before (K,), from probabilities (N, K) of new rows.

    ``stated`` are the mean probabilities of the rows of the fit, so that rows like those give ratios of 1. They count
    as much as :data:`STRENGTH` more rows.

    >>> frequency_ratio(np.array([[0.9, 0.1]] * 300 + [[0.1, 0.9]] * 700), np.array([0.5, 0.5])).round(1)
    array([0.5, 1.5])
    """
    estimate = estimate_frequencies(probs, stated, STRENGTH)
    ratio = estimate / np.where(stated > 0, stated, 1.0)
    return np.where(stated > 0, ratio, 0.0)
