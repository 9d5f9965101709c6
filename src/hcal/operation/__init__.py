"""A model in operation: requirements that a run must meet, and scores that wait for their labels."""

from hcal.operation.gates import Gate, require
from hcal.operation.score_store import ScoreStore

__all__ = ["Gate", "ScoreStore", "require"]
