"""Use HCalibrationLoss while a network trains.

Cross-entropy makes a flexible network over-confident on its training rows. Here the h-calibration loss of a second
batch, which cross-entropy does not see, is added. The comparison is fair: without the h loss, cross-entropy gets the
same 3,000 rows. The program prints the errors on fresh test rows.

Run: python examples/train_with_h_loss.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import hcal


def make_rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of ten classes in 20 dimensions; labels are random, so no network can be right about all of them."""
    law = np.random.default_rng(0).normal(size=(20, 10)) * 0.7
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 20))
    p = hcal.softmax(x @ law)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def train(strength: float, *, epochs: int = 60) -> nn.Module:
    """Minimise cross-entropy on 2,000 rows plus ``strength`` times the h-calibration loss on 1,000 others.

    At strength 0 all 3,000 rows go to cross-entropy.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    h_loss = hcal.HCalibrationLoss(scale=1.0)  # scale is a factor; 1 keeps `strength` readable
    x, y = make_rows(2000, seed=1)
    x_held, y_held = make_rows(1000, seed=2)
    if not strength:
        x = torch.cat([x, x_held])
        y = torch.cat([y, y_held])
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(200):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            if strength:
                loss = loss + strength * h_loss(net(x_held).softmax(dim=1), y_held)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net.eval()


def main() -> dict[str, dict[str, float]]:
    """Train twice, print and return the test scores."""
    x, y = make_rows(5000, seed=3)
    results = {}
    for name, strength in (("cross-entropy", 0.0), ("with h-calibration", 20.0)):
        net = train(strength)
        with torch.no_grad():
            probs = net(x).softmax(dim=1)
        results[name] = {
            "accuracy": hcal.metrics.accuracy(probs, y),
            "ece_ew": hcal.metrics.ece_ew(probs, y),
            "nll": hcal.metrics.nll(probs, y),
        }
        print(f"{name:20}", "  ".join(f"{k} {v:.4f}" for k, v in results[name].items()))
    return results


if __name__ == "__main__":
    main()
