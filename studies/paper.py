"""The paper's tables beside ours: all methods and metrics on the two of its tasks that are here.

    python -m studies.paper run --data ../shared/data       # writes results/paper.csv; goes on where it stopped
    python -m studies.paper page                            # tables and pictures of docs/reproduction.md

``run`` fits every method on the calibration part and measures it on the test part with ``hcal.compare``. ``page`` reads
the paper's numbers from ``../shared/paper_tables*.csv``, writes the whole comparison to
``studies/reproduction-tables.md`` and the short one into ``docs/reproduction.md``.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal import metrics
from hcal.numerics import Float64, IntArray, softmax
from studies.drawing import PALETTE, SUBJECT, replace_between, save_figure, styled, write_text
from studies.records import RESULTS, ROOT, add_rows, origins, read_rows
from studies.tasks import Task, load_task

FILE: Final = RESULTS / "paper.csv"
PAGE: Final = ROOT / "docs" / "reproduction.md"
TABLES: Final = ROOT / "studies" / "reproduction-tables.md"
ASSETS: Final = ROOT / "docs" / "assets"
MARKS: Final = ("<!-- tables: begin -->", "<!-- tables: end -->")
TASKS: Final = {"resnet110_c10": "CIFAR-10, ResNet-110", "densenet40_c10": "CIFAR-10, DenseNet-40"}
#: Our metric name -> its column in the paper's tables, in the paper's order.
METRICS: Final = {
    "ece_s1": "ECE_s_r1", "ece_s2": "ECE_s_r2", "kde_ece": "KDE_ECE", "mmce": "MMCE", "ks": "KSerror",
    "ece_em": "ECE_em", "ace": "ACE", "dece": "dECE", "ece_ew": "ECE_ew", "ece_r2": "ECE_r2",
    "cwece_s": "CWECE_s", "cwece_a": "CWECE_a", "cwece_r2": "CWECE_r2", "tcwece": "tCWECE",
    "tcwece_k": "tCWECE_k", "dkde_ce": "DKDE_CE", "skce": "SKCE", "nll": "NLL",
}  # fmt: skip
#: Our name -> the paper's; the last three are its own method in its three settings.
METHODS: Final = {
    "hb": "HB", "iso": "Iso", "bbq": "BBQ", "enir": "ENIR", "ts": "TS", "vs": "VS", "ms": "MS", "beta": "Beta",
    "scabin": "ScaBin", "dir": "Dir", "gp": "GP", "diag": "DIAG", "dec": "DEC", "imax": "IMax", "softbin": "SoftBin",
    "spline": "Spline", "ec": "EC", "lece": "LECE", "sctl": "SCTL", "ts_lece": "TS+LECE",
    "h": "h", "h:class_wise": "h", "h:score": "h",
}  # fmt: skip
#: What the paper does not have and a reader will ask for.
MORE: Final = ("svs", "sms", "pool")
#: The metrics that the paper prints for its own method, and in which setting; the page's table shows the first.
PRINTED: Final = {"ece_s1": "h", "tcwece": "h:class_wise", "dkde_ce": "h:class_wise"}
SHORT: Final = "ece_s1"
#: The bins of the reliability diagrams of all methods, and the training of the paper's method epoch by epoch.
BINS: Final = RESULTS / "paper_bins.csv"
CURVES: Final = RESULTS / "paper_curves.csv"
N_BINS: Final = 15

Numbers = Mapping[tuple[str, str, str], float]


def run(data: Path, file: Path = FILE) -> None:
    """Fit and measure what the file lacks."""
    done = {(row["task"], row["method"]) for row in read(file)}
    for name in TASKS:
        task = load_task(name, data)
        for method in ("uncal", *METHODS, *MORE):
            if (name, method) in done:
                continue
            start = time.process_time()
            cal = _fitted(method, task)
            seconds = time.process_time() - start
            probs = (
                softmax(task.logits_test) if cal is None else cal.predict_proba(task.logits_test)
            )
            labels = {"task": name, "method": method}
            add_rows(file, [labels | row for row in _metric_rows(probs, task, seconds)])
            add_rows(BINS, [labels | row for row in _bin_rows(probs, task.y_test)])
            if cal is not None and cal.fit_.history:
                add_rows(CURVES, [labels | row for row in _curve_rows(cal.fit_.history)])
            print(name, method, f"{seconds:.1f} s", flush=True)


def _fitted(method: str, task: Task) -> Any:
    """Return the fitted calibrator of a method; None for no calibration."""
    if method == "uncal":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hcal.make_calibrator(method).fit(task.logits_cal, task.y_cal)


def _metric_rows(probs: Float64, task: Task, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each metric of test probabilities."""
    values = {
        name: float(getattr(metrics, name)(probs, task.y_test))
        for name in (*METRICS, "brier", "accuracy")
    }
    values["mean_confidence"] = float(probs.max(axis=1).mean())
    before = task.logits_test.argmax(axis=1)
    values["changed_predictions"] = float((probs.argmax(axis=1) != before).sum())
    return [
        {"metric": name, "value": f"{value:.8g}", "fit_seconds": f"{seconds:.1f}"}
        for name, value in values.items()
    ]


def _bin_rows(probs: Float64, y: IntArray) -> list[dict[str, Any]]:
    """Return the bins of a reliability diagram that hold a row: count, accuracy and mean confidence."""
    confidence = probs.max(axis=1)
    hit = probs.argmax(axis=1) == y
    place = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    count = np.bincount(place, minlength=N_BINS)
    hits = np.bincount(place, hit, N_BINS)
    total = np.bincount(place, confidence, N_BINS)
    rows = []
    for index in np.flatnonzero(count):
        accuracy = hits[index] / count[index]
        mean = total[index] / count[index]
        rows.append({"bin": index, "count": count[index], "accuracy": accuracy, "confidence": mean})
    return rows


def _curve_rows(history: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return a row for each epoch of a training: the loss, and the error that the schedule follows."""
    pairs = zip(history["loss"], history["ece_ew"], strict=True)
    return [
        {"epoch": epoch, "loss": loss, "ece_ew": error}
        for epoch, (loss, error) in enumerate(pairs, start=1)
    ]


def read(file: Path = FILE) -> list[dict[str, str]]:
    """Return the rows of a file; none where there is no file."""
    return read_rows(file)


def ours(rows: list[dict[str, str]]) -> Numbers:
    """Return our values by task, method and metric."""
    return {(r["task"], r["method"], r["metric"]): float(r["value"]) for r in rows}


def theirs(shared: Path) -> Numbers:
    """Return the paper's values by task, method (our name; its own is ``h``) and metric; ``uncal`` is "pre"."""
    metric = {theirs: name for name, theirs in METRICS.items()}
    method = {theirs: name for name, theirs in METHODS.items() if theirs != "h"}
    found: dict[tuple[str, str, str], float] = {}
    for file in ("paper_tables.csv", "paper_tables_densenet40.csv"):
        for row in read(shared / file):
            if row["task"] not in TASKS or row["metric"] not in metric:
                continue
            name = method.get(row["method"], "h")
            found[row["task"], name, metric[row["metric"]]] = float(row["post"])
            if row["pre"]:
                found.setdefault((row["task"], "uncal", metric[row["metric"]]), float(row["pre"]))
    return found


def short_table(own: Numbers, paper: Numbers) -> list[str]:
    """Return the table of one metric, the top-label error: the paper's value and ours, on both tasks."""
    titles = " | ".join(f"{title.partition(', ')[2]}: paper | hcal" for title in TASKS.values())
    lines = [
        "The top-label error ECE^s:",
        "",
        f"| method | {titles} |",
        "|---|" + "---:|" * (2 * len(TASKS)),
    ]
    for method in ("uncal", *METHODS, *MORE):
        cells = [
            cell
            for task in TASKS
            for cell in (_printed(paper, task, method), f"{own[task, method, SHORT]:.5f}")
        ]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return [*lines, ""]


def _printed(paper: Numbers, task: str, method: str) -> str:
    """Return the paper's value; its own method has one in the setting for this metric alone."""
    base = method.partition(":")[0]
    value = paper.get((task, base, SHORT))
    other_setting = base == "h" and method != PRINTED[SHORT]
    return "–" if value is None or other_setting else f"{value:.5f}"


def full_tables(own: Numbers, paper: Numbers) -> list[str]:
    """Return the page with every method and metric: the paper's value, ours, and the difference in per cent."""
    out = [
        "# The paper's tables beside ours",
        "",
        f"Generated by `python -m studies.paper page` from `results/paper.csv` ({origins(read())}) and the paper's "
        "tables. Each cell: the paper's value, ours, and the difference in per cent of the paper's.",
    ]
    for task, title in TASKS.items():
        out += ["", f"## {title}"]
        for metric, label in METRICS.items():
            out += [
                "",
                f"### {label}",
                "",
                "| method | paper | hcal | difference |",
                "|---|---:|---:|---:|",
            ]
            for method in ("uncal", *METHODS):
                base = method.partition(":")[0]
                if (task, method, metric) in own and (task, base, metric) in paper:
                    a, b = paper[task, base, metric], own[task, method, metric]
                    change = f"{(b - a) / abs(a):+.1%}".replace("%", " %") if a else "–"
                    out.append(f"| `{method}` | {a:.6g} | {b:.6g} | {change} |")
    return out


def agreement(own: Numbers, paper: Numbers) -> list[str]:
    """Return in a few sentences how far the two agree."""
    out = []
    for task, title in TASKS.items():
        before = [_apart(own, paper, task, "uncal", m) for m in METRICS]
        before = [d for d in before if d is not None]
        methods: dict[str, float] = {}
        for method in METHODS:
            apart = [_apart(own, paper, task, method, m) for m in METRICS]
            kept = [d for d in apart if d is not None]
            if kept and method.partition(":")[0] != "h":
                methods[method] = float(np.median(kept))
        close = [m for m, d in methods.items() if d <= 0.02]
        near = [m for m, d in methods.items() if 0.02 < d <= 0.15]
        far = [m for m, d in methods.items() if d > 0.15]
        out.append(
            f"- **{title}**: before calibration the metrics differ from the paper's by at most "
            f"{max(before, default=math.nan):.1%}. Median difference over the metrics at most 2 %: {_names(close)}; "
            f"at most 15 %: {_names(near)}; more: {_names(far)}.".replace("%.", " %.").replace(
                "% ", " % "
            )
        )
    return [line.replace("  %", " %") for line in out]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{n}`" for n in names) or "none"


def _apart(own: Numbers, paper: Numbers, task: str, method: str, metric: str) -> float | None:
    a, b = paper.get((task, method, metric)), own.get((task, method, metric))
    return None if a is None or b is None or not a else abs(b - a) / abs(a)


def _shown(key: tuple[str, str, str], task: str, group: tuple[str, ...], paper: Numbers) -> bool:
    name, method, metric = key
    return (
        name == task
        and metric.startswith(group)
        and method.partition(":")[0] != "h"
        and paper.get(key, 0) > 0
    )


def draw(own: Numbers, paper: Numbers) -> Path:
    """Draw our values against the paper's, one point a method and metric."""
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.0), layout="constrained")
        for axis, (task, title) in zip(axes, TASKS.items(), strict=True):
            for colour, group in zip(
                PALETTE[:3],
                (
                    ("ece_", "dece", "ks", "kde", "ace", "mmce"),
                    ("cwece", "tcwece"),
                    ("dkde", "skce"),
                ),
                strict=True,
            ):
                pairs = [
                    (paper[k], own[k]) for k in own if _shown(k, task, group, paper) and own[k] > 0
                ]
                label = {"ece_": "top-label", "cwece": "class-wise", "dkde": "canonical"}[group[0]]
                axis.plot(*zip(*pairs, strict=True), "o", color=colour, alpha=0.6, label=label)
            for metric, setting in PRINTED.items():
                key = (task, "h", metric)
                if key in paper and (task, setting, metric) in own:
                    axis.plot(paper[key], own[task, setting, metric], "D", color=SUBJECT, markeredgecolor="black",
                              label="h-calibration" if metric == "ece_s1" else None)  # fmt: skip
            ends = np.array([1e-5, 1.0])
            axis.plot(ends, ends, color="black", linewidth=0.8)
            axis.set(xscale="log", yscale="log", title=title, xlabel="the paper", ylabel="hcal")
        axes[0].legend()
        return save_figure(figure, ASSETS / "reproduction.svg")


def draw_reliability(data: Path) -> Path:
    """Draw reliability diagrams of both tasks: before, temperature scaling and h, as the paper's figure does."""
    with styled() as plt:
        figure, axes = plt.subplots(
            2, 3, figsize=(8.4, 5.4), sharex=True, sharey=True, layout="constrained"
        )
        for row, (name, title) in zip(axes, TASKS.items(), strict=True):
            task = load_task(name, data)
            for axis, method in zip(row, ("uncal", "ts", "h"), strict=True):
                cal = hcal.make_calibrator(method).fit(task.logits_cal, task.y_cal)
                p = cal.predict_proba(task.logits_test)
                confidence, hit = p.max(axis=1), p.argmax(axis=1) == task.y_test
                bins = np.minimum((confidence * 15).astype(int), 14)
                count = np.bincount(bins, minlength=15)
                shown = count > 0
                rate = np.bincount(bins, hit, 15)[shown] / count[shown]
                mean = np.bincount(bins, confidence, 15)[shown] / count[shown]
                at = (np.arange(15)[shown] + 0.5) / 15
                axis.bar(at, rate, 1 / 15, color=PALETTE[0], edgecolor="white", label="accuracy")
                axis.bar(
                    at,
                    mean - rate,
                    1 / 15,
                    rate,
                    color=SUBJECT,
                    alpha=0.5,
                    edgecolor="white",
                    label="gap",
                )
                axis.plot([0, 1], [0, 1], color="black", linewidth=0.8)
                error = hcal.metrics.ece_ew(p, task.y_test)
                axis.set_title(f"{title.partition(', ')[2]}, {method}: ECE {error:.4f}")
        axes[0, 0].legend()
        for axis in axes[1]:
            axis.set_xlabel("confidence")
        return save_figure(figure, ASSETS / "reliability-paper.svg")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    given: Any = parser.parse_args()
    if given.command == "run":
        run(given.data)
        return
    own, paper = ours(read()), theirs(given.data.parent)
    write_text(TABLES, "\n".join(full_tables(own, paper)) + "\n")
    replace_between(PAGE, MARKS, [*agreement(own, paper), "", *short_table(own, paper)])
    print(TABLES, draw(own, paper), draw_reliability(given.data))


if __name__ == "__main__":
    main()
