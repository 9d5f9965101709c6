"""A ``forward`` that takes what another module's takes, and says so."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


class _Bound(functools.partial[Any]):
    """A bound method with the signature of the model inside the module, looked up when asked for."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.args[0].model.forward)


class AsModel:
    """Decorate ``forward(self, *args, **kwargs)`` of a module that wraps ``self.model``.

    PyTorch's exporters match ``dynamic_shapes`` with the names in the signature of ``forward``; with
    ``*args`` there are none, and neither a tuple nor the model's own names would do.

    >>> class Inner:
    ...     def forward(self, pixels): ...
    >>> class Outer:
    ...     model = Inner()
    ...     @AsModel
    ...     def forward(self, *args, **kwargs): ...
    >>> inspect.signature(Outer().forward)
    <Signature (pixels)>
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, module: Any, owner: type) -> Callable[..., Any]:
        return self.function if module is None else _Bound(self.function, module)
