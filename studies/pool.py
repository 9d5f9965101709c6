"""The default calibrator measured: how good it is, what each part buys, and how little it moves.

    python -m studies.pool boards       # networks and tables -> results/pool_boards.csv
    python -m studies.pool ablation     # every part left out -> results/pool_ablation.csv
    python -m studies.pool selection    # constants chosen leave-one-data-set-out -> results/pool_selection.csv
    python -m studies.pool stability    # five perturbations -> results/pool_stability.csv
    python -m studies.pool few          # 30 to 5000 rows -> results/pool_few_rows.csv
    python -m studies.pool page         # the tables of studies/stability.md from these files

Networks: error after / error before, averaged inside four groups of metrics and then over the groups, on the
published split. Tables: a method's win rate is the share of other packages that are strictly worse on a task.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hcal
from hcal.numerics import softmax
from hcal.pool import calibrator, members, two_classes
from hcal.pool import map as maps
from studies.records import read_rows, stamped, write_rows
from studies.tasks import DATA

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
STABILITY = ROOT / "studies" / "stability.md"

GROUPS = {
    "top": ["ece_ew", "ece_em", "ece_r2", "ks", "mmce"],
    "class": ["cwece_a", "cwece_r2", "tcwece"],
    "canonical": ["dkde_ce"],
    "score": ["nll", "brier"],
}
NETWORKS = [
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
_BOTH = [
    "uncal",
    "sk-sigmoid",
    "sk-isotonic",
    "pm-cir",
    "venn-abers",
    "pm-ts",
    "pm-ets",
    "splinecalib",
]
PEERS = {
    "binary": [*_BOTH, "pm-affine", "pm-quadratic", "betacal-abm", "netcal-bbq", "pm-hist"],
    "multiclass": [*_BOTH, "pm-vs", "pm-svs", "pm-sms"],
}
#: Four draws of the demo's kind of data: overconfident logits of five classes.
DEMOS = ["demo_0", "demo_1", "demo_2", "demo_3"]
Row = dict[str, Any]
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


# -- tasks --------------------------------------------------------------------------------------------


def load(task: str) -> Split:
    """Return logits_cal, y_cal, logits_test, y_test of a network."""
    with np.load(DATA / f"{task}.npz") as f:
        parts = []
        for part in ("cal", "test"):
            if f"logits_{part}" in f:
                z = f[f"logits_{part}"]
            else:
                probs = f[f"probs_{part}"]
                z = np.log(np.maximum(probs, np.finfo(probs.dtype).smallest_subnormal))
            parts += [z.astype(np.float64), f[f"y_{part}"].astype(np.int64)]
    return parts[0], parts[1], parts[2], parts[3]


def load_table(task: str) -> Split:
    """Return probs_cal, y_cal, probs_test, y_test of a table."""
    with np.load(DATA / "tabular" / f"{task}.npz") as f:
        y_cal = f["y_cal"].astype(np.int64)
        y_test = f["y_test"].astype(np.int64)
        return f["probs_cal"], y_cal, f["probs_test"], y_test


def demo(seed: int) -> Split:
    """Return overconfident logits of five classes, two of which the classifier confuses."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 5, 4000)
    z = rng.normal(size=(4000, 5)) + 2.2 * np.eye(5)[y]
    z[:, 1] += 0.8 * (y == 2)
    scores = 2.5 * z
    return scores[:1500], y[:1500], scores[1500:], y[1500:]


def tables() -> dict[str, Row]:
    """Return task -> its data set, K and calibration rows."""
    listed = json.loads((DATA / "tabular" / "manifest.json").read_text())
    tasks = {}
    for task in listed:
        tasks[task["task"]] = {name: task[name] for name in ("dataset", "k", "n_cal")}
    return tasks


def any_task(task: str) -> tuple[Split, str]:
    """Return a task of any kind, and what its scores are."""
    if task in DEMOS:
        return demo(int(task[-1])), "logits"
    return (load(task), "logits") if task in NETWORKS else (load_table(task), "probs")


def predict(method: str, cal: np.ndarray, y: np.ndarray, test: np.ndarray, kind: str) -> np.ndarray:
    """Fit ``name`` or ``name:preserve`` and return the test probabilities."""
    name, _, option = method.partition(":")
    params: Row = {"preserve": None if option == "none" else option} if option else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hcal.make_calibrator(name, input=kind, **params).fit(cal, y).predict_proba(test)


# -- boards -------------------------------------------------------------------------------------------


def measure(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return every metric of the joint measure."""
    names = [name for group in GROUPS.values() for name in group]
    return {name: float(getattr(hcal.metrics, name)(probs, y)) for name in names}


def joint(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Return the mean ratio after / before of each group, and their mean."""
    out = {}
    for group, names in GROUPS.items():
        ratios = [after[name] / before[name] for name in names]
        out[group] = float(np.mean(ratios))
    return {"joint": float(np.mean(list(out.values()))), **out}


def score(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return log-loss and Brier score as ``peers.csv`` defines them, and the rows with probability 0."""
    p = probs / probs.sum(axis=1, keepdims=True)
    of_true_class = p[np.arange(len(y)), y]
    gap = p.copy()
    gap[np.arange(len(y)), y] -= 1.0
    nll = float(-np.log(np.maximum(of_true_class, 1e-15)).mean())
    return {
        "nll": nll,
        "brier": float((gap**2).sum(axis=1).mean()),
        "zeros": int((of_true_class == 0).sum()),
    }


def peer_scores() -> dict[str, dict[str, dict[str, float]]]:
    """Return task -> package -> its log-loss and Brier score."""
    out: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for r in read(DATA / "tabular" / "peers.csv"):
        scores = {"nll": float(r["logloss"]), "brier": float(r["brier"])}
        out[r["task"]][r["method"]] = scores
    return out


def win_rates(task: str, measures: dict[str, float], k: int, peers: Any) -> dict[str, float]:
    """Return the share of peers that are strictly worse, by each score."""
    names = PEERS["binary" if k == 2 else "multiclass"]
    others = [peers[task][name] for name in names if name in peers[task]]
    wins = {}
    for s in ("brier", "nll"):
        wins[f"wins_{s}"] = float(np.mean([other[s] > measures[s] for other in others]))
    return wins


def network_rows(methods: Sequence[str], tasks: Sequence[str] = NETWORKS) -> Iterator[Row]:
    """Measure methods on networks, a row a task and method."""
    for task in tasks:
        cal, y, test, y_test = load(task)
        before = measure(softmax(test), y_test)
        for method in methods:
            probs = predict(method, cal, y, test, "logits")
            tops = probs.argmax(axis=1)
            changed = int((tops != test.argmax(axis=1)).sum())
            after = measure(probs, y_test)
            measures = {"nll": after["nll"], "brier": after["brier"], "changed": changed}
            yield {
                "kind": "network",
                "task": task,
                "method": method,
                **joint(after, before),
                **measures,
            }


def table_rows(methods: Sequence[str], tasks: Sequence[str] | None = None) -> Iterator[Row]:
    """Measure methods on tables, a row a task and method."""
    listed = tables()
    peers = peer_scores()
    for task in listed if tasks is None else tasks:
        cal, y, test, y_test = load_table(task)
        k = listed[task]["k"]
        for method in methods:
            probs = predict(method, cal, y, test, "probs")
            measures = score(probs, y_test)
            tops = probs.argmax(axis=1)
            changed = int((tops != test.argmax(axis=1)).sum())
            wins = win_rates(task, measures, k, peers)
            kind = "binary" if k == 2 else "multiclass"
            dataset = listed[task]["dataset"]
            row = {"kind": kind, "task": task, "dataset": dataset, "rows": len(y)}
            yield row | {"method": method, **measures, **wins, "changed": changed}


def summary(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Return (kind, method) -> means over tasks: joint error, win rates, and geometric means of the scores."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for r in rows:
        groups[r["kind"], r["method"]].append(r)
    out = {}
    for key, group in groups.items():
        possible = ("joint", *GROUPS, "wins_brier", "wins_nll")
        fields = [field for field in possible if group[0].get(field)]
        out[key] = {}
        for field in fields:
            out[key][field] = float(np.mean([float(row[field]) for row in group]))
        for s in ("nll", "brier"):
            logs = [np.log(float(row[s])) for row in group]
            out[key][s] = float(np.exp(np.mean(logs)))
    return out


def boards(args: argparse.Namespace) -> None:
    methods = args.methods.split(",")
    rows = [*network_rows(methods), *table_rows(methods)]
    write(RESULTS / "pool_boards.csv", rows)
    for (kind, method), means in summary(rows).items():
        print(f"{kind:10s} {method:18s}", *(f"{k} {v:.4f}" for k, v in means.items()))


# -- ablation -----------------------------------------------------------------------------------------


MODULES = {"maps": maps, "calibrator": calibrator, "members": members, "two_classes": two_classes}


@contextmanager
def changed(**values: Any) -> Iterator[None]:
    """Set constants and functions of the pool, given as ``module__name``, for a while."""
    places = []
    for key, value in values.items():
        module, name = key.split("__", 1)
        places.append((MODULES[module], name, value))
    old = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in old:
            setattr(module, name, value)


def without_member(number: int) -> Row:
    """Return how the weighing of members is changed so that one gets no weight."""

    def weights(left_out: np.ndarray, rows: Any, shrinkage: Any) -> np.ndarray:
        others = [i for i in range(left_out.shape[2]) if i != number]
        out = np.zeros(left_out.shape[2])
        out[others] = members.weigh(left_out[:, :, others], rows, shrinkage)
        return out

    return {"calibrator__weigh": weights, "two_classes__weigh": weights}


def _flat(margin: np.ndarray) -> np.ndarray:
    return np.zeros((len(margin), 1))


def _no_curve(*args: Any) -> maps.TopCurve:
    return maps.TopCurve(curve=maps.Curve.zero(), by_spread=np.array(0.0))


_NO_SPREAD = {"maps__log_mean_margin": _flat}


def parts() -> dict[str, Row]:
    """Return every part that can be left out, and how."""
    return {
        "full": {},
        "without temperature": without_member(0),
        "without top-versus-rest / quadratic": without_member(1),
        "without matrix / spline": without_member(2),
        "without the last curve": {"calibrator__correct_top": _no_curve},
        "one slope below the top": {"maps__BENDS": (1e9,) * 6},
        "three bends instead of six": {"maps__BENDS": (2.0, 5.0, 10.0, 1e9, 1e9, 1e9)},
        "nothing by spread": _NO_SPREAD,
        "no caution": {"members__CAUTION": 0.01},
    }


def ablation(args: argparse.Namespace) -> None:
    # Parts change in the formula alone.
    sys.modules["hcal.pool._numba"] = None  # type: ignore[assignment]
    rows: list[Row] = []
    for name, how in parts().items():
        with changed(**how):
            rows += [{**r, "method": name} for r in all_rows(["pool"])]
        print(name, file=sys.stderr, flush=True)
    rows += all_rows(["pool:accuracy", "pool:none"])
    write(RESULTS / "pool_ablation.csv", rows)
    for (kind, method), means in summary(rows).items():
        print(f"{kind:10s} {method:36s}", *(f"{k} {v:.4f}" for k, v in means.items()))


# -- constants ----------------------------------------------------------------------------------------

#: Every constant of the pool that data could choose, with half and twice its value beside it.
CONSTANTS = {
    "caution": ("members__CAUTION",),
    "ridge of coefficients": ("members__RIDGE", "calibrator__RIDGE", "two_classes__RIDGE"),
    "ridge of constants": ("members__CONSTANT_RIDGE", "two_classes__CONSTANT_RIDGE"),
    "ridge of the matrix": ("members__MATRIX_RIDGE",),
    "tie": ("maps__TIE", "calibrator__TIE"),
    "knots of a curve": ("members__KNOTS", "calibrator__KNOTS"),
    "knots of two classes": ("two_classes__KNOTS",),
}
FACTORS = (0.5, 1.0, 2.0)


def scaled(**factors: float) -> Row:
    """Return the constants of the pool, some of them times a factor, as :func:`changed` takes them."""
    out = {}
    for name, factor in factors.items():
        for place in CONSTANTS[name]:
            module, constant = place.split("__", 1)
            old = getattr(MODULES[module], constant)
            out[place] = type(old)(np.multiply(old, factor).tolist())
    return out


def losses(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return (kind, data set) -> mean over its tasks of ln(joint error), or of ln(NLL) and ln(Brier) of tables."""
    log_losses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for r in rows:
        dataset = r.get("dataset") or r["task"].split("_")[0]
        measured = ("joint",) if r["kind"] == "network" else ("nll", "brier")
        logs = [np.log(r[m]) for m in measured]
        log_losses[r["kind"], dataset].append(float(np.mean(logs)))
    return {key: float(np.mean(values)) for key, values in log_losses.items()}


def best_factor(by_factor: dict[float, dict[tuple[str, str], float]], without: str) -> float:
    """Return the factor of the least loss on all data sets but one, each kind of task counting the same."""

    def loss(factor: float) -> float:
        kinds = defaultdict(list)
        for (kind, dataset), value in by_factor[factor].items():
            if dataset != without:
                kinds[kind].append(value)
        return float(np.mean([np.mean(values) for values in kinds.values()]))

    return min(by_factor, key=loss)


def all_rows(methods: Sequence[str], datasets: Sequence[str] | None = None) -> list[Row]:
    """Measure methods on the networks and tables of some data sets."""
    networks = [t for t in NETWORKS if datasets is None or t.split("_")[0] in datasets]
    chosen = []
    for task, about in tables().items():
        if datasets is None or about["dataset"] in datasets:
            chosen.append(task)
    return [*network_rows(methods, networks), *table_rows(methods, chosen)]


def selection(args: argparse.Namespace) -> None:
    """Choose every constant for a data set by the others, and measure the data set with what they chose."""
    default = all_rows(["pool"])
    by_constant: dict[str, dict[float, dict[tuple[str, str], float]]] = {}
    rows: list[Row] = []
    for name in CONSTANTS:
        by_constant[name] = {1.0: losses(default)}
        for factor in FACTORS:
            if factor != 1.0:
                with changed(**scaled(**{name: factor})):
                    by_constant[name][factor] = losses(all_rows(["pool"]))
            today = by_constant[name][1.0]
            of_factor = by_constant[name][factor]
            gaps = {key: loss - today[key] for key, loss in of_factor.items()}
            for (kind, dataset), gap in gaps.items():
                rows.append(
                    {
                        "constant": name,
                        "factor": factor,
                        "kind": kind,
                        "dataset": dataset,
                        "loss": gap,
                    }
                )
        today = by_constant[name][1.0]
        best = {dataset: best_factor(by_constant[name], dataset) for _, dataset in today}
        print(name, best, file=sys.stderr, flush=True)
    choices: dict[tuple[float, ...], list[str]] = defaultdict(list)
    for dataset in dict.fromkeys(d for _, d in losses(default)):
        choices[tuple(best_factor(by_constant[name], dataset) for name in CONSTANTS)].append(
            dataset
        )
    chosen: list[Row] = []
    for factors, datasets in choices.items():
        with changed(**scaled(**dict(zip(CONSTANTS, factors, strict=True)))):
            chosen += all_rows(["pool", "pool:none"], datasets)
    for r in rows:
        r["by_others"] = best_factor(by_constant[r["constant"]], r["dataset"])
    write(RESULTS / "pool_selection.csv", rows)
    for (kind, method), means in summary(chosen).items():
        print(f"{kind:10s} {method:18s}", *(f"{k} {v:.4f}" for k, v in means.items()))


# -- stability ----------------------------------------------------------------------------------------

METHODS = ["pool", "ts", "svs", "smooth_spline"]


def stability_tasks() -> list[str]:
    """Return the ten networks, every fourth table, and four draws of the demo's kind."""
    return [*NETWORKS, *list(tables())[::4], *DEMOS]


def perturbed(method: str, task: str) -> Iterator[Row]:
    """Fit on rows that are moved in four ways, and say how far test probabilities and NLL move."""
    (cal, y, test, y_test), kind = any_task(task)
    rng = np.random.default_rng(0)
    base = predict(method, cal, y, test, kind)
    noisy = cal * (1 + 1e-6 * rng.normal(size=cal.shape))
    if kind == "probs":
        noisy /= noisy.sum(axis=1, keepdims=True)
    order = rng.permutation(cal.shape[1])
    dropped = np.delete(np.arange(len(y)), rng.integers(len(y)))
    narrow = np.float32
    moved_y = np.argsort(order)[y]
    permuted = predict(method, cal[:, order], moved_y, test[:, order], kind)
    moved = {
        "noise": predict(method, noisy, y, test, kind),
        "dropped": predict(method, cal[dropped], y[dropped], test, kind),
        "float32": predict(method, cal.astype(narrow), y, test.astype(narrow), kind),
        "permuted": permuted[:, np.argsort(order)],
    }
    for name, probs in moved.items():
        yield {"task": task, "method": method, "perturbation": name, **moves(base, probs, y_test)}


def moves(base: np.ndarray, probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return how far probabilities and their NLL moved."""
    nll = [score(p.astype(np.float64), y)["nll"] for p in (base, probs)]
    gap = np.abs(base - probs)
    change = abs(nll[1] / nll[0] - 1)
    return {"max": float(gap.max()), "mean": float(gap.mean()), "nll": change}


def threads(methods: Sequence[str], tasks: Sequence[str]) -> Iterator[Row]:
    """Fit in a process with two BLAS threads and in one with one, and compare."""
    timings = []
    for number in ("1", "2"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "p.npz"
            names = {
                "OMP_NUM_THREADS": number,
                "OPENBLAS_NUM_THREADS": number,
                "MKL_NUM_THREADS": number,
            }
            program = [sys.executable, "-m", "studies.pool", "_fit"]
            command = [*program, ",".join(methods), ",".join(tasks), str(out)]
            subprocess.run(command, check=True, env={**os.environ, **names}, cwd=ROOT)
            with np.load(out) as f:
                timings.append({key: f[key] for key in f})
    for key in timings[0]:
        method, task = key.split("|")
        y = any_task(task)[0][3]
        change = moves(timings[0][key], timings[1][key], y)
        yield {"task": task, "method": method, "perturbation": "threads", **change}


def stability(args: argparse.Namespace) -> None:
    tasks = args.tasks.split(",") if args.tasks else stability_tasks()
    methods = (
        args.methods.split(",") if args.methods != "pool,pool:accuracy,pool:none,ts" else METHODS
    )
    rows = [row for task in tasks for method in methods for row in perturbed(method, task)]
    rows += threads(methods, tasks)
    write(RESULTS / "pool_stability.csv", rows)
    print("\n".join(stability_table(rows)))


def stability_table(rows: Sequence[Row]) -> list[str]:
    """Return the worst task of every method and perturbation, as Markdown."""
    lines = [
        "| calibration rows | method | largest change | mean change | change of the NLL |",
        "|---" * 5 + "|",
    ]
    for name in dict.fromkeys(r["perturbation"] for r in rows):
        for method in dict.fromkeys(r["method"] for r in rows):
            chosen = [r for r in rows if r["method"] == method and r["perturbation"] == name]
            worst = []
            for field in ("max", "mean", "nll"):
                worst.append(max(chosen, key=lambda r, f=field: float(r[f])))
            cells = [
                f"{float(w[f]):.1e} ({w['task']})"
                for w, f in zip(worst, ("max", "mean", "nll"), strict=True)
            ]
            lines.append("| " + " | ".join([name, method, *cells]) + " |")
    return lines


# -- few rows -----------------------------------------------------------------------------------------

SIZES = (30, 100, 300, 1000, 3000)
FEW_TABLES = [
    "letter_mlp",
    "letter_rf",
    "pendigits_lgbm",
    "thyroid_mlp",
    "bank_gnb",
    "bank_lgbm",
    "bank_mlp",
]
FEW_TABLES += ["credit_logreg", "credit_rf", "magic_hgb", "spambase_svc", "wine_good_rf"]


def few(args: argparse.Namespace) -> None:
    """NLL over the better of uncalibrated and temperature scaling, on three draws of so many rows."""
    rows: list[Row] = []
    for task in [*NETWORKS, *FEW_TABLES]:
        (cal, y, test, y_test), kind = any_task(task)
        for size in SIZES:
            for draw in range(3 if size < len(y) else 0):
                part = np.random.default_rng([draw, size]).permutation(len(y))[:size]
                nll = {}
                for m in ("uncal", "ts", "pool"):
                    probs = predict(m, cal[part], y[part], test, kind)
                    nll[m] = score(probs, y_test)["nll"]
                rows.append({"task": task, "rows": size, "draw": draw, **nll})
    write(RESULTS / "pool_few_rows.csv", rows)
    print("\n".join(few_table(rows)))


def few_table(rows: Sequence[Row]) -> list[str]:
    """Return geometric mean, median and worst ratios by number of rows, as Markdown."""
    lines = [
        "| rows | tasks | pool: mean | median | above 1.01 | worst | temperature scaling: worst |",
        "|---" * 7 + "|",
    ]
    for size in SIZES:
        by_task: dict[str, list[Row]] = defaultdict(list)
        for r in rows:
            if int(r["rows"]) == size:
                by_task[r["task"]].append(r)
        ratio = {m: [] for m in ("pool", "ts")}
        for task_rows in by_task.values():
            mean = {}
            for m in ("uncal", "ts", "pool"):
                mean[m] = np.mean([float(row[m]) for row in task_rows])
            for m in ratio:
                ratio[m].append(mean[m] / min(mean["uncal"], mean["ts"]))
        pool = np.array(ratio["pool"])
        mean = float(np.exp(np.log(pool).mean()))
        cells = [str(size), str(len(pool)), f"{mean:.3f}", f"{np.median(pool):.3f}"]
        cells.append(str(int((pool > 1.01).sum())))
        lines.append(
            "| " + " | ".join([*cells, f"{pool.max():.3f}", f"{max(ratio['ts']):.3f}"]) + " |"
        )
    return lines


# -- files and the page -------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, which must be there."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    return read_rows(path)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with the version and the commit that made them."""
    fields = list(dict.fromkeys(key for row in rows for key in row))
    full = [dict.fromkeys(fields, "") | row for row in rows]
    write_rows(path, [stamped(row) for row in full])


def part_table() -> list[str]:
    """Return what each part bought, as Markdown: ratios to the full default."""
    means = summary(read(RESULTS / "pool_ablation.csv"))
    names = list(dict.fromkeys(method for _, method in means))
    lines = [
        "| variant | 10 networks: joint error, NLL | 30 tables, K ≥ 3: NLL, Brier "
        "| 66 tables, K = 2: NLL, Brier |"
    ]
    lines.append("|---" * 4 + "|")
    for name in names:
        part = means["network", name]
        full = means["network", "full"]
        cells = [name, f"{part['joint'] / full['joint']:.3f}, {part['nll'] / full['nll']:.3f}"]
        for kind in ("multiclass", "binary"):
            changed = means[kind, name]
            ratio = [changed[s] / means[kind, "full"][s] for s in ("nll", "brier")]
            cells.append(f"{ratio[0]:.3f}, {ratio[1]:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(args: argparse.Namespace) -> None:
    """Write the tables between the markers of studies/stability.md."""
    tables = {
        "stability": stability_table(read(RESULTS / "pool_stability.csv")),
        "parts": part_table(),
        "few": few_table(read(RESULTS / "pool_few_rows.csv")),
    }
    fill(STABILITY, tables)


def fill(path: Path, bodies: dict[str, list[str]]) -> None:
    """Put tables between the markers of a page."""
    text = path.read_text()
    for name, lines in bodies.items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- end {name} -->"
        text += rest.partition(f"<!-- end {name} -->")[2]
    path.write_text(text)


def _fit(args: argparse.Namespace) -> None:
    methods, tasks, out = args.arguments
    predictions = {}
    for task in tasks.split(","):
        (cal, y, test, _), kind = any_task(task)
        for m in methods.split(","):
            predictions[f"{m}|{task}"] = predict(m, cal, y, test, kind)
    np.savez(out, **predictions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {
        "boards": boards,
        "ablation": ablation,
        "selection": selection,
        "stability": stability,
        "few": few,
        "page": page,
        "_fit": _fit,
    }
    parser.add_argument("command", choices=list(commands))
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--methods", default="pool,pool:accuracy,pool:none,ts")
    parser.add_argument("--tasks", default="", help="names by commas; all by default")
    args = parser.parse_args()
    commands[args.command](args)


if __name__ == "__main__":
    main()
