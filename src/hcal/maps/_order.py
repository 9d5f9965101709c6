"""The order of events by cell, kept while the tensor it belongs to lives: a fit asks for it once an epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

#: Events in the order of their cells, the edges of the cells, and how far into its cell each event lies.
Order = tuple[Tensor, Tensor, Tensor]
#: As many fits may run at once before one makes another forget.
_MOST = 8


class OrderCache:
    """Orders of a few tensors that are alive, made by ``make`` (x, step, cells); none is kept alive by this.

    Safe in threads: what is asked for is returned, never what another thread put there meanwhile.

    >>> import torch
    >>> made = []
    >>> cache = OrderCache(lambda x, step, cells: made.append(1) or (x, x, x))
    >>> x = torch.zeros(2)
    >>> _ = cache(x, 1.0, 3), cache(x, 1.0, 3), cache(x, 2.0, 3)
    >>> len(made)
    2
    """

    def __init__(self, make: Callable[[Tensor, float, int], Order]) -> None:
        self._make = make
        # re-entrant: the garbage collector may drop an entry while one is being stored
        self._lock = threading.RLock()
        self._kept: MutableMapping[Tensor, tuple[tuple[int, float, int], Order]] = WeakTensorKeyDictionary()

    def __call__(self, x: Tensor, step: float, cells: int) -> Order:
        """Return the order of x, made anew unless it is kept."""
        version = (x._version, step, cells)
        with self._lock:
            kept = self._kept.get(x)
        if kept is not None and kept[0] == version:
            return kept[1]
        order = self._make(x, step, cells)
        with self._lock:
            self._kept.pop(x, None)  # the newest stands last
            self._kept[x] = version, order
            while len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]
        return order

    def of(self, x: Tensor) -> Order | None:
        """Return the order that is kept for x, for whoever must keep it alive."""
        with self._lock:
            kept = self._kept.get(x)
        return None if kept is None else kept[1]

    def __len__(self) -> int:
        return len(self._kept)
