"""The results of ``hcal.certify``: printed as sentences and a table, or exported as a dictionary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hcal.certificates import sentences
from hcal.certificates.bounds import Gain
from hcal.certificates.event import EventCertificate, Refutation, class_tolerance
from hcal.class_names import class_title
from hcal.numerics import Float64 as Vector
from hcal.results import Result
from hcal.text import JsonObject, printable


@dataclass(frozen=True)
class ClassCertificates:
    """What is proven about the probability of every class, simultaneously; for more than two classes.

    Attributes
    ----------
    frequency, stated : array of shape (K,)
        Frequency and mean probability of the class.
    low, high : array of shape (K,)
        Confidence interval of the mean of stated − true probability.
    bound : array of shape (K,)
        Upper bounds on the smooth calibration errors.
    at_least : array of shape (K,)
        The largest proven gap of a window of neighbouring predictions; 0 if none is proven.
    exact_refuted : array of shape (K,)
        1 if exact calibration of the class is refuted, else 0.
    refutations : dict of Refutation
        By class number, for the classes with a window that is proven to be off.
    names : sequence of K str or int, or None

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> hcal.certify(probs, y).classes.bound.shape
    (3,)
    """

    frequency: Vector
    stated: Vector
    low: Vector
    high: Vector
    bound: Vector
    at_least: Vector
    exact_refuted: Vector
    refutations: dict[int, Refutation]
    names: Sequence[str | int] | None = None

    def title(self, k: int) -> str:
        """Return the class's name as sentences write it, or its number if it has no name."""
        return printable(class_title(k, self.names))

    @property
    def worst(self) -> int:
        """The class with the largest bound on its smooth calibration error."""
        return int(self.bound.argmax())

    def rows(self) -> list[JsonObject]:
        """Return the numbers of every class as one flat dictionary."""
        return [
            {
                "group": self.title(k),
                "gap_low": float(self.low[k]),
                "gap_high": float(self.high[k]),
                "stated": float(self.stated[k]),
                "observed": float(self.frequency[k]),
                "at_least": float(self.at_least[k]),
                "smooth_at_most": float(self.bound[k]),
            }
            for k in range(len(self.bound))
        ]

    def to_dict(self) -> JsonObject:
        """Return a dictionary of plain lists, one entry for each class."""
        columns = ("frequency", "stated", "low", "high", "bound", "at_least")
        lists = {name: getattr(self, name).tolist() for name in columns}
        return {
            **lists,
            "names": None if self.names is None else list(self.names),
            "exactly_calibrated_refuted": self.exact_refuted.astype(bool).tolist(),
            "refuted": {str(k): vars(refutation) for k, refutation in self.refutations.items()},
            "worst_class": self.worst,
            "smooth_at_most": float(self.bound.max()),
            "mean_smooth_at_most": float(self.bound.mean()),
        }


@dataclass(frozen=True, repr=False)
class Certificate(Result):
    """What n fresh independent rows prove about a fixed predictor. ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    confidence : float
        All statements hold simultaneously with at least this probability over the labels.
    n, k : int
        Rows and classes.
    headline : EventCertificate
        The main event: P(positive) with two classes, else the top label.
    classes : ClassCertificates or None
        The probability of every class; None with two classes.
    gain : Gain or None
        The gain over the baseline, if one was given.
    subgroups : tuple of EventCertificate
        The subgroups that ``by`` names, the worst first.
    tolerance : float
        The error that counts as close enough; see :attr:`limit`.
    basis : str
        The first sentence: whether rows were used to fit, as far as it is known, and what is assumed.
    refused : tuple of str
        What cannot be certified, and why.
    assume : {"monotone"} or None
        "monotone" adds a bound on the headline's ECE that holds if the true rate never falls as the probability rises.
    n_groups : int or None
        Number of groups of rows that depend on each other; None if all rows are independent.

    Examples
    --------
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([1, 1, 1], size=5000)
    >>> y = (p.cumsum(1) > rng.random((5000, 1))).argmax(1)
    >>> certificate = hcal.certify(p, y)
    >>> certificate.refuted, certificate.smooth < 0.1
    (False, True)
    """

    schema: ClassVar[str] = "hcal/certify/1"

    confidence: float
    n: int
    k: int
    headline: EventCertificate
    classes: ClassCertificates | None
    gain: Gain | None
    subgroups: tuple[EventCertificate, ...]
    tolerance: float
    basis: str
    refused: tuple[str, ...]
    assume: str | None = None
    n_groups: int | None = None

    @property
    def limit(self) -> float:
        """Tolerance of the headline; with two classes that of the positive class (2.0 points at 4 % positives)."""
        if self.k > 2:
            return self.tolerance
        return float(class_tolerance(np.array(self.headline.observed), self.tolerance))

    @property
    def _families(self) -> list[EventCertificate | ClassCertificates]:
        return [self.headline, *([] if self.classes is None else [self.classes])]

    @property
    def smooth(self) -> float:
        """The largest certified bound on a smooth calibration error, over all events and classes."""
        return max(float(np.max(family.bound)) for family in self._families)

    @property
    def at_least(self) -> float:
        """For some event, calibration to within h is refuted for every h below this; 0 if nothing is refuted."""
        return max(float(np.max(family.at_least)) for family in self._families)

    @property
    def refuted(self) -> bool:
        """Whether exact calibration is refuted for some event."""
        return any(bool(np.any(family.exact_refuted)) for family in self._families)

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.all_sentences(self)

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name: bounds on the calibration error, by event."""
        return {"smooth": self.smooth, "at_least": self.at_least, "refuted": float(self.refuted)}

    def _content(self) -> JsonObject:
        return {
            "confidence": self.confidence,
            "n": self.n,
            "k": self.k,
            "n_groups": self.n_groups,
            "sentences": self.sentences,
            "at_least": self.at_least,
            "tolerance": self.limit,
            "smooth_at_most": self.smooth,
            "exactly_calibrated_refuted": self.refuted,
            "headline": self.headline.to_dict(),
            "classes": None if self.classes is None else self.classes.to_dict(),
            "gain": None if self.gain is None else vars(self.gain),
            "subgroups": [subgroup.group_row() for subgroup in self.subgroups],
            "refused": list(self.refused),
            "monotone": self.headline.monotone.to_dict() if self.assume else None,
        }

    def to_records(self) -> list[JsonObject]:
        """Return the numbers of the headline, of every class and of every subgroup, one dictionary each."""
        records = [{"kind": "headline", **self.headline.group_row()}]
        if self.classes is not None:
            records += [{"kind": "class", **row} for row in self.classes.rows()]
        return records + [
            {"kind": "subgroup", **subgroup.group_row()} for subgroup in self.subgroups
        ]

    def _headline(self) -> list[str]:
        return self.sentences[1:4]

    def __str__(self) -> str:
        return "\n".join([*self.sentences, "", *sentences.table_lines(self)])


@dataclass(frozen=True, repr=False)
class OutOfFoldCertificate(Result):
    """What is proven about the out-of-fold predictions of a method.

    The probability of every row comes from a fit without the row's fold. Each fold's fit is certified on its own and
    the bounds are averaged over folds. They are about these fits on a part of the rows, not about a fit on all rows.

    Attributes
    ----------
    confidence : float
    n, k : int
        Rows and classes.
    overall : (float, float)
        Confidence interval of mean probability − true rate.
    bound : float
        Proven upper bound on the smooth calibration error of the out-of-fold predictions.
    estimate, share_far : float or None
        Estimates from all folds together, not bounds: the mean absolute difference of stated and true
        probability, and the share of rows where it exceeds 5 points.
    refuted : int
        Number of folds whose fit is proven not to be exactly calibrated.
    folds : tuple of EventCertificate
        One certificate for every fold, each with an equal share of the failure probability.
    pooled : EventCertificate
        The certificate of all out-of-fold predictions as if they came from one predictor. It is not valid as a
        proof, because predictions of one fold depend on the labels of the others; it serves the estimates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> certificate = hcal.certify("ts", np.log(probs), y, out_of_fold=True, folds=2)
    >>> certificate.n, len(certificate.folds)
    (200, 2)
    """

    schema: ClassVar[str] = "hcal/certify_out_of_fold/1"

    confidence: float
    n: int
    k: int
    overall: tuple[float, float]
    bound: float
    estimate: float | None
    share_far: float | None
    refuted: int
    folds: tuple[EventCertificate, ...]
    pooled: EventCertificate

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.out_of_fold_sentences(self)

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name; ``refuted`` counts folds."""
        estimate = math.nan if self.estimate is None else self.estimate
        return {"smooth": self.bound, "estimate": estimate, "refuted": float(self.refuted)}

    def _content(self) -> JsonObject:
        return {
            **super()._content(),
            "folds": [fold.to_dict() for fold in self.folds],
            "pooled": self.pooled.to_dict(),
            "sentences": self.sentences,
        }

    def to_records(self) -> list[JsonObject]:
        """Return the numbers of every fold, one dictionary each."""
        return [{"fold": number, **fold.group_row()} for number, fold in enumerate(self.folds)]

    def _headline(self) -> list[str]:
        return self.sentences[1:4]

    def __str__(self) -> str:
        return "\n".join(self.sentences)
