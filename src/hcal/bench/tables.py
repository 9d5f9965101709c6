"""The paper's tables, from stored results. A table is data; :mod:`hcal.bench.render` makes it text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.bench.catalog import GROUPS, PAPER_METRICS, PAPER_PROTOCOL, group_of, label_of, paper_selector
from hcal.bench.store import Results
from hcal.metrics.registry import LEVELS, METRICS
from hcal.numerics import Float64

Mark = Literal["", "best", "second"]
CellValue = float | str | None

#: What stands beside every class-wise and canonical number: near-uniform predictions win those metrics.
COMPANIONS: Final = ("nll", "brier", "mean_confidence")


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    label: str
    values: list[CellValue]
    marks: list[Mark] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)  # true for a collapsed predictor
    kind: Literal["task", "beside", "summary"] = "task"
    digits: int = 4  # digits after the point


@dataclass(frozen=True)
class ResultTable:
    """A title, columns, rows and notes."""

    title: str
    corner: str
    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def row(self, label: str) -> Row:
        """Return the row with a label."""
        return next(r for r in self.rows if r.label == label)


def marks_of(values: Float64, eligible: NDArray[np.bool_], *, higher: bool = False) -> list[Mark]:
    """Mark the best and the second of the eligible values; equal values share a mark.

    >>> marks_of(np.array([0.3, 0.1, 0.2]), np.array([True, True, True]))
    ['', 'best', 'second']
    """
    score = np.where(eligible & np.isfinite(values), -values if higher else values, np.inf)
    levels = np.unique(score[np.isfinite(score)])
    names: list[Mark] = ["best", "second"]
    out: list[Mark] = [""] * len(values)
    for name, level in zip(names, levels, strict=False):
        out = [name if s == level else m for s, m in zip(score, out, strict=True)]
    return out


def collapsed_cells(results: Results) -> NDArray[np.bool_]:
    """Return which task × method is a collapsed predictor, in any of its seeds."""
    flags = [
        [bool((results.values(t, m, "collapsed") > 0).any()) for m in results.methods] for t in results.tasks
    ]
    return np.array(flags, dtype=bool).reshape(len(results.tasks), len(results.methods))


def metric_table(results: Results, metric: str) -> ResultTable:
    """Return one metric: tasks × methods, then AE and ARE; best and second marked.

    A class-wise or canonical metric has NLL, Brier and mean confidence beside every number. Collapsed
    predictors are flagged and never marked.
    """
    if metric not in results.metrics:
        raise ValueError(f"{metric!r} is not in these results; there are: {', '.join(results.metrics)}")
    values, collapsed = results.table(metric), collapsed_cells(results)
    higher = metric in METRICS and not METRICS[metric].lower_is_better
    beside = group_of(metric) in ("class-wise", "canonical")
    rows: list[Row] = []
    for i, task in enumerate(results.tasks):
        marks = marks_of(values[i], ~collapsed[i], higher=higher)
        rows.append(Row(task, _values(values[i]), marks, collapsed[i].tolist(), digits=_digits(metric)))
        if beside:
            rows += [
                _beside(results, task, name) for name in COMPANIONS if np.isfinite(results.before(task, name))
            ]
    rows += _summary_rows(results, metric, values, collapsed, higher=higher)
    notes = ["¹ best, ² second of a row"]
    if collapsed.any():
        notes.append("† collapsed predictor (near-uniform): never marked")
    notes += _incomplete(results, values)
    title = f"{label_of(metric)} ({group_of(metric)})"
    return ResultTable(title, "task", list(results.methods), rows, notes)


def _digits(metric: str) -> int:
    return 5 if metric in ("dkde_ce", "skce", "cwece_a") else 4


def _values(row: Float64) -> list[CellValue]:
    return [float(v) if np.isfinite(v) else None for v in row]


def _beside(results: Results, task: str, name: str) -> Row:
    values = np.array([results.value(task, m, name) for m in results.methods])
    return Row(f"  {label_of(name)}", _values(values), kind="beside", digits=3)


def _summary_rows(
    results: Results, metric: str, values: Float64, collapsed: NDArray[np.bool_], *, higher: bool
) -> list[Row]:
    whole = _all_good(values, collapsed)
    error = _column_means(values)
    marks = marks_of(error, whole, higher=higher)
    out = [Row("AE", _values(error), marks, kind="summary", digits=_digits(metric))]
    if not higher:
        relative = _column_means(results.table(metric, relative=True))
        out.append(Row("ARE", _values(relative), marks_of(relative, whole), kind="summary", digits=3))
    return out


def _all_good(values: Float64, collapsed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which methods have every task and collapse on none."""
    return np.asarray(np.isfinite(values).all(axis=0) & ~collapsed.any(axis=0), dtype=bool)


def _column_means(table: Float64) -> Float64:
    """Return the mean over the tasks that a method has; NaN for a method without any."""
    count = np.isfinite(table).sum(axis=0)
    return np.where(count > 0, np.nansum(table, axis=0) / np.maximum(count, 1), np.nan)


def _incomplete(results: Results, values: Float64) -> list[str]:
    count = np.isfinite(values).sum(axis=0)
    missing = [f"{m} ({c})" for m, c in zip(results.methods, count, strict=True) if 0 < c < len(values)]
    if not missing:
        return []
    return [f"mean over fewer than the {len(values)} tasks, and not marked: {', '.join(missing)}"]


def overview_table(results: Results, *, relative: bool = True) -> ResultTable:
    """Return ARE (or AE) per metric × method, the paper's overall table.

    ARE is the mean over tasks of the ratio to the uncalibrated error.
    """
    metrics = [m for group in LEVELS[:-1] for m in GROUPS[group]]
    shown = [m for m in metrics if m in results.metrics]
    collapsed = collapsed_cells(results)
    flags = [bool(collapsed[:, i].any()) for i in range(collapsed.shape[1])]
    rows = []
    for metric in shown:
        values = _column_means(results.table(metric, relative=relative))
        marks = marks_of(values, _all_good(results.table(metric), collapsed))
        digits = 3 if relative else _digits(metric)
        rows.append(Row(label_of(metric), _values(values), marks, flags, digits=digits))
    rows += _companions(results, COMPANIONS)
    title = "Average relative error (ARE)" if relative else "Average error (AE)"
    notes = [
        "¹ best, ² second of a row; † collapsed on some task: never marked",
        "NLL, Brier and mean confidence: mean over tasks",
    ]
    unstable = [
        label_of(m) for m in shown if METRICS[m].kind == "debiased" and METRICS[m].level == "canonical"
    ]
    if relative and unstable:
        names = " and ".join(unstable)
        notes.append(f"{names}: estimates near 0 on good networks, of either sign; their ratios are unstable")
    return ResultTable(title, "metric", list(results.methods), rows, notes)


def _companions(results: Results, names: Sequence[str]) -> list[Row]:
    """Return what tells a good predictor from a collapsed one: means over tasks, count of collapses."""
    rows = [
        Row(label_of(n), _values(_column_means(results.table(n))), kind="beside", digits=3) for n in names
    ]
    counts: list[CellValue] = [float(c) for c in collapsed_cells(results).sum(axis=0)]
    return [*rows, Row("collapsed tasks", counts, kind="beside", digits=0)]


def rank_table(results: Results) -> ResultTable:
    """Return mean ranks over tasks per metric and per group, with the critical difference.

    >>> rank_table(Results([])).rows
    []
    """
    kept = results.select(methods=_complete_methods(results))
    rows: list[Row] = []
    for group in LEVELS:
        shown = [m for m in GROUPS[group] if m in kept.metrics and m != "accuracy"]
        if not shown or not kept.tasks:
            continue
        mean = np.array([ranks(kept.table(m)).mean(axis=0) for m in shown])
        for metric, values in zip(shown, mean, strict=True):
            rows.append(Row(label_of(metric), _values(values), marks_of(values, values > 0), digits=1))
        average = mean.mean(axis=0)
        rows.append(
            Row(f"mean {group}", _values(average), marks_of(average, average > 0), kind="summary", digits=1)
        )
    notes = []
    if len(kept.tasks) > 1 and len(kept.methods) > 1:
        cd = critical_difference(len(kept.tasks), len(kept.methods))
        size = f"{len(kept.methods)} methods on {len(kept.tasks)} tasks"
        notes.append(f"{size}: mean ranks closer than {cd:.1f} do not differ (Nemenyi, 5 %)")
    left_out = sorted(set(results.methods) - set(kept.methods))
    if left_out:
        notes.append(f"left out, because a task is missing: {', '.join(left_out)}")
    return ResultTable("Mean rank over tasks (1 is best)", "metric", list(kept.methods), rows, notes)


def ranks(table: Float64) -> Float64:
    """Rank each row of (tasks, methods), 1 for the smallest, ties shared; NaN stays NaN.

    >>> ranks(np.array([[0.3, 0.1, 0.1]]))
    array([[3. , 1.5, 1.5]])
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(table, axis=1, nan_policy="omit"), dtype=np.float64)


def critical_difference(n_tasks: int, n_methods: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 5 % (Demšar, JMLR 2006).

    >>> round(critical_difference(14, 4), 2)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, n_methods, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(n_methods * (n_methods + 1) / (6 * n_tasks)))


def _complete_methods(results: Results) -> list[str]:
    """Return the methods that have every task: ranks need complete rows."""
    return [m for m in results.methods if all(results.seeds(t, m) for t in results.tasks)]


def accuracy_table(results: Results) -> ResultTable:
    """Return the change of accuracy in points, and the argmax changes, tasks × methods."""
    rows = []
    for task in results.tasks:
        change = np.array(
            [results.value(task, m, "accuracy") - results.before(task, "accuracy") for m in results.methods]
        )
        rows.append(Row(task, _values(100 * change), digits=2))
        flips = np.array([results.value(task, m, "argmax_changes") for m in results.methods])
        rows.append(Row("  argmax changes", _values(flips), kind="beside", digits=0))
    return ResultTable("Change of accuracy, in points", "task", list(results.methods), rows)


def protocol_table(results: Results) -> ResultTable:
    """Return the paper's three-selector protocol beside the single default calibrator.

    Each metric's ARE for every method; the paper's tables show, for each metric, the selector of that
    metric's level, which is marked with a star.
    """
    kept = results.select(methods=["ts", *PAPER_PROTOCOL, "h"])
    shown = [m for g in LEVELS[:-1] for m in GROUPS[g] if m in kept.metrics]
    rows = []
    for metric in shown:
        values = _column_means(kept.table(metric, relative=True))
        text: list[CellValue] = [
            None
            if not np.isfinite(v)
            else f"{v:.3f}" + ("*" if metric in PAPER_METRICS and m == paper_selector(metric) else "")
            for m, v in zip(kept.methods, values, strict=True)
        ]
        rows.append(Row(label_of(metric), text))
    rows += _companions(kept, (*COMPANIONS, "accuracy"))
    notes = [
        "ARE over the tasks; * the selector that the paper's table of this metric shows",
        "one calibrator cannot be all three: whoever uses probabilities has to pick one column",
    ]
    return ResultTable(
        "Three-selector paper protocol and the default", "metric", list(kept.methods), rows, notes
    )


def cost_table(results: Results) -> ResultTable:
    """Return median fit time, predict time and peak memory of each method, worst task in a second row."""
    facts = {"fit_s": "fit, s", "predict_s": "predict, s", "peak_mb": "peak memory, MiB"}
    rows = []
    for name, title in facts.items():
        values = results.table(name)
        if not values.size:
            continue
        digits = 0 if name == "peak_mb" else 2
        for word, reduced in (("median", _quantile(values, 0.5)), ("worst task", _quantile(values, 1.0))):
            rows.append(Row(f"{title}, {word}", _values(reduced), digits=digits))
    return ResultTable("Cost of a fit and of predicting the test part", "", list(results.methods), rows)


def _quantile(values: Float64, q: float) -> Float64:
    out = [np.quantile(c[np.isfinite(c)], q) if np.isfinite(c).any() else np.nan for c in values.T]
    return np.array(out, dtype=np.float64)


def failure_table(results: Results) -> ResultTable:
    """Return the cells that gave no result, and why."""
    rows = [
        Row(f"{c.key.task} · {c.key.method} · seed {c.key.seed}", [c.error[:120]]) for c in results.failures()
    ]
    return ResultTable("Cells that gave no result", "cell", ["why"], rows)


def all_tables(results: Results) -> list[ResultTable]:
    """Return every table of the study, the overview first."""
    tables = [overview_table(results), overview_table(results, relative=False), rank_table(results)]
    if any(m in results.methods for m in PAPER_PROTOCOL):
        tables.append(protocol_table(results))
    tables += [metric_table(results, m) for m in results.metrics if m != "accuracy"]
    tables += [accuracy_table(results), cost_table(results)]
    return tables + ([failure_table(results)] if results.failures() else [])
