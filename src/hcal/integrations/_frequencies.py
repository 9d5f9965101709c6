"""Class frequencies of new rows, estimated by how far their probabilities are from those of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import chdtri

from hcal.methods.prior import estimate_frequencies
from hcal.numerics import Float64, IntArray

#: Rows with the old frequencies move the estimate in less than one of a hundred samples.
_CHANCE = 0.01


@dataclass(frozen=True)
class MeanProbs:
    """The mean probability of each class over rows, and how exactly the rows tell it.

    >>> MeanProbs.of(np.array([[0.2, 0.8], [0.4, 0.6]])).mean
    array([0.3, 0.7])
    """

    mean: Float64
    covariance: Float64

    @classmethod
    def of(
        cls, probs: Float64, weight: Float64 | None = None, groups: IntArray | None = None
    ) -> Self:
        """Measure rows (N, K); the rows of one group count together."""
        weight = np.ones(len(probs)) if weight is None else weight
        share = weight / weight.sum()
        mean = share @ probs
        deviations = share[:, None] * (probs - mean)
        if groups is not None:
            _, group = np.unique(groups, return_inverse=True)
            sums = np.zeros((group.max() + 1, probs.shape[1]))
            np.add.at(sums, group, deviations)
            deviations = sums
        return cls(mean, deviations.T @ deviations)


def new_frequencies(probs: Float64, frequencies: Float64, held_out: MeanProbs) -> Float64:
    """Return the class frequencies (K,) of new rows, by EM as far as the rows prove a change.

    If the new rows had the old frequencies, their mean probabilities would differ from those of the held-out rows by
    chance alone: T² of Hotelling is then a χ² with K − 1 degrees of freedom. With c its 99 % quantile, the result is
    old + max(0, 1 − c/T²)·(EM − old).

    Parameters
    ----------
    probs : array of shape (F, N, K)
        The probabilities of N rows by each of F calibrated classifiers.
    frequencies : array of shape (F, K)
        The class frequencies that the probabilities of each classifier belong to.
    held_out : MeanProbs
        The mean over classifiers for rows with these frequencies.
    """
    old = frequencies.mean(axis=0)
    new = MeanProbs.of(probs.mean(axis=0))
    difference = new.mean - held_out.mean
    covariance = new.covariance + held_out.covariance
    distance = float(difference @ np.linalg.pinv(covariance, rcond=1e-10) @ difference)
    bound = float(chdtri(len(old) - 1, _CHANCE))
    if distance <= bound:
        return np.asarray(old)

    # EM takes probabilities that belong to one set of frequencies.
    ratio = old / np.where(frequencies > 0, frequencies, np.inf)
    relative = (probs * ratio[:, None]).reshape(-1, len(old))
    estimate = estimate_frequencies(relative, old)
    return np.asarray(old + (1 - bound / distance) * (estimate - old))
