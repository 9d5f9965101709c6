"""A model in operation: applied to files, requirements that a run must meet, scores that wait for their labels."""

from hcal.operation.applying import Applied, apply
from hcal.operation.gates import Gate, require
from hcal.operation.refitting import refit
from hcal.operation.score_store import ScoreStore

__all__ = ["Applied", "Gate", "ScoreStore", "apply", "refit", "require"]
