"""``hcal.certify``: from predictions and labels to a certificate, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hcal import inputs
from hcal.calibrators import calibration_rows
from hcal.certificates.bounds import check_level
from hcal.certificates.classes import certify_columns
from hcal.certificates.event import certify_event
from hcal.certificates.gain import Gain, certify_gain
from hcal.certificates.groups import certify_groups
from hcal.certificates.result import Certificate
from hcal.io.class_names import ClassName, check_classes, encode
from hcal.io.top_k import TopK
from hcal.metrics.sample import Sample, Vector
from hcal.metrics.scores import brier_rows
from hcal.numerics import IntArray, softmax
from hcal.numerics import is_ragged, pad_options

#: What counts as close enough: five points of probability.
TOLERANCE = 0.05
Event = str | int | Sequence[int | str]
Names = tuple[ClassName, ...] | None

REFUSED = (
    "the ECE of a continuous predictor, h at a single prediction, and the error of the whole vector: each "
    "prediction is seen once, so that no number of rows bounds them from above without assumptions (Gupta, "
    'Podkopaev and Ramdas, 2020); assume="monotone" buys the first',
)
NLL_REFUSED = "a gain in NLL: it has no upper limit, so that one unseen row could outweigh all seen ones"


class RowsOfTheFitError(ValueError):
    """A certificate was asked for on rows that the calibrator learned from."""


def certify(
    probs: Any,
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
    calibrator: Any = None,
    scores: Any = None,
    out_of_fold: bool = False,
    random_state: int = 0,
) -> Certificate:
    """Certify how far a fixed predictor can be from the truth, from fresh independent rows.

    Every statement of the result holds, all at once, with probability at least ``level`` over the labels, for
    every number of rows and without assumptions on the model or the data.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem; or a Sample
        Or :class:`hcal.TopK`, for the top label alone (``events="top-label"``).
    y : array-like of shape (N,)
        Integer labels 0..K−1, or names among ``classes``.
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
        Names of the classes in the order of the columns: sentences and tables use them.
    assume : {"monotone"}, optional
        Adds what follows if the truth does not fall as the claim rises.
    input : {"probs", "logits", "log_probs"}
        What ``probs`` and ``baseline`` hold.
    tolerance : float
        What counts as close enough where rows needed are counted.
    positive : int or str
        Of two classes, the one, by number or name, whose probability is certified.
    calibrator : Calibrator, optional
        What made the probabilities; with ``scores``, its input, rows of its fit are recognised exactly.
        Without it, outputs of every calibrator fitted in this process are recognised.
    scores : array-like of shape (N, K), optional
    out_of_fold : bool
        The probabilities of each row come from a fit without it: rows of the fit are then admitted.
    random_state : int
        Of the order in which rows are dealt for the gain.

    Raises
    ------
    RowsOfTheFitError
        Where rows that the calibrator learned from are among these.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=20000)
    >>> y = (rng.random(20000) < p).astype(int)
    >>> certificate = certify(p, y, events="top-label")
    >>> print(certificate.sentences[2])
    No eighth of your predictions is off by more than 4.8 points.
    >>> print(certify(p, y, events="sick", classes=["well", "sick"]).sentences[1])
    Class sick: 75.1 % is stated on average; the truth lies between 74.6 % and 76.3 %.
    """
    failure = check_level(level)
    if assume not in (None, "monotone"):
        raise ValueError(f"assume must be 'monotone' or None, got {assume!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    names = None if classes is None else check_classes(classes, len(classes))
    sample = _sample(probs, y if y is None or names is None else encode(y, names), input)
    names = None if names is None else check_classes(names, sample.k)
    wanted = _events(events, sample.k, names)
    if not out_of_fold:
        _refuse_rows_of_the_fit(probs, sample, calibrator, scores, input)
    share = failure / (len(wanted) + (groups is not None) + (baseline is not None))
    data = sample.data
    positive = _positive(positive, sample.k, names)
    every = None
    if "class-wise" in wanted:
        chosen = np.arange(sample.k) if sample.k > 2 else np.array([positive])
        every = certify_columns(data, chosen, share, tolerance=tolerance, assume=assume, names=names)
    pairs = _marks(sample, wanted, names)
    grouped = () if groups is None else certify_groups(*_group_event(sample, positive), groups, share)
    gain = None if baseline is None else _gain(sample, baseline, input, share, random_state)
    return Certificate(
        level=float(level),
        n=sample.n,
        k=sample.k,
        events={
            name: certify_event(name, p, c, failure=share, assume=assume) for name, (p, c) in pairs.items()
        },
        classes=every,
        gain=gain,
        groups=grouped,
        tolerance=tolerance,
        refused=REFUSED + ((NLL_REFUSED,) if gain is not None else ()),
    )


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
        if isinstance(event, str):
            if event in ("top-label", "class-wise"):
                found.append(event)
                continue
            if event not in (names or ()):
                raise ValueError(f"events are 'top-label', 'class-wise' or classes, got {event!r}")
        listed_members = [event] if isinstance(event, str | int | np.integer) else event
        members = {_number(m, names) for m in listed_members}
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


def _marks(sample: Sample, wanted: list[Any], names: Names) -> dict[str, tuple[Vector, Vector]]:
    """Claims and marks of every event but the class-wise family."""
    data = sample.data
    pairs: dict[str, tuple[Vector, Vector]] = {}
    for event in wanted:
        if event == "top-label":
            pairs["top label"] = data.conf, data.hit
        elif event != "class-wise":
            shown = [str(m if names is None else names[m]) for m in event]
            name = f"{'class' if len(event) == 1 else 'classes'} {', '.join(shown)}"
            p = np.sum([data.column(k) for k in event], axis=0)
            pairs[name] = np.minimum(p, 1.0), np.isin(data.y, event).astype(np.float64)
    return pairs


def _group_event(sample: Sample, positive: int) -> tuple[Vector, Vector]:
    if sample.k == 2:
        return sample.data.column(positive), (sample.y == positive).astype(np.float64)
    return sample.data.conf, sample.data.hit


def _gain(sample: Sample, baseline: Any, input: inputs.InputKind, share: float, random_state: int) -> Gain:
    other = _sample(baseline, sample.y, input)
    if other.k != sample.k:
        raise ValueError(f"baseline has {other.k} classes, probs has {sample.k}")
    return certify_gain(brier_rows(other), brier_rows(sample), share, random_state)


# -- rows of the fit ------------------------------------------------------------------------------


def _refuse_rows_of_the_fit(
    probs: Any, sample: Sample, calibrator: Any, scores: Any, input: inputs.InputKind
) -> None:
    if calibrator is not None and scores is not None:
        refuse_scores_of_the_fit(calibrator, scores, sample.y)
        return
    if isinstance(probs, Sample | TopK) or input != "probs":
        return
    shown = inputs.to_numpy(pad_options(probs, 0.0) if is_ragged(probs) else probs, "probs")[0]
    shown = np.stack([1 - shown, shown], axis=1) if shown.ndim == 1 else shown
    known = calibration_rows.fitted_here() if calibrator is None else [calibrator]
    for name, share in calibration_rows.shares_predicted(known, shown).items():
        refuse_share(share, name)


def refuse_scores_of_the_fit(calibrator: Any, scores: Any, y: IntArray) -> None:
    """Raise where rows that a calibrator learned from are among these scores.

    Parameters
    ----------
    calibrator : Calibrator
    scores : array-like of shape (N, K)
        As the calibrator takes them.
    y : array of shape (N,)
    """
    rows = calibration_rows.checked_rows(calibrator, scores)
    refuse_share(calibration_rows.share_seen(calibrator, rows, y), calibrator.name)


def refuse_share(share: float, name: str) -> None:
    """Raise where a share of the rows that a method learned from was found among those to certify on."""
    if share:
        raise RowsOfTheFitError(
            f"no certificate: about {share:.0%} of the rows that {name!r} learned from are among these rows, "
            "and on its own rows a calibrator proves nothing. Use other rows, or out-of-fold predictions "
            "(out_of_fold=True)"
        )
