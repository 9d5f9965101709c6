"""The board of tables: any methods on the 96 tabular tasks, beside the stored scores of other packages.

A method's win rate on a task is the share of its opponents that are strictly worse; mean over tasks. The
opponents of one of our methods are the pool of other packages, never our other methods, so a row does not
depend on which rows stand beside it. Tasks of one data set are not independent: intervals resample data sets.

    python studies/tabular_board.py run --methods uncal,ts,beta,h,h:preserve=none --workers 2
    python studies/tabular_board.py table
    python studies/tabular_board.py page
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("HCAL_DATA", ROOT.parent / "shared" / "data")) / "tabular"
RESULTS = ROOT / "results" / "tabular.csv"
PAGE = ROOT / "docs" / "tabular.md"

SCORES = ["logloss", "infinite", "brier", "accuracy", "auc", "auc_odds", "ece", "dce"]
FIELDS = ["task", "dataset", "k", "n_cal", "by", "method", *SCORES, "changed", "seconds", "error"]
#: Who is compared (data/tabular/README.md); the rest of peers.csv are variants of these.
_BOTH = ["uncal", "sk-sigmoid", "sk-isotonic", "pm-cir", "venn-abers", "pm-ts", "pm-ets", "splinecalib"]
POOLS = {
    "binary": [*_BOTH, "pm-affine", "pm-quadratic", "betacal-abm", "netcal-bbq", "pm-hist"],
    "multiclass": [*_BOTH, "pm-vs", "pm-svs", "pm-sms"],
}
SIZES: dict[str, Callable[[int], bool]] = {
    "all": lambda n: True,
    "<500": lambda n: n < 500,
    "500–2000": lambda n: 500 <= n <= 2000,
    ">2000": lambda n: n > 2000,
}
Row = dict[str, Any]
#: task -> method -> value of one score, lower is better.
Values = dict[str, dict[str, float]]


# -- scoring ------------------------------------------------------------------------------------------


def score(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the scores of probabilities (N, K) as ``peers.csv`` defines them, and ``auc_odds``.

    ``auc`` is that of P(class 1): near 1, where floats are coarse, rounding ties rows that the classifier
    told apart. ``auc_odds`` ranks by ln P(1) − ln P(0), which loses nothing: it shows whether a map kept the
    ranking.
    """
    p = np.asarray(probs, dtype=np.float64)
    p = p / p.sum(axis=1, keepdims=True)
    n, k = p.shape
    own = p[np.arange(n), y]
    out = {
        "logloss": float(-np.log(np.maximum(own, 1e-15)).mean()),
        "infinite": int((own == 0).sum()),
        "brier": float(((p - np.eye(k)[y]) ** 2).sum(axis=1).mean()),
        "accuracy": float((p.argmax(axis=1) == y).mean()),
    }
    if k == 2:
        with np.errstate(divide="ignore"):
            odds = np.log(p[:, 1]) - np.log(p[:, 0])
        out |= {"auc": auc(p[:, 1], y), "auc_odds": auc(odds, y)}
        event, hit = p[:, 1], y == 1
    else:
        out |= {"auc": float("nan"), "auc_odds": float("nan")}
        event, hit = p.max(axis=1), p.argmax(axis=1) == y
    return out | binned(event, hit.astype(np.float64))


def auc(scores: np.ndarray, y: np.ndarray) -> float:
    """Return the share of pairs (one of class 1, one of class 0) in the right order, ties one half."""
    from scipy.stats import rankdata

    positive = int(y.sum())
    if positive in (0, len(y)):
        return float("nan")
    ranks = rankdata(scores)[y == 1].sum() - positive * (positive + 1) / 2
    return float(ranks / (positive * (len(y) - positive)))


def binned(event: np.ndarray, hit: np.ndarray, bins: int = 15) -> dict[str, float]:
    """Return the equal-mass error, and the debiased squared one as a signed root."""
    parts = [i for i in np.array_split(np.argsort(event, kind="stable"), bins) if len(i)]
    share = np.array([len(i) / len(event) for i in parts])
    rate = np.array([hit[i].mean() for i in parts])
    gap = np.array([event[i].mean() for i in parts]) - rate
    noise = rate * (1 - rate) / np.array([max(len(i) - 1, 1) for i in parts])
    squared = float((share * (gap**2 - noise)).sum())
    return {"ece": float((share * abs(gap)).sum()), "dce": float(np.sign(squared) * abs(squared) ** 0.5)}


# -- running ------------------------------------------------------------------------------------------


def load(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return probs_cal, y_cal, probs_test, y_test of a task."""
    with np.load(DATA / f"{task}.npz") as f:
        y_cal, y_test = f["y_cal"].astype(np.int64), f["y_test"].astype(np.int64)
        return f["probs_cal"], y_cal, f["probs_test"], y_test


def manifest() -> dict[str, Row]:
    """Return task -> its data set, K and calibration rows."""
    tasks = json.loads((DATA / "manifest.json").read_text())
    return {t["task"]: {"dataset": t["dataset"], "k": t["k"], "n_cal": t["n_cal"]} for t in tasks}


def make(method: str) -> Any:
    """Build ``name`` or ``name:parameter=value,parameter=value``; a value is JSON, a word or ``none``."""
    import hcal

    name, _, options = method.partition(":")
    pairs = [option.split("=", 1) for option in options.split(",") if option]
    return hcal.make_calibrator(name, input="probs", **{key: _value(text) for key, text in pairs})


def _value(text: str) -> Any:
    if text == "none":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def cell(task: str, method: str) -> Row:
    """Fit one method on the calibration rows of a task and score it on the test rows."""
    probs_cal, y_cal, probs_test, y_test = load(task)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            probs = make(method).fit(probs_cal, y_cal).predict_proba(probs_test)
        except Exception as error:
            return {"task": task, "method": method, "by": "hcal", "error": f"{error}"[:200]}
    seconds = round(time.perf_counter() - start, 3)
    changed = int((probs.argmax(axis=1) != probs_test.argmax(axis=1)).sum())
    found = {name: f"{value:.10g}" for name, value in score(probs, y_test).items()}
    return {"task": task, "method": method, "by": "hcal", **found, "changed": changed, "seconds": seconds}


def peers() -> list[Row]:
    """Return the stored scores of the other packages in the pools, as rows of the results."""
    tasks = manifest()
    rows = [{**r, **tasks[r["task"]], "by": "peer"} for r in read(DATA / "peers.csv")]
    return [r for r in rows if r["method"] in POOLS[kind(r)]]


def run(args: argparse.Namespace) -> None:
    """Run what is missing, a row at a time into the file, so that a run can be stopped and continued."""
    import joblib

    out, methods = Path(args.out), split_methods(args.methods)
    tasks = manifest()
    wanted = args.tasks.split(",") if args.tasks else list(tasks)
    rows = read(out) if out.exists() else peers()
    if args.again:
        rows = [r for r in rows if r["by"] == "peer" or r["method"] not in methods or r["task"] not in wanted]
    write(out, rows)
    done = {(r["task"], r["method"]) for r in rows if r["by"] == "hcal"}
    todo = [(t, m) for m in methods for t in wanted if (t, m) not in done]
    results = joblib.Parallel(n_jobs=args.workers, return_as="generator_unordered")(
        joblib.delayed(cell)(*job) for job in todo
    )
    with out.open("a", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, restval="", lineterminator="\n")
        for i, row in enumerate(results, 1):
            writer.writerow(row | tasks[row["task"]])
            f.flush()
            print(f"\r{i}/{len(todo)} {row['method']} {row['task']}    ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    write(out, read(out))
    print("\n".join(tables(read(out), args.reference)))


def split_methods(text: str) -> list[str]:
    """Split a list of methods at the commas that do not continue the parameters of one.

    >>> split_methods("ts,h:preserve=none,random_state=1,svs")
    ['ts', 'h:preserve=none,random_state=1', 'svs']
    """
    out: list[str] = []
    for part in text.split(","):
        if "=" in part and ":" not in part and out:
            out[-1] += "," + part
        else:
            out.append(part)
    return out


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write the results, in an order that does not depend on who finished first; whole or not at all."""
    from hcal.io.atomic import atomic_path

    ordered = sorted(rows, key=lambda r: (r["by"] != "peer", r["method"], r["task"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary, temporary.open("w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)


# -- comparing ----------------------------------------------------------------------------------------


def kind(row: Row) -> str:
    """Return whose pool a row belongs to."""
    return "binary" if int(row["k"]) == 2 else "multiclass"


def values(rows: Sequence[Row], field: str, *, by: str) -> Values:
    """Return task -> method -> score, to six digits (as the peers are stored); a failed fit is infinite."""
    out: Values = {}
    for r in rows:
        if r["by"] == by:
            number = np.inf if r["error"] else float(f"{float(r[field]):.6g}")
            out.setdefault(r["task"], {})[r["method"]] = number
    return out


def win_rate(own: float, opponents: Iterable[float]) -> float:
    """Return the share of the opponents that are strictly worse (larger).

    >>> win_rate(1.0, [1.0, 2.0, 3.0, 0.5])
    0.5
    """
    return float(np.mean([other > own for other in opponents]))


def win_rates(method: dict[str, float], pool: Values, name: str = "") -> dict[str, float]:
    """Return task -> win rate of one method (task -> score) against a pool, itself by name left out.

    >>> win_rates({"t": 0.2}, {"t": {"a": 0.1, "b": 0.3}})
    {'t': 0.5}
    """
    return {t: win_rate(v, (o for m, o in pool[t].items() if m != name)) for t, v in method.items()}


def interval(by_task: dict[str, float], dataset: dict[str, str], draws: int = 2000) -> tuple[float, ...]:
    """Return a 95 % interval of the mean over tasks, from data sets drawn with replacement; () of one."""
    names = sorted({dataset[t] for t in by_task})
    if len(names) < 2:
        return ()
    sums = np.array([sum(v for t, v in by_task.items() if dataset[t] == d) for d in names])
    counts = np.array([sum(dataset[t] == d for t in by_task) for d in names])
    drawn = np.random.default_rng(0).integers(0, len(names), (draws, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def arena(rows: Sequence[Row], field: str, guest: str) -> dict[str, dict[str, float]]:
    """Return method -> task -> win rate for the pool and one of our methods as its guest."""
    pool, own = values(rows, field, by="peer"), values(rows, field, by="hcal")
    shared = {t: pool[t] | {"guest": own[t][guest]} for t in pool if guest in own.get(t, {})}
    names = sorted({m for ms in shared.values() for m in ms if m != guest})  # "uncal" is in the pool too
    return {
        m: win_rates(
            {t: ms[m] for t, ms in shared.items() if m in ms},
            {t: {o: v for o, v in ms.items() if o != guest} for t, ms in shared.items()},
            m,
        )
        for m in names
    }


def summary(rows: Sequence[Row], method: str, dataset: dict[str, str]) -> Row:
    """Return one line of the board for one of our methods; a rate carries its interval over data sets."""
    out: Row = {"method": method}
    for field in ("brier", "logloss"):
        standing = arena(rows, field, method)
        mean = {m: float(np.mean(list(rates.values()))) for m, rates in standing.items()}
        out |= {field: mean["guest"], f"{field}_interval": interval(standing["guest"], dataset)}
        out[f"{field}_rank"] = 1 + sum(v > mean["guest"] + 1e-12 for m, v in mean.items() if m != "guest")
    return out | faults(rows, method)


def faults(rows: Sequence[Row], method: str) -> Row:
    """Return mean log-ratios to uncalibrated and counts of what must not happen."""
    base = {r["task"]: r for r in rows if r["by"] == "hcal" and r["method"] == "uncal"}
    own = [r for r in rows if r["by"] == "hcal" and r["method"] == method and not r["error"]]
    ratio = {f: [float(r[f]) / float(base[r["task"]][f]) for r in own] for f in ("brier", "logloss")}
    moved = [abs(float(r["auc_odds"]) - float(base[r["task"]]["auc_odds"])) for r in own]
    return {
        "tasks": len(own),
        "ratio": {f: float(np.exp(np.mean(np.log(v)))) for f, v in ratio.items()},
        "infinite": sum(int(r["infinite"]) > 0 for r in own),
        "worse": {f: int((np.array(v) > 1.005).sum()) for f, v in ratio.items()},
        "auc": int((np.array(moved) > 1e-6).sum()),  # NaN, for more than two classes, is not counted
        "changed": sum(int(r["changed"]) for r in own),
        "errors": sum(bool(r["error"]) for r in rows if r["by"] == "hcal" and r["method"] == method),
    }


def board(rows: Sequence[Row], reference: str) -> list[Row]:
    """Return the lines of one group of tasks, best mean of the two win rates first, peers among them."""
    dataset = {r["task"]: r["dataset"] for r in rows}
    ours = list(dict.fromkeys(r["method"] for r in rows if r["by"] == "hcal"))
    lines = [summary(rows, m, dataset) for m in ours if m != "uncal"]
    standing = {f: arena(rows, f, reference if reference in ours else "uncal") for f in ("brier", "logloss")}
    for m in standing["brier"]:
        if m != "guest":
            rates = {f: float(np.mean(list(standing[f][m].values()))) for f in standing}
            lines.append({"method": m, "peer": True, **rates})
    return sorted(lines, key=lambda line: -(line["brier"] + line["logloss"]))


def tables(rows: Sequence[Row], reference: str) -> list[str]:
    """Return the boards of both kinds and all sizes as Markdown."""
    out: list[str] = []
    for name, title in (("binary", "Two classes"), ("multiclass", "Three and more classes")):
        for size, belongs in SIZES.items():
            chosen = [r for r in rows if kind(r) == name and belongs(int(r["n_cal"]))]
            if not chosen:
                continue
            tasks = {r["task"]: r["dataset"] for r in chosen}
            heading = f"{title}, {'all sizes' if size == 'all' else size + ' rows'}"
            out += [f"### {heading}: {len(tasks)} tasks of {len(set(tasks.values()))} data sets", ""]
            out += [*_markdown(board(chosen, reference), auc=name == "binary"), ""]
    return out[:-1]


def _markdown(lines: Sequence[Row], *, auc: bool) -> list[str]:
    head = ["method", "Brier win rate", "log-loss win rate", "rank", "ratio to uncal", "worse", "infinite"]
    head += ["AUC moved" if auc else "argmax changed"]
    out = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for line in lines:
        if line.get("peer"):
            cells = [line["method"], f"{line['brier']:.3f}", f"{line['logloss']:.3f}", *[""] * 5]
        else:
            cells = [f"**{line['method']}**" + (f" ({line['errors']} failed)" if line["errors"] else "")]
            cells += [_rate(line, "brier"), _rate(line, "logloss")]
            cells += [f"{line['brier_rank']} / {line['logloss_rank']}"]
            cells += [f"{line['ratio']['brier']:.3f} / {line['ratio']['logloss']:.3f}"]
            cells += [f"{line['worse']['brier']} / {line['worse']['logloss']}", str(line["infinite"])]
            cells += [str(line["auc"] if auc else line["changed"])]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _rate(line: Row, field: str) -> str:
    ends = ", ".join(f"{end:.2f}" for end in line[f"{field}_interval"])
    return f"{line[field]:.3f} [{ends}]" if ends else f"{line[field]:.3f}"


def page(args: argparse.Namespace) -> None:
    """Write the tables between the markers of docs/tabular.md."""
    before, _, rest = PAGE.read_text().partition("<!-- board -->\n")
    after = rest.partition("<!-- end -->")[2]
    body = "\n".join(tables(read(Path(args.out)), args.reference))
    PAGE.write_text(f"{before}<!-- board -->\n{body}\n<!-- end -->{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "table", "page"])
    parser.add_argument("--methods", default="uncal,ts,h")
    parser.add_argument("--tasks", default="", help="names with commas; all by default")
    parser.add_argument("--workers", type=int, default=1, help="processes; -1 for every core")
    parser.add_argument("--again", action="store_true", help="run the named methods anew")
    parser.add_argument("--out", default=str(RESULTS))
    parser.add_argument("--reference", default="h", help="whose presence the peers' own rates count")
    args = parser.parse_args()
    if args.command == "table":
        print("\n".join(tables(read(Path(args.out)), args.reference)))
    else:
        {"run": run, "page": page}[args.command](args)


if __name__ == "__main__":
    main()
