"""Calibration errors in an evaluation loop, batch by batch, with a state of constant size (torchmetrics).

The same objects go into Lightning (``self.log("val_ece", self.ece)``), a ``MetricCollection``, or an Ignite
engine (docs/howto/evaluators.md); under DDP their states are summed.

Run: python examples/torchmetrics_loop.py
"""

from __future__ import annotations

import torch

import hcal
from hcal.integrations.torchmetrics import CalibrationMetrics, CalibrationScore


def batches(n: int, size: int = 256) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return logits that are twice too sure, with labels, in batches."""
    generator = torch.Generator().manual_seed(0)
    evidence = torch.randn(n, 10, generator=generator) * 2
    labels = torch.multinomial(evidence.softmax(dim=1), 1, generator=generator)[:, 0]
    return list(zip((2 * evidence).split(size), labels.split(size), strict=True))


def main() -> dict[str, float]:
    """Go through 20,000 rows, and compare with the whole at once."""
    from torchmetrics import MetricCollection  # here, so that what is missing is said by hcal

    metrics = MetricCollection(
        {
            "ece": CalibrationScore(num_classes=10, metric="ece_ew", input="logits"),
            "several": CalibrationMetrics(10, ["nll", "brier", "cwece_a", "accuracy"], input="logits"),
        }
    )
    data = batches(20_000)
    for logits, labels in data:
        metrics.update(logits, labels)
    found = {name: float(value) for name, value in metrics.compute().items()}
    logits, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    found["ece of the whole"] = hcal.metrics.ece_ew(logits.softmax(dim=1), labels)
    state = sum(value.numel() for value in metrics["several"].metric_state.values())
    print("  ".join(f"{name} {value:.4f}" for name, value in found.items()))
    print(f"the state has {state} numbers, for any number of rows")
    return found


if __name__ == "__main__":
    main()
