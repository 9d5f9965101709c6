"""What stands between a model and its Triton kernel: the form of the parameters, and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from hcal.calibrators.h.fused import stages
from hcal.calibrators.h.model import Model, from_state

if TYPE_CHECKING:
    from torch import Tensor

    from hcal.calibrators.h._triton import Form

#: Calibrator -> (its state, the device, the form): made once a fit.
_forms: WeakKeyDictionary[Any, tuple[Any, Any, Form]] = WeakKeyDictionary()


def predict_kernel(calibrator: Any, logits: Tensor, *, check: bool = True) -> Tensor | None:
    """Return the probabilities of logits in float32 or a half by one kernel; None: they are no sound logits.

    Parameters
    ----------
    calibrator : HCalibrator
        Fitted by the default protocol, with a pool.
    logits : Tensor of shape (N, K)
        Where Triton runs.
    check : bool
        Whether to look for scores that are no sound logits, which costs a wait for the device. If not, a NaN
        makes its row NaN.

    Returns
    -------
    Tensor of shape (N, K), or None
    """
    from hcal.calibrators.h import _triton

    out, flags = _triton.predict(_form(calibrator, logits.device), logits.contiguous())
    if not check:
        return out
    odd, beyond = flags.tolist()  # the one wait for the device
    return None if odd or not beyond else out


def takes_kernel(state: Any, n_classes: int) -> bool:
    """Return whether the kernel computes all that a state asks for.

    Examples
    --------
    >>> takes_kernel({"lift": np.array(0.0)}, 10)
    False
    """
    from hcal.calibrators.h._triton import LANES, MAX_CLASSES

    plain = "input_floor" not in state and "prior_log_ratio" not in state
    if not plain or "blend.events" not in state or not 2 < n_classes <= MAX_CLASSES:
        return False
    return all(len(state[f"{curve}.knots"]) <= LANES for curve in ("curve", "final", "last"))


def _form(calibrator: Any, device: Any) -> Form:
    state, where, form = _forms.get(calibrator, (None, None, None))
    if form is None or state is not calibrator.state_ or where != device:
        form = new_form(from_state(calibrator.state_), device)
        _forms[calibrator] = (calibrator.state_, device, form)
    return form


def new_form(model: Model, device: Any) -> Form:
    """Return a model with a pool as the kernel reads it."""
    import torch

    from hcal.calibrators.h._triton import LANES, NUMBERS, Form

    made, blend, last = stages(model, np.float32), model.blend, model.last
    assert blend is not None
    assert last is not None
    refined, curve = model.refined, model.curve
    lines: list[Any] = [[float(getattr(made, name)) for name in NUMBERS]]
    # Lanes beyond the features have a deviation of 1 and no weight.
    lines += [refined.mean, [*refined.deviation, *[1.0] * LANES], refined.low, refined.high, refined.weights]
    lines.append(curve.weights[2 + len(curve.knots) :])
    for each in (curve, model.final, last):
        end = 2 + len(each.knots)
        lines += [[*each.scaler, *each.weights[:2]], each.knots, each.weights[2:end]]
    rows = np.zeros((len(lines), LANES))
    for line, values in zip(rows, lines, strict=True):
        line[: len(values)] = values[:LANES]
    order = np.argsort(-blend.prefer, kind="stable")
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    classes = np.stack([model.rest.bias, model.curve.classes, last.classes, blend.bias, place])

    def put(array: Any, dtype: Any = np.float32) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(device)

    table = put(np.stack([made.start, made.slope]))
    return Form(put(rows), put(classes), put(order, np.int32), table, put(made.matrix), model.lift is None)
