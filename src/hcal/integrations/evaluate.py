"""Hugging Face: ``compute_metrics`` for Trainer, and every metric as an ``evaluate`` module.

>>> scores = compute_metrics(["accuracy", "ece_ew"])
>>> scores((np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([1, 1])))["accuracy"]
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hcal.evaluation import evaluate
from hcal.extras import missing
from hcal.inputs import InputKind, to_numpy
from hcal.metrics.registry import get_metric

__all__ = ["HEADLINE", "compute_metrics", "load"]

#: What ``compute_metrics`` reports unless told otherwise.
HEADLINE = ("accuracy", "nll", "brier", "ece_ew", "smece", "cwece_a")
#: What Trainer writes where a token has no label.
IGNORED = -100


def compute_metrics(
    metrics: Iterable[str] = HEADLINE, *, input: InputKind = "logits"
) -> Callable[[Any], dict[str, float]]:
    """Return a ``compute_metrics`` for ``transformers.Trainer``; it needs no other package.

    Parameters
    ----------
    metrics : list of str
        Names of :func:`hcal.list_metrics`.
    input : {"logits", "probs", "log_probs"}
        What the model's predictions are.

    Returns
    -------
    callable
        ``(EvalPrediction or (predictions, label_ids)) -> {metric: float}``. Where the model returns a tuple,
        its first entry counts; labels of −100 (tokens without one) do not.

    Examples
    --------
    >>> trainer_arguments = {"compute_metrics": compute_metrics()}
    """
    names = [get_metric(name).name for name in metrics]

    def compute(found: Any) -> dict[str, float]:
        predictions, labels = getattr(found, "predictions", None), getattr(found, "label_ids", None)
        if predictions is None:
            predictions, labels = found
        scores, y = _flat(predictions[0] if isinstance(predictions, tuple) else predictions, labels)
        return evaluate(scores, y, names, input=input).to_dict()

    return compute


def _flat(predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Return scores (N, K) and labels (N,): tokens one by one, those without a label left out."""
    scores, y = to_numpy(predictions, "predictions")[0], to_numpy(labels, "label_ids")[0]
    if scores.shape[:-1] != y.shape:
        raise ValueError(
            f"predictions has shape {scores.shape}, which does not fit labels of shape {y.shape}"
        )
    scores, y = scores.reshape(-1, scores.shape[-1]), y.reshape(-1)
    return scores[y != IGNORED], y[y != IGNORED]


def load(name: str, *, input: InputKind = "probs", **options: Any) -> Any:
    """Return a metric as a module of Hugging Face's ``evaluate``, like ``evaluate.load`` does.

    Parameters
    ----------
    name : str
        One of :func:`hcal.list_metrics`.
    input : {"probs", "logits", "log_probs"}
        What ``predictions`` hold.
    **options
        Of ``evaluate.Metric``, such as ``num_process`` and ``process_id``.

    Returns
    -------
    evaluate.Metric
        With ``add``, ``add_batch`` and ``compute(predictions=(N, K), references=(N,))``.
    """
    try:
        import evaluate as huggingface
        from datasets import Features, Sequence, Value
    except ImportError:
        raise missing("load", "evaluate", "evaluate") from None
    metric = get_metric(name)

    class Module(huggingface.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            return huggingface.MetricInfo(
                description=f"{metric.title}: {metric.explain}",
                citation="",
                inputs_description="predictions: N rows of K numbers; references: N labels 0..K-1",
                features=Features({"predictions": Sequence(Value("float64")), "references": Value("int64")}),
            )

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return evaluate(np.asarray(predictions), references, [name], input=input).to_dict()

    Module.__name__ = Module.__qualname__ = f"hcal_{name}"
    return Module(**options)
