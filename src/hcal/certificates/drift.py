"""Drift without labels: do today's scores still look like the scores that the calibrator was fitted on?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtrc

from hcal import inputs
from hcal.numerics import Float64, log_softmax

_BINS = 10
_ROWS = 5000  # the classifier sees at most so many reference rows and as many new ones
_FEATURES = 20
#: The usual rule of thumb: an index below 0.1 means stable, above 0.25 changed.
PSI_CHANGED = 0.25


@dataclass(frozen=True)
class Drift:
    """How much scores have changed.

    Attributes
    ----------
    psi : float
        Population stability index of P(class 1) with two classes, else of the confidence.
    accuracy : float
        Accuracy, on held-out rows, of a classifier that tells reference rows from new rows; 0.5 is chance.
    p_value : float
        Probability of this accuracy or a higher one if nothing has changed: the classifier two-sample test
        (Lopez-Paz and Oquab, ICLR 2017) with an exact binomial tail. It assumes independent rows.
    changed : bool
        Whether the p-value is below 0.01 or the index above 0.25.
    rows : (int, int)
        Number of reference and of new rows.
    """

    psi: float
    accuracy: float
    p_value: float
    changed: bool
    rows: tuple[int, int]

    def __str__(self) -> str:
        told = "The scores have changed" if self.changed else "No change of the scores was found"
        return (
            f"{told}: population stability index {self.psi:.3f} (changed above {PSI_CHANGED:g}); a "
            f"classifier tells old from new rows in {100 * self.accuracy:.1f} % of cases (50 % is chance, "
            f"p = {self.p_value:.2g})."
        )


def drift(
    reference: Any, scores: Any, *, input: inputs.InputKind = "logits", random_state: int = 0
) -> Drift:
    """Compare new scores with reference scores, without labels.

    Changed scores do not prove that the probabilities are wrong, and probabilities can become wrong while the
    scores stay the same. If you have labels, use :class:`hcal.Monitor`.

    Parameters
    ----------
    reference, scores : array-like of shape (N, K), or (N,) for a binary score
        At least 50 rows each.
    input : {"logits", "probs", "log_probs"}
    random_state : int
        Seed for drawing the rows that the classifier sees.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> old, same, new = rng.normal(size=(3, 1000, 3)) * [[[1.0]], [[1.0]], [[2.0]]]
    >>> drift(old, same).changed, drift(old, new).changed
    (False, True)
    """
    old, new = (
        log_softmax(inputs.check_logits(s, input=input)[0]).astype(np.float64)
        for s in (reference, scores)
    )
    if old.shape[1] != new.shape[1]:
        raise ValueError(f"reference has {old.shape[1]} classes, scores has {new.shape[1]}")
    if min(len(old), len(new)) < 50:
        raise ValueError(f"at least 50 rows are needed on each side, got {len(old)} and {len(new)}")
    psi = stability_index(
        *(np.exp(s[:, 1] if s.shape[1] == 2 else s.max(axis=1)) for s in (old, new))
    )
    accuracy, p_value = _two_sample_test(old, new, np.random.default_rng(random_state))
    return Drift(psi, accuracy, p_value, p_value < 0.01 or psi > PSI_CHANGED, (len(old), len(new)))


def stability_index(reference: Float64, new: Float64) -> float:
    """Return Σ (a − b)·log(a/b) over the shares a, b of ten bins at the quantiles of the reference.

    >>> x = np.linspace(0, 1, 1000)
    >>> round(stability_index(x, x), 4), stability_index(x, x**2) > 0.25
    (0.0, True)
    """
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, _BINS + 1)[1:-1]))
    counts = (
        np.bincount(np.searchsorted(edges, v), minlength=len(edges) + 1) for v in (reference, new)
    )
    a, b = ((c + 0.5) / (c + 0.5).sum() for c in counts)
    return float(((a - b) * np.log(a / b)).sum())


def _two_sample_test(old: Float64, new: Float64, rng: np.random.Generator) -> tuple[float, float]:
    """Return the held-out accuracy of a classifier of old against new rows, and its exact binomial p-value."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    n = min(len(old), len(new), _ROWS) // 2 * 2
    x = np.concatenate([s[rng.permutation(len(s))[:n]] for s in (old, new)])
    if (
        x.shape[1] > _FEATURES
    ):  # with many classes, the largest scores of each row in descending order
        x = -np.sort(-x, axis=1)[:, :_FEATURES]
    y, half = np.repeat([0, 1], n), np.tile(np.arange(n) % 2 == 0, 2)
    model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=8, random_state=0)
    hits = int((model.fit(x[half], y[half]).predict(x[~half]) == y[~half]).sum())
    return hits / n, float(bdtrc(hits - 1, n, 0.5))
