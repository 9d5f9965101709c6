"""The default protocol on rows that are not in memory: candidates by sums over all, their pool by a sample.

What a candidate learns is the optimum of a sum over rows, so blocks of any number give it. What is decided by
comparing rows with each other (folds, the weights of the pool, the curve of the pooled event, where curves
bend) is decided by a sample of the rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hcal.calibrators._structured import second_stage
from hcal.calibrators.base import Fitted, Preserves
from hcal.calibrators.h.blend import top_class
from hcal.calibrators.h.candidates import (
    ITERATIONS,
    Candidates,
    Setting,
    capped,
    linear_penalties,
    new_setting,
)
from hcal.calibrators.h.events import (
    Curve,
    CurveShape,
    Rest,
    curve_shape,
    curve_sums,
    rest_sums,
    solve_curve,
    solve_rest,
    top_odds,
)
from hcal.calibrators.h.fit import assemble, counted, enough_rows, out_of_fold, pool
from hcal.calibrators.h.model import Model, see, to_state
from hcal.calibrators.h.refine import Refined, fit_refined_rows, refine
from hcal.calibrators.h.rows import Float64, few, look
from hcal.calibrators.h.sentences import one_class
from hcal.numerics import FloatArray, IntArray, softmax
from hcal.solvers.lbfgs import Loss
from hcal.solvers.rows import ArrayRows, FitRows

_ENOUGH_FOR_CURVES = 1000.0


def fit_default_rows(rows: FitRows, sample: ArrayRows, *, preserve: Preserves) -> Fitted | None:
    """Fit the default for more than two classes.

    ``sample`` are some of the rows, as :func:`hcal.calibrators.row_order.arrange` leaves them. None where the
    sample is too small for folds, or rows or errors so few that fits lean on T = 1.
    """
    k, weight = len(rows.mass), counted(sample.x, sample.y, sample.weight)
    setting = _setting(rows, classes=preserve != "order")
    _, errors = rows.sum(partial(_hits, setting.prefer))
    if not enough_rows(weight) or few(rows.total, errors) > 1:
        return None
    sample = replace(sample, weight=weight)
    held = out_of_fold(sample.x, sample.y, weight, setting)
    chosen, info = pool(held, setting, free=preserve is None)
    info["warnings"] = one_class(rows.mass)
    info["absent_classes"] = np.flatnonzero(rows.mass == 0).tolist()
    refined, converged, message = fit_refined_rows(rows, sample.x, sample.weight)
    model = _fit_events(rows, sample, refined, setting)
    linear = _fit_linear(rows, float(refined.beta), setting, k) if setting.linear else [np.zeros(0)] * 2
    whole = assemble(Candidates(setting, model, *linear), chosen)
    return Fitted(to_state(whole), converged, message, {"protocol": "default", "map": "pool", **info})


def _setting(rows: FitRows, *, classes: bool) -> Setting:
    k = len(rows.mass)
    (mass,) = rows.sum(_probabilities)
    plain = new_setting(np.zeros((1, k)), np.zeros(1, dtype=np.int64), np.zeros(1), classes=classes)
    return plain._replace(cap=float(np.log(k * (rows.total + 1.0))), prefer=np.round(rows.mass + mass, 9))


def _probabilities(logits: FloatArray, y: IntArray, weight: Float64) -> tuple[Float64]:
    return (np.asarray(weight @ softmax(logits), dtype=np.float64),)


def _fit_linear(rows: FitRows, beta: float, setting: Setting, k: int) -> list[Float64]:
    x = rows.changed(partial(_margins, beta, setting.cap))
    return [
        second_stage(family, x, strength, "ridge", ITERATIONS).theta
        for family, strength in linear_penalties(k, rows.total)
    ]


def _margins(beta: float, cap: float, logits: FloatArray, y: IntArray) -> tuple[Float64, IntArray]:
    return capped(look(logits, beta).margin, cap), y


# -- the events -----------------------------------------------------------------------------------------


def _fit_events(rows: FitRows, sample: ArrayRows, refined: Refined, setting: Setting) -> Model:
    """Fit the top-label event twice, then the classes below it."""
    seen = see(refined, sample.x, sample.y, setting.prefer)
    shape = curve_shape(seen.odds, sample.weight)
    hits = rows.sum(partial(_hits, setting.prefer))
    width = shape.design(seen.odds[:1], seen.x[:1]).shape[1]
    by_curve = _sums(rows, _curve_rows, refined, setting, None, shape, setting.classes)
    k = len(rows.mass)
    curve = solve_curve(shape, by_curve, hits, width, k, _ENOUGH_FOR_CURVES)
    shape = curve_shape(curve(seen.odds, seen.x, seen.top), sample.weight)
    by_final = _sums(rows, _curve_rows, refined, setting, curve, shape, False)
    final = solve_curve(shape, by_final, hits, width - seen.x.shape[1], k, _ENOUGH_FOR_CURVES)
    rest = Rest(np.array(1.0), np.zeros(k))
    if hits[1] > 0:
        rest = solve_rest(_sums(rows, _rest_rows, refined, setting), rows.total, k)
    return Model(refined, curve, final, rest, 0.0)


def _sums(rows: FitRows, summand: Any, *facts: Any) -> Loss:
    """Return θ ↦ the sums over rows of a function of some facts and θ."""

    def sums(theta: Float64) -> tuple[float, Float64]:
        value, gradient = rows.sum(partial(summand, *facts, theta))
        return value, gradient

    return sums


def _hits(prefer: Float64, logits: FloatArray, y: IntArray, weight: Float64) -> tuple[float, float]:
    hit = (top_class(logits, prefer) == y).astype(np.float64)
    return float(weight @ hit), float(weight @ (1.0 - hit))


def _refined_rows(
    refined: Refined, setting: Setting, logits: FloatArray
) -> tuple[IntArray, FloatArray, Float64]:
    rows = look(logits, float(refined.beta), top_class(logits, setting.prefer))
    return rows.top, *refine(refined, rows)


def _curve_rows(
    refined: Refined, setting: Setting, before: Curve | None, shape: CurveShape, classes: bool,
    theta: Float64, logits: FloatArray, y: IntArray, weight: Float64,
) -> tuple[float, Float64]:  # fmt: skip
    top, margin, x = _refined_rows(refined, setting, logits)
    odds = top_odds(margin, top)
    if before is not None:
        odds, x = before(odds, x, top), x[:, :0]
    hit = (top == y).astype(np.float64)
    design = shape.design(odds, x)
    return curve_sums(theta, odds=odds, design=design, top=top, hit=hit, weight=weight, classes=classes)


def _rest_rows(
    refined: Refined, setting: Setting, theta: Float64, logits: FloatArray, y: IntArray, weight: Float64
) -> tuple[float, Float64]:
    top, margin, _ = _refined_rows(refined, setting, logits)
    lost = top != y
    wide = np.asarray(margin[lost], dtype=np.float64)
    if not len(wide):
        return 0.0, np.zeros_like(theta)
    return rest_sums(
        theta, margin=wide, top=top[lost], y=y[lost], weight=weight[lost], classes=setting.classes
    )
