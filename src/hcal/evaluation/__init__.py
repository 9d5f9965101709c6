"""Evaluation of predictors: ``hcal.evaluate`` and ``hcal.reliability`` live here.

There is on purpose no module ``hcal.evaluate``: importing a submodule puts the module on the package under
its name, and would hide the function.
"""

from __future__ import annotations

from hcal.evaluation.assessment import Assessment, Statement, collapse_reasons
from hcal.evaluation.curves import ReliabilityCurve
from hcal.evaluation.diagram import Reliability, reliability
from hcal.evaluation.evaluator import evaluate, learned_from
from hcal.evaluation.result import Difference, Evaluation, PositiveRate, Result

__all__ = [
    "Assessment",
    "Difference",
    "Evaluation",
    "PositiveRate",
    "Reliability",
    "ReliabilityCurve",
    "Result",
    "Statement",
    "collapse_reasons",
    "evaluate",
    "learned_from",
    "reliability",
]
