"""torch.distributed: metrics and monitoring over the rows of all ranks, without gathering the rows.

Each rank sums up its own rows. The ranks exchange these sums (or, of monitors, the evidence so far) in one
``all_gather`` of constant size. Without an initialised process group there is one rank, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import distributed

from hcal.certificates import Alarm, Monitor
from hcal.inputs import InputKind, check_kind, to_probs
from hcal.metrics.sample import Event
from hcal.metrics.streaming import StreamingMetrics
from hcal.passes import merged
from hcal.text import JsonObject

__all__ = ["DistributedMetrics", "DistributedMonitor"]

#: What a rank adds its rows to.
Part = TypeVar("Part", StreamingMetrics, Monitor)


class _Accumulator(torch.nn.Module, Generic[Part]):
    """A partial result of this rank's rows as a module without parameters and buffers.

    Buffers would be overwritten by those of rank 0 in DistributedDataParallel and narrowed by ``half()``;
    the part is in ``state_dict`` as extra state instead, of each rank its own.
    """

    def __init__(
        self, part: Part, input: InputKind, group: distributed.ProcessGroup | None
    ) -> None:
        super().__init__()
        check_kind(input)
        self.part: Part = part
        self.input: InputKind = input
        self.group = group

    def forward(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        """Add this rank's batch.

        Parameters
        ----------
        scores : Tensor of shape (N, K), or (N,) for a binary problem
        y : Tensor of shape (N,)
        """
        if len(y):
            self.part.update(to_probs(scores.detach(), self.input), y.detach())

    def get_extra_state(self) -> JsonObject:
        """Return what this rank has seen."""
        return self.part.state

    def set_extra_state(self, state: JsonObject) -> None:
        """Continue from a saved module."""
        self.part = type(self.part).from_state(state)


class DistributedMetrics(_Accumulator[StreamingMetrics]):
    """Streamed metrics over all ranks.

    Parameters
    ----------
    n_classes : int
    metrics : list of str, optional
        Any of ``hcal.metrics.streaming.NAMES``; all of them by default.
    input : {"probs", "logits", "log_probs"}
    group : process group, optional
    event : {"auto", "top-label"}
        What top-label metrics measure: of two classes the probability of ``positive`` ("auto"), else that of the
        predicted class.
    positive : {0, 1}

    Examples
    --------
    >>> module = DistributedMetrics(2, ["brier"])
    >>> module(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([1, 1]))
    >>> round(module.compute()["brier"], 6)
    0.4
    """

    def __init__(
        self,
        n_classes: int,
        metrics: Iterable[str] | None = None,
        *,
        input: InputKind = "probs",
        group: distributed.ProcessGroup | None = None,
        event: Event = "auto",
        positive: int = 1,
    ) -> None:
        part = StreamingMetrics(n_classes, metrics, event=event, positive=positive)
        super().__init__(part, input, group)

    def compute(self) -> dict[str, float]:
        """Return the metrics of the rows of all ranks; every rank must call it."""
        parts = map(StreamingMetrics.from_state, _gathered(self.part.state, self.group))
        return merged(parts, self.part.empty).result()

    def reset(self) -> None:
        """Forget this rank's rows."""
        self.part = self.part.empty()


class DistributedMonitor(_Accumulator[Monitor]):
    """A monitor of the rows of all ranks: it multiplies their evidence, and its false-alarm rate is the monitor's.

    The ranks must see different rows. Do not use the alarm of a single rank (``module.part.alarm``): with R ranks the
    probability that one of them raises a false alarm is up to R times as high.

    Parameters
    ----------
    monitor : Monitor, optional
        The monitor of each rank: confidence, tolerance and events must be the same on all ranks.
    input : {"probs", "logits", "log_probs"}
    group : process group, optional

    Attributes
    ----------
    alarm : Alarm or None
        The first that :meth:`compute` found; its row counts the rows of all ranks.
    log_evidence : float
        As of the last :meth:`compute`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.6, 1, 2000)
    >>> worse = rng.random(2000) < p - 0.1
    >>> module = DistributedMonitor()
    >>> module(torch.from_numpy(p), torch.from_numpy(worse).long())
    >>> module.compute().direction
    'stated too high'
    """

    def __init__(
        self,
        monitor: Monitor | None = None,
        *,
        input: InputKind = "probs",
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__(Monitor() if monitor is None else monitor, input, group)
        self.alarm: Alarm | None = None
        self.log_evidence = 0.0

    def compute(self) -> Alarm | None:
        """Multiply the evidence of all ranks so far and return the alarm, if any; every rank must call it."""
        own: JsonObject = {"rows": self.part.n, "log_evidence": self.part.log_evidence}
        own["strongest"] = asdict(self.part.strongest()) if self.part.n else None
        ranks = _gathered(own, self.group)
        # Over time only the product of all ranks is a martingale, so only that may raise the alarm.
        self.log_evidence = sum(rank["log_evidence"] for rank in ranks)
        if self.alarm is None and self.log_evidence >= self.part.threshold:
            loudest = max(
                (rank for rank in ranks if rank["rows"]), key=lambda rank: rank["log_evidence"]
            )
            evidence = float(np.exp(min(self.log_evidence, 700.0)))
            seen = sum(rank["rows"] for rank in ranks)
            self.alarm = replace(Alarm(**loudest["strongest"]), row=seen, evidence=evidence)
        return self.alarm

    def get_extra_state(self) -> JsonObject:
        """Return what this rank has seen, and the alarm of all."""
        return {
            "part": self.part.state,
            "alarm": None if self.alarm is None else asdict(self.alarm),
        }

    def set_extra_state(self, state: JsonObject) -> None:
        """Continue from a saved module."""
        super().set_extra_state(state["part"])
        self.alarm = None if state["alarm"] is None else Alarm(**state["alarm"])


def _gathered(state: JsonObject, group: distributed.ProcessGroup | None) -> list[JsonObject]:
    """Return the states of all ranks in their order."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [state]
    states: list[JsonObject] = [{}] * distributed.get_world_size(group)
    distributed.all_gather_object(states, state, group=group)
    return states
