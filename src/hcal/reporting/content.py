"""What the report says, measured before a line of it is written: numbers and facts, no markup."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from hcal import inputs, leakage
from hcal._version import __version__
from hcal.calibrators import Calibrator
from hcal.evaluation import Evaluation, evaluate, reliability
from hcal.evaluation.crossfit import CrossFit
from hcal.evaluation.curves import Binning, ReliabilityCurve
from hcal.evaluation.evaluator import overlap_note
from hcal.io.probabilities import to_probs
from hcal.metrics import list_metrics
from hcal.metrics.sample import Sample
from hcal.numerics import Float64, FloatArray, IntArray

#: Metrics whose intervals are worth their time: they are the headline.
HEADLINE: Final = ("ece_ew", "nll", "brier", "accuracy")
#: Beyond so many probabilities only metrics that need one pass are shown.
_ENTRIES: Final = 5_000_000
_ONE_PASS: Final = ("ece_ew", "ece_em", "dece", "ks", "smece", "cwece_a", "nll", "brier", "accuracy")
#: Resampled rows behind the intervals of the headline.
RESAMPLES: Final = 400
#: Events drawn for the band of a curve without bins; with many rows the band is as thin as its line.
_DRAWN_EVENTS: Final = 4e6
#: The ways to draw the curve: button, words for its bins.
VIEWS: Final[dict[Binning, tuple[str, str]]] = {
    "equal-width": ("Equal width", "equal-width bins"),
    "equal-mass": ("Equal mass", "equal-mass bins"),
    "corp": ("Isotonic", "steps of the isotonic fit"),
    "smooth": ("Smooth", "points of the smooth curve"),
}


@dataclass(frozen=True)
class Source:
    """Where the rows came from, for the page and for the commands that it prints.

    Attributes
    ----------
    name : str
        Of the file.
    part, kind, checksum : str
        Empty where unknown.
    model : str
        Name of the calibrator's file; empty where there is none.
    options : str
        What the commands need to read the file, such as ``--label y``.
    """

    name: str = "arrays in memory"
    part: str = ""
    kind: str = ""
    checksum: str = ""
    model: str = ""
    options: str = ""

    @property
    def is_file(self) -> bool:
        """Whether commands can name it."""
        return self.name != Source.name


@dataclass(frozen=True)
class ReportSide:
    """Everything about one predictor, before or after calibration."""

    probs: FloatArray
    headline: Evaluation  # four metrics with intervals, and what is proven
    metrics: Evaluation
    curves: dict[Binning, ReliabilityCurve]  # of P(positive) or of the top label, by binning


@dataclass(frozen=True)
class Content:
    """The whole report as data."""

    source: Source
    y: IntArray
    names: tuple[str, ...]
    before: ReportSide
    after: ReportSide | None
    calibrator: Calibrator | None
    notes: tuple[str, ...]
    ci: float
    positive: int = 1
    seen: float = 0.0
    n: int = 0  # rows measured; more than ``y`` where the pictures are of a sample
    crossed: CrossFit | None = None
    threshold: tuple[float, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    shift: float = 0.0  # how far predicted class frequencies are from those of the fit, beyond chance
    created: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def final(self) -> ReportSide:
        """The predictor that the verdict is about."""
        return self.before if self.after is None else self.after

    @property
    def sides(self) -> list[tuple[str, ReportSide]]:
        """The predictors with the colour of each: before, and after where there is one."""
        found = [("before", self.before)]
        return found if self.after is None else [*found, ("after", self.after)]

    @property
    def counts(self) -> IntArray:
        """Rows of each class."""
        return np.bincount(self.y, minlength=len(self.names)).astype(np.int64)

    @property
    def binary(self) -> bool:
        """Whether there are two classes, so that P(positive) is what matters."""
        return len(self.names) == 2

    @property
    def event(self) -> str:
        """What the page speaks of."""
        return f"P({self.names[self.positive]})" if self.binary else "the stated confidence"

    @property
    def changed(self) -> int:
        """Rows whose most probable class is another after calibration."""
        if self.after is None:
            return 0
        return int((self.before.probs.argmax(axis=1) != self.after.probs.argmax(axis=1)).sum())


def measure_report(
    scores: Any,
    y: Any,
    calibrator: Calibrator | None = None,
    *,
    input: inputs.InputKind | None = None,
    class_names: Sequence[str] | None = None,
    source: Source | None = None,
    notes: Sequence[str] = (),
    ci: float = 0.95,
    positive: int = 1,
    groups: Any = None,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    crossed: CrossFit | None = None,
) -> Content:
    """Measure what a report shows, before and (with a calibrator) after calibration.

    Parameters
    ----------
    scores, y, calibrator, input, groups, ci, threshold, cost
        As for :func:`hcal.report`.
    class_names : sequence of K str, optional
    source : Source, optional
        The file, for the page.
    notes : sequence of str
        More alarms.
    positive : int
        The positive class of two.
    crossed : CrossFit, optional
        Out-of-fold probabilities of these rows, in place of those of ``calibrator``.

    Examples
    --------
    >>> measure_report([[2.0, 0.0], [0.0, 1.0]], [0, 1]).counts
    array([1, 1])
    """
    kind = input or ("logits" if calibrator is None else calibrator.input)
    own = getattr(calibrator, "uncalibrated", None)  # of questions with different numbers of options
    raw = to_probs(scores, kind) if own is None else own(scores)
    labels = inputs.check_labels(y, *raw.shape)
    n, k = raw.shape
    if class_names is not None and len(class_names) != k:
        raise ValueError(f"{len(class_names)} class names for {k} classes")
    names = None if class_names is None else tuple(map(str, class_names))
    probs: FloatArray | None = None
    told, seen = list(notes), 0.0
    if crossed is not None:
        probs, calibrator = crossed.probs, crossed.calibrator
    elif calibrator is not None:
        probs = inputs.check_probs(calibrator.predict_proba(scores))[0]
        overlap = leakage.fit_overlap(calibrator, scores)
        seen = 0.0 if overlap is None or not overlap.refused else overlap.share
        told += overlap_note(overlap)
    wanted = list_metrics() if n * k <= _ENTRIES else list(_ONE_PASS)
    if len(wanted) < len(list_metrics()):
        told.append("only metrics that need one pass over the rows are shown at this size")
    options = {"ci": ci, "positive": positive, "groups": None, "classes": names}
    last: dict[str, Any] = {"groups": groups} if probs is None else {"test": False}
    return Content(
        source=source or Source(kind=kind),
        y=labels,
        names=names or tuple(f"class {i}" for i in range(k)),
        before=_side(raw, labels, None, wanted, options | last),
        after=None if probs is None else _side(probs, labels, raw, wanted, options | {"groups": groups}),
        calibrator=calibrator,
        notes=tuple(told),
        ci=ci,
        positive=positive,
        seen=seen,
        n=n,
        crossed=crossed,
        threshold=tuple(np.atleast_1d(threshold).tolist()),
        cost=_checked_cost(cost),
        shift=0.0 if probs is None or crossed is not None else frequency_shift(calibrator, probs),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=_versions(),
    )


def _checked_cost(cost: Mapping[str, float] | None) -> dict[str, float]:
    if cost is None:
        return {}
    if set(cost) != {"fn", "fp"} or min(cost.values()) <= 0:
        raise ValueError(f"cost must be {{'fn': …, 'fp': …}} with positive numbers, got {dict(cost)!r}")
    return {name: float(value) for name, value in cost.items()}


def frequency_shift(calibrator: Calibrator | None, probs: FloatArray) -> float:
    """Return half the summed difference of predicted class frequencies to those of the fit; 0 within chance.

    Chance is three standard errors of the mean of this many rows, and at least 5 points count.
    """
    found = {} if calibrator is None else calibrator.info_
    if "class_frequencies" not in found or "prior" in found:
        return 0.0
    old: Float64 = np.asarray(found["class_frequencies"], dtype=np.float64)
    if len(old) != probs.shape[1]:  # questions with another number of options
        return 0.0
    mean = probs.mean(axis=0, dtype=np.float64)
    distance = float(0.5 * np.abs(mean - old).sum())
    rows = [len(probs), found.get("n", found.get("fitted_on", {}).get("rows", len(probs)))]
    chance = 1.5 * np.sqrt(old * (1 - old) * sum(1 / max(r, 1) for r in rows)).sum()
    return distance if distance > max(0.05, chance) else 0.0


def _side(
    probs: FloatArray, y: IntArray, raw: FloatArray | None, wanted: list[str], options: dict[str, Any]
) -> ReportSide:
    s = Sample(probs, y)
    level = "positive" if s.k == 2 else "top-label"
    drawn = int(np.clip(_DRAWN_EVENTS / s.n, 50, 100))
    common: dict[str, Any] = {"level": level, "ci": options["ci"], "positive": options["positive"]}
    curves = {
        binning: reliability(s, binning=binning, bins=15 if s.n >= 1000 else 8, resamples=drawn, **common)[0]
        for binning in VIEWS
    }
    baseline = None if raw is None else Sample(raw, y)
    headline = evaluate(s, None, HEADLINE, baseline=baseline, n_resamples=RESAMPLES, **options)
    return ReportSide(probs, headline, evaluate(s, None, wanted), curves)


def _versions() -> dict[str, str]:
    found = {"hcal": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def measure_blocks(source: Any, calibrator: Calibrator | None = None, **options: Any) -> Content:
    """Measure rows that come block by block: numbers of all rows, pictures of a seeded sample of them.

    Parameters
    ----------
    source : hcal.io.Batches
    calibrator, **options
        As for :func:`measure_report`.
    """
    from hcal.evaluation.blocks import evaluate_batches

    ci, positive = options.get("ci", 0.95), options.get("positive", 1)
    found = evaluate_batches(source, calibrator, list(HEADLINE), ci, positive=positive)
    sample = found.sample
    names = options.pop("class_names", None) or source.classes
    options.setdefault("source", Source(str(source.name), source.part, source.kind))
    content = measure_report(
        sample.scores,
        sample.y,
        calibrator,
        input=source.kind,
        class_names=names,
        groups=sample.groups,
        **options,
    )
    if found.result.n == len(sample.y):
        return content
    said = f"tables and pictures are of a seeded sample of {len(sample.y):,} of {found.result.n:,} rows"
    before = _over_all(content.before, found.before or found.result)
    after = None if content.after is None else _over_all(content.after, found.result)
    seen = max(content.seen, found.learned_from)
    told = (*content.notes, said)
    return replace(content, before=before, after=after, n=found.result.n, seen=seen, notes=told)


def _over_all(side: ReportSide, found: Evaluation) -> ReportSide:
    """Put the numbers of all rows in the place of those of the sample."""
    headline = replace(side.headline, n=found.n, results=found.results, differences=found.differences)
    return replace(side, headline=headline)
