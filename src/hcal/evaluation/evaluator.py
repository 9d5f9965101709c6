"""``hcal.evaluate``: the metrics of one predictor with intervals, tests and a comparison, in one object."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.special import ndtri

from hcal import inputs, leakage
from hcal.certificates import Certificate, certify
from hcal.class_names import check_classes, encode
from hcal.evaluation.assessment import assess, collapse_reasons, vector_test
from hcal.evaluation.result import Difference, Evaluation, MetricResult, PositiveRate
from hcal.inputs import to_probs
from hcal.metrics.clinical import clinical
from hcal.metrics.registry import LEVELS, METRICS, get_metric, list_metrics
from hcal.metrics.resampling import SPREAD_RESAMPLES, bootstrap, intervals, measure, percentile
from hcal.metrics.sample import Sample, check_integer
from hcal.metrics.scores import accuracy, mean_confidence, nll, sharpness, swapped
from hcal.metrics.testing import calibration_test
from hcal.renamed import renamed


@renamed(ci="confidence", n_resamples="resamples")
def evaluate(
    probs: Any,
    y: Any,
    metrics: str | Iterable[str] | None = None,
    confidence: float | None = None,
    *,
    sample_weight: Any = None,
    input: inputs.InputKind = "probs",
    baseline: Any = None,
    calibration: Any = None,
    test: bool | None = None,
    resamples: int = 1000,
    random_state: int = 0,
    groups: Any = None,
    positive: int = 1,
    classes: Any = None,
) -> Evaluation:
    """Evaluate a predictor: calibration errors of three levels, proper scores and sharpness, explained in words.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        numpy, torch (CPU or CUDA), pandas or polars. A list of rows of different lengths (questions with
        different numbers of options) is filled up with options of probability 0.
    y : array-like of shape (N,)
        Integer labels 0..K−1.
    metrics : str or list of str, optional
        Names, or levels ("top-label", "class-wise", "canonical", "score"); all by default.
    confidence : float, optional
        Such as 0.95: adds an interval to every metric that has one, and a calibration test. The
        documentation of the metrics explains the kinds of intervals and how often they covered the truth.
    sample_weight : array-like of shape (N,), optional
        An integer weight equals repetition of the row. If you do not choose ``metrics``, those that cannot use
        these weights are left out, and a note names them.
    input : {"probs", "logits", "log_probs"}
        What ``probs`` and ``baseline`` hold.
    baseline : array-like of shape (N, K), optional
        Other predictions for the same rows, such as the uncalibrated ones: adds differences (with paired
        intervals where ``confidence`` is given), and lets a collapse be recognised by its NLL.
    calibration : array-like of shape (M, K), optional
        The rows that the calibrator was fitted on, in the same form as ``probs``: hcal warns where some of them
        are among the rows to evaluate.
    test : bool, optional
        Whether to add a calibration test and a certificate; by default only if ``confidence`` is given.
    resamples, random_state : int
    groups : array-like of shape (N,), optional
        The group of each row: adds the certified calibration error of every group, the worst first. All of them
        hold together with probability ``confidence`` (0.95 by default).
    positive : int
        Of two classes, the one whose probability is certified.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns. ``y`` may then hold names, and the sentences use them.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> result = evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 1], metrics=["brier", "accuracy"])
    >>> {name: round(value, 6) for name, value in result.values.items()}
    {'brier': 0.4, 'accuracy': 0.5}
    """
    if confidence is not None:
        confidence = inputs.check_confidence(confidence)
    check_integer("resamples", resamples, 20)
    names = chosen_metrics(metrics)
    known = None if classes is None else check_classes(classes, len(classes))
    y = y if known is None or y is None else encode(y, known)
    s = _sample(probs, y, sample_weight, input)
    if s.k == 2 and not 0 <= positive < 2:
        raise ValueError(f"positive must be 0 or 1, the number of a class, got {positive!r}")
    if groups is not None and s.weight is not None:
        raise ValueError(
            "groups are certified from independent rows, which weighted ones are not: leave the weights out, "
            "or evaluate the rows of each group by themselves"
        )
    other = None if baseline is None else _sample(baseline, y, sample_weight, input)
    if other is not None and other.k != s.k:
        raise ValueError(f"baseline has {other.k} classes, probs has {s.k}")
    notes = _coincidence(probs, calibration, input)
    # A metric that was chosen refuses weights that it cannot take with an error of its own.
    left_out = [n for n in names if not METRICS[n].takes(s)] if metrics is None else []
    values, told = measure(s, [n for n in names if n not in left_out])
    notes += told
    if left_out:
        notes.append(
            f"left out, because they need whole repetition counts as weights: {', '.join(left_out)}"
        )
    draws: dict[str, Any] = {"resamples": resamples, "random_state": random_state}
    found = {} if confidence is None else intervals(s, values, confidence, **draws)
    rate = None
    if s.k == 2:
        name = f"class {positive}" if known is None else str(known[positive])
        stated = s.mean(s.data.column(positive).astype(np.float64))
        rate = PositiveRate(name, stated, s.mean(1.0 * (s.y == positive)))
        notes += swapped(s, None, "class 1" if known is None else str(known[1]))
    tested = (confidence is not None if test is None else test) and s.weight is None and s.n > 1
    proof: dict[str, Any] = {}
    if tested or groups is not None:
        proof["certificate"] = certify(
            s, confidence=confidence or 0.95, by=groups, positive=positive, classes=known
        )
    if tested:
        proof |= _tests(s, proof["certificate"], positive, rate, random_state)
    summary: dict[str, Any] = {
        "accuracy": accuracy(s),
        "mean_confidence": mean_confidence(s),
        "nll": nll(s),
    }
    collapse = collapse_reasons(
        **summary, n_classes=s.k, nll_before=None if other is None else nll(other), rows=s.n
    )
    differences = {} if other is None else _differences(s, other, values, confidence, **draws)
    summary |= {
        "n": s.n,
        "k": s.k,
        "sharpness": sharpness(s),
        "confidence": confidence,
        "positive": rate,
        "differences": differences,
    }
    results = {n: MetricResult(v, METRICS[n], found.get(n)) for n, v in values.items()}
    return Evaluation(results, collapse=tuple(collapse), notes=tuple(notes), **proof, **summary)


def _tests(
    s: Sample, certificate: Certificate, positive: int, rate: PositiveRate | None, seed: int
) -> dict[str, Any]:
    """Return the tests, the assessment that follows from them, and clinical measures of two classes."""
    top, vector = calibration_test(s, random_state=seed), vector_test(s, seed)
    found: dict[str, Any] = {"test": top, "vector_test": vector}
    found["assessment"] = assess(
        s, certificate, top, vector, "top label" if rate is None else f"P({rate.name})"
    )
    if rate is not None and 0 < rate.observed < 1:
        found["clinical"] = clinical(s, None, confidence=certificate.confidence, positive=positive)
    return found


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


def _sample(probs: Any, y: Any, sample_weight: Any, input: inputs.InputKind) -> Sample:
    if isinstance(probs, Sample):
        return probs
    return Sample(probs if input == "probs" else to_probs(probs, input), y, sample_weight)


def _coincidence(probs: Any, calibration: Any, input: inputs.InputKind) -> list[str]:
    """Warn where the rows to evaluate are rows that the calibrator was fitted on."""
    if calibration is None or isinstance(probs, Sample):
        return []
    fitted, tested = (inputs.check_logits(x, input=input)[0] for x in (calibration, probs))
    if fitted.shape[1] != tested.shape[1] or not (text := leakage.coincidence(fitted, tested)):
        return []
    warnings.warn(text, UserWarning, stacklevel=3)
    return [text]


def overlap_note(found: leakage.Overlap | None) -> list[str]:
    """Return a warning for an evaluation on rows of the fit, as a list; empty where there is no overlap."""
    if found is None or not found.sentence:
        return []
    return [f"{found.sentence[0].lower()}{found.sentence[1:-1]}: evaluate it on others"]


def _differences(
    s: Sample,
    other: Sample,
    values: dict[str, float],
    confidence: float | None,
    *,
    resamples: int,
    random_state: int,
) -> dict[str, Difference]:
    """Return every metric minus the baseline's, with an interval from rows resampled together.

    Scores and debiased errors: percentiles. Plug-in errors: the difference ± z standard deviations, because
    the bias that a bootstrap adds to both does not cancel where one of them is nearly calibrated.
    """
    before = measure(other, values)[0]
    out = {n: Difference(before[n], values[n] - before[n]) for n in values}
    if confidence is None:
        return out
    rng = np.random.default_rng(random_state)
    # A metric with a standard error of its own would cost one pass over all pairs (or windows) a replicate.
    paired = [n for n in values if METRICS[n].ends is None]
    plugin = [n for n in paired if METRICS[n].interval == "bias-aware"]
    plain = [n for n in paired if n not in plugin]
    for names, size in ((plain, resamples), (plugin, min(resamples, SPREAD_RESAMPLES))):
        ours, theirs = bootstrap((s, other), names, size, rng)
        for name in names:
            change, drawn = out[name].change, ours[name] - theirs[name]
            reach = float(ndtri((1 + confidence) / 2) * drawn.std(ddof=1))
            low, high = (
                (change - reach, change + reach)
                if name in plugin
                else percentile(drawn, confidence)
            )
            out[name] = Difference(before[name], change, low, high)
    return out
