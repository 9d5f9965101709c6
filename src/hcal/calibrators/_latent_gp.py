"""A sparse variational Gaussian process of one scalar, tabulated: the engine of ``gp``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.maps.monotone import Cells
from hcal.numerics import IntArray, softmax

Float64 = NDArray[np.float64]

_JITTER = 1e-6
_BLOCK_EVENTS = 65_536


@dataclass(frozen=True)
class Process:
    """f(x) − x under q: mean kᵀ ``mean``, variance ``prior`` − kᵀ ``reduction`` k; k = σ² RBF(Z, x)."""

    inducing: Float64
    length: float
    variance: float
    prior: float
    mean: Float64
    reduction: Float64

    def moments(self, x: Float64) -> tuple[Float64, Float64]:
        """Return the mean of f and its variance at x, any shape."""
        mean, variance = np.empty(x.size), np.empty(x.size)
        flat = x.ravel()
        for start in range(0, x.size, _BLOCK_EVENTS):
            part = slice(start, start + _BLOCK_EVENTS)
            k = self.variance * np.exp(-0.5 * ((flat[part, None] - self.inducing) / self.length) ** 2)
            mean[part] = flat[part] + k @ self.mean
            variance[part] = self.prior - np.einsum("na,na->n", k @ self.reduction, k)
        return mean.reshape(x.shape), np.maximum(variance, 0).reshape(x.shape)


def unpack(theta: Any, m: int) -> tuple[Any, ...]:
    """Return (m, s, Z, ℓ, σ², noise) of the packed torch parameters, positives by softplus."""
    from torch.nn.functional import softplus

    mean, s, inducing, rest = theta[:m], theta[m : 2 * m], theta[2 * m : 3 * m], theta[3 * m :]
    length, variance, noise = softplus(rest)
    return mean, softplus(s), inducing, length, variance, noise


def start_parameters(inducing: Float64) -> Float64:
    """Return the start: m = 0, s = 1, ℓ = 10, σ² = 1, noise 0.01, before softplus."""
    m = len(inducing)

    def inverse(value: float) -> float:
        return float(np.log(np.expm1(value)))

    rest = [inverse(10.0), inverse(1.0), inverse(0.01)]
    return np.concatenate([np.zeros(m), np.full(m, inverse(1.0)), inducing, rest])


def _factor(theta: Any, m: int) -> tuple[Any, ...]:
    import torch

    mean, s, z, length, variance, noise = unpack(theta, m)
    kzz = variance * torch.exp(-0.5 * ((z[:, None] - z) / length) ** 2)
    eye = torch.eye(m, dtype=theta.dtype)
    return mean, s, z, length, variance, noise, torch.linalg.cholesky(kzz + (noise + _JITTER) * eye)


def table(theta: Any, m: int, t: Any) -> tuple[Any, Any, Any]:
    """Return mean − x and variance of f at the points t, and KL(q ‖ N(0, I)), in torch."""
    import torch

    mean, s, z, length, variance, noise, lower = _factor(theta, m)
    k = variance * torch.exp(-0.5 * ((z[:, None] - t) / length) ** 2)
    a = torch.linalg.solve_triangular(lower, k, upper=False)
    spread = variance + noise - (a**2).sum(0) + ((a * s[:, None]) ** 2).sum(0)
    divergence = 0.5 * (s**2 + mean**2 - 1 - 2 * torch.log(s)).sum()
    return a.T @ mean, spread, divergence


def to_process(theta: Float64, m: int) -> Process:
    """Return the fitted process as plain arrays."""
    import torch

    with torch.no_grad():
        mean, s, z, length, variance, noise, lower = _factor(torch.from_numpy(theta), m)
        inverse = torch.linalg.solve_triangular(lower, torch.eye(m, dtype=torch.float64), upper=False)
        reduction = inverse.T @ ((1 - s**2)[:, None] * inverse)
        return Process(
            z.numpy().copy(),
            float(length),
            float(variance),
            float(variance + noise),
            (inverse.T @ mean).numpy(),
            reduction.numpy(),
        )


def event_terms(
    mean: Float64, variance: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64, Float64]:
    """Return Σ ω [log π_y + ½ Σ_k v_k(π_k² − π_k)], π = softmax(μ), and its gradients in μ and v.

    The second-order Taylor expansion of the expected log-likelihood.

    Examples
    --------
    >>> value, _, _ = event_terms(np.zeros((1, 2)), np.zeros((1, 2)), np.array([0]), np.ones(1))
    >>> round(value, 4)
    -0.6931
    """
    rows = np.arange(len(y))
    probs = np.asarray(softmax(mean), dtype=np.float64)
    w = weight[:, None]
    curve = 0.5 * (probs**2 - probs)
    inner = variance * (2 * probs - 1) * probs
    d_mean = 0.5 * (inner - probs * inner.sum(axis=1, keepdims=True)) - probs
    d_mean[rows, y] += 1
    own = np.log(np.maximum(probs[rows, y], 1e-300))
    value = float(weight @ (own + (variance * curve).sum(axis=1)))
    return value, w * d_mean, w * curve


class TabulatedElbo:
    """−ELBO/N over the rows, with the process tabulated at the edges of cells and interpolated linearly."""

    def __init__(self, x: Float64, y: IntArray, weight: Float64, rows: float, cells: Cells, m: int) -> None:
        import torch

        self._x, self._y, self._weight, self._rows, self._m = x, y, weight, rows, m
        self._points = torch.from_numpy(cells.edges)
        self._at = cells.index(x)
        self._part = np.clip((x - cells.low) / cells.width - self._at, 0, 1)
        self._count = cells.count + 1

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
        import torch

        packed = torch.from_numpy(theta.copy()).requires_grad_()
        shift, spread, divergence = table(packed, self._m, self._points)
        mean = self._x + self._interpolate(shift.detach().numpy())
        value, d_mean, d_var = event_terms(
            mean, self._interpolate(spread.detach().numpy()), self._y, self._weight
        )
        pulled = (shift * torch.from_numpy(self._gather(d_mean))).sum()
        pulled = pulled + (spread * torch.from_numpy(self._gather(d_var))).sum()
        (divergence / self._rows - pulled).backward()
        gradient = packed.grad
        assert gradient is not None
        return float(divergence.detach()) / self._rows - value, gradient.numpy()

    def _interpolate(self, values: Float64) -> Float64:
        left = values[self._at]
        out: Float64 = left + self._part * (values[self._at + 1] - left)
        return out

    def _gather(self, gradient: Float64) -> Float64:
        at, upper = self._at.ravel(), (gradient * self._part).ravel()
        lower = gradient.ravel() - upper
        right = np.bincount(at + 1, weights=upper, minlength=self._count)
        return np.asarray(np.bincount(at, weights=lower, minlength=self._count) + right, dtype=np.float64)


def line_centres(x: Float64, m: int, iterations: int = 100) -> Float64:
    """Return m centres of 1-D k-means, Lloyd from quantiles; distinct even where values repeat.

    Examples
    --------
    >>> line_centres(np.array([0.0, 0.0, 4.0, 4.0]), 2)
    array([0., 4.])
    """
    values = np.sort(x.ravel()[:: max(1, x.size // 1_000_000)])
    total = np.concatenate([[0.0], np.cumsum(values)])
    centres = np.quantile(values, (np.arange(m) + 0.5) / m)
    for _ in range(iterations):
        cuts = np.concatenate([[0], np.searchsorted(values, (centres[1:] + centres[:-1]) / 2), [len(values)]])
        size = np.diff(cuts)
        centres = np.where(size > 0, np.diff(total[cuts]) / np.maximum(size, 1), centres)
    return centres
