"""``hcal.evaluate``: the metrics of one predictor with intervals, tests and a comparison, in one object."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from hcal import inputs, leakage
from hcal.certificates import Certificate, certify
from hcal.certificates.certification import FEWEST_GROUPS
from hcal.class_names import check_classes, class_title, positive_number
from hcal.evaluation.assessment import assess, collapse_reasons, vector_test
from hcal.evaluation.result import Difference, Evaluation, MetricResult, PositiveRate
from hcal.metrics.clinical import clinical
from hcal.metrics.registry import LEVELS, METRICS, get_metric, list_metrics
from hcal.metrics.resampling import (
    SPREAD_RESAMPLES,
    Interval,
    bootstrap,
    intervals,
    measure,
    percentile,
)
from hcal.metrics.sample import Sample, check_integer
from hcal.metrics.scores import accuracy, mean_confidence, nll, sharpness, swapped
from hcal.metrics.testing import calibration_test
from hcal.numerics import FloatArray, IntArray
from hcal.renamed import renamed
from hcal.rows import ClassNames, Rows

#: The confidence of certificates where no intervals are asked for.
DEFAULT_CONFIDENCE = 0.95


@renamed(ci="confidence", n_resamples="resamples")
def evaluate(
    predictor: Any,
    scores: Any = None,
    y: Any = None,
    *,
    metrics: str | Iterable[str] | None = None,
    confidence: float | None = None,
    groups: Any = None,
    by: Any = None,
    baseline: Any = None,
    sample_weight: Any = None,
    input: inputs.InputKind = "probs",
    classes: Any = None,
    positive: Any = None,
    calibration: Any = None,
    test: bool | None = None,
    resamples: int = 1000,
    random_state: int = 0,
) -> Evaluation:
    """Evaluate a predictor: calibration errors of three levels, proper scores and sharpness, explained in words.

    Call ``evaluate(probs, y)``, or ``evaluate(calibrator, scores, y)`` for an evaluation after calibration with the
    one before it in ``before``.

    Parameters
    ----------
    predictor : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem; or Calibrator
        Probabilities: an array, a tensor or a frame of any library. A list of rows of different lengths (questions
        with different numbers of options) is filled up with options of probability 0.
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
        Rows of one group depend on each other (a patient, a user): intervals resample whole groups. Tests and
        certificates, which need independent rows, are left out, and a note says so.
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
        Of two classes, the number or name of the one whose probability is judged: the second by default. If the
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
    others = {"weight": sample_weight, "groups": groups, "by": by, "classes": classes}
    if hasattr(predictor, "predict_proba"):
        if baseline is not None:
            raise ValueError("after a calibrator the baseline is its own input: leave baseline out")
        return _before_and_after(predictor, scores, y, others, settings, positive)
    if y is not None:
        raise TypeError(
            "evaluate takes (probs, y) or (calibrator, scores, y); the first of three must be a fitted calibrator, "
            "and metrics and confidence are passed by name"
        )
    if isinstance(predictor, Sample):
        names = None if classes is None else check_classes(classes, predictor.k)
        number = positive_number(positive, names, predictor.k)
        settings = replace(settings, positive=number)
        return evaluate_sample(predictor, settings, names=names, by=by, baseline=baseline)
    rows = Rows.of_predictions(predictor, _needed(scores), input=input, **others)
    settings = replace(settings, positive=positive_number(positive, rows.names, rows.n_classes))
    other = None
    if baseline is not None:
        other = Rows.of_baseline(baseline, rows, input).probs()
    notes = _coincidence(rows, calibration)
    evaluation = evaluate_rows(rows, rows.probs(), settings, baseline=other)
    return replace(evaluation, notes=(*notes, *evaluation.notes))


@dataclass(frozen=True)
class Settings:
    """What an evaluation computes, whatever its rows are."""

    metrics: tuple[str, ...] | None = None
    confidence: float | None = None
    test: bool | None = None
    resamples: int = 1000
    random_state: int = 0
    positive: int = 1  # the number of a class

    @property
    def names(self) -> list[str]:
        """The names of the metrics."""
        return list_metrics() if self.metrics is None else list(self.metrics)

    @property
    def level(self) -> float:
        """The confidence of certificates."""
        return self.confidence or DEFAULT_CONFIDENCE


def evaluate_rows(
    rows: Rows, probs: FloatArray, settings: Settings, *, baseline: FloatArray | None = None
) -> Evaluation:
    """Return the evaluation of probabilities (N, K) of checked rows with labels."""
    positive = settings.positive
    sample = Sample(probs, rows.labels, rows.weight, positive=positive)
    other = None
    if baseline is not None:
        other = Sample(baseline, rows.labels, rows.weight, positive=positive)
    return _Measurement(sample, rows, settings, positive, other).evaluation()


def evaluate_sample(
    sample: Sample,
    settings: Settings,
    *,
    names: ClassNames | None = None,
    by: Any = None,
    baseline: Sample | None = None,
) -> Evaluation:
    """Return the evaluation of a sample that was checked before; its labels are positions of classes."""
    rows = Rows.of(sample.data.probs, sample.y, input="probs", weight=sample.weight, by=by)
    rows = replace(rows, names=names)
    return _Measurement(sample, rows, settings, settings.positive, baseline).evaluation()


@dataclass(frozen=True)
class _Measurement:
    """One evaluation in the making: the sample, the rows that it comes from, and what to compute."""

    sample: Sample
    rows: Rows
    settings: Settings
    positive: int
    other: Sample | None

    def evaluation(self) -> Evaluation:
        sample = self.sample
        chosen = self.settings.names
        # A metric that was chosen refuses weights that it cannot take with an error of its own.
        left_out = []
        if self.settings.metrics is None:
            left_out = [name for name in chosen if not METRICS[name].takes(sample)]
        values, notes = measure(sample, [name for name in chosen if name not in left_out])
        if left_out:
            notes.append(
                f"left out, because they need whole repetition counts as weights: {', '.join(left_out)}"
            )
        ranges = self._intervals(values)
        results = {
            name: MetricResult(value, METRICS[name], ranges.get(name))
            for name, value in values.items()
        }
        rate = self._positive_rate()
        if rate is not None:
            notes += swapped(sample, None, class_title(1, self.rows.names).removeprefix("class "))
        evaluation = Evaluation(
            results,
            n=sample.n,
            k=sample.k,
            accuracy=accuracy(sample),
            mean_confidence=mean_confidence(sample),
            nll=nll(sample),
            sharpness=sharpness(sample),
            collapse=tuple(self._collapse()),
            confidence=self.settings.confidence,
            differences=self._differences(values),
            positive=rate,
        )
        evaluation = self._with_proofs(evaluation, notes)
        return replace(evaluation, notes=tuple(notes))

    def _intervals(self, values: dict[str, float]) -> dict[str, Interval]:
        if self.settings.confidence is None:
            return {}
        return intervals(
            self.sample,
            values,
            self.settings.confidence,
            resamples=self.settings.resamples,
            random_state=self.settings.random_state,
            groups=self.rows.groups,
        )

    def _positive_rate(self) -> PositiveRate | None:
        """Return how often the positive class of two is stated and observed."""
        sample = self.sample
        if sample.k != 2:
            return None
        names = self.rows.names
        name = f"class {self.positive}" if names is None else str(names[self.positive])
        stated = sample.mean(sample.data.column(self.positive).astype(np.float64))
        return PositiveRate(name, stated, sample.mean(1.0 * (sample.y == self.positive)))

    def _collapse(self) -> list[str]:
        sample = self.sample
        return collapse_reasons(
            accuracy=accuracy(sample),
            mean_confidence=mean_confidence(sample),
            nll=nll(sample),
            n_classes=sample.k,
            nll_before=None if self.other is None else nll(self.other),
            rows=sample.n,
        )

    def _with_proofs(self, evaluation: Evaluation, notes: list[str]) -> Evaluation:
        """Return the evaluation with certificates and tests, which need independent rows of weight 1."""
        sample = self.sample
        settings = self.settings
        tested = settings.confidence is not None if settings.test is None else settings.test
        by = self.rows.by
        if by is not None and sample.weight is not None:
            raise ValueError(
                "by= is certified from independent rows, which weighted ones are not: leave the weights out, "
                "or evaluate the rows of each segment by themselves"
            )
        groups = self.rows.groups
        if groups is not None and tested:
            notes.append(
                "no test: it needs independent rows, and groups= says that rows depend on each other"
            )
            tested = _enough_groups(groups, notes)
        tested = tested and sample.weight is None and sample.n > 1
        if not tested and by is None:
            return evaluation
        names = self.rows.names
        certificate = certify(
            sample,
            confidence=settings.level,
            groups=groups,
            by=None if by is None else np.array(by.names, dtype=object)[by.codes],
            positive=self.positive if names is None else names[self.positive],
            classes=names,
        )
        evaluation = replace(evaluation, certificate=certificate)
        return self._with_tests(evaluation, certificate) if tested else evaluation

    def _with_tests(self, evaluation: Evaluation, certificate: Certificate) -> Evaluation:
        """Return the evaluation with tests, the verdict that follows from them, and the panel of two classes.

        Rows of groups that depend on each other get the verdict alone.
        """
        sample = self.sample
        rate = evaluation.positive
        title = "top label" if rate is None else f"P({rate.name})"
        groups = self.rows.groups
        if groups is not None:
            return replace(evaluation, assessment=assess(sample, certificate, title, groups=groups))
        top = calibration_test(sample, random_state=self.settings.random_state)
        vector = vector_test(sample, self.settings.random_state)
        panel = None
        if rate is not None and 0 < rate.observed < 1:
            panel = clinical(sample, None, confidence=self.settings.level, positive=self.positive)
        return replace(
            evaluation,
            test=top,
            vector_test=vector,
            assessment=assess(sample, certificate, title, top, vector),
            clinical=panel,
        )

    def _differences(self, values: dict[str, float]) -> dict[str, Difference]:
        """Return every metric minus the baseline's, with an interval from rows resampled together.

        Scores and debiased errors: percentiles. Plug-in errors: the difference ± z standard deviations, because
        the bias that a bootstrap adds to both does not cancel where one of them is nearly calibrated.
        """
        if self.other is None:
            return {}
        before = measure(self.other, values)[0]
        differences = {
            name: Difference(before[name], values[name] - before[name]) for name in values
        }
        confidence = self.settings.confidence
        if confidence is None:
            return differences
        rng = np.random.default_rng(self.settings.random_state)
        # A metric with a standard error of its own would cost one pass over all pairs (or windows) a replicate.
        paired = [name for name in values if METRICS[name].ends is None]
        plugin = [name for name in paired if METRICS[name].interval == "bias-aware"]
        plain = [name for name in paired if name not in plugin]
        resamples = self.settings.resamples
        z = float(ndtri((1 + confidence) / 2))
        for names, size in ((plain, resamples), (plugin, min(resamples, SPREAD_RESAMPLES))):
            ours, theirs = bootstrap(
                (self.sample, self.other), names, size, rng, groups=self.rows.groups
            )
            for name in names:
                change = differences[name].change
                drawn = ours[name] - theirs[name]
                if name in plugin:
                    reach = z * float(drawn.std(ddof=1))
                    low, high = change - reach, change + reach
                else:
                    low, high = percentile(drawn, confidence)
                differences[name] = Difference(before[name], change, low, high)
        return differences


def _enough_groups(groups: IntArray, notes: list[str]) -> bool:
    """Say whether the groups of dependent rows are enough for a proof, and note it if they are not."""
    count = len(np.unique(groups))
    if count >= FEWEST_GROUPS:
        return True
    notes.append(
        f"nothing is proven: a proof needs at least {FEWEST_GROUPS} groups of rows, and groups= has {count}"
    )
    return False


def _before_and_after(
    calibrator: Any, scores: Any, y: Any, others: dict[str, Any], settings: Settings, positive: Any
) -> Evaluation:
    """Return the evaluation after calibration, with the one before it and the rows of the fit among these rows."""
    rows = rows_of_calibrator(calibrator, scores, _needed(y), **others)
    settings = replace(settings, positive=positive_number(positive, rows.names, rows.n_classes))
    raw = rows.probs()
    probs = probs_of_calibrator(calibrator, rows, scores)
    before = evaluate_rows(rows, raw, replace(settings, test=False))
    after = evaluate_rows(rows, probs, settings, baseline=raw)
    notes = overlap_note(leakage.fit_overlap(calibrator, scores))
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    return replace(after, before=before, changed=changed, notes=(*after.notes, *notes))


def rows_of_calibrator(calibrator: Any, scores: Any, y: Any, **others: Any) -> Rows:
    """Return checked rows for a calibrator: columns in the order of its fit, of the kind that it takes.

    A calibrator of questions with different numbers of options gives their probabilities before calibration.
    """
    uncalibrated = getattr(calibrator, "uncalibrated", None)
    if uncalibrated is not None:
        return Rows.of_predictions(uncalibrated(scores), y, input="probs", **others)
    rows: Rows = calibrator.rows_like(scores, y, **others)
    return rows


def probs_of_calibrator(calibrator: Any, rows: Rows, scores: Any) -> FloatArray:
    """Return the calibrated probabilities (N, K) of rows that were made from these scores."""
    if getattr(calibrator, "uncalibrated", None) is not None:
        return inputs.check_probs(calibrator.predict_proba(scores))[0]
    probs: FloatArray = calibrator.probs_of(rows)
    return probs


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


def overlap_note(overlap: leakage.Overlap | None) -> list[str]:
    """Return a warning for an evaluation on rows of the fit, as a list; empty where there is no overlap."""
    if overlap is None or not overlap.sentence:
        return []
    sentence = f"{overlap.sentence[0].lower()}{overlap.sentence[1:-1]}"
    return [f"{sentence}: evaluate it on others"]


def _coincidence(rows: Rows, calibration: Any) -> list[str]:
    """Warn where the rows to evaluate are rows that the calibrator was fitted on."""
    if calibration is None:
        return []
    fitted = Rows.of_scores(calibration, input=rows.kind, like=rows).logits()
    text = leakage.coincidence(fitted, rows.logits())
    if not text:
        return []
    warnings.warn(text, UserWarning, stacklevel=4)
    return [text]


def _needed(y: Any) -> Any:
    if y is None:
        raise ValueError("y is missing: pass one label a row")
    return y
