"""Scaling maps in numpy: softmaxes of scores that are simple in θ, with their pullbacks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hcal.maps.protocol import Map, Pullback, Vjp, log_softmax_vjp
from hcal.runtime.gradients import Gradient, dense_gradient
from hcal.numerics import Float64


def _gram(spread: Float64, weight: Float64) -> Float64:
    """Return spreadᵀ diag(weight) spread, at the cost of one of its triangles."""
    from scipy.linalg.blas import dsyrk

    gram: Float64 = dsyrk(1.0, (spread * np.sqrt(weight)[:, None]).T)
    return np.triu(gram) + np.triu(gram, 1).T


def _class_curvature(features: list[Float64], probs: Float64, weight: Float64) -> Float64:
    """Return the curvature where score k is Σ_a θ_ak f_a[:, k]: blocks of diagonals minus one product."""
    k = probs.shape[1]
    out = -_gram(np.hstack([probs * f for f in features]), weight)
    at = np.arange(k)
    for a, f in enumerate(features):
        for b, g in enumerate(features):
            out[a * k + at, b * k + at] += weight @ (probs * f * g)
    return out


def _class_map(name: str, start: Float64, vjp: Vjp, features: Callable[[Float64], list[Float64]]) -> Map:
    """Return the map of scores that are linear class by class, its second derivatives from ``features``."""

    def curvature(theta: Float64, x: Float64, weight: Float64) -> Float64:
        return _class_curvature(features(x), np.exp(vjp(theta, x)[0]), weight)

    def diagonal(theta: Float64, x: Float64, weight: Float64) -> Float64:
        probs = np.exp(vjp(theta, x)[0])
        spread = probs * (1 - probs)
        return np.concatenate([weight @ (spread * f**2) for f in features(x)])

    return Map(name, start, vjp, curvature, diagonal)


def temperature() -> Map:
    """Return softmax(e^θ x): one parameter, the logarithm of β = 1/T. Preserves order.

    >>> np.exp(temperature().log_probs(np.array([0.0]), np.array([[0.0, 0.0]])))
    array([[0.5, 0.5]])
    """

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        beta = float(np.exp(theta[0]))
        log_probs, pull = log_softmax_vjp(beta * x)
        return log_probs, lambda g: np.array([beta * np.vdot(pull(g), x)])

    return Map("temperature", np.zeros(1), vjp)


def vector(n_classes: int) -> Map:
    """Return softmax(w ⊙ x + b); θ = (w, b).

    >>> vector(2).start
    array([1., 1., 0., 0.])
    """
    k = n_classes

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        scores = x * theta[:k]
        scores += theta[k:]
        log_probs, pull = log_softmax_vjp(scores)

        def pullback(g: Gradient) -> Float64:
            d = pull(g)
            offsets = d.sum(axis=0)
            d *= x
            return np.concatenate([d.sum(axis=0), offsets])

        return log_probs, pullback

    return _class_map("vector", np.r_[np.ones(k), np.zeros(k)], vjp, lambda x: [x, np.ones_like(x)])


def matrix(n_classes: int) -> Map:
    """Return softmax(W x + b); θ = (W row by row, b).

    >>> matrix(2).start
    array([1., 0., 0., 1., 0., 0.])
    """
    k = n_classes

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        scores = x @ theta[: k * k].reshape(k, k).T
        scores += theta[k * k :]
        log_probs, pull = log_softmax_vjp(scores)

        def pullback(g: Gradient) -> Float64:
            d = pull(g)
            return np.concatenate([(d.T @ x).ravel(), d.sum(axis=0)])

        return log_probs, pullback

    def curvature(theta: Float64, x: Float64, weight: Float64) -> Float64:
        probs = np.exp(vjp(theta, x)[0])
        features = np.hstack([x, np.ones((len(x), 1))])
        spread = (probs[:, :, None] * features[:, None, :]).reshape(len(x), -1)
        out = -_gram(spread, weight)
        for j in range(k):
            block = slice(j * (k + 1), (j + 1) * (k + 1))
            out[block, block] += (features.T * (weight * probs[:, j])) @ features
        # Built class by class as (row of W, b_j); θ keeps all of W before b.
        order = np.arange(k * (k + 1)).reshape(k, k + 1)
        order = np.r_[order[:, :k].ravel(), order[:, k]]
        reordered: Float64 = out[np.ix_(order, order)]
        return reordered

    def diagonal(theta: Float64, x: Float64, weight: Float64) -> Float64:
        probs = np.exp(vjp(theta, x)[0])
        spread = weight[:, None] * probs * (1 - probs)
        return np.concatenate([(spread.T @ x**2).ravel(), spread.sum(axis=0)])

    return Map("matrix", np.r_[np.eye(k).ravel(), np.zeros(k)], vjp, curvature, diagonal)


def beta(n_classes: int) -> Map:
    """Return softmax(a ⊙ x₁ + b ⊙ x₂ + c) on x = (x₁, x₂) of shape (N, 2K); θ = (a, b, c).

    With x₁ = ln p and x₂ = −ln(1 − p) this is the multi-class form of beta calibration.

    >>> beta(2).start
    array([1., 1., 1., 1., 0., 0.])
    """
    k = n_classes

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        scores = x[:, :k] * theta[:k]
        scores += x[:, k:] * theta[k : 2 * k]
        scores += theta[2 * k :]
        log_probs, pull = log_softmax_vjp(scores)

        def pullback(g: Gradient) -> Float64:
            d = pull(g)
            slopes = [np.einsum("nk,nk->k", d, half) for half in (x[:, :k], x[:, k:])]
            return np.concatenate([*slopes, d.sum(axis=0)])

        return log_probs, pullback

    def features(x: Float64) -> list[Float64]:
        return [x[:, :k], x[:, k:], np.ones((len(x), k))]

    return _class_map("beta", np.r_[np.ones(2 * k), np.zeros(k)], vjp, features)


def ensemble(n_classes: int) -> Map:
    """Return v₁ softmax(e^t x) + v₂ softmax(x) + v₃/K, v = |w|/Σ|w|; θ = (t, w₁, w₂, w₃). Preserves order.

    >>> np.exp(ensemble(2).log_probs(np.array([0.0, 0.0, 0.0, 1.0]), np.array([[3.0, 0.0]])))
    array([[0.5, 0.5]])
    """

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        b, size = float(np.exp(theta[0])), float(np.abs(theta[1:]).sum())
        share = np.abs(theta[1:]) / size
        scaled, pull = log_softmax_vjp(b * x)
        parts = np.stack(
            [np.exp(scaled), np.exp(log_softmax_vjp(x.copy())[0]), np.full_like(x, 1 / n_classes)]
        )
        probs = np.maximum(np.tensordot(share, parts, 1), np.finfo(np.float64).tiny)

        def pullback(g: Gradient) -> Float64:
            d = dense_gradient(g, n_classes) / probs
            inner = b * np.vdot(pull(share[0] * d * parts[0]), x)
            by_share = np.tensordot(parts, d, 2)
            return np.concatenate([[inner], np.sign(theta[1:]) * (by_share - share @ by_share) / size])

        return np.log(probs), pullback

    return Map("ensemble", np.array([0.0, 1.0, 0.1, 0.1]), vjp)
