"""Gaussian-process calibration (Wenger et al., AISTATS 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.methods._scaling import thinned_ranks, without_mean
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import Between, Count, Seed, parameters
from hcal.methods.spline import mean_of_ties
from hcal.numerics import Float64, IntArray, prefix_sums, row_blocks, softmax
from hcal.rows import Rows
from hcal.solvers.families import Cells
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import Loss, lbfgs
from hcal.xp import Array, namespace

#: Maps gradients in shift (T,), spread (T,) and divergence to the gradient in θ.
Pull = Callable[[Float64, Float64, float], Float64]

_JITTER = 1e-6
_LEAST = 1e-4  # least value of ℓ, σ² and noise: far below any that matters, far above underflow
_ABOVE_ZERO = 1e-100  # least value of s, whose logarithm is taken
_CACHED_EVENTS = 16_384
_CELLS = 1024
_MOST_EVENTS = 1_000_000  # of a fit; if there are more, every n-th row is used


@map_type
class LatentProcess(ProbabilityMap):
    """The mean of softmax(f) over draws of f.

    f has the mean x + aᵀ ``mean`` and the variance prior − Σ ``known`` a², where a = L⁻¹k with k = σ² RBF(Z, x).
    Each draw has one number for each rank of a class in its row, so the numbering of the classes does not matter and
    ties stay ties.
    """

    unit: Array = array("logits are divided by it", low=1e-100, high=STEEP)
    inducing: Array = array("inducing inputs Z", "M", low=-1e50, high=1e50)
    kernel: Array = array("length, variance, variance with noise", 3, low=1e-50, high=1e30)
    whitening: Array = array("L⁻¹, where LLᵀ is the kernel of Z", "M", "M", low=-1e30, high=1e30)
    mean: Array = array("of the whitened process", "M", low=-1e30, high=1e30)
    known: Array = array("how much of its variance the rows took away", "M", low=-1e30, high=1)
    draws: Array = array(
        "standard normals of each draw by rank; each is also taken with the other sign", "S", "K"
    )

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        ranked, order = xp.sort_rows(without_mean(x) / self.unit)
        away = (ranked[..., None] - self.inducing) / self.kernel[0]
        a = (self.kernel[1] * xp.exp(-0.5 * away * away)) @ self.whitening.T
        mean = ranked + a @ self.mean
        spread = xp.sqrt(xp.maximum(self.kernel[2] - (a * a) @ self.known, 0.0))
        total, draws = 0.0, self.draws.shape[0]
        for i in range(draws):  # in pairs ±ε, so that the odd orders of the error cancel
            step = spread * self.draws[i]
            total = total + xp.softmax(mean + step) + xp.softmax(mean - step)
        probs = total / (2 * draws) if draws else xp.softmax(mean)
        return xp.put_along(0 * x, order, mean_of_ties(probs, ranked))

    @property
    def expansion(self) -> int:  # type: ignore[override]
        """How many numbers the formula needs in memory for each score."""
        return 4 * int(self.inducing.shape[0])


@parameters
class GaussianProcessCalibration(Calibrator):
    """One latent function f ~ GP(mean x, RBF + noise) of all centred logits, fitted by variational inference.

    The likelihood is a softmax. The approximation is sparse and whitened with a diagonal q, the expected log-likelihood
    is a second-order Taylor expansion, and all parameters are fitted by L-BFGS. A prediction averages the softmax over
    draws of f that are the same for every row, so a row does not depend on the others.

    Wenger, Kjellström, Triebel: Non-Parametric Calibration for Classification, AISTATS 2020.

    Parameters
    ----------
    inducing : int
        Number of inducing inputs, which are placed by 1-D k-means.
    samples : int
        Draws of f for a prediction, in pairs ±ε; 0 takes softmax of the mean.
    random_state : int
        Seed of the draws.
    max_iterations : int
        Of L-BFGS.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> y = (logits + rng.gumbel(size=(300, 3))).argmax(axis=1)
    >>> cal = GaussianProcessCalibration().fit(4 * logits, y)
    >>> cal.fit_.after["nll"] < cal.fit_.before["nll"]
    True
    """

    name = "gp"
    title = "Gaussian-process calibration"
    weighted = True
    map_types = (LatentProcess,)

    inducing: Count = 10
    samples: Annotated[int, Between(0, 10_000)] = 100
    random_state: Seed = 0
    max_iterations: Count = 2000

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        # If rows are thinned out, the kept ones count for all, so that the prior does not gain weight.
        total = float(len(y)) if weight is None else float(weight.sum())
        ranked, own, kept, unit = thinned_ranks(
            x, y, weight, _MOST_EVENTS, usual=10
        )  # ℓ starts at 10
        low, high = float(ranked.min()), float(ranked.max())
        cells = Cells(low, (high - low) / _CELLS or 1.0, _CELLS)
        share = unit_weight(kept, len(ranked))
        start = start_parameters(line_centres(ranked, share, self.inducing))
        elbo = _negative_elbo(ranked, own, share, total, cells, self.inducing)
        solved = lbfgs(elbo, start, max_iterations=self.max_iterations, tolerance=1e-6, gain=1e-9)
        m, s, z, shape = _unpack(solved.theta.copy(), self.inducing)
        length, variance, noise = shape.tolist()
        inverse = np.asarray(np.linalg.inv(_lower(z, length, variance, noise)[1]), dtype=np.float64)
        draws = np.random.RandomState(self.random_state).standard_normal(
            ((self.samples + 1) // 2, x.shape[1])
        )
        kernel = np.array([length, variance, variance + noise])
        found = LatentProcess(
            unit=np.array(unit),
            inducing=z,
            kernel=kernel,
            whitening=inverse,
            mean=m,
            known=1 - s**2,
            draws=draws,
        )
        info = {
            "iterations": solved.iterations,
            "length": length,
            "variance": variance,
            "rows": len(ranked),
        }
        return Fitted(found, solved.converged, solved.message, info)


def start_parameters(inducing: Float64) -> Float64:
    """Return the parameters, before softplus, at which a fit begins: m = 0, s = 1, ℓ = 10, σ² = 1, noise 0.01."""
    m = len(inducing)
    positive = np.log(np.expm1(np.repeat([1.0, 10.0, 1.0, 0.01], [m, 1, 1, 1])))
    return np.concatenate([np.zeros(m), positive[:m], inducing, positive[m:]])


def _unpack(theta: Float64, m: int) -> tuple[Float64, Float64, Float64, Float64]:
    positive = np.logaddexp(0, theta)
    return (
        theta[:m],
        positive[m : 2 * m] + _ABOVE_ZERO,
        theta[2 * m : 3 * m],
        positive[3 * m :] + _LEAST,
    )


def _lower(z: Float64, length: float, variance: float, noise: float) -> tuple[Float64, Float64]:
    """Return K_ZZ without noise, and the Cholesky factor of K_ZZ with noise."""
    kzz = variance * np.exp(-0.5 * ((z[:, None] - z) / length) ** 2)
    lower = np.linalg.cholesky(kzz + (noise + _JITTER) * np.eye(len(z)))
    return kzz, np.asarray(lower, dtype=np.float64)


def tabulate(theta: Float64, m: int, t: Float64) -> tuple[Float64, Float64, float, Pull]:
    """Return the process under θ = (m, s, Z, ℓ, σ², noise; positives by softplus) at points t.

    Returned are the mean of f minus x, its variance, the divergence KL(q ‖ N(0, I)), and a function that turns
    gradients in these three into the gradient in θ.
    """
    from scipy.linalg import solve_triangular

    mean, s, z, (length, variance, noise) = _unpack(theta, m)
    kzz, lower = _lower(z, length, variance, noise)
    away = z[:, None] - t
    k = variance * np.exp(-0.5 * (away / length) ** 2)
    a = solve_triangular(lower, k, lower=True)
    spread = variance + noise - ((1 - s**2) @ a**2)
    divergence = 0.5 * float((s**2 + mean**2 - 1 - 2 * np.log(s)).sum())

    def pull(d_shift: Float64, d_spread: Float64, d_divergence: float) -> Float64:
        d_a = np.outer(mean, d_shift) - 2 * (1 - s**2)[:, None] * a * d_spread
        d_k = solve_triangular(lower, d_a, lower=True, trans="T")
        d_kzz = _cholesky_back(lower, -np.tril(d_k @ a.T))
        gap, back = z[:, None] - z, d_kzz * kzz
        d_z = -(d_k * k * away).sum(axis=1) - 2 * (back * gap).sum(axis=1)
        d_length = ((d_k * k * away**2).sum() + (back * gap**2).sum()) / length**3
        d_variance = d_spread.sum() + ((d_k * k).sum() + back.sum()) / variance
        d_noise = d_spread.sum() + np.trace(d_kzz)
        d_mean = a @ d_shift + d_divergence * mean
        d_s = 2 * s * (a**2 @ d_spread) + d_divergence * (s - 1 / s)
        out = np.concatenate([d_mean, d_s, d_z / length**2, [d_length, d_variance, d_noise]])
        raw = np.r_[m : 2 * m, 3 * m : 3 * m + 3]
        out[raw] *= -np.expm1(-np.logaddexp(0, theta[raw]))  # the derivative of softplus
        return out

    return a.T @ mean, spread, divergence, pull


def _cholesky_back(lower: Float64, d_lower: Float64) -> Float64:
    """Return the symmetric gradient in K of K = LLᵀ from the gradient in L."""
    from scipy.linalg import solve_triangular

    inner = np.tril(lower.T @ d_lower)
    inner[np.diag_indices_from(inner)] *= 0.5
    half = solve_triangular(lower, inner, lower=True, trans="T")
    full = solve_triangular(lower, half.T, lower=True, trans="T").T
    return np.asarray(0.5 * (full + full.T))


def event_terms(
    mean: Float64, variance: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64, Float64]:
    """Return Σ ω [log π_y + ½ Σ_k v_k(π_k² − π_k)], π = softmax(μ), and its gradients in μ and v.

    This is the second-order Taylor expansion of the expected log-likelihood.

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


def _negative_elbo(
    x: Float64, y: IntArray, weight: Float64, rows: float, cells: Cells, m: int
) -> Loss:
    """Return −ELBO/N over the rows, with the process tabulated at the edges of cells and interpolated linearly."""
    points, at = cells.edges, cells.index(x)
    part = np.clip((x - cells.low) / cells.width - at, 0, 1)

    def loss(theta: Float64) -> tuple[float, Float64]:
        try:
            shift, spread, divergence, pull = tabulate(theta, m, points)
        except np.linalg.LinAlgError:  # the step was too large; the line search shortens it
            return 1e10, np.zeros_like(theta)
        value, pulled = divergence / rows, np.zeros((2, len(points)))
        for block in row_blocks(x.shape, _CACHED_EVENTS):
            left, along = at[block], part[block]
            mean, variance = (v[left] + along * (v[left + 1] - v[left]) for v in (shift, spread))
            gain, *gradients = event_terms(x[block] + mean, variance, y[block], weight[block])
            value -= gain
            for out, gradient in zip(pulled, gradients, strict=True):
                upper = (gradient * along).ravel()
                out += np.bincount(
                    left.ravel(), weights=gradient.ravel() - upper, minlength=len(out)
                )
                out += np.bincount(left.ravel() + 1, weights=upper, minlength=len(out))
        return value, pull(-pulled[0], -pulled[1], 1 / rows)

    return loss


def line_centres(x: Float64, weight: Float64, m: int, iterations: int = 100) -> Float64:
    """Return m centres of 1-D k-means of all values of rows (N, K) with weights (N,), by Lloyd's method from quantiles.

    >>> line_centres(np.array([[0.0, 0.0], [4.0, 4.0]]), np.ones(2), 2)
    array([0., 4.])
    """
    every = slice(None, None, max(1, x.size // 1_000_000))
    values, mass = x.ravel()[every], np.repeat(weight, x.shape[1])[every]
    order = np.argsort(values, kind="stable")
    values, mass = values[order], mass[order]
    total, moment = prefix_sums(mass), prefix_sums(mass * values)
    # Slightly smaller shares, so that rounding does not move a quantile to the next value.
    share = (np.arange(m) + 0.5) / m * (1 - 1e-12)
    centres: Float64 = values[np.searchsorted(total[1:], share * total[-1])]
    for _ in range(iterations):
        cuts = np.concatenate(
            [[0], np.searchsorted(values, (centres[1:] + centres[:-1]) / 2), [len(values)]]
        )
        size = np.diff(total[cuts])
        centres = np.where(size > 0, np.diff(moment[cuts]) / np.where(size > 0, size, 1.0), centres)
    return centres
