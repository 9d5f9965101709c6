"""The tables and pictures of ``results/paper*.csv`` beside the paper's, for ``python -m studies.paper page``.

The paper sums up a method over tasks by its average error (AE), by the average of its errors divided by those before
calibration (ARE), and by its rank. The pages have them over the two tasks that are here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import rankdata

from studies.drawing import PALETTE, SUBJECT, replace_between, save_figure, styled, write_text
from studies.paper import (
    BINS,
    CURVES,
    METHODS,
    METRICS,
    MORE,
    N_BINS,
    PAIRED,
    PAIRS,
    PRINTED,
    REFERENCE,
    SHORT,
    TASKS,
    Numbers,
    network,
    ours,
    read,
    theirs,
)
from studies.records import ROOT, origins, read_rows

PAGE: Final = ROOT / "docs" / "reproduction.md"
TABLES: Final = ROOT / "studies" / "reproduction-tables.md"
DOCS_ASSETS: Final = ROOT / "docs" / "assets"
STUDY_ASSETS: Final = ROOT / "studies" / "assets"
VERDICT_MARKS: Final = ("<!-- verdicts: begin -->", "<!-- verdicts: end -->")
MARKS: Final = ("<!-- tables: begin -->", "<!-- tables: end -->")
#: Metrics of each kind, by how our names of them start.
KINDS: Final = {
    "top-label": ("ece_", "dece", "ks", "kde", "ace", "mmce"),
    "class-wise": ("cwece", "tcwece"),
    "canonical": ("dkde", "skce"),
}
#: The top-label errors of the paper.
TOP_LABEL: Final = (
    "ece_s1", "ece_s2", "kde_ece", "mmce", "ks", "ece_em", "ace", "dece", "ece_ew", "ece_r2"
)  # fmt: skip
#: Up to this median difference over the metrics, a comparison method counts as confirmed.
CONFIRMED: Final = 0.15
ALL_METHODS: Final = ("uncal", *METHODS, *MORE)

Row = dict[str, str]


def write(shared: Path) -> list[Path]:
    """Write the pages and the pictures, and return their paths."""
    measured, paper = ours(read()), theirs(shared)
    tables = [
        *full_tables(measured, paper),
        *agreement(measured, paper),
        *short_table(measured, paper),
        *summary_tables(measured),
        *prediction_tables(measured),
        *pictures(),
    ]
    write_text(TABLES, "\n".join(tables) + "\n")
    pairs = read_rows(PAIRS)
    replace_between(PAGE, VERDICT_MARKS, verdicts(measured, paper, pairs))
    replace_between(PAGE, MARKS, pair_table(pairs))
    bins = read_rows(BINS)
    figures = [
        draw_agreement(measured, paper),
        draw_reliability(bins),
        draw_curves(read_rows(CURVES)),
    ]
    figures += [draw_all_reliability(bins, task) for task in TASKS]
    return [TABLES, PAGE, *figures]


# -- tables ---------------------------------------------------------------------------------------


def verdicts(measured: Numbers, paper: Numbers, pairs: Sequence[Row]) -> list[str]:
    """Return the table of what reproduces."""
    farthest = max(max(_apart(measured, paper, task, "uncal")) for task in TASKS)
    medians = [median_differences(measured, paper, task) for task in TASKS]
    confirmed = [
        method for method in medians[0] if all(of_task[method] <= CONFIRMED for of_task in medians)
    ]
    lines = [
        "| result of the paper | here |",
        "|---|---|",
        f"| the metrics | confirmed: before calibration at most {100 * farthest:.1f} % off |",
        f"| the {len(medians[0])} comparison methods | {len(confirmed)} confirmed on both tasks: "
        f"median difference over the metrics at most {100 * CONFIRMED:.0f} % |",
        "| h-calibration, the six printed numbers | in the published mode: five within 5 %, the "
        "sixth for one seed of three |",
    ]
    for task in TASKS:
        lines.append(
            f"| h-calibration as the paper describes it, {network(task)} | "
            f"{top_label_verdict(measured, pairs, task)} |"
        )
    return [*lines, "| class-wise and canonical errors | confirmed in the published mode only |"]


def top_label_verdict(measured: Numbers, pairs: Sequence[Row], task: str) -> str:
    """Return what the top-label errors of h are, against those of temperature scaling."""
    ratios = [
        measured[task, "h", metric] / measured[task, REFERENCE, metric] for metric in TOP_LABEL
    ]
    ratio = measured[task, "h", SHORT] / measured[task, REFERENCE, SHORT]
    verdict = "confirmed" if ratio < 1 else "not confirmed"
    return (
        f"{verdict}: ECE^s {ratio:.2f} × temperature scaling's "
        f"({pair_text(pairs, task, 'h', SHORT)}); the mean over ten top-label errors "
        f"{np.mean(ratios):.2f} ×"
    )


def pair_table(pairs: Sequence[Row]) -> list[str]:
    """Return what our methods change against temperature scaling, with paired intervals."""
    titles_of = {SHORT: "ECE^s", "nll": "NLL"}
    titles = [f"{network(task)}: {title}" for task in TASKS for title in titles_of.values()]
    lines = [
        "Test error less that of temperature scaling, with 95 % intervals from "
        "rows resampled together:",
        "",
        f"| method | {' | '.join(titles)} |",
        "|---|" + "---:|" * len(titles),
    ]
    for method in PAIRED:
        cells = [pair_text(pairs, task, method, metric) for task in TASKS for metric in titles_of]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def pair_text(pairs: Sequence[Row], task: str, method: str, metric: str) -> str:
    """Return a change against temperature scaling, with its interval."""
    labels = {"task": task, "method": method, "metric": metric}
    row = next(row for row in pairs if labels.items() <= row.items())
    change, low, high = (float(row[name]) for name in ("change", "low", "high"))
    return f"{change:+.4f} [{low:+.4f}, {high:+.4f}]"


def short_table(measured: Numbers, paper: Numbers) -> list[str]:
    """Return the table of one metric, the top-label error: the paper's value and ours, on both tasks."""
    titles = " | ".join(f"{network(task)}: paper | hcal" for task in TASKS)
    lines = [
        "",
        "## Every method that we ran, by its top-label error ECE^s",
        "",
        f"| method | {titles} |",
        "|---|" + "---:|" * (2 * len(TASKS)),
    ]
    for method in ALL_METHODS:
        cells = []
        for task in TASKS:
            cells.append(_printed(paper, task, method))
            cells.append(f"{measured[task, method, SHORT]:.5f}")
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def _printed(paper: Numbers, task: str, method: str) -> str:
    """Return the paper's value; its own method has one in the setting for this metric alone."""
    base = method.partition(":")[0]
    value = paper.get((task, base, SHORT))
    other_setting = base == "h" and method != PRINTED[SHORT]
    return "–" if value is None or other_setting else f"{value:.5f}"


def full_tables(measured: Numbers, paper: Numbers) -> list[str]:
    """Return the page with every method and metric: the paper's value, ours, and the difference in per cent."""
    lines = [
        "# The paper's tables beside ours",
        "",
        f"Generated by `python -m studies.paper page` from `results/paper.csv` ({origins(read())}) "
        "and the paper's tables. Each cell: the paper's value, ours, and the difference in per "
        "cent of the paper's.",
    ]
    for task, title in TASKS.items():
        lines += ["", f"## {title}"]
        for metric in METRICS:
            lines += _metric_table(measured, paper, task, metric)
    return lines


def _metric_table(measured: Numbers, paper: Numbers, task: str, metric: str) -> list[str]:
    """Return the table of one metric on one task."""
    lines = [
        "",
        f"### {METRICS[metric]}",
        "",
        "| method | paper | hcal | difference |",
        "|---|---:|---:|---:|",
    ]
    for method in ("uncal", *METHODS):
        printed = paper.get((task, method.partition(":")[0], metric))
        value = measured.get((task, method, metric))
        if printed is None or value is None:
            continue
        change = f"{(value - printed) / abs(printed):+.1%}".replace("%", " %") if printed else "–"
        lines.append(f"| `{method}` | {printed:.6g} | {value:.6g} | {change} |")
    return lines


class Summary(NamedTuple):
    """A method over tasks: average error, average relative error, average rank."""

    error: float
    relative: float
    rank: float


def summaries(measured: Numbers, metric: str, tasks: Iterable[str] = TASKS) -> dict[str, Summary]:
    """Return the summary of every method in one metric, the least relative error first.

    >>> values = {("a", "uncal", "nll"): 1.0, ("a", "ts", "nll"): 0.5}
    >>> summaries(values, "nll", ["a"])["ts"]
    Summary(error=0.5, relative=0.5, rank=1.0)
    """
    tasks = tuple(tasks)
    methods = list(dict.fromkeys(method for _, method, _ in measured))
    errors = np.array([[measured[task, method, metric] for task in tasks] for method in methods])
    before = np.array([measured[task, "uncal", metric] for task in tasks])
    relative = (errors / before).mean(axis=1)
    ranks = rankdata(errors, axis=0).mean(axis=1)
    rows = zip(errors.mean(axis=1).tolist(), relative.tolist(), ranks.tolist(), strict=True)
    by_method = {method: Summary(*row) for method, row in zip(methods, rows, strict=True)}
    return dict(sorted(by_method.items(), key=lambda item: item[1].relative))


def summary_tables(measured: Numbers) -> list[str]:
    """Return the section on AE, ARE and rank: one table a metric."""
    lines = [
        "",
        "## Averages over the two tasks, of hcal's values",
        "",
        "AE is the average error, ARE the average of error / error before calibration, and the "
        "rank is among all methods of the table, 1 the best. dECE and SKCE can be negative, so "
        "they are left out.",
    ]
    for metric, title in METRICS.items():
        if metric in ("dece", "skce"):
            continue
        lines += ["", f"### {title}", "", "| method | AE | ARE | rank |", "|---|---:|---:|---:|"]
        for method, row in summaries(measured, metric).items():
            lines.append(f"| `{method}` | {row.error:.5g} | {row.relative:.3f} | {row.rank:.1f} |")
    return lines


def prediction_tables(measured: Numbers) -> list[str]:
    """Return the section on predictions: accuracy, mean confidence, and how many of 10,000 changed."""
    lines = ["", "## Accuracy, confidence and changed predictions"]
    for task, title in TASKS.items():
        lines += [
            "",
            f"### {title}, test part",
            "",
            "| method | accuracy | mean confidence | predictions changed |",
            "|---|---:|---:|---:|",
        ]
        for method in ALL_METHODS:
            accuracy = measured[task, method, "accuracy"]
            confidence = measured[task, method, "mean_confidence"]
            changed = measured[task, method, "changed_predictions"]
            lines.append(f"| `{method}` | {accuracy:.4f} | {confidence:.4f} | {changed:.0f} |")
    return lines


def pictures() -> list[str]:
    """Return the section of the pictures that only this page shows."""
    lines = ["", "## Reliability diagrams of all methods"]
    for task, title in TASKS.items():
        lines += ["", f"![Reliability diagrams of all methods, {title}](assets/{_all_name(task)})"]
    return lines


def agreement(measured: Numbers, paper: Numbers) -> list[str]:
    """Return the section on how far the two agree, in a few sentences."""
    sentences = [_agreement_on(measured, paper, task) for task in TASKS]
    return ["", "## Which methods agree", "", *sentences]


def _agreement_on(measured: Numbers, paper: Numbers, task: str) -> str:
    """Return how far the two agree on one task."""
    medians = median_differences(measured, paper, task)
    close = [method for method, apart in medians.items() if apart <= 0.02]
    near = [method for method, apart in medians.items() if 0.02 < apart <= CONFIRMED]
    far = [method for method, apart in medians.items() if apart > CONFIRMED]
    most = 100 * max(_apart(measured, paper, task, "uncal"))
    return (
        f"- **{TASKS[task]}**: before calibration the metrics differ from the paper's by at most "
        f"{most:.1f} %. Median difference over the metrics at most 2 %: {_names(close)}; at most "
        f"15 %: {_names(near)}; more: {_names(far)}."
    )


def median_differences(measured: Numbers, paper: Numbers, task: str) -> dict[str, float]:
    """Return for each comparison method the median over the metrics of the relative difference."""
    compared = [method for method in METHODS if method.partition(":")[0] != "h"]
    return {method: float(np.median(_apart(measured, paper, task, method))) for method in compared}


def _apart(measured: Numbers, paper: Numbers, task: str, method: str) -> list[float]:
    """Return the relative differences of the metrics that both have."""
    differences = []
    for metric in METRICS:
        printed = paper.get((task, method, metric))
        value = measured.get((task, method, metric))
        if printed and value is not None:
            differences.append(abs(value - printed) / abs(printed))
    return differences


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


# -- pictures -------------------------------------------------------------------------------------


def draw_agreement(measured: Numbers, paper: Numbers) -> Path:
    """Draw our values against the paper's, one point a method and metric."""
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.0), layout="constrained")
        for axis, (task, title) in zip(axes, TASKS.items(), strict=True):
            for colour, (kind, starts) in zip(PALETTE, KINDS.items(), strict=False):
                pairs = _value_pairs(measured, paper, task, starts)
                axis.plot(*zip(*pairs, strict=True), "o", color=colour, alpha=0.6, label=kind)
            _draw_h(axis, measured, paper, task)
            ends = np.array([1e-5, 1.0])
            axis.plot(ends, ends, color="black", linewidth=0.8)
            axis.set(xscale="log", yscale="log", title=title, xlabel="the paper", ylabel="hcal")
        axes[0].legend()
        return save_figure(figure, DOCS_ASSETS / "reproduction.svg")


def _value_pairs(
    measured: Numbers, paper: Numbers, task: str, starts: tuple[str, ...]
) -> list[tuple[float, float]]:
    """Return the paper's value and ours of all comparison methods, where both are positive."""
    pairs = []
    for key, value in measured.items():
        name, method, metric = key
        if name != task or not metric.startswith(starts) or method.partition(":")[0] == "h":
            continue
        if value > 0 and paper.get(key, 0) > 0:
            pairs.append((paper[key], value))
    return pairs


def _draw_h(axis: Any, measured: Numbers, paper: Numbers, task: str) -> None:
    """Draw h-calibration, in the setting that the paper has for each metric."""
    for metric, setting in PRINTED.items():
        label = "h-calibration" if metric == SHORT else None
        point = paper[task, "h", metric], measured[task, setting, metric]
        axis.plot(*point, "D", color=SUBJECT, markeredgecolor="black", label=label)


def draw_reliability(bins: Iterable[Row]) -> Path:
    """Draw reliability diagrams of both tasks: before, temperature scaling and h, as the paper's figure does."""
    by_method = _by_method(bins)
    with styled() as plt:
        figure, axes = plt.subplots(
            2, 3, figsize=(8.4, 5.4), sharex=True, sharey=True, layout="constrained"
        )
        for row, task in zip(axes, TASKS, strict=True):
            for axis, method in zip(row, ("uncal", "ts", "h"), strict=True):
                error = _draw_bars(axis, by_method[task, method])
                axis.set_title(f"{network(task)}, {method}: ECE {error:.4f}")
        axes[0, 0].legend()
        for axis in axes[-1]:
            axis.set_xlabel("confidence")
        return save_figure(figure, DOCS_ASSETS / "reliability-paper.svg")


def draw_all_reliability(bins: Iterable[Row], task: str) -> Path:
    """Draw the reliability diagrams of all methods on one task."""
    by_method = _by_method(bins)
    columns = 6
    n_rows = -(-len(ALL_METHODS) // columns)
    with styled() as plt:
        figure, axes = plt.subplots(
            n_rows,
            columns,
            figsize=(11, 2 * n_rows),
            sharex=True,
            sharey=True,
            layout="constrained",
        )
        for axis in axes.flat[len(ALL_METHODS) :]:
            axis.set_axis_off()
        for axis, method in zip(axes.flat, ALL_METHODS, strict=False):
            error = _draw_bars(axis, by_method[task, method])
            axis.set_title(f"{method}: {error:.4f}")
        figure.suptitle(f"{TASKS[task]}: accuracy by confidence, and the ECE")
        return save_figure(figure, STUDY_ASSETS / _all_name(task))


def _all_name(task: str) -> str:
    return f"reliability-all-{task.replace('_', '-')}.svg"


def _by_method(bins: Iterable[Row]) -> Mapping[tuple[str, str], list[Row]]:
    """Return the bins of each task and method."""
    by_method: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in bins:
        by_method[row["task"], row["method"]].append(row)
    return by_method


def _draw_bars(axis: Any, bins: Sequence[Row]) -> float:
    """Draw accuracy and gap of each bin, and return the ECE."""
    columns = ("bin", "count", "accuracy", "confidence")
    columns_read = [np.array([float(row[name]) for row in bins]) for name in columns]
    index, count, accuracy, confidence = columns_read
    gap = confidence - accuracy
    centre = (index + 0.5) / N_BINS
    bar = {"width": 1 / N_BINS, "edgecolor": "white"}
    axis.bar(centre, accuracy, color=PALETTE[0], label="accuracy", **bar)
    axis.bar(centre, gap, bottom=accuracy, color=SUBJECT, alpha=0.5, label="gap", **bar)
    axis.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    return float(count @ np.abs(gap) / count.sum())


def draw_curves(curves: Iterable[Row]) -> Path:
    """Draw loss and calibration error of the chosen map of ``h``, epoch by epoch."""
    by_method = _by_method(curves)
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
        for colour, task in zip(PALETTE, TASKS, strict=False):
            rows = by_method[task, "h"]
            epoch = [int(row["epoch"]) for row in rows]
            for axis, column in zip(axes, ("loss", "ece_ew"), strict=True):
                values = [float(row[column]) for row in rows]
                axis.plot(epoch, values, color=colour, label=network(task))
        axes[0].set(title="h-calibration loss of all rows", xlabel="epoch", yscale="log")
        axes[1].set(title="ECE on the calibration rows", xlabel="epoch", yscale="log")
        axes[0].legend()
        return save_figure(figure, STUDY_ASSETS / "training-curves.svg")
