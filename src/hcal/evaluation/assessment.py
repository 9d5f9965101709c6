"""The verdict of an evaluation: how far off the probabilities are, how certain that is, and if they beat base rates.

With two classes the verdict is about P(positive), with more about the predicted class. It gives the estimated smooth
calibration error and its proven bound. The grade depends on how many rows are affected and by how much, not on the
number of rows alone. ``hcal.evaluate`` prints the verdict and the report shows it.

Errors of opposite sign cancel in an average over all rows, so the verdict looks at the parts too: at the segments and
classes that are proven to be off by more than their tolerance, with the rows that they hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

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
from hcal.metrics.resampling import resample_blocks
from hcal.metrics.sample import Sample
from hcal.metrics.scores import SMALLEST, nll_rows
from hcal.metrics.testing import CalibrationTest, calibration_test, rank_p_value
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.text import JsonObject, printable

Status = Literal["proven", "refuted", "open"]
Grade = Literal["good", "care", "few", "bad"]
#: The kernel test of the whole vector compares all pairs of rows, so it uses at most this many rows.
VECTOR_ROWS: Final = 2000
#: The share of rows that are proven to be off by more than the tolerance: up to the first number the grade can be
#: "good", above the second the predictor should not be relied on.
FEW_ROWS = 0.01
MANY_ROWS = 0.05
#: If segments or classes that are proven to be off hold more than this share of the rows, errors cancel at best.
MOST_ROWS = 0.5
#: Differences of means that rounding alone can make: a predictor that states the base rates is not better than they.
_ROUNDING: Final = 1e-9
#: About this many labels are drawn to see how a calibrated predictor compares with base rates.
_MOST_DRAWS: Final = 20_000_000

RULE: Final = (
    "The tolerance is 5 points for the predicted class, and 10·√(π(1−π)) points for a class of "
    "frequency π. Good: the smooth calibration error is proven to be within the tolerance, at most "
    "1 % of the rows are proven to be off by more, and NLL is better than that of the base rates. "
    "Not good: more than 5 % of the rows are proven to be off by more than the tolerance and the "
    "error is not proven to be within it; or NLL is worse than that of the base rates, or more "
    "than 1 % worse than before calibration, as the Brier score must not be; or the predictor has "
    "collapsed; or segments or classes that are proven to be off by more than the tolerance hold "
    "more than half of the rows. With care: within the tolerance on average, but with more rows "
    "off than that, or with a segment that is proven to be off, or not shown to know more than the "
    "base rates, or less accurate by more than 1 point than before calibration. Otherwise the rows "
    "cannot tell."
)
#: The most segments or classes that a sentence names.
_NAMED: Final = 8


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
        The smooth calibration error: its estimate, None with too few rows, and its proven upper bound
        (:func:`hcal.certify`).
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
    segments : SegmentsOff or None
        The segments (``by=``) that are proven to be off; None if no segments were given.
    classes : ClassesOff or None
        The classes that are proven to be off; None with two classes, which the event speaks of.

    Examples
    --------
    >>> import hcal
    >>> evaluation = hcal.evaluate([[0.2, 0.8], [0.3, 0.7]], [1, 1], metrics=["nll"], confidence=0.95)
    >>> evaluation.assessment.grade  # two rows are few
    'few'
    """

    event: str
    estimate: float | None
    bound: float
    tolerance: float
    share_far: float | None
    share_proven: float
    rows_needed: int | None
    within: Statement
    exact: Statement
    skill: Statement
    grade: Grade
    segments: SegmentsOff | None = None
    classes: ClassesOff | None = None

    @property
    def off_words(self) -> str:
        """Which segments and classes are proven to be off, and how many rows they hold; empty if none is."""
        parts = (self.segments, self.classes)
        return ", and ".join(part.count for part in parts if part is not None and part)

    @property
    def how_far(self) -> str:
        """The estimate and the proven bound, in words."""
        return capital(error_words(self, self.tolerance))

    @property
    def sentences(self) -> list[str]:
        """The whole assessment in words."""
        sentences = [self.how_far, self.within.words, self.exact.words, self.skill.words]
        if self.segments is not None:
            sentences.append(self.segments.words)
        if self.classes:
            sentences.append(self.classes.words)
        return sentences

    def to_dict(self) -> JsonObject:
        """Return plain values, ready for JSON."""
        return asdict(self)


def assess(
    s: Sample,
    certificate: Certificate,
    title: str,
    top: CalibrationTest | None = None,
    vector: CalibrationTest | None = None,
    groups: IntArray | None = None,
) -> Assessment:
    """Return the assessment that follows from a sample's certificate and tests.

    The title names the event. Rows of one group depend on each other; there are no tests of such rows.
    """
    event = certificate.headline
    limit = certificate.limit
    segments = segments_off(certificate)
    classes = classes_off(certificate, s.data.probs)
    parts = [part.share_proven for part in (segments, classes) if part is not None]
    share_proven = max([share_far(event, limit), *parts])
    within = _within(title, event, limit, share_proven, certificate.confidence)
    skill = knows_more(s, certificate.confidence, groups)
    return Assessment(
        event=title,
        estimate=event.estimate,
        bound=event.bound,
        tolerance=limit,
        share_far=event.share_far,
        share_proven=share_proven,
        rows_needed=_rows_needed(event, limit, within),
        within=within,
        exact=_exactly(certificate, top, vector),
        skill=skill,
        grade=_grade(event.bound <= limit, share_proven, within, skill, (segments, classes)),
        segments=segments,
        classes=classes,
    )


def _grade(
    proven: bool,
    share_proven: float,
    within: Statement,
    skill: Statement,
    parts: tuple[SegmentsOff | None, ClassesOff | None],
) -> Grade:
    """Return the grade; :data:`RULE` says it in words."""
    some_off = bool(parts[0])
    most_off = any(part is not None and part.share_proven > MOST_ROWS for part in parts)
    if skill.status == "refuted" or most_off:
        return "bad"
    if not proven:
        return "bad" if within.status == "refuted" else "few"
    sound = share_proven <= FEW_ROWS and skill.status == "proven" and not some_off
    return "good" if sound else "care"


def _rows_needed(event: EventCertificate, limit: float, within: Statement) -> int | None:
    """Return how many rows would prove the tolerance; None if that is not open, or no number would."""
    if within.status != "open":
        return None
    needed = event.rows_needed(limit)
    # A typical calibrated predictor would be proven with this many rows already.
    return None if needed is None or needed <= event.n else needed


def _within(
    title: str, event: EventCertificate, limit: float, share_proven: float, confidence: float
) -> Statement:
    claim = f"{title} within {points(limit)}"
    if share_proven > MANY_ROWS:
        if share_far(event, limit) < share_proven:
            claim += ", in every segment and class"
        worst = ""
        refutation = event.refutation
        if refutation is not None and refutation.at_least > limit:
            worst = f" {refutation.rows:,} rows {window_words(refutation)}."
        words = f"{claim}: refuted for {share(share_proven)} of the rows.{worst}"
        return Statement("refuted", words)
    if event.bound <= limit:
        return Statement("proven", f"{claim}, on average: proven at {share(confidence)}.")
    words = f"{claim}: cannot be told from {event.n:,} rows. {rows_words(event, limit)}"
    return Statement("open", words)


# -- exact calibration ------------------------------------------------------------------------------


def vector_test(s: Sample, random_state: int = 0) -> CalibrationTest | None:
    """Test the whole vector with the kernel error, on at most ``VECTOR_ROWS`` random rows; None below 10."""
    if s.n < 10:
        return None
    if s.n > VECTOR_ROWS:
        rows = np.random.default_rng(random_state).permutation(s.n)[:VECTOR_ROWS]
        s = Sample(s.data.probs[rows], s.y[rows])
    return calibration_test(s, method="skce", resamples=499, random_state=random_state)


def p_words(test: CalibrationTest) -> str:
    """Return a p-value in words; the smallest one that resampling can give is an upper bound.

    >>> p_words(CalibrationTest(0.001, "ks", 0.1, "resampling", 999))
    'p ≤ 0.001'
    """
    if test.reason:
        return f"not tested: {test.reason}"
    smallest = test.p_value <= 1 / (test.resamples + 1)
    return f"p {'≤' if smallest else '='} {test.p_value:.2g}"


def _exactly(
    certificate: Certificate, top: CalibrationTest | None, vector: CalibrationTest | None
) -> Statement:
    """Refute exact calibration, by the certificate or by a test, or leave it open."""
    limit = (1 - certificate.confidence) / 2  # two tests share the failure probability
    tests = "no test: rows of one group depend on each other"
    if top is not None:
        tests = f"{p_words(top)} for the top label"
    if vector is not None:
        tests += f", {p_words(vector)} for the whole vector"
    by_test = any(test is not None and test.p_value < limit for test in (top, vector))
    if certificate.refuted or by_test:
        reason = tests if by_test else f"by the certificate; {tests}"
        return Statement("refuted", f"Exactly calibrated: refuted ({reason}).")
    return Statement("open", f"Exactly calibrated: not refuted ({tests}). It can never be proven.")


# -- base rates -------------------------------------------------------------------------------------


def knows_more(s: Sample, confidence: float, groups: IntArray | None = None) -> Statement:
    """Compare NLL with that of a predictor that states the classes' frequencies, row by row.

    Each claim has to hold against the harder opponent. "Better" compares with the frequencies of these very rows, which
    no stated base rate can beat here. "Worse" compares every row with the frequencies of the other rows. It also has to
    be improbable for a calibrated predictor, because differences are far from normal where events are rare.
    Intervals count whole groups where rows of a group depend on each other.

    Examples
    --------
    >>> s = Sample([[0.995, 0.005]] * 300, [0] * 300)
    >>> knows_more(s, 0.95).status
    'open'
    """
    losses = nll_rows(s)
    own_rates = _base_rate_losses(s.y[None], s.k, left_out=False)[0]
    _, high = _mean_interval(losses - own_rates, confidence, groups)
    if high < -_ROUNDING:
        words = _against(losses, own_rates, "states the base rates")
        return Statement("proven", f"It knows more than the base rates: {words}.")

    other_rates = _base_rate_losses(s.y[None], s.k, left_out=True)[0]
    low, _ = _mean_interval(losses - other_rates, confidence, groups)
    if low > _ROUNDING and _improbable_if_calibrated(s, losses - other_rates, confidence):
        words = _against(losses, other_rates, "states the base rates of the other rows")
        return Statement("refuted", f"It is worse than the base rates: {words}.")
    words = _against(losses, own_rates, "states the base rates")
    return Statement("open", f"It is not shown to know more than the base rates: {words}.")


def _against(losses: Float64, base: Float64, predictor: str) -> str:
    return f"NLL {losses.mean():.4g} against {base.mean():.4g} of a predictor that {predictor}"


def _mean_interval(
    values: Float64, confidence: float, groups: IntArray | None = None
) -> tuple[float, float]:
    """Return the normal interval of a mean of rows or of whole groups; without limits for a single one."""
    mean = float(values.mean())
    sums = values - mean
    if groups is not None:
        group = np.unique(groups, return_inverse=True)[1]
        sums = np.bincount(group, values - mean).astype(np.float64)
    count = len(sums)
    if count < 2:
        return -np.inf, np.inf
    variance = count / (count - 1) * float(sums @ sums) / len(values) ** 2
    margin = float(ndtri((1 + confidence) / 2)) * np.sqrt(variance)
    return mean - margin, mean + margin


def _base_rate_losses(y: IntArray, n_classes: int, *, left_out: bool) -> Float64:
    """Return −log of the frequency of each row's class, for D sets of labels (D, N).

    ``left_out`` takes the frequency among the other rows, with half a row added to every class.
    """
    n_draws, n_rows = y.shape
    class_of_draw = y + n_classes * np.arange(n_draws)[:, None]
    counts = np.bincount(class_of_draw.ravel(), minlength=n_draws * n_classes)
    count = counts[class_of_draw]
    if not left_out:
        return np.asarray(np.log(n_rows) - np.log(count))
    return np.asarray(np.log(n_rows - 1 + n_classes / 2) - np.log(count - 0.5))


def _improbable_if_calibrated(s: Sample, differences: Float64, confidence: float) -> bool:
    """Say whether a mean difference as large as this one would be improbable for labels drawn from the predictions."""
    failure = (1 - confidence) / 2
    fewest = int(np.ceil(1 / failure - 1e-9)) - 1
    draws = max(fewest, min(199, _MOST_DRAWS // s.n))
    rng = np.random.default_rng(0)
    probs = s.data.probs
    rows = np.arange(s.n)
    null = []
    for size in resample_blocks(draws, s.n):
        drawn = s.data.drawn(size, rng)
        losses = -np.log(np.maximum(probs[rows, drawn].astype(np.float64), SMALLEST))
        null.append((losses - _base_rate_losses(drawn, s.k, left_out=True)).mean(axis=1))
    return rank_p_value(float(differences.mean()), np.concatenate(null)) <= failure + 1e-12


# -- segments and classes that are proven to be off -------------------------------------------------


@dataclass(frozen=True)
class SegmentOff:
    """A segment or class that is proven to be off by more than its tolerance.

    Attributes
    ----------
    name : str
    rows : int
        Rows of the segment; of a class, the rows whose probability of it lies in the worst window.
    off : int
        Those of the rows that are proven to be off by more than the tolerance: all, or those of some windows.
    at_least : float
        The proven gap: of the mean over all its rows, else of its worst window.
    direction : {"over", "under"}
        Whether the probabilities are too high or too low.
    """

    name: str
    rows: int
    off: int
    at_least: float
    direction: str

    @property
    def words(self) -> str:
        """The segment and its error, in words."""
        height = "high" if self.direction == "over" else "low"
        rows = f"{self.rows:,} rows"
        if self.off < self.rows:
            rows = f"{self.off:,} of {self.rows:,} rows"
        return f"{printable(self.name)} ({rows} too {height} by at least {points(self.at_least)})"


@dataclass(frozen=True)
class SegmentsOff:
    """The segments that are proven to be off by more than the tolerance, the worst first.

    Attributes
    ----------
    segments : tuple of SegmentOff
    of_segments, of_rows : int
        All segments, and all rows.
    tolerance : float
    """

    segments: tuple[SegmentOff, ...]
    of_segments: int
    of_rows: int
    tolerance: float

    def __bool__(self) -> bool:
        return bool(self.segments)

    @property
    def rows(self) -> int:
        """How many rows the segments that are off hold."""
        return sum(segment.rows for segment in self.segments)

    @property
    def share(self) -> float:
        """The share of all rows that the segments that are off hold."""
        return self.rows / self.of_rows

    @property
    def share_proven(self) -> float:
        """The share of all rows that are proven to be off by more than the tolerance."""
        return sum(segment.off for segment in self.segments) / self.of_rows

    @property
    def count(self) -> str:
        """How many segments are off, and how many rows they hold, in words."""
        return (
            f"{len(self.segments):,} of {self.of_segments:,} segments, "
            f"with {self.rows:,} of {self.of_rows:,} rows"
        )

    @property
    def words(self) -> str:
        """A sentence that names the worst segments."""
        if not self.segments:
            return (
                f"None of the {self.of_segments:,} segments is proven to be off by more than "
                f"{points(self.tolerance)}."
            )
        verb = "is" if len(self.segments) == 1 else "are"
        return (
            f"{self.count}, {verb} proven to be off by more than {points(self.tolerance)}: "
            f"{_named(self.segments)}."
        )


@dataclass(frozen=True)
class ClassesOff:
    """The classes whose probabilities are proven to be off by more than the class's tolerance, the worst first.

    Attributes
    ----------
    classes : tuple of SegmentOff
    of_classes, of_rows : int
        All classes, and all rows.
    rows : int
        How many rows have such a probability, in a window that is proven to be off.
    """

    classes: tuple[SegmentOff, ...]
    of_classes: int
    of_rows: int
    rows: int

    def __bool__(self) -> bool:
        return bool(self.classes)

    @property
    def share_proven(self) -> float:
        """The share of all rows that have a probability that is proven to be off."""
        return self.rows / self.of_rows

    @property
    def count(self) -> str:
        """How many classes are off, and in how many rows they are, in words."""
        return (
            f"{len(self.classes):,} of {self.of_classes:,} classes, "
            f"in {self.rows:,} of {self.of_rows:,} rows"
        )

    @property
    def words(self) -> str:
        """A sentence that names the worst classes."""
        if not self.classes:
            classes = f"None of the {self.of_classes:,} classes"
            return f"{classes} is proven to be off by more than its tolerance."
        verb = "is" if len(self.classes) == 1 else "are"
        return (
            f"{self.count}, {verb} proven to be off by more than the class's tolerance: "
            f"{_named(self.classes)}."
        )


def _named(parts: tuple[SegmentOff, ...]) -> str:
    """Return the worst segments or classes by name, and how many more there are."""
    named = ", ".join(part.words for part in parts[:_NAMED])
    rest = len(parts) - _NAMED
    return f"{named} and {rest:,} more" if rest > 0 else named


def segments_off(certificate: Certificate) -> SegmentsOff | None:
    """Return the segments of a certificate that are proven to be off; None if it has no segments."""
    if not certificate.subgroups:
        return None
    limit = certificate.limit
    judged = [_segment_off(subgroup, limit) for subgroup in certificate.subgroups]
    off = [segment for segment in judged if segment is not None]
    off.sort(key=_at_least, reverse=True)
    return SegmentsOff(tuple(off), len(certificate.subgroups), certificate.n, limit)


def _at_least(segment: SegmentOff) -> float:
    return segment.at_least


def _segment_off(event: EventCertificate, limit: float) -> SegmentOff | None:
    """Return how far a segment is proven to be off: as a whole, else in some windows; None if it is not."""
    if event.proven_gap > limit:
        return SegmentOff(event.name, event.n, event.n, event.proven_gap, event.proven)
    window = event.refutation
    if window is None or window.at_least <= limit:
        return None
    off = round(share_far(event, limit) * event.n)
    return SegmentOff(event.name, event.n, off, window.at_least, window.direction)


def classes_off(certificate: Certificate, probs: FloatArray) -> ClassesOff | None:
    """Return the classes of a certificate of these probabilities that are proven to be off; None with two classes.

    A row counts once, however many of its probabilities lie in a window that is proven to be off.
    """
    proofs = certificate.classes
    if proofs is None:
        return None
    limits = class_tolerance(proofs.frequency, certificate.tolerance)
    off = []
    in_windows = np.zeros(len(probs), dtype=bool)
    for k, window in proofs.refutations.items():
        if window.at_least <= limits[k]:
            continue
        part = SegmentOff(
            proofs.title(k), window.rows, window.rows, window.at_least, window.direction
        )
        off.append(part)
        low, high = window.claims
        in_windows |= (probs[:, k] >= low) & (probs[:, k] <= high)
    off.sort(key=_at_least, reverse=True)
    return ClassesOff(tuple(off), len(limits), certificate.n, int(in_windows.sum()))


def share_far(event: EventCertificate, limit: float) -> float:
    """Return the share of rows that lie in a window proven to be off by more than the limit."""
    windows = event.windows
    table = event.table
    far = windows.at_least > limit
    opened = np.zeros(len(table.count) + 1)
    np.add.at(opened, windows.first[far], 1)
    np.add.at(opened, windows.last[far], -1)
    covered = np.cumsum(opened[:-1]) > 0
    return float(table.count[covered].sum() / table.n)
