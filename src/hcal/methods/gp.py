"""Gaussian-process calibration (Wenger et al., AISTATS 2020)."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.methods._scaling import thinned_ranks, without_mean
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import Between, Count, Seed, parameters
from hcal.methods.spline import mean_of_ties
from hcal.numerics import Float64, IntArray, prefix_sums, row_blocks, softmax
from hcal.rows import Rows
from hcal.solvers.nll import LineCells, unit_weight
from hcal.solvers.optimise import Search, lbfgs
from hcal.xp import Array, namespace

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
        length, variance, variance_with_noise = self.kernel[0], self.kernel[1], self.kernel[2]
        away = (ranked[..., None] - self.inducing) / length
        a = (variance * xp.exp(-0.5 * away * away)) @ self.whitening.T
        mean = ranked + a @ self.mean
        spread = xp.sqrt(xp.maximum(variance_with_noise - (a * a) @ self.known, 0.0))

        n_draws = self.draws.shape[0]
        total = 0.0
        for i in range(n_draws):  # in pairs ±ε, so that the odd orders of the error cancel
            step = spread * self.draws[i]
            total = total + xp.softmax(mean + step) + xp.softmax(mean - step)
        probs = total / (2 * n_draws) if n_draws else xp.softmax(mean)
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
        # ℓ starts at 10.
        thinned = thinned_ranks(rows, _MOST_EVENTS, usual=10)
        x = thinned.logits
        share = unit_weight(thinned.weight, len(x))
        low = float(x.min())
        high = float(x.max())
        cells = LineCells(low, (high - low) / _CELLS or 1.0, _CELLS)
        # If rows are thinned out, the kept ones count for all, so that the prior does not gain weight.
        elbo = Elbo(x, thinned.labels, share, rows.total, cells, self.inducing)
        start = start_parameters(line_centres(x, share, self.inducing))
        search = Search(max_iterations=self.max_iterations, tolerance=1e-6, gain=1e-9)
        solved = lbfgs(elbo.negative, start, search)

        fitted = Parameters.of(solved.theta.copy(), self.inducing)
        lower = np.linalg.cholesky(fitted.noisy_kernel())
        whitening = np.asarray(np.linalg.inv(lower), dtype=np.float64)
        rng = np.random.RandomState(self.random_state)
        draws = rng.standard_normal(((self.samples + 1) // 2, rows.n_classes))
        process = LatentProcess(
            unit=np.array(thinned.unit),
            inducing=fitted.inducing,
            kernel=np.array([fitted.length, fitted.variance, fitted.variance + fitted.noise]),
            whitening=whitening,
            mean=fitted.mean,
            known=1 - fitted.deviation**2,
            draws=draws,
        )
        details = {
            "iterations": solved.iterations,
            "length": fitted.length,
            "variance": fitted.variance,
            "rows": len(x),
        }
        return Fitted(process, solved.converged, solved.message, details)


def start_parameters(inducing: Float64) -> Float64:
    """Return the parameters, before softplus, at which a fit begins: m = 0, s = 1, ℓ = 10, σ² = 1, noise 0.01."""
    m = len(inducing)
    positive = np.log(np.expm1(np.repeat([1.0, 10.0, 1.0, 0.01], [m, 1, 1, 1])))
    return np.concatenate([np.zeros(m), positive[:m], inducing, positive[m:]])


class Parameters(NamedTuple):
    """The parameters θ = (m, s, Z, ℓ, σ², noise) of the process, those that are positive after softplus."""

    mean: Float64  # (M,) m
    deviation: Float64  # (M,) s
    inducing: Float64  # (M,) Z
    length: float  # ℓ
    variance: float  # σ²
    noise: float

    @classmethod
    def of(cls, theta: Float64, m: int) -> Self:
        """Return the parameters of a vector θ."""
        positive = np.logaddexp(0, theta)
        length, variance, noise = (positive[3 * m :] + _LEAST).tolist()
        deviation = positive[m : 2 * m] + _ABOVE_ZERO
        return cls(theta[:m], deviation, theta[2 * m : 3 * m], length, variance, noise)

    def kernel(self) -> Float64:
        """Return K_ZZ."""
        away = (self.inducing[:, None] - self.inducing) / self.length
        return np.asarray(self.variance * np.exp(-0.5 * away**2))

    def noisy_kernel(self) -> Float64:
        """Return K_ZZ with noise."""
        return self.kernel() + (self.noise + _JITTER) * np.eye(len(self.inducing))


class Process:
    """The process under parameters θ at points t: the mean of f minus x, its variance, and KL(q ‖ N(0, I))."""

    def __init__(self, theta: Float64, m: int, t: Float64) -> None:
        from scipy.linalg import solve_triangular

        fitted = Parameters.of(theta, m)
        self._theta = theta
        self._fitted = fitted
        self._lower = np.asarray(np.linalg.cholesky(fitted.noisy_kernel()), dtype=np.float64)
        self._away = fitted.inducing[:, None] - t
        self._k = fitted.variance * np.exp(-0.5 * (self._away / fitted.length) ** 2)
        self._a = solve_triangular(self._lower, self._k, lower=True)

        s = fitted.deviation
        self.shift: Float64 = self._a.T @ fitted.mean
        self.spread: Float64 = fitted.variance + fitted.noise - ((1 - s**2) @ self._a**2)
        self.divergence = 0.5 * float((s**2 + fitted.mean**2 - 1 - 2 * np.log(s)).sum())

    def pull(self, d_shift: Float64, d_spread: Float64, d_divergence: float) -> Float64:
        """Return the gradient in θ from gradients in shift (T,), spread (T,) and divergence."""
        from scipy.linalg import solve_triangular

        mean, s, z, length, variance, _ = self._fitted
        a = self._a
        k = self._k
        away = self._away
        d_a = np.outer(mean, d_shift) - 2 * (1 - s**2)[:, None] * a * d_spread
        d_k = solve_triangular(self._lower, d_a, lower=True, trans="T")
        d_kzz = _cholesky_back(self._lower, -np.tril(d_k @ a.T))

        gap = z[:, None] - z
        back = d_kzz * self._fitted.kernel()
        d_z = -(d_k * k * away).sum(axis=1) - 2 * (back * gap).sum(axis=1)
        d_length = ((d_k * k * away**2).sum() + (back * gap**2).sum()) / length**3
        d_variance = d_spread.sum() + ((d_k * k).sum() + back.sum()) / variance
        d_noise = d_spread.sum() + np.trace(d_kzz)
        d_mean = a @ d_shift + d_divergence * mean
        d_s = 2 * s * (a**2 @ d_spread) + d_divergence * (s - 1 / s)
        gradient = np.concatenate([d_mean, d_s, d_z / length**2, [d_length, d_variance, d_noise]])

        m = len(mean)
        positive = np.r_[m : 2 * m, 3 * m : 3 * m + 3]
        d_softplus = -np.expm1(-np.logaddexp(0, self._theta[positive]))
        gradient[positive] *= d_softplus
        return gradient


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
    labels = (np.arange(len(y)), y)
    probs = np.asarray(softmax(mean), dtype=np.float64)
    curve = 0.5 * (probs**2 - probs)
    log_label = np.log(np.maximum(probs[labels], 1e-300))
    value = float(weight @ (log_label + (variance * curve).sum(axis=1)))

    inner = variance * (2 * probs - 1) * probs
    d_mean = 0.5 * (inner - probs * inner.sum(axis=1, keepdims=True)) - probs
    d_mean[labels] += 1
    weight_of_row = weight[:, None]
    return value, weight_of_row * d_mean, weight_of_row * curve


class Elbo:
    """ELBO/N over the rows, with the process tabulated at the edges of cells and interpolated linearly."""

    def __init__(
        self, x: Float64, y: IntArray, share: Float64, total: float, cells: LineCells, m: int
    ) -> None:
        self._x = x
        self._y = y
        self._share = share
        self._total = total
        self._m = m
        self._points = cells.edges
        self._cell = cells.index(x)
        self._along = np.clip((x - cells.low) / cells.width - self._cell, 0, 1)

    def negative(self, theta: Float64) -> tuple[float, Float64]:
        """Return −ELBO/N and its gradient."""
        try:
            process = Process(theta, self._m, self._points)
        except np.linalg.LinAlgError:  # the step was too large; the line search shortens it
            return 1e10, np.zeros_like(theta)

        value = process.divergence / self._total
        d_shift = np.zeros(len(self._points))
        d_spread = np.zeros(len(self._points))
        for rows in row_blocks(self._x.shape, _CACHED_EVENTS):
            cell = self._cell[rows]
            along = self._along[rows]
            mean = self._x[rows] + _between(process.shift, cell, along)
            variance = _between(process.spread, cell, along)
            gain, d_mean, d_variance = event_terms(mean, variance, self._y[rows], self._share[rows])
            value -= gain
            _add_between(d_shift, d_mean, cell, along)
            _add_between(d_spread, d_variance, cell, along)
        return value, process.pull(-d_shift, -d_spread, 1 / self._total)


def _between(values: Float64, cell: NDArray[np.intp], along: Float64) -> Float64:
    """Return values at edges, interpolated within cells."""
    return values[cell] + along * (values[cell + 1] - values[cell])


def _add_between(sums: Float64, gradient: Float64, cell: NDArray[np.intp], along: Float64) -> None:
    """Add a gradient in interpolated values to that in the values at the edges."""
    left = cell.ravel()
    of_right = (gradient * along).ravel()
    of_left = gradient.ravel() - of_right
    sums += np.bincount(left, weights=of_left, minlength=len(sums))
    sums += np.bincount(left + 1, weights=of_right, minlength=len(sums))


def line_centres(x: Float64, weight: Float64, m: int, iterations: int = 100) -> Float64:
    """Return m centres of 1-D k-means of all values of rows (N, K) with weights (N,), by Lloyd's method from quantiles.

    >>> line_centres(np.array([[0.0, 0.0], [4.0, 4.0]]), np.ones(2), 2)
    array([0., 4.])
    """
    step = max(1, x.size // 1_000_000)
    values = x.ravel()[::step]
    mass = np.repeat(weight, x.shape[1])[::step]
    order = np.argsort(values, kind="stable")
    values = values[order]
    mass = mass[order]
    total = prefix_sums(mass)
    moment = prefix_sums(mass * values)

    # Slightly smaller shares, so that rounding does not move a quantile to the next value.
    share = (np.arange(m) + 0.5) / m * (1 - 1e-12)
    centres: Float64 = values[np.searchsorted(total[1:], share * total[-1])]
    for _ in range(iterations):
        middles = (centres[1:] + centres[:-1]) / 2
        cuts = np.concatenate([[0], np.searchsorted(values, middles), [len(values)]])
        size = np.diff(total[cuts])
        means = np.diff(moment[cuts]) / np.where(size > 0, size, 1.0)
        centres = np.where(size > 0, means, centres)
    return centres
