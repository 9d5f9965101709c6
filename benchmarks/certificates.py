"""Do the certificates hold as often as they say, how wide are they, and does the watch keep its promise?

    python benchmarks/certificates.py cells --sets 2000 --workers 16     # failures and widths, worlds × K × n
    python benchmarks/certificates.py groups --sets 500 --workers 16     # a planted group among ten
    python benchmarks/certificates.py watch --sets 1000 --workers 16     # false alarms, delay after a drift
    python benchmarks/certificates.py tasks                              # shared networks, before and after h
    python benchmarks/certificates.py speed                              # 10⁶ rows × 1000 classes

Each writes its rows of results/certificates.csv (study, world, k, n, sets, name, value), replacing older ones
of the same study. A set is one draw of predictions and labels; its random numbers depend on the cell and the
set alone, so that any number of workers gives the same answer.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # studies are no part of the wheel

import numpy as np  # noqa: E402

import hcal  # noqa: E402
from hcal.certificates import certify_event  # noqa: E402
from hcal.certificates.bounds import markov_reach  # noqa: E402
from studies.worlds import WORLDS, draw_labels, holds, smooth_error, truth_table  # noqa: E402

RESULTS = ROOT / "results" / "certificates.csv"
LEVEL = 0.95
KS, NS = (2, 10, 100), (200, 2000, 20000)
Row = tuple[str, str, int, int, int, str, float]


# -- cells: failures and widths -----------------------------------------------------------------------


def one_set(world: str, k: int, n: int, number: int) -> dict[str, float]:
    """Certify one draw at the level of the families alone, and compare with the truth."""
    rng = np.random.default_rng([list(WORLDS).index(world), k, n, number])
    f, q = WORLDS[world](n, k, rng)
    y = draw_labels(q, rng)
    rows, top = np.arange(n), f.argmax(axis=1)
    p, c, truth = f[rows, top], (top == y).astype(float), q[rows, top]
    event = certify_event("top label", p, c, failure=1 - LEVEL)
    known = truth_table(p, truth)
    windows, curve = holds(event, known)
    w = event.windows
    found = {
        "top_fails": float(not (windows and curve)),
        "smooth": event.smooth,
        "smooth_fails": float(event.smooth < smooth_error(known, 12) - 1e-9) if number < 100 else 0.0,
        "refuted_false": float(event.exact_refuted and bool((truth == p).all())),
        "overall_width": float(w.high[0] - w.low[0]) / 2,
        "markov_width": markov_reach(n, 1 - LEVEL),
        "class_fails": 0.0,
    }
    if number < 10:
        found["bootstrap_width"], found["bootstrap_fails"] = _bootstrap(p, c, truth, rng)
    for j in range(k) if k > 2 else (1,):
        each = certify_event("class", f[:, j], (y == j), failure=(1 - LEVEL) / (k if k > 2 else 1))
        if not all(holds(each, truth_table(f[:, j], q[:, j]))):
            found["class_fails"] = 1.0
    return found


def _bootstrap(
    p: np.ndarray, c: np.ndarray, truth: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """Half width of the percentile interval of mean claim − mean truth, and whether it misses."""
    d = p - c
    means = rng.multinomial(len(d), np.full(len(d), 1 / len(d)), size=200) @ d / len(d)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    gap = float((p - truth).mean())
    return float(high - low) / 2, float(not low <= gap <= high)


def cell(job: tuple[str, int, int, int, int]) -> list[dict[str, float]]:
    world, k, n, first, last = job
    return [one_set(world, k, n, s) for s in range(first, last)]


def cells(sets: int, workers: int, ks: tuple[int, ...], ns: tuple[int, ...]) -> list[Row]:
    from scipy.stats import binomtest

    rows: list[Row] = []
    for k in ks:
        for n in ns:
            for world in WORLDS:
                step = max(1, min(50, sets // max(workers, 1)))
                jobs = [(world, k, n, a, min(a + step, sets)) for a in range(0, sets, step)]
                found = [d for part in spread(cell, jobs, workers) for d in part]
                for name in found[0]:
                    values = [d[name] for d in found if name in d]
                    rows.append(("cells", world, k, n, len(values), name, float(np.mean(values))))
                for name in ("top_fails", "class_fails"):
                    fails = int(sum(d[name] for d in found))
                    p = binomtest(fails, len(found), 1 - LEVEL, alternative="greater").pvalue
                    rows.append(("cells", world, k, n, len(found), f"{name}_p_value", float(p)))
                told = {r[5]: r[6] for r in rows if r[1:4] == (world, k, n)}
                print(f"K={k} n={n} {world:8s} top {told['top_fails']:.4f} class {told['class_fails']:.4f} "
                      f"smooth {told['smooth']:.4f} width {told['overall_width']:.4f} "
                      f"markov {told['markov_width']:.3f} bootstrap {told.get('bootstrap_width', 0):.4f}",
                      flush=True)  # fmt: skip
                write([r for r in rows if r[1:4] == (world, k, n)])  # a long run may be stopped
    return rows


# -- groups -------------------------------------------------------------------------------------------


def group_set(number: int) -> dict[str, float]:
    """Ten groups at 90 % accuracy, one of 5 % of the rows whose confidence is 0.1 too high."""
    rng = np.random.default_rng([7, number])
    n, k = 10_000, 4
    group = np.where(rng.random(n) < 0.05, 9, rng.integers(0, 9, n))
    conf = 1 - 0.2 * rng.beta(1, 1, n)  # mean 0.9
    f = np.repeat((1 - conf)[:, None] / (k - 1), k, axis=1)
    f[:, 0] = conf
    found = {}
    for name, gap in (("found", 0.1), ("false", 0.0)):
        right = rng.random(n) < conf - gap * (group == 9)
        y = np.where(right, 0, rng.integers(1, k, n))
        certificate = hcal.certify(f, y, groups=group, level=LEVEL)
        proven = {g.name for g in certificate.groups if g.proven}
        found[f"{name}_planted" if gap else "any_false"] = float("9" in proven if gap else bool(proven))
        if gap:
            found["others_false"] = float(bool(proven - {"9"}))
    return found


def groups(sets: int, workers: int) -> list[Row]:
    found = spread(group_set, list(range(sets)), workers)
    rows = [
        ("groups", "T=1", 4, 10_000, sets, name, float(np.mean([d[name] for d in found])))
        for name in found[0]
    ]
    for row in rows:
        print(row)
    return rows


# -- the watch ----------------------------------------------------------------------------------------


def calm_stream(number: int) -> float:
    """Whether a calibrated stream of 10⁵ rows raises the alarm."""
    rng = np.random.default_rng([11, number])
    monitor = hcal.Monitor(0.05)
    for _ in range(10):
        f, q = WORLDS["T=1"](10_000, 5, rng)
        monitor.update(f, draw_labels(q, rng))
    return float(monitor.alarm is not None)


def drift(number: int) -> float:
    """Rows between a change of temperature from 1 to 1.3, after 10⁴ rows, and the alarm."""
    rng = np.random.default_rng([13, number])
    monitor = hcal.Monitor(0.05)
    f, q = WORLDS["T=1"](10_000, 5, rng)
    monitor.update(f, draw_labels(q, rng))
    f, _ = WORLDS["T=1"](10_000, 5, rng)
    q = f ** (1 / 1.3)
    monitor.update(f, draw_labels(q / q.sum(axis=1, keepdims=True), rng))
    return float("inf") if monitor.alarm is None else float(monitor.alarm.row - 10_000)


def watch(sets: int, workers: int) -> list[Row]:
    alarms = spread(calm_stream, list(range(sets)), workers)
    delays = np.array(spread(drift, list(range(min(sets, 200))), workers))
    after = delays[delays > 0]  # an alarm before the change is a false one
    rows: list[Row] = [
        ("watch", "T=1", 5, 100_000, sets, "false_alarms", float(np.mean(alarms))),
        ("watch", "T 1 to 1.3", 5, 10_000, len(after), "median_delay", float(np.median(after))),
        ("watch", "T 1 to 1.3", 5, 10_000, len(after), "delay_90", float(np.quantile(after, 0.9))),
        ("watch", "T 1 to 1.3", 5, 10_000, len(delays), "alarms_before", float((delays <= 0).mean())),
    ]
    for row in rows:
        print(row)
    return rows


# -- real networks, and speed -------------------------------------------------------------------------


def tasks(data: Path) -> list[Row]:
    rows: list[Row] = []
    for path in sorted(data.glob("*.npz")):
        with np.load(path) as f:
            kind = next((kind for kind in ("logits", "probs") if f"{kind}_cal" in f), None)
            if kind is None:  # not a task of scores
                continue
            cal, y_cal, test, y = (f[x] for x in (f"{kind}_cal", "y_cal", f"{kind}_test", "y_test"))
        model = hcal.make_calibrator("h", input=kind).fit(cal, y_cal)
        raw = hcal.softmax(test.astype(np.float64)) if kind == "logits" else test
        for side, probs in (("before", raw), ("after", model.predict_proba(test))):
            c = hcal.certify(probs, y, baseline=raw, calibrator=model, scores=test)
            assert c.top is not None
            assert c.classes is not None
            assert c.gain is not None
            n, k = probs.shape
            values = {"smooth": c.top.smooth, "at_least": c.top.at_least, "gain_at_least": c.gain.at_least,
                      "class_smooth": float(c.classes.smooth.max()),
                      "class_at_least": float(c.classes.at_least.max()),
                      "classes_wrong": float(len(c.classes.refutations))}  # fmt: skip
            rows += [("tasks", f"{path.stem} {side}", k, n, 1, name, v) for name, v in values.items()]
            print(path.stem, side, {name: round(v, 4) for name, v in values.items()}, flush=True)
            print("   ", c.sentences[4])
    return rows


def speed(n: int, k: int) -> list[Row]:
    rng = np.random.default_rng(0)
    small = rng.normal(size=(1000, k)).astype(np.float32) * 2
    probs = np.empty((n, k), dtype=np.float32)
    for a in range(0, n, 1000):
        z = small + rng.normal(size=(1000, 1)).astype(np.float32) * small
        probs[a : a + 1000] = hcal.softmax(z)[: n - a]
    y = rng.integers(0, k, n)
    hcal.certify(probs[:2000], y[:2000])  # compile
    start = time.perf_counter()
    hcal.certify(probs, y)
    seconds = time.perf_counter() - start
    print(f"{n:,} × {k:,}: {seconds:.1f} s")
    return [("speed", "uniform labels", k, n, 1, "seconds", seconds)]


# -- running and writing ------------------------------------------------------------------------------


def spread(work: Callable[..., object], jobs: list, workers: int) -> list:
    if workers <= 1:
        return [work(job) for job in jobs]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(work, jobs, chunksize=max(1, len(jobs) // (8 * workers))))


def write(rows: list[Row]) -> None:
    """Replace rows of the same study and cell; a cell that was not run again stays."""
    from hcal.io.atomic import atomic_path

    head = ["study", "world", "k", "n", "sets", "name", "value"]
    kept: dict[tuple[str, ...], list[str]] = {}
    if RESULTS.exists():
        with RESULTS.open(newline="") as f:
            kept = {(r[0], r[1], r[2], r[3], r[5]): r for r in list(csv.reader(f))[1:]}
    for r in rows:
        cells = [str(v) for v in r[:-1]] + [f"{r[-1]:.6g}"]
        kept[cells[0], cells[1], cells[2], cells[3], cells[5]] = cells
    with atomic_path(RESULTS) as temporary, temporary.open("w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["cells", "groups", "watch", "tasks", "speed"])
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--k", type=int, nargs="*", default=list(KS))
    parser.add_argument("--n", type=int, nargs="*", default=list(NS))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    a = parser.parse_args()
    rows = {
        "cells": lambda: cells(a.sets, a.workers, tuple(a.k), tuple(a.n)),
        "groups": lambda: groups(a.sets, a.workers),
        "watch": lambda: watch(a.sets, a.workers),
        "tasks": lambda: tasks(a.data),
        "speed": lambda: speed(1_000_000 if a.n == list(NS) else a.n[0], 1000 if a.k == list(KS) else a.k[0]),
    }[a.study]()
    write(rows)


if __name__ == "__main__":
    main()
