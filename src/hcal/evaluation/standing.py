"""Where a predictor stands: three statements, each proven, refuted, or open; one place for all who say them.

"Within a tolerance" and "exactly calibrated" are two statements: the first can be proven, the second only be
refuted. The third asks whether the predictor knows more than how frequent the classes are. ``hcal.evaluate``
prints them and the report grades by them, from the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from hcal.certificates import Certificate, class_tolerance
from hcal.certificates.sentences import capital, points, share
from hcal.metrics.sample import Sample
from hcal.metrics.scores import nll_rows
from hcal.metrics.testing import CalibrationTest, calibration_test

Status = Literal["proven", "refuted", "open"]
#: The kernel test of the whole vector compares all pairs; so many rows are plenty for its level.
VECTOR_ROWS = 2000


@dataclass(frozen=True)
class Statement:
    """One statement about a predictor.

    Attributes
    ----------
    status : {"proven", "refuted", "open"}
    words : str
        The whole sentence.
    rows : int or None
        Where it is open: about how many rows would tell.
    """

    status: Status
    words: str
    rows: int | None = None


@dataclass(frozen=True)
class Standing:
    """The three statements.

    Attributes
    ----------
    tolerance : Statement
        Within a tolerance.
    exact : Statement
        Exactly calibrated; never proven.
    knowledge : Statement
        Better than the base rates.
    """

    tolerance: Statement
    exact: Statement
    knowledge: Statement

    @property
    def sentences(self) -> list[str]:
        """The three in words."""
        return [self.tolerance.words, self.exact.words, self.knowledge.words]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {name: vars(getattr(self, name)) for name in ("tolerance", "exact", "knowledge")}


def stand(
    s: Sample, certificate: Certificate, top: CalibrationTest, vector: CalibrationTest | None
) -> Standing:
    """Say where a predictor stands by its certificate and the tests of top label and whole vector."""
    return Standing(
        within_tolerance(certificate), exactly(certificate, top, vector), knows_more(s, certificate.level)
    )


def vector_test(s: Sample, random_state: int = 0) -> CalibrationTest | None:
    """Test the whole vector with the kernel error, on at most ``VECTOR_ROWS`` random rows; None below 10."""
    if s.n < 10:
        return None
    if s.n > VECTOR_ROWS:
        some = np.random.default_rng(random_state).permutation(s.n)[:VECTOR_ROWS]
        s = Sample(s.data.take(some), s.y[some])
    return calibration_test(s, method="skce", n_resamples=499, random_state=random_state)


# -- within a tolerance ---------------------------------------------------------------------------


def within_tolerance(certificate: Certificate) -> Statement:
    """Prove, refute or leave open that top label and classes are within the tolerance."""
    wrong = _refuted(certificate)
    x = points(certificate.tolerance)
    if wrong:
        return Statement("refuted", f"Within {x}: refuted. {wrong}")
    missing = _missing(certificate)
    if not missing:
        return Statement(
            "proven",
            f"Within {x}: proven, at {share(certificate.level)}. The smooth calibration error is at most "
            f"{points(certificate.smooth)}, and every class is within its tolerance.",
        )
    needed = _rows_needed(certificate)
    tell = "" if needed is None else f" About {needed:,} rows like these would tell, if it is calibrated."
    return Statement(
        "open", f"Within {x}: cannot be told from {certificate.n:,} rows ({missing}).{tell}", needed
    )


def _refuted(certificate: Certificate) -> str:
    """Return what is proven to be off by more than the tolerance, in a sentence; empty if nothing is."""
    x = certificate.tolerance
    found = [(e.at_least, e.name, e.refutation) for e in certificate.events.values()]
    c = certificate.classes
    if c is not None:
        found += [(r.at_least, c.title(k), r) for k, r in c.refutations.items()]
    worst = max(found, key=lambda f: f[0], default=(0.0, "", None))
    if worst[0] > x and worst[2] is not None:
        r = worst[2]
        side, end = ("at most", r.high) if r.direction == "over" else ("at least", r.low)
        return (
            f"{capital(worst[1])}: {r.rows:,} neighbouring rows state {share(r.stated)} on "
            f"average, and the truth is {side} {share(end)}."
        )
    if c is not None:
        limit = class_tolerance(c.frequency, x)
        gap = np.maximum(np.maximum(c.low, -c.high), 0)
        i = int((gap / limit).argmax())
        if gap[i] > limit[i]:
            return (
                f"{capital(c.title(int(c.classes[i])))}: {share(float(c.stated[i]))} is stated on average, "
                f"{share(float(c.frequency[i]))} is seen; its tolerance is {points(float(limit[i]))}."
            )
    return ""


def _missing(certificate: Certificate) -> str:
    """Return for what the proof is missing; empty if for nothing."""
    x, parts = certificate.tolerance, []
    for e in certificate.events.values():
        if e.smooth > x:
            parts.append(f"{e.name}: off by at most {points(e.smooth)}")
    c = certificate.classes
    if c is not None:
        beyond = c.smooth > class_tolerance(c.frequency, x)
        if beyond.any():
            many = f"{int(beyond.sum())} of {len(c.classes)} classes"
            which = c.title(int(c.classes[0])) if len(c.classes) == 1 else many
            parts.append(f"{which} not shown to be within its tolerance")
    return "; ".join(parts)


def _rows_needed(certificate: Certificate) -> int | None:
    every = [e.rows_needed(certificate.tolerance) for e in certificate.events.values()]
    every += [] if certificate.classes is None else [certificate.classes.needed]
    if any(e is None for e in every):
        return None
    return max((e for e in every if e is not None), default=None)


# -- exactly, and better than the base rates ------------------------------------------------------


def exactly(certificate: Certificate, top: CalibrationTest, vector: CalibrationTest | None) -> Statement:
    """Refute exact calibration, by the certificate or by a test, or leave it open."""
    limit = (1 - certificate.level) / 2  # two tests share the level
    told = f"p = {top.p_value:.2g} for the top label"
    if vector is not None:
        told += f", {vector.p_value:.2g} for the whole vector"
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
    reach = float(ndtri((1 + level) / 2) * difference.std(ddof=1) / np.sqrt(s.n)) if s.n > 1 else np.inf
    told = f"NLL {mean + total:.4g} against {total:.4g} of a predictor that states the base rates"
    if mean + reach < 0:
        return Statement("proven", f"It knows more than the base rates: {told}.")
    if mean - reach > 0:
        return Statement("refuted", f"It is worse than the base rates: {told}.")
    return Statement("open", f"It is not shown to know more than the base rates: {told}.")
