"""How far the early end of stage 1 of the default is from its optimum, and what reaching it costs.

    python benchmarks/stage_one.py --data ../shared/data

See docs/decisions/195-solved-to-the-end.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from hcal.calibrators.h import refine


def generated(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 2, (n, k)), rng.integers(0, k, n)
    z[np.arange(n), y] += rng.normal(np.log(k) + 1, 3, n)
    return z, y


def fitted(z: np.ndarray, y: np.ndarray, exact_events: float) -> tuple[np.ndarray, float]:
    """Return the probabilities of stage 1 (N, K), and the CPU seconds of its fit."""
    start = time.process_time()
    with patch.object(refine, "EXACT_EVENTS", exact_events):
        stage = refine.fit_refined(z, y, np.ones(len(y)))[0]
    spent = time.process_time() - start
    e = np.exp(-refine.apply_refined(stage, z)[1])
    return e / e.sum(axis=1, keepdims=True), spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data
    tasks = {f"generated {n}x{k}": generated(n, k) for n, k in ((3000, 50), (6000, 1000))}
    for name in ("cifar10_resnet110", "cifar100_resnet110", "agnews_gpt2"):
        with np.load(folder / f"{name}.npz") as stored:
            tasks[name] = stored["logits_cal"].astype(np.float64), stored["y_cal"].astype(np.int64)
    for name, (z, y) in tasks.items():
        (early, seconds), (exact, more) = fitted(z, y, np.inf), fitted(z, y, 0)
        off = float(np.abs(early - exact).max())
        print(f"{name:22} early end off by {off:.1e}; CPU-s {seconds:.2f}, to the end {more:.2f}")


if __name__ == "__main__":
    main()
