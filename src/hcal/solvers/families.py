"""Families of softmax maps that methods fit by NLL: scores as a function of parameters θ and input x, with derivatives.

``vjp(θ, x)`` gives the scores (N, K) whose softmax are the probabilities, and a function that pulls a gradient in the
scores back to one in θ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64, prefix_sums

#: Gradient in the scores (N, K) ↦ gradient in θ (P,).
Pullback = Callable[[Float64], Float64]

_LEAST_SLOPE = 1e-8


class Family(Protocol):
    """What :func:`hcal.solvers.nll.fit_nll` asks of a family.

    A family whose scores are linear in θ, so that the NLL is convex, also has ``curvature(x, probs, weight)``: the
    second derivative (P, P) of the weighted sum of NLLs.
    """

    @property
    def start(self) -> Float64:
        """The parameters (P,) at which a fit begins: the identity, if the family contains it."""

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""


@dataclass(frozen=True)
class ClassLinear:
    """softmax(Σ_a θ_a ⊙ x_a + θ_0), with x = (x_1, …, x_A) side by side: (N, A·K); θ = (θ_1, …, θ_A, θ_0).

    One input is vector scaling; the two inputs ln p and −ln(1 − p) are multi-class beta calibration.

    >>> ClassLinear(2).start
    array([1., 1., 0., 0.])
    """

    n_classes: int
    inputs: int = 1

    @property
    def start(self) -> Float64:
        """Slopes of 1, no offsets."""
        return np.repeat([1.0, 0.0], [self.inputs * self.n_classes, self.n_classes])

    def _parts(self, x: Float64) -> list[Float64]:
        k = self.n_classes
        return [x[:, a * k : (a + 1) * k] for a in range(self.inputs)]

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        *slopes, offsets = theta.reshape(-1, self.n_classes)
        parts = self._parts(x)
        scores = parts[0] * slopes[0] + offsets
        for part, slope in zip(parts[1:], slopes[1:], strict=True):
            scores += part * slope

        def pullback(d: Float64) -> Float64:
            return np.concatenate(
                [*(np.einsum("nk,nk->k", d, part) for part in parts), d.sum(axis=0)]
            )

        return scores, pullback

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative: diagonal blocks minus one matrix product."""
        features = [*self._parts(x), np.ones_like(probs)]
        out = -_gram(np.hstack([probs * f for f in features]), weight)
        at = np.arange(self.n_classes)
        for a, f in enumerate(features):
            for b, g in enumerate(features):
                out[a * self.n_classes + at, b * self.n_classes + at] += weight @ (probs * f * g)
        return out


@dataclass(frozen=True)
class ClassOffsets:
    """softmax(x + b); θ = b.

    >>> ClassOffsets(2).start
    array([0., 0.])
    """

    n_classes: int

    @property
    def start(self) -> Float64:
        """The identity."""
        return np.zeros(self.n_classes)

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        return x + theta, lambda d: d.sum(axis=0)

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative: a diagonal minus one matrix product."""
        return np.asarray(np.diag(weight @ probs) - _gram(probs, weight))


@dataclass(frozen=True)
class MatrixScaling:
    """softmax(W x + b); θ = (W row by row, b).

    >>> MatrixScaling(2).start
    array([1., 0., 0., 1., 0., 0.])
    """

    n_classes: int

    @property
    def start(self) -> Float64:
        """The identity."""
        return np.concatenate([np.eye(self.n_classes).ravel(), np.zeros(self.n_classes)])

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        k = self.n_classes
        scores = x @ theta[: k * k].reshape(k, k).T + theta[k * k :]
        return scores, lambda d: np.concatenate([(d.T @ x).ravel(), d.sum(axis=0)])

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative, built class by class as (row of W, b_k)."""
        k = self.n_classes
        features = np.hstack([x, np.ones((len(x), 1))])
        out = -_gram((probs[:, :, None] * features[:, None, :]).reshape(len(x), -1), weight)
        for j in range(k):
            block = slice(j * (k + 1), (j + 1) * (k + 1))
            out[block, block] += (features.T * (weight * probs[:, j])) @ features
        order = np.arange(k * (k + 1)).reshape(k, k + 1)
        order = np.concatenate([order[:, :k].ravel(), order[:, k]])  # θ keeps all of W before b
        return np.asarray(out[np.ix_(order, order)])


def _gram(spread: Float64, weight: Float64) -> Float64:
    """Return spreadᵀ diag(weight) spread; only one triangle is computed."""
    from scipy.linalg.blas import dsyrk

    gram: Float64 = dsyrk(1.0, (spread * np.sqrt(weight)[:, None]).T)
    return np.triu(gram) + np.triu(gram, 1).T


@dataclass(frozen=True)
class Cells:
    """Cells of equal width on the real line; the first and the last are unbounded outwards.

    >>> cells = Cells(0.0, 1.0, 3)
    >>> cells.index(np.array([-5.0, 1.5, 9.0])), cells.edges
    (array([0, 1, 2]), array([0., 1., 2., 3.]))
    """

    low: float
    width: float
    count: int

    @property
    def edges(self) -> Float64:
        """The count + 1 edges."""
        return self.low + self.width * np.arange(self.count + 1, dtype=np.float64)

    @property
    def middles(self) -> Float64:
        """The midpoints of the cells."""
        return self.low + self.width * (np.arange(self.count, dtype=np.float64) + 0.5)

    def index(self, x: Float64) -> NDArray[np.intp]:
        """Return the cell of every x."""
        at = np.floor((x - self.low) / self.width)
        return np.clip(at, 0, self.count - 1).astype(np.intp)


def cells_over(x: Float64) -> Cells:
    """Return 1024 cells from the 0.01 % to the 99.99 % quantile of all logits, so that outliers do not stretch them.

    >>> cells_over(np.array([0.0, 1024.0])).width
    1.0
    """
    flat = x.ravel()[:: max(1, x.size // 1_000_000)]
    low, high = (float(q) for q in np.quantile(flat, [1e-4, 1 - 1e-4], method="nearest"))
    return Cells(low, (high - low) / 1024 or 1.0, 1024)


@dataclass(frozen=True)
class MonotoneNet:
    """softmax of m(x), m(x) = ∫ (ELU(g(t)) + 1 + 1e-8) dt, g an MLP 1 → hidden → hidden → 1 with ReLU.

    g is evaluated at the midpoints of ``cells``, which cover the logits; its values are the slopes of a piecewise
    linear function. The start is uniform in ±1/√fan-in, where the first layer counts as having two inputs.
    θ = (w₁, b₁, W₂, b₂, w₃, b₃).

    >>> MonotoneNet(2, Cells(0.0, 1.0, 4)).start.size
    13
    """

    hidden: int
    cells: Cells
    random_state: int = 0

    @property
    def start(self) -> Float64:
        """A random network."""
        rng, h = np.random.RandomState(self.random_state), self.hidden
        sizes = [(h, 2), (h, 2), (h * h, h), (h, h), (h, h), (1, h)]
        return np.concatenate([rng.uniform(-1, 1, n) / np.sqrt(fan_in) for n, fan_in in sizes])

    def table(self, theta: Float64) -> Float64:
        """Return the values (count + 1,) at the edges of the cells, increasing from 0."""
        return prefix_sums(self._slopes(theta)[0] * self.cells.width)

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        slopes, back = self._slopes(theta)
        width, at = self.cells.width, self.cells.index(x)
        beyond = x - (self.cells.low + width * at)
        values = prefix_sums(slopes * width)

        def pullback(d: Float64) -> Float64:
            count, flat = self.cells.count, at.ravel()
            mass = np.bincount(flat, weights=d.ravel(), minlength=count)
            own = np.bincount(flat, weights=(d * beyond).ravel(), minlength=count)
            above = np.cumsum(mass[::-1])[::-1] - mass
            return back(own + width * above)

        return values[at] + slopes[at] * beyond, pullback

    def _slopes(self, theta: Float64) -> tuple[Float64, Pullback]:
        """Return ELU(g(t)) + 1 + 1e-8 at the midpoints, and its pullback to θ."""
        h, t = self.hidden, self.cells.middles
        w1, b1, w2, b2, w3, b3 = np.split(theta, np.cumsum([h, h, h * h, h, h]))
        a1 = np.maximum(np.outer(t, w1) + b1, 0)
        a2 = np.maximum(a1 @ w2.reshape(h, h).T + b2, 0)
        g = a2 @ w3 + b3
        below = np.exp(np.minimum(g, 0))
        slopes: Float64 = np.where(g > 0, g + 1, below) + _LEAST_SLOPE

        def back(d: Float64) -> Float64:
            dg = d * np.where(g > 0, 1.0, below)
            d2 = np.outer(dg, w3) * (a2 > 0)
            d1 = (d2 @ w2.reshape(h, h)) * (a1 > 0)
            parts = [
                d1.T @ t,
                d1.sum(axis=0),
                (d2.T @ a1).ravel(),
                d2.sum(axis=0),
                a2.T @ dg,
                [dg.sum()],
            ]
            return np.concatenate(parts)

        return slopes, back
