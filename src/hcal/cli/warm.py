"""``hcal warm``: compile every kernel once, so that nobody waits for one later."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from hcal.cli import console
from hcal.cli.commands import OUTPUT, Shown


def warm(shown: Annotated[Shown, OUTPUT]) -> None:
    """Compile all kernels and keep them on disk: in an image, after an install, before a benchmark."""
    with console.working("compiling", quiet=shown.silent):
        seconds, folder, why = warm_kernels()
    found = {"seconds": seconds, "folder": folder, "kept": not why, "why_not": why or None}

    def show() -> None:
        told = ", ".join(f"{name} {spent:.1f} s" for name, spent in seconds.items())
        console.out().print(f"compiled or found on disk: {told}", markup=False)
        if folder:
            console.out().print(f"kept in [bold]{console.name(folder)}[/]", soft_wrap=True)

    shown.show(lambda: found, show)
    if why:
        console.say("warning", "yellow", why)


def warm_kernels() -> tuple[dict[str, float], str, str]:
    """Run every kernel on a handful of rows, in both float widths.

    Return the seconds by part that compiling took, or loading from disk; the folder where the kernels of the
    default are kept, empty if nowhere; and why they are not kept, empty if they are.
    """
    from hcal.extras import missing
    from hcal.runtime.jit import compiled

    if not compiled():
        raise missing("compiled kernels", "numba", "fast")
    spent: dict[str, float] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, run in _PARTS.items():
            start = time.perf_counter()
            run()
            spent[name] = round(time.perf_counter() - start, 2)
    why = next((str(w.message) for w in caught if "not kept on disk" in str(w.message)), "")
    return spent, "" if why else _folder(), why


def _folder() -> str:
    from hcal.calibrators.h.fused import predict_rows
    from hcal.runtime.jit import cache_folder

    found = cache_folder(predict_rows)
    return "" if found is None else os.environ.get("NUMBA_CACHE_DIR") or str(found)


def _rows(dtype: str, n_rows: int = 200, n_classes: int = 4) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, n_rows)
    return (2 * rng.normal(size=(n_rows, n_classes)) + 3 * np.eye(4, n_classes)[y]).astype(dtype), y


def _prediction() -> None:
    import hcal
    from hcal.calibrators.h import fused

    patience, fused.PATIENCE = fused.PATIENCE, 0  # now is when it is compiled
    try:
        fitted = hcal.HCalibrator().fit(*_rows("float64"))
        for dtype in ("float32", "float64"):
            fitted.predict_proba(_rows(dtype)[0])
    finally:
        fused.PATIENCE = patience


def _objective() -> None:
    import torch

    import hcal
    from hcal.runtime.threads import PARALLEL_EVENTS

    # Enough rows for two threads: where their parts meet is a kernel of its own. Many classes in float32 have
    # a way of their own, by rank.
    shared = PARALLEL_EVENTS // 4
    for dtype, n_rows, n_classes in (("float32", shared, 4), ("float64", shared, 4), ("float32", 200, 6000)):
        scores, y = (torch.from_numpy(v) for v in _rows(dtype, n_rows, n_classes))
        with _two_threads():
            hcal.HCalibrationLoss()(scores.softmax(dim=1).requires_grad_(), y).backward()


@contextmanager
def _two_threads() -> Iterator[None]:
    """Share work among two threads here, as whoever has two cores will."""
    from hcal.runtime import threads

    counted = threads.thread_count
    threads.thread_count = lambda: 2
    try:
        yield
    finally:
        threads.thread_count = counted


def _maps() -> None:
    import torch

    from hcal.maps import build_trainable

    x = torch.log_softmax(torch.from_numpy(_rows("float32")[0]), dim=1)
    build_trainable("ensemble-2", x)(x).sum().backward()


_PARTS: dict[str, Callable[[], None]] = {
    "prediction": _prediction,
    "objective": _objective,
    "maps": _maps,
}
