"""Hugging Face: ``compute_metrics`` for Trainer, and every metric as an ``evaluate`` module.

>>> scores = compute_metrics(["accuracy", "ece_ew"])
>>> scores((np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([1, 1])))["accuracy"]
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.evaluation import evaluate
from hcal.extras import load_extra
from hcal.frames import AnyArray
from hcal.inputs import InputKind, to_numpy, to_probs
from hcal.integrations import dense
from hcal.metrics.registry import get_metric
from hcal.metrics.sample import Event, Sample

if TYPE_CHECKING:
    from evaluate import Metric, MetricInfo

__all__ = ["HEADLINE", "compute_metrics", "load"]

#: The default metrics of ``compute_metrics``.
HEADLINE = ("accuracy", "nll", "brier", "ece_ew", "smece", "cwece_a")
#: The label of tokens that Trainer ignores.
IGNORED = -100


def compute_metrics(
    metrics: Iterable[str] = HEADLINE,
    *,
    input: InputKind = "logits",
    event: Event = "auto",
    positive: int = 1,
) -> Callable[[Any], dict[str, float]]:
    """Return a ``compute_metrics`` for ``transformers.Trainer``; it needs no other package.

    Parameters
    ----------
    metrics : list of str
        Names of :func:`hcal.list_metrics`.
    input : {"logits", "probs", "log_probs"}
        What the model's predictions are.
    event : {"auto", "top-label"}
        What top-label metrics measure. "auto": the probability of the class ``positive`` if there are two classes,
        else that of the predicted class. "top-label": that of the predicted class, for two classes too.
    positive : {0, 1}
        The positive one of two classes.

    Returns
    -------
    callable
        ``(EvalPrediction or (predictions, label_ids)) -> {metric: float}``. If the model returns a tuple, its first
        entry is used. Labels of −100 (tokens without a label) are ignored.

    Examples
    --------
    >>> trainer_arguments = {"compute_metrics": compute_metrics()}
    """
    names = [get_metric(name).name for name in metrics]

    def compute(prediction: Any) -> dict[str, float]:
        if getattr(prediction, "predictions", None) is None:
            outputs, labels = prediction
        else:
            outputs, labels = prediction.predictions, prediction.label_ids
        if isinstance(outputs, tuple):
            outputs = outputs[0]
        scores, _ = to_numpy(outputs, "predictions")
        y, _ = to_numpy(labels, "label_ids")  # of tokens one by one: (N, T, K) and (N, T)
        rows, y = dense.rows(np.moveaxis(scores, -1, 1), y, ignore_index=IGNORED)
        sample = Sample(to_probs(rows, input), y, event=event, positive=positive)
        return evaluate(sample, metrics=names).values

    return compute


def load(
    name: str,
    *,
    input: InputKind = "probs",
    event: Event = "auto",
    positive: int = 1,
    **options: object,
) -> Metric:
    """Return a metric as a module of Hugging Face's ``evaluate``, like ``evaluate.load`` does.

    Parameters
    ----------
    name : str
        One of :func:`hcal.list_metrics`.
    input : {"probs", "logits", "log_probs"}
        What ``predictions`` hold.
    event : {"auto", "top-label"}
        What top-label metrics measure. "auto": the probability of the class ``positive`` if there are two classes,
        else that of the predicted class. "top-label": that of the predicted class, for two classes too.
    positive : {0, 1}
        The positive one of two classes.
    **options
        Of ``evaluate.Metric``, such as ``num_process`` and ``process_id``.

    Returns
    -------
    evaluate.Metric
        With ``add``, ``add_batch`` and ``compute(predictions=(N, K), references=(N,))``.

    Examples
    --------
    >>> metric = load("ece_ew")  # doctest: +SKIP
    >>> metric.compute(predictions=[[0.2, 0.8]], references=[1])  # doctest: +SKIP
    """
    huggingface = load_extra("load", "evaluate", "evaluate")
    from datasets import Features, Sequence, Value

    metric = get_metric(name)

    class Module(huggingface.Metric):  # type: ignore[misc, name-defined]
        def _info(self) -> MetricInfo:
            return huggingface.MetricInfo(
                description=f"{metric.title}: {metric.explain}",
                citation="",
                inputs_description="predictions: N rows of K numbers; references: N labels 0..K-1",
                features=Features(
                    {"predictions": Sequence(Value("float64")), "references": Value("int64")}
                ),
            )

        def _compute(self, predictions: AnyArray, references: AnyArray) -> dict[str, float]:
            probs = to_probs(np.asarray(predictions), input)
            sample = Sample(probs, references, event=event, positive=positive)
            return evaluate(sample, metrics=[name]).values

    Module.__name__ = Module.__qualname__ = f"hcal_{name}"
    return Module(**options)
