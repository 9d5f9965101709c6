"""Measure calibration errors in an evaluation loop, batch by batch, with torchmetrics.

The metrics have a state of constant size, which is summed under DDP. They also work in Lightning
(``self.log("val_ece", self.ece)``), a ``MetricCollection``, or an Ignite engine (docs/howto/evaluators.md).

Run: python examples/torchmetrics_loop.py
"""

from __future__ import annotations

import torch

import hcal
from hcal.integrations.torchmetrics import CalibrationMetrics, CalibrationScore


def batches(n: int, size: int = 256) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of labels and of logits that are twice too large."""
    generator = torch.Generator().manual_seed(0)
    evidence = torch.randn(n, 10, generator=generator) * 2
    labels = torch.multinomial(evidence.softmax(dim=1), 1, generator=generator)[:, 0]
    return list(zip((2 * evidence).split(size), labels.split(size), strict=True))


def main() -> dict[str, float]:
    """Add up 20,000 rows in batches, and compare with one call on all rows."""
    from torchmetrics import MetricCollection  # imported late, so that hcal names the missing extra

    metrics = MetricCollection(
        {
            "ece": CalibrationScore(num_classes=10, metric="ece_ew", input="logits"),
            "several": CalibrationMetrics(
                10, ["nll", "brier", "cwece_a", "accuracy"], input="logits"
            ),
        }
    )
    data = batches(20_000)
    for logits, labels in data:
        metrics.update(logits, labels)
    values = {name: float(value) for name, value in metrics.compute().items()}
    logits, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    values["ece of the whole"] = hcal.metrics.ece_ew(logits.softmax(dim=1), labels)
    state = sum(value.numel() for value in metrics["several"].metric_state.values())
    print("  ".join(f"{name} {value:.4f}" for name, value in values.items()))
    print(f"the state has {state} numbers, for any number of rows")
    return values


if __name__ == "__main__":
    main()
