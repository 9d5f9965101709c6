"""What stands between a model and its compiled prediction: the form of the parameters, and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.calibrators._default._compiled import CELL, Stages, predict_rows
from hcal.calibrators._default.keep import JUST_BELOW
from hcal.calibrators._default.refine import KNOTS
from hcal.calibrators._default.rows import FAR, N_FEATURES, TINY, narrowed
from hcal.numerics import FloatArray
from hcal.runtime.threads import run_parts, split

if TYPE_CHECKING:
    from hcal.calibrators._default.model import Model


def predict_fused(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of finite, contiguous logits (N, K) into ``out``."""
    _check_shapes(model, logits, out)
    form = stages(model, logits.dtype)
    parts = split(len(logits), grain=logits.shape[1])
    run_parts(lambda a, b: predict_rows(logits, form, a, b, out), parts)


def _check_shapes(model: Model, logits: FloatArray, out: FloatArray) -> None:
    """Refuse what the kernel would read or write past its end: it has no checks of its own."""
    k, refined, curve, final = logits.shape[1], model.refined, model.curve, model.final
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
    for name, (array, size) in expected.items():
        if array.shape != (size,):
            raise ValueError(f"{name!r} has shape {array.shape}, {k} classes need ({size},)")
    if out.shape != logits.shape or out.dtype != logits.dtype:
        raise ValueError(
            f"out has shape {out.shape} and type {out.dtype}, logits {logits.shape}, {logits.dtype}"
        )


def stages(model: Model, dtype: Any) -> Stages:
    """Return a model in the kernel's form, for logits of a float width."""
    edges = np.arange(0.0, KNOTS[-1] + CELL, CELL)
    segment = np.minimum(np.searchsorted(KNOTS, edges, side="right") - 1, len(KNOTS) - 2)
    values, scalar = model.refined.values, np.dtype(dtype).type
    slope = (np.diff(values) / np.diff(KNOTS))[segment]
    curve, final = model.curve, model.final
    return Stages(
        intercept=(values[segment] - slope * KNOTS[segment]).astype(dtype),
        slope=slope.astype(dtype),
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
        most_log_scale=model.refined.most_log_scale(),
        floor=TINY,
        tiny=float(np.finfo(dtype).tiny),
        lift=-1.0 if model.lift is None else float(model.lift),
        just_below=JUST_BELOW,
    )
