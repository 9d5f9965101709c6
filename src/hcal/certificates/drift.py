"""Drift without labels: do today's scores still look like the scores that the calibrator was fitted on?

Two tests share the level, half of it each (Bonferroni), so that equal distributions count as changed in at most 1 % of
the cases, for every number of rows. Both are exact: they use that under equal distributions it is pure chance which
rows are old and which are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from hcal import inputs
from hcal.frames import AnyArray
from hcal.numerics import Float64, IntArray, log_softmax
from hcal.results import Result
from hcal.rows import Rows
from hcal.text import JsonObject

_BINS: Final = 10
_ROWS: Final = 5000  # the classifier sees at most so many reference rows and as many new ones
_FEATURES: Final = 20
_DRAWS: Final = 9999
#: Fewer rows than this on a side are refused: a large change could not be told from chance.
FEWEST_ROWS: Final = 50
#: Equal distributions count as changed with at most this probability.
LEVEL: Final = 0.01
#: The usual rule of thumb: an index below this means stable. A change that is certain but so small is no alarm.
PSI_STABLE: Final = 0.1


@dataclass(frozen=True, repr=False)
class Drift(Result):
    """How much scores have changed.

    Attributes
    ----------
    psi : float
        Population stability index of P(class 1) with two classes, else of the confidence. It grows by chance where
        rows are few: about 18·(1/n + 1/m)/2 for n and m rows of the same distribution.
    psi_p_value : float
        Probability of so different shares of the bins, or more different ones, if nothing has changed: a permutation
        test. The rows are shared out 9,999 times at random.
    accuracy : float
        Accuracy, on held-out rows, of a classifier that tells reference rows from new rows; 0.5 is chance.
    accuracy_p_value : float
        Probability of this accuracy or a higher one if nothing has changed: the classifier two-sample test
        (Lopez-Paz and Oquab, ICLR 2017), with Fisher's exact tail.
    p_value : float
        Twice the smaller of the two p-values, at most 1. It assumes independent rows.
    changed : bool
        Whether the classifier's p-value is below 0.005, or the index's is and the index is above 0.1. Equal
        distributions count as changed in at most 1 % of the cases.
    rows : (int, int)
        Number of reference and of new rows.

    Examples
    --------
    >>> import numpy as np
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> hcal.drift(rng.normal(size=200), rng.normal(2, 1, size=200)).changed
    True
    """

    schema: ClassVar[str] = "hcal/drift/1"

    psi: float
    psi_p_value: float
    accuracy: float
    accuracy_p_value: float
    changed: bool
    rows: tuple[int, int]

    @property
    def p_value(self) -> float:
        """The p-value of both tests together."""
        return min(2 * min(self.psi_p_value, self.accuracy_p_value), 1.0)

    def _content(self) -> JsonObject:
        return {**super()._content(), "p_value": self.p_value}

    def _headline(self) -> list[str]:
        verdict = "The scores have changed" if self.changed else "No change of the scores was found"
        return [
            f"{verdict}: population stability index {self.psi:.3f} (p = {self.psi_p_value:.2g}); "
            f"a classifier tells old from new rows in {100 * self.accuracy:.1f} % of cases (50 % "
            f"is chance, p = {self.accuracy_p_value:.2g})."
        ]


def drift(
    reference: AnyArray,
    scores: AnyArray,
    *,
    input: inputs.InputKind = "logits",
    random_state: int = 0,
) -> Drift:
    """Compare new scores with reference scores, without labels.

    Changed scores do not prove that the probabilities are wrong, and probabilities can become wrong while the
    scores stay the same. If you have labels, use :class:`hcal.Monitor`.

    Parameters
    ----------
    reference, scores : array-like of shape (N, K), or (N,) for a binary score
        At least 50 rows each, independent of each other.
    input : {"logits", "probs", "log_probs"}
    random_state : int
        Seed for drawing the rows that the classifier sees, and for the permutations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> old, same, new = rng.normal(size=(3, 1000, 3)) * [[[1.0]], [[1.0]], [[2.0]]]
    >>> drift(old, same).changed, drift(old, new).changed
    (False, True)
    """
    reference_rows = Rows.of_scores(reference, input=input)
    new_rows = Rows.of_scores(scores, input=input)
    if new_rows.n_classes != reference_rows.n_classes:
        raise ValueError(
            f"reference has {reference_rows.n_classes} classes, scores has {new_rows.n_classes}"
        )
    new_rows = Rows.of_scores(scores, input=input, like=reference_rows)
    old = log_softmax(reference_rows.logits()).astype(np.float64)
    new = log_softmax(new_rows.logits()).astype(np.float64)
    if min(len(old), len(new)) < FEWEST_ROWS:
        raise ValueError(
            f"too few rows: at least {FEWEST_ROWS} are needed on each side, "
            f"got {len(old)} and {len(new)}"
        )
    rng = np.random.default_rng(random_state)
    old_claims = _claims(old)
    new_claims = _claims(new)
    psi = stability_index(old_claims, new_claims)
    psi_p_value = _bins_test(old_claims, new_claims, rng)
    accuracy, accuracy_p_value = _classifier_test(old, new, rng)

    changed = accuracy_p_value < LEVEL / 2 or (psi_p_value < LEVEL / 2 and psi > PSI_STABLE)
    return Drift(psi, psi_p_value, accuracy, accuracy_p_value, changed, (len(old), len(new)))


def _claims(log_probs: Float64) -> Float64:
    """Return P(class 1) of two classes, else the confidence."""
    return np.exp(log_probs[:, 1] if log_probs.shape[1] == 2 else log_probs.max(axis=1))


# -- the index --------------------------------------------------------------------------------------


def stability_index(reference: Float64, new: Float64) -> float:
    """Return Σ (a − b)·log(a/b) over the shares a, b of ten bins at the quantiles of the reference.

    >>> x = np.linspace(0, 1, 1000)
    >>> round(stability_index(x, x), 4), stability_index(x, x**2) > 0.25
    (0.0, True)
    """
    edges = _edges(reference)
    return float(_index_of_counts(_counts(reference, edges), _counts(new, edges)))


def _edges(values: Float64) -> Float64:
    """Return the different deciles of the values."""
    shares = np.linspace(0, 1, _BINS + 1)[1:-1]
    return np.unique(np.quantile(values, shares))


def _counts(values: Float64, edges: Float64) -> IntArray:
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def _index_of_counts(old: IntArray, new: IntArray) -> Float64:
    """Return the index for counts (…, B); half a row is added to every bin."""
    old_share = (old + 0.5) / (old + 0.5).sum(axis=-1, keepdims=True)
    new_share = (new + 0.5) / (new + 0.5).sum(axis=-1, keepdims=True)
    return np.asarray(((old_share - new_share) * np.log(old_share / new_share)).sum(axis=-1))


def _bins_test(old: Float64, new: Float64, rng: np.random.Generator) -> float:
    """Return the p-value of the index over bins at the deciles of all rows, by permutation.

    These bins do not depend on which rows are old. So, given all rows, the counts of the old ones are hypergeometric,
    and drawing them takes the same time for any number of rows.
    """
    edges = _edges(np.concatenate([old, new]))
    old_counts = _counts(old, edges)
    all_counts = old_counts + _counts(new, edges)
    drawn = rng.multivariate_hypergeometric(all_counts, len(old), size=_DRAWS, method="marginals")
    null = _index_of_counts(drawn, all_counts - drawn)
    value = float(_index_of_counts(old_counts, all_counts - old_counts))
    return (1 + int((null >= value * (1 - 1e-12)).sum())) / (1 + _DRAWS)


# -- the classifier ---------------------------------------------------------------------------------


def _classifier_test(old: Float64, new: Float64, rng: np.random.Generator) -> tuple[float, float]:
    """Return the held-out accuracy of a classifier of old against new rows, and its exact p-value.

    Given its predictions, it is chance which held-out rows are new: the number of new ones among those that it calls
    new is hypergeometric.
    """
    from scipy.stats import hypergeom
    from sklearn.ensemble import HistGradientBoostingClassifier

    size = min(len(old), len(new), _ROWS) // 2 * 2
    chosen_old = old[rng.permutation(len(old))[:size]]
    chosen_new = new[rng.permutation(len(new))[:size]]
    x = np.concatenate([chosen_old, chosen_new])
    if x.shape[1] > _FEATURES:
        # With many classes, the largest scores of each row in descending order.
        x = -np.sort(-x, axis=1)[:, :_FEATURES]
    y = np.repeat([0, 1], size)
    learns = np.tile(np.arange(size) % 2 == 0, 2)
    model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=8, random_state=0)
    predicted = model.fit(x[learns], y[learns]).predict(x[~learns])
    is_new = y[~learns] == 1
    right_new = int(((predicted == 1) & is_new).sum())
    called_new = int((predicted == 1).sum())
    p_value = float(hypergeom.sf(right_new - 1, size, called_new, size // 2))
    return float((predicted == y[~learns]).mean()), p_value
