"""The old place of :func:`hcal.metrics.scores.score_probs`, until its importers have moved."""

from hcal.metrics.scores import Scores, score_probs

__all__ = ["Scores", "score_probs", "score_sample"]

score_sample = score_probs
