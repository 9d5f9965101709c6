"""What stands between a model and its compiled prediction: the form of the parameters, and threads."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hcal.calibrators.h._compiled import CELL, Stages, predict_rows
from hcal.calibrators.h.blend import FLOOR, no_blend
from hcal.calibrators.h.keep import JUST_BELOW
from hcal.calibrators.h.model import Model
from hcal.calibrators.h.refine import KNOTS
from hcal.calibrators.h.rows import FAR, N_FEATURES, TINY, Float64, narrowed
from hcal.runtime.jit import is_ready
from hcal.numerics import FloatArray
from hcal.runtime.threads import run_parts, split

#: What a row costs beside its classes, in classes: at ten of them most of the work.
_ROW = 20


def predict_fused(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of finite logits (N, K) into ``out``."""
    if out.shape != logits.shape or out.dtype != logits.dtype:
        raise ValueError(
            f"out has shape {out.shape} and type {out.dtype}, logits {logits.shape}, {logits.dtype}"
        )
    logits = _plain(logits)
    form = prepared(model, logits.dtype, logits.shape[1])
    parts = split(len(logits), grain=logits.shape[1] + _ROW)
    run_parts(lambda a, b: predict_rows(logits, form, a, b, out), parts)


def _plain(array: Any) -> Any:
    """Return an array of the one kind that the kernel is compiled for: another would take as long again.

    Memory that may not be written to (a file mapped into it, polars) is another kind, for numba.
    """
    return np.require(array, requirements=["C", "W", "E"])


#: The forms of the last models, each with the model that names it: while held, nobody else gets its id.
_PREPARED: dict[tuple[Any, ...], tuple[Model, Stages]] = {}
_MOST_PREPARED = 8


def prepared(model: Model, dtype: Any, n_classes: int) -> Stages:
    """Return a model in the kernel's form, checked and made once: small batches cost less than that."""
    key = (id(model), np.dtype(dtype), n_classes)
    found = _PREPARED.get(key)
    if found is None:
        _check_shapes(model, n_classes)
        if len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.clear()
        found = _PREPARED[key] = model, stages(model, dtype)
    return found[1]


#: Events that a process predicts by numpy before it compiles a kernel that is not on disk: numpy has then
#: cost about two seconds. See docs/decisions/149-numpy-until-ready.md.
PATIENCE = 1 << 24


class _Waited:
    """How many events this process has predicted while the kernel was not there."""

    events = 0
    #: Types of logits whose kernel is there; to ask numba costs half a millisecond.
    over: ClassVar[set[Any]] = set()


def is_worth_it(model: Model, logits: FloatArray) -> bool:
    """Return whether the kernel is at hand for such logits, or has been missed long enough to be compiled."""
    kind = logits.dtype
    if kind in _Waited.over:
        return True
    one = _plain(logits[:1])
    found = is_ready(predict_rows, one, stages(model, logits.dtype), 0, 0, np.empty_like(one))
    if found or _Waited.events + logits.size > PATIENCE:
        _Waited.over.add(kind)
        return True
    _Waited.events += logits.size
    return False


def _check_shapes(model: Model, k: int) -> None:
    """Refuse what the kernel would read past its end: it has no checks of its own."""
    refined, curve, final = model.refined, model.curve, model.final
    expected = {
        "refined.values": (refined.values, len(KNOTS)),
        **{f"refined.{f}": (getattr(refined, f), N_FEATURES) for f in refined._fields[2:]},
        "curve.scaler": (curve.scaler, 4),
        "curve.weights": (curve.weights, 2 + len(curve.knots) + N_FEATURES),
        "curve.classes": (curve.classes, k),
        "final.scaler": (final.scaler, 4),
        "final.weights": (final.weights, 2 + len(final.knots)),
        "rest.bias": (model.rest.bias, k),
    }
    if model.blend is not None and model.last is not None:
        last = model.last
        expected |= {
            "blend.matrix": (model.blend.matrix.reshape(-1), k * k if model.blend.matrix.size else 0),
            "blend.bias": (model.blend.bias, k),
            "blend.prefer": (model.blend.prefer, k),
            "last.scaler": (last.scaler, 4),
            "last.weights": (last.weights, 2 + len(last.knots)),
            "last.classes": (last.classes, k),
        }
    for name, (array, size) in expected.items():
        if array.shape != (size,):
            raise ValueError(f"{name!r} has shape {array.shape}, {k} classes need ({size},)")


#: Where the cells of g begin, the segment of each, and how far into that it begins.
_EDGES = np.arange(0.0, KNOTS[-1] + CELL, CELL)
_SEGMENT = np.minimum(np.searchsorted(KNOTS, _EDGES, side="right") - 1, len(KNOTS) - 2)
_INTO, _CELLS = (_EDGES - KNOTS[_SEGMENT]) / CELL, np.diff(KNOTS) / CELL


def _cells(values: Float64, dtype: Any) -> tuple[FloatArray, FloatArray]:
    """Return g at the start of every cell, and its rise over it, rounded to end no higher than the next."""
    rise = np.diff(values) / _CELLS
    start = np.maximum.accumulate((values[_SEGMENT] + rise[_SEGMENT] * _INTO).astype(dtype))
    slope = rise[_SEGMENT].astype(dtype)
    inner = slope[:-1]
    np.minimum(inner, np.diff(start), out=inner)
    while (over := start[:-1] + inner > start[1:]).any():
        inner[over] = np.nextafter(inner[over], slope.dtype.type(0))
    return start, slope


def stages(model: Model, dtype: Any) -> Stages:
    """Return a model in the kernel's form, for logits of a float width."""
    scalar = np.dtype(dtype).type
    start, slope = _cells(model.refined.values, dtype)
    curve, final = model.curve, model.final
    blend = no_blend(len(curve.classes)) if model.blend is None else model.blend
    last = final if model.last is None else model.last
    form = Stages(
        start=start,
        slope=slope,
        bias=model.rest.bias.astype(dtype),
        beta=narrowed(float(model.refined.beta), dtype),
        kappa=scalar(model.rest.kappa),
        far=scalar(FAR),
        scaler=np.array(model.refined.scaler()),
        weights=model.refined.weights,
        knots=curve.knots,
        odds_scaler=curve.scaler,
        odds_weights=curve.weights,
        classes=curve.classes,
        final_knots=final.knots,
        final_scaler=final.scaler,
        final_weights=final.weights,
        floor=TINY,
        tiny=float(np.finfo(dtype).tiny),
        lift=-1.0 if model.lift is None else float(model.lift),
        just_below=JUST_BELOW,
        pooled=model.blend is not None,
        events=float(blend.events),
        refined=scalar(blend.refined),
        cap=scalar(blend.cap),
        matrix=np.ascontiguousarray(blend.matrix, dtype=dtype),
        scale=scalar(blend.scale),
        offset=blend.bias.astype(dtype),
        prefer=blend.prefer,
        last_knots=last.knots,
        last_scaler=last.scaler,
        last_weights=last.weights,
        last_classes=last.classes,
        lowest=scalar(-FLOOR),
    )
    return Stages._make(_plain(v) if isinstance(v, np.ndarray) else v for v in form)


__all__ = ["PATIENCE", "is_worth_it", "predict_fused", "predict_rows", "stages"]
