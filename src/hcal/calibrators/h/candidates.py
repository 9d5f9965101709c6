"""What is pooled with more than two classes: candidates fitted on some rows, as scores of others."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators._structured import matrix_strength, second_stage
from hcal.calibrators.h.blend import FLOOR, Blend, event_scores, top_class
from hcal.calibrators.h.events import top_odds
from hcal.calibrators.h.model import Model, fit_events, see
from hcal.calibrators.h.refine import Refined, fit_refined, refine
from hcal.calibrators.h.rows import ENOUGH_ROWS, Float64, look
from hcal.maps import scaling
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.numerics import FloatArray, IntArray, row_blocks, softmax
from hcal.runtime.threads import each
from hcal.solvers.rows import array_rows
from hcal.solvers.summed import MakeMap

#: Up to so many classes vector and matrix scaling are candidates: their K² numbers need rows.
MATRIX_CLASSES = 32
ITERATIONS = 200


class Setting(NamedTuple):
    """What all candidates of a fit share, whatever rows they are fitted on."""

    #: Whether single classes may be told apart; if not, the order of all classes is kept.
    classes: bool
    #: Temperature-scaled margins beyond this count as this in linear candidates: ln(K(N + 1)), with at least
    #: a thousand for N, because few rows are no reason to doubt sure scores.
    cap: float
    #: The mass of every class (K,) in labels and scores, which decides between classes that tie on top.
    prefer: Float64

    @property
    def linear(self) -> bool:
        """Whether vector and matrix scaling take part."""
        return self.classes and len(self.prefer) <= MATRIX_CLASSES

    @property
    def names(self) -> list[str]:
        """Candidates in the order of their scores."""
        linear = ["vector", "matrix"] if self.linear else []
        return ["events", "refined", "temperature", "identity", *linear]


def new_setting(logits: Logits, y: IntArray, weight: Float64, *, classes: bool) -> Setting:
    """Return the setting of calibration rows.

    >>> new_setting(np.zeros((2, 4)), np.array([0, 2]), np.ones(2), classes=True).prefer
    array([1.5, 0.5, 1.5, 0.5])
    """
    k = logits.shape[1]
    mass = np.bincount(y, weights=weight, minlength=k)
    # Sums of other orders differ in their last digits.
    prefer = np.round(mass + _soft_mass(logits, weight), 9)
    rows = max(float(weight.sum()), ENOUGH_ROWS)
    return Setting(classes, float(np.log(k * (rows + 1.0))), prefer)


def _soft_mass(logits: Logits, weight: Float64) -> Float64:
    """Return Σ_n w_n softmax(z_n) of every class (K,)."""
    if isinstance(logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        return _tensors.soft_mass(logits, weight)
    blocks = row_blocks(logits.shape, 1_000_000)
    parts = each(lambda part: weight[part] @ softmax(logits[part]), blocks, events=logits.size)
    return np.asarray(np.sum(parts, axis=0))


class Candidates(NamedTuple):
    """All candidates, fitted on the same rows; factors and offsets are of the capped margins, or empty."""

    setting: Setting
    model: Model  # stage 1 and the events on it; stage 1 alone and temperature scaling are parts of it
    vector: Float64  # (2K,)
    matrix: Float64  # (K² + K,)


def fit_candidates(
    logits: Logits, y: IntArray, weight: Float64, setting: Setting, refined: Refined | None = None
) -> Candidates:
    """Fit every candidate on the same rows (N, K); ``refined`` is a first stage that is already fitted.

    >>> z, y = np.array([[0.0, 2.0, 1.0]] * 40), np.array([1, 1, 1, 0] * 10)
    >>> fitted = fit_candidates(z, y, np.ones(40), new_setting(z, y, np.ones(40), classes=True))
    >>> fitted.vector.shape, fitted.matrix.shape
    ((6,), (12,))
    """
    refined = fit_refined(logits, y, weight)[0] if refined is None else refined
    seen = see(refined, logits, y, setting.prefer)
    model = fit_events(refined, seen, y, weight, classes=setting.classes)
    if not setting.linear or isinstance(logits, DeviceRows):  # few classes do not come as device rows
        return Candidates(setting, model, np.zeros(0), np.zeros(0))
    x = capped(look(logits, float(refined.beta)).margin, setting.cap)
    rows = array_rows(x, y, weight)
    solved = [
        second_stage(make_map, rows, strength, "ridge", ITERATIONS).theta
        for make_map, strength in linear_penalties(logits.shape[1], rows.total)
    ]
    return Candidates(setting, model, *solved)


def linear_penalties(k: int, total: float) -> list[tuple[MakeMap, Float64]]:
    """Return vector and matrix scaling, each with the strength of its ridge (P,).

    >>> [strength.shape for _, strength in linear_penalties(3, 100.0)]
    [(6,), (12,)]
    """
    one = k / total
    matrix = partial(scaling.matrix, k), matrix_strength(k, one)
    return [(partial(scaling.vector, k), np.full(2 * k, one)), matrix]


def capped(margin: FloatArray, cap: float) -> Float64:
    """Return margins below the top, none beyond the cap, as scores.

    >>> capped(np.array([[0.0, 9.0]]), 5.0)
    array([[-0., -5.]])
    """
    return -np.minimum(margin, cap).astype(np.float64)


def scores(fitted: Candidates, logits: Logits) -> Any:
    """Return the scores of every candidate (J, N, K): ln P, but for a constant in each row."""
    setting, model = fitted.setting, fitted.model
    if isinstance(logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        return _tensors.scores(model, setting.cap, setting.prefer, logits)
    top = top_class(logits, setting.prefer)
    rows = look(logits, float(model.refined.beta), top)
    x = capped(rows.margin, setting.cap)
    refined, feature = refine(model.refined, rows)
    odds = model.final(model.curve(top_odds(refined, top), feature, top), feature[:, :0], top)
    found = [
        event_scores(odds, model.rest, refined, top),
        -np.minimum(refined, FLOOR),
        x,
        x / float(model.refined.beta),
    ]
    if setting.linear:
        k = logits.shape[1]
        found.append(x * fitted.vector[:k] + fitted.vector[k:])
        found.append(x @ fitted.matrix[: k * k].reshape(k, k).T + fitted.matrix[k * k :])
    return np.stack(found)


def blend(fitted: Candidates, share: Float64) -> Blend:
    """Return the pool of candidates with weights (J,) as one set of scores.

    >>> z, y = np.array([[0.0, 2.0, 1.0]] * 40), np.array([1, 1, 1, 0] * 10)
    >>> fitted = fit_candidates(z, y, np.ones(40), new_setting(z, y, np.ones(40), classes=True))
    >>> float(blend(fitted, np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])).scale)
    1.0
    """
    setting, k = fitted.setting, len(fitted.setting.prefer)
    matrix, bias = np.zeros((0, 0)), np.zeros(k)
    if setting.linear:
        matrix = share[4] * np.diag(fitted.vector[:k]) + share[5] * fitted.matrix[: k * k].reshape(k, k)
        bias = share[4] * fitted.vector[k:] + share[5] * fitted.matrix[k * k :]
    scale = share[2] + share[3] / float(fitted.model.refined.beta)
    parts = (share[0], share[1], setting.cap, matrix, scale, bias, setting.prefer)
    return Blend(*(np.asarray(part, dtype=np.float64) for part in parts))
