"""ONNX: a fitted calibrator as a graph that onnxruntime, and anything else that reads ONNX, can run."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal._version import __version__
from hcal.calibrators.base import Calibrator
from hcal.calibrators.program import portable, program
from hcal.io.atomic import atomic_path
from hcal.extras import missing
from hcal.runtime.ops import Ops

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    raise missing("exporting to ONNX", "onnx", "onnx") from None

#: ONNX operator set 18 and file format 8: onnxruntime 1.14 (2023) and later.
OPSET, IR_VERSION = 18, 8
_WIDTHS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


class Value:
    """A named result in the graph under construction; takes + − * / and comparisons.

    Examples
    --------
    >>> ops = OnnxOps("float32")
    >>> (Value(ops, "x") + 1.0).name, [node.op_type for node in ops.nodes]
    ('v1', ['Add'])
    """

    def __init__(self, ops: OnnxOps, name: str) -> None:
        self.ops, self.name = ops, name

    def __add__(self, other: Any) -> Value:
        return self.ops.node("Sum" if _is_tiny(other) else "Add", self, other)

    def __sub__(self, other: Any) -> Value:
        return self + -other if _is_tiny(other) else self.ops.node("Sub", self, other)

    def __mul__(self, other: Any) -> Value:
        if isinstance(other, float | int) and _is_tiny(other - 1):
            return self + self.ops.node("Mul", self, other - 1)
        return self.ops.node("Mul", self, other)

    def __truediv__(self, other: Any) -> Value:
        if isinstance(other, float | int) and _is_tiny(other - 1):
            return self * (1 / other)
        return self.ops.node("Div", self, other)

    def __lt__(self, other: Any) -> Value:
        return self.ops.node("Less", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.ops.node("Greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.ops.node("GreaterOrEqual", self, other)

    def __le__(self, other: Any) -> Value:
        return self.ops.node("LessOrEqual", self, other)


def _is_tiny(number: Any) -> bool:
    """Whether onnxruntime might take + number for + 0 (or · (1 + number) for · 1), and drop it.

    Measured with 1.31, between inner nodes: Mul and Div by a constant within 1e-8 of 1, Add and Sub of one
    that is 0 in float32. Sum it leaves alone.
    """
    return isinstance(number, float | int) and 0 < abs(number) < 1e-6


class OnnxOps(Ops):
    """The operations of :mod:`hcal.runtime.ops` as ONNX nodes; running it writes the graph.

    Parameters
    ----------
    width : {"float32", "float64"}
        The float width of the input and output.

    Examples
    --------
    >>> ops = OnnxOps("float32")
    >>> _ = ops.softmax(Value(ops, "logits"))
    >>> [node.op_type for node in ops.nodes]
    ['ReduceMax', 'Sub', 'Exp', 'ReduceSum', 'Div']
    """

    def __init__(self, width: str) -> None:
        self.width = _WIDTHS[width]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _store(self, array: NDArray[Any]) -> Value:
        name = self._name()
        self.initializers.append(numpy_helper.from_array(array, name))
        return Value(self, name)

    def node(self, op: str, *inputs: Any, **attributes: Any) -> Value:
        """Append one ONNX node and return its result; plain numbers become constants."""
        values = [v if isinstance(v, Value) else self.const(v) for v in inputs]
        out = self._name()
        self.nodes.append(helper.make_node(op, [v.name for v in values], [out], **attributes))
        return Value(self, out)

    def const(self, value: ArrayLike) -> Value:
        """Return a float64 constant."""
        return self._store(np.asarray(value, dtype=np.float64))

    def exp(self, x: Value) -> Value:
        """Return e^x."""
        return self.node("Exp", x)

    def log(self, x: Value) -> Value:
        """Return ln x."""
        return self.node("Log", x)

    def max(self, x: Value) -> Value:
        """Return the largest value of each row."""
        return self.node("ReduceMax", x, self._store(np.array([-1])), keepdims=1)

    def sum(self, x: Value) -> Value:
        """Return the sum of each row."""
        return self.node("ReduceSum", x, self._store(np.array([-1])), keepdims=1)

    def maximum(self, x: Value, y: Any) -> Value:
        """Return the larger of two values."""
        return self.node("Max", x, y)

    def where(self, condition: Value, x: Any, y: Any) -> Value:
        """Return x where the condition holds, y elsewhere."""
        return self.node("Where", condition, x, y)

    def matmul(self, x: Value, matrix: Value) -> Value:
        """Return x @ matrix."""
        return self.node("MatMul", x, matrix)

    def top(self, x: Value) -> Value:
        """Return a mask of the first largest value of each row."""
        first = self.node("ArgMax", x, axis=-1, keepdims=1)
        length = self.node("Shape", x, start=-1)
        scalar = self.node("Squeeze", length)
        positions = self.node("Range", self._store(np.array(0)), scalar, self._store(np.array(1)))
        return self.node("Equal", first, positions)

    def rounded(self, x: Value) -> Value:
        """Return x rounded to the float width of the output, as float64 again."""
        if self.width == TensorProto.DOUBLE:
            return x
        return self.node("Cast", self.node("Cast", x, to=self.width), to=TensorProto.DOUBLE)

    def bucket(self, x: Value, edges: NDArray[np.float64]) -> Value:
        """Return how many edges are ≤ x, by a binary search written out: ONNX has none."""
        # Padded with +inf to a power of two, so that every step halves the range.
        steps = len(edges).bit_length()
        padded = np.full(2**steps, np.inf)
        padded[: len(edges)] = edges
        table = self.const(padded)
        index = self.node("Cast", x < -np.inf, to=TensorProto.INT64)  # zeros in the shape of x
        for step in (2**s for s in reversed(range(steps))):
            further = self.node("Add", index, self._store(np.array(step)))
            before = self.node("Sub", further, self._store(np.array(1)))
            reached = x >= self.node("Gather", table, before)
            index = self.node("Where", reached, further, index)
        return index

    def take(self, table: NDArray[np.float64], index: Value) -> Value:
        """Return table[index]."""
        return self.node("Gather", self.const(table), index)


def to_onnx(
    calibrator: Calibrator, *, width: Literal["float32", "float64"] = "float32", dense: bool = False
) -> onnx.ModelProto:
    """Return a fitted calibrator as an ONNX model: ``scores`` in, ``probs`` out.

    Parameters
    ----------
    calibrator : Calibrator
        A fitted one of a method that has a graph: the order-preserving ones and the scaling family.
    width : {"float32", "float64"}
        Float width of input and output; the arithmetic inside is float64.
    dense : bool
        Take (N, K, H, W) instead of (N, K).

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> [i.name for i in to_onnx(cal).graph.input]
    ['scores']
    """
    if width not in _WIDTHS:
        raise ValueError(f"width must be one of {', '.join(map(repr, _WIDTHS))}, got {width!r}")
    portable(calibrator)
    ops = OnnxOps(width)
    scores = Value(ops, "scores")
    rows = ops.node("Transpose", scores, perm=[0, 2, 3, 1]) if dense else scores
    info = np.finfo(width)
    probs = program(
        calibrator,
        ops,
        ops.node("Cast", rows, to=TensorProto.DOUBLE),
        eps=float(info.eps),
        smallest=float(info.smallest_subnormal),
    )
    probs = ops.node("Cast", probs, to=ops.width)
    if dense:
        probs = ops.node("Transpose", probs, perm=[0, 3, 1, 2])
    ops.nodes.append(helper.make_node("Identity", [probs.name], ["probs"]))
    shape: list[str | int | None] = ["N", calibrator.n_classes_, *(["H", "W"] if dense else [])]
    graph = helper.make_graph(
        ops.nodes,
        "hcal",
        [helper.make_tensor_value_info("scores", ops.width, shape)],
        [helper.make_tensor_value_info("probs", ops.width, shape)],
        ops.initializers,
    )
    return _model(graph, calibrator)


def _model(graph: onnx.GraphProto, calibrator: Calibrator) -> onnx.ModelProto:
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="hcal",
        producer_version=__version__,
    )
    facts = {"name": calibrator.name, "input": calibrator.input, "preserves": calibrator.preserves}
    helper.set_model_props(model, {"hcal": json.dumps(facts)})
    onnx.checker.check_model(model, full_check=True)
    return model


def export_onnx(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    *,
    after: str | os.PathLike[str] | onnx.ModelProto | None = None,
    width: Literal["float32", "float64"] = "float32",
    dense: bool = False,
) -> None:
    """Write a fitted calibrator as an ONNX file, alone or behind a network.

    onnxruntime then gives what ``predict_proba`` gives, to 1e-6 in float32, and a method that preserves
    accuracy keeps every argmax.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like
    after : path-like or onnx.ModelProto, optional
        A network with one output, the scores that the calibrator was fitted on: the file then holds both.
    width : {"float32", "float64"}
        Float width of the scores and of the probabilities; the arithmetic inside is float64.
    dense : bool
        Scores of shape (N, K, H, W) instead of (N, K).

    Examples
    --------
    >>> import hcal, pathlib, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "ts.onnx"
    >>> export_onnx(cal, target)
    >>> target.exists()
    True
    """
    model = to_onnx(calibrator, width=width, dense=dense)
    if after is not None:
        model = _append(after if isinstance(after, onnx.ModelProto) else onnx.load(os.fspath(after)), model)
    with atomic_path(path) as temporary:
        onnx.save(model, temporary)


def _append(network: onnx.ModelProto, head: onnx.ModelProto) -> onnx.ModelProto:
    """Put the calibrator behind the only output of a network."""
    from onnx import compose, version_converter

    if len(network.graph.output) != 1:
        names = [o.name for o in network.graph.output]
        raise ValueError(
            f"the network must have one output, the scores; it has {len(names)}: {', '.join(names)}"
        )
    output = network.graph.output[0]
    expected, found = head.graph.input[0].type.tensor_type, output.type.tensor_type
    if expected.elem_type != found.elem_type:
        kinds = {v: k for k, v in _WIDTHS.items()}
        raise ValueError(
            f"the network gives {kinds.get(found.elem_type, 'another type')}: say width=... to match"
        )
    opset = max(o.version for o in network.opset_import if o.domain in ("", "ai.onnx"))
    if opset < OPSET:
        network = version_converter.convert_version(network, OPSET)
    elif opset > OPSET:
        head = version_converter.convert_version(head, opset)
    newest = max(network.ir_version, head.ir_version)
    network.ir_version = head.ir_version = newest
    head = compose.add_prefix(head, "hcal/", rename_outputs=False)
    merged = compose.merge_models(network, head, io_map=[(output.name, "hcal/scores")])
    onnx.checker.check_model(merged, full_check=True)
    return merged
