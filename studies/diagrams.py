"""Draw docs/assets/reliability-models.svg: a model of rare positives in one diagram with its calibration.

python -m studies.diagrams
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import hcal
from studies.drawing import save_figure, styled

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "assets" / "reliability-models.svg"


def diagram() -> hcal.evaluation.Reliability:
    """Return the diagram of 20,000 drawn rows, 3 % of them positive, before and after calibration."""
    rng = np.random.default_rng(0)
    log_odds = rng.normal(-4.2, 1.3, 20_000)
    rate = 1 / (1 + np.exp(-log_odds))
    y = (rng.random(20_000) < rate).astype(int)
    score = 1.5 * log_odds + 1
    fitted = slice(0, 10_000)
    tested = slice(10_000, 20_000)
    cal = hcal.PooledCalibrator().fit(score[fitted], y[fitted])
    model = 1 / (1 + np.exp(-score[tested]))
    calibrated = cal.predict_proba(score[tested])[:, 1]
    models = {"model": model, "calibrated": calibrated}
    return hcal.reliability(models, y[tested], binning="equal-mass")


def main() -> None:
    """Draw the picture."""
    with styled():
        axes = plt.subplots(figsize=(5, 5.7), layout="constrained")[1]
        diagram().plot(axes, title="3 % positives")
        print(save_figure(axes.figure, PICTURE))


if __name__ == "__main__":
    main()
