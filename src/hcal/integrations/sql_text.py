"""Nodes of a formula as SQL expressions, in the dialects of DuckDB, PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hcal.integrations.scalars import Graph, Node, NodeId

#: PostgreSQL raises an error where e^x is 0 or infinite in float64.
_LARGEST_EXPONENT = 700.0
#: PostgreSQL raises an error where a product is 0 in float64, so smaller logits count as 0.
_LEAST_LOGIT = 1e-100


@dataclass(frozen=True)
class Dialect:
    """How a database writes what is not the same in all.

    Attributes
    ----------
    name : str
    greatest, least : str
        The functions that return the largest and the smallest of several numbers.
    infinity, nan : str
        Constants; SQLite has no NaN, and NULL takes its place.
    bounded_exp : bool
        Whether an exponent must be kept in a range.
    number : str
        A column as a float64 number; ``{0}`` is the column.
    missing : str
        The condition that a column holds no number.
    text : str
        The type of texts.
    """

    name: str
    greatest: str
    least: str
    infinity: str
    nan: str
    bounded_exp: bool
    number: str
    missing: str
    text: str

    def score(self, column: str, kind: str) -> str:
        """Return a column of scores as a float64 number."""
        number = self.number.format(column)
        if self.name != "postgres" or kind != "logits":
            return number
        return f"(CASE WHEN abs({number}) < {_LEAST_LOGIT!r} THEN 0e0 ELSE {number} END)"


DIALECTS = {
    "duckdb": Dialect(
        name="duckdb",
        greatest="greatest",
        least="least",
        infinity="'Infinity'::DOUBLE",
        nan="'NaN'::DOUBLE",
        bounded_exp=False,
        number="CAST({0} AS DOUBLE)",
        missing="{0} IS NULL",
        text="VARCHAR",
    ),
    "postgres": Dialect(
        name="postgres",
        greatest="greatest",
        least="least",
        infinity="'Infinity'::float8",
        nan="'NaN'::float8",
        bounded_exp=True,
        number="CAST({0} AS float8)",
        missing="{0} IS NULL",
        text="text",
    ),
    "sqlite": Dialect(
        name="sqlite",
        greatest="max",
        least="min",
        infinity="9e999",
        nan="NULL",
        bounded_exp=False,
        number="({0} * 1e0)",
        # A column may hold anything, and a text that is no number would count as 0.
        missing="typeof({0}) NOT IN ('real', 'integer')",
        text="TEXT",
    ),
}


def quoted_name(name: str) -> str:
    """Return a name of a table or column as SQL writes it; what it holds cannot end the quotes.

    >>> quoted_name('a"; DROP TABLE b; --')
    '"a""; DROP TABLE b; --"'
    """
    if "\0" in name or not name:
        raise ValueError(f"a name in SQL has at least one character and no NUL, got {name!r}")
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def quoted_text(text: str) -> str:
    """Return a text as SQL writes it.

    >>> quoted_text("it's")
    "'it''s'"
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def sql_number(value: float, dialect: Dialect) -> str:
    """Return a number as SQL writes it, to the last bit.

    >>> sql_number(0.1, DIALECTS["duckdb"]), sql_number(-2.0, DIALECTS["duckdb"])
    ('0.1e0', '(-2.0e0)')
    """
    if value != value:
        return dialect.nan
    if value in (float("inf"), float("-inf")):
        return dialect.infinity if value > 0 else f"(-{dialect.infinity})"
    digits = repr(float(value))
    written = digits if "e" in digits else f"{digits}e0"  # without e, a number is a decimal
    return f"({written})" if value < 0 else written


@dataclass
class SqlWriter:
    """Writes the nodes of a graph as expressions.

    Attributes
    ----------
    graph : Graph
    dialect : Dialect
    names : mapping of node to expression
        Inputs and columns of tables, and nodes that have a column of their own.
    """

    graph: Graph
    dialect: Dialect
    names: Mapping[NodeId, str]
    _written: dict[NodeId, str] = field(default_factory=dict)

    def expression(self, number: NodeId) -> str:
        """Return the expression of a node."""
        if number in self.names:
            return self.names[number]
        if number not in self._written:
            self._written[number] = self.own_expression(number)
        return self._written[number]

    def own_expression(self, number: NodeId) -> str:
        """Return the expression of a node that has a name, in terms of others."""
        node = self.graph.nodes[number]
        if node.value is not None:
            return sql_number(node.value, self.dialect)
        if node.operation == "where":
            condition, yes, no = node.operands
            yes_text = self.expression(yes)
            no_text = self.expression(no)
            return f"CASE WHEN {self.condition(condition)} THEN {yes_text} ELSE {no_text} END"
        if node.operation in _COMPARISONS:
            return f"CASE WHEN {self.condition(number)} THEN 1e0 ELSE 0e0 END"
        if node.operation == "softmax":
            return self._softmax(node)
        if node.operation == "log_softmax":
            return self._log_softmax(node)
        if node.operation in CHAINS:
            return self._chain(node.operation, self._terms(number))
        return self._function(node)

    def _chain(self, operation: str, terms: list[str]) -> str:
        """Return the sum, or the largest or smallest, of several terms."""
        if operation == "add":
            return f"({' + '.join(terms)})"
        functions = {"maximum": self.dialect.greatest, "minimum": self.dialect.least}
        return f"{functions[operation]}({', '.join(terms)})"

    def _function(self, node: Node) -> str:
        """Return an operator between two expressions, or a function of one."""
        operands = [self.expression(operand) for operand in node.operands]
        if node.operation == "divide" and self.dialect.name == "postgres":
            # There, one row that divides by 0 ends the query; only rows that get NaN do so.
            operands[1] = f"NULLIF({operands[1]}, 0e0)"
        if node.operation in _OPERATORS:
            return f"({operands[0]} {_OPERATORS[node.operation]} {operands[1]})"
        if node.operation == "exp":
            return self._exp(operands[0])
        if node.operation == "log":
            # ln 0 is an error, or NULL.
            tiny = sql_number(float(np.finfo(np.float64).tiny), self.dialect)
            return f"ln({self.dialect.greatest}({operands[0]}, {tiny}))"
        return _FUNCTIONS[node.operation].format(operands[0])

    def _terms(self, number: NodeId) -> list[str]:
        """Return the terms of a sum, or of a largest or smallest of several, in their order."""
        operation = self.graph.nodes[number].operation
        terms = []
        left = number
        while self.graph.nodes[left].operation == operation:
            left, right = self.graph.nodes[left].operands
            terms.append(self.expression(right))
            if left in self.names:
                break
        return [self.expression(left), *terms[::-1]]

    def condition(self, number: NodeId) -> str:
        """Return a node that is 1 or 0 as a condition."""
        node = self.graph.nodes[number]
        if node.operation not in _COMPARISONS:
            return f"{self.expression(number)} > 0.5e0"
        left, right = (self.expression(operand) for operand in node.operands)
        return f"{left} {_COMPARISONS[node.operation]} {right}"

    def _softmax(self, node: Node) -> str:
        """Return 1/Σ e^(other − own)."""
        own, *others = node.operands
        powers = [self._exp(self._difference(other, own)) for other in others]
        total = " + ".join(["1e0", *powers])
        return f"(1e0 / ({total}))"

    def _log_softmax(self, node: Node) -> str:
        """Return −ln Σ e^(other − own), without a power that is too large."""
        own, *others = node.operands
        differences = [self._difference(other, own) for other in others]
        largest = f"{self.dialect.greatest}(0e0, {', '.join(differences)})"
        terms = ["0e0", *differences]
        powers = " + ".join(self._exp(f"{term} - {largest}") for term in terms)
        return f"(-{largest} - ln({powers}))"

    def _difference(self, left: NodeId, right: NodeId) -> str:
        if self.graph.value(left) == 0:
            node = self.graph.nodes[right]
            if node.operation == "multiply" and self.graph.value(node.operands[1]) == -1:
                return self.expression(node.operands[0])
            return f"-({self.expression(right)})"
        if self.graph.value(right) == 0:
            return self.expression(left)
        return f"{self.expression(left)} - {self.expression(right)}"

    def _exp(self, exponent: str) -> str:
        if not self.dialect.bounded_exp:
            return f"exp({exponent})"
        most = sql_number(_LARGEST_EXPONENT, self.dialect)
        least = sql_number(-_LARGEST_EXPONENT, self.dialect)
        return f"exp(greatest({least}, least({most}, {exponent})))"


#: Of several terms, no parentheses are needed.
CHAINS = ("add", "maximum", "minimum")
_OPERATORS = {"subtract": "-", "multiply": "*", "divide": "/"}
_COMPARISONS = {"less": "<", "less_equal": "<=", "equal": "="}
_FUNCTIONS = {
    # These two are as accurate near 0 as the functions that SQL lacks.
    "log1p": "(2e0 * atanh({0} / (2e0 + {0})))",
    "expm1": "(2e0 * tanh({0} / 2e0) / (1e0 - tanh({0} / 2e0)))",
    "sqrt": "sqrt({0})",
    "floor": "floor({0})",
}
