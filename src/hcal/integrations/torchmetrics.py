"""torchmetrics: calibration errors whose state does not grow with the data, also with DDP, Lightning and Ignite.

torchmetrics' own calibration error stores every confidence. Here the state is a few small arrays, which are summed over
batches and processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from hcal.extras import load_extra
from hcal.inputs import InputKind, check_kind, to_probs
from hcal.integrations import dense
from hcal.metrics.sample import Event
from hcal.metrics.streaming import StreamingMetrics

load_extra("this integration", "torchmetrics", "torchmetrics")
from torchmetrics import Metric  # noqa: E402

__all__ = ["CalibrationMetrics", "CalibrationScore"]


class CalibrationMetrics(Metric):
    """Several metrics of hcal as one torchmetrics metric; ``compute`` returns a dictionary.

    Parameters
    ----------
    num_classes : int
    metrics : list of str, optional
        Any of ``hcal.metrics.streaming.NAMES``; all of them by default.
    input : {"probs", "logits", "log_probs"}
        What ``preds`` holds; it is not guessed.
    ignore_index : int, optional
        Rows, or pixels, with this target do not count.
    event : {"auto", "top-label"}
        What top-label metrics measure. "auto": the probability of the class ``positive`` if there are two classes,
        else that of the predicted class. "top-label": that of the predicted class, for two classes too.
    positive : {0, 1}
        The positive one of two classes.
    **kwargs
        Of ``torchmetrics.Metric``.

    Examples
    --------
    >>> metric = CalibrationMetrics(2, ["ece_ew", "brier"])
    >>> metric.update(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([1, 1]))
    >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
    {'ece_ew': 0.4, 'brier': 0.4}
    """

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    def __init__(
        self,
        num_classes: int,
        metrics: Iterable[str] | None = None,
        *,
        input: InputKind = "probs",
        ignore_index: int | None = None,
        event: Event = "auto",
        positive: int = 1,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        check_kind(input)
        self._empty = StreamingMetrics(num_classes, metrics, event=event, positive=positive)
        self.num_classes = self._empty.n_classes
        self.metrics = self._empty.metrics
        self.input = input
        self.ignore_index = ignore_index
        for name, value in self._empty.state["sums"].items():
            self.add_state(f"hcal_{name}", torch.from_numpy(np.array(value)), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch.

        Parameters
        ----------
        preds : tensor of shape (N, K) or (N, K, ...), or (N,) for P(class 1) of a binary problem
        target : tensor of shape (N,) or (N, ...)
        """
        scores, labels = dense.rows(preds.detach(), target.detach(), ignore_index=self.ignore_index)
        if not len(labels):
            return
        part = self._empty.empty().update(to_probs(scores, self.input), labels)
        for name, value in part.state["sums"].items():
            total = getattr(self, f"hcal_{name}")
            total += torch.from_numpy(value).to(total.device)

    def compute(self) -> dict[str, torch.Tensor]:
        """Return the metrics of everything seen, as float64 scalars; NaN where nothing was seen.

        Returns
        -------
        dict of tensors
        """
        state = self._empty.state
        for name in state["sums"]:
            state["sums"][name] = getattr(self, f"hcal_{name}").double().cpu().numpy()
        stream = StreamingMetrics.from_state(state)
        values = stream.compute() if stream.n else dict.fromkeys(self.metrics, float("nan"))
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.device)
            for name, value in values.items()
        }

    def set_dtype(self, dst_type: str | torch.dtype) -> CalibrationMetrics:
        """Keep the sums in float64: a half float cannot count half a million rows."""
        return self


class CalibrationScore(CalibrationMetrics):
    """One metric of hcal as a torchmetrics metric; ``compute`` gives a scalar, as Lightning's ``log`` wants.

    Parameters
    ----------
    num_classes : int
    metric : str
        One of ``hcal.metrics.streaming.NAMES``.
    **kwargs
        ``input``, ``event``, ``positive`` and others, as for :class:`CalibrationMetrics`.

    Examples
    --------
    >>> metric = CalibrationScore(2, "accuracy")
    >>> metric(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([1, 1]))
    tensor(0.5000, dtype=torch.float64)
    """

    def __init__(self, num_classes: int, metric: str = "ece_ew", **kwargs: Any) -> None:
        super().__init__(num_classes, [metric], **kwargs)

    def compute(self) -> torch.Tensor:  # type: ignore[override]  # one of the metrics alone
        """Return the metric of everything seen.

        Returns
        -------
        scalar tensor
        """
        return super().compute()[self.metrics[0]]
