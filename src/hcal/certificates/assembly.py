"""A certificate put together from its events: one failure probability is shared by all statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain
from hcal.certificates.event import TOLERANCE, EventCertificate, Refutation
from hcal.certificates.events import Events
from hcal.certificates.result import Certificate, ClassCertificates
from hcal.certificates.windows import EventTable
from hcal.class_names import ClassName, class_title
from hcal.numerics import Float64
from hcal.text import printable

Names = Sequence[ClassName] | None

#: First line of a certificate of bare probabilities: nothing is known about the rows they were fitted on.
_FRESH = "none of these rows was used to fit the predictor"
_REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the "
    "whole vector: each prediction is seen once, so no number of rows bounds them without "
    "assumptions (Gupta, Podkopaev and Ramdas, 2020)"
)
_NLL = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"


@dataclass(frozen=True)
class Terms:
    """What a certificate is asked for.

    Attributes
    ----------
    confidence, tolerance, assume
        As for :func:`hcal.certify`.
    random_state : int
        Seed of the order of the rows in the bound on the gain.
    refused : tuple of str
        What cannot be proven from these rows, in words.
    sampled : (int, int), optional
        How many rows were drawn from how many, where the certificate is of a sample.
    """

    confidence: float = 0.95
    tolerance: float = TOLERANCE
    assume: str | None = None
    random_state: int = 0
    refused: tuple[str, ...] = ()
    sampled: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse terms that no certificate can have."""
        inputs.check_confidence(self.confidence)
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1, got {self.tolerance!r}")
        if self.assume not in (None, "monotone"):
            raise ValueError(f"assume must be 'monotone' or None, got {self.assume!r}")


@dataclass(frozen=True)
class Improvement:
    """The Brier scores (N,) of each row, before and after: what the gain is proven from."""

    before: Float64
    after: Float64

    def gain(self, failure: float, random_state: int) -> Gain:
        """Return the certified gain, which is wrong with a probability of at most ``failure``."""
        return certify_gain(self.before, self.after, failure, random_state)


def assemble(
    events: Events,
    terms: Terms,
    names: Names,
    overlap: leakage.Overlap | None,
    improvement: Improvement | None = None,
) -> Certificate:
    """Certify the headline, the classes, the subgroups and the gain, or refuse rows of the fit.

    All statements hold together by a union bound: the headline always gets half of the failure probability, so
    its numbers do not depend on what else is asked for; classes, subgroups and gain share the other half equally.
    """
    terms.check()
    failure = 1 - terms.confidence
    k = events.k
    name = event_name(k, events.positive, names)
    headline = EventCertificate(name, events.main, failure / 2)
    n_groups = headline.table.n_groups
    basis = _first_line(overlap, n_groups)  # refuses rows of the fit
    if terms.sampled is not None:
        basis = "{} Proven from a random sample of {:,} of {:,} rows.".format(basis, *terms.sampled)
    parts = (k > 2) + bool(events.subgroups) + (improvement is not None)
    share = failure / 2 / max(parts, 1)
    gain = None
    refused = [_REFUSED, *terms.refused]
    if improvement is not None:
        gain = improvement.gain(share, terms.random_state)
        refused.append(_NLL)
    return Certificate(
        confidence=float(terms.confidence),
        n=headline.n,
        k=k,
        headline=headline,
        classes=_certify_classes(events.classes, k, share, names) if k > 2 else None,
        gain=gain,
        subgroups=_certify_subgroups(events.subgroups, share),
        tolerance=terms.tolerance,
        basis=basis,
        refused=tuple(refused),
        assume=terms.assume,
        n_groups=n_groups,
    )


def _certify_subgroups(
    tables: dict[str, EventTable], failure: float
) -> tuple[EventCertificate, ...]:
    """Certify every subgroup with an equal share of the failure probability, the worst first."""
    subgroups = [
        EventCertificate(name, table, failure / len(tables)) for name, table in tables.items()
    ]
    # By the proven gap of the mean, then of a window, then by the gap that is still possible.
    return tuple(sorted(subgroups, key=_how_bad, reverse=True))


def _how_bad(event: EventCertificate) -> tuple[float, float, float]:
    low, high = event.overall
    return event.proven_gap, event.at_least, max(abs(low), abs(high))


def event_name(k: int, positive: int, names: Names) -> str:
    """Return the name of the headline's event: P(positive) with two classes, else the top label."""
    if k > 2:
        return "top label"
    return f"P({printable(class_title(positive, None) if names is None else names[positive])})"


def _first_line(overlap: leakage.Overlap | None, n_groups: int | None) -> str:
    """Return the first sentence: which rows were used to fit, as far as known, and what is assumed."""
    independent = "rows are independent of each other"
    if n_groups is not None:
        independent = f"the {n_groups:,} groups of rows are independent of each other"
    if overlap is None:
        return f"Assumed: {_FRESH}, and {independent}."
    if overlap.refused:
        raise leakage.RowsOfTheFitError(
            f"no certificate: a{overlap.sentence[1:-1]}, and on its own rows a calibrator looks "
            "better than it is. Use other rows, or out_of_fold=True (--out-of-fold METHOD)"
        )
    fresh = overlap.sentence or "None of these rows was used to fit the calibrator."
    return f"{fresh} Assumed: {independent}."


def _certify_classes(
    tables: Iterator[EventTable], k: int, failure: float, names: Names
) -> ClassCertificates:
    """Certify every class with failure/K each (union bound), so that all hold together but for ``failure``."""
    rows: list[tuple[float, ...]] = []
    refutations: dict[int, Refutation] = {}
    for number, table in enumerate(tables):
        event = EventCertificate("", table, failure / k)
        low, high = event.overall
        means = (event.observed, event.stated)
        rows.append((*means, low, high, event.bound, event.at_least, event.exact_refuted))
        if event.refutation is not None:
            refutations[number] = event.refutation
    observed, stated, lows, highs, bound, at_least, exact_refuted = np.array(rows).T
    return ClassCertificates(
        observed, stated, lows, highs, bound, at_least, exact_refuted, refutations, names
    )
