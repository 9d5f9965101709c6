"""Ablations as configurations: a name, and the parameters of the trained maps that it changes.

Run one with ``python -m studies ablations objective --tasks FOLDER --out FILE``. Every configuration is
trained once and gives three methods, one for each selector of the paper: ``NAME/top``, ``NAME/class``,
``NAME/nll``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hcal.bench.methods import Method

#: The calibrators of the study, which are no methods of the registry.
TRAINED: Final = "studies.trained:TrainedMaps"
PUBLISHED_PIECEWISE: Final = "studies.published_piecewise:PublishedPiecewise"
#: The paper's three selectors, and how a method name ends.
SELECTORS: Final[dict[str, str]] = {"top": "top-label", "class": "class-wise", "nll": "nll"}

_TO_THE_END: Final[Mapping[str, Any]] = {"epochs": 1000, "plateau": 1000, "patience": 1000}
_ROBUST: Final[Mapping[str, Any]] = {"maps": ("monotonic-10",)}

ABLATIONS: Final[dict[str, dict[str, Mapping[str, Any]]]] = {
    # The paper's central claim: the h objective against proper scores, all else equal.
    "objective": {
        "obj-h": {"objective": "h"},
        "obj-nll": {"objective": "nll"},
        "obj-brier": {"objective": "brier"},
    },
    # Without the published schedule, which watches ECE_ew and may stop before a loss has done its work.
    "objective-patient": {
        "end-h": {"objective": "h", **_TO_THE_END},
        "end-nll": {"objective": "nll", **_TO_THE_END},
        "end-brier": {"objective": "brier", **_TO_THE_END},
    },
    # The same from the published start, where the ensemble begins near the uniform predictor.
    "objective-published": {
        "pub-h": {"objective": "h", "init": "published"},
        "pub-nll": {"objective": "nll", "init": "published"},
        "pub-brier": {"objective": "brier", "init": "published"},
    },
    # The paper's robustness section: M and r doubled and halved, ε up to 0.1.
    "robustness": {
        "paper-constants": _ROBUST,
        "M=100": {**_ROBUST, "window": 100},
        "M=400": {**_ROBUST, "window": 400},
        "r=5e4": {**_ROBUST, "scale": 5e4},
        "r=2e5": {**_ROBUST, "scale": 2e5},
        "eps=5e-21": {**_ROBUST, "epsilon": 5e-21},
        "eps=2e-20": {**_ROBUST, "epsilon": 2e-20},
        "eps=1e-4": {**_ROBUST, "epsilon": 1e-4},
        "eps=1e-3": {**_ROBUST, "epsilon": 1e-3},
        "eps=1e-2": {**_ROBUST, "epsilon": 1e-2},
        "eps=1e-1": {**_ROBUST, "epsilon": 1e-1},
    },
    "weighting": {
        "weights-kmeans": _ROBUST,
        "weights-uniform": {**_ROBUST, "weighting": "uniform"},
    },
    "leave-one-class-out": {
        "leave-out-off": _ROBUST,
        "leave-out-on": {**_ROBUST, "leave_one_class_out": True},
    },
    # The trap: the ensemble as the published code starts it, hardly trained, beside a trained map.
    "near-uniform": {
        "untrained-ensemble": {"maps": ("ensemble-128",), "init": "published", "epochs": 1},
    },
    # The published piecewise map (see published_piecewise.py) against the paper's, same size and training.
    "published-piecewise": {
        "piecewise-500": {"maps": ("piecewise-500",), "init": "published"},
        "published-piecewise-500": {"calibrator": PUBLISHED_PIECEWISE},
    },
}


def ablation_methods(name: str) -> list[Method]:
    """Return the methods of one ablation, or of ``all``.

    Parameters
    ----------
    name : str
        One of :data:`ABLATIONS`, or ``all``.

    Returns
    -------
    list of Method

    Examples
    --------
    >>> [m.name for m in ablation_methods("weighting")][:3]
    ['weights-kmeans/top', 'weights-kmeans/class', 'weights-kmeans/nll']
    """
    if name != "all" and name not in ABLATIONS:
        raise ValueError(f"unknown ablation {name!r}; valid: all, {', '.join(ABLATIONS)}")
    sets = list(ABLATIONS.values()) if name == "all" else [ABLATIONS[name]]
    return [
        _method(label, end, select, params)
        for configurations in sets
        for label, params in configurations.items()
        for end, select in SELECTORS.items()
    ]


def _method(label: str, end: str, select: str, params: Mapping[str, Any]) -> Method:
    own = {k: v for k, v in params.items() if k != "calibrator"} | {"select": select}
    calibrator = params.get("calibrator", TRAINED)
    return Method(f"{label}/{end}", calibrator, own, group=label if calibrator == TRAINED else "")
