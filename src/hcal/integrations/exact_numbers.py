"""Floats of a formula as tensors, while it is exported: the exporter of ONNX rounds Python's floats to float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Operations of two operands, one of which may be a float; with the names of Python's operators.
_OF_TWO: Final = {
    *("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rdiv", "rtruediv"),
    *("pow", "rpow", "maximum", "minimum", "clamp_min", "clamp_max", "where"),
    *("gt", "lt", "ge", "le", "eq", "ne"),
}


class ExactNumbers(TorchFunctionMode):
    """A context in which every float of a formula becomes a tensor of the formula's float width.

    Parameters
    ----------
    dtype : torch.dtype

    Examples
    --------
    >>> with ExactNumbers(torch.float64):
    ...     torch.full((), 1e-300) > 0
    tensor(True)
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Call an operation, with tensors in the place of floats."""
        options = kwargs or {}
        name = getattr(function, "__name__", "").strip("_")
        if name == "full" and args[0] == () and isinstance(args[1], float):
            dtype = options.get("dtype")
            return torch.tensor(
                args[1], dtype=dtype if isinstance(dtype, torch.dtype) else self.dtype
            )
        if name in _OF_TWO:
            args = tuple(self._exact(value) for value in args)
        return function(*args, **options)

    def _exact(self, value: object) -> object:
        return torch.tensor(value, dtype=self.dtype) if type(value) is float else value


def exported_exactly(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return a module that computes the same, and whose floats the exporter does not round."""
    return _Exact(module, dtype)


class _Exact(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    def forward(self, scores: Tensor) -> Tensor:
        with ExactNumbers(self.dtype):
            probs: Tensor = self.module(scores)
        return probs
