"""Language models: multiple-choice answers, token log-probabilities, confidences in words.

>>> cal = MultipleChoiceCalibrator().fit([[-1.0, -9.0], [-2.0, -6.0, -7.0], [-1.0, -5.0]], [0, 0, 1])
>>> [len(p) for p in cal.predict_proba([[0.0, -4.0], [0.0, -4.0, -4.0]])]
[2, 3]
"""

from __future__ import annotations

from hcal.calibrators.multiple_choice import MultipleChoiceCalibrator
from hcal.io.language_models import Questions, Stated, option_scores, read_lm_eval, read_stated
from hcal.numerics import pad_options

__all__ = [
    "MultipleChoiceCalibrator",
    "Questions",
    "Stated",
    "option_scores",
    "pad_options",
    "read_lm_eval",
    "read_stated",
]
