"""``hcal.certify``: turn predictions and labels into a certificate, or refuse and say why.

Rows come all at once, fold by fold, or in blocks. A :class:`CertificateStream` counts the rows of its blocks in fine
fixed bins of the probability (64 per power of two, towards 0 and towards 1), so it needs O(bins·K) memory for any
number of rows. The bin edges do not depend on the labels. Its certificate is therefore as valid as one from the
rows, and as tight up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain, check_level
from hcal.certificates.event import TOLERANCE, EventCertificate, Refutation, certify_event
from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate
from hcal.certificates.windows import BINS, EventTable, bin_of
from hcal.class_names import ClassName, check_classes, class_title, encode
from hcal.fit_record import fitted_names
from hcal.metrics.sample import Data, Sample, as_sample, check_integer
from hcal.metrics.scores import brier_rows
from hcal.numerics import Float64
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.io.blocks import Batches
    from hcal.io.reading import Piece
    from hcal.methods.base import Calibrator
    from hcal.passes import Runner

Names = Sequence[ClassName] | None

#: First line of a certificate of bare probabilities: nothing is known about the rows they were fitted on.
_ASSUMED = "Assumed: none of these rows was used to fit the predictor, and rows are independent of each other."
_REFUSED = (
    "the ECE of a continuous predictor, the error at a single prediction and the error of the whole vector: "
    "each prediction is seen once, so no number of rows bounds them without assumptions (Gupta, Podkopaev "
    "and Ramdas, 2020)"
)
_NLL = "a gain in NLL: it has no upper limit, so one unseen row could outweigh all others"
_GAIN = (
    "a gain over a baseline: its bound needs the rows one after the other, and these came in blocks"
)


def certify(
    predictor: Any,
    scores: Any = None,
    y: Any = None,
    *,
    level: float = 0.95,
    baseline: Any = None,
    groups: Any = None,
    classes: Any = None,
    assume: str | None = None,
    input: inputs.InputKind = "probs",
    tolerance: float = TOLERANCE,
    positive: int | str = 1,
    out_of_fold: bool = False,
    n_folds: int = 5,
    random_state: int = 0,
) -> Any:
    """Certify how far a predictor can be from the truth, from fresh independent rows.

    Call ``certify(probs, y)``, or ``certify(calibrator, scores, y)``, which refuses rows that the calibrator was
    fitted on. The headline is the top label, or P(positive) with two classes; every class follows. To certify
    another event, pass it as a binary problem: ``certify(probs[:, [0, 3]].sum(axis=1), np.isin(y, [0, 3]))``.

    With probability at least ``level`` over the labels, all statements of the result hold simultaneously. This is
    true for every number of rows (it is not asymptotic), every model and every distribution; the only assumptions
    are that rows are independent and were not used in the fit. The bounds are Chernoff's inequality for windows of
    neighbouring predictions, Bennett's with Ville's for the cumulative curve, and a union bound over them.

    Parameters
    ----------
    predictor : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem; or Calibrator
        Probabilities; or a fitted calibrator; or, with ``out_of_fold``, a calibrator or the name of a method
        (which takes logits).
    scores : array-like
        The labels ``y`` of shape (N,) after probabilities; the calibrator's input after a calibrator.
    y : array-like of shape (N,)
        Labels after a calibrator: integers 0..K−1, or names among ``classes``.
    level : float
    baseline : array-like of shape (N, K), optional
        Other predictions for the same rows: adds the certified gain in Brier score.
    groups : array-like of shape (N,), optional
        The group of each row. Every group is certified, the worst first, for the same event as the headline.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; a calibrator brings its own.
    assume : {"monotone"}, optional
        Adds a bound on the headline's ECE that holds if the true rate never falls as the probability rises.
    input : {"probs", "logits", "log_probs"}
        What probabilities and ``baseline`` hold.
    tolerance : float
        The error that counts as close enough for a class with a frequency of one half; rarer classes get a
        smaller tolerance (:func:`hcal.certificates.event.class_tolerance`).
    positive : int or str
        With two classes, the number or name of the class whose probability is certified.
    out_of_fold : bool
        Use this if you have no rows beside those of the fit: the method is fitted ``n_folds`` times, each time
        without one fold, and the predictions for that fold are certified.
    n_folds : int
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
    if out_of_fold:
        if any(extra is not None for extra in (groups, baseline, assume)):
            raise ValueError("out_of_fold=True cannot be combined with groups, baseline or assume")
        return _out_of_fold(
            predictor, scores, y, check_level(level), n_folds, random_state, classes, positive
        )
    found = None
    if hasattr(predictor, "predict_proba"):
        if y is None:
            raise ValueError(
                "after a calibrator come its scores and labels: certify(cal, scores, y)"
            )
        found = leakage.fit_overlap(predictor, scores)
        classes = fitted_names(predictor) if classes is None else classes
        probs, input = predictor.predict_proba(scores), "probs"
    elif y is not None:
        raise TypeError(
            "certify takes (probs, y) or (cal, scores, y); the first of three must be a calibrator"
        )
    else:
        probs, y = predictor, scores
    names = None if classes is None else check_classes(classes, len(classes))
    sample = _sample(probs, y, names, input)
    names = None if names is None else check_classes(names, sample.k)

    def gain(failure: float) -> Gain:
        other = _sample(baseline, sample.y, None, input)
        if other.k != sample.k:
            raise ValueError(f"baseline has {other.k} classes, probs has {sample.k}")
        return certify_gain(brier_rows(other), brier_rows(sample), failure, random_state)

    events = _Events.of_rows(sample.data, _positive(positive, sample.k, names), groups).map(
        EventTable.of_rows
    )
    return _certificate(
        events, names, found, level, tolerance, assume, None if baseline is None else gain
    )


def _sample(probs: Any, y: Any, names: Names, input: inputs.InputKind) -> Sample:
    if not isinstance(probs, Sample):
        return as_sample(
            inputs.to_probs(probs, input), None if y is None else encode(y, names), None
        )
    if probs.weight is not None:
        raise ValueError(
            "a certificate treats rows as independent observations: it takes no sample_weight"
        )
    return probs


def _positive(positive: int | str, k: int, names: Names) -> int:
    number = names.index(positive) if names is not None and positive in names else positive
    if isinstance(number, str) or (k == 2 and number not in (0, 1)):
        raise ValueError(f"positive must be class 0 or 1, or one of their names, got {positive!r}")
    return int(number)


def _out_of_fold(
    method: Any,
    scores: Any,
    y: Any,
    failure: float,
    n_folds: int,
    seed: int,
    classes: Any,
    positive: Any,
) -> OutOfFoldCertificate:
    """Certify each fold's predictions on their own, and average the bounds.

    Given the other folds, the predictor of a fold is fixed and the fold's labels are fresh, so its certificate
    holds. Certificates of different folds depend on each other: a union bound gives each of them failure/n_folds,
    and no window spans two folds. The folds are drawn at random, without regard to the labels.
    """
    from hcal.methods.registry import make_calibrator

    method = make_calibrator(method) if isinstance(method, str) else method
    if not hasattr(method, "predict_proba") or y is None:
        raise ValueError(
            "out_of_fold=True takes a calibrator or a method: certify('iso', scores, y)"
        )
    x = inputs.check_logits(scores, input=method.input)[0]
    n, k = x.shape
    names = classes or fitted_names(method)
    names = None if names is None else check_classes(names, k)
    labels = inputs.check_labels(encode(y, names), n, k)
    if not 2 <= n_folds <= n // 2:
        raise ValueError(f"n_folds must lie between 2 and half the rows ({n // 2}), got {n_folds}")
    given, number = inputs.to_numpy(scores, "scores")[0], _positive(positive, k, names)
    fold = np.empty(n, dtype=np.int64)
    fold[np.random.default_rng(seed).permutation(n)] = np.arange(n) % n_folds
    probs, name, sides = (
        np.empty(x.shape),
        _event_name(k, number, names),
        [fold == j for j in range(n_folds)],
    )
    for held in sides:
        probs[held] = method.clone().fit(given[~held], labels[~held]).predict_proba(given[held])
    p, c = _main_event(Data(probs, labels), number)
    folds = [certify_event(name, p[held], c[held], failure=failure / n_folds) for held in sides]
    pooled = certify_event(name, p, c, failure=failure)
    *overall, bound = np.average(
        [(*f.overall, f.bound) for f in folds], axis=0, weights=[f.n for f in folds]
    )
    return OutOfFoldCertificate(
        1 - failure, n, k, (float(overall[0]), float(overall[1])), float(bound), pooled.estimate,
        pooled.share_far, sum(f.exact_refuted for f in folds), tuple(folds), pooled,
    )  # fmt: skip


# -- one certificate of all events ------------------------------------------------------------------


class _Events(NamedTuple):
    """The data of each event (claims and marks, counts, or a table): the headline, every class and every group."""

    k: int
    positive: int
    main: Any
    classes: Iterable[Any]  # may be made one by one, to save memory
    groups: dict[str, Any]

    @classmethod
    def of_rows(cls, data: Data, positive: int, groups: Any) -> _Events:
        """Return the claims and marks of every event."""
        p, c = _main_event(data, positive)
        classes = ((data.column(k), data.y == k) for k in range(data.k))
        return cls(
            data.k,
            positive,
            (p, c),
            classes,
            {g: (p[i], c[i]) for g, i in _each_group(groups, data.n)},
        )

    def map(self, function: Callable[..., Any]) -> _Events:
        """Apply a function to the data of each event."""
        groups = {name: function(*group) for name, group in self.groups.items()}
        classes = (function(*held) for held in self.classes)
        return self._replace(main=function(*self.main), classes=classes, groups=groups)


def _certificate(
    events: _Events, names: Names, overlap: leakage.Overlap | None, level: float, tolerance: float,
    assume: str | None, gain: Callable[[float], Gain] | None = None, refused: tuple[str, ...] = (),
) -> Certificate:  # fmt: skip
    """Certify the headline, the classes, the groups and the gain, or refuse rows of the fit.

    All statements hold together by a union bound: the headline always gets half of the failure probability, so
    its numbers do not depend on what else is asked for; classes, groups and gain share the other half equally.
    """
    failure, k = check_level(level), events.k
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    if assume not in (None, "monotone"):
        raise ValueError(f"assume must be 'monotone' or None, got {assume!r}")
    basis = _first_line(overlap)  # refuses rows of the fit
    share = failure / 2 / max((k > 2) + bool(events.groups) + (gain is not None), 1)
    groups = [
        EventCertificate(name, table, share / len(events.groups))
        for name, table in events.groups.items()
    ]
    # Worst first: by the proven gap of the mean, then of a window, then by the gap that is still possible.
    groups.sort(key=lambda g: (g.proven_gap, g.at_least, max(map(abs, g.overall))), reverse=True)
    headline = EventCertificate(_event_name(k, events.positive, names), events.main, failure / 2)
    return Certificate(
        float(level), headline.n, k, headline, _certify_classes(events, share, names) if k > 2 else None,
        None if gain is None else gain(share), tuple(groups), tolerance, basis,
        (_REFUSED, *refused, *([_NLL] if gain is not None else [])), assume,
    )  # fmt: skip


def _event_name(k: int, positive: int, names: Names) -> str:
    """Return the name of the headline's event: P(positive) with two classes, else the top label."""
    if k > 2:
        return "top label"
    return f"P({printable(class_title(positive, None) if names is None else names[positive])})"


def _first_line(overlap: leakage.Overlap | None) -> str:
    """Return the first sentence: which rows were used to fit, as far as known, and what is assumed."""
    if overlap is None:
        return _ASSUMED
    if overlap.refused:
        raise leakage.RowsOfTheFitError(
            f"no certificate: a{overlap.sentence[1:-1]}, and on its own rows a calibrator looks better than it "
            "is. Use other rows, or out_of_fold=True (--out-of-fold METHOD)"
        )
    told = overlap.sentence or "None of these rows was used to fit the calibrator."
    return f"{told} Assumed: rows are independent of each other."


def _certify_classes(events: _Events, failure: float, names: Names) -> ClassCertificates:
    """Certify every class with failure/K each (union bound), so that all hold together but for ``failure``."""
    rows: list[tuple[float, ...]] = []
    refutations: dict[int, Refutation] = {}
    for k, table in enumerate(events.classes):
        e = EventCertificate("", table, failure / events.k)
        rows.append((e.observed, e.stated, *e.overall, e.bound, e.at_least, e.exact_refuted))
        if e.refutation is not None:
            refutations[k] = e.refutation
    rate, stated, low, high, bound, least, exact = np.array(rows, dtype=np.float64).T
    return ClassCertificates(rate, stated, low, high, bound, least, exact, refutations, names)


def _each_group(groups: Any, n: int) -> list[tuple[str, Any]]:
    """Return the name of every group, and a mask (N,) of its rows; groups may be text or numbers.

    >>> [(name, rows.tolist()) for name, rows in _each_group(["b", "a", "b"], 3)]
    [('a', [False, True, False]), ('b', [True, False, True])]
    """
    if groups is None:
        return []
    values, _ = inputs.to_numpy(groups, "groups")
    if values.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one group a row; got {values.shape}")
    missing = np.array([v is None or v != v for v in values.tolist()])
    if missing.any():
        raise ValueError(f"groups has a missing value at row {int(missing.argmax())}")
    names, which = np.unique(values.astype(str), return_inverse=True)
    return [(str(name), which == g) for g, name in enumerate(names)]


def _main_event(data: Data, positive: int) -> tuple[Float64, Any]:
    """Return claims and marks of the headline's event: P(positive) with two classes, else the top label."""
    return (data.column(positive), data.y == positive) if data.k == 2 else (data.conf, data.hit)


def _cells(p: Any, c: Any) -> Float64:
    """Return the number of rows, the sum of claims and the sum of marks in every fine bin, shape (3, BINS)."""
    which = bin_of(p)
    return np.stack(
        [np.bincount(which, weights=w, minlength=BINS) for w in (np.ones(len(p)), p, c)]
    )


# -- blocks of rows ---------------------------------------------------------------------------------


class CertificateStream:
    """Accumulate the counts that a certificate needs, block by block; accumulators of several machines merge.

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
        self.n_classes, self.positive = check_integer("n_classes", n_classes, 2), int(positive)
        self.n, self.fitted_on = 0, fitted_on
        # Of each event (3, BINS): rows, the sum of their claims, and how often the event happened.
        main, *classes = np.zeros((self.n_classes + 1, 3, BINS))
        self._seen = _Events(self.n_classes, self.positive, main, classes, {})
        self._rows: leakage.Fingerprint | None = None

    def update(self, probs: Any, y: Any, groups: Any = None, *, logits: Any = None) -> Self:
        """Add a block of rows.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        groups : array-like of shape (N,), optional
        logits : array of shape (N, K), optional
            The predictor's input, to be compared with ``fitted_on``.
        """
        data = Data(probs, y)
        if data.k != self.n_classes:
            raise ValueError(
                f"probs has {data.k} classes, this certificate was made for {self.n_classes}"
            )
        self._add(_Events.of_rows(data, self.positive, groups).map(_cells))
        if logits is not None and self.fitted_on is not None:
            self._rows = leakage.merge_fingerprints(self._rows, leakage.fingerprint(logits))
        self.n += data.n
        return self

    def _add(self, more: _Events) -> None:
        self._seen.main[:] += more.main
        for seen, cells in zip(self._seen.classes, more.classes, strict=True):
            seen += cells
        for name, cells in more.groups.items():
            self._seen.groups[name] = self._seen.groups.get(name, 0) + cells

    def merge(self, other: CertificateStream) -> Self:
        """Add the counts of another accumulator; the order of merging does not matter."""
        if self._seen[:2] != other._seen[:2]:
            raise ValueError("only accumulators of the same classes can be merged")
        self._add(other._seen)
        self._rows = leakage.merge_fingerprints(self._rows, other._rows)
        self.n += other.n
        return self

    def result(
        self,
        level: float = 0.95,
        tolerance: float = TOLERANCE,
        classes: Any = None,
        assume: str | None = None,
    ) -> Certificate:
        """Return the certificate of all rows added so far.

        Parameters
        ----------
        level, tolerance : float
        classes : sequence of K str or int, optional
            Names of the classes for sentences and tables.
        assume : {"monotone"}, optional
        """
        if self.n == 0:
            raise ValueError("nothing to certify: no part was added yet")
        found = (
            leakage.overlap(self.fitted_on, self._rows) if self.fitted_on and self._rows else None
        )
        names = None if classes is None else check_classes(classes, self.n_classes)
        events = self._seen.map(EventTable.of_bins)
        return _certificate(events, names, found, level, tolerance, assume, refused=(_GAIN,))


def certify_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    *,
    level: float = 0.95,
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
    level, assume, positive
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
    record = getattr(calibrator, "fit_", None)
    fitted_on = None if record is None else record.fingerprint
    empty = partial(CertificateStream, source.n_classes, positive=positive, fitted_on=fitted_on)
    function = partial(_certify_piece, empty, calibrator)
    whole = add_up(function, source.pieces(), empty, runner=runner, advance=advance)
    return whole.result(level, classes=source.classes, assume=assume)


def _certify_piece(
    empty: Callable[[], CertificateStream], calibrator: Calibrator | None, piece: Piece
) -> CertificateStream:
    from hcal.io.blocks import read_piece, rows_from

    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            if calibrator is None:
                part.update(inputs.to_probs(batch.scores, batch.kind), batch.y, batch.groups)
                continue
            x = calibrator.rows_like(batch.scores, whole=False).logits()
            part.update(calibrator.predict_proba(batch.scores), batch.y, batch.groups, logits=x)
    return part
