"""The default calibrator as one pure function: refine, split into events, keep the argmax, join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcal.calibrators.h.blend import (
    Blend,
    blended,
    event_scores,
    level_ties,
    linear_scores,
    split_top,
    top_class,
)
from hcal.calibrators.h.events import Curve, Rest, fit_curve, fit_rest, top_odds
from hcal.calibrators.h.keep import join
from hcal.calibrators.h.refine import Refined, apply_refined, refine
from hcal.calibrators.h.rows import Float64, look
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.runtime.jit import compiled
from hcal.numerics import FloatArray, IntArray, row_blocks
from hcal.runtime.threads import each

#: Events a block of a prediction: about what a core's own cache holds of a few float32 arrays.
_CACHED = 100_000


class Model(NamedTuple):
    """All three stages. Every candidate, down to the identity, is one of these with neutral parts."""

    refined: Refined
    curve: Curve  # the top-label event's correction, with features and class terms
    final: Curve  # a second, one-dimensional correction of what the first left
    rest: Rest
    lift: float | None  # λ of :mod:`hcal.calibrators.h.keep`; None lets the argmax change
    blend: Blend | None = None  # the pool; models of version 0.1 have none and end with their events
    last: Curve | None = None  # the correction of the pooled top-label event


def predict_model(model: Model, logits: FloatArray) -> FloatArray:
    """Return probabilities (N, K) of logits (N, K), compiled where numba is installed."""
    out = np.empty(logits.shape, dtype=logits.dtype)
    predict_into(model, logits, out)
    return out


def predict_into(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Write probabilities (N, K) of logits (N, K) into ``out``, a contiguous array of the same type."""
    if not kernel_at_hand(model, logits):
        return predict_plain(model, logits, out)
    from hcal.calibrators.h.fused import predict_fused

    return predict_fused(model, np.ascontiguousarray(logits), out)


def kernel_at_hand(model: Model, logits: FloatArray) -> bool:
    """Return whether the compiled kernel is to predict these logits, or numpy."""
    if not compiled():
        return False
    from hcal.calibrators.h.fused import is_worth_it

    return is_worth_it(model, logits)


def keeps_order(model: Model) -> bool:
    """Return whether a model tells no class from another but by its logit: the order of all is then kept."""
    blend = model.blend
    if model.lift is None or model.rest.bias.any():
        return False
    return blend is None or not (blend.matrix.size or blend.bias.any())


def predict_plain(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Do the same by numpy alone, in blocks that stay in the cache; where the order is kept, in float64."""
    # float32 may round two scores past each other, float64 cannot
    width = np.float64 if keeps_order(model) else logits.dtype

    def fill(part: slice) -> None:
        rows = logits[part].astype(width, copy=False)
        out[part] = _events_alone(model, rows) if model.blend is None else _pooled(model, rows)

    each(fill, row_blocks(logits.shape, _CACHED), events=logits.size)


def _events_alone(model: Model, logits: FloatArray) -> FloatArray:
    top, margin, x = apply_refined(model.refined, logits)
    odds = model.curve(top_odds(margin, top), x, top)
    q = expit(model.final(odds, x[:, :0], top))
    probs: FloatArray = join(q, model.rest(margin, top), top, model.lift)
    return probs


def pooled_scores(model: Model, logits: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the top classes (N,) and the scores of the pool (N, K)."""
    blend = model.blend
    assert blend is not None
    top = top_class(logits, blend.prefer)
    rows = look(logits, float(model.refined.beta), top)
    linear = linear_scores(blend, rows.margin)
    refined, x = refine(model.refined, rows)
    odds = model.final(model.curve(top_odds(refined, top), x, top), x[:, :0], top)
    events = event_scores(odds, model.rest, refined, top)
    return top, blended(blend, linear, events, refined)


def _pooled(model: Model, logits: FloatArray) -> FloatArray:
    assert model.last is not None
    top, scores = pooled_scores(model, logits)
    if model.lift is None:
        top = scores.argmax(axis=1)
    odds, rest = split_top(scores, top)
    q = expit(model.last(odds, np.zeros((len(odds), 0)), top))
    probs: FloatArray = join(q, rest, top, model.lift)
    if model.lift is not None:
        level_ties(probs, logits)
    return probs


def no_curve(n_features: int, n_classes: int) -> Curve:
    """Return the curve that corrects nothing.

    >>> no_curve(0, 2)(np.array([1.5]), np.zeros((1, 0)), np.array([0]))
    array([1.5])
    """
    scaler = np.array([0.0, 1.0, -1.0, 1.0])
    return Curve(np.zeros(0), scaler, np.zeros(2 + n_features), np.zeros(n_classes))


class Seen(NamedTuple):
    """What stage 2 needs of the calibration rows once stage 1 is fixed.

    ``margin`` holds the rows that the top class lost (mask ``lost``), the only ones needed in full width: an
    array, or a tensor where the scores lie on a device.
    """

    top: IntArray
    x: Float64
    odds: Float64
    lost: NDArray[np.bool_]
    margin: Any
    n_classes: int


def see(refined: Refined, logits: Logits, y: IntArray, prefer: Float64 | None = None) -> Seen:
    """Apply stage 1 to the calibration rows, block by block."""
    if isinstance(logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        top, x, odds, lost = _tensors.see(refined, logits, y, prefer)
        return Seen(top, x, odds, top != y, lost, logits.shape[1])

    def look_at(part: slice) -> tuple[IntArray, Float64, Float64, Float64]:
        rows = look(logits[part], float(refined.beta), top_class(logits[part], prefer))
        (margin, x), top = refine(refined, rows), rows.top
        return top, x, top_odds(margin, top), np.asarray(margin[top != y[part]], dtype=np.float64)

    parts = each(look_at, row_blocks(logits.shape, 4 * _CACHED), events=logits.size)
    top, x, odds, margin = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Seen(top, x, odds, top != y, margin, logits.shape[1])


def fit_events(refined: Refined, seen: Seen, y: IntArray, weight: Float64, *, classes: bool) -> Model:
    """Fit stage 2 on rows that stage 1 has seen; stage 3's λ is 0 and can be replaced afterwards.

    >>> z, y = np.array([[0.0, 2.0]] * 40), np.array([1, 1, 1, 0] * 10)
    >>> from hcal.calibrators.h.refine import fit_refined
    >>> stage = fit_refined(z, y, np.ones(40))[0]
    >>> model = fit_events(stage, see(stage, z, y), y, np.ones(40), classes=True)
    >>> predict_model(model, z[:1]).round(2)
    array([[0.25, 0.75]])
    """
    hit = (~seen.lost).astype(np.float64)
    k = seen.n_classes
    curve = fit_curve(seen.odds, seen.x, seen.top, hit, weight, k, classes=classes)
    odds = curve(seen.odds, seen.x, seen.top)
    final = fit_curve(odds, seen.x[:, :0], seen.top, hit, weight, k, classes=False)
    lost = seen.lost
    rest = fit_rest(seen.margin, seen.top[lost], y[lost], weight[lost], float(weight.sum()), classes=classes)
    return Model(refined, curve, final, rest, 0.0)


_PARTS: dict[str, Any] = {"refined": Refined, "curve": Curve, "final": Curve, "rest": Rest}
#: Parts that models of version 0.1 do not have.
_POOLED: dict[str, Any] = {"blend": Blend, "last": Curve}


def to_state(model: Model) -> dict[str, NDArray[Any]]:
    """Return a model as the arrays of a calibrator's state."""
    parts = [*_PARTS, *(part for part in _POOLED if getattr(model, part) is not None)]
    state = {
        f"{part}.{key}": np.asarray(value, dtype=np.float64)
        for part in parts
        for key, value in getattr(model, part)._asdict().items()
    }
    state["lift"] = np.array(np.nan if model.lift is None else model.lift)
    return state


def from_state(state: Mapping[str, NDArray[Any]]) -> Model:
    """Return the model of a state."""
    known = {**_PARTS, **(_POOLED if "blend.events" in state else {})}
    parts = {
        part: kind(**{key: state[f"{part}.{key}"] for key in kind._fields}) for part, kind in known.items()
    }
    lift = float(state["lift"])
    return Model(**parts, lift=None if np.isnan(lift) else lift)


#: The models of the last states, each with the arrays that name it: while held, nobody else gets their ids.
_MODELS: dict[tuple[Any, ...], tuple[list[NDArray[Any]], Model]] = {}
_MOST_MODELS = 8


def model_of(state: Mapping[str, NDArray[Any]]) -> Model:
    """Return :func:`from_state`, the same model as long as the state holds the same arrays."""
    key = (*state, *map(id, state.values()))
    found = _MODELS.get(key)
    if found is None:
        if len(_MODELS) >= _MOST_MODELS:
            _MODELS.clear()
        found = _MODELS[key] = list(state.values()), from_state(state)
    return found[1]
