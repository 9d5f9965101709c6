"""``hcal.certify``: from predictions and labels to a certificate, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hcal import inputs, leakage
from hcal.certificates.bounds import Gain, certify_gain, check_level
from hcal.certificates.classes import group_names
from hcal.certificates.result import (
    ASSUMED,
    NLL_REFUSED,
    REFUSED,
    TOLERANCE,
    OutOfFoldCertificate,
    certify_tables,
    checked_classes,
    found_rows,
)
from hcal.certificates.streaming import CertificateStream
from hcal.certificates.windows import EventTable, table_of_rows
from hcal.io.class_names import ClassName, check_classes, encode
from hcal.metrics.sample import Sample
from hcal.metrics.scores import brier_rows
from hcal.numerics import IntArray, softmax
from hcal.text import printable

Event = str | int | Sequence[int | str]
Names = tuple[ClassName, ...] | None
#: Up to this many probabilities every class is sorted exactly; beyond it they are put into fine bins.
EXACT_ENTRIES = 1 << 25


def certify(
    predictor: Any,
    scores: Any = None,
    y: Any = None,
    *,
    level: float = 0.95,
    baseline: Any = None,
    events: str | int | Sequence[Event] = ("top-label", "class-wise"),
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
    events : sequence of {"top-label", "class-wise", class, set of classes}
        A class is its number, or its name among ``classes``.
        The failure is shared equally among them, the groups and the gain.
    groups : array-like of shape (N,), optional
        A group of each row: every group is certified, the worst first. The event is the top label, or the
        positive class where there are two classes.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; a calibrator brings its own.
    assume : {"monotone"}, optional
        Adds what follows if the truth does not fall as the claim rises.
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
    failure = check_level(level)
    if assume not in (None, "monotone"):
        raise ValueError(f"assume must be 'monotone' or None, got {assume!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    if out_of_fold:
        if groups is not None or baseline is not None:
            raise ValueError("out_of_fold=True certifies predictions alone: leave out groups and baseline")
        options = {"classes": classes, "positive": positive, "tolerance": tolerance}
        return _out_of_fold(predictor, scores, y, failure, n_folds, random_state, options)
    basis = ASSUMED
    if hasattr(predictor, "predict_proba"):
        if y is None:
            raise ValueError("after a calibrator come its scores and labels: certify(cal, scores, y)")
        basis = found_rows(leakage.refuse_rows_of_the_fit(*_rows(predictor, scores)))
        classes = getattr(predictor, "class_names_", None) if classes is None else classes
        probs, input = predictor.predict_proba(scores), "probs"
    elif y is not None:
        raise TypeError("certify takes (probs, y) or (cal, scores, y); the first of three is no calibrator")
    else:
        probs, y = predictor, scores
    names = None if classes is None else check_classes(classes, len(classes))
    sample = _sample(probs, y if y is None or names is None else encode(y, names), input)
    names = None if names is None else check_classes(names, sample.k)
    wanted = _events(events, sample.k, names)
    share = failure / (len(wanted) + (groups is not None) + (baseline is not None))
    positive = _positive(positive, sample.k, names)
    chosen = checked_classes(sample.k, positive) if "class-wise" in wanted else None
    gain = None if baseline is None else _gain(sample, baseline, input, share, random_state)
    return certify_tables(
        _event_tables(sample, wanted, names),
        chosen,
        _class_table(sample, chosen),
        {} if groups is None else _group_tables(sample, positive, groups),
        share=share,
        assume=assume,
        names=names,
        level=float(level),
        n=sample.n,
        k=sample.k,
        gain=gain,
        tolerance=tolerance,
        basis=basis,
        refused=REFUSED + ((NLL_REFUSED,) if gain is not None else ()),
    )


def _rows(calibrator: Any, scores: Any) -> tuple[leakage.Fingerprint | None, Any]:
    """Return the fingerprint of the fitted rows, and the judged rows as logits in the same form."""
    fitted = getattr(calibrator, "fitted_on_", None)
    if fitted is None:
        return None, None
    own = getattr(calibrator, "rows", None)  # of questions with different numbers of options
    if own is not None:
        return fitted, np.asarray(own(scores))
    return fitted, inputs.check_logits(scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]


def _sample(probs: Any, y: Any, input: inputs.InputKind) -> Sample:
    if isinstance(probs, Sample):
        if probs.weight is not None:
            raise ValueError(
                "a certificate counts rows as independent observations: it takes no sample_weight"
            )
        return probs
    if y is None:
        raise ValueError("y is missing: pass integer labels of shape (N,)")
    if input != "probs":
        probs = softmax(inputs.check_logits(probs, input=input)[0])
    return Sample(probs, y)


def _events(events: Any, k: int, names: Names) -> list[Any]:
    """Return the events asked for, each once: names, and sorted tuples of classes."""
    listed = [events] if isinstance(events, str | int | np.integer) else list(events)
    if not listed:
        raise ValueError("events is empty: name at least one")
    found: list[Any] = []
    for event in listed:
        if isinstance(event, str) and event in ("top-label", "class-wise"):
            found.append(event)
            continue
        if isinstance(event, str) and event not in (names or ()):
            raise ValueError(f"events are 'top-label', 'class-wise' or classes, got {event!r}")
        several = [event] if isinstance(event, str | int | np.integer) else list(event)
        members = {_number(m, names) for m in several}
        if not members or not all(isinstance(m, int | np.integer) and 0 <= m < k for m in members):
            raise ValueError(f"an event is a class of 0..{k - 1} or a set of them, got {event!r}")
        found.append(tuple(sorted(int(m) for m in members)))
    return list(dict.fromkeys(found))


def _positive(positive: int | str, k: int, names: Names) -> int:
    number = _number(positive, names)
    if isinstance(number, str) or (k == 2 and number not in (0, 1)):
        raise ValueError(f"positive must be class 0 or 1, or one of their names, got {positive!r}")
    return int(number)


def _number(name: Any, names: Names) -> Any:
    """Return the number of a class that is called by its name; anything else as it is."""
    return names.index(name) if names is not None and name in names else name


def _event_tables(sample: Sample, wanted: list[Any], names: Names) -> dict[str, EventTable]:
    """Return the tables of every event but the class-wise family."""
    data = sample.data
    tables: dict[str, EventTable] = {}
    for event in wanted:
        if event == "top-label":
            tables["top label"] = table_of_rows(data.conf, data.hit)
        elif event != "class-wise":
            shown = [printable(m if names is None else names[m]) for m in event]
            name = f"{'class' if len(event) == 1 else 'classes'} {', '.join(shown)}"
            p = np.sum([data.column(k) for k in event], axis=0)
            tables[name] = table_of_rows(np.minimum(p, 1.0), np.isin(data.y, event).astype(np.float64))
    return tables


def _class_table(sample: Sample, classes: IntArray | None) -> Callable[[int], EventTable]:
    """Return who makes the table of a class: exact where the sample is small, in fine bins where it is large."""
    if classes is None or sample.n * len(classes) <= EXACT_ENTRIES:
        return lambda k: table_of_rows(sample.data.column(k), sample.y == k)
    return CertificateStream(sample.k).update(sample.data.probs, sample.y).class_table


def _group_tables(sample: Sample, positive: int, groups: Any) -> dict[str, EventTable]:
    p, c = sample.data.conf, sample.data.hit
    if sample.k == 2:
        p, c = sample.data.column(positive), (sample.y == positive).astype(np.float64)
    names, which = group_names(groups, len(p))
    return {name: table_of_rows(p[which == g], c[which == g]) for g, name in enumerate(names)}


def _gain(sample: Sample, baseline: Any, input: inputs.InputKind, share: float, random_state: int) -> Gain:
    other = _sample(baseline, sample.y, input)
    if other.k != sample.k:
        raise ValueError(f"baseline has {other.k} classes, probs has {sample.k}")
    return certify_gain(brier_rows(other), brier_rows(sample), share, random_state)


def _out_of_fold(
    method: Any, scores: Any, y: Any, failure: float, n_folds: int, random_state: int, options: dict[str, Any]
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
    options["classes"] = options["classes"] or getattr(method, "class_names_", None)
    x = inputs.check_logits(scores, input=method.input)[0]
    labels = inputs.check_labels(encode(y, options["classes"]), *x.shape)
    if not 2 <= n_folds <= len(x) // 2:
        raise ValueError(f"n_folds must lie between 2 and half the rows ({len(x) // 2}), got {n_folds}")
    given = inputs.to_numpy(scores, "scores")[0]
    order = np.random.default_rng(random_state).permutation(len(x))
    options["events"] = "class-wise" if x.shape[1] == 2 else "top-label"
    folds, probs = [], np.empty(x.shape)
    for j in range(n_folds):
        held = np.zeros(len(x), dtype=bool)
        held[order[j::n_folds]] = True
        fitted = method.clone().fit(given[~held], labels[~held])
        probs[held] = fitted.predict_proba(given[held])
        folds.append(certify(probs[held], labels[held], level=1 - failure / n_folds, **options))
    return OutOfFoldCertificate(1 - failure, tuple(folds), certify(probs, labels, **options))
