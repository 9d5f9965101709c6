"""All of ``predict_proba`` in the operations of :mod:`hcal.runtime.ops`: kind, floor, map, argmax kept."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hcal.calibrators.base import PRIOR, Calibrator
from hcal.calibrators.floor import graph_floor
from hcal.calibrators.prior import graph_shift
from hcal.inputs import InputKind
from hcal.runtime.ops import Ops


class Portable(Protocol):
    """A calibrator that says its map in :class:`Ops`."""

    def _graph(self, ops: Ops, x: Any) -> Any: ...


def is_portable(calibrator: Calibrator) -> bool:
    """Whether the method can run in PyTorch and ONNX.

    >>> import hcal
    >>> is_portable(hcal.make_calibrator("ts"))
    True
    """
    return hasattr(calibrator, "_graph")


def portable(calibrator: Calibrator) -> Portable:
    """Return the fitted calibrator as one that has ``_graph``, or refuse in words.

    >>> import hcal
    >>> portable(hcal.make_calibrator("uncal").fit([[0.0, 1.0]], [1])).name
    'uncal'
    """
    calibrator._check_fitted()
    if not is_portable(calibrator):
        from hcal.calibrators import get_calibrator, list_calibrators

        able = [name for name in list_calibrators() if hasattr(get_calibrator(name), "_graph")]
        raise ValueError(f"{calibrator.name!r} cannot run outside numpy; methods that can: {', '.join(able)}")
    return calibrator


def to_logits(ops: Ops, x: Any, kind: InputKind, smallest: float) -> Any:
    """Turn float64 scores (..., K) of any kind into logits, as :func:`hcal.inputs.check_logits` does.

    ``smallest`` is the smallest positive number of the input's float width: what a probability 0 becomes.

    >>> from hcal.runtime.ops import NumpyOps
    >>> to_logits(NumpyOps(), np.array([[0.0, 1.0]]), "probs", 1e-300).round(1)
    array([[-690.8,    0. ]])
    """
    if kind == "logits":
        return x
    if kind == "probs":
        return ops.log(ops.maximum(x / ops.sum(x), smallest))
    # -inf is a probability of 0: it goes just below everything finite, so that order is kept.
    impossible = x < ops.const(-np.finfo(np.float64).max)
    finite = ops.where(impossible, ops.const(0.0), x)
    lowest = ops.const(0.0) - ops.max(ops.const(0.0) - finite)
    return ops.where(impossible, ops.minimum(lowest, float(np.log(smallest))), x)


def keep_top(ops: Ops, probs: Any, scores: Any, eps: float) -> Any:
    """Where rounding to the output's width made the top class tie with an earlier one, lift it by a hair.

    The counterpart of ``keep_argmax`` in :mod:`hcal.calibrators.argmax`, in operations of every runtime.
    ``probs`` and ``scores`` are (..., K), ``eps`` is the spacing of the output's floats at 1.

    >>> from hcal.runtime.ops import NumpyOps
    >>> scores = np.array([[0.0, 1e-9]])
    >>> keep_top(NumpyOps(np.float32), NumpyOps().softmax(scores), scores, 2.0**-23).argmax()
    np.int64(1)
    """
    zero, one = ops.const(0.0), ops.const(1.0)
    narrow = ops.rounded(probs)
    top = ops.top(scores)
    agrees = ops.sum(ops.where(top, ops.where(ops.top(narrow), one, zero), zero))
    largest = ops.max(narrow)
    lifted = ops.where(top, largest + largest * eps, narrow)
    return ops.where(agrees > zero, narrow, lifted)


def program(calibrator: Calibrator, ops: Ops, scores: Any, *, eps: float, smallest: float) -> Any:
    """Return what ``predict_proba`` computes of float64 scores (..., K), written in ``ops``.

    The calibrator is fitted, with ``_graph``; ``eps`` and ``smallest`` are the spacing at 1 and the smallest
    positive number of the float width of input and output.

    >>> import hcal
    >>> from hcal.runtime.ops import NumpyOps
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> program(cal, NumpyOps(), np.array([[0.0, 2.0]]), eps=2.0**-52, smallest=1e-300).round(6)
    array([[0.25, 0.75]])
    """
    method = portable(calibrator)
    logits = to_logits(ops, scores, calibrator.input, smallest)
    probs = method._graph(ops, graph_floor(ops, logits, calibrator.state_.get("input_floor")))
    if calibrator.preserves is None:
        return graph_shift(ops, probs, calibrator.state_.get(PRIOR))
    return keep_top(ops, probs, scores, eps)
