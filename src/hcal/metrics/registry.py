"""The list of metrics, and the only one: whatever else depends on which metric it is stands in its row here.

Evaluation, resampling, the tests and the benchmark ask a :class:`Metric` for its level, direction, weights
and kind of interval; none of them knows a metric by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hcal.metrics import (
    canonical,
    class_wise,
    cumulated,
    dirichlet,
    expected_brier,
    scores,
    top_label,
    windowed,
)
from hcal.metrics.sample import MOST_COPIES, Sample, Vector

Level = Literal["top-label", "class-wise", "canonical", "score"]
LEVELS: tuple[Level, ...] = ("top-label", "class-wise", "canonical", "score")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name : str
        Its name in ``hcal.metrics`` and ``hcal.evaluate``.
    level : {"top-label", "class-wise", "canonical", "score"}
    label : str
        How a narrow table writes it.
    title : str
        Its usual name in papers.
    explain : str
        One line of plain words.
    function : callable
        ``(probs, y, *, sample_weight=None, ...) -> float``.
    lower_is_better : bool
    kind : {"plug-in", "debiased", "score"}
        Whether chance alone makes it positive (plug-in), or it is signed (debiased).
    weights : {"any", "counts", "copies"}
        Which ``sample_weight`` it takes: any; whole repetition counts; or counts of up to ``MOST_COPIES`` in
        all, because it looks at every repetition.
    rows : callable, optional
        ``(sample) -> array of shape (N,)`` whose weighted mean is the metric.
    shares : callable, optional
        The same to first order, for a metric that would cost a pass over all pairs a replicate.
    ends : callable, optional
        ``(sample, value, z) -> (low, high)``: its interval from its own standard error, in place of a
        bootstrap that costs too much.
    null : callable, optional
        ``(sample, draws, generator) -> array of shape (draws,)``: its values for calibrated predictions,
        where that is cheaper than drawing labels.
    """

    name: str
    level: Level
    label: str
    title: str
    explain: str
    function: Callable[..., float]
    lower_is_better: bool = True
    kind: Literal["plug-in", "debiased", "score"] = "plug-in"
    weights: Literal["any", "counts", "copies"] = "any"
    rows: Callable[[Sample], Vector] | None = None
    shares: Callable[[Sample], Vector] | None = None
    ends: Callable[[Sample, float, float], tuple[float, float]] | None = None
    null: Callable[[Sample, int, np.random.Generator], Vector] | None = None

    @property
    def batched(self) -> bool:
        """Whether its function takes many replicates at once, where the data are on a device."""
        return self.ends is None

    @property
    def interval(self) -> Literal["bootstrap", "jackknife", "bias-aware"]:
        """How its interval is built; :mod:`hcal.metrics.resampling` says what each means."""
        if self.kind == "plug-in":
            return "bias-aware"
        return "bootstrap" if self.ends is None else "jackknife"

    def takes(self, s: Sample) -> bool:
        """Return whether it has a meaning, and an affordable one, for the scores and weights of a sample."""
        if not s.data.complete and self.level not in ("top-label", "score"):
            return False
        if s.weight is None or self.weights == "any":
            return True
        whole = np.array_equal(s.weight, np.rint(s.weight))
        return whole and (self.weights == "counts" or s.total <= MOST_COPIES)


def _top(name: str, label: str, title: str, explain: str, **facts: Any) -> Metric:
    return Metric(name, "top-label", label, title, explain, getattr(top_label, name), **facts)


def _class(name: str, label: str, title: str, explain: str, **facts: Any) -> Metric:
    return Metric(name, "class-wise", label, title, explain, getattr(class_wise, name), **facts)


def _score(name: str, label: str, explain: str, **facts: Any) -> Metric:
    return Metric(name, "score", label, label, explain, getattr(scores, name), kind="score", **facts)


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _top("ece_ew", "ECE^ew", "ECE, equal width",
             "mean gap between confidence and accuracy, 15 equal-width bins"),
        _top("ece_em", "ECE^em", "ECE, equal mass", "the same with 15 bins of equal size", weights="counts"),
        _top("ece_r2", "ECE (r=2)", "ECE, r = 2",
             "root-mean-square gap, 15 equal-width bins: large gaps weigh more"),
        _top("dece", "dECE", "debiased ECE", "equal-mass ECE less what chance alone adds; may be negative",
             kind="debiased", weights="counts"),
        _top("ace", "ACE", "ACE", "mean gap where every non-empty equal-width bin counts the same"),
        _top("ece_s1", "ECE^s (r=1)", "sweep ECE, r = 1",
             "ECE with as many equal-mass bins as keep accuracy monotone", weights="copies"),
        _top("ece_s2", "ECE^s (r=2)", "sweep ECE, r = 2", "the same, root-mean-square", weights="copies"),
        _top("kde_ece", "KDE-ECE", "KDE-ECE", "ECE with smooth densities in place of bins", weights="counts"),
        _top("mmce", "MMCE", "MMCE", "kernel distance between confidence and accuracy, no bins"),
        _top("ks", "KS", "KS error", "largest cumulated gap between confidence and accuracy, no bins",
             null=top_label.ks_null),
        _top("mce", "MCE", "MCE", "largest gap of any equal-width bin; noisy where a bin holds few samples"),
        _top("smece", "smECE", "smooth ECE",
             "ECE with a smooth kernel in place of bins, of a width that it finds itself"),
        Metric("kuiper", "top-label", "Kuiper", "Kuiper error",
               "largest cumulated gap of any interval of confidences, no bins",
               cumulated.kuiper, null=cumulated.kuiper_null),
        Metric("spiegelhalter", "top-label", "Spiegelhalter", "Spiegelhalter |Z|",
               "squared error beyond what the confidences expect, in standard deviations; grows with N",
               expected_brier.spiegelhalter, weights="counts", null=expected_brier.spiegelhalter_null),
        _class("cwece_a", "CWECE_a", "CWECE, mean",
               "ECE of every class's probability, averaged over classes"),
        _class("cwece_s", "CWECE_s", "CWECE, sum", "the same with 14 bins, summed over classes"),
        _class("cwece_r2", "CWECE (r=2)", "CWECE, r = 2",
               "root-mean-square gap of every class, averaged over classes"),
        _class("tcwece", "tCWECE", "tCWECE", "class-wise ECE over the probabilities above 1/K only"),
        _class("tcwece_k", "tCWECE^k", "tCWECE, k-means", "the same with bins from k-means",
               weights="counts"),
        Metric("hce", "class-wise", "HCE", "h-calibration error, class-wise",
               "root-mean-square gap of windows of 200 sorted probabilities of a class, averaged over "
               "classes, chance removed; can be negative",
               windowed.hce, kind="debiased", weights="copies", ends=windowed.hce_ends),
        Metric("hce_pooled", "class-wise", "HCE pooled", "h-calibration error, pooled",
               "the same with all classes sorted together, as in the paper: it sees the average class only",
               windowed.hce_pooled, kind="debiased", weights="copies", ends=windowed.hce_pooled_ends),
        Metric("skce", "canonical", "SKCE", "SKCE",
               "squared kernel error of the whole probability vector; unbiased, can be negative",
               canonical.skce, kind="debiased", weights="counts",
               shares=canonical.skce_shares, ends=canonical.skce_ends),
        Metric("dkde_ce", "canonical", "DKDE-CE", "DKDE-CE",
               "squared distance to the label frequencies among similar predictions",
               dirichlet.dkde_ce, weights="counts", shares=dirichlet.dkde_rows, ends=dirichlet.dkde_ends),
        _score("nll", "NLL",
               "mean −log of the label's probability: rewards calibration and sharpness together",
               rows=scores.nll_rows),
        _score("brier", "Brier", "mean squared error of the whole vector: a bounded proper score",
               rows=scores.brier_rows),
        _score("accuracy", "accuracy", "share of rows whose most probable class is the label",
               lower_is_better=False, rows=scores.hit_rows),
    )
}  # fmt: skip


def list_metrics(level: Level | None = None) -> list[str]:
    """Return the names of all metrics, or of one level, in the order in which they are reported.

    Parameters
    ----------
    level : {"top-label", "class-wise", "canonical", "score"}, optional

    Examples
    --------
    >>> list_metrics("score")
    ['nll', 'brier', 'accuracy']
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(repr, LEVELS))}, got {level!r}")
    return [name for name, m in METRICS.items() if level is None or m.level == level]


def get_metric(name: str) -> Metric:
    """Return a metric by name; an unknown name is an error that lists the valid ones.

    Examples
    --------
    >>> get_metric("ks").level
    'top-label'
    """
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; the metrics are {', '.join(METRICS)}")
    return METRICS[name]
