"""How often do certificates and the monitor break their promise, where the truth is known?

Every row is one statement in one world: how many sets were drawn, in how many the statement was false, and how many are
allowed at a level of 95 %. The worlds of ``studies/worlds.py`` are used, two of them new: hidden
groups whose errors cancel, and saturated probabilities under label noise.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import hcal
from hcal.certificates import certify_event
from hcal.certificates.bounds import certify_gain
from studies.worlds import WORLDS, draw_labels, holds, smooth_error, truth_table

FAILURE = 0.05
N, K = 1000, 3
CALIBRATED = ("T=1", "hidden groups")  # given the predictions and all rows before


def certificates(world: str, number: int) -> dict[str, bool]:
    """Return which statements about one draw of a world are false."""
    rng = np.random.default_rng([list(WORLDS).index(world), number])
    f, q = WORLDS[world](N, K, rng)
    y = draw_labels(q, rng)
    top = f.argmax(axis=1)
    rows = np.arange(N)
    pairs = [(f[rows, top], top == y, q[rows, top])]
    pairs += [(f[:, k], y == k, q[:, k]) for k in range(K)]
    false = Counter[str]()
    for i, (p, c, truth) in enumerate(pairs):
        certificate = certify_event("event", p, c, failure=FAILURE / len(pairs))
        table = truth_table(p, truth)
        windows, curve = holds(certificate, table)
        false["windows"] += not windows
        false["curve"] += not curve
        if i == 0:
            false["smooth bound"] += certificate.bound < smooth_error(table, 12) - 1e-9
    return {name: bool(count) for name, count in false.items()}


def monotone(world: str, number: int) -> dict[str, bool]:
    """Return whether the monotone band of P(class 1) of two classes is false, where the truth rises with it."""
    rng = np.random.default_rng([400 + list(WORLDS).index(world), number])
    f, q = WORLDS[world](N, 2, rng)
    table = truth_table(f[:, 1], q[:, 1])
    rate = table.happened / table.count
    by_prediction = np.lexsort((q[:, 1], f[:, 1]))
    truth = q[by_prediction, 1]
    rate_of_row = np.repeat(rate, table.count.astype(int))
    if (np.diff(rate) < -1e-12).any() or not np.allclose(rate_of_row, truth):
        return {}
    y = draw_labels(q, rng)
    band = certify_event("class 1", f[:, 1], y == 1, failure=FAILURE).monotone
    covered = (band.low <= rate + 1e-9) & (rate <= band.high + 1e-9)
    error = float(np.abs(rate - table.low) @ table.count / table.n)
    return {"monotone band": not covered.all() or band.error < error - 1e-9}


def monitor(world: str, number: int) -> dict[str, bool]:
    """Return whether a calibrated stream raises the alarm."""
    rng = np.random.default_rng([100 + list(WORLDS).index(world), number])
    f, q = WORLDS[world](2000, K, rng)
    watch = hcal.Monitor(confidence=1 - FAILURE).update(f, draw_labels(q, rng))
    return {"monitor": watch.alarm is not None or bool(watch.alarms)}


def gain(world: str, number: int, truth: dict[str, float]) -> dict[str, bool]:
    """Return whether the interval of the gain of a tempered predictor misses the population's."""

    def scores(n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
        f, q = WORLDS[world](n, K, rng)
        cooler = f**0.7
        return f, cooler / cooler.sum(axis=1, keepdims=True), q

    if world not in truth:  # expected over labels, from many rows
        f, g, q = scores(200_000, np.random.default_rng(1))
        loss_of_f = (f**2).sum(1) - 2 * (f * q).sum(1)
        loss_of_g = (g**2).sum(1) - 2 * (g * q).sum(1)
        truth[world] = float((loss_of_f - loss_of_g).mean())
    rng = np.random.default_rng([200 + list(WORLDS).index(world), number])
    f, g, q = scores(N, rng)
    onehot = np.eye(K)[draw_labels(q, rng)]
    loss_of_f = ((f - onehot) ** 2).sum(1)
    loss_of_g = ((g - onehot) ** 2).sum(1)
    certified = certify_gain(loss_of_f, loss_of_g, FAILURE, number)
    return {"gain": not certified.at_least <= truth[world] <= certified.at_most}


def out_of_fold(world: str, number: int) -> dict[str, bool]:
    """Return whether the out-of-fold certificate of a binning method is false, and what its own rows would say."""
    rng = np.random.default_rng([300 + list(WORLDS).index(world), number])
    f, q = WORLDS[world](400, 2, rng)
    y = draw_labels(q, rng)
    z = np.log(np.maximum(f, 1e-12))
    method = hcal.make_calibrator("hb", bins=100)
    certificate = hcal.certify(method, z, y, confidence=1 - FAILURE, out_of_fold=True)
    table = certificate.pooled.table
    order = np.random.default_rng(0).permutation(len(y))
    p = np.empty(len(y))
    for j in range(len(certificate.folds)):
        left = np.zeros(len(y), dtype=bool)
        left[order[j :: len(certificate.folds)]] = True
        fitted = method.fit(z[~left], y[~left])
        p[left] = fitted.predict_proba(z[left])[:, 1]
    assert table.n == len(p)
    low, high = certificate.overall
    gap = float((p - q[:, 1]).mean())
    error = smooth_error(truth_table(p, q[:, 1]), 12)
    on_fitted_rows = method.fit(z, y).predict_proba(z)[:, 1]
    on_own_rows = certify_event("class 1", on_fitted_rows, y == 1, failure=FAILURE)
    is_outside = not low - 1e-9 <= gap <= high + 1e-9
    hold_on_own_rows = holds(on_own_rows, truth_table(on_fitted_rows, q[:, 1]))
    return {
        "out-of-fold": is_outside or certificate.bound < error - 1e-9,
        "on its own rows (refused)": not all(hold_on_own_rows),
    }


def study(sets: int, worlds: tuple[str, ...] = tuple(WORLDS)) -> list[dict[str, Any]]:
    """Return a row for every statement and world."""
    truth: dict[str, float] = {}
    rows = []
    for world in worlds:
        drawn = Counter[str]()
        false = Counter[str]()
        for number in range(sets):
            failures = (
                certificates(world, number) | monotone(world, number) | gain(world, number, truth)
            )
            if world in CALIBRATED:
                failures |= monitor(world, number)
            if world in ("T=1", "T=2", "saturated"):
                failures |= out_of_fold(world, number)
            drawn.update(failures.keys())
            false.update(name for name, is_false in failures.items() if is_false)
        for statement, n_sets in drawn.items():
            share = false[statement] / n_sets
            counts = {"sets": n_sets, "false": false[statement], "share": share}
            rows.append({"world": world, "statement": statement, **counts, "allowed": FAILURE})
        print(world, {s: f"{false[s]}/{drawn[s]}" for s in drawn}, flush=True)
    return rows
