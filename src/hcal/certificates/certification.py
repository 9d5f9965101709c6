"""``hcal.certify``: from predictions and labels to a certificate, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain, check_level
from hcal.certificates.event import TOLERANCE
from hcal.certificates.result import Certificate, OutOfFoldCertificate
from hcal.certificates.sources import CertificateStream, Names, Rows, certify_source, headline
from hcal.io.class_names import check_classes, encode
from hcal.metrics.sample import Sample
from hcal.metrics.scores import brier_rows

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.io.blocks import Batches
    from hcal.io.reading import Piece
    from hcal.passes import Runner


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

    The event that is certified first is the top label, or with two classes P(positive); then every class. Any
    other event is a problem of two classes: ``certify(probs[:, [0, 3]].sum(axis=1), np.isin(y, [0, 3]))``.
    Called as ``certify(probs, y)``, or as ``certify(calibrator, scores, y)``, which refuses the rows that the
    calibrator was fitted on. Every statement of the result holds, all at once, with probability at least
    ``level`` over the labels, for every number of rows and without assumptions on the model or the data.

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
        A group of each row: every group is certified, the worst first. The event is the top label, or the
        positive class where there are two classes.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; a calibrator brings its own.
    assume : {"monotone"}, optional
        Adds what follows for the first event if the truth does not fall as the claim rises.
    input : {"probs", "logits", "log_probs"}
        What probabilities and ``baseline`` hold.
    tolerance : float
        What counts as close enough for a class of one half; rarer classes have a smaller tolerance.
    positive : int or str
        Of two classes, the one, by number or name, whose probability is certified.
    out_of_fold : bool
        For a method whose rows are all that there is: fit it ``n_folds`` times, each time without a fold, and
        certify the predictions for the rows left out. The answer is an :class:`OutOfFoldCertificate`.
    n_folds : int
    random_state : int
        Of the order in which rows are taken for the gain, and of the folds.

    Returns
    -------
    Certificate, or OutOfFoldCertificate

    Raises
    ------
    RowsOfTheFitError
        Where 5 % or more of the rows were used to fit the calibrator.

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
            raise ValueError("with out_of_fold=True leave out groups, baseline and assume: it takes none")
        failure = check_level(level)
        return _out_of_fold(predictor, scores, y, failure, n_folds, random_state, classes, positive)
    found = None
    if hasattr(predictor, "predict_proba"):
        if y is None:
            raise ValueError("after a calibrator come its scores and labels: certify(cal, scores, y)")
        found = leakage.fit_overlap(predictor, scores)
        classes = getattr(predictor, "class_names_", None) if classes is None else classes
        probs, input = predictor.predict_proba(scores), "probs"
    elif y is not None:
        raise TypeError("certify takes (probs, y) or (cal, scores, y); the first of three is no calibrator")
    else:
        probs, y = predictor, scores
    names = None if classes is None else check_classes(classes, len(classes))
    sample = _sample(probs, y if y is None or names is None else encode(y, names), input)
    names = None if names is None else check_classes(names, sample.k)

    def gain(failure: float) -> Gain:
        other = _sample(baseline, sample.y, input)
        if other.k != sample.k:
            raise ValueError(f"baseline has {other.k} classes, probs has {sample.k}")
        return certify_gain(brier_rows(other), brier_rows(sample), failure, random_state)

    rows = Rows(sample, groups, _positive(positive, sample.k, names))
    return certify_source(rows, found, level, tolerance, names, None if baseline is None else gain, assume)


def _sample(probs: Any, y: Any, input: inputs.InputKind) -> Sample:
    if isinstance(probs, Sample):
        if probs.weight is not None:
            raise ValueError("a certificate counts rows as independent observations: it takes no sample_weight")
        return probs
    if y is None:
        raise ValueError("y is missing: pass integer labels of shape (N,)")
    return Sample(inputs.to_probs(probs, input), y)


def _positive(positive: int | str, k: int, names: Names) -> int:
    number = names.index(positive) if names is not None and positive in names else positive
    if isinstance(number, str) or (k == 2 and number not in (0, 1)):
        raise ValueError(f"positive must be class 0 or 1, or one of their names, got {positive!r}")
    return int(number)


def _out_of_fold(
    method: Any, scores: Any, y: Any, failure: float, n_folds: int, seed: int, classes: Any, positive: Any
) -> OutOfFoldCertificate:
    """Certify each fold's predictions by itself, and average.

    Given the other folds, a fold's predictor is fixed and its labels are fresh: its certificate holds. Folds
    depend on each other, so each gets its share of the failure and no window spans two of them. They are
    drawn at random, without a look at the labels.
    """
    from hcal.calibrators.registry import make_calibrator

    method = make_calibrator(method) if isinstance(method, str) else method
    if not hasattr(method, "predict_proba") or y is None:
        raise ValueError("out_of_fold=True takes a calibrator or a method: certify('iso', scores, y)")
    x = inputs.check_logits(scores, input=method.input)[0]
    n, k = x.shape
    names = classes or getattr(method, "class_names_", None)
    names = None if names is None else check_classes(names, k)
    labels = inputs.check_labels(encode(y, names), n, k)
    if not 2 <= n_folds <= n // 2:
        raise ValueError(f"n_folds must lie between 2 and half the rows ({n // 2}), got {n_folds}")
    given, number = inputs.to_numpy(scores, "scores")[0], _positive(positive, k, names)
    fold = np.empty(n, dtype=np.int64)
    fold[np.random.default_rng(seed).permutation(n)] = np.arange(n) % n_folds
    folds, probs = [], np.empty(x.shape)
    for held in (fold == j for j in range(n_folds)):
        probs[held] = method.clone().fit(given[~held], labels[~held]).predict_proba(given[held])
        part = Rows(Sample(probs[held], labels[held]), None, number)
        folds.append(headline(part, failure / n_folds, names))
    pooled = headline(Rows(Sample(probs, labels), None, number), failure, names)
    *overall, bound = np.average([(*f.overall, f.bound) for f in folds], axis=0, weights=[f.n for f in folds])
    wrong = sum(f.exact_refuted for f in folds)
    return OutOfFoldCertificate(
        1 - failure, n, k, (float(overall[0]), float(overall[1])), float(bound), pooled.estimate,
        pooled.share_far, wrong, tuple(folds), pooled,
    )  # fmt: skip


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
    """Certify a source's probabilities, or what a calibrator makes of them, in one pass over its rows.

    Parameters
    ----------
    source : Batches
        Of files, with labels.
    calibrator : Calibrator, optional
        Its own rows are refused.
    level, assume, positive
        As for :func:`hcal.certify`.
    runner, advance
        Who works on the pieces (this process by default), and who is told how many rows were done.

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
    fitted_on = getattr(calibrator, "fitted_on_", None)
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
            x = inputs.check_logits(batch.scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]
            part.update(calibrator.predict_proba(batch.scores), batch.y, batch.groups, logits=x)
    return part
