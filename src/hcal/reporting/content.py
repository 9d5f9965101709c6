"""What the report says, gathered before a line of it is written: numbers and facts, no markup."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from hcal._version import __version__
from hcal.calibrators.base import Calibrator
from hcal.evaluation import Evaluation, evaluate
from hcal.evaluation.diagram import Reliability, reliability
from hcal.metrics.registry import METRICS
from hcal.numerics import FloatArray, IntArray

#: Metrics whose intervals are worth their time: they are the headline.
HEADLINE = ("ece_ew", "nll", "brier", "accuracy")
#: The canonical metrics compare all pairs of rows; beyond this many products they are left out and named.
_PAIR_PRODUCTS = 2e11
#: Events drawn for the band of a curve without bins; with many rows the band is as thin as its line.
_DRAWN_EVENTS = 1e7


@dataclass(frozen=True)
class Source:
    """Where the rows came from.

    Attributes
    ----------
    name : str
    part, kind, checksum : str
        Empty where unknown.
    """

    name: str = "arrays in memory"
    part: str = ""
    kind: str = ""
    checksum: str = ""


@dataclass(frozen=True)
class ReportSide:
    """Everything about one predictor: before or after."""

    probs: FloatArray
    headline: Evaluation
    metrics: Evaluation
    by_width: Reliability
    by_mass: Reliability
    isotonic: Reliability
    smooth: Reliability
    by_class: Reliability

    @property
    def over_confidence(self) -> float:
        """Mean confidence minus accuracy."""
        return self.metrics.mean_confidence - self.metrics.accuracy


@dataclass(frozen=True)
class Content:
    """The whole report as data."""

    source: Source
    y: IntArray
    counts: IntArray
    names: tuple[str, ...]
    before: ReportSide
    after: ReportSide | None
    calibrator: Calibrator | None
    changed: int
    notes: tuple[str, ...]
    ci: float
    created: str
    positive: int = 1
    seen: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def final(self) -> ReportSide:
        """The predictor that the verdict is about."""
        return self.before if self.after is None else self.after

    @property
    def absent(self) -> list[str]:
        """Names of the classes without a row."""
        return [name for name, count in zip(self.names, self.counts, strict=True) if count == 0]


def gather(
    raw: FloatArray,
    y: IntArray,
    probs: FloatArray | None = None,
    *,
    calibrator: Calibrator | None = None,
    source: Source | None = None,
    names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    ci: float = 0.95,
    positive: int = 1,
    groups: Any = None,
    seen: float = 0.0,
) -> Content:
    """Measure everything that the report shows.

    ``raw`` and ``probs`` (N, K) are the probabilities before and after calibration, ``notes`` what a reader
    must know, ``seen`` the share of the calibration rows that is among these: on them nothing is proven.
    """
    k = raw.shape[1]
    if names is not None and len(names) != k:
        raise ValueError(f"{len(names)} class names for {k} classes")
    names = None if names is None else tuple(map(str, names))
    wanted, left_out = _affordable(len(raw), k)
    told = [*notes, *([f"left out at this size: {', '.join(left_out)}"] if left_out else [])]
    return Content(
        source=source or Source(),
        y=y,
        counts=np.bincount(y, minlength=k).astype(np.int64),
        names=names or tuple(f"class {i}" for i in range(k)),
        before=_side(raw, y, None, wanted, ci, positive, groups, names),
        after=None if probs is None else _side(probs, y, raw, wanted, ci, positive, groups, names),
        calibrator=calibrator,
        changed=0 if probs is None else int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum()),
        notes=tuple(told),
        ci=ci,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        positive=positive,
        seen=seen,
        versions=_versions(),
    )


def _affordable(n: int, k: int) -> tuple[list[str], list[str]]:
    costly = (
        [m.name for m in METRICS.values() if m.level == "canonical"] if n * n * k > _PAIR_PRODUCTS else []
    )
    return [name for name in METRICS if name not in costly], costly


def _side(
    probs: FloatArray,
    y: IntArray,
    raw: FloatArray | None,
    wanted: list[str],
    ci: float,
    positive: int,
    groups: Any,
    names: Sequence[str] | None,
) -> ReportSide:
    drawn = int(np.clip(_DRAWN_EVENTS / len(y), 50, 100))
    return ReportSide(
        probs=probs,
        headline=evaluate(
            probs, y, HEADLINE, ci, baseline=raw, groups=groups, positive=positive, classes=names
        ),
        metrics=evaluate(probs, y, wanted, baseline=raw),
        by_width=reliability(probs, y, level="top-label", ci=ci),
        by_mass=reliability(probs, y, level="top-label", binning="equal-mass", ci=ci),
        isotonic=reliability(probs, y, level="top-label", binning="corp", ci=ci, resamples=drawn),
        smooth=reliability(probs, y, level="top-label", binning="smooth", ci=ci, resamples=drawn),
        by_class=reliability(probs, y, level="class-wise", ci=ci),
    )


def _versions() -> dict[str, str]:
    found = {"hcal": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
