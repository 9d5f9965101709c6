"""A recorded formula as a graph of single numbers, for languages that compute one row at a time, such as SQL.

A :class:`~hcal.integrations.recording.Program` computes with tables. Here each column of a table is a node of its own,
equal nodes are one, and what does not depend on the scores is computed at once. A look-up in an array becomes a table
of cells: whatever depends on the number of a cell alone is a column of that table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcal.integrations.recording import Operand, Program, Step
from hcal.numerics import Float64, NumpyArray

#: The number of a node in its graph.
NodeId: TypeAlias = int
#: The nodes of the columns of a value.
ColumnNumbers: TypeAlias = NDArray[np.int64]

_ARITHMETIC = ("add", "subtract", "multiply", "divide", "floor", "maximum", "minimum")
#: The second operand that changes nothing.
_NEUTRAL = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}
_FUNCTIONS = ("exp", "expm1", "log", "log1p", "sqrt", "less", "less_equal", "equal", "where")
#: Operations on numbers, as numpy computes them.
NUMPY: dict[str, Callable[..., NumpyArray]] = {
    name: getattr(np, name) for name in (*_ARITHMETIC, *_FUNCTIONS)
}


class Unsupported(ValueError):
    """The formula has an operation that a single row of numbers does not know."""


@dataclass(frozen=True)
class NodeColumns:
    """The cells between ascending edges: a number lies in the cell of as many edges as are below it.

    Attributes
    ----------
    edges : tuple of float
    closed : bool
        Whether a number that equals an edge lies above it.
    """

    edges: tuple[float, ...]
    closed: bool

    @property
    def count(self) -> int:
        """The number of cells."""
        return len(self.edges) + 1


@dataclass(frozen=True)
class Node:
    """A number: a constant, an input, a column of a table of cells, or an operation on other numbers.

    Attributes
    ----------
    operation : str
        ``"constant"``, ``"input"``, ``"place"`` (which of the cells a number lies in), ``"cell"`` (a value for each
        cell), ``"softmax"`` and ``"log_softmax"`` (of the first of the operands among all), or one of ``NUMPY``.
    operands : tuple of int
    value : float, optional
        Of a constant.
    name : str
        Of an input.
    cells : NodeColumns, optional
        Of a place.
    by_cell : tuple of float
        The values of a cell.
    """

    operation: str
    operands: tuple[NodeId, ...] = ()
    value: float | None = None
    name: str = ""
    cells: NodeColumns | None = None
    by_cell: tuple[float, ...] = ()

    @property
    def known(self) -> Float64:
        """The constant, or the value for each cell."""
        return np.array(self.by_cell if self.value is None else self.value)


@dataclass
class Graph:
    """Nodes by number; a node that exists is not added again."""

    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[Node, NodeId] = field(default_factory=dict, repr=False)

    def add(self, node: Node) -> NodeId:
        """Return the number of a node."""
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def constant(self, value: float) -> NodeId:
        """Return the node of a constant."""
        return self.add(Node("constant", value=float(value) + 0.0))

    def input(self, name: str) -> NodeId:
        """Return the node of an input."""
        return self.add(Node("input", name=name))

    def place(self, x: NodeId, cells: NodeColumns) -> NodeId:
        """Return the number of the cell that a number lies in."""
        place = self.add(Node("place", (x,), cells=cells))
        return self._cell(place, np.arange(cells.count, dtype=np.float64))

    def take(self, array: Float64, index: NodeId) -> NodeId:
        """Return the entry of an array at an index that depends on a single place."""
        node = self.nodes[index]
        if node.value is not None:
            return self.constant(array[int(node.value)])
        if node.operation != "cell":
            raise Unsupported("an entry of an array whose number is computed from several others")
        return self._cell(node.operands[0], array[np.array(node.by_cell, dtype=np.int64)])

    def softmax(self, k: int, logits: ColumnNumbers, *, logarithm: bool = False) -> NodeId:
        """Return the softmax, or its logarithm, of one of several numbers; what is added to all does not count."""
        logits = self._unshifted(logits)
        others = [int(logit) for logit in np.delete(logits, k)]
        name = "log_softmax" if logarithm else "softmax"
        return self.add(Node(name, (int(logits[k]), *others)))

    def _unshifted(self, logits: ColumnNumbers) -> ColumnNumbers:
        """Return logits without a number that is subtracted from all, also where they are scaled by one constant."""
        nodes = [self.nodes[number] for number in logits.tolist()]
        operations = {node.operation for node in nodes}
        seconds = {node.operands[1] for node in nodes if len(node.operands) > 1}
        if len(operations) > 1 or len(seconds) != 1:
            return logits
        inner = np.array([node.operands[0] for node in nodes])
        if operations == {"subtract"}:
            return self._unshifted(inner)
        plain = self._unshifted(inner)
        if operations != {"multiply"} or (plain == inner).all():
            return logits
        [scale] = seconds
        return np.array([self.apply("multiply", number, scale) for number in plain.tolist()])

    def value(self, number: NodeId) -> float | None:
        """Return the value of a constant, else None."""
        return self.nodes[number].value

    def apply(self, operation: str, *operands: NodeId) -> NodeId:
        """Return an operation on nodes; what is constant, or depends on one place alone, is computed at once."""
        simple = self._simplified(operation, operands)
        if simple is not None:
            return simple
        nodes = [self.nodes[operand] for operand in operands]
        places = {node.operands[0] for node in nodes if node.operation == "cell"}
        fixed = all(node.operation in ("constant", "cell") for node in nodes)
        if not fixed or len(places) > 1:
            return self.add(Node(operation, tuple(operands)))
        with np.errstate(all="ignore"):
            result = NUMPY[operation](*[node.known for node in nodes])
        if not places:
            return self.constant(float(result))
        [place] = places
        shape = np.broadcast_shapes(*[node.known.shape for node in nodes])
        return self._cell(place, np.broadcast_to(np.asarray(result, dtype=np.float64), shape))

    def _cell(self, place: NodeId, values: Float64) -> NodeId:
        if (values == values[0]).all():
            return self.constant(values[0])
        return self.add(Node("cell", (place,), by_cell=tuple(values.tolist())))

    def _simplified(self, operation: str, operands: tuple[NodeId, ...]) -> NodeId | None:
        """Return a node that the operation leaves as it is, or a shorter way to write it."""
        first = operands[0]
        if operation == "where":
            return self._chosen(*operands)
        if len(operands) == 1:
            return self._probability(first) if operation == "exp" else None
        constants = [self.value(operand) for operand in operands]
        if operation in ("add", "multiply") and constants[0] is not None and constants[1] is None:
            return self.apply(operation, operands[1], first)
        if operation in ("maximum", "minimum") and first == operands[1]:
            return first
        if constants[1] is not None and constants[1] == _NEUTRAL.get(operation):
            return first
        if operation == "multiply" and constants[1] == 0:
            return self.constant(0.0)  # rows that are not finite are set aside before
        if operation == "subtract":
            return self._log_probability(operands)
        if operation == "divide":
            return self._share(operands)
        return None

    def _chosen(self, condition: NodeId, yes: NodeId, no: NodeId) -> NodeId | None:
        """Return the side that a condition always chooses."""
        constant = self.value(condition)
        if constant is not None:
            return yes if constant else no
        return yes if yes == no else None

    def _probability(self, exponent: NodeId) -> NodeId | None:
        """Return a softmax of a log_softmax, or 1/(1 + e^−v) where the exponent is min(v, 0) − log1p(e^−|v|)."""
        node = self.nodes[exponent]
        if node.operation == "log_softmax":
            return self.add(Node("softmax", node.operands))
        if node.operation != "subtract":
            return None
        lowest, log1p = (self.nodes[operand] for operand in node.operands)
        if lowest.operation != "minimum" or log1p.operation != "log1p":
            return None
        odds = lowest.operands[0]
        size = self.apply("maximum", odds, self.apply("multiply", odds, self.constant(-1.0)))
        power = self.apply("exp", self.apply("multiply", size, self.constant(-1.0)))
        if self.value(lowest.operands[1]) != 0 or log1p.operands[0] != power:
            return None
        zero = self.constant(0.0)
        return self.softmax(1, np.array([zero, odds]))

    def _log_probability(self, operands: tuple[NodeId, ...]) -> NodeId | None:
        """Return a log_softmax where x − m − ln Σ e^(x − m) is computed."""
        below, log = operands
        if self.nodes[log].operation != "log":
            return None
        terms = self._terms(self.nodes[log].operands[0])
        exponents = [self._exponent(term) for term in terms]
        if below not in exponents or len(terms) < 2 or None in exponents:
            return None
        return self._of_shifted(exponents.index(below), exponents, logarithm=True)

    def _share(self, operands: tuple[NodeId, ...]) -> NodeId | None:
        """Return a softmax where e^(x − m) / Σ e^(x − m) is computed."""
        power, total = operands
        terms = self._terms(total)
        exponents = [self._exponent(term) for term in terms]
        if power not in terms or len(terms) < 2 or None in exponents:
            return None
        return self._of_shifted(terms.index(power), exponents, logarithm=False)

    def _of_shifted(
        self, k: int, exponents: list[NodeId | None], *, logarithm: bool
    ) -> NodeId | None:
        """Return the softmax of numbers that are shown with one number subtracted from all."""
        logits = np.array(exponents)
        if (self._unshifted(logits) == logits).all():
            return None
        return self.softmax(k, logits, logarithm=logarithm)

    def _terms(self, total: NodeId) -> list[NodeId]:
        """Return the terms of a sum."""
        node = self.nodes[total]
        if node.operation != "add":
            return [total]
        return [*self._terms(node.operands[0]), *self._terms(node.operands[1])]

    def _exponent(self, power: NodeId) -> NodeId | None:
        node = self.nodes[power]
        return node.operands[0] if node.operation == "exp" else None


def expanded(program: Program, graph: Graph, arguments: dict[str, ColumnNumbers]) -> ColumnNumbers:
    """Return the nodes of the columns that a program computes; ``arguments`` are the nodes of what it takes.

    >>> from hcal.integrations.recording import softmax
    >>> program = Program()
    >>> softmax(2.0 * program.argument("scores", 2)).name
    'v5'
    >>> graph = Graph()
    >>> scores = np.array([graph.input("a"), graph.input("b")])
    >>> [graph.nodes[number].operation for number in expanded(program, graph, {"scores": scores})]
    ['softmax', 'softmax']
    """
    expansion = _Expansion(program, graph, dict(arguments))
    for step in program.steps:
        expansion.values[step.name] = expansion.columns_of(step)
    return expansion.values[program.steps[-1].name]


@dataclass
class _Expansion:
    """The nodes of the values that were computed so far."""

    program: Program
    graph: Graph
    values: dict[str, ColumnNumbers]

    def columns_of(self, step: Step) -> ColumnNumbers:
        """Return the nodes of the columns of a step's result."""
        if len(step.axes) > 1:
            raise Unsupported("an operation on tables inside a row")
        if step.operation in _ON_ROWS:
            columns: ColumnNumbers = _ON_ROWS[step.operation](self, *step.operands)
            return columns
        if step.operation not in NUMPY:
            raise Unsupported(step.operation.replace("_", " "))
        operands = np.broadcast_arrays(*[self._columns(operand) for operand in step.operands])
        results = []
        for numbers in zip(*operands):  # noqa: B905 - one column serves all
            results.append(self.graph.apply(step.operation, *numbers))
        return np.array(results)

    def _columns(self, operand: Operand) -> ColumnNumbers:
        if isinstance(operand, str) and operand in self.values:
            return self.values[operand]
        values = self._array(operand)
        return np.array([self.graph.constant(value) for value in np.atleast_1d(values)])

    def _array(self, operand: Operand) -> Float64:
        values = self.program.arrays[operand] if isinstance(operand, str) else operand
        return np.asarray(values, dtype=np.float64)

    def _fold(self, operation: str, operand: Operand) -> ColumnNumbers:
        columns = self._columns(operand).tolist()
        result = columns[0]
        for number in columns[1:]:
            result = self.graph.apply(operation, result, number)
        return np.array([result])

    def _row_sum(self, operand: Operand) -> ColumnNumbers:
        return self._fold("add", operand)

    def _row_max(self, operand: Operand) -> ColumnNumbers:
        return self._fold("maximum", operand)

    def _argmax(self, operand: Operand) -> ColumnNumbers:
        best, *others = self._columns(operand).tolist()
        number = self.graph.constant(0)
        for k, other in enumerate(others, start=1):
            is_larger = self.graph.apply("less", best, other)
            number = self.graph.apply("where", is_larger, self.graph.constant(k), number)
            best = self.graph.apply("maximum", best, other)
        return np.array([number])

    def _place_of(self, array: Operand, operand: Operand, *, closed: bool) -> ColumnNumbers:
        cells = NodeColumns(tuple(self._array(array).tolist()), closed)
        return np.array([self.graph.place(x, cells) for x in self._columns(operand).tolist()])

    def _count_below(self, array: Operand, operand: Operand) -> ColumnNumbers:
        return self._place_of(array, operand, closed=False)

    def _count_up_to(self, array: Operand, operand: Operand) -> ColumnNumbers:
        return self._place_of(array, operand, closed=True)

    def _take(self, array: Operand, operand: Operand) -> ColumnNumbers:
        values = self._array(array)
        return np.array([self.graph.take(values, x) for x in self._columns(operand).tolist()])

    def _take_in_row(self, operand: Operand, index: Operand) -> ColumnNumbers:
        entries = self._columns(operand).tolist()
        chosen = []
        for number in self._columns(index).tolist():
            entry = entries[0]
            for k, other in enumerate(entries[1:], start=1):
                is_here = self.graph.apply("equal", number, self.graph.constant(k))
                entry = self.graph.apply("where", is_here, other, entry)
            chosen.append(entry)
        return np.array(chosen)

    def _put_in_row(self, operand: Operand, index: Operand, new: Operand) -> ColumnNumbers:
        columns = self._columns(operand).copy()
        numbers, values = np.broadcast_arrays(self._columns(index), self._columns(new))
        for number, value in zip(numbers.tolist(), values.tolist(), strict=True):
            for k, old in enumerate(columns.tolist()):
                is_here = self.graph.apply("equal", number, self.graph.constant(k))
                columns[k] = self.graph.apply("where", is_here, value, old)
        return columns

    def _matrix_product(self, operand: Operand, matrix: Operand) -> ColumnNumbers:
        table = self._array(matrix)
        if table.ndim != 2:
            raise Unsupported("a product with a single column")
        columns = self._columns(operand).tolist()
        results = []
        for weights in table.T.tolist():
            terms = [
                self.graph.apply("multiply", number, self.graph.constant(weight))
                for number, weight in zip(columns, weights, strict=True)
            ]
            total = terms[0]
            for term in terms[1:]:
                total = self.graph.apply("add", total, term)
            results.append(total)
        return np.array(results)

    def _chosen(self, operand: Operand, numbers: Operand) -> ColumnNumbers:
        return self._columns(operand)[numbers]  # type: ignore[index]

    def _join(self, *operands: Operand) -> ColumnNumbers:
        return np.concatenate([self._columns(operand) for operand in operands])


#: How the operations that take or give whole rows are expanded.
_ON_ROWS: dict[str, Callable[..., ColumnNumbers]] = {
    "row_sum": _Expansion._row_sum,
    "row_max": _Expansion._row_max,
    "argmax": _Expansion._argmax,
    "count_below": _Expansion._count_below,
    "count_up_to": _Expansion._count_up_to,
    "take": _Expansion._take,
    "take_in_row": _Expansion._take_in_row,
    "put_in_row": _Expansion._put_in_row,
    "matrix_product": _Expansion._matrix_product,
    "columns": _Expansion._chosen,
    "join": _Expansion._join,
}
