"""What calibration made worse, by more than a trifle and by more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hcal.evaluation.result import Difference
from hcal.reporting.content import Content


@dataclass(frozen=True)
class Trifle:
    """How a headline metric is called, and the change that nobody minds: a share of it, or a number."""

    title: str
    share: float = 0.0
    absolute: float = 0.0


#: The metrics that can condemn a calibrator, or stand in its way.
TRIFLES: Final = {
    "nll": Trifle("NLL", share=0.01),
    "brier": Trifle("the Brier score", share=0.01),
    "accuracy": Trifle("accuracy", absolute=0.01),
    "ece_ew": Trifle("the calibration error (ECE)", absolute=0.01),
}
#: Proper scores: a calibrator that makes one of them worse does harm.
SCORES: Final = ("nll", "brier")


def worse_metrics(content: Content) -> list[str]:
    """Return the headline metrics that calibration made worse: the better end of the interval is still worse."""
    if content.after is None:
        return []
    differences = content.after.evaluation.differences
    return [
        name
        for name, trifle in TRIFLES.items()
        if name in differences and _is_worse(name, differences[name], trifle)
    ]


def _is_worse(name: str, change: Difference, trifle: Trifle) -> bool:
    if change.low is None or change.high is None:
        return False
    least_harm = -change.high if name == "accuracy" else change.low
    return least_harm > max(trifle.share * change.before, trifle.absolute)
