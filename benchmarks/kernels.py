"""What each compiled kernel buys: the same call with its file present and with its file absent.

    python benchmarks/kernels.py            # on a GPU also the lines of Triton

A kernel stays if it is at least three times faster on something that a user waits for. Each line runs in two new
processes, one of which cannot import the kernel; times are CPU seconds, on a GPU wall-clock seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

#: Line -> (the kernel's module, the call, whether it needs a GPU).
LINES = {
    "h loss and gradient, 5000 x 100": ("hcal.h_calibration._numba", "loss", False),
    "h, one ensemble of the paper, 5000 x 10": (
        "hcal.h_calibration._mixture_numba",
        "train",
        False,
    ),
    "h loss and gradient, 25000 x 1000, GPU": ("hcal.h_calibration._triton", "loss_gpu", True),
    "h, one ensemble of the paper, 25000 x 1000, GPU": (
        "hcal.h_calibration._mixture_triton",
        "train_gpu",
        True,
    ),
    "default, predict 5000 x 100": ("hcal.pool._numba", "predict", False),
}


def data(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident float32 logits and their labels."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(n, k)).astype(np.float32) * 1.5
    p = np.exp(truth - truth.max(axis=1, keepdims=True))
    thresholds = p.sum(axis=1, keepdims=True) * rng.random((n, 1))
    y = (p.cumsum(axis=1) > thresholds).argmax(axis=1)
    return 2.5 * truth, y


def call(what: str) -> Callable[[], object]:
    """Return the work of a line."""
    import hcal

    if what == "predict":
        scores, y = data(5000, 100)
        cal = hcal.PooledCalibrator().fit(scores, y)
        return lambda: cal.predict_proba(scores)
    if what.startswith("loss"):
        import torch

        n, k, device = (25_000, 1000, "cuda") if what.endswith("gpu") else (5000, 100, "cpu")
        scores, y = data(n, k)
        probs = torch.from_numpy(scores).to(device).softmax(1).requires_grad_()
        labels = torch.from_numpy(y).to(device)
        loss = hcal.HCalibrationLoss(check=False)
        return lambda: loss(probs, labels).backward()
    n, k, epochs, device = (
        (25_000, 1000, 300, "cuda") if what.endswith("gpu") else (5000, 10, 30, None)
    )
    scores, y = data(n, k)
    return lambda: hcal.HCalibrator(maps="ensemble-128", epochs=epochs, device=device).fit(
        scores, y
    )


def measure(what: str, absent: str) -> float:
    """Return the least seconds of three calls after one to warm up."""
    if absent:
        sys.modules[absent] = None  # type: ignore[assignment]
    work = call(what)
    clock = time.perf_counter if what.endswith("gpu") else time.process_time
    work()
    times = []
    for _ in range(3):
        start = clock()
        work()
        if what.endswith("gpu"):
            import torch

            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
        return
    torch = __import__("torch")
    for line, (module, what, gpu) in LINES.items():
        if find_spec(module) is None or (gpu and not torch.cuda.is_available()):
            print(f"{line:45} not here")
            continue
        timings = []
        for absent in ("", module):
            command = [sys.executable, __file__, what, absent]
            done = subprocess.run(command, capture_output=True, check=True)
            timings.append(float(done.stdout))
        print(
            f"{line:45} {timings[0]:8.4f} s, without {module}: {timings[1]:8.4f} s, "
            f"{timings[1] / timings[0]:5.1f} x"
        )


if __name__ == "__main__":
    main()
