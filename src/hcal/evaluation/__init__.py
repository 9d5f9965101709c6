"""Evaluation of predictors: ``hcal.evaluate`` and ``hcal.reliability`` live here.

There is on purpose no module ``hcal.evaluate``: importing a submodule puts the module on the package under
its name, and would hide the function.
"""

from __future__ import annotations

from hcal.evaluation.coincidence import coincidence, coinciding_rows, learned_from
from hcal.evaluation.collapse import collapse_reasons
from hcal.evaluation.diagram import Reliability, ReliabilityCurve, reliability
from hcal.evaluation.result import Difference, Evaluation, Result
from hcal.evaluation.run import evaluate
from hcal.evaluation.standing import Standing, Statement

__all__ = [
    "Difference",
    "Evaluation",
    "Reliability",
    "ReliabilityCurve",
    "Result",
    "Standing",
    "Statement",
    "coincidence",
    "coinciding_rows",
    "collapse_reasons",
    "evaluate",
    "learned_from",
    "reliability",
]
