"""The default protocol: candidates are fitted, pooled by what they said out of fold, and the promise is kept.

docs/default.md tells what each part bought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcal.calibrators.base import Fitted, Preserves
from hcal.calibrators.h.binary import fit_two, is_table, predict_two
from hcal.calibrators.h.blend import split_top, top_class
from hcal.calibrators.h.candidates import (
    Candidates,
    Setting,
    blend,
    fit_candidates,
    new_setting,
    scores,
)
from hcal.calibrators.h.events import Curve, fit_curve
from hcal.calibrators.h.graph import graph_model, graph_two
from hcal.calibrators.h.judge import judge
from hcal.calibrators.h.keep import join
from hcal.calibrators.h.model import (
    Model,
    from_state,
    kernel_at_hand,
    model_of,
    no_curve,
    predict_into,
    to_state,
)
from hcal.calibrators.h.pool import Caution, doubt, log_linear_weights
from hcal.calibrators.h.refine import fit_refined
from hcal.calibrators.h.rows import Float64, few
from hcal.calibrators.h.sentences import one_class
from hcal.calibrators.row_order import are_discrete, deal
from hcal.runtime.device_rows import DeviceRows, Logits, taken
from hcal.runtime.jit import compiled
from hcal.numerics import FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.progress import progress
from hcal.runtime.threads import each, one_blas_thread

_FOLDS = 5
#: Candidates are fitted out of fold on at most this many events (rows × classes), and weighed on so many.
_HELD_EVENTS, _WEIGHED_EVENTS = 5_000_000, 1_000_000
#: From this many rows on, stage 1 (about twenty numbers) is fitted once and shared by the folds.
_SHARED_ROWS = 3000
#: Rows below which the curve of the pooled top-label event is drawn to none.
_ENOUGH = 5000.0
#: What leaning on temperature scaling is worth a row, where rows or errors are few.
_CAUTION_RIDGE = 0.25
#: How the argmax may be kept, the first of equals: see :mod:`hcal.calibrators.h.keep`.
LIFTS = (0.0, 0.5, 1.0)
#: Criteria that differ by no more are equal.
_EQUAL = 0.02


class Held(NamedTuple):
    """What candidates said of rows that they were not fitted on."""

    logits: Logits  # (N, K)
    y: IntArray
    weight: Float64
    scores: Any  # (J, N, K), an array or a tensor


def out_of_fold(
    logits: Logits,
    y: IntArray,
    weight: Float64,
    setting: Setting,
    tick: Callable[[int], None] = lambda steps: None,
) -> Held:
    """Fit every candidate without each fold and let it score the fold; ``tick`` hears of every fold.

    Rows come as :func:`hcal.calibrators.row_order.arrange` leaves them: "the first" are a sample.
    """
    limit = max(_HELD_EVENTS // logits.shape[1], 1)
    logits, y, weight = taken(logits, slice(limit)), y[:limit], weight[:limit]
    shared = fit_refined(logits, y, weight)[0] if len(y) >= _SHARED_ROWS else None

    def one_fold(held: Float64) -> tuple[IntArray, Float64]:
        left = weight - held
        rows, out = np.flatnonzero(left > 1e-9 * weight), np.flatnonzero(held)
        fitted = fit_candidates(taken(logits, rows), y[rows], left[rows], setting, shared)
        found = scores(fitted, taken(logits, out))
        tick(1)
        return out, found

    folds = deal(y, weight, _FOLDS, discrete=are_discrete(logits, y, weight))
    found = each(one_fold, list(folds), events=logits.size)
    rows = np.concatenate([out for out, _ in found])
    mass = np.concatenate([held[out] for held, (out, _) in zip(folds, found, strict=True)])
    return Held(taken(logits, rows), y[rows], mass, _side_by_side([s for _, s in found]))


def _side_by_side(scores: list[Any]) -> Any:
    """Return scores (J, ·, K) of folds as one array or tensor (J, N, K)."""
    if isinstance(scores[0], np.ndarray):
        return np.concatenate(scores, axis=1)
    import torch

    return torch.cat(scores, dim=1)


class Pool(NamedTuple):
    """The weights of the candidates (J,), the pooled top-label event's curve, and how the argmax is kept."""

    share: Float64
    last: Curve
    lift: float | None


def pool(held: Held, setting: Setting, *, free: bool) -> tuple[Pool, dict[str, Any]]:
    """Weigh the candidates, correct the pooled top-label event, and choose how to keep the argmax.

    If ``free``, it may change. Beside the pool: what was seen, for the user.
    """
    wrong = float(held.weight @ (top_class(held.logits, setting.prefer) != held.y))
    share = _weigh(held, setting, wrong, lean=not free)
    pooled, likeliest, identity = _average(share, held)
    top = likeliest if free else top_class(held.logits, setting.prefer)
    odds, rest = split_top(pooled, top)
    hit = (top == held.y).astype(np.float64)
    none, k = np.zeros((len(top), 0)), held.logits.shape[1]
    told_apart = setting.classes and not free
    last = _faded(
        fit_curve(odds, none, top, hit, held.weight, k, classes=told_apart, enough=_ENOUGH),
        1.0 / few(float(held.weight.sum()), wrong),
    )
    q = expit(last(odds, none, top))
    base = judge(identity, held.y, held.weight)
    lifts: tuple[float | None, ...] = (None,) if free else LIFTS
    verdicts = each(
        lambda lift: judge(join(q, rest, top, lift), held.y, held.weight),
        list(lifts),
        events=len(top) * k,
    )
    criteria = [v.against(base) for v in verdicts]
    best = next(i for i, value in enumerate(criteria) if value <= min(criteria) + _EQUAL)
    info = {
        "candidates": dict(zip(setting.names, share.tolist(), strict=False)),
        "lift": lifts[best],
        "criterion": dict(zip(map(str, lifts), criteria, strict=True)),
        "held_out": {"identity": base._asdict(), "pool": verdicts[best]._asdict()},
    }
    if not free and setting.classes:
        info["argmax_advice"] = _advice(likeliest == held.y, hit > 0, held.weight)
    return Pool(share, last, lifts[best]), info


def _average(share: Float64, held: Held) -> tuple[Any, IntArray, Any]:
    """Return the pooled scores (N, K), the likeliest class by them (N,), and the softmax of the logits."""
    if isinstance(held.logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        return _tensors.average(share, held.scores, held.logits)
    pooled = np.tensordot(share, held.scores, 1)
    return pooled, pooled.argmax(axis=1), softmax(held.logits)


def _faded(curve: Curve, share: float) -> Curve:
    """Return a share of the curve's correction; few rows fit it to chance."""
    return curve._replace(weights=share * curve.weights, classes=share * curve.classes)


def _weigh(held: Held, setting: Setting, wrong: float, *, lean: bool) -> Float64:
    """Weigh the candidates; where the argmax is kept, events are leant on: they are made for it.

    Where rows or errors (``wrong``) are few, all lean on temperature scaling.
    """
    little = doubt(float(held.weight.sum()), wrong)
    caution = Caution(setting.names.index("temperature"), little, _CAUTION_RIDGE, 0.0)
    step = -(-held.logits.size // _WEIGHED_EVENTS)
    part = held.scores[:, ::step]
    part = np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part.contiguous()
    return log_linear_weights(part, held.y[::step], held.weight[::step], lean=lean, caution=caution)


def _advice(free: NDArray[np.bool_], kept: NDArray[np.bool_], weight: Float64) -> dict[str, Any]:
    """Say whether letting the argmax change would raise accuracy, by rows out of fold."""
    won, lost = (float(weight @ (a & ~b)) for a, b in ((free, kept), (kept, free)))
    # McNemar: under "no difference" the discordant rows are a fair coin; three deviations of it.
    clear = won - lost > 3.0 * np.sqrt(float(weight**2 @ (free != kept)) + 1.0)
    before, after = (float(np.average(hits, weights=weight)) for hits in (kept, free))
    words = (
        f"keeping the argmax costs accuracy: held-out rows give {after:.4f} where it may change and "
        f"{before:.4f} where it is kept; preserve=None lets it change"
        if clear
        else "Keeping the argmax costs no accuracy that held-out rows can show."
    )
    return {"recommended": bool(clear), "accuracy": {"kept": before, "free": after}, "words": words}


def fit_default(
    logits: Logits,
    y: IntArray,
    sample_weight: NDArray[np.float64] | None,
    *,
    preserve: Preserves,
    verbose: bool,
) -> Fitted:
    """Pool the candidates out of fold, then fit each on all rows."""
    weight = counted(logits, y, sample_weight)
    if not isinstance(logits, DeviceRows) and logits.shape[1] == 2:
        folds = (
            deal(y, weight, _FOLDS, discrete=are_discrete(logits, y, weight)) if enough_rows(weight) else None
        )
        return fit_two(logits, y, weight, folds, crossing=preserve is not None)
    # The threads here are ours; BLAS would start as many in each.
    with one_blas_thread(), progress("h-calibration", _FOLDS + 2, verbose=verbose) as advance:
        return _fit_many(logits, y, weight, preserve, advance)


def _fit_many(
    logits: Logits, y: IntArray, weight: Float64, preserve: Preserves, advance: Callable[[int], None]
) -> Fitted:
    k = logits.shape[1]
    setting = new_setting(logits, y, weight, classes=preserve != "order")
    if enough_rows(weight):
        held = out_of_fold(logits, y, weight, setting, advance)
        chosen, info = pool(held, setting, free=preserve is None)
    else:
        temperature = np.array([float(name == "temperature") for name in setting.names])
        chosen = Pool(temperature, no_curve(0, k), None if preserve is None else 0.0)
        info = {"candidates": dict(zip(setting.names, temperature.tolist(), strict=True))}
    mass = np.bincount(y, weights=weight, minlength=k)
    advice = info.get("argmax_advice", {"recommended": False})
    info["warnings"] = [*one_class(mass), *([advice["words"]] if advice["recommended"] else [])]
    info["absent_classes"] = np.flatnonzero(mass == 0).tolist()
    advance(1)
    refined, converged, message = fit_refined(logits, y, weight)
    model = assemble(fit_candidates(logits, y, weight, setting, refined), chosen)
    advance(1)
    return Fitted(to_state(model), converged, message, {"protocol": "default", "map": "pool", **info})


def assemble(fitted: Candidates, chosen: Pool) -> Model:
    """Return the model of candidates and their pool."""
    return fitted.model._replace(blend=blend(fitted, chosen.share), last=chosen.last, lift=chosen.lift)


def enough_rows(weight: Float64) -> bool:
    """Return whether there are rows for folds.

    >>> enough_rows(np.ones(9)), enough_rows(np.ones(10))
    (False, True)
    """
    return len(weight) >= _FOLDS and float(weight.sum()) >= 2 * _FOLDS


def counted(logits: Logits, y: IntArray, weight: NDArray[np.float64] | None) -> Float64:
    """Return weights that sum to the number of rows that tell something new.

    A row that weighs ten, or comes ten times, is one observation and not ten, unless scores are discrete and
    come again by themselves. Weights that sum to less than that stay as they are: they count rows.
    """
    if weight is None:
        return np.ones(len(y))
    total = float(weight.sum())
    if are_discrete(logits, y, weight):
        return weight
    rows = total**2 / float(weight @ weight)
    return np.asarray(weight * min(1.0, rows / total))


def predict_default(state: Mapping[str, NDArray[Any]], logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of a fitted state into ``out``."""
    if is_table(state):
        predict_two(state, logits, out)
    else:
        predict_into(model_of(state), logits, out)


def is_fused(state: Mapping[str, NDArray[Any]], logits: FloatArray) -> bool:
    """Return whether one compiled pass predicts these logits, the promise kept."""
    return compiled() if is_table(state) else kernel_at_hand(model_of(state), logits)


def graph_default(state: Mapping[str, NDArray[Any]], ops: Ops, x: Any) -> Any:
    """Return what :func:`predict_default` does, in the operations of :mod:`hcal.runtime.ops`."""
    return graph_two(state, ops, x) if is_table(state) else graph_model(from_state(state), ops, x)
