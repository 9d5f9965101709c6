"""Questions with options: the score of each option, and the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hcal.numerics import Float64, IntArray, NumpyArray, log_softmax_options, pad_options


@dataclass(frozen=True)
class Questions:
    """Multiple-choice questions with their options' scores and the right answers.

    Attributes
    ----------
    scores : list of N arrays
        The score of each option: a log-probability, or anything that grows with it.
    y : array of shape (N,), or None
        The position of the right option; None if no question says it.
    ids : list of N
        The names of the questions in the file (``doc_id``, ``custom_id``); empty if it has none.
    columns : mapping of str to array
        What else is known about each question: ``task``, ``model`` and ``file`` of lm-evaluation-harness.

    Examples
    --------
    >>> quiz = Questions([np.array([-1.0, -3.0]), np.array([-1.0, -2.0, -9.0])], np.array([0, 1]))
    >>> quiz.probs().round(2)
    array([[0.88, 0.12, 0.  ],
           [0.73, 0.27, 0.  ]])
    """

    scores: list[Float64]
    y: IntArray | None
    ids: Sequence[object] = ()
    columns: Mapping[str, NumpyArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scores)

    def log_probs(self) -> Float64:
        """Return the logarithms of :meth:`probs`, −inf where a question has no such option."""
        return log_softmax_options(pad_options(self.scores, -np.inf))

    def probs(self) -> Float64:
        """Return the softmax over the options of each question, 0 elsewhere; shape (N, most options)."""
        return np.exp(self.log_probs())
