"""Bootstrap replicates and drawn labels of a sample on a device, all of them at once.

Random numbers are drawn on the host, by the same generator in the same order as for arrays: the replicates
are the same ones, and so are the intervals, but for the rounding of sums.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.device import on
from hcal.metrics.device_ranked import DeviceRanked, host
from hcal.metrics.sample import BLOCK, Data, Sample, Vector
from hcal.numerics import Float64, IntArray


class Replicates(Sample):
    """Many samples at once: one set of predictions with many weights, or with many sets of labels.

    Metrics take it in place of a sample (of a tensor) and answer with one value a replicate. Weights
    (B, N) and labels (D, N) are the sample's own by default.
    """

    def __init__(self, s: Sample, weights: Any = None, labels: Any = None) -> None:
        self.data, self.weight, self.keep_clusters = s.data, s.weight, True
        device = s.data.tensor.device
        self.weights = on(s.data, s.w)[None] if weights is None else torch.as_tensor(weights, device=device)
        self.labels = on(s.data, s.y)[None] if labels is None else torch.as_tensor(labels, device=device)

    def need_repetitions(self, metric: str, *, copied: bool = False) -> None:
        """Refuse nothing: the sample that was resampled has been asked."""

    def _ranked(self, conf: Vector, order: IntArray, event: Tensor) -> DeviceRanked:
        places = on(self.data, order)
        return DeviceRanked(conf, event[:, places].double(), self.weights[:, places])

    @cached_property
    def ranked(self) -> DeviceRanked:
        """The top labels in the order of the confidences."""
        d = self.data
        return self._ranked(d.conf_sorted, d.order, self.labels == on(d, d.pred))

    @cached_property
    def ranked_positive(self) -> DeviceRanked:
        """Of two classes: class 1 in the order of its probability."""
        return self._ranked(*self.data.positive, self.labels == 1)

    def means(self, values: Vector) -> Float64:
        """Return the weighted means of one value a row, shape (B,)."""
        found = self.weights @ on(self.data, values) / self.weights.sum(dim=1)
        return np.asarray(host(found))


def ranked_hits(data: Data, hit: Any) -> DeviceRanked:
    """Return the top labels in the order of the confidences with other hits, shape (D, N)."""
    drawn = on(data, hit).double()
    return DeviceRanked(data.conf_sorted, drawn, torch.ones_like(drawn[:1]))


def drawn_weights(s: Sample, n_resamples: int, rng: np.random.Generator) -> Tensor:
    """Draw rows with replacement, as counts times the sample's own weights, shape (B, N)."""
    rows = np.flatnonzero(s.w > 0)
    # int32 draws the same numbers as int64, and half as much is sent.
    drawn = np.stack([rng.integers(0, len(rows), len(rows), dtype=np.int32) for _ in range(n_resamples)])
    places = on(s.data, rows)[on(s.data, drawn)]
    out = torch.zeros(n_resamples, s.n, dtype=torch.float64, device=places.device)
    # Sums of ones are exact in any order.
    out.scatter_add_(1, places, torch.ones((), dtype=torch.float64, device=places.device).expand_as(places))
    return out if s.weight is None else out * on(s.data, s.weight)


def drawn_labels_on_device(data: Data, n_draws: int, rng: np.random.Generator) -> Tensor:
    """Draw labels from the predictions, shape (D, N)."""
    parts = []
    step = max(1, BLOCK // data.k)  # the blocks of the host: the random numbers come in their order
    for i in range(0, data.n, step):
        cumulated = data.tensor[i : i + step].cumsum(dim=1, dtype=torch.float64)
        cumulated /= cumulated[:, -1:].clone()
        uniform = on(data, rng.random((n_draws, len(cumulated)))).T.contiguous()
        parts.append(torch.searchsorted(cumulated, uniform, right=True).clamp_(max=data.k - 1))
    return torch.cat(parts).T.contiguous()
