"""Scores of any declared kind as probabilities: the same for evaluation, report and commands."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal import inputs
from hcal.numerics import FloatArray, is_ragged, log_softmax_options, pad_options, softmax


def to_probs(scores: Any, kind: inputs.InputKind) -> FloatArray:
    """Return the probabilities that scores say or imply.

    A list of rows of different lengths holds questions with as many options each; the options that a question
    lacks get the probability 0.

    >>> to_probs([[0.0, 0.0], [0.0, 0.0, 0.0]], "logits").round(3)
    array([[0.5  , 0.5  , 0.   ],
           [0.333, 0.333, 0.333]])
    """
    if kind == "probs":
        return inputs.check_probs(scores)[0]
    if is_ragged(scores):
        for row in scores:
            if len(row) > 1:  # one option has nothing to be compared with
                inputs.check_logits(np.atleast_2d(row), input=kind)
        return np.exp(log_softmax_options(pad_options(scores, -np.inf)))
    probs = softmax(inputs.check_logits(scores, input=kind)[0])
    if kind == "log_probs" and probs.ndim == 2:
        raw, _ = inputs.to_numpy(scores)
        if raw.shape == probs.shape:
            probs[np.isneginf(raw)] = 0.0
    return probs
