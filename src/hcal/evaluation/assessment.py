"""The verdict of an evaluation: how far off the probabilities are, how certain that is, and if they beat base rates.

With two classes the verdict is about P(positive), with more about the predicted class. It gives the estimated smooth
calibration error and its proven bound. The grade depends on how many rows are affected and by how much, not on the
number of rows alone. ``hcal.evaluate`` prints the verdict and the report shows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from scipy.special import ndtri

from hcal.certificates import Certificate, EventCertificate
from hcal.certificates.event import class_tolerance
from hcal.certificates.sentences import (
    capital,
    error_words,
    points,
    rows_words,
    share,
    window_words,
)
from hcal.metrics.sample import Sample
from hcal.metrics.scores import nll_rows
from hcal.metrics.testing import CalibrationTest, calibration_test

Status = Literal["proven", "refuted", "open"]
Grade = Literal["good", "care", "few", "bad"]
#: The kernel test of the whole vector compares all pairs of rows, so it uses at most this many rows.
VECTOR_ROWS: Final = 2000
#: The share of rows that are proven to be off by more than the tolerance: up to the first number the grade can be
#: "good", above the second the predictor should not be relied on.
FEW_ROWS, MANY_ROWS = 0.01, 0.05

RULE: Final = (
    "The tolerance is 5 points for the predicted class, and 10·√(π(1−π)) points for a class of frequency π. "
    "Good: the smooth calibration error is proven to be within the tolerance, at most 1 % of the rows are "
    "proven to be off by more, and NLL is better than that of the base rates. "
    "Not good: more than 5 % of the rows are proven to be off by more than the tolerance and the error is "
    "not proven to be within it; or NLL is worse than that of the base rates, or more than 1 % worse than "
    "before calibration; or the predictor has collapsed. With care: within the tolerance on average, but "
    "with more rows off than that, or not shown to know more than the base rates. Otherwise the rows "
    "cannot tell."
)


@dataclass(frozen=True)
class Statement:
    """One statement about a predictor: proven, refuted or open, with its sentence."""

    status: Status
    words: str


@dataclass(frozen=True)
class Assessment:
    """How far off the probabilities are, how certain that is, and the grade that follows.

    Attributes
    ----------
    event : str
        What is assessed: ``"P(name)"`` with two classes, ``"top label"`` with more.
    estimate, bound : float
        The smooth calibration error: its estimate and its proven upper bound (:func:`hcal.certify`).
    tolerance : float
        What counts as close enough for this event.
    share_far : float
        Estimated share of the rows that are off by more than 5 points.
    share_proven : float
        Share of the rows that are proven to be off by more than the tolerance.
    rows_needed : int or None
        How many rows would prove the tolerance if the predictor is calibrated; None if it is proven or refuted
        already, or if no number of rows would be enough.
    within, exact, skill : Statement
        Statements that it is within the tolerance, exactly calibrated (never proven), better than the base rates.
    grade : {"good", "care", "few", "bad"}
    """

    event: str
    estimate: float
    bound: float
    tolerance: float
    share_far: float
    share_proven: float
    rows_needed: int | None
    within: Statement
    exact: Statement
    skill: Statement
    grade: Grade

    @property
    def how_far(self) -> str:
        """The estimate and the proven bound, in words."""
        return capital(error_words(self, self.tolerance))

    @property
    def sentences(self) -> list[str]:
        """The whole assessment in words."""
        return [self.how_far, self.within.words, self.exact.words, self.skill.words]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def assess(
    s: Sample,
    certificate: Certificate,
    top: CalibrationTest,
    vector: CalibrationTest | None,
    title: str,
) -> Assessment:
    """Return the assessment that follows from a sample's certificate and tests; the title names the event."""
    event, limit = certificate.headline, certificate.limit
    far = max([_share_far(event, limit), *_class_shares(certificate)])
    within = _within(title, event, limit, far, certificate.level)
    skill = knows_more(s, certificate.level)
    needed = event.rows_needed(limit) if within.status == "open" else None
    if needed is not None and needed <= s.n:  # a typical calibrated predictor has them
        needed = None
    proven = event.bound <= limit
    if skill.status == "refuted" or (within.status == "refuted" and not proven):
        grade: Grade = "bad"
    elif not proven:
        grade = "few"
    else:
        grade = "good" if far <= FEW_ROWS and skill.status == "proven" else "care"
    exact = _exactly(certificate, top, vector)
    return Assessment(
        title,
        event.estimate,
        event.bound,
        limit,
        event.share_far,
        far,
        needed,
        within,
        exact,
        skill,
        grade,
    )


def _share_far(event: EventCertificate, limit: float) -> float:
    """Return the share of rows that lie in a window proven to be off by more than the limit."""
    w, t = event.windows, event.table
    far = w.at_least > limit
    inside = np.zeros(len(t.count) + 1)
    np.add.at(inside, w.first[far], 1)
    np.add.at(inside, w.last[far], -1)
    return float(t.count[np.cumsum(inside[:-1]) > 0].sum() / t.n)


def _class_shares(certificate: Certificate) -> list[float]:
    """Return the share of rows in each class's worst window, for classes proven to be off by more than tolerated."""
    c = certificate.classes
    if c is None:
        return []
    limit = class_tolerance(c.frequency, certificate.tolerance)
    return [r.rows / certificate.n for k, r in c.refutations.items() if r.at_least > limit[k]]


def _within(
    title: str, event: EventCertificate, limit: float, far: float, level: float
) -> Statement:
    told = f"{title} within {points(limit)}"
    if far > MANY_ROWS:
        r = event.refutation
        worst = ""
        if r is not None and r.at_least > limit:
            worst = f" {r.rows:,} rows {window_words(r)}."
        return Statement("refuted", f"{told}: refuted for {share(far)} of the rows.{worst}")
    if event.bound <= limit:
        return Statement("proven", f"{told}, on average: proven at {share(level)}.")
    return Statement(
        "open", f"{told}: cannot be told from {event.n:,} rows. {rows_words(event, limit)}"
    )


def vector_test(s: Sample, random_state: int = 0) -> CalibrationTest | None:
    """Test the whole vector with the kernel error, on at most ``VECTOR_ROWS`` random rows; None below 10."""
    if s.n < 10:
        return None
    if s.n > VECTOR_ROWS:
        some = np.random.default_rng(random_state).permutation(s.n)[:VECTOR_ROWS]
        s = Sample(s.data.probs[some], s.y[some])
    return calibration_test(s, method="skce", resamples=499, random_state=random_state)


def p_words(test: CalibrationTest) -> str:
    """Return a p-value in words; the smallest one that resampling can give is an upper bound.

    >>> p_words(CalibrationTest(0.001, "ks", 0.1, "resampling", 999))
    'p ≤ 0.001'
    """
    floor = test.p_value <= 1 / (test.resamples + 1)
    return f"p {'≤' if floor else '='} {test.p_value:.2g}"


def _exactly(
    certificate: Certificate, top: CalibrationTest, vector: CalibrationTest | None
) -> Statement:
    """Refute exact calibration, by the certificate or by a test, or leave it open."""
    limit = (1 - certificate.level) / 2  # two tests share the level
    told = f"{p_words(top)} for the top label"
    if vector is not None:
        told += f", {p_words(vector)} for the whole vector"
    by_test = top.p_value < limit or (vector is not None and vector.p_value < limit)
    if certificate.refuted or by_test:
        how = told if by_test else f"by the certificate; {told}"
        return Statement("refuted", f"Exactly calibrated: refuted ({how}).")
    return Statement("open", f"Exactly calibrated: not refuted ({told}). It can never be proven.")


def knows_more(s: Sample, level: float) -> Statement:
    """Compare NLL with that of the classes' frequencies, by the spread of the paired differences."""
    frequency = np.bincount(s.y, minlength=s.k) / s.n
    base = -np.log(frequency[s.y])
    difference = nll_rows(s) - base
    mean, total = float(difference.mean()), float(base.mean())
    reach = (
        float(ndtri((1 + level) / 2) * difference.std(ddof=1) / np.sqrt(s.n)) if s.n > 1 else np.inf
    )
    told = f"NLL {mean + total:.4g} against {total:.4g} of a predictor that states the base rates"
    if mean + reach < 0:
        return Statement("proven", f"It knows more than the base rates: {told}.")
    if mean - reach > 0:
        return Statement("refuted", f"It is worse than the base rates: {told}.")
    return Statement("open", f"It is not shown to know more than the base rates: {told}.")


def collapse_reasons(
    *,
    accuracy: float,
    mean_confidence: float,
    nll: float,
    n_classes: int,
    nll_before: float | None = None,
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

    Examples
    --------
    >>> collapse_reasons(accuracy=0.76, mean_confidence=0.016, nll=4.2, n_classes=100)
    ['mean confidence is 0.0160 (a uniform guess: 0.01) while 76.0 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.424, mean_confidence=0.2686, nll=1.34, n_classes=4)
    ['mean confidence is 0.2686 (a uniform guess: 0.25) while 42.4 % of the predictions are right']
    """
    reasons = []
    uniform = 1 / n_classes
    # Confidence and accuracy on a scale from 0 (a uniform guess) to 1 (certainty).
    stated, known = ((x - uniform) / (1 - uniform) for x in (mean_confidence, accuracy))
    # With few classes no accuracy can be above 10/K, so the second rule does not depend on K.
    if (mean_confidence < 3 * uniform and accuracy > 10 * uniform) or (
        known > 0.1 and stated < known / 5
    ):
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
