"""Names: which metrics and methods the paper has, in its order, and what it calls them."""

from __future__ import annotations

from typing import Final

#: Our metric name -> its column in the paper's tables, in the paper's order.
PAPER_METRICS: Final[dict[str, str]] = {
    "ece_s1": "ECE_s_r1",
    "ece_s2": "ECE_s_r2",
    "kde_ece": "KDE_ECE",
    "mmce": "MMCE",
    "ks": "KSerror",
    "ece_em": "ECE_em",
    "ace": "ACE",
    "dece": "dECE",
    "ece_ew": "ECE_ew",
    "ece_r2": "ECE_r2",
    "cwece_s": "CWECE_s",
    "cwece_a": "CWECE_a",
    "cwece_r2": "CWECE_r2",
    "tcwece": "tCWECE",
    "tcwece_k": "tCWECE_k",
    "dkde_ce": "DKDE_CE",
    "skce": "SKCE",
}

#: The levels at which the paper speaks of calibration, and the metrics of each.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "top-label": (
        "ece_s1",
        "ece_s2",
        "kde_ece",
        "mmce",
        "ks",
        "ece_em",
        "ace",
        "dece",
        "ece_ew",
        "ece_r2",
    ),
    "class-wise": ("cwece_s", "cwece_a", "cwece_r2", "tcwece", "tcwece_k"),
    "canonical": ("dkde_ce", "skce"),
    "score": ("nll", "brier", "accuracy", "hce"),
}

#: How a metric is written in a table.
TITLES: Final[dict[str, str]] = {
    "ece_s1": "ECE^s (r=1)",
    "ece_s2": "ECE^s (r=2)",
    "kde_ece": "KDE-ECE",
    "mmce": "MMCE",
    "ks": "KS",
    "ece_em": "ECE^em",
    "ace": "ACE",
    "dece": "dECE",
    "ece_ew": "ECE^ew",
    "ece_r2": "ECE (r=2)",
    "cwece_s": "CWECE_s",
    "cwece_a": "CWECE_a",
    "cwece_r2": "CWECE (r=2)",
    "tcwece": "tCWECE",
    "tcwece_k": "tCWECE^k",
    "dkde_ce": "DKDE-CE",
    "skce": "SKCE",
    "nll": "NLL",
    "brier": "Brier",
    "accuracy": "accuracy",
    "hce": "HCE",
    "mean_confidence": "mean confidence",
}

#: Registry name -> name in the paper's tables, in the paper's column order.
PAPER_METHODS: Final[dict[str, str]] = {
    "hb": "HB",
    "iso": "Iso",
    "bbq": "BBQ",
    "enir": "ENIR",
    "ts": "TS",
    "vs": "VS",
    "ms": "MS",
    "beta": "Beta",
    "scabin": "ScaBin",
    "dir": "Dir",
    "gp": "GP",
    "diag": "DIAG",
    "dec": "DEC",
    "imax": "IMax",
    "softbin": "SoftBin",
    "spline": "Spline",
    "ec": "EC",
    "lece": "LECE",
    "sctl": "SCTL",
    "ts_lece": "TS+LECE",
}

#: The paper protocol with its three selectors: benchmark name -> ``select`` of ``HCalibrator``.
PAPER_PROTOCOL: Final[dict[str, str]] = {"h_top": "top-label", "h_class": "class-wise", "h_nll": "nll"}

MODERN_METHODS: Final[tuple[str, ...]] = ("ets", "svs", "sms")

#: Columns of a table, left to right; a method not named here comes after these, in alphabetical order.
METHOD_ORDER: Final[tuple[str, ...]] = ("uncal", *PAPER_METHODS, *MODERN_METHODS, "h", *PAPER_PROTOCOL)

#: Cheap and strong methods: the ``--quick`` selection.
QUICK_METHODS: Final[tuple[str, ...]] = (
    "uncal",
    "ts",
    "ets",
    "vs",
    "svs",
    "sms",
    "hb",
    "iso",
    "beta",
    "imax",
    "spline",
    "ec",
    "sctl",
    "softbin",
    "h",
)


def paper_selector(metric: str) -> str:
    """Return which of the paper's three runs its tables show for a metric.

    Examples
    --------
    >>> paper_selector("ece_ew"), paper_selector("dkde_ce"), paper_selector("nll")
    ('h_top', 'h_class', 'h_nll')
    """
    if metric in GROUPS["top-label"]:
        return "h_top"
    return "h_class" if metric in (*GROUPS["class-wise"], *GROUPS["canonical"]) else "h_nll"


def group_of(metric: str) -> str:
    """Return the level of a metric: top-label, class-wise, canonical or score.

    Examples
    --------
    >>> group_of("skce")
    'canonical'
    """
    return next((name for name, members in GROUPS.items() if metric in members), "score")


def method_key(method: str) -> tuple[int, str]:
    """Sort key that puts methods in the paper's order.

    Examples
    --------
    >>> sorted(["h", "ts", "uncal"], key=method_key)
    ['uncal', 'ts', 'h']
    """
    place = METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)
    return place, method


def metric_key(metric: str) -> tuple[int, str]:
    """Sort key that puts metrics in the paper's order, scores last.

    Examples
    --------
    >>> sorted(["nll", "skce", "ece_s1"], key=metric_key)
    ['ece_s1', 'skce', 'nll']
    """
    order = [*PAPER_METRICS, *GROUPS["score"]]
    return (order.index(metric) if metric in order else len(order)), metric
