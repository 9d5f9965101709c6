"""Score calibrators by the joint measure: one calibrator, four levels, argmax untouched.

For each task and split: error after / error before, averaged inside four groups, then over the groups.
Calibration and test rows are pooled and split again at random (same sizes); where the two differ in
distribution (a label shift is the point of the task), 80 % of each part is drawn instead. Split 0 is the
original one.

    python -m studies.joint run --methods uncal,ts,svs,h --splits 5 --out results/joint.csv
    python -m studies.joint table results/joint.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

GROUPS = {
    "top": ["ece_ew", "ece_em", "ece_r2", "ks", "mmce"],
    "class": ["cwece_a", "cwece_r2", "tcwece"],
    "canonical": ["dkde_ce"],
    "score": ["nll", "brier"],
}
METRICS = [name for names in GROUPS.values() for name in names]
TASKS = [
    "agnews_gpt2",
    "cifar100_resnet110",
    "cifar100_resnet50",
    "cifar100_wideresnet_probs",
    "cifar10_resnet110",
    "cifar10_resnet50",
    "cifar10_resnet50_weak",
    "cifar10_wideresnet",
    "cifar10lt_resnet110",
    "pathmnist_resnet50",
]
SHIFTED = {"cifar10lt_resnet110"}
FIELDS = ["task", "split", "method", *GROUPS, "joint", *METRICS, "nll_ratio", "changed", "seconds", "error"]
DATA = Path(os.environ.get("HCAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def load(task: str) -> tuple[np.ndarray, ...]:
    with np.load(DATA / f"{task}.npz") as f:
        parts = []
        for part in ("cal", "test"):
            if f"logits_{part}" in f:
                z = f[f"logits_{part}"]
            else:
                probs = f[f"probs_{part}"]
                z = np.log(np.maximum(probs, np.finfo(probs.dtype).smallest_subnormal))
            parts += [z.astype(np.float64), f[f"y_{part}"].astype(np.int64)]
    return tuple(parts)


def split(task: str, number: int) -> tuple[np.ndarray, ...]:
    cal, y_cal, test, y_test = load(task)
    if number == 0:
        return cal, y_cal, test, y_test
    rng = np.random.default_rng(number)
    if task in SHIFTED:
        i = rng.permutation(len(cal))[: int(0.8 * len(cal))]
        j = rng.permutation(len(test))[: int(0.8 * len(test))]
        return cal[i], y_cal[i], test[j], y_test[j]
    z, y = np.concatenate([cal, test]), np.concatenate([y_cal, y_test])
    order = rng.permutation(len(z))
    i, j = order[: len(cal)], order[len(cal) :]
    return z[i], y[i], z[j], y[j]


def measure(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    import hcal

    return {name: float(getattr(hcal.metrics, name)(probs, y)) for name in METRICS}


def ratios(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    out = {g: float(np.mean([after[m] / before[m] for m in names])) for g, names in GROUPS.items()}
    return {**out, "joint": float(np.mean(list(out.values())))}


def predictions(method: str, cal: np.ndarray, y: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    """One method by name; ``h/all``: every candidate of the default alone, and the parts of its pool."""
    import hcal

    if method == "h/all":
        return ablations(cal, y, test)
    name, _, option = method.partition(":")
    params = {"preserve": None if option == "none" else option} if option else {}
    return {method: hcal.make_calibrator(name, **params).fit(cal, y).predict_proba(test)}


def ablations(cal: np.ndarray, y: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    """The default's parts: each candidate alone, the ways to keep the argmax, and what a part adds."""
    from hcal.calibrators.h.candidates import fit_candidates, new_setting
    from hcal.calibrators.h.fit import LIFTS, assemble, out_of_fold, pool
    from hcal.calibrators.h.model import no_curve, predict_model
    from hcal.calibrators.row_order import arrange

    cal, y, weight = arrange(cal, y, None, merge=True)
    weight = np.ones(len(y)) if weight is None else weight
    setting = new_setting(cal, y, weight, classes=True)
    fitted, held = fit_candidates(cal, y, weight, setting), out_of_fold(cal, y, weight, setting)
    chosen = pool(held, setting, free=False)[0]
    models = {f"lift {lift:g}": assemble(fitted, chosen._replace(lift=lift)) for lift in LIFTS}
    models["without the last curve"] = assemble(
        fitted, chosen._replace(last=no_curve(0, cal.shape[1]), lift=0.0)
    )
    models["last curve with h in training"] = assemble(
        fitted, chosen._replace(last=with_h(chosen, held, setting), lift=0.0)
    )
    for i, name in enumerate(setting.names):
        alone = held._replace(scores=held.scores[i : i + 1])
        only = pool(alone, setting, free=False)[0]
        share = np.where(np.arange(len(setting.names)) == i, only.share[0], 0.0)
        models[f"{name} alone"] = assemble(fitted, only._replace(share=share, lift=0.0))
    out = {}
    for name, model in models.items():
        out[f"h/{name}"] = predict_model(model, test)
    return out


def with_h(chosen: Any, held: Any, setting: Any, window: int = 500) -> Any:
    """Refit the last curve of P(top) by NLL plus the windowed error of the top-label event (weight 1)."""
    from hcal.calibrators.h.blend import split_top, top_class
    from hcal.calibrators.h.events import _design
    from hcal.calibrators.h.rows import Scaler
    from hcal.solvers.lbfgs import lbfgs
    from scipy.special import expit

    top = top_class(held.logits, setting.prefer)
    odds, _ = split_top(np.tensordot(chosen.share, held.scores, 1), top)
    hit = (top == held.y).astype(np.float64)
    last, n = chosen.last, len(hit)
    design = _design(odds, np.zeros((n, 0)), last.knots, Scaler(*last.scaler))
    ridge = np.concatenate([[0.01], np.ones(design.shape[1] - 1)]) / n

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = odds + design @ theta + last.classes[top]
        q = expit(eta)
        value, pull = windowed(q, hit, window)
        nll = float(np.mean(np.logaddexp(0, eta) - hit * eta))
        gradient = design.T @ ((q - hit) / n + pull * q * (1 - q)) + 2 * ridge * theta
        return nll + value + float(ridge @ theta**2), gradient

    return last._replace(weights=lbfgs(loss, last.weights, max_iterations=100).theta)


def windowed(q: np.ndarray, hit: np.ndarray, window: int) -> tuple[float, np.ndarray]:
    """eq:finalloss on one event with uniform weights, |T| smoothed by 1e-3 so that L-BFGS can follow it."""
    order = np.argsort(q, kind="stable")
    total = np.concatenate([[0.0], np.cumsum((q - hit)[order])])
    m = min(window, len(q))
    t = (total[m:] - total[:-m]) / m
    size = np.sqrt(t * t + 1e-6)
    each = np.concatenate([[0.0], np.cumsum(t / size / (len(t) * m))])
    place = np.arange(len(q))
    pull = np.empty(len(q))
    pull[order] = each[np.minimum(place + 1, len(t))] - each[np.maximum(place + 1 - m, 0)]
    return float(size.mean()), pull


def cell(task: str, number: int, methods: list[str]) -> list[dict[str, object]]:
    warnings.simplefilter("ignore")
    from hcal.numerics import softmax

    cal, y, test, y_test = split(task, number)
    before = measure(softmax(test), y_test)
    rows: list[dict[str, object]] = []
    for method in methods:
        start = time.perf_counter()
        try:
            found = predictions(method, cal, y, test)
        except Exception as error:
            rows.append({"task": task, "split": number, "method": method, "error": str(error)[:200]})
            continue
        seconds = time.perf_counter() - start
        for name, probs in found.items():
            after = measure(probs, y_test)
            changed = int((probs.argmax(1) != test.argmax(1)).sum())
            rows.append(
                {"task": task, "split": number, "method": name, **ratios(after, before), **after}
                | {"nll_ratio": after["nll"] / before["nll"], "changed": changed}
                | {"seconds": round(seconds, 3), "error": ""}
            )
    return rows


def run(args: argparse.Namespace) -> None:
    import joblib

    methods = args.methods.split(",")
    tasks = args.tasks.split(",") if args.tasks else TASKS
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["task"], int(r["split"]), r["method"]) for r in read(out)} if out.exists() else set()
    todo = []
    for task in sorted(tasks, key=lambda t: "100" not in t):
        for number in range(args.splits):
            missing = [m for m in methods if (task, number, m) not in done]
            if missing:
                todo.append((task, number, missing))
    results = joblib.Parallel(n_jobs=args.jobs, return_as="generator_unordered")(
        joblib.delayed(cell)(*job) for job in todo
    )
    new = not out.exists()
    with out.open("a", newline="") as f:
        writer = csv.DictWriter(f, FIELDS)
        if new:
            writer.writeheader()
        for i, rows in enumerate(results, 1):
            writer.writerows(rows)
            f.flush()
            print(f"{i}/{len(todo)} {rows[0]['task']} split {rows[0]['split']}", file=sys.stderr, flush=True)
    table(argparse.Namespace(results=str(out), reference=args.reference))


def read(path: str | Path) -> list[dict[str, str]]:
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def task_means(rows: list[dict[str, str]], field: str) -> dict[str, dict[str, np.ndarray]]:
    """method -> task -> values by split."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        if not r["error"]:
            found[r["method"]][r["task"]].append((int(r["split"]), float(r[field])))
    return {m: {t: np.array([v for _, v in sorted(vs)]) for t, vs in ts.items()} for m, ts in found.items()}


def paired(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rng: np.random.Generator) -> tuple[float, ...]:
    """Mean difference a − b over tasks, with a 95 % interval over the splits of each task.

    The tasks are the ones they are: the interval says how far another draw of rows could move the mean.
    """
    tasks = sorted(set(a) & set(b))
    diffs = [a[t][: len(b[t])] - b[t][: len(a[t])] for t in tasks]
    if len({len(d) for d in diffs}) == 1:  # one draw for all: the same numbers from the stream, much sooner
        table, size = np.stack(diffs), len(diffs[0])
        draws = rng.integers(0, size, (2000, len(diffs), size))
        means = table[np.arange(len(diffs))[:, None], draws].mean(axis=2).mean(axis=1)
    else:
        means = np.array(
            [np.mean([d[rng.integers(0, len(d), len(d))].mean() for d in diffs]) for _ in range(2000)]
        )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.mean([d.mean() for d in diffs])), float(low), float(high)


def table(args: argparse.Namespace) -> None:
    rows = read(args.results)
    print("\n".join(markdown(rows, args.reference)))
    leave_one_out(task_means(rows, "joint"))
    for r in rows:
        if r["error"]:
            print(f"error: {r['method']} on {r['task']} split {r['split']}: {r['error']}")


def markdown(rows: list[dict[str, str]], reference: str) -> list[str]:
    """Return the table, best first, as lines of Markdown."""
    fields = {name: task_means(rows, name) for name in ["joint", *GROUPS, "changed", "nll_ratio"]}
    mean = {
        f: {m: float(np.mean([v.mean() for v in ts.values()])) for m, ts in by.items()}
        for f, by in fields.items()
    }
    rng = np.random.default_rng(0)
    ours = fields["joint"][reference]
    head = ["method", "joint", " / ".join(GROUPS), "argmax changed", "failures", f"{reference} minus it"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for m in sorted(mean["joint"], key=mean["joint"].__getitem__):
        d, low, high = paired(ours, fields["joint"][m], rng)
        tasks = len(fields["joint"][m])
        many = max(len(v) for v in fields["joint"][m].values()) > 1
        cells = [
            m if tasks == len(ours) else f"{m} ({tasks} tasks)",
            f"{mean['joint'][m]:.3f}",
            " / ".join(f"{mean[g][m]:.3f}" for g in GROUPS),
            f"{mean['changed'][m]:.0f}",
            str(sum(int((v > 1.005).sum()) for v in fields["nll_ratio"][m].values())),
            ""
            if m == reference
            else f"{d:+.3f} " + (f"[{low:+.3f}, {high:+.3f}]" if many else "(one split)"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(args: argparse.Namespace) -> None:
    """Write the table between the markers of docs/default.md."""
    path = Path(__file__).resolve().parents[1] / "docs" / "default.md"
    before, _, rest = path.read_text().partition("<!-- joint -->\n")
    _, _, after = rest.partition("<!-- end -->")
    body = "\n".join(markdown(read(args.results), args.reference))
    path.write_text(f"{before}<!-- joint -->\n{body}\n<!-- end -->{after}")


def leave_one_out(joint: dict[str, dict[str, np.ndarray]]) -> None:
    """Choose among forced candidates on nine tasks, report on the tenth; the judge needs no such choice."""
    forced = {m: ts for m, ts in joint.items() if m.startswith("h/") and m != "h/free" and " " not in m}
    if not forced:
        return
    tasks = sorted(next(iter(forced.values())))
    picks = {}
    for held in tasks:
        others = {m: np.mean([ts[t].mean() for t in tasks if t != held]) for m, ts in forced.items()}
        best = min(others, key=lambda m: others[m])
        picks[held] = (best, float(forced[best][held].mean()))
    print(f"\nleave-one-task-out over {', '.join(sorted(forced))}:")
    print(
        f"  mean joint {np.mean([v for _, v in picks.values()]):.3f}; picked", {m for m, _ in picks.values()}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    r = commands.add_parser("run")
    r.add_argument("--methods", default="uncal,ts,ets,vs,svs,sms,h,h/all")
    r.add_argument("--tasks", default="")
    r.add_argument("--splits", type=int, default=5)
    r.add_argument("--jobs", type=int, default=2)
    r.add_argument("--out", default="results/joint.csv")
    r.add_argument("--reference", default="h")
    r.set_defaults(do=run)
    t = commands.add_parser("table")
    t.add_argument("results")
    t.add_argument("--reference", default="h")
    t.set_defaults(do=table)
    d = commands.add_parser("page")
    d.add_argument("results")
    d.add_argument("--reference", default="h")
    d.set_defaults(do=page)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
