"""Answers of language models: options with log-probabilities, sequences of tokens, confidences stated in words.

    quiz = read_lm_eval(["samples_arc_easy_….jsonl", "samples_boolq_….jsonl"])   # Questions
    cal = MultipleChoiceCalibrator().fit(quiz.scores, quiz.y)
    option_scores(response, ["A", "B", "C"])              # log-probabilities of options in a server's response
    sequence_score(response, how="mean")                   # log-probability of a generated answer
    read_stated(records, unit="0-10")                      # what a model, or a grader, says about its answers
    JointConfidence({"said": "stated", "mean": "log_probs"}).fit(columns, correct)    # joined to one P(correct)

:func:`hcal.io.read` and the commands read the same from ``.jsonl`` files.
"""

from __future__ import annotations

from hcal.language_models.calibrator import MultipleChoiceCalibrator
from hcal.language_models.joint import JointConfidence
from hcal.language_models.lm_eval import read_lm_eval
from hcal.language_models.questions import Questions
from hcal.language_models.responses import option_scores
from hcal.language_models.sequences import sequence_score
from hcal.language_models.stated import WORDS, Stated, read_stated

__all__ = [
    "WORDS",
    "JointConfidence",
    "MultipleChoiceCalibrator",
    "Questions",
    "Stated",
    "option_scores",
    "read_lm_eval",
    "read_stated",
    "sequence_score",
]
