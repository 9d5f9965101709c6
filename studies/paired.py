"""Differences with paired intervals, on the metrics and tasks of the paper: which gaps are real."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.bench.catalog import GROUPS, PAPER_METRICS
from hcal.bench.store import Key, Results
from hcal.numerics import Float64

#: Shared files that are the paper's own task under another name.
SAME_AS_PAPER: Final[dict[str, str]] = {"cifar10_resnet110": "resnet110_c10"}


def compared_metrics(metrics: Container[str], level: str) -> list[str]:
    """Return those of the metrics of a level on which the paper compares: its own, NLL and Brier.

    Examples
    --------
    >>> compared_metrics(["hce", "skce", "nll"], "canonical")
    ['skce']
    """
    kept = (*PAPER_METRICS, "nll", "brier")
    return [m for m in GROUPS[level] if m in metrics and m in kept]


@dataclass(frozen=True)
class PairedInterval:
    """A difference with its 95 % interval.

    Examples
    --------
    >>> PairedInterval(-0.2, -0.3, -0.1).verdict
    'lower'
    """

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Say whether the difference is below 0, above 0, or inside the noise."""
        if np.isnan(self.value) or np.isnan(self.low):
            return "unknown"
        return "lower" if self.high < 0 else "higher" if self.low > 0 else "noise"


def mean_replicates(results: Results, task: str, method: str, metric: str) -> Float64 | None:
    """Return the bootstrap replicates, averaged over seeds, shape (B,); None where none were kept."""
    cells = [results.good[Key(task, method, s)] for s in results.seeds(task, method)]
    kept = [c.notes[metric]["boot"] for c in cells if "boot" in c.notes.get(metric, {})]
    return np.mean(kept, axis=0) if kept else None


def paired_on_task(results: Results, task: str, one: str, two: str, metric: str) -> PairedInterval:
    """Return metric(one) − metric(two) on a task with a paired bootstrap interval over its test rows.

    Parameters
    ----------
    results : Results
    task, one, two, metric : str

    Returns
    -------
    PairedInterval
        The basic (reflected) interval: plug-in errors rise under resampling, and the reflection undoes the
        rise that a percentile interval would double. NaN where no replicates were kept.
    """
    value = results.value(task, one, metric) - results.value(task, two, metric)
    a, b = (mean_replicates(results, task, m, metric) for m in (one, two))
    if a is None or b is None:
        return PairedInterval(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(a - b, [0.025, 0.975])
    return PairedInterval(value, float(2 * value - high), float(2 * value - low))


def paired_over_tasks(difference: Float64) -> PairedInterval:
    """Return the mean of one difference a task with its 95 % t interval over tasks.

    Student's interval and not a bootstrap: with a handful of tasks a bootstrap only reshuffles the few
    values there are (with two tasks its 95 % interval covers half the time).

    Parameters
    ----------
    difference : array of shape (tasks,)
        NaN entries are left out; with fewer than three there is no interval.

    Returns
    -------
    PairedInterval

    Examples
    --------
    >>> paired_over_tasks(np.array([-1.0, -1.2, -0.8, -1.1])).verdict
    'lower'
    """
    from scipy.stats import t

    d = difference[np.isfinite(difference)]
    if d.size < 3:
        return PairedInterval(float(d.mean()) if d.size else float("nan"), float("nan"), float("nan"))
    half = float(t.ppf(0.975, d.size - 1)) * float(d.std(ddof=1)) / d.size**0.5
    return PairedInterval(float(d.mean()), float(d.mean()) - half, float(d.mean()) + half)
