"""The default protocol: ONE calibrator for top-label, class-wise, canonical and proper scores at once.

Three stages (refine, events, keep), each a module here, and a judge that compares what the stages add, out of
fold, by a criterion that holds a proper score beside the windowed h-errors. docs/default.md tells what each
part bought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hcal.calibrators.base import Fitted, Preserves
from hcal.calibrators.h.graph import graph_model
from hcal.calibrators.h.judge import Verdict, judge, pick
from hcal.calibrators.h.model import (
    Model,
    fit_events,
    fit_refined,
    from_state,
    identity_refined,
    plain_model,
    predict_into,
    predict_model,
    predict_plain,
    see,
    to_state,
)
from hcal.calibrators.h.refine import Refined
from hcal.calibrators.h.rows import Float64
from hcal.folds import kfold
from hcal.numerics import FloatArray, IntArray
from hcal.objective.threads import each
from hcal.ops import Ops
from hcal.solvers.progress import progress
from hcal.solvers.temperature import solve_temperature

__all__ = ["CANDIDATES", "fit_candidates", "fit_default", "graph_default", "predict_default"]

#: What may be chosen under each promise, the richest first: of equals, the first wins.
CANDIDATES: dict[Preserves, list[str]] = {
    "accuracy": ["classes-0", "classes-0.5", "classes-1", "refined", "temperature", "identity"],
    "order": ["events", "refined", "temperature", "identity"],
    None: ["free", "classes-0", "refined", "temperature", "identity"],
}
_FOLDS = 5
#: Candidates are judged on at most this many events (rows × classes); the chosen one is fitted on all rows.
_JUDGED_EVENTS = 5_000_000
#: From this many rows on, stage 1 (about twenty numbers) is fitted once and shared by the folds.
_SHARED_ROWS = 3000


def fit_candidates(
    logits: FloatArray, y: IntArray, weight: Float64, *, classes: bool = True, refined: Refined | None = None
) -> dict[str, Model]:
    """Fit every candidate on the same rows.

    Parameters
    ----------
    logits : array of shape (N, K)
    y, weight : arrays of shape (N,)
    classes : bool
        Whether single classes may be told apart; if not, the order of all classes is kept.
    refined : Refined, optional
        A first stage that is already fitted.

    Returns
    -------
    dict of str to Model

    Examples
    --------
    >>> z, y = np.array([[0.0, 2.0]] * 40), np.array([1, 1, 1, 0] * 10)
    >>> sorted(fit_candidates(z, y, np.ones(40)))[:3]
    ['classes-0', 'classes-0.5', 'classes-1']
    """
    k = logits.shape[1]
    beta = float(refined.beta) if refined is not None else solve_temperature(logits, y, weight).beta
    refined = fit_refined(logits, y, weight)[0] if refined is None else refined
    seen = see(refined, logits, y)
    events = fit_events(refined, seen, y, weight, classes=classes)
    richest = {"events": events}
    if classes:
        richest = {f"classes-{lift:g}": events._replace(lift=lift) for lift in (0.0, 0.5, 1.0)}
        richest["free"] = events._replace(lift=None)
    return {
        **richest,
        "refined": plain_model(refined, k),
        "temperature": plain_model(identity_refined(beta), k),
        "identity": plain_model(identity_refined(1.0), k),
    }


def out_of_fold(
    logits: FloatArray,
    y: IntArray,
    weight: Float64,
    seed: int,
    *,
    classes: bool = True,
    tick: Callable[[int], None] = lambda steps: None,
) -> tuple[dict[str, Verdict], dict[str, Float64]]:
    """Judge every candidate on rows that it was not fitted on; ``tick`` hears of every fold.

    Returns
    -------
    dict of str to Verdict, dict of str to array of shape (N,)
        The verdicts, and whether each candidate's argmax was right on each judged row.

    Examples
    --------
    >>> z, y = np.array([[0.0, 2.0]] * 40), np.array([1, 1, 1, 0] * 10)
    >>> out_of_fold(z, y, np.ones(40), 0)[0]["temperature"].accuracy
    0.75
    """
    rows = _judged_rows(len(y), logits.shape[1], seed)
    logits, y, weight = logits[rows], y[rows], weight[rows]
    shared = fit_refined(logits, y, weight)[0] if len(y) >= _SHARED_ROWS else None

    def one_fold(fold: tuple[IntArray, IntArray]) -> dict[str, FloatArray]:
        rows, test = fold
        models = fit_candidates(logits[rows], y[rows], weight[rows], classes=classes, refined=shared)
        found = {name: predict_model(model, logits[test]) for name, model in models.items()}
        tick(1)
        return found

    folds = list(kfold(len(y), min(_FOLDS, len(y)), seed=seed))
    held: dict[str, Float64] = {}
    for (_, test_rows), found in zip(folds, each(one_fold, folds, events=logits.size), strict=True):
        for name, probs in found.items():
            held.setdefault(name, np.empty(logits.shape))[test_rows] = probs
    judged = each(lambda probs: judge(probs, y, weight), list(held.values()), events=held["identity"].size)
    verdicts = dict(zip(held, judged, strict=True))
    hits = {name: (probs.argmax(axis=1) == y).astype(np.float64) for name, probs in held.items()}
    return verdicts, hits


def _judged_rows(n: int, k: int, seed: int) -> IntArray:
    limit = max(_JUDGED_EVENTS // k, 1)
    return np.arange(n) if n <= limit else np.sort(np.random.default_rng(seed).permutation(n)[:limit])


def fit_default(
    logits: FloatArray,
    y: IntArray,
    sample_weight: NDArray[np.float64] | None,
    *,
    preserve: Preserves,
    random_state: int,
    verbose: bool,
) -> Fitted:
    """Judge the candidates out of fold, then fit the best on all rows."""
    logits, y, weight = _weighted(logits, y, sample_weight)
    # The threads here are ours; BLAS would start as many in each.
    with (
        threadpool_limits(1, user_api="blas"),
        progress("h-calibration", _FOLDS + 2, verbose=verbose) as advance,
    ):
        chosen, info = _choose(logits, y, weight, preserve, random_state, advance)
        advance(1)
        model, converged, message = _fit_one(chosen, logits, y, weight)
        advance(1)
    return Fitted(to_state(model), converged, message, {"protocol": "default", "map": chosen, **info})


def _choose(
    logits: FloatArray,
    y: IntArray,
    weight: Float64,
    preserve: Preserves,
    seed: int,
    tick: Callable[[int], None],
) -> tuple[str, dict[str, Any]]:
    """Return the name of the best candidate, and what was seen of all."""
    if len(y) < 2 * _FOLDS:
        return "temperature", {}
    allowed = CANDIDATES[preserve]
    verdicts, hits = out_of_fold(logits, y, weight, seed, classes=preserve != "order", tick=tick)
    chosen = pick(verdicts, "identity", allowed)
    info = _facts(verdicts, allowed, chosen)
    if preserve == "accuracy":
        info["argmax_advice"] = _advice(verdicts, hits, chosen)
    return chosen, info


def _weighted(
    logits: FloatArray, y: IntArray, weight: NDArray[np.float64] | None
) -> tuple[FloatArray, IntArray, Float64]:
    """Return the rows that count, with their weights."""
    if weight is None:
        return logits, y, np.ones(len(y))
    keep = weight > 0
    return logits[keep], y[keep], weight[keep]


def _fit_one(name: str, logits: FloatArray, y: IntArray, weight: Float64) -> tuple[Model, bool, str]:
    k = logits.shape[1]
    if name == "identity":
        return plain_model(identity_refined(1.0), k), True, ""
    if name == "temperature":
        solved = solve_temperature(logits, y, weight)
        return plain_model(identity_refined(solved.beta), k), solved.converged, solved.message
    refined, converged, message = fit_refined(logits, y, weight)
    if name == "refined":
        return plain_model(refined, k), converged, message
    model = fit_events(refined, see(refined, logits, y), y, weight, classes=name != "events")
    lift = (
        {"free": None, "events": 0.0}[name] if name in ("free", "events") else float(name.partition("-")[2])
    )
    return model._replace(lift=lift), converged, message


def _facts(verdicts: dict[str, Verdict], allowed: list[str], chosen: str) -> dict[str, Any]:
    base = verdicts["identity"]
    return {
        "candidates": {name: verdicts[name].against(base) for name in allowed},
        "held_out": {name: verdicts[name]._asdict() for name in ("identity", chosen)},
    }


def _advice(verdicts: dict[str, Verdict], hits: dict[str, Float64], chosen: str) -> dict[str, Any]:
    """Say whether letting the argmax change would raise accuracy and lower the error, out of fold."""
    free, kept, base = verdicts["free"], verdicts[chosen], verdicts["identity"]
    won = float((hits["free"] > hits[chosen]).sum())
    lost = float((hits["free"] < hits[chosen]).sum())
    # McNemar: under "no difference" the discordant rows are a fair coin.
    clear = won - lost > 2.0 * np.sqrt(max(won + lost, 1.0))
    better = free.against(base) < kept.against(base)
    advice = {
        "recommended": bool(clear and better),
        "accuracy": {"kept": kept.accuracy, "free": free.accuracy},
        "criterion": {"kept": kept.against(base), "free": free.against(base)},
    }
    advice["words"] = (
        f"Letting the argmax change would raise held-out accuracy from {kept.accuracy:.4f} to "
        f"{free.accuracy:.4f} and lower the error from {kept.against(base):.3f} to "
        f"{free.against(base):.3f} of the uncalibrated one: "
        "consider preserve=None."
        if advice["recommended"]
        else "Keeping the argmax costs nothing that held-out rows can show."
    )
    return advice


def predict_default(
    state: Mapping[str, NDArray[Any]], logits: FloatArray, preserve: Preserves, out: FloatArray
) -> None:
    """Write the probabilities of a fitted state into ``out``."""
    # Compiled exponentials are good to 2 ulp and may invert two neighbours; numpy's segments may not.
    predict = predict_plain if preserve == "order" else predict_into
    predict(from_state(state), logits, out)


def graph_default(state: Mapping[str, NDArray[Any]], ops: Ops, x: Any) -> Any:
    """Return what :func:`predict_default` does, in the operations of :mod:`hcal.ops`."""
    return graph_model(from_state(state), ops, x)
