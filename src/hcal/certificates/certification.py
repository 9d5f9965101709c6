"""``hcal.certify``: turn predictions and labels into a certificate, or refuse and say why.

A certificate is put together from its events (:func:`assemble`): one failure probability is shared by all statements.
Without other rows, a method is fitted fold by fold and certified on the fold that was left out
(:func:`certify_out_of_fold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain
from hcal.certificates.event import (
    TOLERANCE,
    EventCertificate,
    Events,
    Refutation,
    certify_event,
    events_of_rows,
    main_event,
)
from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate
from hcal.certificates.survey import Survey, survey_rows
from hcal.certificates.windows import EventTable
from hcal.class_names import ClassName, check_classes, class_title, positive_number
from hcal.fit_record import FittedModel, fitted_kind, fitted_names, refuse_other_kind_of
from hcal.frames import AnyArray
from hcal.inputs import InputKind
from hcal.io.doors import RowInfo, source_of
from hcal.io.sources import SAMPLE_ROWS, SAMPLE_SCORES, RowSource, is_source, source_of_rows
from hcal.metrics.sample import Data, Sample
from hcal.metrics.scores import brier_rows
from hcal.numerics import Float64, FloatArray
from hcal.renamed import renamed
from hcal.rows import Rows
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.methods.base import Calibrator

#: A statement about groups needs at least so many of them: each counts as one observation in the worst case.
FEWEST_GROUPS = 20
Names = Sequence[ClassName] | None
#: What is proven of rows that no fit has seen, or of folds.
Certified = Certificate | OutOfFoldCertificate

#: First line of a certificate of bare probabilities: nothing is known about the rows they were fitted on.
_FRESH = "none of these rows was used to fit the predictor"
_REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the "
    "whole vector: each prediction is seen once, so no number of rows bounds them without "
    "assumptions (Gupta, Podkopaev and Ramdas, 2020)"
)
_NLL = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"


@renamed(level="confidence", n_folds="folds")
def certify(  # noqa: PLR0913 - a public door
    predictor: Calibrator | AnyArray,
    scores: AnyArray = None,
    y: AnyArray = None,
    *,
    confidence: float = 0.95,
    baseline: AnyArray = None,
    groups: AnyArray = None,
    by: AnyArray = None,
    classes: Iterable[ClassName] | None = None,
    assume: str | None = None,
    input: InputKind | None = None,
    tolerance: float = TOLERANCE,
    positive: int | str | None = None,
    out_of_fold: bool = False,
    folds: int = 5,
    random_state: int = 0,
) -> Certified:
    """Certify how far a predictor can be from the truth, from fresh independent rows.

    Call ``certify(probs, y)``, or ``certify(calibrator, scores, y)``, which refuses rows that the calibrator was
    fitted on. In place of arrays pass files, blocks of rows or Dask collections, as to :func:`hcal.evaluate`: beyond
    300,000 rows they are counted in fine bins, and what needs rows at once (``groups``) is proven from a random
    sample. The headline is the top label, or P(positive) with two classes; every class follows. To certify
    another event, pass it as a binary problem: ``certify(probs[:, [0, 3]].sum(axis=1), np.isin(y, [0, 3]))``.

    With probability at least ``confidence`` over the labels, all statements of the result hold simultaneously. This is
    true for every number of rows (it is not asymptotic), every model and every distribution; the only assumptions
    are that rows (or ``groups``) are independent and were not used in the fit. The bounds are Chernoff's inequality for
    windows of neighbouring predictions, Bennett's with Ville's for the cumulative curve, and a union bound over them.

    Parameters
    ----------
    predictor : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem; or Calibrator
        Probabilities; or a fitted calibrator; or, with ``out_of_fold``, a calibrator or the name of a method
        (which takes logits).
    scores : array-like
        The labels ``y`` of shape (N,) after probabilities; the calibrator's input after a calibrator.
    y : array-like of shape (N,)
        Labels after a calibrator: integers 0..K−1, or names among ``classes``.
    confidence : float
    baseline : array-like of shape (N, K), or "scores", optional
        Other predictions for the same rows: adds the certified gain in Brier score. After a calibrator ``"scores"``
        stands for what it calibrates (not with groups, and of a sample where rows are not in memory).
    groups : array-like of shape (N,), or the name of a column of files, optional
        Rows of one group depend on each other (a patient, a video), and groups are independent. At least 20 groups.
        The bounds are then wider: in the worst case all rows of a group have the same outcome.
    by : array-like of shape (N,), frame, dict of columns, or names of columns of files, optional
        The subgroup of each row. Every subgroup is certified, the worst first, for the same event as the headline.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; a calibrator brings its own.
    assume : {"monotone"}, optional
        Adds a bound on the headline's ECE that holds if the true rate never falls as the probability rises.
    input : {"probs", "logits", "log_probs"}, optional
        What the first argument and ``baseline`` hold, by default probabilities. A calibrator knows what its scores
        are, so ``input`` then is about the baseline. A method by name takes logits by default.
    tolerance : float
        The error that counts as close enough for a class with a frequency of one half; rarer classes get a
        smaller tolerance (:func:`hcal.certificates.event.class_tolerance`).
    positive : int or str, optional
        With two classes, the number or name of the class whose probability is certified; the second by default. If
        the names are integers, it is a name.
    out_of_fold : bool
        Use this if you have no rows beside those of the fit: the method is fitted ``folds`` times, each time
        without one fold, and the predictions for that fold are certified.
    folds : int
    random_state : int
        Seed of the folds, and of the order of the rows in the bound on the gain.

    Returns
    -------
    Certificate, or OutOfFoldCertificate

    Raises
    ------
    RowsOfTheFitError
        If 5 % or more of the rows were used to fit the calibrator.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0, 1, size=20000)
    >>> y = (rng.random(20000) < p).astype(int)
    >>> print(certify(p, y, classes=["well", "sick"]).sentences[2])
    P(sick): stated 50.3 % on average, observed 50.4 %; the true rate lies between 49.4 % and 51.4 %.
    """
    terms = Terms(inputs.check_confidence(confidence), tolerance, assume, random_state)
    info = RowInfo(None, groups, by, classes)
    if out_of_fold:
        if any(option is not None for option in (groups, by, baseline, assume)):
            raise ValueError(
                "out_of_fold=True cannot be combined with groups, by, baseline or assume"
            )
        rows = rows_to_fold(predictor, scores, y, info, input, positive)
        return certify_out_of_fold(rows, 1 - terms.confidence, folds, random_state)
    of_scores = isinstance(baseline, str)
    if of_scores and (baseline != "scores" or not hasattr(predictor, "rows_like")):
        raise ValueError(f'baseline is an array, or "scores" after a calibrator, got {baseline!r}')
    has_baseline = baseline is not None and not of_scores
    judged = _judged(predictor, scores, y, info, input, has_baseline=has_baseline)
    number = positive_number(positive, judged.source.names, judged.source.n_classes)
    other = None
    if has_baseline:
        in_memory = _in_memory(judged.source)
        other = Rows.of_baseline(baseline, in_memory, input or "probs").probs()
    return certify_source(
        judged.source, terms, number, calibrator=judged.calibrator, other=other, gain=of_scores
    )


@dataclass(frozen=True)
class _Judged:
    """What is certified: the rows, and the calibrator that predicts them (None if they are predictions)."""

    source: RowSource
    calibrator: FittedModel | None = None


def _judged(
    predictor: Calibrator | AnyArray,
    scores: AnyArray,
    y: AnyArray,
    info: RowInfo,
    input: InputKind | None,
    *,
    has_baseline: bool,
) -> _Judged:
    """Return what is certified, from the first three arguments of :func:`certify`."""
    if hasattr(predictor, "predict_proba"):
        if scores is None or (y is None and not is_source(scores)):
            raise ValueError(
                "after a calibrator come its scores and labels: certify(cal, scores, y)"
            )
        refuse_other_kind_of(predictor, None if has_baseline else input)
        source = source_of(scores, y, info, input="logits", calibrator=predictor)
        return _Judged(source, predictor)
    if y is not None:
        raise TypeError(
            "certify takes (probs, y) or (cal, scores, y); the first of three must be a calibrator"
        )
    if isinstance(predictor, Sample):
        return _Judged(source_of_rows(_rows_of_sample(predictor, info)))
    return _Judged(source_of(predictor, scores, info, input=input or "probs"))


def _rows_of_sample(sample: Sample, info: RowInfo) -> Rows:
    """Return the rows of a sample that was checked before; its labels are positions of classes."""
    rows = replace(info, classes=None, weight=sample.weight)
    checked = rows.rows(sample.data.probs, sample.y, "probs")
    if info.classes is None:
        return checked
    return replace(checked, names=check_classes(info.classes, sample.k))


def _in_memory(source: RowSource) -> Rows:
    if source.whole is None:
        raise ValueError("baseline needs all rows at once: pass arrays, or one file")
    if source.grouped:
        raise ValueError(
            "baseline needs independent rows: leave groups out of this call and keep one row of "
            "each group"
        )
    return source.whole


def certify_source(
    source: RowSource,
    terms: Terms,
    positive: int,
    *,
    calibrator: FittedModel | None = None,
    other: FloatArray | None = None,
    gain: bool = False,
) -> Certificate:
    """Return the certificate of the rows of a source.

    Parameters
    ----------
    source : RowSource
    terms : Terms
    positive : int
        The number of the positive class of two.
    calibrator : Calibrator, optional
        Which predicts the rows; without one they are predictions.
    other : array of shape (N, K), optional
        Other probabilities of all rows, over which the gain is certified.
    gain : bool
        Whether the gain over the calibrator's own input is certified.
    """
    terms.check()
    survey = survey_rows(
        source,
        calibrator,
        positive=positive,
        certified=True,
        most_rows=SAMPLE_ROWS,
        most_scores=SAMPLE_SCORES,
    )
    return certify_survey(survey, terms, positive, other=other, gain=gain)


def certify_survey(
    survey: Survey,
    terms: Terms,
    positive: int,
    *,
    other: FloatArray | None = None,
    gain: bool = False,
) -> Certificate:
    """Return the certificate of the rows of a survey."""
    rows = survey.rows
    if rows.weight is not None:
        raise ValueError(
            "a certificate treats rows as independent observations: it takes no sample_weight"
        )
    _check_groups(rows)
    final = survey.before if survey.after is None else survey.after
    improvement = None
    if gain and survey.after is not None and rows.groups is None:
        other = survey.before.probs
    if other is not None:
        improvement = Improvement(
            brier_rows(Sample(other, rows.labels)), brier_rows(Sample(final.probs, rows.labels))
        )
    if survey.counts is not None:
        events = survey.counts.events()
    else:
        events = events_of_rows(Data(final.probs, rows.labels), positive, rows.by, rows.groups)
        if survey.is_sample:
            terms = replace(terms, sampled=(len(rows), survey.n_rows))
    return assemble(events, terms, rows.names, survey.overlap, improvement)


def _check_groups(rows: Rows) -> None:
    """Refuse groups that are too few for any statement."""
    if rows.groups is None:
        return
    count = len(np.unique(rows.groups))
    if count < FEWEST_GROUPS:
        raise ValueError(
            f"groups has {count} groups, and a certificate needs at least {FEWEST_GROUPS} that are "
            "independent of each other: subgroups to certify one by one are by="
        )


# -- without other rows: a method, fold by fold -----------------------------------------------------


@dataclass(frozen=True)
class FoldRows:
    """What an out-of-fold certificate is made from: a method, and the rows to fit and to certify it on."""

    method: Calibrator
    rows: Rows
    positive: int


def rows_to_fold(
    predictor: Calibrator | str,
    scores: AnyArray,
    y: AnyArray,
    info: RowInfo,
    input: InputKind | None,
    positive: int | str | None,
) -> FoldRows:
    """Check the method and the rows of an out-of-fold certificate."""
    from hcal.methods.registry import make_calibrator

    method = predictor
    if isinstance(method, str):
        method = make_calibrator(method, input=input or "logits")
    if not hasattr(method, "predict_proba") or scores is None:
        raise ValueError(
            "out_of_fold=True takes a calibrator or a method: certify('iso', scores, y)"
        )
    kind = fitted_kind(method)
    refuse_other_kind_of(method, input)
    names = fitted_names(method) if info.classes is None else info.classes
    rows = source_of(scores, y, RowInfo(classes=names), input=kind).sample()
    if any(column is not None for column in (rows.groups, rows.by, rows.weight)):
        raise ValueError(
            "out_of_fold=True needs independent rows of weight 1, without groups, segments and "
            "weights"
        )
    if rows.kind != kind:
        raise ValueError(f"the rows hold {rows.kind}, but the method takes input={kind!r}")
    return FoldRows(method, rows, positive_number(positive, rows.names, rows.n_classes))


def certify_out_of_fold(
    setting: FoldRows, failure: float, n_folds: int, random_state: int
) -> OutOfFoldCertificate:
    """Certify each fold's predictions on their own, and average the bounds.

    Given the other folds, the predictor of a fold is fixed and the fold's labels are fresh, so its certificate
    holds. Certificates of different folds depend on each other: a union bound gives each of them failure/n_folds,
    and no window spans two folds. The folds are drawn at random, without regard to the labels.
    """
    rows = setting.rows
    n = len(rows)
    if not 2 <= n_folds <= n // 2:
        raise ValueError(f"folds must lie between 2 and half the rows ({n // 2}), got {n_folds}")
    fold = np.empty(n, dtype=np.int64)
    fold[np.random.default_rng(random_state).permutation(n)] = np.arange(n) % n_folds
    probs = np.empty((n, rows.n_classes))
    for j in range(n_folds):
        left_out = fold == j
        method = setting.method.clone().set_params(input=rows.kind)
        fitted = method.fit(rows[~left_out])
        probs[left_out] = fitted.probs_of(rows[left_out])

    name = event_name(rows.n_classes, setting.positive, rows.names)
    p, c = main_event(Data(probs, rows.labels), setting.positive)
    certificates = [
        certify_event(name, p[fold == j], c[fold == j], failure=failure / n_folds)
        for j in range(n_folds)
    ]
    pooled = certify_event(name, p, c, failure=failure)
    ends = [(*certificate.overall, certificate.bound) for certificate in certificates]
    sizes = [certificate.n for certificate in certificates]
    low, high, bound = np.average(ends, axis=0, weights=sizes)
    return OutOfFoldCertificate(
        confidence=1 - failure,
        n=n,
        k=rows.n_classes,
        overall=(float(low), float(high)),
        bound=float(bound),
        estimate=pooled.estimate,
        share_far=pooled.share_far,
        refuted=sum(certificate.exact_refuted for certificate in certificates),
        folds=tuple(certificates),
        pooled=pooled,
    )


# -- a certificate from its events ------------------------------------------------------------------


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
