"""Rows whose classes have names, added to a monitor that may know the classes in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcal.certificates.monitor import Monitor
from hcal.class_names import ClassName, reorder
from hcal.numerics import FloatArray, IntArray


def update_by_name(
    monitor: Monitor, probs: FloatArray, y: IntArray, names: Sequence[ClassName] | None, **file: str
) -> None:
    """Add rows to a monitor by the names of their classes, which the first rows with names decide.

    Parameters
    ----------
    monitor : Monitor
    probs : array of shape (N, K)
    y : array of int of shape (N,)
        Positions among ``names``.
    names : sequence of K str or int, or None
    **file
        As for :meth:`hcal.Monitor.update`: name, digest and date.

    Examples
    --------
    >>> monitor = Monitor()
    >>> update_by_name(monitor, np.array([[0.2, 0.8]]), np.array([1]), ["cat", "dog"])
    >>> update_by_name(monitor, np.array([[0.8, 0.2]]), np.array([0]), ["dog", "cat"])
    >>> monitor.classes, monitor.n
    (('cat', 'dog'), 2)
    """
    if names is not None:
        texts = [str(name) for name in names]
        if monitor.classes is None:
            monitor.classes = tuple(texts)
        order = reorder(texts, monitor.classes) or list(range(len(texts)))
        probs = probs[:, order]
        y = np.argsort(order)[y]
    labels = y if monitor.classes is None else np.array(monitor.classes)[y]
    monitor.update(probs, labels, **file)
