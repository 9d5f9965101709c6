"""``.jsonl`` files: samples of lm-evaluation-harness, or confidences that a model stated of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.io.lm_eval import OptionScore, is_samples, json_lines, read_lm_eval
from hcal.io.responses import read_stated
from hcal.inputs import InputKind

#: What .jsonl files hold: the kind of scores, the scores, the labels, whether these are questions.
Found = tuple[InputKind, NDArray[Any], NDArray[Any], bool]


def is_questions(paths: Sequence[Path]) -> bool:
    """Whether files are samples or stated confidences, and not a table with an object a line."""
    if not all(path.suffix.lower() == ".jsonl" for path in paths):
        return False
    if len(paths) > 1 or is_samples(paths[0]):
        return True
    first = next(iter(json_lines(paths[0])), ("", None))[1]
    return isinstance(first, dict) and "confidence" in first


def read_questions(paths: Sequence[Path], *, score: OptionScore = "sum") -> Found:
    """Read questions with their options, or answers with their stated confidence.

    Questions come as log-probabilities of shape (N, most options), −inf where an option does not exist;
    stated confidences as probabilities of shape (N,) that the answer is right.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "judge.jsonl"
    >>> _ = path.write_text('{"confidence": "80%", "correct": true}')
    >>> read_questions([path])
    ('probs', array([0.8]), array([1]), False)
    """
    samples = {path: is_samples(path) for path in paths}
    if all(samples.values()):
        questions = read_lm_eval(list(paths), score=score)
        return "log_probs", questions.log_probs(), questions.y, True
    rows = [(where, row) for path in paths for where, row in json_lines(path)]
    for where, row in rows:
        if not isinstance(row, dict) or "confidence" not in row:
            raise ValueError(
                f"{where}: neither a sample of lm-evaluation-harness ('filtered_resps') "
                "nor an answer with its 'confidence'"
            )
    stated = read_stated([row for _, row in rows])
    if stated.unread:
        raise ValueError(f"{rows[stated.unread[0]][0]}: the confidence cannot be read")
    return "probs", np.asarray(stated.confidence), stated.correct, False
