"""Collapsed predictors: near-uniform outputs that win class-wise metrics and help nobody.

With K ≥ 100, fifteen equal-width bins hold almost every class probability in the first one, and a predictor
that says next to nothing has a lower class-wise error than the truth. So every table that shows such errors
asks here.
"""

from __future__ import annotations


def collapse_reasons(
    *, accuracy: float, mean_confidence: float, nll: float, n_classes: int, nll_before: float | None = None
) -> list[str]:
    """Return why a predictor counts as collapsed, in plain words; an empty list if it does not.

    Parameters
    ----------
    accuracy, mean_confidence, nll : float
    n_classes : int
    nll_before : float, optional
        NLL of the uncalibrated predictions on the same rows.

    Examples
    --------
    >>> collapse_reasons(accuracy=0.76, mean_confidence=0.016, nll=4.2, n_classes=100)
    ['mean confidence is 0.0160 (a uniform guess: 0.01) while 76.0 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.424, mean_confidence=0.2686, nll=1.34, n_classes=4)
    ['mean confidence is 0.2686 (a uniform guess: 0.25) while 42.4 % of the predictions are right']
    """
    reasons = []
    uniform = 1 / n_classes
    # How far confidence and accuracy are on the way from a uniform guess (0) to certainty (1).
    stated, known = ((x - uniform) / (1 - uniform) for x in (mean_confidence, accuracy))
    # With few classes an accuracy above 10/K does not exist; the second rule knows no K.
    if (mean_confidence < 3 * uniform and accuracy > 10 * uniform) or (known > 0.1 and stated < known / 5):
        reasons.append(
            f"mean confidence is {mean_confidence:.4f} (a uniform guess: {uniform:.4g}) "
            f"while {accuracy:.1%} of the predictions are right".replace("%", " %")
        )
    elif mean_confidence < 1.05 * uniform:
        reasons.append(
            f"mean confidence is {mean_confidence:.4f}, that of a uniform guess {uniform:.4g}: "
            "the predictions say nothing"
        )
    if nll_before is not None and nll > 1.1 * nll_before and mean_confidence < accuracy - 0.2:
        reasons.append(
            f"NLL rose from {nll_before:.4g} to {nll:.4g} and mean confidence {mean_confidence:.3f} "
            f"lies far below the accuracy {accuracy:.3f}"
        )
    return reasons
