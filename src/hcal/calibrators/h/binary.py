"""Two classes: a pool of increasing functions of the log-odds, kept as one table that is looked up.

The candidates are in :mod:`hcal.calibrators.h.binary_candidates`; here they are pooled by what they say
out of fold, the pool is made to keep what is promised, and predictions are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcal.calibrators.base import Fitted
from hcal.calibrators.h.binary_candidates import (
    CANDIDATES,
    FLATTEST,
    LEAST_RISE,
    Counts,
    count,
    draw,
    grid,
    moments,
    places,
    rising,
)
from hcal.calibrators.h.blend import FLOOR
from hcal.calibrators.h.pool import Caution, doubt, log_linear_weights
from hcal.calibrators.h.rows import Float64
from hcal.calibrators.h.sentences import one_class, sides_told
from hcal.maps.lookup import through_knots
from hcal.numerics import FloatArray, IntArray
from hcal.solvers.temperature import Temperature

#: How near 0, as a share of the range, a kept crossing is passed.
_NEAR = 1e-5
#: Leaning on temperature scaling where rows are few: its worth a row, and the nats that others have to earn.
_CAUTION_RIDGE, _CAUTION_PRICE = 1.0, 6.0


class Table(NamedTuple):
    """A rising, piecewise linear function of u = z₁ − z₀ with values in log-odds; see ``through_knots``."""

    knots: Float64
    values: Float64


def fit_table(
    u: Float64, y: IntArray, weight: Float64, held: Float64
) -> tuple[Table, dict[str, float], Temperature]:
    """Pool the candidates by what they say out of fold, and fit each on all rows.

    ``u`` (N,) is z₁ − z₀; ``held`` (F, N) is the weight of every row that each fold holds out, and without
    folds it is temperature scaling. Beside the table: every candidate's share, and how the temperature was
    found.
    """
    at, place = places(u, weight)
    everything = count(at, place, y, weight)
    knots = grid(everything)
    line, solved = draw(everything, knots)
    seen, tested = [], []
    for part in held:
        out = count(at, place, y, part)
        fold, _ = draw(Counts(at, _less(everything.mass, out.mass)), knots)
        odds = np.stack([rising(candidate(fold), fold) for candidate in CANDIDATES])
        seen.append(np.stack([np.interp(at, knots, o) for o in odds]))
        tested.append(out.mass)
    if not seen:
        return _with_ends(knots, rising(line.at, line), solved.beta), {"temperature": 1.0}, solved
    little = doubt(float(weight.sum()), everything.errors)
    share = _shares(np.concatenate(seen, axis=1), np.concatenate(tested, axis=1), little)
    values = share @ np.stack([rising(candidate(line), line) for candidate in CANDIDATES])
    names = [candidate.name for candidate in CANDIDATES]
    table = _with_ends(knots, values + line.least, solved.beta)
    return table, dict(zip(names, share.tolist(), strict=True)), solved


def _with_ends(knots: Float64, values: Float64, beta: float) -> Table:
    """Rise strictly; beyond the grid no faster than in its outer half, nor than temperature scaling."""
    step = np.maximum(np.diff(values), 1e-12 * (1.0 + np.abs(values[1:])))
    values = values[0] + np.concatenate([[0.0], np.cumsum(step)])
    half, reach = len(knots) // 2, knots[-1] - knots[0]
    low = (values[half] - values[0]) / max(knots[half] - knots[0], 1e-3 * reach)
    high = (values[-1] - values[-1 - half]) / max(knots[-1] - knots[-1 - half], 1e-3 * reach)
    low, high = min(low, beta), min(high, beta)
    return Table(
        np.concatenate([[knots[0] - reach], knots, [knots[-1] + reach]]),
        np.concatenate([[values[0] - low * reach], values, [values[-1] + high * reach]]),
    )


def crossing_kept(table: Table, beta: float) -> Table:
    """Return the table with the sign of u: below 0 it is negative, above positive, and it rises as strictly.

    >>> kept = crossing_kept(Table(np.array([-1.0, 1.0]), np.array([1.0, 2.0])), 1.0)
    >>> through_knots(np.array([-0.5, 0.0, 0.5]), *kept).round(4)
    array([-5.00e-04,  0.00e+00,  1.75e+00])
    """
    ramp = LEAST_RISE * beta
    near = _NEAR * (table.knots[-1] - table.knots[0])  # a jump at 0 is a steep piece
    knots = np.unique(np.concatenate([table.knots, [-near, 0.0, near], _meetings(table, ramp)]))
    values, line = through_knots(knots, *table), ramp * knots
    kept = np.where(knots > 0, np.maximum(values, line), np.minimum(values, line))
    kept[knots == 0] = 0.0
    return Table(knots, kept)


def _meetings(table: Table, ramp: float) -> Float64:
    """Return where the table meets the line through 0, so that the larger of both is piecewise linear."""
    gap = table.values - ramp * table.knots
    i = np.flatnonzero(gap[:-1] * gap[1:] < 0)
    return np.asarray(table.knots[i] + (table.knots[i + 1] - table.knots[i]) * gap[i] / (gap[i] - gap[i + 1]))


def _less(mass: Float64, held: Float64) -> Float64:
    """Return what is left of mass; what is all but nothing is rounding."""
    left = mass - held
    return np.where(left > 1e-9 * mass, left, 0.0)


def _shares(odds: Float64, mass: Float64, little: float) -> Float64:
    """Return the weights (J,) of candidates with held-out log-odds (J, G) where mass (2, G) lies.

    With ``little`` to learn from they lean on the first, temperature scaling.
    """
    odds = np.clip(odds, -FLOOR, FLOOR)
    both = np.stack([-0.5 * odds, 0.5 * odds], axis=2)
    y, weight = np.repeat([0, 1], odds.shape[1]), mass.ravel()
    some = weight > 0
    held = np.concatenate([both, both], axis=1)[:, some]
    caution = Caution(0, little, _CAUTION_RIDGE, _CAUTION_PRICE, idle=(0, 1))
    return log_linear_weights(held, y[some], weight[some], caution=caution)


def fit_two(
    logits: FloatArray, y: IntArray, weight: Float64, held: Float64 | None, *, crossing: bool
) -> Fitted:
    """Fit two classes, folds as for :func:`fit_table`; with ``crossing`` every prediction keeps its side."""
    u = _odds(logits)
    table, share, solved = fit_table(u, y, weight, np.zeros((0, len(y))) if held is None else held)
    if crossing:
        table = crossing_kept(table, max(solved.beta, FLATTEST / moments(u, weight)[1]))
    moved = float(weight @ ((through_knots(u, *table) > 0) != (u > 0)))
    turn = float(np.interp(0.0, table.values, table.knots))
    info = {
        "protocol": "default",
        "map": "pool",
        "candidates": share,
        "promise": "accuracy" if crossing else "ranking",
        "changed_sides": moved,
        "crossing": turn,
        "notes": [sides_told(moved, float(weight.sum()), turn)],
        "warnings": one_class(np.bincount(y, weights=weight, minlength=2)),
        "absent_classes": np.flatnonzero(np.bincount(y, minlength=2) == 0).tolist(),
    }
    state = {"table.knots": table.knots, "table.values": table.values}
    return Fitted(state, solved.converged, solved.message, info)


def _odds(logits: FloatArray) -> Float64:
    """Return z₁ − z₀ (N,); what is all but a subnormal number is 0, because its inverse is none."""
    u = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64)
    return np.where(np.abs(u) < 1e-290, 0.0, u)


def is_table(state: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a state is that of two classes; models of version 0.1 are not."""
    return "table.knots" in state


def predict_two(state: Mapping[str, NDArray[Any]], logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of logits (N, 2) into ``out``."""
    odds = through_knots(_odds(logits), state["table.knots"], state["table.values"])
    out[:, 1] = expit(odds)
    out[:, 0] = expit(-odds)
