"""Evaluation of predictors: ``hcal.evaluate`` and ``hcal.reliability`` live here.

There is on purpose no module ``hcal.evaluate``: importing a submodule puts the module on the package under
its name, and would hide the function.
"""

from __future__ import annotations

from hcal.evaluation.assessment import Assessment
from hcal.evaluation.curves import ReliabilityCurve
from hcal.evaluation.diagram import Reliability, reliability
from hcal.evaluation.evaluator import evaluate
from hcal.evaluation.result import Evaluation
from hcal.metrics.scores import collapse_reasons

__all__ = [
    "Assessment",
    "Evaluation",
    "Reliability",
    "ReliabilityCurve",
    "collapse_reasons",
    "evaluate",
    "reliability",
]
