"""Value and gradient of the objective on plain numpy arrays.

Compiled by numba where it is installed, else by torch: the same numbers, tested against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hcal.objective.events import Events, Families, check_events, resolve
from hcal.objective.settings import ObjectiveSettings, Weighting
from hcal.runtime.jit import compiled
from hcal.runtime.numerics import FloatArray, IntArray


def loss_and_grad(
    probs: FloatArray,
    y: IntArray,
    *,
    window: int = 200,
    epsilon: float = 1e-20,
    scale: float = 1e5,
    clusters: int = 15,
    iterations: int = 25,
    weighting: Weighting = "kmeans",
    norm: int = 1,
    events: Events = "atomic",
) -> tuple[float, FloatArray]:
    """Return the h-calibration loss (eq:finalloss) and its gradient in the probabilities.

    Parameters
    ----------
    probs : array of shape (N, K), float32 or float64
    y : array of shape (N,)
    window, epsilon, scale, clusters, iterations, weighting, norm
        See :class:`hcal.objective.ObjectiveSettings`.
    events : {"atomic", "top-label", "class-wise"}, class index or list of subsets of classes

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
    settings = ObjectiveSettings(window, epsilon, scale, clusters, iterations, weighting, norm)
    families = resolve(check_events(events), probs.shape[1])
    grad = np.zeros_like(probs, order="C")
    loss = evaluate(probs, y, settings, families, grad)
    return loss, grad


def evaluate(
    probs: FloatArray, y: IntArray, s: ObjectiveSettings, families: Families, grad: FloatArray | None
) -> float:
    """Return the loss; add its gradient to ``grad`` (N, K) unless None. The engine of every CPU caller.

    Parameters
    ----------
    probs : array of shape (N, K)
    y : array of shape (N,)
    s : ObjectiveSettings
    families : Families
    grad : zero-filled array of shape (N, K), or None

    Returns
    -------
    float

    Examples
    --------
    >>> evaluate(np.full((2, 2), 0.5), np.array([0, 1]), ObjectiveSettings(), Families("atomic"), None)
    0.0
    """
    check_probs(probs, y)
    return evaluate_checked(probs, y, s, families, grad)


def evaluate_checked(
    probs: FloatArray, y: IntArray, s: ObjectiveSettings, families: Families, grad: FloatArray | None
) -> float:
    """Return what :func:`evaluate` does of input that :func:`check_probs` has passed.

    Unchecked input is not only wrong here: compiled kernels index tables by the bits of a probability.

    Examples
    --------
    >>> p, y = np.full((2, 2), 0.5), np.array([0, 1])
    >>> evaluate_checked(p, y, ObjectiveSettings(), Families("atomic"), None)
    0.0
    """
    if not compiled():
        return _by_torch(probs, y, s, families, grad)
    from hcal.objective._compiled import family_loss

    p = np.ascontiguousarray(probs)
    if families.kind == "atomic":
        flat = None if grad is None else grad.reshape(-1)
        return family_loss(p.reshape(-1), atomic_marks(y, p.shape), s, flat)
    if families.kind == "top-label":
        return _top_label(p, y, s, grad)
    return _subsets(p, y, s, families, grad)


#: A probability may exceed 1 by this much, as a sum of classes in float32 does.
_OVER = 1e-3


def check_probs(probs: FloatArray, y: IntArray) -> None:
    """Raise ValueError unless probs is (N, K) in [0, 1] and y (N,) in 0..K−1.

    Examples
    --------
    >>> check_probs(np.ones((1, 2)), np.array([2]))
    Traceback (most recent call last):
    ...
    ValueError: y must lie in 0..1; its labels range from 2 to 2
    """
    if probs.ndim != 2 or 0 in probs.shape or y.shape != probs.shape[:1]:
        raise ValueError(f"probs must be (N, K) and y (N,), not empty; got {probs.shape} and {y.shape}")
    if probs.dtype not in (np.float32, np.float64):
        raise ValueError(f"probs must be float32 or float64, got {probs.dtype}")
    least, most = (0.0, 1.0) if _inside(probs) else (float(probs.min()), float(probs.max()))
    check_ranges(least, most, int(y.min()), int(y.max()), probs.shape[1])


def check_ranges(least: float, most: float, first: int, last: int, n_classes: int) -> None:
    """Raise ValueError unless probabilities lie in [0, 1] and labels in 0..K−1, given their extremes.

    Parameters
    ----------
    least, most : float
        Of the probabilities; NaN where one is.
    first, last : int
        Least and greatest label.
    n_classes : int

    Examples
    --------
    >>> check_ranges(0.0, float("nan"), 0, 1, 2)
    Traceback (most recent call last):
    ...
    ValueError: probs must lie in [0, 1]; they range from 0 to nan
    """
    if first < 0 or last >= n_classes:
        raise ValueError(f"y must lie in 0..{n_classes - 1}; its labels range from {first} to {last}")
    if not (least >= 0 and most <= 1 + _OVER):
        raise ValueError(f"probs must lie in [0, 1]; they range from {least:.6g} to {most:.6g}")


def _inside(probs: FloatArray) -> bool:
    """Whether all lie in [0, 1 + 1e-3], by one pass: as integers, negative ones and NaN are the largest."""
    kind = np.uint32 if probs.dtype == np.float32 else np.uint64
    return bool(probs.view(kind).max() <= np.array(1 + _OVER, dtype=probs.dtype).view(kind))


def atomic_marks(y: IntArray, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the flattened one-hot marks (N·K,).

    Examples
    --------
    >>> atomic_marks(np.array([1]), (1, 2))
    array([False,  True])
    """
    marks = np.zeros(shape, dtype=np.bool_)
    marks[np.arange(shape[0]), y] = True
    return marks.reshape(-1)


def _top_label(p: FloatArray, y: IntArray, s: ObjectiveSettings, grad: FloatArray | None) -> float:
    from hcal.objective._compiled import family_loss

    rows, top = np.arange(len(p)), p.argmax(axis=1)
    part = None if grad is None else np.empty(len(p), dtype=p.dtype)
    loss = family_loss(p[rows, top], top == y, s, part)
    if grad is not None:
        grad[rows, top] += part
    return loss


def _subsets(
    p: FloatArray, y: IntArray, s: ObjectiveSettings, families: Families, grad: FloatArray | None
) -> float:
    from hcal.objective._compiled import family_loss

    part = None if grad is None else np.empty(len(p), dtype=p.dtype)
    count = len(families.subsets)
    loss = 0.0
    for subset in families.subsets:
        classes = list(subset)
        q = p[:, classes[0]] if len(classes) == 1 else p[:, classes].sum(axis=1)
        loss += family_loss(np.ascontiguousarray(q), np.isin(y, classes), s, part, 1 / count) / count
        if grad is not None and part is not None:
            grad[:, classes] += part[:, None]
    return loss


def _by_torch(
    probs: FloatArray, y: IntArray, s: ObjectiveSettings, families: Families, grad: FloatArray | None
) -> float:
    import torch

    from hcal.objective._torch import families_loss, gather_events, spread_grad

    p = torch.from_numpy(np.ascontiguousarray(probs))
    events, marks = gather_events(p, torch.from_numpy(np.ascontiguousarray(y)), families)
    loss, slope = families_loss(events, marks, s, grad is not None)
    if grad is not None and slope is not None:
        grad += spread_grad(slope, p, families).numpy()
    return float(loss)
