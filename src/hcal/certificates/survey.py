"""One pass over rows: sums of all of them, and a sample for what needs rows at once.

Scores and the errors of equal-width bins are sums over all rows. Errors that need all confidences in order are read
from fine bins, and their numerical error is bounded. Certificates count rows in fine bins. All other metrics, tests and
intervals are computed on the sample. Of rows in memory the sample is everything, and then there are no sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from hcal import leakage
from hcal.certificates.event import EventCounts
from hcal.fit_record import FittedModel, fitted_segments
from hcal.io.sources import RowSample, RowSource
from hcal.metrics.sample import Data
from hcal.metrics.streaming import StreamingMetrics
from hcal.numerics import FloatArray
from hcal.rows import OneColumn, Rows

#: The sample has at most this many rows (some metrics compare all pairs of rows) and this many numbers.
SAMPLE_ROWS: Final = 20_000
SAMPLE_NUMBERS: Final = 2**23


@dataclass(frozen=True)
class Side:
    """One predictor in a survey.

    Attributes
    ----------
    probs : array of shape (N, K)
        Its probabilities of the sampled rows.
    sums : StreamingMetrics, optional
        Its sums over all rows; None if the sample is all rows.
    """

    probs: FloatArray
    sums: StreamingMetrics | None


@dataclass(frozen=True)
class Survey:
    """What a pass over rows has found.

    Attributes
    ----------
    rows : Rows
        The sample, in the order of the source.
    n_rows : int
        How many rows there are.
    before, after : Side
        The scores as they are, and calibrated; ``after`` is None without a calibrator.
    counts : EventCounts, optional
        The counts of all rows that a certificate of the last side needs; None if the sample is all rows.
    changed : int
        How many of all rows the calibrator gives another class.
    overlap : Overlap, optional
        How many of these rows the calibrator was fitted on; None where it does not know.
    by_segment : bool
        Whether the calibrator predicts by the segments of the rows.
    """

    rows: Rows
    n_rows: int
    before: Side
    after: Side | None = None
    counts: EventCounts | None = None
    changed: int = 0
    overlap: leakage.Overlap | None = None
    by_segment: bool = False

    @property
    def is_sample(self) -> bool:
        """Whether there are more rows than those of the sample."""
        return self.n_rows > len(self.rows)


@dataclass(frozen=True)
class SurveyPlan:
    """What a pass over rows adds up.

    Attributes
    ----------
    n_classes : int
    streamed : tuple of str
        Metrics that are added up.
    positive : int
        The number of the positive class of two.
    certified : bool
        Whether a certificate is wanted, and the rows are independent.
    whole : bool
        Whether the sample is all rows, so that nothing else is needed.
    n_rows : int, optional
        How many rows there are, if that is known.
    most_rows, most_scores : int
        The most rows, and the most numbers (rows × classes), of the sample.
    calibrator : Calibrator, optional
    """

    n_classes: int
    streamed: tuple[str, ...]
    positive: int
    certified: bool
    whole: bool
    n_rows: int | None
    most_rows: int
    most_scores: int
    calibrator: FittedModel | None

    def empty(self) -> _Totals:
        """Return the totals of no rows."""
        return _Totals(self)


class _Totals:
    """The sampled rows of some blocks and, where they are not all rows, the sums of all: a partial result."""

    def __init__(self, plan: SurveyPlan) -> None:
        self.plan = plan
        self.sample = RowSample(plan.most_rows, plan.most_scores, plan.n_rows)
        self.one_column = OneColumn()
        self.sums = None if plan.whole else _RowSums(plan)

    def update(self, block: Rows) -> Self:
        """Add a block of rows."""
        if self.plan.calibrator is not None:
            block = self.plan.calibrator.rows_like(block)
        self.sample.update(block)
        self.one_column.update(block)
        if self.sums is not None:
            self.sums.update(block)
        return self

    def merge(self, other: _Totals) -> Self:
        """Add the totals of other rows."""
        self.sample.merge(other.sample)
        self.one_column.merge(other.one_column)
        if self.sums is not None and other.sums is not None:
            self.sums.merge(other.sums)
        return self


class _RowSums:
    """The sums over all rows of some blocks: a partial result (:mod:`hcal.passes`)."""

    def __init__(self, plan: SurveyPlan) -> None:
        self.plan = plan
        judged = plan.positive if plan.n_classes == 2 else 1
        self.before = StreamingMetrics(plan.n_classes, plan.streamed, positive=judged)
        self.after = self.before.empty()
        self.counts = EventCounts(plan.n_classes, judged) if plan.certified else None
        self.fingerprint: leakage.Fingerprint | None = None
        self.changed = 0

    def update(self, block: Rows) -> Self:
        """Add a block of rows."""
        calibrator = self.plan.calibrator
        labels = block.labels
        probs = block.probs()
        self.before.update(probs, labels, block.weight)
        if calibrator is not None:
            calibrated = calibrator.probs_of(block)
            self.after.update(calibrated, labels, block.weight)
            self.changed += _changed(probs, calibrated)
            self.fingerprint = leakage.merge_fingerprints(
                self.fingerprint, leakage.fingerprint(_inputs(calibrator, block))
            )
            probs = calibrated
        if self.counts is not None:
            self.counts.update(Data(probs, labels), block.by)
        return self

    def merge(self, other: _RowSums) -> Self:
        """Add the sums of other rows."""
        self.before.merge(other.before)
        self.after.merge(other.after)
        if self.counts is not None and other.counts is not None:
            self.counts.merge(other.counts)
        self.fingerprint = leakage.merge_fingerprints(self.fingerprint, other.fingerprint)
        self.changed += other.changed
        return self


def survey_rows(  # noqa: PLR0913
    source: RowSource,
    calibrator: FittedModel | None = None,
    *,
    streamed: tuple[str, ...] = (),
    positive: int = 1,
    certified: bool = False,
    most_rows: int | None = None,
    most_scores: int | None = None,
) -> Survey:
    """Pass once over the rows of a source, and return their sums and a sample.

    Parameters
    ----------
    source : RowSource
    calibrator : Calibrator, optional
    streamed : tuple of str
        Metrics that are added up over all rows.
    positive : int
        The number of the positive class of two.
    certified : bool
        Whether all rows are counted for a certificate; rows of groups are not, because counts do not tell which
        rows depend on each other.
    most_rows, most_scores : int, optional
        The size of the sample: 20,000 rows, and 2²³ numbers, by default. Rows in memory are all in it.

    Examples
    --------
    >>> from hcal.io.sources import source_of_blocks
    >>> rows = Rows.of([[0.2, 0.8], [0.6, 0.4]], [1, 1], input="probs")
    >>> survey = survey_rows(source_of_blocks(rows.blocks(1)), streamed=("brier",))
    >>> survey.n_rows, len(survey.rows), survey.is_sample
    (2, 2, False)
    """
    most_rows = most_rows or SAMPLE_ROWS
    most_scores = most_scores or SAMPLE_NUMBERS
    if source.whole is not None:
        most_rows = max(len(source.whole), 1)
        most_scores = most_rows * source.n_classes
    size = min(most_rows, max(most_scores // source.n_classes, 1))
    plan = SurveyPlan(
        n_classes=source.n_classes,
        streamed=streamed,
        positive=positive,
        certified=certified and not source.grouped,
        whole=source.n_rows is not None and source.n_rows <= size,
        n_rows=source.n_rows,
        most_rows=most_rows,
        most_scores=most_scores,
        calibrator=calibrator,
    )
    totals = source.add_up(_Totals.update, plan.empty)
    survey = _survey_of(totals, calibrator)
    source.check_labels(survey.rows)
    return survey


def _survey_of(totals: _Totals, calibrator: FittedModel | None) -> Survey:
    """Return the survey that follows from the totals of all rows."""
    rows = totals.sample.rows()
    record = getattr(calibrator, "fit_", None)
    totals.one_column.check(None if record is None else record.score_range)
    n_rows = totals.sample.seen
    sums = totals.sums
    if len(rows) == n_rows:
        sums = None
    elif sums is None:
        raise ValueError(
            f"the source says that it has {totals.plan.n_rows:,} rows, and yields {n_rows:,}"
        )
    before = None if sums is None else sums.before
    counts = None if sums is None else sums.counts
    if calibrator is None:
        return Survey(rows, n_rows, Side(rows.probs(), before), counts=counts)

    rows = calibrator.rows_like(rows)
    raw = rows.probs()
    probs = calibrator.probs_of(rows)
    changed = _changed(raw, probs) if sums is None else sums.changed
    fingerprint = None if sums is None else sums.fingerprint
    if sums is None:
        fingerprint = leakage.fingerprint(_inputs(calibrator, rows))
    return Survey(
        rows=rows,
        n_rows=n_rows,
        before=Side(raw, before),
        after=Side(probs, None if sums is None else sums.after),
        counts=counts,
        changed=changed,
        overlap=_overlap(calibrator, fingerprint),
        by_segment=bool(fitted_segments(calibrator)),
    )


def _changed(before: FloatArray, after: FloatArray) -> int:
    return int((before.argmax(axis=1) != after.argmax(axis=1)).sum())


def _inputs(calibrator: FittedModel, rows: Rows) -> FloatArray:
    """Return the logits (N, K) by which rows of the fit are recognised."""
    if not hasattr(calibrator, "rows"):
        return rows.logits()
    # A calibrator of questions brings them to one width.
    padded: FloatArray = calibrator.rows(rows.scores)
    return padded


def _overlap(calibrator: FittedModel, seen: leakage.Fingerprint | None) -> leakage.Overlap | None:
    record = getattr(calibrator, "fit_", None)
    if record is None or seen is None:
        return None
    return leakage.overlap(record.fingerprint, seen)
