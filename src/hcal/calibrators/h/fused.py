"""What stands between a model and its compiled prediction: the form of the parameters, and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.calibrators.h._compiled import CELL, Stages, predict_rows
from hcal.calibrators.h.blend import FLOOR, no_blend
from hcal.calibrators.h.keep import JUST_BELOW
from hcal.calibrators.h.refine import KNOTS
from hcal.calibrators.h.rows import FAR, TINY
from hcal.numerics import FloatArray
from hcal.objective.threads import run_parts, split

if TYPE_CHECKING:
    from hcal.calibrators.h.model import Model


def predict_fused(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of finite, contiguous logits (N, K) into ``out``."""
    form = stages(model, logits.dtype)
    parts = split(len(logits), grain=logits.shape[1])
    run_parts(lambda a, b: predict_rows(logits, form, a, b, out), parts)


def stages(model: Model, dtype: Any) -> Stages:
    """Return a model in the kernel's form, for logits of a float width."""
    edges = np.arange(0.0, KNOTS[-1] + CELL, CELL)
    segment = np.minimum(np.searchsorted(KNOTS, edges, side="right") - 1, len(KNOTS) - 2)
    values, scalar = model.refined.values, np.dtype(dtype).type
    slope = (np.diff(values) / np.diff(KNOTS))[segment]
    curve, final = model.curve, model.final
    blend = no_blend(len(curve.classes)) if model.blend is None else model.blend
    last = final if model.last is None else model.last
    return Stages(
        intercept=(values[segment] - slope * KNOTS[segment]).astype(dtype),
        slope=slope.astype(dtype),
        bias=model.rest.bias.astype(dtype),
        beta=scalar(model.refined.beta),
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
