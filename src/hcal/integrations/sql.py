"""A calibrator as one SQL query, for DuckDB, PostgreSQL and SQLite.

Two classes need one expression of the log-odds. Look-ups, as those of the default, become a table that is joined, and
so do segments. What is too long for one expression is computed in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from hcal._version import __version__
from hcal.fit_record import fitted_segments
from hcal.frames import AnyArray
from hcal.inputs import sum_to_one, to_logits, two_columns
from hcal.integrations.json_file import example_scores
from hcal.integrations.recording import Program, row_sum
from hcal.integrations.scalars import (
    ColumnNumbers,
    Graph,
    Node,
    NodeColumns,
    NodeId,
    Unsupported,
    expanded,
)
from hcal.integrations.sql_text import (
    CHAINS,
    DIALECTS,
    Dialect,
    SqlWriter,
    quoted_name,
    quoted_text,
    sql_number,
)
from hcal.maps.base import LEAST_PROBABILITY, Map, Prediction, raise_to_floor, reweight
from hcal.methods.base import Calibrator
from hcal.methods.platt import OddsMap
from hcal.numerics import Float64, FloatArray
from hcal.segments.map import SegmentedMap
from hcal.text import printable

DialectName = Literal["duckdb", "postgres", "sqlite"]
#: More characters are no query that a database reads in good time.
MOST_CHARACTERS = 2_000_000
#: Longer, or more deeply nested, expressions are computed in several steps.
_LONG = 3000
_DEEP = 20
#: A shorter expression is repeated rather than computed in a step of its own.
_WORTH_A_COLUMN = 40
#: A sum of e^x below this has lost digits.
_SMALL = 1e-290
_LOG_TINY = float(np.log(np.finfo(np.float64).tiny))
#: Sums of probabilities that are further from 1 are refused by ``predict_proba``, too.
_SUM_TOLERANCE = {"probs": 1e-4, "log_probs": 1e-3}


def as_sql(
    calibrator: Calibrator,
    *,
    dialect: DialectName = "duckdb",
    table: str = "scores",
    columns: Sequence[str] | None = None,
) -> str:
    """Return a calibrator as a query that adds a column of probabilities for each class to a table.

    Parameters
    ----------
    calibrator : Calibrator
    dialect : {"duckdb", "postgres", "sqlite"}
    table : str
        The table of the scores.
    columns : sequence of str, optional
        The columns of the scores in the order of the classes, or one column of two classes. By default those of the
        fit, or ``logits_0``, ``logits_1``, ….
    """
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {', '.join(DIALECTS)}, got {dialect!r}")
    query = _Query(calibrator, DIALECTS[dialect], table, _score_columns(calibrator, columns))
    try:
        return query.written()
    except Unsupported as error:
        raise ValueError(
            f"{calibrator.title} with {calibrator.n_classes_} classes has no SQL, because it needs "
            f"{error}: write .onnx or .json"
        ) from error


def _score_columns(calibrator: Calibrator, columns: Sequence[str] | None) -> tuple[str, ...]:
    n_classes = calibrator.n_classes_
    if columns is None:
        fitted = calibrator.fit_.columns
        if fitted is not None:
            return tuple(map(str, fitted))
        return tuple(f"{calibrator.prediction_.kind}_{name}" for name in calibrator.classes_)
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(names) != n_classes and not (n_classes == 2 and len(names) == 1):
        one = ", or one column" if n_classes == 2 else ""
        raise ValueError(f"columns must name {n_classes} columns{one}, got {len(names)}")
    if len(set(names)) < len(names):
        raise ValueError("columns must be different names")
    return names


@dataclass(frozen=True)
class _Level:
    """A sub-query that computes columns: as a table expression, or joined to each row; and their names."""

    definition: str
    lateral: str
    names: list[str]


@dataclass(frozen=True)
class _Buckets:
    """Intervals of one width, by which a database finds the few cells that a number can lie in.

    Attributes
    ----------
    start : float
        Where the first bucket begins.
    scale : float
        One over the width.
    last : float
        The number of the last bucket.
    """

    start: float
    scale: float
    last: float

    @classmethod
    def of(cls, cells: NodeColumns) -> Self:
        """Return as many buckets as there are cells."""
        low = cells.edges[0]
        width = (cells.edges[-1] - low) / cells.count
        return cls(low, 1 / width if width > 0 else 0.0, float(cells.count))

    def rows(self, cells: NodeColumns, columns: list[Node]) -> Float64:
        """Return a row for each bucket of each cell: its number, the cell's ends, and the cell's values.

        Rounding keeps the order of numbers, so the buckets of a cell are those between the buckets of its ends.
        """
        edges = np.array([-np.inf, *cells.edges, np.inf])
        with np.errstate(invalid="ignore"):
            position = np.nan_to_num((edges - self.start) * self.scale, nan=0.0)
        bucket = np.floor(np.maximum(0.0, np.minimum(self.last, position)))
        values = np.stack([edges[:-1], edges[1:], *(n.known for n in columns)], axis=1)
        rows = []
        for cell in np.flatnonzero(edges[:-1] < edges[1:]):  # a cell between equal edges is empty
            for number in np.arange(bucket[cell], bucket[cell + 1] + 1):
                rows.append([number, *values[cell]])
        return np.array(rows)


@dataclass
class _Query:
    """The parts of a query."""

    calibrator: Calibrator
    dialect: Dialect
    table: str
    columns: tuple[str, ...]
    graph: Graph = field(default_factory=Graph)
    names: dict[NodeId, str] = field(default_factory=dict)

    def written(self) -> str:
        """Return the query with its comments."""
        scores = np.array([self.graph.input(name) for name in self.columns])
        prediction = self.calibrator.prediction_
        for number, name in zip(scores.tolist(), self.columns, strict=True):
            self.names[number] = self.dialect.score(f"s.{quoted_name(name)}", prediction.kind)
        probs = self._probs(prediction, scores)

        levels = self._levels(probs) if self._is_long(probs) else []
        tables = [*self._cell_tables(probs), *self._segment_table()]
        query = "\n".join(self._query(levels, tables, self._outputs(scores, probs))) + ";\n"
        if len(query) > MOST_CHARACTERS:
            raise Unsupported(f"a query of {len(query):,} characters")
        header = "\n".join(self._header(bool(levels)))
        example = "\n".join(self._example())
        return f"{header}\n\n{query}{example}\n"

    def _query(
        self, levels: list[_Level], tables: list[tuple[str, str]], outputs: list[str]
    ) -> list[str]:
        """Return the lines of the query."""
        definitions = [definition for definition, _ in tables]
        joins = [join for _, join in tables]
        source = f"FROM {quoted_name(self.table)} AS s"
        hidden = ""
        if self.dialect.name == "postgres":
            joins = [*[level.lateral for level in levels], *joins]
        elif levels:
            definitions = [*[level.definition for level in levels], *definitions]
            source = f"FROM hcal_{len(levels)} AS s"
        if levels and self.dialect.name == "duckdb":
            names = [name for level in levels for name in level.names]
            hidden = f" EXCLUDE ({', '.join(names)})"
        start = ["WITH " + ",\n".join(definitions)] if definitions else []
        return [*start, f"SELECT s.*{hidden},", ",\n".join(outputs), source, *joins]

    # -- formulas ---------------------------------------------------------------------------------

    def _probs(self, prediction: Prediction, scores: ColumnNumbers) -> ColumnNumbers:
        """Return the nodes of the probabilities (K,)."""
        program = Program()
        table = program.argument("scores", len(scores))
        if len(scores) == 1:
            table = two_columns(table, prediction.kind)
        elif prediction.kind == "probs":
            table = sum_to_one(table, row_sum(table))
        logits: AnyArray = to_logits(table, prediction.kind)
        if prediction.floor is not None:
            logits = raise_to_floor(logits, prediction.floor)
        if self.calibrator.n_classes_ == 2:
            logits = logits[..., 1:] - logits[..., :1]
        x = expanded(program.needed(logits), self.graph, {"scores": scores})
        probs = self._with_prior(self._of_map(prediction.map, x), prediction.prior)
        if prediction.states_zero:
            return probs
        least = self.graph.constant(LEAST_PROBABILITY)
        return np.array([self.graph.apply("maximum", p, least) for p in probs.tolist()])

    def _of_map(self, map: Map, x: ColumnNumbers) -> ColumnNumbers:
        """Return the probabilities of a map, of the log-odds of two classes, or of the logits of several."""
        if isinstance(map, SegmentedMap):
            return self._corrected(map, x)
        if isinstance(map, OddsMap):
            return self._of_odds(map, x)
        program = Program(arrays=dict(map.arrays()))
        logits = program.argument("x", len(x))
        if len(x) == 1:
            logits = two_columns(logits, "logits")
        probs = map.probabilities(logits)
        return expanded(program.needed(probs), self.graph, {"x": x})

    def _of_odds(self, map: OddsMap, x: ColumnNumbers) -> ColumnNumbers:
        """Return the probabilities of a map that is a function of the log-odds of each class."""
        odds = x if len(x) == 1 else self._log_odds(x)
        program = Program(arrays=dict(map.arrays()))
        curved = map.curved(program.argument("odds", len(x)))
        nodes = expanded(program.needed(curved), self.graph, {"odds": odds})
        zero = self.graph.constant(0.0)
        events = [self.graph.softmax(1, np.array([zero, number])) for number in nodes.tolist()]
        if len(x) == 1:
            return self._two(int(nodes[0]))
        total = self._sum(events)
        return np.array([self.graph.apply("divide", event, total) for event in events])

    def _log_odds(self, x: ColumnNumbers) -> ColumnNumbers:
        """Return ln p − ln(1 − p) of every class; 1 − p is the sum of the others."""
        apply = self.graph.apply
        columns = x.tolist()
        top = self._largest(columns)
        powers = [apply("exp", apply("subtract", number, top)) for number in columns]
        odds = []
        for k, number in enumerate(columns):
            others = [*columns[:k], *columns[k + 1 :]]
            total = self._sum([*powers[:k], *powers[k + 1 :]])
            near = apply("subtract", apply("subtract", number, top), apply("log", total))

            second = self._largest(others)
            rest = self._sum([apply("exp", apply("subtract", x, second)) for x in others])
            far = apply("subtract", apply("subtract", number, second), apply("log", rest))
            enough = apply("less", self.graph.constant(_SMALL), total)
            odds.append(apply("where", enough, near, far))
        return np.array(odds)

    def _corrected(self, map: SegmentedMap, x: ColumnNumbers) -> ColumnNumbers:
        """Return the probabilities of segments, whose slope and term are columns of a table."""
        if len(x) > 1:
            raise Unsupported("corrections of segments with more than two classes")
        apply = self.graph.apply
        odds = self._odds_of(self._of_map(map.common.map, x))
        slope = self.graph.input("slope of the segment")
        offset = self.graph.input("term of the segment")
        self.names[slope] = "COALESCE(hcal_segments.slope, 1e0)"
        self.names[offset] = "COALESCE(hcal_segments.term, 0e0)"
        low = self.graph.constant(_LOG_TINY)
        high = self.graph.constant(-_LOG_TINY)
        zero = self.graph.constant(0.0)
        bounded = apply("minimum", apply("maximum", odds, low), high)
        moved = apply("add", apply("multiply", bounded, slope), offset)
        if map.keep:
            above = apply("maximum", moved, zero)
            below = apply("minimum", moved, zero)
            moved = apply("where", apply("less", zero, odds), above, below)
        return self._two(moved)

    def _with_prior(self, probs: ColumnNumbers, prior: Float64 | None) -> ColumnNumbers:
        """Return probabilities for other class frequencies."""
        if prior is None:
            return probs
        nodes = [self.graph.nodes[number] for number in probs.tolist()]
        if len(nodes) == 2 and all(node.operation == "softmax" for node in nodes):
            change = self.graph.constant(prior[1] - prior[0])
            return self._two(self.graph.apply("add", self._odds_of(probs), change))
        program = Program()
        adjusted = reweight(program.argument("probs", len(probs)), prior)
        return expanded(program.needed(adjusted), self.graph, {"probs": probs})

    def _two(self, odds: NodeId) -> ColumnNumbers:
        """Return the probabilities of two classes from the log-odds of the second."""
        logits = np.array([self.graph.constant(0.0), odds])
        return np.array([self.graph.softmax(k, logits) for k in range(2)])

    def _odds_of(self, probs: ColumnNumbers) -> NodeId:
        """Return the log-odds of the second of two classes."""
        node = self.graph.nodes[probs[1]]
        apply = self.graph.apply
        if node.operation == "softmax":
            return apply("subtract", *node.operands)
        tiny = self.graph.constant(float(np.finfo(np.float64).tiny))
        first, second = (apply("log", apply("maximum", p, tiny)) for p in probs.tolist())
        return apply("subtract", second, first)

    def _sum(self, terms: list[NodeId]) -> NodeId:
        total = terms[0]
        for term in terms[1:]:
            total = self.graph.apply("add", total, term)
        return total

    def _largest(self, numbers: list[NodeId]) -> NodeId:
        largest = numbers[0]
        for number in numbers[1:]:
            largest = self.graph.apply("maximum", largest, number)
        return largest

    # -- tables -----------------------------------------------------------------------------------

    def _cell_tables(self, probs: ColumnNumbers) -> list[tuple[str, str]]:
        """Return the tables of cells, and how they are joined."""
        writer = SqlWriter(self.graph, self.dialect, self.names)
        tables: list[tuple[str, str]] = []
        needed = sorted(_uses(self.graph, probs))
        for place in needed:
            node = self.graph.nodes[place]
            cells = node.cells
            if cells is None:
                continue
            columns = [n for n in needed if _is_cell_of(self.graph.nodes[n], place)]
            alias = f"hcal_cells_{len(tables) + 1}"
            for i, number in enumerate(columns):
                self.names[number] = f"{alias}.c{i}"
            x = writer.expression(node.operands[0])
            buckets = _Buckets.of(cells)
            definition = self._table(
                alias,
                ["bucket", "low", "high", *(f"c{i}" for i in range(len(columns)))],
                buckets.rows(cells, [self.graph.nodes[n] for n in columns]),
            )
            left, right = (">=", "<") if cells.closed else (">", "<=")
            join = (
                f"LEFT JOIN {alias} ON {alias}.bucket = {self._bucket(x, buckets)}\n"
                f"  AND {x} {left} {alias}.low AND {x} {right} {alias}.high"
            )
            tables.append((definition, join))
        return tables

    def _bucket(self, x: str, buckets: _Buckets) -> str:
        """Return the expression of the bucket of a number."""
        start = sql_number(buckets.start, self.dialect)
        scale = sql_number(buckets.scale, self.dialect)
        last = sql_number(buckets.last, self.dialect)
        position = f"{self.dialect.least}({last}, ({x} - {start}) * {scale})"
        return f"floor({self.dialect.greatest}(0e0, {position}))"

    def _segment_table(self) -> list[tuple[str, str]]:
        """Return the table of segments, and how it is joined."""
        segments = self.calibrator.fit_.segments
        map = self.calibrator.map_
        if segments is None or not isinstance(map, SegmentedMap):
            return []
        terms = np.zeros(len(segments))
        if map.offsets is not None:
            terms = map.offsets[:, 1] - map.offsets[:, 0]
        rows: list[list[str]] = []
        for name, slope, term in zip(segments, map.slopes, terms, strict=True):
            numbers = [self._number(float(slope)), self._number(float(term))]
            rows += [[quoted_text(spelling), *numbers] for spelling in _spellings(name)]
        definition = self._rows("hcal_segments", ["segment", "slope", "term"], rows)
        return [
            (definition, f"LEFT JOIN hcal_segments ON hcal_segments.segment = {self._segment()}")
        ]

    def _segment(self) -> str:
        """Return the expression of the name of a row's segment."""
        columns = fitted_segments(self.calibrator)
        texts = [
            f"trim(CAST(s.{quoted_name(column)} AS {self.dialect.text}))" for column in columns
        ]
        return " || ' · ' || ".join(texts)

    def _table(self, name: str, columns: list[str], rows: FloatArray) -> str:
        return self._rows(name, columns, [[self._number(x) for x in row] for row in rows.tolist()])

    def _rows(self, name: str, columns: list[str], rows: list[list[str]]) -> str:
        lines = [f"  ({', '.join(row)})" for row in rows]
        return f"{name}({', '.join(columns)}) AS (VALUES\n" + ",\n".join(lines) + "\n)"

    def _number(self, value: float) -> str:
        text = sql_number(value, self.dialect)
        return f"{text}::float8" if self.dialect.name == "postgres" else text

    def _is_long(self, probs: ColumnNumbers) -> bool:
        """Return whether expressions are too long, or nested too deeply, to be written in one."""
        lengths, depths = _sizes(self.graph)
        return any(lengths[n] > _LONG or depths[n] > _DEEP for n in probs.tolist())

    def _levels(self, probs: ColumnNumbers) -> list[_Level]:
        """Return sub-queries that compute what is used several times, before the tables of cells are joined."""
        uses = _uses(self.graph, probs)
        lengths, _ = _sizes(self.graph)
        depths: dict[NodeId, int] = {}
        by_depth: dict[int, list[NodeId]] = {}
        looked_up: set[NodeId] = set()
        for number, node in enumerate(self.graph.nodes):
            depths[number] = max((depths[operand] for operand in node.operands), default=0)
            if node.operation in ("place", "cell") or not looked_up.isdisjoint(node.operands):
                looked_up.add(number)
            elif uses.get(number, 0) > 1 and lengths[number] > _WORTH_A_COLUMN:
                depths[number] += 1
                by_depth.setdefault(depths[number], []).append(number)
        return [self._level(depth, numbers) for depth, numbers in sorted(by_depth.items())]

    def _level(self, depth: int, numbers: list[NodeId]) -> _Level:
        """Return a sub-query that computes some nodes from those of the levels before."""
        writer = SqlWriter(self.graph, self.dialect, dict(self.names))
        expressions = []
        for number in numbers:
            expressions.append(f"  {writer.own_expression(number)} AS hcal_v{number}")
            source = f"hcal_{depth}" if self.dialect.name == "postgres" else "s"
            self.names[number] = f"{source}.hcal_v{number}"
        listed = ",\n".join(expressions)
        before = quoted_name(self.table) if depth == 1 else f"hcal_{depth - 1}"
        fence = "" if self.dialect.name == "duckdb" else " MATERIALIZED"
        return _Level(
            definition=(
                f"hcal_{depth} AS{fence} (\n  SELECT s.*,\n{listed}\n  FROM {before} AS s\n)"
            ),
            lateral=f"CROSS JOIN LATERAL (\n  SELECT\n{listed}\n  OFFSET 0\n) AS hcal_{depth}",
            names=[f"hcal_v{number}" for number in numbers],
        )

    # -- text -------------------------------------------------------------------------------------

    def _outputs(self, scores: ColumnNumbers, probs: ColumnNumbers) -> list[str]:
        writer = SqlWriter(self.graph, self.dialect, self.names)
        missing = self._missing()
        sound = self._sound(scores)
        lines = []
        for name, number in zip(self._output_names(), probs.tolist(), strict=True):
            lines.append(
                f"  CASE WHEN {missing} THEN NULL\n    WHEN NOT ({sound}) THEN {self.dialect.nan}\n"
                f"    ELSE {writer.expression(number)} END AS {quoted_name(name)}"
            )
        return lines

    def _output_names(self) -> list[str]:
        """Return the names of the columns of probabilities, as ``hcal apply`` calls them."""
        names = []
        for label in self.calibrator.classes_:
            name = f"probs_{label}"
            while name in self.columns:
                name = f"{name}_calibrated"
            names.append(name)
        return names

    def _missing(self) -> str:
        columns = [f"s.{quoted_name(name)}" for name in self.columns]
        conditions = [self.dialect.missing.format(column) for column in columns]
        conditions += [
            f"s.{quoted_name(column)} IS NULL" for column in fitted_segments(self.calibrator)
        ]
        return " OR ".join(conditions)

    def _sound(self, scores: ColumnNumbers) -> str:
        """Return the condition under which a row has probabilities; NaN is larger than every number, or NULL."""
        kind = self.calibrator.prediction_.kind
        texts = [self.names[number] for number in scores.tolist()]
        infinity = self.dialect.infinity
        if kind == "logits":
            below = [f"{text} < {infinity}" for text in texts]
            if len(texts) == 1:
                return below[0]
            some = " OR ".join(f"{text} > -{infinity}" for text in texts)
            return " AND ".join([*below, f"({some})"])
        if kind == "probs":
            inside = [f"{text} >= 0e0 AND {text} <= 1.0001e0" for text in texts]
            if len(texts) == 1:
                return f"{texts[0]} >= 0e0 AND {texts[0]} <= 1e0"
            total = " + ".join(texts)
        else:
            inside = [f"{text} < 0.001e0" for text in texts]
            if len(texts) == 1:
                return inside[0]
            writer = SqlWriter(self.graph, self.dialect, self.names)
            powers = [self.graph.apply("exp", number) for number in scores.tolist()]
            total = " + ".join(writer.own_expression(power) for power in powers)
        tolerance = sql_number(_SUM_TOLERANCE[kind], self.dialect)
        return " AND ".join([*inside, f"abs({total} - 1e0) <= {tolerance}"])

    def _header(self, has_levels: bool) -> list[str]:
        calibrator = self.calibrator
        kind = calibrator.prediction_.kind.replace("_", "-")
        columns = ", ".join(self.columns)
        refused = "NULL, too" if self.dialect.name == "sqlite" else "NaN"
        lines = [
            f"{calibrator.title}, {calibrator.n_classes_} classes, written by hcal {__version__} "
            f"for {self.dialect.name}.",
            f"Adds the columns {', '.join(self._output_names())} to every row of the table "
            f"{self.table}.",
            f"Reads {kind} from {columns}.",
            f"A missing score gives NULL. A score that predict_proba refuses gives {refused}.",
        ]
        segments = fitted_segments(calibrator)
        if segments:
            lines.append(
                f"Segments are the values of {', '.join(segments)}. One that the fit did not see "
                "gets the common calibrator, and a missing one NULL."
            )
        if has_levels and self.dialect.name == "sqlite":
            lines.append(
                "ColumnNumbers that begin with hcal_ are steps: list your own in place of s.*."
            )
        lines.append("To test it, see the end of this file.")
        return [f"-- {printable(line)}" for line in lines]

    def _example(self) -> list[str]:
        """Return three rows with the probabilities that must come out, as a comment."""
        scores, probs, by = _example(self.calibrator, len(self.columns))
        segments = fitted_segments(self.calibrator)
        selects = []
        for i, row in enumerate(scores.tolist()):
            cells = [
                f"{sql_number(x, self.dialect)} AS {quoted_name(name)}"
                for x, name in zip(row, self.columns, strict=True)
            ]
            if segments:
                parts = by[i].split(" · ")
                cells += [
                    f"{quoted_text(part)} AS {quoted_name(column)}"
                    for part, column in zip(parts, segments, strict=True)
                ]
            cells += [
                f"{sql_number(p, self.dialect)} AS expected_{k}"
                for k, p in enumerate(probs[i].tolist())
            ]
            selects.append("SELECT " + ", ".join(cells))
        lines = [
            f"To test this query, put the rows below in place of {quoted_name(self.table)}, and "
            "compare the last columns.",
            "(",
            *selects[:1],
            *(f"UNION ALL {select}" for select in selects[1:]),
            ")",
        ]
        return [f"-- {printable(line)}" for line in lines]


def _example(calibrator: Calibrator, n_columns: int) -> tuple[Float64, Float64, list[str]]:
    """Return three rows of scores, their probabilities, and the segment of each."""
    scores = example_scores(calibrator)
    segments = list(calibrator.fit_.segments or [])
    by = [segments[i % len(segments)] for i in range(len(scores))] if segments else []
    if n_columns == 1:
        kind = calibrator.prediction_.kind
        scores = scores[:, 1] - scores[:, 0] if kind == "logits" else scores[:, 1]
    if segments:
        columns = fitted_segments(calibrator)
        texts = [name.split(" · ") for name in by]
        named = {column: [text[i] for text in texts] for i, column in enumerate(columns)}
        probs = calibrator.predict_proba(scores, by=named)  # type: ignore[call-arg]
    else:
        probs = calibrator.predict_proba(scores)
    return scores.reshape(len(by) or 3, -1), probs, by


def _is_cell_of(node: Node, place: NodeId) -> bool:
    return node.operation == "cell" and node.operands == (place,)


def _spellings(name: str) -> list[str]:
    """Return how the segment of a name may be written in a table: as text, number, date or truth value."""
    spellings = [name]
    if name in ("True", "False"):
        spellings += [name.lower(), name.upper()]
    elif name.lstrip("-").isdigit():
        spellings.append(f"{name}.0")
    elif len(name) == 10 and name[4] == name[7] == "-":
        spellings.append(f"{name} 00:00:00")
    return spellings


def _uses(graph: Graph, results: ColumnNumbers) -> dict[NodeId, int]:
    """Return how often each node is taken by others that the results need."""
    uses: dict[NodeId, int] = {}
    waiting = [int(number) for number in results]
    while waiting:
        number = waiting.pop()
        uses[number] = uses.get(number, 0) + 1
        if uses[number] == 1:
            waiting += graph.nodes[number].operands
    return uses


def _sizes(graph: Graph) -> tuple[list[float], list[int]]:
    """Return roughly how long the expression of each node is, and how deeply it is nested."""
    lengths: list[float] = []
    depths: list[int] = []
    for node in graph.nodes:
        lengths.append(12.0 + sum(lengths[operand] for operand in node.operands))
        first, *others = [depths[operand] for operand in node.operands] or [0]
        chained = node.operation in CHAINS
        depths.append(max([first + (not chained), *[depth + 1 for depth in others]]))
    return lengths, depths
