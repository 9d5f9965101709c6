"""What the reproduction page says, as tables computed from results files; nothing is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcal.bench.catalog import PAPER_METHODS, PAPER_METRICS, label_of, paper_selector
from hcal.bench.store import Key, Results
from hcal.bench.tables import CellValue, ResultTable, Row
from hcal.metrics.registry import METRICS
from studies.paired import SAME_AS_PAPER, PairedInterval, compared_metrics, paired_on_task, paired_over_tasks
from studies.published import PAPER_H, PRINTED

Array = NDArray[np.float64]
LEVELS = ("top-label", "class-wise", "canonical")
OBJECTIVES = ("h", "nll", "brier")


def _interval(i: PairedInterval, digits: int) -> str:
    if not np.isfinite(i.low):
        return "no interval"
    return f"{i.low:+.{digits}f} to {i.high:+.{digits}f}"


def _words(i: PairedInterval, lower: str, higher: str) -> str:
    return {"lower": lower, "higher": higher, "noise": "inside the noise", "unknown": "no interval"}[
        i.verdict
    ]


def rank_among(
    results: Results, task: str, subject: str, others: Sequence[str], metric: str
) -> tuple[int, int, str]:
    """Return the rank of a method among others on one task, how many were ranked, and the best other.

    Parameters
    ----------
    results : Results
    task, subject : str
    others : sequence of str
    metric : str

    Returns
    -------
    rank, count, best other
    """
    values = {m: results.value(task, m, metric) for m in others}
    values = {m: v for m, v in values.items() if np.isfinite(v)}
    own = results.value(task, subject, metric)
    best = min(values, key=lambda m: values[m]) if values else ""
    return 1 + sum(v < own for v in values.values()), len(values) + 1, best


def rank_on_task(results: Results, task: str, published: Results | None) -> ResultTable:
    """Return h-calibration's rank on each metric among the paper's methods, with paired intervals.

    The row of a metric shows the paper protocol with the selector that the paper uses for its level. A gap
    to the best other method counts as real only if its paired bootstrap interval excludes 0.

    Parameters
    ----------
    results : Results
        Our runs.
    task : str
    published : Results, optional
        The paper's numbers, for its own rank.

    Returns
    -------
    ResultTable
    """
    others = [m for m in PAPER_METHODS if m in results.methods]
    rows = []
    for metric in PAPER_METRICS:
        subject = paper_selector(metric)
        if metric not in results.metrics or not results.seeds(task, subject):
            continue
        seeds = results.values(task, subject, metric)
        rank, count, best = rank_among(results, task, subject, others, metric)
        gap = paired_on_task(results, task, subject, best, metric)
        default, _, _ = rank_among(results, task, "h", others, metric)
        own = results.value(task, "h", metric)
        digits = 7 if metric == "skce" else 5
        shown: list[CellValue] = [
            subject,
            _over_seeds(seeds, digits),
            f"{rank} of {count}",
            f"{best} {results.value(task, best, metric):.{digits}f}",
            _interval(gap, digits),
            _words(gap, "h is better", "h is worse"),
            _paper_rank(published, SAME_AS_PAPER.get(task, task), metric),
            f"{own:.{digits}f}, {default} of {count}" if np.isfinite(own) else None,
        ]
        rows.append(Row(label_of(metric), shown))
    columns = [
        "selector",
        "mean ± sd over seeds",
        "rank",
        "best other",
        "h − best other, 95 %",
        "verdict",
        "rank in the paper",
        "default h, rank",
    ]
    return ResultTable(f"h-calibration on {task} among the paper's methods", "metric", columns, rows)


def _over_seeds(values: NDArray[np.float64], digits: int) -> str:
    """Return mean ± sd; where all seeds gave the same, say that instead of a spread of 0."""
    mean = f"{values.mean():.{digits}f}"
    if len(values) == 1:
        return f"{mean} (one seed)"
    if values.std() < 0.5 * 10.0**-digits:
        return f"{mean} ({len(values)} seeds alike)"
    return f"{mean} ± {values.std():.{digits}f}"


def _paper_rank(published: Results | None, task: str, metric: str) -> str | None:
    if published is None or not np.isfinite(published.value(task, PAPER_H, metric)):
        return None
    rank, count, _ = rank_among(published, task, PAPER_H, list(PAPER_METHODS), metric)
    return f"{rank} of {count} ({published.value(task, PAPER_H, metric):.4f})"


def match_table(results: Results, task: str, published: Results) -> ResultTable:
    """Return our re-run of each comparison method beside the paper's number on the paper's own task."""
    theirs = SAME_AS_PAPER.get(task, task)
    rows = []
    for method in (m for m in PAPER_METHODS if m in results.methods):
        values: list[CellValue] = []
        for metric in ("ece_ew", "cwece_a", "nll"):
            ours, paper = results.value(task, method, metric), published.value(theirs, method, metric)
            values += [f"{ours:.4f}", f"{paper:.4f}", f"{ours / paper:.2f}"]
        rows.append(Row(method, values))
    columns = [f"{t}{w}" for t in ("ECE^ew", "CWECE_a", "NLL") for w in (", ours", ", paper", ", ratio")]
    return ResultTable(f"Comparison methods on {task}: our runs beside the paper", "method", columns, rows)


def objective_differences(results: Results, level: str, other: str) -> tuple[PairedInterval, int, int]:
    """Compare the h objective with a proper score over tasks, on the metrics of one level.

    Parameters
    ----------
    results : Results
        Of the ablation ``objective``.
    level : {"top-label", "class-wise", "canonical", "score"}
    other : {"nll", "brier"}

    Returns
    -------
    PairedInterval
        Mean over tasks of the difference of relative errors (h minus other), averaged over metrics.
    wins, count : int
        On how many of the level's metrics h has the lower ARE, and how many there are.
    """
    metrics = compared_metrics(results.metrics, level)
    both = {o: np.array([_relative(results, o, m) for m in metrics]) for o in ("h", other)}
    difference = np.array([_difference(results, other, m) for m in metrics])
    wins = int((np.nanmean(both["h"], axis=1) < np.nanmean(both[other], axis=1)).sum())
    return paired_over_tasks(np.nanmean(difference, axis=0)), wins, len(metrics)


#: Debiased errors: near 0, or negative, where a network is calibrated; a ratio to that means nothing.
_SIGNED = tuple(name for name, metric in METRICS.items() if metric.kind == "debiased")


def _difference(results: Results, other: str, metric: str) -> Array:
    """Return (h − other) / before for every task; signed metrics are divided by their mean |before|."""
    before = np.array([results.before(t, metric) for t in results.tasks], dtype=np.float64)
    scale = np.full(len(before), np.nanmean(np.abs(before))) if metric in _SIGNED else before
    ratios = _relative(results, "h", metric) - _relative(results, other, metric)
    return np.asarray(ratios * before / scale, dtype=np.float64)


def errors(results: Results, objective: str, metric: str, relative: bool) -> Array:
    """Return the error of every task by the paper's selector of the level, or its ratio to before."""
    end = paper_selector(metric).removeprefix("h_")
    values = np.array([results.value(t, f"obj-{objective}/{end}", metric) for t in results.tasks])
    before = np.array([results.before(t, metric) for t in results.tasks], dtype=np.float64)
    return np.asarray(values / before if relative else values, dtype=np.float64)


def _relative(results: Results, objective: str, metric: str) -> Array:
    return errors(results, objective, metric, relative=True)


def objective_table(results: Results) -> ResultTable:
    """Return the answer to the paper's central claim: h against NLL and Brier, per level of metrics."""
    rows = []
    for level in (*LEVELS, "score"):
        for other in ("nll", "brier"):
            gap, wins, count = objective_differences(results, level, other)
            if not count:
                continue
            values: list[CellValue] = [
                other.upper() if other == "nll" else "Brier",
                f"{gap.value:+.3f}",
                _interval(gap, 3),
                _words(gap, "h is better", "h is worse"),
                f"{wins} of {count}",
            ]
            rows.append(Row(level, values))
    columns = ["against", "mean difference", "95 % over tasks", "verdict", "metrics with lower ARE"]
    notes = [
        "difference of error / uncalibrated error, h minus the other objective; negative: h is better",
        "dECE and SKCE, near 0 or negative on a calibrated network, are divided by their mean over tasks",
        f"{len(results.tasks)} tasks, Student's interval over tasks, not corrected for the number of lines",
    ]
    title = "The h objective against proper scores, equal maps and training"
    return ResultTable(title, "level", columns, rows, notes)


def objective_metric_table(results: Results) -> ResultTable:
    """Return ARE and AE of the three objectives on every metric."""
    rows = []
    for metric in (m for m in (*PAPER_METRICS, "nll", "brier") if m in results.metrics):
        relative = [float(np.nanmean(_relative(results, o, metric))) for o in OBJECTIVES]
        absolute = [float(np.nanmean(errors(results, o, metric, relative=False))) for o in OBJECTIVES]
        values: list[CellValue] = [*(f"{v:.3f}" for v in relative), *(f"{v:.5f}" for v in absolute)]
        rows.append(Row(label_of(metric), values))
    columns = [f"{w}, {o}" for w in ("ARE", "AE") for o in ("h", "NLL", "Brier")]
    return ResultTable("Objectives, metric by metric", "metric", columns, rows)


def calibrated_tasks_table(results: Results) -> ResultTable:
    """Return, task by task, how each objective changed top-label error: does it undo a calibrated network?"""
    rows = []
    for task in sorted(results.tasks, key=lambda t: results.before(t, "ece_ew")):
        before = results.before(task, "ece_ew")
        after = [results.value(task, f"obj-{o}/top", "ece_ew") for o in OBJECTIVES]
        rows.append(Row(task, [before, *after]))
    title = "ECE^ew before and after, tasks in order of error before"
    return ResultTable(title, "task", ["before", "h", "NLL", "Brier"], rows)


def tasks_table(results: Results, level: str) -> ResultTable:
    """Return, task by task, the mean relative error over the metrics of a level under each objective."""
    metrics = [m for m in compared_metrics(results.metrics, level) if m not in _SIGNED]
    mean = {o: np.nanmean([_relative(results, o, m) for m in metrics], axis=0) for o in OBJECTIVES}
    rows = [
        Row(task, [float(mean[o][i]) for o in OBJECTIVES], digits=3) for i, task in enumerate(results.tasks)
    ]
    title = f"Mean {level} error / uncalibrated error, task by task"
    return ResultTable(title, "task", ["h", "NLL", "Brier"], rows)


def epochs_trained(results: Results, task: str, method: str) -> int | None:
    """Return after how many epochs the training behind a method ended; None where it was not noted."""
    for seed in results.seeds(task, method):
        info = results.good[Key(task, method, seed)].notes.get("info", {})
        if "epochs" in info:
            return int(info["epochs"])
    return None


def collapse_table(results: Results) -> ResultTable:
    """Return every collapsed task × method, beside temperature scaling on the same task."""
    rows = []
    for task in results.tasks:
        for method in results.methods:
            if (results.values(task, method, "collapsed") > 0).any():
                for name in ("ts", method):
                    rows.append(_trap_row(results, task, name))
    columns = ["CWECE_a", "tCWECE", "ECE^ew", "NLL", "mean confidence", "accuracy"]
    title = "Collapsed predictors, each under temperature scaling of its task"
    return ResultTable(title, "task, method", columns, rows)


def _trap_row(results: Results, task: str, method: str) -> Row:
    names = ("cwece_a", "tcwece", "ece_ew", "nll", "mean_confidence", "accuracy")
    values: list[CellValue] = []
    for name in names:
        v = results.value(task, method, name)
        values.append(None if not np.isfinite(v) else f"{v:.5f}" if name == "cwece_a" else f"{v:.3f}")
    return Row(f"{task}, {method}", values)


def piecewise_table(results: Results) -> ResultTable:
    """Return order inversions and argmax changes of the published piecewise map and of the paper's."""
    names = [m for m in results.methods if m.split("/")[0] in ("piecewise-500", "published-piecewise-500")]
    rows = []
    for task in results.tasks:
        for method in names:
            if not results.seeds(task, method):
                continue
            facts = [results.value(task, method, n) for n in ("order_inversions", "argmax_changes")]
            errors = [results.value(task, method, n) for n in ("tcwece", "dkde_ce", "nll")]
            values: list[CellValue] = [*(f"{v:.0f}" for v in facts), *(f"{v:.5f}" for v in errors)]
            rows.append(Row(f"{task}, {method}", values))
    columns = ["rows with an inverted pair", "argmax changes", "tCWECE", "DKDE-CE", "NLL"]
    title = "The published piecewise map and the paper's, same size and training"
    return ResultTable(title, "task, map", columns, rows)


def cars_table(published: Results) -> ResultTable:
    """Return the two CARS rows as printed beside the values behind them."""
    rows = []
    for task in ("resnet101_cars", "resnet101scratch_cars"):
        for method in ("ts", "vs", "spline"):
            printed = published.value(task + PRINTED, method, "ece_s1")
            values: list[CellValue] = [f"{printed:.4f}"]
            for other in ("resnet101_cars", "resnet101scratch_cars"):
                values.append(f"{published.value(other, method, 'ece_s1'):.4f}")
            rows.append(Row(f"{task}, {method}", values))
    columns = ["printed", "value of resnet101_cars", "value of resnet101scratch_cars"]
    return ResultTable("ECE^s (r=1) of baselines on CARS", "row, method", columns, rows)


def swapped(published: Results) -> bool:
    """Return whether the printed baselines of the two CARS tasks are each other's."""
    pair = ("resnet101_cars", "resnet101scratch_cars")
    found = []
    for method in PAPER_METHODS:
        printed = [published.value(t + PRINTED, method, "ece_s1") for t in pair]
        value = [published.value(t, method, "ece_s1") for t in pair]
        if np.isfinite([*printed, *value]).all():
            found.append(abs(printed[0] - value[1]) + abs(printed[1] - value[0]) < 2e-4)
    return bool(found) and all(found)
