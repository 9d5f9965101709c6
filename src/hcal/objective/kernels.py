"""Value and gradient of the objective on plain numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.objective.checks import check_arrays
from hcal.objective.engines import evaluate_loss
from hcal.objective.events import EventsArgument, family_of
from hcal.objective.settings import ObjectiveSettings
from hcal.numerics import FloatArray, IntArray


def loss_and_grad(
    probs: FloatArray, y: IntArray, *, events: EventsArgument = "pooled", **constants: Any
) -> tuple[float, FloatArray]:
    """Return the h-calibration loss (eq:finalloss) and its gradient in the probabilities.

    Parameters
    ----------
    probs : array of shape (N, K), float32 or float64
    y : array of shape (N,)
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family
    **constants
        Of :class:`hcal.objective.ObjectiveSettings`.

    Returns
    -------
    float, array of shape (N, K) in the dtype of ``probs``

    Examples
    --------
    >>> p = np.array([[0.25, 0.75], [0.5, 0.5]])
    >>> brier = dict(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> loss, grad = loss_and_grad(p, np.array([1, 0]), **brier)
    >>> bool(np.isclose(loss, np.mean((p - [[0, 1], [1, 0]]) ** 2)))
    True
    >>> grad
    array([[ 0.125, -0.125],
           [-0.25 ,  0.25 ]])
    """
    settings = ObjectiveSettings(**constants)
    family = family_of(events)
    check_arrays(probs, y)
    loss, grad = evaluate_loss(probs, y, settings, family, need_grad=True)
    return float(loss), np.ascontiguousarray(grad)
