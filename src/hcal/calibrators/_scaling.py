"""Normal forms of logits that several methods learn from: centred, on a grid, by rank, thinned."""

from __future__ import annotations

import numpy as np

from hcal.numerics import NOTHING, Float64, FloatArray, IntArray
from hcal.solvers.temperature import logit_scale
from hcal.xp import Array, namespace

#: Probabilities are clipped to [eps, 1 − eps] before a logarithm, as the published scaling methods do.
EPS = float(np.finfo(np.float64).eps)
#: Of the grid of logits, relative to their typical spread.
_GRID = 2.0**-32


def top_hits(logits: FloatArray, y: IntArray) -> Float64:
    """Return 1 where the label has the top score, 1/t where it shares it with t − 1 classes, else 0; (N,).

    ``argmax`` would give a tie to the class of the lowest number.

    >>> top_hits(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([1, 1]))
    array([1. , 0.5])
    """
    best = logits.max(axis=1)
    ties = np.count_nonzero(logits == best[:, None], axis=1)
    return np.asarray((logits[np.arange(len(y)), y] == best) / ties, dtype=np.float64)


def without_mean(x: Array) -> Array:
    """Return logits (N, K) less their mean over the classes, which softmax does not see.

    >>> without_mean(np.array([[1.0, 3.0]]))
    array([[-1.,  1.]])
    """
    xp = namespace(x)
    below = x - xp.row_max(x)
    return below - xp.row_sum(below) / x.shape[-1]


def on_grid(x: FloatArray) -> Float64:
    """Return centred logits (N, K) on a grid of 2e-10 of their typical spread.

    A search that is not convex, or stops early, ends elsewhere when its input differs by rounding. On the grid,
    rows with another constant, or the classes in another order, are the same numbers.

    >>> z = np.array([[0.1, 0.2, 0.4], [3.0, 1.0, 1.0]])
    >>> bool((on_grid(z) == on_grid(z + 0.7)).all())
    True
    """
    x = np.asarray(without_mean(x.astype(np.float64, copy=False)), dtype=np.float64)
    typical = float(np.median(x.max(axis=1) - x.min(axis=1)))
    unit = _GRID * (2.0 ** np.floor(np.log2(typical)) if typical > NOTHING else 1.0)
    fine = np.abs(x) < unit * 2.0**60  # above, floats are coarser than the grid
    np.rint(np.divide(x, unit, out=x, where=fine), out=x, where=fine)
    return np.multiply(x, unit, out=x, where=fine)


def by_rank(x: Float64, y: IntArray) -> tuple[Float64, IntArray]:
    """Return each row's values in falling order, and where the label's stands.

    What treats all classes alike needs no more, and then does not see their numbers.

    >>> by_rank(np.array([[1.0, 3.0, 2.0]]), np.array([0]))
    (array([[3., 2., 1.]]), array([2]))
    """
    own = x[np.arange(len(y)), y]
    place = (x > own[:, None]).sum(axis=1)
    return -np.sort(-x, axis=1), np.asarray(place, dtype=np.int64)


def thinned_ranks(
    x: FloatArray, y: IntArray, weight: Float64 | None, max_events: int, usual: float = 1.0
) -> tuple[Float64, IntArray, Float64 | None, float]:
    """Return every n-th row by rank in its unit, where its label stands, its weight, and the unit.

    At most ``max_events`` logits are kept. The unit is 1 for logits of a usual scale, as published, else what
    brings them to the scale ``usual``.

    >>> thinned_ranks(np.array([[0.0, 3000.0]]), np.array([0]), None, 10)[3]
    1500.0
    """
    every = -(-x.size // max_events)
    # One function for all classes: their numbers need not be known.
    kept, own = by_rank(on_grid(x[::every]), y[::every])
    scale = logit_scale(kept)
    unit = 1.0 if scale == 0 or 0.5 <= scale <= 100 else scale / usual
    return kept / unit, own, None if weight is None else weight[::every], unit
