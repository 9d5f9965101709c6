"""The objective of a small batch on a GPU as ONE launch: its kernels, recorded as a CUDA graph and replayed.

At 5000×10 they run for a quarter of a millisecond and take four times as long to launch one by one. A batch
of the same shape comes again and again in training, so the second one is recorded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Beyond this many events kernels take longer than their launches.
MAX_EVENTS = 1 << 19
#: Recordings kept: each holds the memory of one evaluation.
_KEPT = 4
_WARM_UP = 2

Evaluated = tuple[Tensor, Tensor | None]
Evaluate = Callable[[Tensor, Tensor], Evaluated]


class Recording:
    """One evaluation, recorded with buffers of its own for what goes in and out.

    ``evaluate`` makes loss and gradient of probs (N, K) and labels (N,) on a CUDA device by kernels alone.
    """

    def __init__(self, evaluate: Evaluate, probs: Tensor, y: Tensor) -> None:
        self._probs, self._y = probs.clone(), y.clone()
        side = torch.cuda.Stream(probs.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(probs.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                evaluate(self._probs, self._y)
        torch.cuda.current_stream(probs.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss, self._grad = evaluate(self._probs, self._y)

    def __call__(self, probs: Tensor, y: Tensor) -> Evaluated:
        """Return the loss and the gradient, in memory of their own."""
        self._probs.copy_(probs)
        self._y.copy_(y)
        self._graph.replay()
        return self._loss.clone(), None if self._grad is None else self._grad.clone()


class Recordings:
    """The recordings of a process, by shape, settings and stream; None marks what was seen once.

    >>> Recordings().suits(torch.zeros(2, 2))
    False
    """

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Recording | None] = OrderedDict()
        self._lock = threading.Lock()

    def suits(self, probs: Tensor) -> bool:
        """Return whether an evaluation of such probabilities may and should be replayed."""
        small = probs.is_cuda and probs.numel() <= MAX_EVENTS
        return small and not torch.cuda.is_current_stream_capturing()

    def run(self, key: Any, evaluate: Evaluate, probs: Tensor, y: Tensor) -> Evaluated:
        """Evaluate: the first time as it is, then recorded."""
        stream = torch.cuda.current_stream(probs.device).cuda_stream
        key = (key, tuple(probs.shape), y.dtype, probs.device, stream)
        with self._lock:  # two threads must not fill one recording's buffers
            if key not in self._found:
                self._keep(key, None)
                return evaluate(probs, y)
            recording = self._found[key]
            if recording is None:
                recording = Recording(evaluate, probs, y)
            self._keep(key, recording)
            return recording(probs, y)

    def _keep(self, key: Any, recording: Recording | None) -> None:
        self._found[key] = recording
        self._found.move_to_end(key)
        while len(self._found) > _KEPT:
            self._found.popitem(last=False)


recordings = Recordings()
