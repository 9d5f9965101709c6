"""The h-calibration loss as an objective like any other: on every map, by every solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.objective.checks import check_arrays, check_equal_weights
from hcal.objective.engines import evaluate_loss
from hcal.objective.events import EventsArgument, family_of
from hcal.objective.protocol import Objective
from hcal.objective.settings import ObjectiveSettings, Weighting
from hcal.runtime.gradients import Gradient
from hcal.numerics import Float64, IntArray


def h(
    *,
    window: int = 200,
    epsilon: float = 1e-20,
    scale: float = 1e5,
    clusters: int = 15,
    iterations: int = 25,
    weighting: Weighting = "kmeans",
    norm: int = 1,
    events: EventsArgument = "pooled",
) -> Objective:
    """Return the h-calibration loss (eq:finalloss).

    Windows of sorted events are no sum over rows, so it is computed on all rows at once, and it takes equal
    weights only: repeat a row instead of weighting it.

    Parameters
    ----------
    window, epsilon, scale, clusters, iterations, weighting, norm
        See :class:`hcal.objective.ObjectiveSettings`.
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family

    Examples
    --------
    >>> brier = h(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> value, grad = brier.value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.ones(1))
    >>> round(value, 6), grad
    (0.0625, array([[ 0.0625, -0.1875]]))
    """
    settings = ObjectiveSettings(window, epsilon, scale, clusters, iterations, weighting, norm)
    family = family_of(events)

    def value_and_grad(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
        check_equal_weights(weight)
        probs = np.exp(log_probs)
        check_arrays(probs, y)
        value, grad = evaluate_loss(probs, y, settings, family, need_grad=True)
        return float(value), grad * probs

    def torch_loss() -> Any:
        from hcal.objective.loss import HCalibrationLoss

        return HCalibrationLoss.from_settings(settings, family)

    return Objective("h", value_and_grad, by_rows=False, torch_loss=torch_loss)
