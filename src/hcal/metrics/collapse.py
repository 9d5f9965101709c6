"""The rule by which a predictor counts as collapsed: its probabilities are nearly uniform, and say too little.

``hcal.evaluate``, ``hcal.compare``, the report and the fit of the paper's maps all call it.
"""

from __future__ import annotations

import numpy as np

from hcal.metrics.sample import Sample
from hcal.metrics.scores import accuracy, kl, mean_confidence, nll


def collapse_of(sample: Sample, before: Sample) -> list[str]:
    """Return why the predictor of a sample counts as collapsed; ``before`` has its rows without calibration.

    >>> before = Sample(np.array([[0.9, 0.1], [0.2, 0.8]] * 50), np.array([0, 1] * 50))
    >>> flat = Sample(np.array([[0.51, 0.49], [0.49, 0.51]] * 50), np.array([0, 1] * 50))
    >>> len(collapse_of(flat, before)), collapse_of(before, before)
    (2, [])
    """
    return collapse_reasons(
        accuracy=accuracy(sample),
        mean_confidence=mean_confidence(sample),
        nll=nll(sample),
        n_classes=sample.k,
        nll_before=nll(before),
        rows=sample.n,
    )


def collapse_reasons(
    *,
    accuracy: float,
    mean_confidence: float,
    nll: float,
    n_classes: int,
    nll_before: float | None = None,
    rows: int | None = None,
) -> list[str]:
    """Return why a predictor counts as collapsed, in plain words; an empty list if it does not.

    With K ≥ 100, almost all class probabilities fall into the first of fifteen equal-width bins, and a nearly uniform
    predictor has a lower class-wise error than the true probabilities. So every table with such errors calls this.

    Parameters
    ----------
    accuracy, mean_confidence, nll : float
    n_classes : int
    nll_before : float, optional
        NLL of the uncalibrated predictions on the same rows.
    rows : int, optional
        How many rows were measured. An accuracy that a calibrated predictor reaches by chance on so few rows is then
        no reason.

    Examples
    --------
    >>> collapse_reasons(accuracy=0.76, mean_confidence=0.016, nll=4.2, n_classes=100)
    ['mean confidence is 0.0160 (a uniform guess: 0.01) while 76.0 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.424, mean_confidence=0.2686, nll=1.34, n_classes=4)
    ['mean confidence is 0.2686 (a uniform guess: 0.25) while 42.4 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.6, mean_confidence=0.53, nll=0.69, n_classes=2, rows=30)
    []
    """
    reasons = []
    uniform = 1 / n_classes
    # Confidence and accuracy on a scale from 0 (a uniform guess) to 1 (certainty).
    stated_scale = (mean_confidence - uniform) / (1 - uniform)
    accuracy_scale = (accuracy - uniform) / (1 - uniform)
    # With few classes no accuracy can be above 10/K, so the second rule does not depend on K.
    too_timid = (mean_confidence < 3 * uniform and accuracy > 10 * uniform) or (
        accuracy_scale > 0.1 and stated_scale < accuracy_scale / 5
    )
    by_chance = rows is not None and _right_by_chance(accuracy, mean_confidence, rows)
    if too_timid and not by_chance:
        reasons.append(
            f"mean confidence is {mean_confidence:.4f} (a uniform guess: {uniform:.4g}) "
            f"while {accuracy:.1%} of the predictions are right".replace("%", " %")
        )
    elif mean_confidence < 1.05 * uniform:
        reasons.append(
            f"mean confidence is {mean_confidence:.4f}, that of a uniform guess {uniform:.4g}: "
            "the predictions say nothing"
        )
    rose = nll_before is not None and nll > 1.1 * nll_before
    if rose and mean_confidence < accuracy - 0.2 and not by_chance:
        reasons.append(
            f"NLL rose from {nll_before:.4g} to {nll:.4g} and mean confidence "
            f"{mean_confidence:.3f} lies far below the accuracy {accuracy:.3f}"
        )
    return reasons


def _right_by_chance(accuracy: float, mean_confidence: float, rows: int) -> bool:
    """Say whether a calibrated predictor may be right so often: Chernoff's bound on that is above 1 %."""
    if accuracy <= mean_confidence:
        return True
    return bool(rows * float(kl(accuracy, mean_confidence)) < -np.log(0.01))
