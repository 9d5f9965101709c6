"""How the calibrated probabilities of a fit are distributed: a few bins by which new rows are compared with the old.

The estimate of new class frequencies assumes label shift: new rows are a mixture of the old classes. These bins show
where that cannot be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from scipy.special import chdtrc

from hcal.numerics import Float64, FloatArray, IntArray

_BINS: Final = 10
#: A claim counts as at most an edge where it is above it by rounding.
_BELOW: Final = 1 - 1e-6
#: At most this many rows of a fit are remembered, and at most this many classes are checked.
_MOST_ROWS: Final = 20_000
_MOST_CLASSES: Final = 100
#: The variance of the old shares counts so often, for the noise of the map beside that of the rows.
_NOISE_OF_MAP: Final = 2.0


@dataclass(frozen=True)
class ProbabilityBins:
    """How the calibrated probabilities of a fit are distributed, so that new ones can be compared with them.

    Attributes
    ----------
    edges : array of shape (B − 1,)
        Inner limits of bins of P(class 1) with two classes, else of the largest probability.
    mass : array of shape (B, K)
        The mean over all rows of each class's probability, in the rows of a bin.
    rows : float
        How many independent rows the mass comes from.
    """

    edges: Float64
    mass: Float64
    rows: float

    @classmethod
    def of(cls, probs: FloatArray, weight: Float64 | None, effective_rows: float) -> Self | None:
        """Return the bins of a fit's probabilities (N, K), from at most 20,000 rows; None with many classes."""
        if probs.shape[1] > _MOST_CLASSES:
            return None
        step = -(-len(probs) // _MOST_ROWS)
        sample = probs[::step].astype(np.float64)
        claims = _claims(sample)
        edges = _edges(claims)
        share = np.ones(len(sample)) if weight is None else weight[::step]
        mass = np.zeros((len(edges) + 1, probs.shape[1]))
        np.add.at(mass, _bin_of(claims, edges), share[:, None] * sample)
        rows = min(effective_rows, effective_rows * len(sample) / len(probs))
        return cls(edges, mass / mass.sum(), rows)

    @property
    def frequencies(self) -> Float64:
        """The mean probability of each class over the rows of the fit, shape (K,)."""
        return np.asarray(self.mass.sum(axis=0))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"edges": self.edges.tolist(), "mass": self.mass.tolist(), "rows": self.rows}

    @classmethod
    def from_json(cls, content: Any, n_classes: int) -> Self | None:
        """Return the bins that a file holds; a ValueError says what is not sound."""
        if content is None:
            return None
        words = "'fit.bins' must be edges, mass of each class, and rows"
        if not isinstance(content, Mapping) or set(content) != {"edges", "mass", "rows"}:
            raise ValueError(words)
        try:
            edges = np.array(content["edges"], dtype=np.float64)
            mass = np.array(content["mass"], dtype=np.float64)
            rows = float(content["rows"])
        except (TypeError, ValueError):
            raise ValueError(words) from None
        shaped = edges.ndim == 1 and mass.shape == (len(edges) + 1, n_classes)
        if not shaped or len(edges) >= _BINS or not np.isfinite([*edges, rows]).all() or rows <= 0:
            raise ValueError(words)
        if not ((mass >= 0).all() and abs(mass.sum() - 1) < 1e-6 and (np.diff(edges) > 0).all()):
            raise ValueError(words)
        return cls(edges, mass, rows)

    def p_value(self, probs: Float64, ratio: Float64) -> float:
        """Return the p-value of: rows with these probabilities are a mixture of the classes of the fit.

        ``ratio`` says how many times as often each class occurs as before. Under label shift the density of new rows
        is Σ_k ratio_k·P(k | x) times that of the old ones, so each bin has an expected share. χ² compares it with the
        observed one. Both samples are noisy, and so is the map that was fitted to the old one.

        >>> rng = np.random.default_rng(0)
        >>> p = rng.beta(2, 2, 2000)
        >>> bins = ProbabilityBins.of(np.stack([1 - p, p], axis=1), None, 2000)
        >>> q = rng.beta(2, 2, 500)
        >>> bins.p_value(np.stack([1 - q, q], axis=1), np.ones(2)) > 0.01
        True
        >>> narrow = np.full((500, 2), 0.5)
        >>> bins.p_value(narrow, np.ones(2)) < 1e-6
        True
        """
        expected = self.mass @ ratio
        expected = np.maximum(expected / expected.sum(), 1e-12)
        before = np.maximum(self.mass.sum(axis=1), 1e-12)
        counts = np.bincount(_bin_of(_claims(probs), self.edges), minlength=len(before))
        observed = counts / len(probs)

        noise_of_fit = _NOISE_OF_MAP * (expected / before) ** 2 * before / self.rows
        noise = expected / len(probs) + noise_of_fit
        statistic = float(((observed - expected) ** 2 / noise).sum())
        return float(chdtrc(len(self.edges), statistic)) if len(self.edges) else 1.0


def _claims(probs: Float64) -> Float64:
    """Return P(class 1) of two classes, else the largest probability."""
    return np.asarray(probs[:, 1] if probs.shape[1] == 2 else probs.max(axis=1))


def _edges(claims: Float64) -> Float64:
    """Return the different deciles of the claims, without those that cut off less than half a tenth of the rows."""
    quantiles = np.unique(np.quantile(claims, np.arange(1, _BINS) / _BINS))
    ascending = np.sort(claims)
    edges: list[float] = []
    before = 0
    for edge in quantiles.tolist():
        below = int(np.searchsorted(ascending * _BELOW, edge, side="left"))
        if min(below - before, len(claims) - below) >= len(claims) / (2 * _BINS):
            edges.append(edge)
            before = below
    return np.array(edges)


def _bin_of(claims: Float64, edges: Float64) -> IntArray:
    """Return the bin of each claim; a claim at an edge, up to rounding, belongs to the bin below."""
    return np.searchsorted(edges, claims * _BELOW, side="left")
