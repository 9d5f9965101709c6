"""Large arrays that steps of a training hand on: the first touch of new memory costs as much as a pass.

The system hands out pages that it has to clear first, and takes large arrays back as soon as they are freed.
Inside :func:`reused_buffers` this thread's :func:`buffer` gives arrays that nobody holds any more once again.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Below this the allocator keeps the memory by itself.
_LARGE = 1 << 22


class _Local(threading.local):
    """The memory of this thread; None outside of :func:`reused_buffers`."""

    blocks: list[NDArray[np.uint8]] | None = None


_local = _Local()
#: Who holds a block that is free: the list, the name in the loop, and the argument of getrefcount.
_NOBODY = 3


@contextmanager
def reused_buffers() -> Iterator[None]:
    """Let :func:`buffer` reuse memory in this thread until the end, when all of it is given back.

    >>> with reused_buffers():
    ...     one = buffer((1 << 21,), np.float32).ctypes.data
    ...     two = buffer((1 << 21,), np.float32).ctypes.data
    >>> one == two
    True
    """
    outer, _local.blocks = _local.blocks, [] if _local.blocks is None else _local.blocks
    try:
        yield
    finally:
        _local.blocks = outer


def buffer(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array, as ``np.empty`` does; whoever holds it, or a view of it, keeps it."""
    wanted = (shape,) if isinstance(shape, int) else shape
    size = math.prod(wanted) * np.dtype(dtype).itemsize
    if _local.blocks is None or size < _LARGE:
        return np.empty(wanted, dtype)
    for block in _local.blocks:
        if block.size == size and sys.getrefcount(block) == _NOBODY:
            return block.view(dtype).reshape(wanted)
    new = np.empty(size, np.uint8)
    _local.blocks.append(new)
    return new.view(dtype).reshape(wanted)
