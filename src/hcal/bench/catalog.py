"""Names: which metrics and methods the paper has, in its order, and what it calls them."""

from __future__ import annotations

from typing import Final

from hcal.metrics.registry import LEVELS, METRICS, list_metrics

#: Our metric name -> its column in the paper's tables, in the paper's order.
PAPER_METRICS: Final[dict[str, str]] = {
    "ece_s1": "ECE_s_r1", "ece_s2": "ECE_s_r2", "kde_ece": "KDE_ECE", "mmce": "MMCE", "ks": "KSerror",
    "ece_em": "ECE_em", "ace": "ACE", "dece": "dECE", "ece_ew": "ECE_ew", "ece_r2": "ECE_r2",
    "cwece_s": "CWECE_s", "cwece_a": "CWECE_a", "cwece_r2": "CWECE_r2", "tcwece": "tCWECE",
    "tcwece_k": "tCWECE_k", "dkde_ce": "DKDE_CE", "skce": "SKCE",
}  # fmt: skip


def metric_key(metric: str) -> tuple[int, str]:
    """Sort key: the paper's metrics in its order, then those it does not have, scores last.

    >>> sorted(["nll", "hce", "skce", "ece_s1", "mean_confidence"], key=metric_key)
    ['ece_s1', 'skce', 'hce', 'nll', 'mean_confidence']
    """
    errors = [name for name in METRICS if METRICS[name].level != "score"]
    order = list(dict.fromkeys([*PAPER_METRICS, *errors, *METRICS]))
    return (order.index(metric) if metric in order else len(order)), metric


#: The metrics of each level, in the order of tables.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    level: tuple(sorted(list_metrics(level), key=metric_key)) for level in LEVELS
}


def label_of(metric: str) -> str:
    """Return how a table writes a metric, or another recorded number.

    >>> label_of("ece_ew"), label_of("mean_confidence")
    ('ECE^ew', 'mean confidence')
    """
    return METRICS[metric].label if metric in METRICS else metric.replace("_", " ")


#: Registry name -> name in the paper's tables, in the paper's column order.
PAPER_METHODS: Final[dict[str, str]] = {
    "hb": "HB", "iso": "Iso", "bbq": "BBQ", "enir": "ENIR", "ts": "TS", "vs": "VS", "ms": "MS",
    "beta": "Beta", "scabin": "ScaBin", "dir": "Dir", "gp": "GP", "diag": "DIAG", "dec": "DEC",
    "imax": "IMax", "softbin": "SoftBin", "spline": "Spline", "ec": "EC", "lece": "LECE", "sctl": "SCTL",
    "ts_lece": "TS+LECE",
}  # fmt: skip

#: The paper protocol with its three selectors: benchmark name -> ``select`` of ``HCalibrator``.
PAPER_PROTOCOL: Final[dict[str, str]] = {"h_top": "top-label", "h_class": "class-wise", "h_nll": "nll"}

#: Columns of a table, left to right; a method not named here comes after these, in alphabetical order.
METHOD_ORDER: Final[tuple[str, ...]] = ("uncal", *PAPER_METHODS, "ets", "svs", "sms", "h", *PAPER_PROTOCOL)

#: Cheap and strong methods: the ``--quick`` selection.
QUICK_METHODS: Final[tuple[str, ...]] = (
    "uncal", "ts", "ets", "vs", "svs", "sms", "hb", "iso", "beta", "imax", "spline", "ec", "sctl", "softbin",
    "h",
)  # fmt: skip


def paper_selector(metric: str) -> str:
    """Return which of the paper's three runs its tables show for a metric.

    >>> paper_selector("ece_ew"), paper_selector("dkde_ce"), paper_selector("nll")
    ('h_top', 'h_class', 'h_nll')
    """
    return {"top-label": "h_top", "score": "h_nll"}.get(group_of(metric), "h_class")


def group_of(metric: str) -> str:
    """Return the level of a metric: top-label, class-wise, canonical or score.

    >>> group_of("skce")
    'canonical'
    """
    return METRICS[metric].level if metric in METRICS else "score"


def method_key(method: str) -> tuple[int, str]:
    """Sort key that puts methods in the paper's order.

    >>> sorted(["h", "ts", "uncal"], key=method_key)
    ['uncal', 'ts', 'h']
    """
    place = METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)
    return place, method
