"""Fit a family of softmax maps by mean NLL + penalty, and choose among candidates on held-out rows.

A family gives scores as a function of parameters θ and input x: ``vjp(θ, x)`` returns the scores (N, K) whose softmax
are the probabilities, and a function that pulls a gradient in the scores back to one in θ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64, IntArray, in_threads, prefix_sums, row_blocks
from hcal.solvers.optimise import Candidate, Search, Solution, lbfgs, newton, solve_curved

#: Up to this many parameters a dense second derivative is cheaper than many L-BFGS steps.
NEWTON_PARAMETERS = 600
# Blocks of 256 KiB fit in the cache, with a least number of rows for fast matrix products. Threads take parts of a
# fixed size, so that sums do not depend on the number of threads.
_BLOCK_EVENTS = 32_768
_BLOCK_ROWS = 32
_PART_EVENTS = 1_000_000
#: Gradient in the scores (N, K) ↦ gradient in θ (P,).
Pullback = Callable[[Float64], Float64]

_LEAST_SLOPE = 1e-8


class Ridge(NamedTuple):
    """The penalty Σ strength · (θ − centre)²."""

    strength: Float64
    centre: Float64


def unit_weight(weight: Float64 | None, n_rows: int) -> Float64:
    """Return weights that sum to 1; None means equal ones.

    >>> unit_weight(None, 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return np.full(n_rows, 1 / n_rows) if weight is None else weight / weight.sum()


def mean_nll(scores: Float64, y: IntArray, weight: Float64 | None = None) -> float:
    """Return the weighted mean NLL of softmax(scores).

    >>> round(mean_nll(np.zeros((1, 2)), np.array([0])), 4)
    0.6931
    """
    _, log_mass = _softmax(scores.copy())
    losses = log_mass - scores[np.arange(len(y)), y]
    return float(unit_weight(weight, len(y)) @ losses)


def fit_nll(  # noqa: PLR0913
    family: SoftmaxFamily,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
    search: Search | None = None,
) -> Solution:
    """Fit a family by mean NLL + penalty.

    The solver is Newton if the scores are linear in θ, there are no bounds and few parameters; otherwise L-BFGS.

    Parameters
    ----------
    family : SoftmaxFamily
    x : array of shape (N, ·)
        The input of the family.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional
    start : array of shape (P,), optional
        Default: the start of the family.
    search : Search, optional
        Bounds, and when to stop.

    Examples
    --------
    >>> from hcal.solvers.nll import ClassLinear
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> ridge = Ridge(np.full(4, 1e-9), np.zeros(4))
    >>> solved = fit_nll(ClassLinear(2), x, y, penalty=ridge)
    >>> ClassLinear(2).vjp(solved.theta, x[:1])[0].round(4) @ [-1.0, 1.0]  # log 3
    array([1.0986])
    """
    first = family.start if start is None else start
    search = search or Search()
    problem = _PenalisedNll(
        family=family,
        x=x.astype(np.float64, copy=False),
        y=y,
        share=unit_weight(weight, len(y)),
        penalty=penalty or Ridge(np.zeros_like(first), first),
    )
    is_linear = isinstance(family, LinearFamily)
    if is_linear and search.bounds is None and len(first) <= NEWTON_PARAMETERS:
        return newton(problem.loss, problem.direction, first, tolerance=search.newton_gain)
    scale = problem.scale(first) if is_linear else None
    return lbfgs(problem.loss, first, search, scale=scale)


@dataclass(frozen=True)
class _PenalisedNll:
    """The mean NLL of a family on rows, plus a penalty."""

    family: SoftmaxFamily
    x: Float64
    y: IntArray
    share: Float64
    penalty: Ridge

    def loss(self, theta: Float64) -> tuple[float, Float64]:
        """Return value and gradient."""
        value, gradient = _loss_sums(self.family, theta, self.x, self.y, self.share)
        strength = self.penalty.strength
        away = theta - self.penalty.centre
        with np.errstate(over="ignore"):  # a step that goes too far has an infinite value
            penalised = strength > 0
            distance = float(strength[penalised] @ away[penalised] ** 2)
        return value + distance, gradient + 2 * strength * away

    def direction(self, theta: Float64, gradient: Float64) -> tuple[Float64, Float64]:
        """Return the gradient and the Newton step."""
        hessian = second_sums(self.family, theta, self.x, self.share)
        hessian = hessian + 2 * np.diag(self.penalty.strength)
        return gradient, solve_curved(hessian, gradient)

    def scale(self, theta: Float64) -> Float64 | None:
        """Return about 1/√(second derivative) of each parameter, or None if nothing is curved."""
        diagonal = second_sums(self.family, theta, self.x, self.share, diagonal=True)
        diagonal = diagonal + 2 * self.penalty.strength
        largest = diagonal.max()
        if not largest > 0:  # with one class, or if all rows are saturated
            return None
        return np.asarray(1 / np.sqrt(np.maximum(diagonal, 1e-8 * largest)))


def _softmax(scores: Float64) -> tuple[Float64, Float64]:
    """Overwrite scores (N, K) with their softmax and return it, with ln Σ e^scores (N,)."""
    top = scores.max(axis=1, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1, keepdims=True)
    scores /= mass
    return scores, (np.log(mass) + top)[:, 0]


def _loss_sums(
    family: SoftmaxFamily, theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64]:
    """Return the sums over rows of the NLL and of its gradient in θ."""
    parts = row_blocks(x.shape, _PART_EVENTS)
    over = partial(_loss_sums_of_part, family, theta, x, y, weight)
    sums = in_threads(over, parts, events=x.size if len(parts) > 2 else 0)
    value = sum(value for value, _ in sums)
    return value, np.sum([gradient for _, gradient in sums], axis=0)


def _loss_sums_of_part(
    family: SoftmaxFamily, theta: Float64, x: Float64, y: IntArray, weight: Float64, part: slice
) -> tuple[float, Float64]:
    """Return the sums over the rows of a part, block by block."""
    value = 0.0
    gradient = np.zeros_like(theta)
    step = max(_BLOCK_ROWS, _BLOCK_EVENTS // x.shape[1])
    for start in range(part.start, part.stop, step):
        rows = slice(start, min(start + step, part.stop))
        scores, pullback = family.vjp(theta, x[rows])
        labels = (np.arange(len(scores)), y[rows])
        label_scores = scores[labels]
        d_scores, log_mass = _softmax(scores)
        d_scores[labels] -= 1
        d_scores *= weight[rows, None]
        value += float(weight[rows] @ (log_mass - label_scores))
        gradient += pullback(d_scores)
    return value, gradient


def second_sums(
    family: SoftmaxFamily, theta: Float64, x: Float64, weight: Float64, *, diagonal: bool = False
) -> Float64:
    """Return the sum over rows of the curvature (P, P) of the NLL of a linear family, or of its diagonal (P,)."""
    assert isinstance(family, LinearFamily)
    entries = x.shape[1] if diagonal else len(theta)
    total: Float64 | float = 0.0
    for rows in row_blocks((len(x), entries), 4_000_000):
        part = x[rows]
        probs, _ = _softmax(family.vjp(theta, part)[0])
        if diagonal:
            # Scores are linear in θ, so the pullback of squared features gives the diagonal.
            _, pullback = family.vjp(theta, part**2)
            total = total + pullback(weight[rows, None] * probs * (1 - probs))
        else:
            total = total + family.curvature(part, probs, weight[rows])
    return np.asarray(total)


Fold = TypeVar("Fold")
Model = TypeVar("Model")


class Selection(NamedTuple, Generic[Candidate, Model]):
    """The chosen candidate, its model in every fold, and the mean held-out score of each candidate."""

    chosen: Candidate
    models: list[Model]
    scores: list[float]


def select(
    grid: Sequence[Candidate],
    folds: Sequence[tuple[Fold, Fold]],
    fit: Callable[[Candidate, Fold, Model | None], Model],
    score: Callable[[Model, Fold], float],
) -> Selection[Candidate, Model]:
    """Choose the candidate with the lowest mean held-out score; the first one if several tie.

    ``fit`` takes a candidate, the rows to fit on and the model of the previous candidate (or None) as a start, so
    ``grid`` should be in an order in which neighbours have similar models. ``score`` takes a model and the held-out
    rows; lower is better.

    >>> data, folds = np.arange(4.0), [(np.array([0, 1]), np.array([2, 3])), (np.array([2, 3]), np.array([0, 1]))]
    >>> select([0.0, 1.0], folds, lambda c, rows, _: c * data[rows].mean(),
    ...        lambda m, rows: float(((data[rows] - m) ** 2).mean())).chosen
    0.0
    """
    scores = np.zeros(len(grid))
    models_of_folds = []
    for rows, held_out in folds:
        models: list[Model] = []
        previous: Model | None = None
        for i, candidate in enumerate(grid):
            model = fit(candidate, rows, previous)
            value = score(model, held_out)
            scores[i] += value if np.isfinite(value) else np.inf
            models.append(model)
            previous = model
        models_of_folds.append(models)
    best = int(np.argmin(scores))
    mean_scores = (scores / len(folds)).tolist()
    return Selection(grid[best], [models[best] for models in models_of_folds], mean_scores)


# -- families of softmax maps -----------------------------------------------------------------------


class SoftmaxFamily(Protocol):
    """What :func:`hcal.solvers.nll.fit_nll` asks of a family.

    A family whose scores are linear in θ, so that the NLL is convex, is a :class:`LinearFamily`.
    """

    @property
    def start(self) -> Float64:
        """The parameters (P,) at which a fit begins: the identity, if the family contains it."""

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""


@runtime_checkable
class LinearFamily(SoftmaxFamily, Protocol):
    """A family whose scores are linear in θ."""

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative (P, P) of the weighted sum of NLLs."""


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
        """Return the inputs x_1, …, x_A, each (N, K)."""
        k = self.n_classes
        return [x[:, a * k : (a + 1) * k] for a in range(self.inputs)]

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        *slopes, offsets = theta.reshape(-1, self.n_classes)
        parts = self._parts(x)
        scores = parts[0] * slopes[0] + offsets
        for part, slope in zip(parts[1:], slopes[1:], strict=True):
            scores += part * slope
        return scores, partial(_pull_class_linear, parts)

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative: diagonal blocks minus one matrix product."""
        k = self.n_classes
        features = [*self._parts(x), np.ones_like(probs)]
        spread = np.hstack([probs * feature for feature in features])
        out = -_gram(spread, weight)

        diagonal = np.arange(k)
        for a, left in enumerate(features):
            for b, right in enumerate(features):
                block_diagonal = (a * k + diagonal, b * k + diagonal)
                out[block_diagonal] += weight @ (probs * left * right)
        return out


def _pull_class_linear(parts: list[Float64], d_scores: Float64) -> Float64:
    d_slopes = [np.einsum("nk,nk->k", d_scores, part) for part in parts]
    d_offsets = d_scores.sum(axis=0)
    return np.concatenate([*d_slopes, d_offsets])


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
        return x + theta, partial(np.sum, axis=0)

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative: a diagonal minus one matrix product."""
        return np.asarray(np.diag(weight @ probs) - _gram(probs, weight))


@dataclass(frozen=True)
class MatrixLinear:
    """softmax(W x + b); θ = (W row by row, b).

    >>> MatrixLinear(2).start
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
        matrix = theta[: k * k].reshape(k, k)
        offsets = theta[k * k :]
        return x @ matrix.T + offsets, partial(_pull_matrix, x)

    def curvature(self, x: Float64, probs: Float64, weight: Float64) -> Float64:
        """Return the second derivative, built class by class as (row of W, b_k)."""
        k = self.n_classes
        features = np.hstack([x, np.ones((len(x), 1))])
        spread = probs[:, :, None] * features[:, None, :]
        out = -_gram(spread.reshape(len(x), -1), weight)
        for j in range(k):
            block = slice(j * (k + 1), (j + 1) * (k + 1))
            out[block, block] += (features.T * (weight * probs[:, j])) @ features

        # θ keeps all of W before b.
        position = np.arange(k * (k + 1)).reshape(k, k + 1)
        order = np.concatenate([position[:, :k].ravel(), position[:, k]])
        return np.asarray(out[np.ix_(order, order)])


def _pull_matrix(x: Float64, d_scores: Float64) -> Float64:
    d_matrix = d_scores.T @ x
    d_offsets = d_scores.sum(axis=0)
    return np.concatenate([d_matrix.ravel(), d_offsets])


def _gram(spread: Float64, weight: Float64) -> Float64:
    """Return spreadᵀ diag(weight) spread; only one triangle is computed."""
    from scipy.linalg.blas import dsyrk

    weighted = spread * np.sqrt(weight)[:, None]
    gram: Float64 = dsyrk(1.0, weighted.T)
    return np.triu(gram) + np.triu(gram, 1).T


@dataclass(frozen=True)
class LineCells:
    """Cells of equal width on the real line; the first and the last are unbounded outwards.

    >>> cells = LineCells(0.0, 1.0, 3)
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
        cell = np.floor((x - self.low) / self.width)
        return np.clip(cell, 0, self.count - 1).astype(np.intp)


def cells_over(x: Float64) -> LineCells:
    """Return 1024 cells from the 0.01 % to the 99.99 % quantile of all logits, so that outliers do not stretch them.

    >>> cells_over(np.array([0.0, 1024.0])).width
    1.0
    """
    step = max(1, x.size // 1_000_000)
    flat = x.ravel()[::step]
    low, high = np.quantile(flat, [1e-4, 1 - 1e-4], method="nearest").tolist()
    return LineCells(low, (high - low) / 1024 or 1.0, 1024)


@dataclass(frozen=True)
class MonotoneNet:
    """softmax of m(x), m(x) = ∫ (ELU(g(t)) + 1 + 1e-8) dt, g an MLP 1 → hidden → hidden → 1 with ReLU.

    g is evaluated at the midpoints of ``cells``, which cover the logits; its values are the slopes of a piecewise
    linear function. The start is uniform in ±1/√fan-in, where the first layer counts as having two inputs.
    θ = (w₁, b₁, W₂, b₂, w₃, b₃).

    >>> MonotoneNet(2, LineCells(0.0, 1.0, 4)).start.size
    13
    """

    hidden: int
    cells: LineCells
    random_state: int = 0

    @property
    def start(self) -> Float64:
        """A random network."""
        rng = np.random.RandomState(self.random_state)
        h = self.hidden
        sizes = [h, h, h * h, h, h, 1]
        fans_in = [2, 2, h, h, h, h]
        layers = zip(sizes, fans_in, strict=True)
        return np.concatenate([rng.uniform(-1, 1, n) / np.sqrt(fan_in) for n, fan_in in layers])

    def table(self, theta: Float64) -> Float64:
        """Return the values (count + 1,) at the edges of the cells, increasing from 0."""
        slopes = self._pass(theta).slopes
        return prefix_sums(slopes * self.cells.width)

    def vjp(self, theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        """Return scores (N, K) and the pullback."""
        network = self._pass(theta)
        width = self.cells.width
        cell = self.cells.index(x)
        beyond = x - (self.cells.low + width * cell)
        values = prefix_sums(network.slopes * width)
        scores = values[cell] + network.slopes[cell] * beyond
        return scores, partial(_pull_net, network, cell, beyond, width)

    def _pass(self, theta: Float64) -> _NetPass:
        """Run the network at the midpoints of the cells."""
        h = self.hidden
        w1, b1, w2, b2, w3, b3 = np.split(theta, np.cumsum([h, h, h * h, h, h]))
        matrix = w2.reshape(h, h)

        middles = self.cells.middles
        first = np.maximum(np.outer(middles, w1) + b1, 0)
        second = np.maximum(first @ matrix.T + b2, 0)
        g = second @ w3 + b3

        below = np.exp(np.minimum(g, 0))
        slopes = np.where(g > 0, g + 1, below) + _LEAST_SLOPE
        d_slopes = np.where(g > 0, 1.0, below)
        return _NetPass(middles, first, second, matrix, w3, slopes, d_slopes)


@dataclass(frozen=True)
class _NetPass:
    """What a pass of the network computes, for T midpoints and H hidden units."""

    middles: Float64  # (T,)
    first: Float64  # (T, H) after the first layer
    second: Float64  # (T, H) after the second
    matrix: Float64  # (H, H) W₂
    last: Float64  # (H,) w₃
    slopes: Float64  # (T,) ELU(g(t)) + 1 + 1e-8
    d_slopes: Float64  # (T,) derivative of the slopes in g

    def pull(self, d_slopes: Float64) -> Float64:
        """Return the gradient in θ of a gradient in the slopes."""
        dg = d_slopes * self.d_slopes
        d_second = np.outer(dg, self.last) * (self.second > 0)
        d_first = (d_second @ self.matrix) * (self.first > 0)
        d_layers = [
            d_first.T @ self.middles,
            d_first.sum(axis=0),
            (d_second.T @ self.first).ravel(),
            d_second.sum(axis=0),
            self.second.T @ dg,
            [dg.sum()],
        ]
        return np.concatenate(d_layers)


def _pull_net(
    network: _NetPass, cell: NDArray[np.intp], beyond: Float64, width: float, d_scores: Float64
) -> Float64:
    """Pull a gradient in the scores back: a slope moves the scores in its cell and in all cells above it."""
    count = len(network.slopes)
    flat = cell.ravel()
    mass = np.bincount(flat, weights=d_scores.ravel(), minlength=count)
    inside = np.bincount(flat, weights=(d_scores * beyond).ravel(), minlength=count)
    above = np.cumsum(mass[::-1])[::-1] - mass
    return network.pull(inside + width * above)
