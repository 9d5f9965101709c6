"""The measurement behind ``hcal.evaluate``: metrics, intervals, tests and proofs of one predictor, from a survey."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from hcal import leakage
from hcal.certificates import Certificate
from hcal.certificates.certification import FEWEST_GROUPS, Terms, certify_survey
from hcal.certificates.event import EventCounts
from hcal.certificates.survey import Side, Survey, survey_rows
from hcal.class_names import ClassName, class_title, positive_number
from hcal.evaluation.assessment import assess, vector_test
from hcal.evaluation.result import Difference, Evaluation, MetricResult, PositiveRate
from hcal.fit_record import FittedModel
from hcal.inputs import check_confidence
from hcal.io.sources import RowSource
from hcal.metrics.by_chance import levels_by_chance
from hcal.metrics.clinical import clinical
from hcal.metrics.registry import METRICS, list_metrics
from hcal.metrics.resampling import (
    SPREAD_RESAMPLES,
    Interval,
    bootstrap,
    intervals,
    mean_interval,
    measure,
    missing_intervals,
    percentile,
)
from hcal.metrics.sample import Sample
from hcal.metrics.scores import accuracy, collapse_reasons, mean_confidence, nll, sharpness, swapped
from hcal.metrics.streaming import NAMES, StreamingMetrics
from hcal.metrics.testing import calibration_test
from hcal.numerics import FloatArray, IntArray
from hcal.rows import Rows

#: The confidence of certificates where no intervals are asked for.
DEFAULT_CONFIDENCE = 0.95
#: The note where rows depend on each other.
NO_TEST = "no test: it needs independent rows, and groups= says that rows depend on each other"


@dataclass(frozen=True)
class Settings:
    """What an evaluation computes, whatever its rows are."""

    metrics: tuple[str, ...] | None = None
    confidence: float | None = None
    test: bool | None = None
    resamples: int = 1000
    random_state: int = 0
    positive: int = 1  # the number of a class

    def __post_init__(self) -> None:
        if self.confidence is not None:
            check_confidence(self.confidence)

    def judging(self, positive: ClassName | None, source: RowSource) -> Settings:
        """Return these settings for the positive one of two classes, by its number or name."""
        return replace(self, positive=positive_number(positive, source.names, source.n_classes))

    @property
    def names(self) -> list[str]:
        """The names of the metrics."""
        return list_metrics() if self.metrics is None else list(self.metrics)

    @property
    def level(self) -> float:
        """The confidence of certificates."""
        return self.confidence or DEFAULT_CONFIDENCE

    @property
    def tested(self) -> bool:
        """Whether a calibration test and a certificate are wanted."""
        return self.confidence is not None if self.test is None else self.test

    @property
    def streamed(self) -> tuple[str, ...]:
        """The metrics that are added up over blocks: also those by which a collapse is recognised."""
        needed = {*self.names, "nll", "accuracy"}
        return tuple(name for name in NAMES if name in needed)


@dataclass(frozen=True)
class Judged:
    """One predictor: its sampled rows, and its sums over all rows where there are more."""

    sample: Sample
    sums: StreamingMetrics | None = None

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self.sample.n if self.sums is None else self.sums.n

    @property
    def accuracy(self) -> float:
        """The share of rows whose predicted class is right."""
        return accuracy(self.sample) if self.sums is None else self.sums.result()["accuracy"]

    @property
    def nll(self) -> float:
        """The negative log-likelihood."""
        return nll(self.sample) if self.sums is None else self.sums.result()["nll"]

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class."""
        return mean_confidence(self.sample) if self.sums is None else self.sums.mean_confidence

    def over_all_rows(self, of_sample: dict[str, float]) -> dict[str, float]:
        """Return the metrics of the sample, with those of all rows in the place of the sample's where there are any."""
        if self.sums is None:
            return of_sample
        of_all = self.sums.result()
        return {name: of_all.get(name, value) for name, value in of_sample.items()}

    def levels_over_all_rows(self, of_sample: dict[str, float]) -> dict[str, float]:
        """Return what metrics show by chance on the sample, or on all rows where their values are of all rows."""
        if self.sums is None:
            return of_sample
        return of_sample | self.sums.by_chance()

    def how(self, names: Iterable[str]) -> dict[str, str]:
        """Return for each metric what it was computed from, in words; empty where all is from all rows."""
        if self.sums is None:
            return {}
        bounds = self.sums.bounds()
        return {name: _how(bounds.get(name)) for name in names}


def _how(bound: float | None) -> str:
    """Return what a metric was computed from, from how far its value over all rows can be off."""
    if bound is None:
        return "sample"
    return f"all rows, within {bound:.1e}" if bound else "all rows"


def survey_source(
    source: RowSource, settings: Settings, calibrator: FittedModel | None = None
) -> Survey:
    """Return the survey that an evaluation of the rows of a source needs."""
    return survey_rows(
        source,
        calibrator,
        streamed=settings.streamed,
        positive=settings.positive,
        certified=settings.tested or source.segmented,
    )


def evaluate_survey(survey: Survey, settings: Settings) -> Evaluation:
    """Return the evaluation of the rows of a survey; after calibration, with the one before it."""
    rows = survey.rows
    before = judged(survey.before, rows, settings.positive)
    if survey.after is None:
        return Measurement(before, rows, settings, counts=survey.counts).evaluation()
    notes = overlap_note(survey.overlap)
    if survey.by_segment and rows.weight is not None:
        notes.append(
            "segments are not certified: that needs independent rows, and these have weights"
        )
        rows = replace(rows, by=None)
    # Segments and proofs are about what is used: the probabilities after calibration.
    plain = replace(rows, by=None)
    uncalibrated = Measurement(before, plain, replace(settings, test=False))
    after = judged(survey.after, rows, settings.positive)
    calibrated = Measurement(after, rows, settings, before, survey.counts)
    evaluation = calibrated.evaluation()
    return replace(
        evaluation,
        before=uncalibrated.evaluation(),
        changed=survey.changed,
        notes=(*evaluation.notes, *notes),
    )


def judged(side: Side, rows: Rows, positive: int) -> Judged:
    """Return the predictor of one side of a survey."""
    return Judged(Sample(side.probs, rows.labels, rows.weight, positive=positive), side.sums)


def evaluate_rows(
    rows: Rows, probs: FloatArray, settings: Settings, *, baseline: FloatArray | None = None
) -> Evaluation:
    """Return the evaluation of probabilities (N, K) of checked rows with labels, all of which are in memory."""
    other = None
    if baseline is not None:
        other = judged(Side(baseline, None), rows, settings.positive)
    final = judged(Side(probs, None), rows, settings.positive)
    return Measurement(final, rows, settings, other).evaluation()


@dataclass(frozen=True)
class Measurement:
    """One evaluation in the making: the predictor, the rows that it comes from, and what to compute."""

    judged: Judged
    rows: Rows
    settings: Settings
    other: Judged | None = None
    counts: EventCounts | None = None

    def evaluation(self) -> Evaluation:
        """Return the evaluation."""
        sample = self.judged.sample
        of_sample, notes = self._of_sample()
        values = self.judged.over_all_rows(of_sample)
        levels = self._by_chance(of_sample)
        ranges = self._intervals(of_sample, levels)
        if self.settings.confidence is not None:
            grouped = self.rows.groups is not None
            notes += missing_intervals(sample, of_sample, ranges, grouped=grouped)
        shown_levels = self._levels_of_all_rows(levels, ranges)
        results = {
            name: MetricResult(value, METRICS[name], ranges.get(name), shown_levels.get(name))
            for name, value in values.items()
        }
        rate = self._positive_rate()
        if rate is not None:
            notes += swapped(sample, None, class_title(1, self.rows.names).removeprefix("class "))
        evaluation = Evaluation(
            results,
            n=self.judged.n,
            k=sample.k,
            accuracy=self.judged.accuracy,
            mean_confidence=self.judged.mean_confidence,
            nll=self.judged.nll,
            sharpness=sharpness(sample),
            collapse=tuple(self._collapse()),
            confidence=self.settings.confidence,
            differences=self._differences(of_sample, values),
            positive=rate,
            how=self.judged.how(values),
            sample_rows=sample.n if self.judged.n > sample.n else None,
        )
        evaluation = self._with_proofs(evaluation, notes)
        return replace(evaluation, notes=tuple(notes))

    def _of_sample(self) -> tuple[dict[str, float], list[str]]:
        """Return the metrics of the sample, and notes about how they were computed."""
        sample = self.judged.sample
        chosen = self.settings.names
        if self.settings.metrics is not None:
            # A metric that was chosen refuses weights that it cannot take with an error of its own.
            return measure(sample, chosen)
        left_out = [name for name in chosen if not METRICS[name].takes(sample)]
        values, notes = measure(sample, [name for name in chosen if name not in left_out])
        if left_out:
            names = ", ".join(left_out)
            notes.append(f"left out, because they need whole repetition counts as weights: {names}")
        return values, notes

    def _by_chance(self, of_sample: dict[str, float]) -> dict[str, float]:
        """Return what plug-in errors show on the sample by chance; nothing where rows depend on each other."""
        if self.rows.groups is not None:
            return {}
        return levels_by_chance(self.judged.sample, of_sample)

    def _levels_of_all_rows(
        self, levels: dict[str, float], ranges: dict[str, Interval]
    ) -> dict[str, float]:
        """Return what plug-in errors show by chance, each on the rows that its value comes from."""
        if self.rows.groups is not None:
            return {}
        of_intervals = {
            name: interval.chance
            for name, interval in ranges.items()
            if interval.chance is not None
        }
        return self.judged.levels_over_all_rows(of_intervals | levels)

    def _intervals(
        self, of_sample: dict[str, float], levels: dict[str, float]
    ) -> dict[str, Interval]:
        """Return the intervals of the metrics, from the sample."""
        if self.settings.confidence is None:
            return {}
        return intervals(
            self.judged.sample,
            of_sample,
            self.settings.confidence,
            by_chance=levels,
            resamples=self.settings.resamples,
            random_state=self.settings.random_state,
            groups=self.rows.groups,
        )

    def _positive_rate(self) -> PositiveRate | None:
        """Return how often the positive class of two is stated and observed."""
        sample = self.judged.sample
        if sample.k != 2:
            return None
        names = self.rows.names
        name = (
            f"class {self.settings.positive}"
            if names is None
            else str(names[self.settings.positive])
        )
        stated = sample.mean(sample.data.column(self.settings.positive).astype(np.float64))
        return PositiveRate(name, stated, sample.mean(1.0 * (sample.y == self.settings.positive)))

    def _collapse(self) -> list[str]:
        return collapse_reasons(
            accuracy=self.judged.accuracy,
            mean_confidence=self.judged.mean_confidence,
            nll=self.judged.nll,
            n_classes=self.judged.sample.k,
            nll_before=None if self.other is None else self.other.nll,
            rows=self.judged.n,
        )

    # -- proofs and tests -------------------------------------------------------------------------

    def _with_proofs(self, evaluation: Evaluation, notes: list[str]) -> Evaluation:
        """Return the evaluation with certificates and tests, which need independent rows of weight 1."""
        sample = self.judged.sample
        tested = self.settings.tested
        by = self.rows.by
        if by is not None and sample.weight is not None:
            raise ValueError(
                "by= is certified from independent rows, which weighted ones are not: leave the "
                "weights out, or evaluate the rows of each segment by themselves"
            )
        groups = self.rows.groups
        if groups is not None and tested:
            notes.append(NO_TEST)
        if groups is not None and (tested or by is not None) and not _enough_groups(groups, notes):
            return evaluation
        tested = tested and sample.weight is None and sample.n > 1
        if not tested and by is None:
            return evaluation
        certificate = self._certificate()
        evaluation = replace(evaluation, certificate=certificate)
        return self._with_tests(evaluation, certificate) if tested else evaluation

    def _certificate(self) -> Certificate:
        """Return the certificate of all rows, from their counts where they are not in memory."""
        side = Side(self.judged.sample.data.probs, self.judged.sums)
        survey = Survey(self.rows, self.judged.n, side, counts=self.counts)
        terms = Terms(self.settings.level, random_state=self.settings.random_state)
        return certify_survey(survey, terms, self.settings.positive)

    def _with_tests(self, evaluation: Evaluation, certificate: Certificate) -> Evaluation:
        """Return the evaluation with tests, the verdict that follows from them, and the panel of two classes.

        Rows of groups that depend on each other get the verdict alone.
        """
        sample = self.judged.sample
        rate = evaluation.positive
        title = "top label" if rate is None else f"P({rate.name})"
        groups = self.rows.groups
        if groups is not None:
            return replace(evaluation, assessment=assess(sample, certificate, title, groups=groups))
        top = calibration_test(sample, random_state=self.settings.random_state)
        vector = vector_test(sample, self.settings.random_state)
        panel = None
        if rate is not None and 0 < rate.observed < 1:
            panel = clinical(
                sample, None, confidence=self.settings.level, positive=self.settings.positive
            )
        return replace(
            evaluation,
            test=top,
            vector_test=vector,
            assessment=assess(sample, certificate, title, top, vector),
            clinical=panel,
        )

    # -- comparison with the baseline -------------------------------------------------------------

    def _differences(
        self, of_sample: dict[str, float], values: dict[str, float]
    ) -> dict[str, Difference]:
        """Return every metric minus the baseline's, with an interval from rows resampled together."""
        if self.other is None:
            return {}
        before_of_sample = measure(self.other.sample, of_sample)[0]
        before = self.other.over_all_rows(before_of_sample)
        ranges = {}
        if self.settings.confidence is not None:
            changes = {name: of_sample[name] - before_of_sample[name] for name in of_sample}
            ranges = self._paired_ranges(self.other.sample, changes, self.settings.confidence)
        differences = {}
        for name, value in values.items():
            low, high = ranges.get(name, (None, None))
            differences[name] = Difference(before[name], value - before[name], low, high)
        return differences

    def _paired_ranges(
        self, other: Sample, changes: dict[str, float], confidence: float
    ) -> dict[str, tuple[float, float]]:
        """Return the interval of each change.

        Means: from the differences of rows. Debiased errors: percentiles. Plug-in errors: the change ± z standard
        deviations, because the bias that a bootstrap adds to both does not cancel where one of them is nearly
        calibrated.
        """
        sample = self.judged.sample
        ranges = {}
        for name in changes:
            if METRICS[name].rows is None:
                continue
            interval = mean_interval(METRICS[name], sample, confidence, self.rows.groups, other)
            if interval is not None:
                ranges[name] = interval.low, interval.high
        rng = np.random.default_rng(self.settings.random_state)
        # A metric with a standard error of its own would cost one pass over all pairs (or windows) a replicate.
        paired = [
            name for name in changes if METRICS[name].ends is None and METRICS[name].rows is None
        ]
        plugin = [name for name in paired if METRICS[name].interval == "bias-aware"]
        plain = [name for name in paired if name not in plugin]
        resamples = self.settings.resamples
        groups = self.rows.groups
        pair = (sample, other)
        if groups is not None and len(np.unique(groups)) < FEWEST_GROUPS:
            return ranges
        ours, theirs = bootstrap(pair, plain, resamples, rng, groups=groups)
        for name in plain:
            ranges[name] = percentile(ours[name] - theirs[name], confidence)
        z = float(ndtri((1 + confidence) / 2))
        spread = min(resamples, SPREAD_RESAMPLES)
        ours, theirs = bootstrap(pair, plugin, spread, rng, groups=groups)
        for name in plugin:
            margin = z * float((ours[name] - theirs[name]).std(ddof=1))
            ranges[name] = changes[name] - margin, changes[name] + margin
        return ranges


def _enough_groups(groups: IntArray, notes: list[str]) -> bool:
    """Say whether the groups of dependent rows are enough for a proof, and note it if they are not."""
    count = len(np.unique(groups))
    if count >= FEWEST_GROUPS:
        return True
    notes.append(
        f"nothing is proven: a proof needs at least {FEWEST_GROUPS} groups of rows, and groups= "
        f"has {count}"
    )
    return False


def overlap_note(overlap: leakage.Overlap | None) -> list[str]:
    """Return a warning for an evaluation on rows of the fit, as a list; empty where there is no overlap."""
    if overlap is None or not overlap.sentence:
        return []
    sentence = f"{overlap.sentence[0].lower()}{overlap.sentence[1:-1]}"
    return [f"{sentence}: evaluate it on others"]
