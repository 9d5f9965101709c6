"""Locally equal calibration errors (Valk & Kull, 2023), alone and after temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from hcal.calibrators._neighbours import Neighbours, subtract_error
from hcal.calibrators._one_vs_rest import MOST
from hcal.calibrators._shared import BETA
from hcal.calibrators.base import Calibrator, Fitted, State
from hcal.calibrators.declared import parameters
from hcal.calibrators.row_order import fold_parts
from hcal.calibrators.state import Field, Rule, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.solvers.temperature import solve_temperature

FRACTIONS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.1, 0.2, 1.0)
THRESHOLDS = (0.0, 0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.05, 0.1, 1.0)
_MEMORY = StateSpec(
    (
        Field("probs", "calibration rows", ("N", "K"), 0, MOST),
        Field("y", "their labels", ("N",), 0, "K-1", "int64"),
        Field("count", "how many of them are neighbours", (), 1, 2**62, "int64"),
        Field("threshold", "probabilities at or below it stay", (), 0, 1),
    ),
    {"N": ("calibration rows, none where threshold is 1", 0)},
    (Rule("probs", "have rows where threshold is below 1", lambda s, n: n["N"] > 0 or s["threshold"] == 1),),
)
_LOG_CLIP = 1e-15
# All pairs of rows: 25,000 rows of 1000 classes (1.25e12) take five to seven minutes of one core.
_MAX_WORK = 1.7e12


@parameters
class LocallyEqualErrors(Calibrator):
    """Subtract the mean error of the KL-nearest calibration rows from each row.

    Valk, Kull: Assuming locally equal calibration errors for non-parametric multiclass calibration,
    TMLR 2023. It keeps the calibration set: a prediction costs N·K. Neighbourhood and threshold are chosen
    by 10-fold cross-validated NLL unless given.

    Parameters
    ----------
    fraction : float, optional
        Share of the calibration rows that are neighbours, in (0, 1].
    threshold : float, optional
        Probabilities at or below it, before or after the subtraction, stay; 1 leaves everything as it is.
    folds : int
    random_state : int
        Seed of the folds.

    Examples
    --------
    >>> cal = LocallyEqualErrors(fraction=1.0, threshold=0.0, input="probs")
    >>> cal.fit([[0.1, 0.9]] * 4, [1, 1, 1, 0]).predict_proba([[0.1, 0.9]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "lece"
    title = "Locally equal calibration errors"
    state_specs = (_MEMORY,)

    fraction: float | None = None
    threshold: float | None = None
    folds: int = 10
    random_state: int = 0
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        choice = _choose(logits, y, self)
        return Fitted(_memory(logits, y, choice), info=choice.info())

    def _predict(self, logits: FloatArray) -> FloatArray:
        return _shift(softmax(logits), self.state_)


class TemperatureThenLocallyEqualErrors(LocallyEqualErrors):
    """Temperature scaling, then :class:`LocallyEqualErrors` on the scaled probabilities.

    Valk, Kull, TMLR 2023. The temperature is fitted once on all calibration rows, not again in each fold.

    Parameters
    ----------
    fraction, threshold, folds, random_state, input
        As in :class:`LocallyEqualErrors`.

    Examples
    --------
    >>> cal = TemperatureThenLocallyEqualErrors(fraction=1.0, threshold=0.0)
    >>> cal.fit([[0.0, 2.0]] * 4, [1, 1, 1, 0]).predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ts_lece"
    title = "Temperature scaling, then locally equal errors"
    state_specs = (_MEMORY + StateSpec((BETA,)),)

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        solved = solve_temperature(logits, y)
        scaled = logits * solved.beta
        choice = _choose(scaled, y, self)
        state = _memory(scaled, y, choice) | {"beta": np.array(solved.beta)}
        info = {"temperature": 1 / solved.beta} | choice.info()
        return Fitted(state, solved.converged, solved.message, info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return _shift(softmax(logits * self.state_["beta"]), self.state_)


@dataclass(frozen=True)
class _Choice:
    fraction: float
    threshold: float
    held_out_nll: float | None  # None where nothing was chosen

    def info(self) -> dict[str, float | None]:
        return dict(vars(self))


def _memory(logits: FloatArray, y: IntArray, choice: _Choice) -> State:
    """What prediction needs: the calibration rows, or nothing of them where the choice is the identity."""
    kept = len(y) if choice.threshold < 1 else 0
    return {
        "probs": softmax(logits[:kept]) if kept else np.empty((0, logits.shape[1])),
        "y": y[:kept],
        "count": np.array(_count(choice.fraction, len(y)), dtype=np.int64),
        "threshold": np.array(choice.threshold),
    }


def _shift(probs: FloatArray, state: State) -> Float64:
    out = np.array(probs, dtype=np.float64)
    if state["threshold"] < 1:
        neighbours = Neighbours(state["probs"], state["y"])
        for rows, errors in neighbours.errors(probs, [int(state["count"])]):
            out[rows] = subtract_error(probs[rows], errors[0], float(state["threshold"]))
    out /= out.sum(axis=1, keepdims=True)
    return out


def _count(fraction: float, n_rows: int) -> int:
    return max(1, int(fraction * n_rows))


def _choose(logits: FloatArray, y: IntArray, params: LocallyEqualErrors) -> _Choice:
    """The grid point of lowest mean held-out NLL, the first one on ties (fraction outer)."""
    fractions = FRACTIONS if params.fraction is None else (_inside(params.fraction, "fraction", open_at=0),)
    thresholds = THRESHOLDS if params.threshold is None else (_inside(params.threshold, "threshold"),)
    _check_work(logits, params.name)
    if len(fractions) == len(thresholds) == 1:
        return _Choice(fractions[0], thresholds[0], None)
    if params.folds < 2:
        raise ValueError(f"folds must be at least 2, got {params.folds}")
    folds = fold_parts(logits, y, None, params.folds, random_state=params.random_state)
    if len(folds) == 1:  # one row, or copies of it: nothing to choose on, so nothing moves unless told
        return _Choice(fractions[-1], thresholds[-1], None)
    probs = softmax(logits)
    losses = np.zeros((len(fractions), len(thresholds)))
    for fit, held in folds:
        losses += _held_out_nll(probs, y, fit.rows, held.rows, fractions, thresholds) / len(folds)
    best = int(losses.argmin())
    fraction, threshold = list(product(fractions, thresholds))[best]
    return _Choice(fraction, threshold, float(losses.flat[best]))


def _inside(value: float, what: str, *, open_at: float | None = None) -> float:
    if not 0 <= value <= 1 or value == open_at:
        raise ValueError(f"{what} must lie in {'(' if open_at == 0 else '['}0, 1], got {value!r}")
    return float(value)


def _check_work(logits: FloatArray, name: str) -> None:
    n, k = logits.shape
    work = 2.0 * n * n * k
    if work > _MAX_WORK:
        raise ValueError(
            f"{name!r} compares all pairs of rows: {n} rows of {k} classes are {work:.1e} operations "
            f"(limit {_MAX_WORK:.0e}, minutes of work); fit it on a subset of the rows"
        )


def _held_out_nll(
    probs: FloatArray,
    y: IntArray,
    fit: IntArray,
    held: IntArray,
    fractions: tuple[float, ...],
    thresholds: tuple[float, ...],
) -> Float64:
    """Mean NLL of the held-out rows at every (fraction, threshold), from one search of neighbours."""
    neighbours = Neighbours(probs[fit], y[fit])
    queries, labels = probs[held], y[held]
    counts = [_count(fraction, len(fit)) for fraction in fractions]
    total = np.zeros((len(fractions), len(thresholds)))
    for rows, errors in neighbours.errors(queries, counts):
        for j, threshold in enumerate(thresholds):
            for i, error in enumerate(errors):
                total[i, j] += _nll_sum(subtract_error(queries[rows], error, threshold), labels[rows])
    total /= len(held)
    return total


def _nll_sum(raw: Float64, labels: IntArray) -> float:
    own = raw[np.arange(len(labels)), labels] / raw.sum(axis=1)
    return float(-np.log(np.clip(own, _LOG_CLIP, 1 - _LOG_CLIP)).sum())
