"""The list of metrics: name, level, what it says in one line, and the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hcal.metrics import canonical, class_wise, dirichlet, scores, top_label, windowed

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
    title : str
        Its usual name in papers.
    explain : str
        One line of plain words.
    function : callable
        ``(probs, y, *, sample_weight=None, ...) -> float``.
    lower_is_better : bool
    kind : {"plug-in", "debiased", "score"}
        Whether chance alone makes it positive (plug-in), which decides how its interval is built.
    """

    name: str
    level: Level
    title: str
    explain: str
    function: Callable[..., float]
    lower_is_better: bool = True
    kind: Literal["plug-in", "debiased", "score"] = "plug-in"


def _top(name: str, title: str, explain: str, kind: Literal["plug-in", "debiased"] = "plug-in") -> Metric:
    return Metric(name, "top-label", title, explain, getattr(top_label, name), kind=kind)


def _class(name: str, title: str, explain: str) -> Metric:
    return Metric(name, "class-wise", title, explain, getattr(class_wise, name))


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _top("ece_ew", "ECE, equal width", "mean gap between confidence and accuracy, 15 equal-width bins"),
        _top("ece_em", "ECE, equal mass", "the same with 15 bins of equal size"),
        _top("ece_r2", "ECE, r = 2", "root-mean-square gap, 15 equal-width bins: large gaps weigh more"),
        _top(
            "dece", "debiased ECE", "equal-mass ECE less what chance alone adds; may be negative", "debiased"
        ),
        _top("ace", "ACE", "mean gap where every non-empty equal-width bin counts the same"),
        _top("ece_s1", "sweep ECE, r = 1", "ECE with as many equal-mass bins as keep accuracy monotone"),
        _top("ece_s2", "sweep ECE, r = 2", "the same, root-mean-square"),
        _top("kde_ece", "KDE-ECE", "ECE with smooth densities in place of bins"),
        _top("mmce", "MMCE", "kernel distance between confidence and accuracy, no bins"),
        _top("ks", "KS error", "largest cumulated gap between confidence and accuracy, no bins"),
        _top("mce", "MCE", "largest gap of any equal-width bin; noisy where a bin holds few samples"),
        _class("cwece_a", "CWECE, mean", "ECE of every class's probability, averaged over classes"),
        _class("cwece_s", "CWECE, sum", "the same with 14 bins, summed over classes"),
        _class("cwece_r2", "CWECE, r = 2", "root-mean-square gap of every class, averaged over classes"),
        _class("tcwece", "tCWECE", "class-wise ECE over the probabilities above 1/K only"),
        _class("tcwece_k", "tCWECE, k-means", "the same with bins from k-means"),
        Metric(
            "skce",
            "canonical",
            "SKCE",
            "squared kernel error of the whole probability vector; unbiased, can be negative",
            canonical.skce,
            kind="debiased",
        ),
        Metric(
            "dkde_ce",
            "canonical",
            "DKDE-CE",
            "squared distance to the label frequencies among similar predictions",
            dirichlet.dkde_ce,
        ),
        Metric(
            "hce",
            "canonical",
            "h-calibration error",
            "root-mean-square gap of windows of 200 sorted events, chance removed; can be negative",
            windowed.hce,
            kind="debiased",
        ),
        Metric(
            "nll",
            "score",
            "NLL",
            "mean −log of the label's probability: rewards calibration and sharpness together",
            scores.nll,
            kind="score",
        ),
        Metric(
            "brier",
            "score",
            "Brier",
            "mean squared error of the whole vector: a bounded proper score",
            scores.brier,
            kind="score",
        ),
        Metric(
            "accuracy",
            "score",
            "accuracy",
            "share of rows whose most probable class is the label",
            scores.accuracy,
            lower_is_better=False,
            kind="score",
        ),
    )
}


def list_metrics(level: Level | None = None) -> list[str]:
    """Return the names of all metrics, or of one level, in the order in which they are reported.

    Parameters
    ----------
    level : {"top-label", "class-wise", "canonical", "score"}, optional

    Returns
    -------
    list of str

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

    Parameters
    ----------
    name : str

    Returns
    -------
    Metric

    Examples
    --------
    >>> get_metric("ks").level
    'top-label'
    """
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; the metrics are {', '.join(METRICS)}")
    return METRICS[name]
