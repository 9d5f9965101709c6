"""From a probability to a decision: thresholds, abstention, estimates without labels, and the whole model validated."""

from hcal.decisions.abstention import Abstention, abstain_below
from hcal.decisions.deciding import decide
from hcal.decisions.estimation import EstimatedMetric, LabelFreeEstimates, SegmentEstimate, estimate
from hcal.decisions.rules import AbstainRule, CostRule, ThresholdRule, read_rule
from hcal.decisions.threshold_curve import Counts, LeastCost, ThresholdCurve
from hcal.decisions.thresholding import CostTable, Thresholds, thresholds
from hcal.decisions.validation import ValidatedFigure, Validation, validate

__all__ = [
    "AbstainRule",
    "Abstention",
    "CostRule",
    "CostTable",
    "Counts",
    "EstimatedMetric",
    "LabelFreeEstimates",
    "LeastCost",
    "SegmentEstimate",
    "ThresholdCurve",
    "ThresholdRule",
    "Thresholds",
    "ValidatedFigure",
    "Validation",
    "abstain_below",
    "decide",
    "estimate",
    "read_rule",
    "thresholds",
    "validate",
]
