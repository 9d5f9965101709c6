"""Calibrate the pixels of a segmentation network, where some pixels have no label.

The example makes its own images and trains a small convolutional network on a few of them.

Run: python examples/segmentation.py
"""

from __future__ import annotations

import torch
from torch import nn

import hcal
from hcal.integrations import dense
from hcal.integrations.torch import CalibratedModule, collect_logits

UNLABELLED = 255


def make_images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images of three kinds of ground; the border of each image has no label."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 3, (n, 1, 6, 6), generator=g).float()
    y = nn.functional.interpolate(coarse, scale_factor=4).squeeze(1).long()
    x = y[:, None].float() + 1.5 * torch.randn(n, 1, 24, 24, generator=g)
    y[:, :2], y[:, -2:], y[:, :, :2], y[:, :, -2:] = UNLABELLED, UNLABELLED, UNLABELLED, UNLABELLED
    return x, y


def train() -> nn.Module:
    """Return a small network, trained for too long on 6 images."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 3, 5, padding=2))
    x, y = make_images(6, seed=0)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y, ignore_index=UNLABELLED).backward()
        optimiser.step()
    return net.eval()


def main() -> dict[str, float]:
    """Fit on the labelled pixels of 20 images, attach the calibrator to the network, and test on 30 other images."""
    net = train()
    calibrator = hcal.make_calibrator("ts")
    calibrator.fit(
        *collect_logits(net, [make_images(20, seed=1)], ignore_index=UNLABELLED, pixels=200)
    )
    model = CalibratedModule(net, calibrator).eval()
    x, y = make_images(30, seed=2)
    with torch.no_grad():
        before = net(x).softmax(dim=1)
        after = model(x)
    result = {
        name: hcal.metrics.ece_ew(*dense.rows(probs, y, ignore_index=UNLABELLED))
        for name, probs in (("ECE before", before), ("ECE after", after))
    }
    print(f"output {tuple(after.shape)}", "  ".join(f"{k} {v:.4f}" for k, v in result.items()))
    return result


if __name__ == "__main__":
    main()
