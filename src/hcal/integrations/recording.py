"""The operations of :mod:`hcal.xp` on values that stand for arrays: calling a formula records it as a list of steps.

A map is written once, for numpy and torch. Called with a :class:`Value`, it computes nothing; each operation is noted
as a step of a :class:`Program`. The JSON and the JavaScript of a calibrator are written from these steps.

>>> program = Program()
>>> scores = program.argument("scores", 2)
>>> softmax(2.0 * scores).name
'v5'
>>> [step.operation for step in program.steps]
['multiply', 'row_max', 'subtract', 'exp', 'row_sum', 'divide']
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import EllipsisType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcal import xp as numpy_operations
from hcal.numerics import IntArray, NumpyArray
from hcal.xp import Recorded, SearchSide, bent, interp, log_sum_exp, rounded

#: What a step takes: the name of a value or of an array, a number, or a list of column numbers.
Operand: TypeAlias = str | float | list[int]
#: The axes of a value after that of the rows: (K,) for a matrix of scores.
Axes: TypeAlias = tuple[int, ...]
#: What a formula computes with: a recorded value, or constants.
Term: TypeAlias = "Value | NumpyArray | float"
#: How a formula chooses columns; None adds an axis.
Columns: TypeAlias = slice | list[int] | NumpyArray | None


@dataclass(frozen=True)
class Step:
    """One operation: the name of its result, what it does, what it takes, and the axes of the result."""

    name: str
    operation: str
    operands: tuple[Operand, ...]
    axes: Axes


@dataclass
class Program:
    """Steps in their order, and the arrays of numbers that they refer to by name."""

    steps: list[Step] = field(default_factory=list)
    arrays: dict[str, NumpyArray] = field(default_factory=dict)
    _recorded: dict[str, Value] = field(default_factory=dict, repr=False)

    def argument(self, name: str, columns: int) -> Value:
        """Return the value that stands for what the program is given, (N, columns)."""
        return Value(self, name, (columns,))

    def add(self, operation: str, operands: Sequence[Operand], axes: Axes) -> Value:
        """Record a step and return the value that stands for its result; a step that exists is not repeated."""
        key = f"{operation} {operands}"
        if key not in self._recorded:
            name = f"v{len(self.steps)}"
            self.steps.append(Step(name, operation, tuple(operands), axes))
            self._recorded[key] = Value(self, name, axes)
        return self._recorded[key]

    def operand(self, value: object) -> Operand:
        """Return how a step refers to a value, a number or an array of numbers."""
        if isinstance(value, Value):
            return value.name
        for name, known in self.arrays.items():
            if value is known:
                return name
        array = np.asarray(value, dtype=np.float64)
        return float(array) if array.ndim == 0 else self.name_of(array)

    def needed(self, result: Value) -> Program:
        """Return the steps and arrays that the result is computed from; the last step is the result."""
        wanted = {result.name}
        kept: list[Step] = []
        for step in reversed(self.steps):
            if step.name in wanted:
                kept.append(step)
                wanted.update(operand for operand in step.operands if isinstance(operand, str))
        arrays = {name: array for name, array in self.arrays.items() if name in wanted}
        return Program(kept[::-1], arrays)

    def name_of(self, array: NumpyArray) -> str:
        """Return the name of an array; one that the map does not hold itself was computed from it, and gets a name."""
        for name, known in self.arrays.items():
            if known.shape == array.shape and np.array_equal(known, array):
                return name
        name = f"computed{sum(known.startswith('computed') for known in self.arrays)}"
        self.arrays[name] = array
        return name


class Value(Recorded):
    """Stands for an array of N rows; operators and indexing record steps."""

    operations = sys.modules[__name__]
    #: numpy must leave an operator with a value to the value.
    __array_ufunc__ = None
    #: Programs compute in float64.
    dtype = np.dtype(np.float64)
    itemsize = 8

    def __init__(self, program: Program, name: str, axes: Axes) -> None:
        self.program = program
        self.name = name
        self.axes = axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with −1 for the number of rows."""
        return (-1, *self.axes)

    def __add__(self, other: Term) -> Value:
        return _record("add", self, other)

    def __radd__(self, other: Term) -> Value:
        return _record("add", other, self)

    def __sub__(self, other: Term) -> Value:
        return _record("subtract", self, other)

    def __rsub__(self, other: Term) -> Value:
        return _record("subtract", other, self)

    def __mul__(self, other: Term) -> Value:
        return _record("multiply", self, other)

    def __rmul__(self, other: Term) -> Value:
        return _record("multiply", other, self)

    def __truediv__(self, other: Term) -> Value:
        return _record("divide", self, other)

    def __rtruediv__(self, other: Term) -> Value:
        return _record("divide", other, self)

    def __neg__(self) -> Value:
        return _record("multiply", -1.0, self)

    def __lt__(self, other: object) -> Value:
        return _record("less", self, other)

    def __gt__(self, other: object) -> Value:
        return _record("less", other, self)

    def __le__(self, other: object) -> Value:
        return _record("less_equal", self, other)

    def __ge__(self, other: object) -> Value:
        return _record("less_equal", other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return _record("equal", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return _record("subtract", 1.0, self == other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Term) -> Value:
        return _record("minimum", self, other)

    def __or__(self, other: Term) -> Value:
        return _record("maximum", self, other)

    def __invert__(self) -> Value:
        return _record("subtract", 1.0, self)

    def __matmul__(self, matrix: NumpyArray) -> Value | float:
        table = np.asarray(matrix, dtype=np.float64)
        if len(table) == 0:
            return 0.0  # a sum of nothing
        axes = (*self.axes[:-1], *table.shape[1:])
        return self.program.add("matrix_product", [self.name, self.program.operand(table)], axes)

    def __getitem__(self, index: tuple[EllipsisType, Columns]) -> Value:
        """Return columns ``x[..., columns]``, or the value with one more axis, ``x[..., None]``."""
        rows, columns = index
        assert rows is Ellipsis, "a recorded formula indexes columns alone"
        if columns is None:
            return self.program.add("new_axis", [self.name], (*self.axes, 1))
        chosen = np.arange(self.axes[-1])[columns]
        numbers = [int(column) for column in np.atleast_1d(chosen)]
        return self.program.add("columns", [self.name, numbers], (*self.axes[:-1], len(numbers)))


def _program(*operands: object) -> Program | None:
    """Return the program of the first value; without one, plain numbers are computed at once."""
    for operand in operands:
        if isinstance(operand, Value):
            return operand.program
    return None


def _axes(operand: object) -> Axes:
    return operand.axes if isinstance(operand, Value) else np.asarray(operand).shape


def _elementwise(operation: str, *operands: Term) -> Term:
    """Record an operation on each entry, or compute it at once if all operands are plain numbers."""
    if _program(*operands) is None:
        computed: NumpyArray = getattr(numpy_operations, operation)(*operands)
        return computed
    return _record(operation, *operands)


def _record(operation: str, *operands: object) -> Value:
    """Record an operation on each entry; operands of fewer axes, or of one column, serve all columns."""
    program = _program(*operands)
    assert program is not None
    axes = np.broadcast_shapes(*map(_axes, operands))
    return program.add(operation, [program.operand(operand) for operand in operands], axes)


def _by_row(operation: str, x: Term) -> Term:
    """Record an operation that turns the last axis into one number, or compute it at once of plain numbers."""
    if not isinstance(x, Value):
        computed: NumpyArray = getattr(numpy_operations, operation)(x)
        return computed
    return _record_by_row(operation, x)


def _record_by_row(operation: str, x: Value) -> Value:
    return x.program.add(operation, [x.name], (*x.axes[:-1], 1))


exp = partial(_elementwise, "exp")
expm1 = partial(_elementwise, "expm1")
log = partial(_elementwise, "log")
log1p = partial(_elementwise, "log1p")
sqrt = partial(_elementwise, "sqrt")
maximum = partial(_elementwise, "maximum")
minimum = partial(_elementwise, "minimum")
where = partial(_elementwise, "where")
row_sum = partial(_by_row, "row_sum")
row_max = partial(_by_row, "row_max")
argmax = partial(_by_row, "argmax")


def abs(x: Term) -> Term:
    """Return the larger of x and −x."""
    return maximum(x, -x)


def zeros_like(x: Value) -> Value:
    """Return 0 in the shape of x, also where x is NaN."""
    return _record("where", x < 0.0, 0.0, 0.0)


def row_min(x: Value) -> Value:
    """Return the smallest value of each row, (N, 1)."""
    return -_record_by_row("row_max", -x)


def clip(x: Term, low: Term, high: Term) -> Term:
    """Return x cut to [low, high]; NaN stays."""
    return minimum(maximum(x, low), high)


def take(table: NumpyArray, index: Value | IntArray) -> Term:
    """Return the entries of a table of constants at the indices."""
    if not isinstance(index, Value):
        return numpy_operations.take(table, index)
    program = index.program
    return program.add("take", [program.operand(table), index.name], index.axes)


def astype(x: Term, like: Value) -> Term:
    """Return x: programs compute in float64."""
    return x


def eps(x: Value) -> float:
    """Return the distance from 1 to the next larger number."""
    return float(np.finfo(np.float64).eps)


def tiny(x: Value) -> float:
    """Return the smallest positive normal number."""
    return float(np.finfo(np.float64).tiny)


def softmax(x: Value) -> Value:
    """Return softmax of each row."""
    powers = _record("exp", x - row_max(x))
    return powers / row_sum(powers)


def log_softmax(x: Value) -> Value:
    """Return ln softmax of each row."""
    below = x - row_max(x)
    return below - log(row_sum(exp(below)))


def floor_index(x: Value) -> Value:
    """Return numbers ≥ 0, rounded down."""
    return x.program.add("floor", [x.name], x.axes)


def cumsum(x: Value) -> Value:
    """Return running sums along rows."""
    return x.program.add("running_sum", [x.name], x.axes)


def concat(parts: Sequence[Value] | Sequence[NumpyArray]) -> Term:
    """Return values joined along the last axis."""
    values = [part for part in parts if isinstance(part, Value)]
    if not values:
        return numpy_operations.concat(parts)
    assert len(values) == len(parts), "a recorded formula joins values alone"
    return _joined(values)


def _joined(values: Sequence[Value]) -> Value:
    width = sum(value.axes[-1] for value in values)
    names = [value.name for value in values]
    return values[0].program.add("join", names, (*values[0].axes[:-1], width))


def stack(parts: Sequence[Value]) -> Value:
    """Return values of one shape, stacked along a new last axis."""
    return _joined([part[..., None] for part in parts])


def take_along(x: Value, index: Value) -> Value:
    """Return the values of each row at the row's own indices."""
    return x.program.add("take_in_row", [x.name, index.name], index.axes)


def put_along(x: Value, index: Value, values: Term) -> Value:
    """Return x with the values of each row at the row's own indices replaced."""
    program = x.program
    operands = [x.name, program.operand(index), program.operand(values)]
    return program.add("put_in_row", operands, x.axes)


def sum_by(values: Value, group: Value) -> Value:
    """Return for each row the sums of its values by group."""
    return values.program.add("sum_by_group", [values.name, group.name], values.axes)


def sort_rows(x: Value) -> tuple[Value, Value]:
    """Return each row in falling order, and the indices that sort it; ties keep their order."""
    order = x.program.add("falling_order", [x.name], x.axes)
    return take_along(x, order), order


def kth_smallest(x: Value, k: float) -> Value:
    """Return the k-th smallest value of each row, (N, 1)."""
    falling, _ = sort_rows(-x)
    return -falling[..., int(k) - 1 : int(k)]


def one_hot(index: Value, n: int, like: Value) -> Value:
    """Return 1 at each index and 0 elsewhere."""
    return index[..., None] == np.arange(n)


def searchsorted(edges: NumpyArray, x: Value, side: SearchSide = "left") -> Value:
    """Return how many of the ascending edges are smaller than each x; with ``side="right"``, smaller or equal."""
    program = x.program
    operation = "count_below" if side == "left" else "count_up_to"
    if len(edges) == 0:
        return zeros_like(x)
    return program.add(operation, [program.operand(edges), x.name], x.axes)


def segment_search(
    knots: NumpyArray, offsets: IntArray, x: Value, side: SearchSide = "left"
) -> Value:
    """Return for each x how many knots of its column are smaller; with ``side="right"``, smaller or equal."""
    counts = []
    for column in range(x.axes[-1]):
        own_knots = knots[offsets[column] : offsets[column + 1]]
        counts.append(searchsorted(own_knots, x[..., [column]], side))
    return _joined(counts)
