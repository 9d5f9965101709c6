"""Prediction where the scores are: a tensor on an accelerator is calibrated there, without the host.

What cannot be done there, and what the door (:mod:`hcal.inputs`) would refuse, is left to the host, which
says why. One wait on the device asks for the smallest and largest score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from hcal.calibrators.base import Calibrator

#: Values of a block: each of the graph's operations makes as many in float64 (128 MB).
_BLOCK_EVENTS = 1 << 24
#: Scores beyond this are cut (:func:`hcal.runtime.numerics.bounded`), by the host.
_FAR = 1e15


def predict_on_device(calibrator: Calibrator, scores: Any) -> Tensor | None:
    """Return the probabilities of a tensor that lies on an accelerator; None where the host has to make them.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted.
    scores : array-like of shape (N, K)

    Returns
    -------
    Tensor of shape (N, K), or None

    Examples
    --------
    >>> import hcal
    >>> predict_on_device(hcal.make_calibrator("uncal").fit([[0.0, 1.0]], [1]), [[0.0, 1.0]])
    """
    device = getattr(scores, "device", None)
    if getattr(device, "type", "cpu") == "cpu" or type(scores).__module__.partition(".")[0] != "torch":
        return None
    return predict_tensor(calibrator, scores)


def predict_tensor(calibrator: Calibrator, scores: Tensor) -> Tensor | None:
    """Return the probabilities of a tensor in torch's operations, wherever it lies; None as above.

    Parameters
    ----------
    calibrator : Calibrator
    scores : Tensor of shape (N, K)

    Returns
    -------
    Tensor of shape (N, K), or None

    Examples
    --------
    >>> import hcal, torch
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> predict_tensor(cal, torch.tensor([[0.0, 2.0]]))
    tensor([[0.2500, 0.7500]])
    """
    import torch

    from hcal.calibrators.program import program
    from hcal.runtime.halves import HALVES, narrow
    from hcal.runtime.torch_ops import WIDTHS, DeviceOps

    if not _is_admitted(calibrator, scores):
        return None
    half = scores.dtype in HALVES
    wide = torch.float32 if half else scores.dtype  # halves are computed in float32, and narrowed at the end
    eps, smallest = WIDTHS[wide]
    out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    rows = max(1, _BLOCK_EVENTS // scores.shape[1])
    with torch.no_grad():
        for start in range(0, len(scores), rows):
            x = scores[start : start + rows].detach()
            ops = DeviceOps(scores.device, wide)
            probs = program(calibrator, ops, x.to(torch.float64), eps=eps, smallest=smallest)
            part = narrow(probs.to(wide), x, scores.dtype, calibrator.preserves) if half else probs
            out[start : start + rows] = part
    return out


def _is_admitted(calibrator: Calibrator, scores: Tensor) -> bool:
    """Whether scores are plain logits that need no word from the door: finite, and no probabilities."""
    import torch

    from hcal.calibrators.program import is_portable

    if calibrator.input != "logits" or not is_portable(calibrator) or not scores.is_floating_point():
        return False
    if scores.ndim != 2 or scores.shape[1] != calibrator.n_classes_ or not len(scores):
        return False
    low, high = torch.stack(torch.aminmax(scores.detach())).tolist()  # a NaN comes out, and fails below
    return low >= -_FAR and high <= _FAR and not (low >= 0 and high <= 1)
