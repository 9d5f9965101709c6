"""``hcal.certify``: turn predictions and labels into a certificate, or refuse and say why.

Rows come all at once, fold by fold, or in blocks. A :class:`CertificateStream` counts the rows of its blocks in fine
fixed bins of the probability (64 per power of two, towards 0 and towards 1), so it needs O(bins·K) memory for any
number of rows. The bin edges do not depend on the labels. Its certificate is therefore as valid as one from the
rows, and as tight up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain
from hcal.certificates.event import TOLERANCE, EventCertificate, Refutation, certify_event
from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate
from hcal.certificates.windows import BINS, EventTable, bin_of
from hcal.class_names import ClassName, check_classes, class_title, positive_number
from hcal.fit_record import fitted_kind, fitted_names, predict_with_segments, refuse_other_kind_of
from hcal.frames import refuse_other_index
from hcal.metrics.sample import Data, Sample, check_integer
from hcal.metrics.scores import brier_rows
from hcal.numerics import Float64, IntArray
from hcal.renamed import renamed
from hcal.row_segments import Segments
from hcal.rows import Rows
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.io.blocks import Batches
    from hcal.io.reading import Piece
    from hcal.methods.base import Calibrator
    from hcal.passes import Runner

Names = Sequence[ClassName] | None

#: First line of a certificate of bare probabilities: nothing is known about the rows they were fitted on.
_FRESH = "none of these rows was used to fit the predictor"
_REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the whole vector: "
    "each prediction is seen once, so no number of rows bounds them without assumptions (Gupta, Podkopaev "
    "and Ramdas, 2020)"
)
_NLL = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"
_GAIN = (
    "a gain over a baseline: its bound needs the rows one after the other, and these came in blocks"
)
#: A statement about groups needs at least so many of them: each counts as one observation in the worst case.
FEWEST_GROUPS = 20


@renamed(level="confidence", n_folds="folds")
def certify(
    predictor: Any,
    scores: Any = None,
    y: Any = None,
    *,
    confidence: float = 0.95,
    baseline: Any = None,
    groups: Any = None,
    by: Any = None,
    classes: Any = None,
    assume: str | None = None,
    input: inputs.InputKind | None = None,
    tolerance: float = TOLERANCE,
    positive: int | str | None = None,
    out_of_fold: bool = False,
    folds: int = 5,
    random_state: int = 0,
) -> Any:
    """Certify how far a predictor can be from the truth, from fresh independent rows.

    Call ``certify(probs, y)``, or ``certify(calibrator, scores, y)``, which refuses rows that the calibrator was
    fitted on. The headline is the top label, or P(positive) with two classes; every class follows. To certify
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
    baseline : array-like of shape (N, K), optional
        Other predictions for the same rows: adds the certified gain in Brier score.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a video), and groups are independent. At least 20 groups.
        The bounds are then wider: in the worst case all rows of a group have the same outcome.
    by : array-like of shape (N,), optional
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
    confidence = inputs.check_confidence(confidence)
    if out_of_fold:
        if any(option is not None for option in (groups, by, baseline, assume)):
            raise ValueError(
                "out_of_fold=True cannot be combined with groups, by, baseline or assume"
            )
        setting = _rows_to_fold(predictor, scores, y, input, classes, positive)
        return _out_of_fold(setting, 1 - confidence, folds, random_state)

    overlap = None
    kind = input or "probs"
    if hasattr(predictor, "predict_proba"):
        if y is None:
            raise ValueError(
                "after a calibrator come its scores and labels: certify(cal, scores, y)"
            )
        if baseline is None:
            refuse_other_kind_of(predictor, input)
        overlap = leakage.fit_overlap(predictor, scores)
        classes = fitted_names(predictor) if classes is None else classes
        rows = Rows.of_predictions(
            predict_with_segments(predictor, scores, by), y, input="probs", classes=classes
        )
        sample = Sample(rows.probs(), rows.y)
    elif y is not None:
        raise TypeError(
            "certify takes (probs, y) or (cal, scores, y); the first of three must be a calibrator"
        )
    elif isinstance(predictor, Sample):
        sample = _unweighted(predictor)
        rows = Rows.of(sample.data.probs, sample.y, input="probs")
        if classes is not None:  # the labels of a sample are positions already
            rows = replace(rows, names=check_classes(classes, sample.k))
    else:
        rows = Rows.of_predictions(predictor, _labels(scores), input=kind, classes=classes)
        sample = Sample(rows.probs(), rows.y)
    names = rows.names
    refuse_other_index(scores if y is not None else predictor, {"groups": groups, "by": by})
    members = _check_groups(groups, sample.n)

    gain = None
    if baseline is not None:
        if members is not None:
            raise ValueError(
                "baseline needs independent rows: leave groups out of this call and keep one row of each group"
            )
        other = Sample(Rows.of_baseline(baseline, rows, kind).probs(), sample.y)
        gain = partial(
            certify_gain, brier_rows(other), brier_rows(sample), random_state=random_state
        )

    number = positive_number(positive, names, sample.k)
    events = _Events.of_rows(sample.data, number, by, members).map(EventTable.of_rows)
    terms = _Terms(confidence, tolerance, assume, names, overlap)
    return _certificate(events, terms, gain)


def _labels(y: Any) -> Any:
    if y is None:
        raise ValueError("y is missing: pass one label a row")
    return y


def _unweighted(sample: Sample) -> Sample:
    if sample.weight is not None:
        raise ValueError(
            "a certificate treats rows as independent observations: it takes no sample_weight"
        )
    return sample


def _check_groups(groups: Any, n: int) -> IntArray | None:
    """Return the number of each row's group, or refuse groups that are too few for any statement."""
    members = inputs.check_groups(groups, n)
    if members is not None and (count := int(members.max()) + 1) < FEWEST_GROUPS:
        raise ValueError(
            f"groups has {count} groups, and a certificate needs at least {FEWEST_GROUPS} that are "
            "independent of each other: subgroups to certify one by one are by="
        )
    return members


# -- out of fold ------------------------------------------------------------------------------------


class _FoldRows(NamedTuple):
    """What an out-of-fold certificate is made from: a method, and the rows to fit and to certify it on."""

    method: Any
    rows: Rows
    positive: int


def _rows_to_fold(
    predictor: Any,
    scores: Any,
    y: Any,
    input: inputs.InputKind | None,
    classes: Any,
    positive: int | str | None,
) -> _FoldRows:
    """Check the method and the rows of an out-of-fold certificate."""
    from hcal.methods.registry import make_calibrator

    method = predictor
    if isinstance(predictor, str):
        method = make_calibrator(predictor, input=input or "logits")
    if not hasattr(method, "predict_proba") or y is None:
        raise ValueError(
            "out_of_fold=True takes a calibrator or a method: certify('iso', scores, y)"
        )
    kind = fitted_kind(method)
    refuse_other_kind_of(method, input)
    classes = fitted_names(method) if classes is None else classes
    rows = Rows.of(scores, y, input=kind, classes=classes)
    return _FoldRows(method, rows, positive_number(positive, rows.names, rows.n_classes))


def _out_of_fold(
    setting: _FoldRows, failure: float, n_folds: int, random_state: int
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
        fitted = method.fit(rows.scores[~left_out], rows.labels[~left_out])
        probs[left_out] = fitted.predict_proba(rows.scores[left_out])

    name = _event_name(rows.n_classes, setting.positive, rows.names)
    p, c = _main_event(Data(probs, rows.labels), setting.positive)
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


# -- one certificate of all events ------------------------------------------------------------------


class _Events(NamedTuple):
    """The data of each event (claims and marks, counts, or a table): the headline, every class and every subgroup."""

    k: int
    positive: int
    main: Any
    classes: Iterable[Any]  # may be made one by one, to save memory
    subgroups: dict[str, Any]

    @classmethod
    def of_rows(
        cls, data: Data, positive: int, by: Any, members: IntArray | None = None
    ) -> _Events:
        """Return claims, marks and the groups of dependent rows (or None) of every event."""
        p, c = _main_event(data, positive)
        classes = ((data.column(k), data.y == k, members) for k in range(data.k))
        subgroups = {
            name: (p[rows], c[rows], None if members is None else members[rows])
            for name, rows in _subgroups(by, data.n)
        }
        return cls(data.k, positive, (p, c, members), classes, subgroups)

    def map(self, function: Callable[..., Any]) -> _Events:
        """Apply a function to the data of each event."""
        subgroups = {name: function(*event) for name, event in self.subgroups.items()}
        classes = (function(*event) for event in self.classes)
        return self._replace(main=function(*self.main), classes=classes, subgroups=subgroups)


@dataclass(frozen=True)
class _Terms:
    """What a certificate is asked for."""

    confidence: float
    tolerance: float
    assume: str | None
    names: Names
    overlap: leakage.Overlap | None
    refused: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse terms that no certificate can have."""
        inputs.check_confidence(self.confidence)
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1, got {self.tolerance!r}")
        if self.assume not in (None, "monotone"):
            raise ValueError(f"assume must be 'monotone' or None, got {self.assume!r}")


def _certificate(
    events: _Events, terms: _Terms, gain: Callable[..., Gain] | None = None
) -> Certificate:
    """Certify the headline, the classes, the subgroups and the gain, or refuse rows of the fit.

    All statements hold together by a union bound: the headline always gets half of the failure probability, so
    its numbers do not depend on what else is asked for; classes, subgroups and gain share the other half equally.
    """
    terms.check()
    failure = 1 - terms.confidence
    k = events.k
    name = _event_name(k, events.positive, terms.names)
    headline = EventCertificate(name, events.main, failure / 2)
    basis = _first_line(terms.overlap, headline.table.n_groups)  # refuses rows of the fit
    parts = (k > 2) + bool(events.subgroups) + (gain is not None)
    share = failure / 2 / max(parts, 1)
    return Certificate(
        confidence=float(terms.confidence),
        n=headline.n,
        k=k,
        headline=headline,
        classes=_certify_classes(events, share, terms.names) if k > 2 else None,
        gain=None if gain is None else gain(failure=share),
        subgroups=_certify_subgroups(events.subgroups, share),
        tolerance=terms.tolerance,
        basis=basis,
        refused=(_REFUSED, *terms.refused, *([] if gain is None else [_NLL])),
        assume=terms.assume,
        n_groups=headline.table.n_groups,
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


def _event_name(k: int, positive: int, names: Names) -> str:
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
            f"no certificate: a{overlap.sentence[1:-1]}, and on its own rows a calibrator looks better than it "
            "is. Use other rows, or out_of_fold=True (--out-of-fold METHOD)"
        )
    fresh = overlap.sentence or "None of these rows was used to fit the calibrator."
    return f"{fresh} Assumed: {independent}."


def _certify_classes(events: _Events, failure: float, names: Names) -> ClassCertificates:
    """Certify every class with failure/K each (union bound), so that all hold together but for ``failure``."""
    values_by_class: list[tuple[float, ...]] = []
    refutations: dict[int, Refutation] = {}
    for k, table in enumerate(events.classes):
        event = EventCertificate("", table, failure / events.k)
        values_by_class.append(
            (
                event.observed,
                event.stated,
                *event.overall,
                event.bound,
                event.at_least,
                event.exact_refuted,
            )
        )
        if event.refutation is not None:
            refutations[k] = event.refutation
    observed, stated, low, high, bound, at_least, exact_refuted = np.array(values_by_class).T
    return ClassCertificates(
        observed, stated, low, high, bound, at_least, exact_refuted, refutations, names
    )


def _subgroups(by: Any, n: int) -> list[tuple[str, IntArray]]:
    """Return the name of every subgroup, and the numbers of its rows.

    >>> [(name, rows.tolist()) for name, rows in _subgroups(["b", "a", "b"], 3)]
    [('a', [1]), ('b', [0, 2])]
    """
    if by is None:
        return []
    segments = Segments.of(by, n)
    order = np.argsort(segments.codes, kind="stable").astype(np.int64)
    sizes = np.bincount(segments.codes, minlength=len(segments.names))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return list(zip(segments.names, parts, strict=True))


def _main_event(data: Data, positive: int) -> tuple[Float64, Any]:
    """Return claims and marks of the headline's event: P(positive) with two classes, else the top label."""
    if data.k == 2:
        return data.column(positive), data.y == positive
    return data.conf, data.hit


def _cells(p: Any, c: Any, _: None = None) -> Float64:
    """Return the number of rows, the sum of claims and the sum of marks in every fine bin, shape (3, BINS)."""
    which = bin_of(p)
    sums = [
        np.bincount(which, weights=values, minlength=BINS) for values in (np.ones(len(p)), p, c)
    ]
    return np.stack(sums)


# -- blocks of rows ---------------------------------------------------------------------------------


class CertificateStream:
    """Accumulate the counts that a certificate needs, block by block; accumulators of several machines merge.

    Rows must be independent of each other: counts do not tell which rows belong to one group.

    Parameters
    ----------
    n_classes : int
    positive : int
        With two classes, the class whose probability is certified.
    fitted_on : dict of arrays, optional
        Fingerprint of the rows that the predictor was fitted on. Pass the logits of every block to
        :meth:`update` too, and :meth:`result` refuses rows of the fit.

    Examples
    --------
    >>> a, b = CertificateStream(2), CertificateStream(2)
    >>> _ = a.update([[0.2, 0.8]] * 50, [1] * 40 + [0] * 10)
    >>> _ = b.update([[0.6, 0.4]] * 50, [0] * 30 + [1] * 20)
    >>> a.merge(b).result().refuted
    False
    """

    def __init__(
        self, n_classes: int, *, positive: int = 1, fitted_on: leakage.Fingerprint | None = None
    ) -> None:
        self.n_classes = check_integer("n_classes", n_classes, 2)
        self.positive = int(positive)
        self.n = 0
        self.fitted_on = fitted_on
        # Of each event (3, BINS): rows, the sum of their claims, and how often the event happened.
        main, *classes = np.zeros((self.n_classes + 1, 3, BINS))
        self._counts = _Events(self.n_classes, self.positive, main, classes, {})
        self._rows: leakage.Fingerprint | None = None

    @renamed(groups="by")
    def update(self, probs: Any, y: Any, by: Any = None, *, logits: Any = None) -> Self:
        """Add a block of rows.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        by : array-like of shape (N,), optional
            The subgroup of each row.
        logits : array of shape (N, K), optional
            The predictor's input, to be compared with ``fitted_on``.
        """
        data = Data(probs, y)
        if data.k != self.n_classes:
            raise ValueError(
                f"probs has {data.k} classes, this certificate was made for {self.n_classes}"
            )
        self._add(_Events.of_rows(data, self.positive, by).map(_cells))
        if logits is not None and self.fitted_on is not None:
            self._rows = leakage.merge_fingerprints(self._rows, leakage.fingerprint(logits))
        self.n += data.n
        return self

    def _add(self, events: _Events) -> None:
        self._counts.main[:] += events.main
        for total, cells in zip(self._counts.classes, events.classes, strict=True):
            total += cells
        subgroups = self._counts.subgroups
        for name, cells in events.subgroups.items():
            subgroups[name] = subgroups.get(name, 0) + cells

    def merge(self, other: CertificateStream) -> Self:
        """Add the counts of another accumulator; the order of merging does not matter."""
        if (self.n_classes, self.positive) != (other.n_classes, other.positive):
            raise ValueError("only accumulators of the same classes can be merged")
        self._add(other._counts)
        self._rows = leakage.merge_fingerprints(self._rows, other._rows)
        self.n += other.n
        return self

    @renamed(level="confidence")
    def result(
        self,
        confidence: float = 0.95,
        tolerance: float = TOLERANCE,
        classes: Any = None,
        assume: str | None = None,
    ) -> Certificate:
        """Return the certificate of all rows added so far.

        Parameters
        ----------
        confidence, tolerance : float
        classes : sequence of K str or int, optional
            Names of the classes for sentences and tables.
        assume : {"monotone"}, optional
        """
        if self.n == 0:
            raise ValueError("nothing to certify: no part was added yet")
        overlap = None
        if self.fitted_on and self._rows:
            overlap = leakage.overlap(self.fitted_on, self._rows)
        names = None if classes is None else check_classes(classes, self.n_classes)
        terms = _Terms(confidence, tolerance, assume, names, overlap, refused=(_GAIN,))
        return _certificate(self._counts.map(EventTable.of_bins), terms)


@renamed(level="confidence")
def certify_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    *,
    confidence: float = 0.95,
    assume: str | None = None,
    positive: int = 1,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
) -> Certificate:
    """Certify the probabilities in files, or a calibrator's output for them, in one pass over the rows.

    Parameters
    ----------
    source : Batches
        Files with labels.
    calibrator : Calibrator, optional
        Rows that it was fitted on are refused.
    confidence, assume, positive
        As for :func:`hcal.certify`.
    runner, advance
        Where the pieces are computed (this process by default), and a callback for the number of rows done.

    Examples
    --------
    >>> import tempfile, hcal
    >>> path = f"{tempfile.mkdtemp()}/a.npz"
    >>> np.savez(path, probs=[[0.2, 0.8]] * 100, y=[1] * 80 + [0] * 20)
    >>> certify_batches(hcal.io.batches(path, rows=30)).refuted
    False
    """
    from hcal.passes import add_up

    source.check_labels()
    if source.first.groups is not None:
        raise ValueError(
            "groups= needs all rows at once: counts of blocks do not tell which rows depend on each other"
        )
    record = getattr(calibrator, "fit_", None)
    fitted_on = None if record is None else record.fingerprint
    empty = partial(CertificateStream, source.n_classes, positive=positive, fitted_on=fitted_on)
    certify_piece = partial(_certify_piece, empty, calibrator)
    stream = add_up(certify_piece, source.pieces(), empty, runner=runner, advance=advance)
    return stream.result(confidence, classes=source.classes, assume=assume)


def _certify_piece(
    empty: Callable[[], CertificateStream], calibrator: Calibrator | None, piece: Piece
) -> CertificateStream:
    from hcal.io.blocks import read_piece
    from hcal.rows import rows_from

    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            if calibrator is None:
                part.update(batch.probs(), batch.y, batch.by)
                continue
            rows = calibrator.rows_like(batch)
            part.update(calibrator.probs_of(rows), batch.y, batch.by, logits=rows.logits())
    return part
