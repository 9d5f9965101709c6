"""Softmax of what is linear in scores or log-probabilities: ``vs``, ``beta``, ``svs``, ``sms``, ``ms`` and ``dir``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

import numpy as np

from hcal.calibrators._scaling import EPS, on_grid, without_mean
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.folds import deal_folds, fold_sides
from hcal.calibrators.parameters import parameters
from hcal.maps.base import STEEP, Map, ProbabilityMap, array, map_type, option
from hcal.numerics import Float64, IntArray, softmax
from hcal.solvers.families import ClassLinear, Family
from hcal.solvers.families import MatrixScaling as MatrixFamily
from hcal.solvers.nll import Ridge, fit_nll, mean_nll, select, unit_weight
from hcal.solvers.optimise import Solution
from hcal.solvers.temperature import logit_scale, solve_temperature
from hcal.xp import Array, namespace

_LEAST, _MOST = float(np.log(EPS)), float(np.log1p(-EPS))
_LOG_FLOOR = float(np.log(np.finfo(np.float32).tiny))
# A pass over the rows costs two products with a K×K matrix. About ten minutes on two cores, as measured.
_MOST_WORK = 1.5e11

Pair = tuple[float, float]


def clipped_log_probs(x: Array) -> Array:
    """Return ln p of p = softmax(x) clipped to [eps, 1 − eps], as the published scaling methods do.

    >>> clipped_log_probs(np.array([[0.0, 1000.0]])).round(4)
    array([[-36.0437,  -0.    ]])
    """
    xp = namespace(x)
    return xp.clip(xp.log_softmax(x), _LEAST, _MOST)


# -- a slope and an offset a class ------------------------------------------------------------------


@map_type
class ClassLines(Map):
    """softmax of a ln p − b ln(1 − p) + c over the classes that had rows; without b for vector scaling.

    The other classes keep their probability: an unpenalised likelihood would send a class that never occurs to
    probability 0, and there is no evidence for that.
    """

    present: Array = array("classes with calibration rows", "C", low=0, dtype="int64", order="increasing")
    slopes: Array = array("of ln p, and of −ln(1 − p) if it is used", "A", "C")
    offsets: Array = array("of a class", "C")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp, scores = namespace(x), self.offsets
        for i, feature in enumerate(class_features(x, self.slopes.shape[0])):
            scores = scores + feature[..., self.present] * self.slopes[i]
        log_inner = xp.log_softmax(scores)
        if self.present.shape[0] == x.shape[-1]:
            return log_inner
        log_p = xp.log_softmax(x)
        shared = log_inner + xp.log_sum_exp(log_p[..., self.present])
        return xp.put_along(log_p, 0 * xp.argmax(log_p) + self.present, shared)

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        """Raise a ValueError that names the field which is not as declared."""
        super().check_fields(sizes)
        if self.present[-1] >= sizes.get("K", np.inf):
            raise ValueError(f"'present' holds {self.present[-1]}, declared are classes below {sizes['K']}")
        if self.slopes.shape[0] not in (1, 2):
            raise ValueError(f"'slopes' has {self.slopes.shape[0]} rows, declared are one or two")


def class_features(x: Array, count: int) -> list[Array]:
    """Return ln p and, if two are asked for, −ln(1 − p), with p and 1 − p clipped to [eps, 1 − eps].

    1 − p of the top class is summed from the others: subtracting would leave no digit near p = 1.

    >>> [f.round(4).tolist() for f in class_features(np.array([[0.0, 40.0]]), 2)]
    [[[-36.0437, -0.0]], [[0.0, 36.0437]]]
    """
    if count == 1:
        return [clipped_log_probs(x)]
    xp = namespace(x)
    p, top = xp.softmax(x), xp.argmax(x)
    rest = xp.put_along(1 - p, top, xp.row_sum(xp.replaced(p, top, 0.0)))
    return [clipped_log_probs(x), -xp.log(xp.clip(rest, EPS, 1 - EPS))]


def _present(y: IntArray) -> tuple[IntArray, IntArray]:
    """Return the classes that have rows, ascending, and where labels stand among them."""
    present, place = np.unique(y, return_inverse=True)
    return present.astype(np.int64), place.astype(np.int64)


class VectorScaling(Calibrator):
    """softmax(w ⊙ log p + b), w and b free, of least mean NLL; convex, no penalty.

    Up to 300 classes Newton runs to convergence; above, L-BFGS runs until an iteration gains less than 1e-6.
    A class absent from the calibration rows keeps its probability; the others share the rest.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = VectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0], [1.0, 0.0]]).round(4)
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """

    name = "vs"
    title = "Vector scaling"
    weighted = True
    map_types = (ClassLines,)

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        present, place = _present(y)
        scores = clipped_log_probs(x)[:, present]
        start = solve_temperature(scores, place, weight)
        beta = start.beta if start.converged else 1.0
        # Each column is centred where its class is in doubt (weights q(1 − q)): slope and offset of a class are
        # nearly collinear otherwise, and L-BFGS needs several times the steps.
        q = softmax(beta * scores)
        q *= (1 - q) * unit_weight(weight, len(y))[:, None]
        centre = np.einsum("nk,nk->k", q, scores) / np.maximum(q.sum(axis=0), 1e-300)
        solved = fit_nll(
            ClassLinear(len(present)), scores - centre, place, weight, tolerance=1e-6, gain=1e-6,
            start=np.concatenate([np.full(len(present), beta), beta * centre]), max_iterations=60,
        )  # fmt: skip
        slopes, offsets = np.split(solved.theta, 2)
        offsets = offsets - slopes * centre
        found = ClassLines(present=present, slopes=slopes[None], offsets=offsets - offsets.mean())
        return Fitted(found, solved.converged, solved.message, {"iterations": solved.iterations})


class BetaCalibration(Calibrator):
    """softmax over k of a_k ln p_k − b_k ln(1 − p_k) + c_k, with a, b ≥ 0, of least mean NLL.

    A class absent from the calibration rows keeps its probability; the others share the rest. There is no
    penalty: with few rows a class (K in the hundreds) prefer ``svs``.

    Kull, Silva Filho, Flach: Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers, AISTATS 2017; here all classes at once, not one against the rest.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = BetaCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "beta"
    title = "Beta calibration"
    weighted = True
    map_types = (ClassLines,)

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        present, place = _present(y)
        k = len(present)
        features = np.hstack([feature[:, present] for feature in class_features(x, 2)])
        solved = fit_nll(
            ClassLinear(k, inputs=2), features, place, weight, max_iterations=200, tolerance=1e-6,
            bounds=(np.repeat([0.0, -np.inf], [2 * k, k]), np.full(3 * k, np.inf)),
            gain=1e-7 if features.size > 10**6 else 1e-12,
        )  # fmt: skip
        a, b, c = np.split(solved.theta, 3)
        found = ClassLines(present=present, slopes=np.stack([a, b]), offsets=c)
        return Fitted(found, solved.converged, solved.message, {"iterations": solved.iterations})


# -- structured scaling: a temperature, then a penalised linear map -----------------------------------


@map_type
class FirstStage(Map):
    """Temperature scaling mixed with a little of the uniform: p′ = (1 − ε) softmax(βz) + ε/K."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    epsilon: Array = array("share of the uniform", low=0, high=1)

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        probs = xp.softmax(self.beta * (x - xp.row_max(x))) * (1 - self.epsilon)
        return xp.maximum(xp.log(probs + self.epsilon / x.shape[-1]), _LOG_FLOOR)


@map_type
class StructuredVector(Map):
    """softmax(w ⊙ x + b) of the log-probabilities of the first stage."""

    first: FirstStage
    weights: Array = array("slopes of the classes", "K")
    offsets: Array = array("of the classes", "K")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        return namespace(x).log_softmax(self.first(x) * self.weights + self.offsets)


@map_type
class StructuredMatrix(Map):
    """softmax(W x + b) of the log-probabilities of the first stage."""

    first: FirstStage
    matrix: Array = array("I + D", "K", "K")
    offsets: Array = array("of the classes", "K")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        return namespace(x).log_softmax(self.first(x) @ self.matrix.T + self.offsets)


@parameters
class StructuredScaling(Calibrator):
    """Temperature scaling, then a linear map held to the identity by a ridge penalty that fades as 1/N."""

    weighted = True

    strength: float = 1.0

    @abstractmethod
    def _family(self, n_classes: int) -> tuple[Family, Float64]:
        """Return what the second stage fits, and how strongly each parameter is held."""

    @abstractmethod
    def _map(self, first: FirstStage, theta: Float64) -> Map:
        """Return the map of fitted parameters."""

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        n, k = float(len(y)) if weight is None else float(weight.sum()), x.shape[1]
        temperature = solve_temperature(x, y, weight)
        first = FirstStage(beta=np.array(temperature.beta), epsilon=np.array(1 / (n + 1)))
        family, held = self._family(k)
        # Large problems stop at what no test set could tell apart, and a matrix soon: each step costs two products.
        solved = fit_nll(
            family, first(x), y, weight, penalty=Ridge(self.strength * k / n * held, family.start),
            max_iterations=30 if k > 300 and len(held) > 2 * k else 500, gain=1e-12 if k <= 300 else 1e-6,
        )  # fmt: skip
        # The mixed uniform and the penalty make the second stage well-posed whatever the first one met.
        message = temperature.message if solved.converged else solved.message
        info = {"temperature": 1 / temperature.beta, "iterations": solved.iterations}
        converged = solved.converged and temperature.converged
        return Fitted(self._map(first, solved.theta), converged, message, info)


class StructuredVectorScaling(StructuredScaling):
    """Temperature scaling, then softmax((1 + v) ⊙ x + b) with a penalty that fades as 1/N. No tuning.

    x = log((1 − ε) softmax(z/T) + ε/K) with ε = 1/(N + 1); mean NLL + strength · (K/N)(‖v‖² + ‖b‖²).

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of both penalties.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredVectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.26, 0.74]])
    """

    name = "svs"
    title = "Structured vector scaling"
    map_types = (StructuredVector, FirstStage)

    def _family(self, n_classes: int) -> tuple[Family, Float64]:
        return ClassLinear(n_classes), np.ones(2 * n_classes)

    def _map(self, first: FirstStage, theta: Float64) -> Map:
        weights, offsets = np.split(theta, 2)
        return StructuredVector(first=first, weights=weights, offsets=offsets)


class StructuredMatrixScaling(StructuredScaling):
    """Temperature scaling, then softmax(x + D x + b), D full, penalised in three parts. No tuning.

    As ``svs`` with penalty (K/N)‖b‖² + (K/N) Σ D_ii² + (K(K − 1)/N) Σ_{i≠j} D_ij², times ``strength``. Above 300
    classes at most 30 iterations are made.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of all three penalties.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredMatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "sms"
    title = "Structured matrix scaling"
    map_types = (StructuredMatrix, FirstStage)

    def _family(self, n_classes: int) -> tuple[Family, Float64]:
        return MatrixFamily(n_classes), matrix_strength(n_classes, 1.0, n_classes - 1.0, 1.0)

    def _map(self, first: FirstStage, theta: Float64) -> Map:
        k = int(np.sqrt(len(theta)))  # θ holds k² + k numbers
        return StructuredMatrix(first=first, matrix=theta[: k * k].reshape(k, k), offsets=theta[k * k :])


def matrix_strength(n_classes: int, diagonal: float, off: float, offsets: float) -> Float64:
    """Return how strongly the entries of a matrix, row by row, and the offsets are held: (K² + K,).

    >>> matrix_strength(2, 1.0, 3.0, 0.5)
    array([1. , 3. , 3. , 1. , 0.5, 0.5])
    """
    matrix = np.where(np.eye(n_classes, dtype=bool), diagonal, off)
    return np.concatenate([matrix.ravel(), np.full(n_classes, offsets)])


# -- full matrices, averaged over folds -----------------------------------------------------------------


@map_type
class FoldedMatrices(ProbabilityMap):
    """The mean over folds of softmax(W f + b), where f are centred logits, probabilities or their logarithms."""

    features: str = option("what W multiplies", ("logits", "probs", "log_probs"))
    matrix: Array = array("W of each fold's model", "F", "K", "K", low=-STEEP, high=STEEP)
    offset: Array = array("b of each fold's model", "F", "K")

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp, f = namespace(x), _features_of(x, self.features)
        models = range(self.matrix.shape[0])
        return sum(xp.softmax(f @ self.matrix[i].T + self.offset[i]) for i in models) / len(models)


def _features_of(x: Array, features: str) -> Array:
    if features == "logits":
        return without_mean(x)
    return namespace(x).softmax(x) if features == "probs" else clipped_log_probs(x)


@parameters
class FoldMatrices(Calibrator):
    """softmax(W f + b), penalised off the diagonal, averaged over folds; subclasses say what f is."""

    weighted = True
    grouped = True
    map_types = (FoldedMatrices,)

    penalty: Pair | None = None
    folds: int = 5

    def _fit_matrices(
        self, features: str, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None
    ) -> Fitted:
        """Choose (λ, μ) by held-out NLL and return the models of the folds, whose probabilities are averaged."""
        if self.folds < 1:
            raise ValueError(f"folds must be at least 1, got {self.folds}")
        if self.folds == 1 and self.penalty is None and len(x) > 1:
            raise ValueError("folds=1 leaves nothing to choose the penalty on: pass penalty=(lambda, mu)")
        k = x.shape[1]
        grid = penalty_grid(k) if self.penalty is None else [self.penalty]
        folds = fold_sides(deal_folds(x, self.folds, groups))
        _check_work(x, len(grid), len(folds))
        x = on_grid(x) if features == "logits" else _features_of(x, features)
        solved = solve_temperature(x, y, weight)
        family = MatrixFamily(k)
        start = family.start * (solved.beta if solved.converged else 1 / (logit_scale(x) or 1.0))

        def part(rows: IntArray) -> tuple[Float64, IntArray, Float64 | None]:
            return x[rows], y[rows], None if weight is None else weight[rows]

        def fit(pair: Pair, rows: IntArray, previous: Solution | None) -> Solution:
            # The diagonal is not penalised: with few rows it runs off along features of rounding size, for gains
            # that no held-out row could show.
            strength = matrix_strength(k, 0.0, *pair)
            return fit_nll(
                family, *part(rows), penalty=Ridge(strength, np.zeros_like(strength)),
                start=start if previous is None else previous.theta, max_iterations=150, tolerance=1e-5,
                gain=1e-7 if k > 24 else 1e-10, newton_gain=1e-9,
            )  # fmt: skip

        def score(model: Solution, rows: IntArray) -> float:
            held, labels, own = part(rows)
            return mean_nll(family.vjp(model.theta, held)[0], labels, own)

        found = select(grid, folds, fit, score)
        lam, mu = found.chosen
        info: dict[str, Any] = {"lambda": lam, "mu": mu, "folds": len(folds)}
        if len(grid) > 1:
            info["grid"] = [[*pair, s] for pair, s in zip(grid, found.scores, strict=True)]
        theta = np.stack([m.theta for m in found.models])
        matrices = FoldedMatrices(
            features=features, matrix=theta[:, : k * k].reshape(-1, k, k), offset=theta[:, k * k :]
        )
        failed = [m.message for m in found.models if not m.converged]
        return Fitted(matrices, not failed, failed[0] if failed else "", info)


def penalty_grid(n_classes: int) -> list[Pair]:
    """Return the pairs (λ, μ) of decades from 10 down to 1e-5, λ outer; to 1e-2 for 100 classes and more.

    >>> len(penalty_grid(10)), len(penalty_grid(100))
    (49, 16)
    """
    decades = [10.0**i for i in range(1, -6 if n_classes < 100 else -3, -1)]
    return list(product(decades, decades))


def _check_work(x: Float64, pairs: int, folds: int) -> None:
    n, k = x.shape
    work = float(n) * k * k * pairs * folds
    if work > _MOST_WORK:
        raise ValueError(
            f"{n} rows × {k} classes with {pairs} pairs (lambda, mu) and {folds} folds is {work:.2g} "
            f"row·matrix products; the limit for ten minutes is {_MOST_WORK:.2g}. Fit one pair without "
            "selection, penalty=(lambda, mu) and folds=1, or use 'sms', which has nothing to tune."
        )


@parameters
class MatrixScaling(FoldMatrices):
    """softmax(W z + b), z centred; mean NLL + λ Σ_{i≠j} W_ij² + μ Σ b_i²; fold models averaged.

    (λ, μ) is the pair of least held-out NLL over the folds, from decades between 1e-5 (1e-2 from 100 classes on)
    and 10.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017; the penalty (ODIR) from
    Kull et al., NeurIPS 2019. Convex: solved to convergence where the source ran Adam.

    Parameters
    ----------
    features : {"logits", "probs"}
        What W multiplies. The published table very likely used probabilities; logits are the definition and
        far better.
    penalty : (float, float), optional
        A fixed (λ, μ) instead of the choice from the grid.
    folds : int
        1, with a fixed penalty, fits all rows once.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = MatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "ms"
    title = "Matrix scaling"

    features: Literal["logits", "probs"] = "logits"

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        if self.features not in ("logits", "probs"):
            raise ValueError(f"features must be 'logits' or 'probs', got {self.features!r}")
        return self._fit_matrices(self.features, x, y, weight, groups)


class DirichletCalibration(FoldMatrices):
    """softmax(W log p + b) with the penalty, choice and averaging of ``ms``.

    Kull, Perelló-Nieto, Kängsepp, Silva Filho, Song, Flach: Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration, NeurIPS 2019.

    Parameters
    ----------
    penalty, folds, input
        As in :class:`MatrixScaling`.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = DirichletCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "dir"
    title = "Dirichlet calibration"

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        return self._fit_matrices("log_probs", x, y, weight, groups)
