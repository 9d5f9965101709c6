"""The answer of ``hcal.certify``: sentences first, then the table, then everything for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.certificates import sentences
from hcal.certificates.bounds import Gain
from hcal.certificates.event import EventCertificate, Refutation, class_tolerance
from hcal.io.class_names import class_title
from hcal.numerics import Float64 as Vector
from hcal.text import printable


@dataclass(frozen=True)
class ClassCertificates:
    """What is proven about every class's own probability, all classes at once; of more than two classes.

    Attributes
    ----------
    frequency, stated : array of shape (K,)
        How often the class occurs, and what is stated on average.
    low, high : array of shape (K,)
        Interval of stated − true mean probability.
    bound : array of shape (K,)
        Upper bounds on the smooth calibration errors.
    at_least : array of shape (K,)
        How far off some window is proven to be.
    exact_refuted : array of shape (K,)
    refutations : dict of Refutation
        By class, for those with one.
    names : sequence of K str or int, or None
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
        """Return what sentences call a class: by its name, or by its number."""
        return printable(class_title(k, self.names))

    @property
    def worst(self) -> int:
        """The class with the largest bound on its smooth calibration error."""
        return int(self.bound.argmax())

    def to_dict(self) -> dict[str, Any]:
        """Return one plain dictionary of lists, classes in their order."""
        columns = ("frequency", "stated", "low", "high", "bound", "at_least")
        return {
            **{name: getattr(self, name).tolist() for name in columns},
            "names": None if self.names is None else list(self.names),
            "exactly_calibrated_refuted": self.exact_refuted.astype(bool).tolist(),
            "refuted": {str(k): vars(r) for k, r in self.refutations.items()},
            "worst_class": self.worst,
            "smooth_at_most": float(self.bound.max()),
            "mean_smooth_at_most": float(self.bound.mean()),
        }


@dataclass(frozen=True)
class Certificate:
    """What n fresh rows prove about a fixed predictor. ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    level : float
        All statements hold together with at least this probability over the labels.
    n, k : int
        Rows and classes.
    headline : EventCertificate
        The event that is spoken of first: P(positive) of two classes, else the top label.
    classes : ClassCertificates or None
        Every class's own probability, of more than two classes.
    gain : Gain or None
        Over the baseline.
    groups : tuple of EventCertificate
        Worst first.
    tolerance : float
        What counts as close enough; see :attr:`limit`.
    basis : str
        Where the rows come from, as far as it is known, and what is assumed: the first sentence.
    refused : tuple of str
        What cannot be certified, and why.
    assume : {"monotone"} or None
        Adds what follows for the headline if the truth does not fall as the claim rises.

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

    level: float
    n: int
    k: int
    headline: EventCertificate
    classes: ClassCertificates | None
    gain: Gain | None
    groups: tuple[EventCertificate, ...]
    tolerance: float
    basis: str
    refused: tuple[str, ...]
    assume: str | None = None

    @property
    def limit(self) -> float:
        """Tolerance of the headline: of two classes that of the positive one, 1.9 points at 4 % positives."""
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
        """h-calibration to within any h below this is refuted, for some event; 0 where nothing is."""
        return max(float(np.max(family.at_least)) for family in self._families)

    @property
    def refuted(self) -> bool:
        """Whether exact calibration is refuted for some event."""
        return any(bool(np.any(family.exact_refuted)) for family in self._families)

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.all_sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        plain = ("level", "n", "k", "sentences", "at_least")
        return {
            **{name: getattr(self, name) for name in plain},
            "tolerance": self.limit,
            "smooth_at_most": self.smooth,
            "exactly_calibrated_refuted": self.refuted,
            "headline": self.headline.to_dict(),
            "classes": None if self.classes is None else self.classes.to_dict(),
            "gain": None if self.gain is None else vars(self.gain),
            "groups": [g.group_row() for g in self.groups],
            "refused": list(self.refused),
            "monotone": self.headline.monotone.to_dict() if self.assume else None,
        }

    def __str__(self) -> str:
        return "\n".join([*self.sentences, "", *sentences.table_lines(self)])

    __repr__ = __str__


@dataclass(frozen=True)
class OutOfFoldCertificate:
    """What is proven about the out-of-fold predictions of a method.

    Every row's probability comes from a fit without the row's fold. The statements are averages over folds of
    what is proven about each fold's fit; they are about fits on a part of the rows, not on all of them.

    Attributes
    ----------
    level : float
    n, k : int
        Rows and classes.
    overall : (float, float)
        Interval of mean probability − true rate.
    bound : float
        Proven: the smooth calibration error of the out-of-fold predictions is at most this.
    estimate, share_far : float
        Mean absolute difference of probability and truth, and the share of rows that are off by more than 5
        points. They are estimated from all folds together, and no proof.
    refuted : int
        Folds whose fit is proven not to be exactly calibrated.
    folds : tuple of EventCertificate
        Of every fold's predictions, each with its share of the failure.
    pooled : EventCertificate
        Of all out-of-fold predictions as if they came from one predictor; it is no proof, because
        predictions of one fold depend on the labels of the others.
    """

    level: float
    n: int
    k: int
    overall: tuple[float, float]
    bound: float
    estimate: float
    share_far: float
    refuted: int
    folds: tuple[EventCertificate, ...]
    pooled: EventCertificate

    @property
    def sentences(self) -> list[str]:
        """What is proven, in plain words."""
        return sentences.out_of_fold_sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        folds = [f.to_dict() for f in self.folds]
        return vars(self) | {"folds": folds, "pooled": self.pooled.to_dict(), "sentences": self.sentences}

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    __repr__ = __str__
