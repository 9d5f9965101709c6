"""The figures of the ablations: objectives compared, and robustness to the constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hcal.bench.catalog import PAPER_METRICS, label_of, paper_selector
from hcal.bench.figures import math_title
from hcal.bench.store import Results
from hcal.bench.style import PALETTE, SUBJECT, save_figure, styled
from studies.ablations import ABLATIONS
from studies.paired import compared_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_ablations(results: Results, folder: Path, *, suffix: str = "png") -> list[Path]:
    """Draw the figures of the ablations that the results allow.

    Parameters
    ----------
    results : Results
    folder : Path
    suffix : {"png", "pdf", "svg"}

    Returns
    -------
    list of Path
    """
    figures: dict[str, Callable[[Results], Figure]] = {}
    if all(f"obj-{o}/top" in results.methods for o in ("h", "nll", "brier")):
        figures["objectives"] = objective_bars
    if "paper-constants/top" in results.methods:
        figures["robustness"] = robustness
    return [save_figure(draw(results), folder / f"{name}.{suffix}") for name, draw in figures.items()]


def objective_value(results: Results, objective: str, metric: str) -> float:
    """Return the ARE of one objective on a metric, by the selector that the paper shows for its level.

    Parameters
    ----------
    results : Results
        Of the ablation ``objective``.
    objective : {"h", "nll", "brier"}
    metric : str

    Returns
    -------
    float
    """
    method = f"obj-{objective}/{paper_selector(metric).removeprefix('h_')}"
    values = [results.value(t, method, metric) / results.before(t, metric) for t in results.tasks]
    return float(np.nanmean(values))


def objective_bars(results: Results) -> Figure:
    """Draw ARE of the h objective, NLL and Brier for every metric, with maps and training equal.

    Parameters
    ----------
    results : Results
        Of the ablation ``objective``.

    Returns
    -------
    Figure
    """
    metrics = [m for m in (*PAPER_METRICS, "nll", "brier") if m in results.metrics]
    colours = {"h": SUBJECT, "nll": PALETTE[0], "brier": PALETTE[2]}
    names_of = {"h": "h", "nll": "NLL", "brier": "Brier"}
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(9.0, 3.2))
        for i, (objective, colour) in enumerate(colours.items()):
            heights = [objective_value(results, objective, m) for m in metrics]
            places = np.arange(len(metrics)) + (i - 1) * 0.27
            axes.bar(places, heights, 0.25, color=colour, label=names_of[objective])
        axes.axhline(1, color="black", linewidth=0.8)
        names = [math_title(label_of(m)) for m in metrics]
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("average relative error")
        axes.set_title("Objectives compared with equal maps and equal training", loc="left")
        axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return figure  # type: ignore[no-any-return]


def robustness(results: Results) -> Figure:
    """Draw mean ARE of each level of metrics for every setting of M, r and ε.

    Parameters
    ----------
    results : Results
        Of the ablation ``robustness``.

    Returns
    -------
    Figure
    """
    settings = [s for s in ABLATIONS["robustness"] if f"{s}/top" in results.methods]
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(6.6, 3.2))
        for level, colour in zip(("top-label", "class-wise"), (SUBJECT, PALETTE[0]), strict=True):
            values = [robustness_value(results, s, level) for s in settings]
            axes.plot(range(len(settings)), values, "o-", color=colour, label=level)
        labels = ["paper" if s == "paper-constants" else s for s in settings]
        axes.set_xticks(range(len(settings)), labels, rotation=45, ha="right", rotation_mode="anchor")
        axes.set(ylabel="mean ARE of the level", ylim=(0, None))
        axes.set_title("Robustness to the constants of the objective", loc="left")
        axes.legend()
    return figure  # type: ignore[no-any-return]


def robustness_value(results: Results, setting: str, level: str) -> float:
    """Return the mean over the metrics of a level of the ARE of one setting."""
    values = []
    for metric in compared_metrics(results.metrics, level):
        method = f"{setting}/{paper_selector(metric).removeprefix('h_')}"
        values += [results.value(t, method, metric) / results.before(t, metric) for t in results.tasks]
    return float(np.nanmean(values))
