"""Export a PyTorch network and its calibrator to one ONNX file that returns probabilities.

Run: python examples/onnx_network.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hcal
from hcal.integrations.torch import CalibratedModule, collect_logits

try:
    import onnxruntime
    import onnxscript  # noqa: F401  (PyTorch's exporter needs it)
except ImportError:
    needed = "onnxruntime and PyTorch's onnxscript"
    raise ImportError(f"this example needs {needed}: pip install onnxruntime onnxscript") from None


def make_rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of three classes with four features; labels are drawn at random."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    p = hcal.softmax(x[:, :3])
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def train() -> nn.Module:
    """Return a small network, trained for too long."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    x, y = make_rows(300, seed=0)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(400):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def export(net: nn.Module, path: Path) -> None:
    """Write the calibrated network with PyTorch's own exporter."""
    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(
        net, (torch.zeros(2, 4),), path, dynamic_shapes=(({0: batch},),), verbose=False
    )


def main() -> dict[str, float]:
    """Train, calibrate, export both together, and compare with hcal itself."""
    net = train()
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*make_rows(1000, seed=1)), batch_size=250
    )
    calibrator = hcal.make_calibrator("ts").fit(*collect_logits(net, batches))
    x, y = make_rows(2000, seed=2)
    with torch.no_grad():
        expected = calibrator.predict_proba(net(x)).numpy()
        raw = net(x).softmax(dim=1)
    with tempfile.TemporaryDirectory() as folder:
        both = Path(folder) / "calibrated.onnx"
        export(CalibratedModule(net, calibrator).eval(), both)
        session = onnxruntime.InferenceSession(both, providers=["CPUExecutionProvider"])
        (probs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    result = {
        "largest difference": float(np.abs(probs - expected).max()),
        "ECE before": hcal.metrics.ece_ew(raw, y),
        "ECE after": hcal.metrics.ece_ew(probs, y),
    }
    for name, value in result.items():
        print(f"{name:20} {value:.2g}")
    return result


if __name__ == "__main__":
    main()
