"""Fit and predict on a GPU against the CPU of the same machine: one table, in one run.

PYTHONPATH=src python3 benchmarks/device_fit.py            # 25000 x 1000, about a minute
PYTHONPATH=src python3 benchmarks/device_fit.py --profile  # and where a fit spends its time
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import hcal
from hcal.integrations.torch import CalibratedModule

SIZES = ((5000, 10), (5000, 100), (25000, 1000))


def problem(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (n, k)).astype(np.float32)
    y = rng.integers(0, k, n)
    z[np.arange(n), y] += rng.normal(np.log(k) + 1, 3, n).astype(np.float32)
    return torch.from_numpy(z), torch.from_numpy(y)


def seconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fits(n: int, k: int) -> hcal.HCalibrator:
    z, y = problem(n, k)
    there, labels = z.cuda(), y.cuda()
    cold = seconds(lambda: hcal.HCalibrator().fit(there, labels), 1)
    warm = seconds(lambda: hcal.HCalibrator().fit(there, labels), 3)
    cal = hcal.HCalibrator().fit(there, labels)
    hcal.HCalibrator().fit(z[:2000], y[:2000])  # compile the host's kernels before its clock starts
    host = seconds(lambda: hcal.HCalibrator().fit(z, y), 1)
    other = hcal.HCalibrator().fit(z, y)
    off = float((cal.predict_proba(there).cpu() - other.predict_proba(z)).abs().max())
    print(
        f"fit {n}x{k}: cuda cold {cold:.2f} s, warm {warm:.2f} s; cpu {host:.2f} s; "
        f"probabilities differ by {off:.1e}"
    )
    return cal


def predicts(cal: hcal.HCalibrator, n: int, k: int) -> None:
    there = problem(n, k)[0].cuda()
    module = CalibratedModule(torch.nn.Identity(), cal).cuda()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = there.to(dtype)
        one = seconds(partial(torch.softmax, x, 1), 50)
        ours = seconds(partial(cal.predict_proba, x), 50)
        with torch.no_grad():
            inside = seconds(partial(module, x), 50)
        kept = bool((cal.predict_proba(x).argmax(1) == x.argmax(1)).all())
        print(
            f"predict {n}x{k} {dtype!s:15}: softmax {one * 1e3:.3f} ms, predict_proba {ours / one:.1f} x, "
            f"CalibratedModule {inside / one:.1f} x; argmax kept: {kept}"
        )


def run() -> None:
    """Time fits and predictions at every size."""
    for n, k in SIZES:
        predicts(fits(n, k), n, k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    run()
    if arguments.profile:
        z, y = (part.cuda() for part in problem(*SIZES[-1]))
        with cProfile.Profile() as profile:
            hcal.HCalibrator().fit(z, y)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        pstats.Stats(profile).sort_stats("cumulative").print_stats("hcal", 45)


if __name__ == "__main__":
    main()
