"""Logarithms of probabilities, made of the rows that are asked for, a few of them in cache at a time.

Those of all rows would be an array of their own, and each step on the way to them another: to be given that
memory costs as much as the logarithms (docs/decisions/191-logarithms-by-blocks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64, FloatArray, row_blocks
from hcal.runtime.threads import run_parts, split

#: Values of a block: it stays in a core's own cache.
_BLOCK_EVENTS = 1 << 16


def row_sums(x: FloatArray, of: Callable[[FloatArray], FloatArray] = np.asarray) -> tuple[Float64, float]:
    """Return the sums (N,) of the rows of x (N, K), or ``of`` it, in float64, and the lowest value of x.

    A NaN comes out as one.

    >>> row_sums(np.array([[0.5, 0.5], [0.0, 1.0]]))
    (array([1., 1.]), 0.0)
    """
    sums = np.empty(len(x))

    def add(start: int, stop: int) -> float:
        lowest, part, total = np.inf, x[start:stop], sums[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in row_blocks(part.shape, _BLOCK_EVENTS):
                np.sum(of(part[rows]), axis=1, dtype=np.float64, out=total[rows])
                lowest = np.minimum(lowest, part[rows].min())
        return float(lowest)

    return sums, float(np.min(run_parts(add, split(len(x), grain=x.shape[1]))))


class LogRows:
    """The logarithms of probabilities, computed for the rows that are asked for: a slice gives an array.

    Parameters
    ----------
    probs : array of shape (N, K)
        In [0, 1], float32 or float64.
    divisors : array of shape (N,), optional
        What each row is divided by first, in the type of ``probs``.
    given : array of shape (N, K), optional
        What ``probs`` was made of: where a logarithm rounds its most probable class onto an earlier one, that
        class is lifted.

    Examples
    --------
    >>> rows = LogRows(np.array([[0.0, 1.0], [0.5, 0.5]]))
    >>> rows.shape, rows[1:2].round(3)
    ((2, 2), array([[-0.693, -0.693]]))
    """

    def __init__(
        self, probs: FloatArray, divisors: FloatArray | None = None, given: NDArray[Any] | None = None
    ) -> None:
        self._probs, self._divisors, self._given = probs, divisors, given
        self.shape, self.dtype = probs.shape, probs.dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> FloatArray:
        first, last, _ = rows.indices(len(self))
        out = np.empty((last - first, self.shape[1]), dtype=self.dtype)

        def make(start: int, stop: int) -> None:
            part, shift = out[start:stop], first + start
            with np.errstate(under="ignore"):
                for rows in row_blocks(part.shape, _BLOCK_EVENTS):
                    self._make(slice(shift + rows.start, shift + rows.stop), part[rows])

        run_parts(make, split(len(out), grain=self.shape[1]))
        return out

    def _make(self, rows: slice, out: FloatArray) -> None:
        """Write the logarithms of rows; a zero becomes that of the smallest number, so all stays finite."""
        probs = self._probs[rows]
        if self._divisors is not None:
            probs = np.divide(probs, self._divisors[rows, None], out=out)
        if not probs.min(initial=1.0) > 0:
            probs = np.maximum(probs, np.finfo(self.dtype).smallest_subnormal, out=out)
        np.log(probs, out=out)
        if self._given is not None:
            _keep_top(out, self._given[rows])


def _keep_top(logs: FloatArray, probs: NDArray[Any]) -> None:
    """Lift the most probable class where a logarithm rounded it onto an earlier one, in place."""
    top = probs.argmax(axis=1)
    rows = np.flatnonzero(logs.argmax(axis=1) != top)
    if rows.size:
        logs[rows, top[rows]] = np.nextafter(logs[rows].max(axis=1), logs.dtype.type(np.inf))
