"""Multiple-choice questions: a list of scores each, as many as the question has options.

Everything that measures takes a rectangle: :func:`hcal.numerics.pad_options` makes one. An option that
a question does not have becomes −inf in scores and 0 in probabilities; metrics, diagrams and certificates
then see a class that is certain not to happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hcal.numerics import Float64, IntArray
from hcal.numerics import log_softmax_options, pad_options


@dataclass(frozen=True)
class Questions:
    """Questions with their options' scores and the right answers.

    Attributes
    ----------
    scores : list of N arrays
        The score of each option: a log-probability, or anything that grows with it.
    y : array of shape (N,)
        The position of the right option.
    tasks : list of N str
        Where each question comes from.
    options : list of N lists of str
        The texts of the options; empty where unknown.

    Examples
    --------
    >>> quiz = Questions([np.array([-1.0, -3.0]), np.array([-1.0, -2.0, -9.0])], np.array([0, 1]))
    >>> quiz.probs().round(2)
    array([[0.88, 0.12, 0.  ],
           [0.73, 0.27, 0.  ]])
    """

    scores: list[Float64]
    y: IntArray
    tasks: Sequence[str] = ()
    options: Sequence[Sequence[str]] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def log_probs(self) -> Float64:
        """Return the logarithms of :meth:`probs`, −inf where there is no option; shape (N, most options)."""
        return log_softmax_options(pad_options(self.scores, -np.inf))

    def probs(self) -> Float64:
        """Return the softmax over each question's own options, 0 elsewhere; shape (N, most options)."""
        return np.exp(self.log_probs())
