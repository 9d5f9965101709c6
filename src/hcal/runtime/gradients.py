"""The one type that maps and objectives share: a gradient in log-probabilities, full or one entry a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64


class OneEntry(NamedTuple):
    """A gradient (N, K) with one non-zero a row: ``value[i]`` in column ``column[i]``.

    Most objectives look at one probability of each row (the label's, or the largest); saying so spares the
    pullback of a softmax half of its passes over the data.
    """

    column: NDArray[np.int64]
    value: Float64

    def dense(self, n_classes: int) -> Float64:
        """Return the full array (N, K).

        >>> OneEntry(np.array([1]), np.array([2.0])).dense(3)
        array([[0., 2., 0.]])
        """
        out = np.zeros((len(self.column), n_classes))
        out[np.arange(len(out)), self.column] = self.value
        return out


Gradient = Float64 | OneEntry


def dense_gradient(gradient: Gradient, n_classes: int) -> Float64:
    """Return a gradient as a full array (N, K).

    >>> dense_gradient(OneEntry(np.array([0]), np.array([1.0])), 2)
    array([[1., 0.]])
    """
    return gradient.dense(n_classes) if isinstance(gradient, OneEntry) else gradient
