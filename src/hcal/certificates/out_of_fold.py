"""A certificate of a method without other rows: fitted fold by fold, and certified on the fold that was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hcal.certificates.assembly import event_name
from hcal.certificates.event import certify_event
from hcal.certificates.events import main_event
from hcal.certificates.result import OutOfFoldCertificate
from hcal.class_names import positive_number
from hcal.fit_record import fitted_kind, fitted_names, refuse_other_kind_of
from hcal.frames import AnyArray
from hcal.inputs import InputKind
from hcal.io.doors import RowInfo, source_of
from hcal.metrics.sample import Data
from hcal.rows import Rows

if TYPE_CHECKING:
    from hcal.methods.base import Calibrator


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
