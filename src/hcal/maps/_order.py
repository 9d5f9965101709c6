"""The order of events by cell, kept while the tensor it belongs to lives: a fit asks for it once an epoch."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

#: Events in the order of their cells, the edges of the cells, and how far into its cell each event lies.
Order = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Kept:
    of: weakref.ref[Tensor]
    version: int
    step: float
    cells: int
    order: Order


class OrderCache:
    """Orders of a few tensors that are alive; none is kept alive by this.

    Safe in threads: what is asked for is returned, never what another thread put there meanwhile.

    Parameters
    ----------
    make : callable
        (x, step, cells) to Order.
    most : int
        As many fits may run at once before one makes another forget.

    Examples
    --------
    >>> import torch
    >>> made = []
    >>> cache = OrderCache(lambda x, step, cells: made.append(1) or (x, x, x))
    >>> x = torch.zeros(2)
    >>> _ = cache(x, 1.0, 3), cache(x, 1.0, 3), cache(x, 2.0, 3)
    >>> len(made)
    2
    """

    def __init__(self, make: Callable[[Tensor, float, int], Order], most: int = 8) -> None:
        self._make, self._most = make, most
        # re-entrant: the garbage collector may drop an entry while one is being stored
        self._lock = threading.RLock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def __call__(self, x: Tensor, step: float, cells: int) -> Order:
        """Return the order of x, made anew unless it is kept."""
        with self._lock:
            kept = self._kept.get(id(x))
        if (
            kept is not None
            and kept.of() is x
            and (kept.version, kept.step, kept.cells) == (x._version, step, cells)
        ):
            return kept.order
        order = self._make(x, step, cells)
        self._store(x, step, cells, order)
        return order

    def of(self, x: Tensor) -> Order | None:
        """Return the order that is kept for x, for whoever must keep it alive."""
        with self._lock:
            kept = self._kept.get(id(x))
        return kept.order if kept is not None and kept.of() is x else None

    def __len__(self) -> int:
        return len(self._kept)

    def _store(self, x: Tensor, step: float, cells: int, order: Order) -> None:
        key = id(x)
        ref = weakref.ref(x, lambda gone: self._drop(key, gone))
        with self._lock:
            self._kept[key] = _Kept(ref, x._version, step, cells, order)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def _drop(self, key: int, gone: weakref.ref[Tensor]) -> None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.of is gone:  # a later tensor may have the same id
                del self._kept[key]
