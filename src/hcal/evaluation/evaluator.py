"""``hcal.evaluate``: the metrics of one predictor with intervals, tests and a comparison, in one object."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace

from hcal import inputs, leakage
from hcal.class_names import ClassName, check_classes, positive_number
from hcal.evaluation.measurement import (
    Judged,
    Measurement,
    Settings,
    evaluate_rows,
    evaluate_survey,
    survey_source,
)
from hcal.evaluation.result import Evaluation
from hcal.fit_record import FittedModel, refuse_other_kind_of
from hcal.frames import AnyArray
from hcal.io.doors import RowInfo, source_of
from hcal.io.sources import RowSource
from hcal.metrics.registry import LEVELS, get_metric, list_metrics
from hcal.metrics.sample import Sample, check_integer
from hcal.renamed import renamed
from hcal.rows import Rows


@renamed(ci="confidence", n_resamples="resamples")
def evaluate(  # noqa: PLR0913 - a public door
    predictor: FittedModel | AnyArray,
    scores: AnyArray = None,
    y: AnyArray = None,
    *,
    metrics: str | Iterable[str] | None = None,
    confidence: float | None = None,
    groups: AnyArray = None,
    by: AnyArray = None,
    baseline: AnyArray = None,
    sample_weight: AnyArray = None,
    input: inputs.InputKind | None = None,
    classes: Iterable[ClassName] | None = None,
    positive: ClassName | None = None,
    calibration: AnyArray = None,
    test: bool | None = None,
    resamples: int = 1000,
    random_state: int = 0,
) -> Evaluation:
    """Evaluate a predictor: calibration errors of three levels, proper scores and sharpness, explained in words.

    Call ``evaluate(probs, y)``, or ``evaluate(calibrator, scores, y)`` for an evaluation after calibration with the
    one before it in ``before``. In place of arrays pass files, blocks of rows or Dask collections, as in
    ``evaluate("days/*.parquet")`` or ``evaluate(calibrator, "days/")``: one pass over all rows adds up what can be
    added up, and the rest is computed on a random sample of 20,000 rows (``how`` says which).

    Parameters
    ----------
    predictor : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem; or Calibrator
        Probabilities: an array, a tensor or a frame of any library. A list of rows of different lengths (questions
        with different numbers of options) is filled up with options of probability 0. Or the names of files, a
        folder or a pattern; ``hcal.io.batches(…)``; blocks of :class:`hcal.rows.Rows`.
    scores : array-like
        The labels ``y`` of shape (N,) after probabilities; the calibrator's input after a calibrator.
    y : array-like of shape (N,)
        Labels after a calibrator: integers 0..K−1, or names of classes.
    metrics : str or list of str, optional
        Names, or levels ("top-label", "class-wise", "canonical", "score"); all by default.
    confidence : float, optional
        Such as 0.95: adds an interval to every metric that has one, and a calibration test. The
        documentation of the metrics explains the kinds of intervals and how often they covered the truth.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a user): intervals resample whole groups, and proofs count
        them. Tests, which need independent rows, are left out, and a note says so. With files, ``groups``, ``by`` and
        ``sample_weight`` are names of columns.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row (a country, a tenant): adds the certified calibration error of every segment, the
        worst first. All of them hold together with probability ``confidence`` (0.95 by default).
    baseline : array-like of shape (N, K), optional
        Other predictions for the same rows, of the same kind: adds differences (with paired intervals where
        ``confidence`` is given), and lets a collapse be recognised by its NLL. After a calibrator it is the
        calibrator's input.
    sample_weight : array-like of shape (N,), optional
        An integer weight equals repetition of the row. If you do not choose ``metrics``, those that cannot use
        these weights are left out, and a note names them.
    input : {"probs", "logits", "log_probs"}
        What probabilities and ``baseline`` hold; a calibrator knows what its input is.
    classes : sequence of K str or int, optional
        Names of the classes. ``y`` may then hold names, the sentences use them, and a frame whose columns have these
        names is put in their order.
    positive : int or str, optional
        Of two classes, the number or name of the one whose probability is measured: the second by default. If the
        names are integers, it is a name.
    calibration : array-like of shape (M, K), optional
        The rows that the calibrator was fitted on, in the same form as the predictions: hcal warns where some of them
        are among the rows to evaluate.
    test : bool, optional
        Whether to add a calibration test and a certificate; by default only if ``confidence`` is given.
    resamples, random_state : int

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> result = evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 1], metrics=["brier", "accuracy"])
    >>> {name: round(value, 6) for name, value in result.values.items()}
    {'brier': 0.4, 'accuracy': 0.5}
    """
    settings = Settings(
        metrics=None if metrics is None else tuple(chosen_metrics(metrics)),
        confidence=None if confidence is None else inputs.check_confidence(confidence),
        test=test,
        resamples=check_integer("resamples", resamples, 20),
        random_state=random_state,
    )
    info = RowInfo(sample_weight, groups, by, classes)
    if hasattr(predictor, "predict_proba"):
        if baseline is not None:
            raise ValueError("after a calibrator the baseline is its own input: leave baseline out")
        refuse_other_kind_of(predictor, input)
        source = source_of(scores, y, info, input="logits", calibrator=predictor)
        settings = settings.judging(positive, source)
        return evaluate_survey(survey_source(source, settings, predictor), settings)
    if y is not None:
        raise TypeError(
            "evaluate takes (probs, y) or (calibrator, scores, y); the first of three must be a "
            "fitted calibrator, and metrics and confidence are passed by name"
        )
    if isinstance(predictor, Sample):
        return _evaluate_sample(predictor, info, settings, positive, baseline)
    kind = input or "probs"
    source = source_of(predictor, scores, info, input=kind)
    settings = settings.judging(positive, source)
    if baseline is None:
        evaluation = evaluate_survey(survey_source(source, settings), settings)
    else:
        rows = in_memory(source, "baseline")
        other = Rows.of_baseline(baseline, rows, kind).probs()
        evaluation = evaluate_rows(rows, rows.probs(), settings, baseline=other)
    if calibration is None:
        return evaluation
    notes = _coincidence(in_memory(source, "calibration"), calibration)
    return replace(evaluation, notes=(*notes, *evaluation.notes))


def _evaluate_sample(
    sample: Sample,
    info: RowInfo,
    settings: Settings,
    positive: ClassName | None,
    baseline: AnyArray,
) -> Evaluation:
    """Return the evaluation of a sample that was checked before; its labels are positions of classes."""
    names = None if info.classes is None else check_classes(info.classes, sample.k)
    info = replace(info, weight=sample.weight, classes=None)
    rows = replace(info.rows(sample.data.probs, sample.y, "probs"), names=names)
    judged = sample.data.positive if sample.k == 2 else 1
    if positive is not None and positive_number(positive, names, sample.k) != judged:
        raise ValueError(
            f"the Sample assesses class {judged}, and positive={positive!r} is another one: "
            "pass positive to Sample(...) instead"
        )
    settings = replace(settings, positive=judged)
    other = None if baseline is None else Judged(baseline)
    return Measurement(Judged(sample), rows, settings, other).evaluation()


def in_memory(source: RowSource, what: str) -> Rows:
    """Return the rows of a source that are in memory; ``what`` names the option that needs all of them."""
    if source.whole is None:
        raise ValueError(
            f"{what} needs all rows at once: pass arrays, or one file, in place of {source.title}"
        )
    return source.whole


def chosen_metrics(metrics: str | Iterable[str] | None) -> list[str]:
    """Return the names of the chosen metrics; the name of a level stands for all its metrics."""
    if metrics is None or metrics == "all":
        return list_metrics()
    names: list[str] = []
    for name in [metrics] if isinstance(metrics, str) else metrics:
        members = list_metrics(name) if name in LEVELS else [name]
        names.extend(get_metric(m).name for m in members if m not in names)
    if not names:
        raise ValueError("metrics is empty: name at least one, or leave it out for all of them")
    return names


def _coincidence(rows: Rows, calibration: AnyArray) -> list[str]:
    """Warn where the rows to evaluate are rows that the calibrator was fitted on."""
    if calibration is None:
        return []
    fitted = Rows.of_scores(calibration, input=rows.kind, like=rows).logits()
    text = leakage.coincidence(fitted, rows.logits())
    if not text:
        return []
    warnings.warn(text, UserWarning, stacklevel=4)
    return [text]
