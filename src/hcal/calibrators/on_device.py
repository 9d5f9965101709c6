"""Fit and prediction where the scores are: a tensor on an accelerator is calibrated there, not on the host.

What cannot be done there, and what the door (:mod:`hcal.inputs`) would refuse, is left to the host, which
says why. One wait on the device asks for the smallest and largest score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.metrics.summary import Scores, score_probs
from hcal.runtime.device_rows import DeviceRows
from hcal.numerics import Float64, IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from hcal.calibrators.base import Calibrator

#: Values of a block: each of the graph's operations makes as many in float64 (128 MB).
_BLOCK_EVENTS = 1 << 24
#: Scores beyond this are cut (:func:`hcal.numerics.bounded`), by the host.
_FAR = 1e15
#: Devices whose tensors the host calibrates: its own, those without float64, and those without values.
_AT_HOME = ("cpu", "mps", "meta")
#: Bytes that a fit needs on the device, for each score: a few tables of float64 at a time.
_FIT_BYTES = 80


def is_elsewhere(scores: Any) -> bool:
    """Return whether scores are a tensor that lies on an accelerator.

    >>> is_elsewhere([[0.0, 1.0]])
    False
    """
    kind = getattr(getattr(scores, "device", None), "type", "cpu")
    return kind not in _AT_HOME and type(scores).__module__.partition(".")[0] == "torch"


def predict_on_device(calibrator: Calibrator, scores: Any) -> Tensor | None:
    """Return the probabilities (N, K) of a tensor on an accelerator; None where the host has to make them."""
    return predict_tensor(calibrator, scores) if is_elsewhere(scores) else None


def top_on_device(calibrator: Calibrator, scores: Any) -> IntArray | None:
    """Return the most probable classes (N,) of a tensor on an accelerator: they alone come to the host.

    None as above. Halves are not narrowed again: two classes could meet.

    >>> import hcal
    >>> top_on_device(hcal.make_calibrator("uncal").fit([[0.0, 1.0]], [1]), [[0.0, 1.0]])
    """
    if not is_elsewhere(scores):
        return None
    half = scores.is_floating_point() and scores.element_size() == 2
    probs = predict_tensor(calibrator, scores.float() if half else scores)
    return None if probs is None else np.asarray(probs.argmax(dim=1).cpu().numpy())


def rows_on_device(calibrator: Calibrator, scores: Any) -> DeviceRows | None:
    """Return the scores (N, K) of a fit where they lie; None leaves the fit to the host."""
    if not is_elsewhere(scores) or scores.ndim != 2 or not calibrator._fits_on_device(*scores.shape):
        return None
    if not _are_plain_logits(calibrator, scores) or not _has_room(scores):
        return None
    x = scores.detach()
    return DeviceRows(x if x.element_size() > 2 else x.float())


def _has_room(scores: Tensor) -> bool:
    import torch

    if scores.device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(scores.device)
    return scores.numel() * _FIT_BYTES < free


def probs_of_rows(calibrator: Calibrator, rows: DeviceRows) -> Tensor:
    """Return the probabilities (N, K) of rows that a fit has admitted."""
    probs = predict_tensor(calibrator, rows.tensor)
    if probs is None:  # rows that all lie in [0, 1], say: the door has let them in as part of others
        import torch

        probs = torch.from_numpy(calibrator._predict_blocks(rows[:])).to(rows.tensor.device)
    return probs


def score_on_device(
    calibrator: Calibrator, rows: DeviceRows, y: IntArray, weight: Float64 | None
) -> dict[str, Scores]:
    """Return the scores of a fit before and after."""
    import torch

    before = score_probs(torch.softmax(rows.tensor, dim=1), y, weight)
    return {"before": before, "after": score_probs(probs_of_rows(calibrator, rows), y, weight)}


def predict_tensor(calibrator: Calibrator, scores: Tensor) -> Tensor | None:
    """Return the probabilities of a tensor (N, K) in torch's operations, wherever it lies; None as above.

    >>> import hcal, torch
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> predict_tensor(cal, torch.tensor([[0.0, 2.0]]))
    tensor([[0.2500, 0.7500]])
    """
    import torch

    from hcal.calibrators.program import program
    from hcal.runtime.halves import HALVES, narrow
    from hcal.runtime.torch_ops import WIDTHS, DeviceOps

    if not _has_shape(calibrator, scores):
        return None
    half = scores.dtype in HALVES
    wide = torch.float32 if half else scores.dtype  # halves are computed in float32, and narrowed at the end
    if (made := calibrator._predict_on_cuda(scores.detach())) is not None:
        return made
    if not _are_plain_logits(calibrator, scores):
        return None
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


def _has_shape(calibrator: Calibrator, scores: Tensor) -> bool:
    """Whether scores are floats in the shape of the fit, and of a map that torch can do."""
    from hcal.calibrators.program import is_portable

    fits = scores.ndim == 2 and scores.shape[1] == calibrator.n_classes_ and len(scores) > 0
    return fits and scores.is_floating_point() and calibrator.input == "logits" and is_portable(calibrator)


def _are_plain_logits(calibrator: Calibrator, scores: Tensor) -> bool:
    """Whether scores are finite floats of sound size, and no probabilities: one wait for the device."""
    import torch

    if calibrator.input != "logits" or not scores.is_floating_point() or not len(scores):
        return False
    low, high = torch.stack(torch.aminmax(scores.detach())).tolist()  # a NaN comes out, and fails below
    return low >= -_FAR and high <= _FAR and not (low >= 0 and high <= 1)
