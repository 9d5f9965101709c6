"""Compiled kernels: a decorator that keeps them on disk.

Kernels release the GIL, so plain threads run them (:func:`hcal.numerics.in_threads`; no OpenMP, so nothing to
oversubscribe).

``python -m hcal.compiled`` compiles all kernels and keeps them on disk, for an image of a container.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from hcal.numerics import NumpyArray

Kernel = Callable[..., Any]

#: The modules of kernels; each compiles its own by ``compile_all()``.
KERNEL_MODULES: Final = (
    "hcal.pool._numba",
    "hcal.h_calibration._numba",
    "hcal.h_calibration._mixture_numba",
)


def jit(**options: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a kernel: the GIL released, kept on disk where numba finds a place."""
    from numba import njit

    def decorate(function: Kernel) -> Kernel:
        kernel: Kernel = njit(nogil=True, **options)(function)
        if hasattr(kernel, "enable_caching"):  # not where NUMBA_DISABLE_JIT is set
            try:
                kernel.enable_caching()
                _forgive_full_disks(kernel)
            except RuntimeError:  # neither the install nor HOME can be written to
                _say_once("no folder can be written to")
        return kernel

    return decorate


def exponential(kind: type[np.floating]) -> Kernel:
    """Return a kernel (v, out) of e^v for an array v ≤ 0 of float32 or float64, at most 2 ulp off.

    e^v = 2^n·e^r with |r| ≤ ½ ln 2, and e^r is its Taylor series: loops that the compiler vectorises, and a result that
    depends on nothing but v. Where e^v would underflow it is 0.
    """
    wide = kind is np.float64
    whole, bits, bias, least = (np.int64, 52, 1023, -708.0) if wide else (np.int32, 23, 127, -87.0)
    series = tuple(kind(1 / math.factorial(i)) for i in range(13 if wide else 7, -1, -1))
    # ln 2 in two parts: n times the first is exact.
    high = kind(0.6931471803691238 if wide else 0.693359375)
    low = kind(1.9082149292705877e-10 if wide else -2.12194440e-4)
    steps, half, bottom = kind(1 / math.log(2)), kind(0.5), kind(least)

    @jit(error_model="numpy", fastmath={"contract", "nnan"})
    def exp_of(v: NumpyArray, out: NumpyArray) -> None:
        for i in range(len(v)):
            u = max(v[i], bottom)
            n = whole(u * steps - half)
            r = (u - kind(n) * high) - kind(n) * low
            y = series[0]
            for c in series[1:]:
                y = y * r + c
            power = whole((n + whole(bias)) << whole(bits)).view(kind)
            out[i] = y * power if v[i] >= bottom else kind(0)

    return exp_of


def _forgive_full_disks(kernel: Any) -> None:
    """Let a kernel that cannot be written be used all the same: numba would raise at its first call."""
    write = kernel._cache.save_overload

    def save_overload(signature: object, data: object) -> None:
        try:
            write(signature, data)
        except OSError as error:
            kernel._cache.disable()
            _say_once(error.strerror or str(error))

    kernel._cache.save_overload = save_overload


@cache
def _say_once(why: str) -> None:
    warnings.warn(
        f"compiled kernels are not kept on disk ({why}): every process spends some seconds on "
        "compiling them. Set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )


# -- all kernels of an installation -----------------------------------------------------------------


def main() -> None:
    """Compile every kernel of hcal, and print a line for each with the folder that keeps it."""
    if find_spec("numba") is None:
        raise SystemExit("there is nothing to compile without numba: pip install 'hcal[fast]'")
    for name in KERNEL_MODULES:
        start = time.perf_counter()
        for title, kernel in import_module(name).compile_all():
            seconds = time.perf_counter() - start
            print(f"{title}: {seconds:.1f} s, {kernel.stats.cache_path or 'not kept'}", flush=True)
            start = time.perf_counter()


if __name__ == "__main__":
    main()
