"""Exported maps in plain numpy: no torch is needed to predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.maps.lookup import apply_table
from hcal.numerics import FloatArray, log_softmax, softmax
from hcal.runtime.ops import Ops


def predict_map(state: Mapping[str, NDArray[Any]], logits: FloatArray) -> FloatArray:
    """Return the probabilities of an exported map.

    Parameters
    ----------
    state : mapping
        ``table`` and ``step`` of a scalar map, or ``slopes`` and ``shares`` of an ensemble.
    logits : array of shape (N, K)

    Returns
    -------
    array of shape (N, K) in the dtype of ``logits``

    Examples
    --------
    >>> predict_map({"table": np.array([0.0, 2.0]), "step": np.array(1.0)}, np.log([[0.2, 0.8]])).round(4)
    array([[0.0588, 0.9412]])
    """
    x = log_softmax(logits)
    if "table" in state:
        return softmax(apply_table(x, state["table"], float(state["step"])))
    probs = np.zeros_like(x)
    for slope, share in zip(state["slopes"], state["shares"], strict=True):
        probs += x.dtype.type(share) * softmax(x.dtype.type(slope) * x)
    return probs


def graph_map(state: Mapping[str, NDArray[Any]], ops: Ops, x: Any) -> Any:
    """Return what :func:`predict_map` does, in the operations that PyTorch and ONNX have too.

    x are float64 logits (..., K).

    >>> from hcal.runtime.ops import NumpyOps
    >>> state = {"table": np.array([0.0, 2.0]), "step": np.array(1.0)}
    >>> graph_map(state, NumpyOps(), np.log([[0.2, 0.8]])).round(4)
    array([[0.0588, 0.9412]])
    """
    log_probs = ops.log_softmax(x)
    if "table" in state:
        depth = np.asarray(state["table"], dtype=np.float64)[::-1]
        knots = np.arange(len(depth) - 1, -1, -1) * float(state["step"])
        return ops.softmax(ops.piecewise(log_probs, -knots, -depth))
    total = None
    for slope, share in zip(state["slopes"], state["shares"], strict=True):
        part = ops.softmax(log_probs * ops.const(slope)) * ops.const(share)
        total = part if total is None else total + part
    return total
