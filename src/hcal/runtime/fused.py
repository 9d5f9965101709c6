"""Whether Triton kernels take a tensor: the one rule for maps and objectives."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@cache
def fused() -> bool:
    """Return whether Triton is there; it comes with torch's CUDA builds."""
    from importlib.util import find_spec

    return find_spec("triton") is not None


def takes_fused(p: Tensor, *, halves: bool = False) -> bool:
    """Return whether the Triton kernels take this tensor: float32 on CUDA, or with ``halves`` a half too."""
    small = p.numel() < 2**31 - 2**16  # the kernels count events in 32 bits
    names = ("torch.float32", *(("torch.float16", "torch.bfloat16") if halves else ()))
    return p.is_cuda and str(p.dtype) in names and small and fused()
