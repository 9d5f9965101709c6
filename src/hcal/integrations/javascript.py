"""A calibrator as one ES module without dependencies, for browsers and node: the recorded formula, row by row."""

from __future__ import annotations

import json

import numpy as np

from hcal._version import __version__
from hcal.integrations.json_file import NAN_RULE, example_of, recorded
from hcal.integrations.recording import Axes, Operand, Program, Step
from hcal.methods.base import Calibrator
from hcal.numerics import Float64
from hcal.text import JsonObject, printable

#: Operations on each entry.
_EACH = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "exp": "Math.exp(a)",
    "expm1": "Math.expm1(a)",
    "log": "Math.log(a)",
    "log1p": "Math.log1p(a)",
    "sqrt": "Math.sqrt(a)",
    "floor": "Math.floor(a)",
    "maximum": "Math.max(a, b)",
    "minimum": "Math.min(a, b)",
    "less": "Number(a < b)",
    "less_equal": "Number(a <= b)",
    "equal": "Number(a === b)",
    "where": "a ? b : c",
}
#: Operations on each run of n entries along the last axis.
_ALONG = {
    "row_sum": "[x.reduce((total, entry) => total + entry, 0)]",
    "row_max": "[Math.max(...x)]",
    "argmax": "[x.reduce((best, entry, k) => (entry > x[best] ? k : best), 0)]",
    "running_sum": "x.map(((total) => (entry) => (total += entry))(0))",
    "falling_order": "x.map((_, k) => k).sort((i, j) => x[j] - x[i] || i - j)",
}
_EACH_FUNCTION = """
// Apply f entry by entry; an entry of one column, or of a shorter shape, serves several.
function each(f, shape, ...values) {
  const size = shape.reduce((product, n) => product * n, 1);
  const strides = values.filter((_, i) => i % 2).map((from) => {
    let step = 1;
    return shape.map((_, i) => {
      const n = from[from.length - 1 - i] ?? 1;
      const stride = n === 1 ? 0 : step;
      step *= n;
      return stride;
    });
  });
  const entries = values.filter((_, i) => i % 2 === 0);
  const result = new Array(size);
  for (let at = 0; at < size; at++) {
    const operands = entries.map((entry, v) => {
      let rest = at, place = 0;
      for (let i = 0; i < shape.length; i++) {
        const n = shape[shape.length - 1 - i];
        place += (rest % n) * strides[v][i];
        rest = Math.floor(rest / n);
      }
      return entry[place];
    });
    result[at] = f(...operands);
  }
  return result;
}
"""
_FUNCTIONS = {
    "rows": """
// Cut a value into runs of n entries, the last axis.
function rows(x, n) {
  return Array.from({ length: x.length / n }, (_, i) => x.slice(i * n, (i + 1) * n));
}
""",
    "count": """
// How many entries of a rising array are below x, or up to it.
function count(array, x, below) {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (below ? array[middle] < x : array[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}
""",
    "product": """
// The matrix product of a value, whose last axis has n entries, and an array of m columns.
function product(x, n, array, m) {
  return rows(x, n).flatMap((row) =>
    Array.from({ length: m }, (_, j) =>
      row.reduce((total, entry, i) => total + entry * array[i * m + j], 0)));
}
""",
    "put": """
// A copy of x with the entries in the columns that index names replaced.
function put(x, index, values) {
  const changed = x.slice();
  index.forEach((k, i) => { changed[k || 0] = values[values.length > 1 ? i : 0]; });
  return changed;
}
""",
    "sums": """
// The sums of the entries of x whose group is 0, 1, 2 and so on.
function sums(x, group) {
  return x.map((_, k) => x.reduce((total, entry, i) => total + (group[i] === k ? entry : 0), 0));
}
""",
}
_TWO_COLUMNS = {
    "logits": "[0, score]",
    "probs": "[1 - score, score]",
    "log_probs": "[Math.log(-Math.expm1(Math.min(score, 0))), score]",
}
_MANY = "For many classes, ONNX with onnxruntime-web is faster."


def as_javascript(calibrator: Calibrator) -> str:
    """Return a calibrator as the text of an ES module."""
    program = recorded(calibrator)
    shapes: dict[str, Axes] = {"scores": (calibrator.n_classes_,)}
    shapes |= {name: array.shape for name, array in program.arrays.items()}
    lines = []
    for step in program.steps:
        lines.append(f"  const {step.name} = {_Written(step, program, shapes).expression()};")
        shapes[step.name] = step.axes
    arrays = [
        f"const {_identifier(name)} = {_numbers(array.ravel())};"
        for name, array in program.arrays.items()
    ]
    body = "\n".join(lines)
    functions = [_EACH_FUNCTION]
    functions += [text for name, text in _FUNCTIONS.items() if _is_called(name, body)]
    return "\n".join(
        [
            *_header(calibrator),
            f"export const info = {_text(_facts(calibrator))};",
            f"export const example = {_text(example_of(calibrator))};",
            "",
            *arrays,
            "",
            _predict(calibrator),
            f"function probabilities(scores) {{\n{body}\n  return {program.steps[-1].name};\n}}",
            *functions,
            _TEST,
        ]
    )


class _Written:
    """A step as an expression."""

    def __init__(self, step: Step, program: Program, shapes: dict[str, Axes]) -> None:
        self.step = step
        self.program = program
        self.shapes = shapes

    def expression(self) -> str:
        """Return the expression of the step's result."""
        operation = self.step.operation
        operands = self.step.operands
        names = [self._name(operand) for operand in operands]
        if operation in _EACH:
            letters = ", ".join("abc"[: len(names)])
            pairs = [
                f"{name}, {_shape(self._shape(operand))}"
                for name, operand in zip(names, operands, strict=True)
            ]
            values = ", ".join(pairs)
            shape = _shape(self.step.axes)
            return f"each(({letters}) => {_EACH[operation]}, {shape}, {values})"
        if operation in _ALONG:
            length = self._shape(operands[0])[-1]
            return f"rows({names[0]}, {length}).flatMap((x) => {_ALONG[operation]})"
        return self._other(operation, names)

    def _other(self, operation: str, names: list[str]) -> str:
        """Return the expression of an operation that looks something up, or moves columns."""
        operands = self.step.operands
        if operation == "join":
            return f"[{', '.join(f'...{name}' for name in names)}]"
        if operation == "new_axis":
            return names[0]
        if operation == "columns":
            return f"{operands[1]}.map((k) => {names[0]}[k])"
        if operation in ("count_below", "count_up_to"):
            below = "true" if operation == "count_below" else "false"
            return f"{names[1]}.map((x) => count({names[0]}, x, {below}))"
        if operation == "take":
            return f"{names[1]}.map((k) => {names[0]}[k || 0])"
        if operation == "take_in_row":
            return f"{names[1]}.map((k) => {names[0]}[k || 0])"
        if operation == "put_in_row":
            return f"put({names[0]}, {names[1]}, {names[2]})"
        if operation == "sum_by_group":
            return f"sums({names[0]}, {names[1]})"
        assert operation == "matrix_product", operation
        length = self._shape(operands[0])[-1]
        matrix = self._shape(operands[1])
        return f"product({names[0]}, {length}, {names[1]}, {matrix[1] if len(matrix) > 1 else 1})"

    def _name(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand if operand not in self.program.arrays else _identifier(operand)
        return _numbers(np.atleast_1d(np.array(operand, dtype=np.float64)))

    def _shape(self, operand: Operand) -> Axes:
        return self.shapes[operand] if isinstance(operand, str) else ()


def _header(calibrator: Calibrator) -> list[str]:
    kind = calibrator.prediction_.kind.replace("_", "-")
    k = calibrator.n_classes_
    lines = [
        f"{calibrator.title}, {k} classes, written by hcal {__version__}.",
        f"predict(rows) takes rows of {kind}, an array of {k} numbers each, and returns "
        "probabilities alike.",
        f"{NAN_RULE} So does a row that predict_proba refuses.",
        "To test it, run `node` with this file, or call test() in a browser: it returns the "
        "largest difference of three rows to the probabilities that hcal gave.",
    ]
    if k == 2:
        lines.insert(2, "A row may be a single number: the score of the second class.")
    else:
        lines.append(_MANY)
    return [*(f"// {printable(line)}" for line in lines), ""]


def _facts(calibrator: Calibrator) -> JsonObject:
    return {
        "hcal": __version__,
        "method": calibrator.name,
        "input": calibrator.prediction_.kind,
        "classes": [str(name) for name in calibrator.classes_],
        "preserves": calibrator.preserves,
    }


def _predict(calibrator: Calibrator) -> str:
    kind = calibrator.prediction_.kind
    k = calibrator.n_classes_
    first = "const row = given;"
    if k == 2:
        first = 'const row = typeof given === "number" ? twoColumns(given) : given;'
    lines = [
        "/** Return calibrated probabilities, an array for each row. */",
        "export function predict(table) {",
        "  return Array.from(table, (given) => {",
        f"    {first}",
        f"    if (!row || row.length !== {k}) throw new RangeError({_text(_length_words(k))});",
        "    const scores = Array.from(row, (score) => score ?? NaN);",
        '    if (scores.some((score) => typeof score !== "number"))',
        '      throw new TypeError("scores must be numbers");',
        f"    return scores.some(Number.isNaN) ? new Array({k}).fill(NaN) : probabilities(scores);",
        "  });",
        "}",
        "",
    ]
    if k == 2:
        lines += ["function twoColumns(score) {", f"  return {_TWO_COLUMNS[kind]};", "}", ""]
    return "\n".join(lines)


def _length_words(n_classes: int) -> str:
    one = ", or one number" if n_classes == 2 else ""
    return f"each row must have {n_classes} scores{one}"


def _numbers(values: Float64) -> str:
    """Return numbers as JavaScript writes them."""
    words = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    texts = [repr(value) for value in values.tolist()]
    return f"[{', '.join(words.get(text, text) for text in texts)}]"


def _text(value: object) -> str:
    """Return a plain value as JavaScript, also inside a page."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _shape(axes: Axes) -> str:
    return str(list(axes))


def _identifier(name: str) -> str:
    """Return the name of an array as JavaScript allows it."""
    return "array_" + name.replace(".", "_")


def _is_called(name: str, body: str) -> bool:
    return f"{name}(" in body or (name == "rows" and "product(" in body)


_TEST = """
/** Return the largest difference between what predict gives for the example and what hcal gave. */
export function test() {
  const differences = predict(example.scores).flatMap((row, i) =>
    row.map((p, k) => Math.abs(p - example.probs[i][k])));
  return Math.max(...differences);
}

if (typeof process !== "undefined" && process.argv?.[1]
    && import.meta.url === new URL(process.argv[1], "file:").href) {
  const difference = test();
  console.log(`largest difference to hcal: ${difference}`);
  if (!(difference <= 1e-12)) process.exit(1);
}
"""
