"""The numbers and facts of a report, measured before any of its HTML is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from hcal import inputs, leakage
from hcal.class_names import check_classes
from hcal.evaluation import Evaluation, crossfit, evaluate, reliability
from hcal.evaluation.curves import Binning, ReliabilityCurve
from hcal.evaluation.evaluator import overlap_note
from hcal.inputs import to_probs
from hcal.methods import Calibrator
from hcal.metrics import list_metrics
from hcal.metrics.sample import Sample
from hcal.numerics import FloatArray, IntArray

#: The headline metrics; only they have intervals, which take most of the time.
HEADLINE: Final = ("ece_ew", "nll", "brier", "accuracy")
#: With more probabilities than this only the metrics of ``_ONE_PASS`` are computed.
_ENTRIES: Final = 5_000_000
_ONE_PASS: Final = (
    "ece_ew",
    "ece_em",
    "dece",
    "ks",
    "smece",
    "cwece_a",
    "nll",
    "brier",
    "accuracy",
)
#: Bootstrap samples for the intervals of the headline.
RESAMPLES: Final = 400
#: Events drawn in total for the band of a curve without bins: with many rows fewer draws are enough.
_DRAWN_EVENTS: Final = 4e6
#: The views of the reliability diagram: the text of the button, and what its points are called.
VIEWS: Final[dict[Binning, tuple[str, str]]] = {
    "equal-width": ("Equal width", "equal-width bins"),
    "equal-mass": ("Equal mass", "equal-mass bins"),
    "corp": ("Isotonic", "steps of the isotonic fit"),
    "smooth": ("Smooth", "points of the smooth curve"),
}


@dataclass(frozen=True)
class Source:
    """Where the rows came from; the page shows it and uses it in the commands that it prints.

    Attributes
    ----------
    name : str
        The name of the file.
    part, kind, checksum : str
        Empty where unknown.
    model : str
        The name of the calibrator's file; empty if there is none.
    options : str
        The options with which a command reads the file, such as ``--label y``.
    """

    name: str = "arrays in memory"
    part: str = ""
    kind: str = ""
    checksum: str = ""
    model: str = ""
    options: str = ""


@dataclass(frozen=True)
class ReportSide:
    """Everything about one predictor, before or after calibration."""

    probs: FloatArray
    evaluation: Evaluation  # every metric, those of the headline with intervals, and what is proven
    curves: dict[Binning, ReliabilityCurve]  # of P(positive) or of the top label, by binning


@dataclass(frozen=True)
class Content:
    """All that the report shows, as data."""

    source: Source
    y: IntArray
    names: tuple[str, ...]
    before: ReportSide
    after: ReportSide | None
    calibrator: Calibrator | None
    notes: tuple[str, ...]
    confidence: float
    positive: int = 1
    seen: bool = False  # whether these are rows of the calibrator's fit
    crossed: crossfit.CrossFit | None = None
    threshold: tuple[float, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    shift: float = (
        0.0  # how far predicted class frequencies are from those of the fit, beyond chance
    )

    @property
    def final(self) -> ReportSide:
        """The predictor that the verdict is about: after calibration if there is a calibrator."""
        return self.before if self.after is None else self.after

    @property
    def sides(self) -> dict[str, ReportSide]:
        """The predictors by name: before, and after where there is one."""
        return {"before": self.before} | ({} if self.after is None else {"after": self.after})

    @property
    def n(self) -> int:
        """How many rows were measured; more than ``y`` holds if the charts show a sample."""
        return self.final.evaluation.n

    @property
    def counts(self) -> IntArray:
        """Rows of each class."""
        return np.bincount(self.y, minlength=len(self.names)).astype(np.int64)

    @property
    def binary(self) -> bool:
        """Whether there are two classes, so that the report is about P(positive)."""
        return len(self.names) == 2

    @property
    def event(self) -> str:
        """What the report assesses, in words."""
        return f"P({self.names[self.positive]})" if self.binary else "the stated confidence"


def measure_report(
    scores: Any,
    y: Any,
    calibrator: Calibrator | str | None = None,
    *,
    input: inputs.InputKind | None = None,
    class_names: Sequence[str] | None = None,
    source: Source | None = None,
    confidence: float = 0.95,
    positive: int = 1,
    groups: Any = None,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    cross_fit: bool = False,
    measured: Sequence[Evaluation] = (),
) -> Content:
    """Measure what a report shows, before and (with a calibrator) after calibration.

    Parameters
    ----------
    scores, y, calibrator, input, groups, confidence, threshold, cost, cross_fit
        As for :func:`hcal.report`.
    class_names : sequence of K str, optional
    source : Source, optional
        The file, for the page.
    positive : int
        The positive class of two.
    measured : sequence of Evaluation, optional
        If the rows are a sample: the headline metrics of all rows, before and (with a calibrator) after calibration.

    Examples
    --------
    >>> measure_report([[2.0, 0.0], [0.0, 1.0]], [0, 1]).counts
    array([1, 1])
    """
    kind: Any = input or getattr(calibrator, "input", "logits")
    crossed = None
    if cross_fit:
        crossed = crossfit.cross_fit(
            calibrator or "pool", scores, y, groups=groups, classes=class_names, input=kind
        )
        calibrator = crossed.calibrator
    elif isinstance(calibrator, str):
        raise ValueError(f"fit {calibrator!r} first, or pass cross_fit=True")
    own = getattr(
        calibrator, "uncalibrated", None
    )  # of questions with different numbers of options
    raw = to_probs(scores, kind) if own is None else own(scores)
    labels = inputs.check_labels(y, *raw.shape)
    names = (
        None if class_names is None else tuple(map(str, check_classes(class_names, raw.shape[1])))
    )
    if cost and (set(cost) != {"fn", "fp"} or min(cost.values()) <= 0):
        raise ValueError(
            f"cost must be {{'fn': …, 'fp': …}} with positive numbers, got {dict(cost)!r}"
        )
    probs, told, seen, shift = None, [], False, 0.0
    if crossed is not None:
        probs = crossed.probs
    elif calibrator is not None:
        probs = inputs.check_probs(calibrator.predict_proba(scores))[0]
        overlap = leakage.fit_overlap(calibrator, scores)
        seen = overlap is not None and overlap.refused
        told += overlap_note(overlap)
        shift = frequency_shift(calibrator, probs)
    wanted = list_metrics()
    if raw.size > _ENTRIES:
        wanted = list(_ONE_PASS)
        told.append("only metrics that need one pass over the rows are shown at this size")
    judged = positive if raw.shape[1] == 2 else 1
    samples = [Sample(p, labels, positive=judged) for p in (raw, probs) if p is not None]
    if not measured:
        options: dict[str, Any] = {
            "confidence": confidence,
            "positive": positive,
            "classes": names,
            "resamples": RESAMPLES,
        }
        of_final = {"by": groups} if probs is None else {"by": groups, "baseline": samples[0]}
        tested = [of_final] if probs is None else [{"test": False}, of_final]
        measured = [
            evaluate(s, metrics=HEADLINE, **options, **more)
            for s, more in zip(samples, tested, strict=True)
        ]
    sides = [_side(s, found, wanted, positive) for s, found in zip(samples, measured, strict=True)]
    names = names or tuple(f"class {i}" for i in range(raw.shape[1]))
    before, after = sides[0], None if probs is None else sides[1]
    asked: dict[str, Any] = {
        "confidence": confidence,
        "positive": positive,
        "cost": cost or {},
        "crossed": crossed,
    }
    asked["threshold"] = tuple(np.atleast_1d(threshold).tolist())
    rows = source or Source(kind=kind), labels, names
    return Content(*rows, before, after, calibrator, tuple(told), seen=seen, shift=shift, **asked)


def frequency_shift(calibrator: Calibrator, probs: FloatArray) -> float:
    """Return the total variation distance of predicted class frequencies to those of the fit, or 0 if it is small.

    Small is less than 5 points, or less than three standard errors of the frequencies of this many rows.
    """
    record = calibrator.fit_
    old = record.frequencies
    if record.prior is not None or len(old) != probs.shape[1]:  # questions with more options
        return 0.0
    distance = float(0.5 * np.abs(probs.mean(axis=0, dtype=np.float64) - old).sum())
    rows = [len(probs), record.weight]
    chance = 1.5 * np.sqrt(old * (1 - old) * sum(1 / max(r, 1) for r in rows)).sum()
    return distance if distance > max(0.05, chance) else 0.0


def _side(s: Sample, headline: Evaluation, wanted: list[str], positive: int) -> ReportSide:
    common: dict[str, Any] = {"confidence": headline.confidence, "positive": positive}
    common |= {
        "bins": 15 if s.n >= 1000 else 8,
        "resamples": int(np.clip(_DRAWN_EVENTS / s.n, 50, 100)),
    }
    curves = {binning: reliability(s, binning=binning, **common)[0] for binning in VIEWS}
    others = evaluate(s, metrics=[name for name in wanted if name not in HEADLINE])
    found = others.results | headline.results
    results = {name: found[name] for name in wanted}
    return ReportSide(s.data.probs, replace(headline, results=results, notes=others.notes), curves)


def measure_blocks(
    source: Any,
    calibrator: Calibrator | str | None = None,
    *,
    runner: Any = None,
    advance: Any = None,
    **options: Any,
) -> Content:
    """Measure files block by block: the headline metrics of all rows, everything else on a random sample.

    Parameters
    ----------
    source : hcal.io.Batches
    runner, advance
        As for :func:`hcal.evaluation.blocks.evaluate_batches`.
    calibrator, **options
        As for :func:`measure_report`.
    """
    from hcal.evaluation.blocks import evaluate_batches

    if options.get("cross_fit") or isinstance(calibrator, str):
        raise ValueError(
            "cross-fitting needs all rows at once: one file, without batch_rows (--batch-rows)"
        )
    confidence, positive = options.get("confidence", 0.95), options.get("positive", 1)
    found = evaluate_batches(
        source,
        calibrator,
        list(HEADLINE),
        confidence,
        positive=positive,
        runner=runner,
        advance=advance,
    )
    sample = found.sample
    options.setdefault("source", Source(str(source.name), source.part, source.kind))
    options["class_names"] = options.get("class_names") or source.classes
    whole = found.result.n == len(sample)
    rows: dict[str, Any] = {"input": source.kind, "groups": sample.groups}
    rows["measured"] = [] if whole else [e for e in (found.before, found.result) if e is not None]
    content = measure_report(sample.scores, sample.y, calibrator, **rows, **options)
    if whole:
        return content
    note = f"everything but the headline numbers comes from a {found.sampled}"
    seen = content.seen or (found.overlap is not None and found.overlap.refused)
    return replace(content, seen=seen, notes=(*content.notes, note))
