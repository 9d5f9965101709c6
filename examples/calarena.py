"""Run hcal in the CalArena benchmark (arXiv 2605.30188), whose ``custom_calibrators.py`` takes objects like these.

Steps to submit:

1. Clone CalArena, download its benchmark files into ``calibration_benchmarks/``, ``pip install 'hcal[torch]'`` there.
2. Copy this file beside ``custom_calibrators.py`` and write in that file:
   ``from calarena import CALIBRATORS`` and ``CUSTOM_CALIBRATORS = CALIBRATORS``.
3. ``python run_benchmark.py --benchmark tabrepo-binary --calibrator hcal-pool`` (and the other benchmarks).
4. Open a pull request there with the new files ``results/*/hcal-pool.csv`` and the version of hcal.
"""

from __future__ import annotations

import warnings

import numpy as np

import hcal


class ForCalArena:
    """A method of hcal that takes probabilities (N, K), or (N,) of the positive class, and returns the same shape."""

    def __init__(self, method: str) -> None:
        self.calibrator = hcal.make_calibrator(method, input="probs")

    def fit(self, p_cal: np.ndarray, y_cal: np.ndarray) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hcal.CalibrationWarning)
            self.calibrator.fit(np.asarray(p_cal, dtype=np.float64), np.asarray(y_cal).astype(int))

    def predict_proba(self, p_test: np.ndarray) -> np.ndarray:
        probs = self.calibrator.predict_proba(np.asarray(p_test, dtype=np.float64))
        return probs[:, 1] if np.ndim(p_test) == 1 else probs


CALIBRATORS = {"hcal-pool": lambda: ForCalArena("pool"), "hcal-h": lambda: ForCalArena("h")}


def main() -> dict[str, float]:
    """Calibrate made-up probabilities as the runner would; return the log-loss before and after."""
    rng = np.random.default_rng(0)
    truth = rng.uniform(size=4000)
    y = (rng.random(4000) < truth).astype(int)
    p = truth**2 / (truth**2 + (1 - truth) ** 2)  # over-confident
    method = CALIBRATORS["hcal-pool"]()
    method.fit(p[:2000], y[:2000])
    after = method.predict_proba(p[2000:])
    return {
        "before": hcal.metrics.nll(p[2000:], y[2000:]),
        "after": hcal.metrics.nll(after, y[2000:]),
    }


if __name__ == "__main__":
    print(main())
