"""A calibrator as JSON: every step of its formula, in words and numbers, for any language.

The file lists the steps in their order and says in a sentence what each operation does. A reader of thirty lines, as
the guide on deployment shows one, then predicts what the calibrator predicts, whatever the method.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import TypeAlias

import numpy as np

from hcal._version import __version__
from hcal.inputs import two_columns, whole_rows
from hcal.integrations.curves import Polyline, polyline_of
from hcal.integrations.recording import Operand, Program, Step, Value
from hcal.maps.base import LEAST_PROBABILITY, Map, Prediction
from hcal.methods.base import Calibrator
from hcal.numerics import Float64, FloatArray, softmax
from hcal.text import JsonObject, json_without_controls, without_nan
from hcal.xp import log_softmax

#: The numbers of an array of any shape, as JSON holds them.
NestedNumbers: TypeAlias = "float | list[NestedNumbers]"
#: Changes when the layout of the file changes.
SCHEMA = "hcal/export/2"

HOW_TO_READ = (
    "A table of scores has one row for each prediction and one column for each class, in the "
    "order of 'classes'.",
    "Go through 'steps' in their order. Each is a list: the name of its result, the name of an "
    "operation, and what the operation takes. What it takes is 'scores', the result of an earlier "
    "step, an entry of 'arrays', a number, or a list of column numbers. The last step gives the "
    "probabilities, in the order of 'classes'.",
    "'operations' says what each operation does. Those that take several tables work entry by "
    "entry; a table of one column, an array or a number serves every column. Rows do not depend "
    "on each other. All numbers are float64, a comparison gives 1 or 0, and whatever is computed "
    "with NaN is NaN. Columns and entries are counted from 0.",
    "Infinity, which JSON lacks, is written as 1e308.",
    "'example' holds scores and probabilities, to test your code.",
)
NAN_RULE = (
    "A row with NaN or +infinity, or with -infinity for every class, gives NaN for every class."
)
ONE_COLUMN = (
    "If a row has one score, of the second class, compute 'one_column' first: its steps take "
    "'score' (a table of one column), and the last one gives 'scores'."
)
KINDS = {
    "logits": "The scores are logits: any finite numbers; -infinity is the lowest.",
    "probs": "The scores are probabilities from 0 to 1. A row that does not sum to 1 (within "
    "1e-4) gives NaN.",
    "log_probs": "The scores are natural logarithms of probabilities. A row that does not sum to 1 "
    "(within 1e-3) gives NaN.",
}
#: What each operation does.
OPERATIONS = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "exp": "e to the power of a",
    "expm1": "e to the power of a, minus 1, accurate near a = 0",
    "log": "the natural logarithm of a; of 0 it is -infinity",
    "log1p": "the natural logarithm of 1 + a, accurate near a = 0",
    "sqrt": "the square root of a; of a negative number it is NaN",
    "floor": "a rounded down to a whole number",
    "maximum": "the larger of a and b; NaN if one is NaN",
    "minimum": "the smaller of a and b; NaN if one is NaN",
    "less": "1 if a < b, else 0",
    "less_equal": "1 if a <= b, else 0",
    "equal": "1 if a = b, else 0",
    "where": "b where a is 1, c where a is 0",
    "row_sum": "one column: the sum of each row",
    "row_max": "one column: the largest entry of each row; NaN if the row has one",
    "argmax": "one column: the number of the column with the largest entry, the first if several "
    "are equal",
    "running_sum": "each entry plus all entries to its left",
    "matrix_product": "the matrix product of a table and an array; of an array with one axis, one "
    "number a row",
    "columns": "the columns of a table with the numbers in the list, in the list's order",
    "new_axis": "the same entries with one more axis of length 1 behind the others; operations on "
    "rows then work "
    "along the last axis",
    "join": "the columns of the first table, then those of the second, and so on",
    "take": "the entries of array a whose numbers are the entries of table b; NaN counts as entry "
    "0",
    "take_in_row": "for each row of table a, its entries in the columns whose numbers stand in the "
    "same row of b",
    "put_in_row": "table a with the entries in the columns that b names, row by row, replaced by "
    "those of c (or by "
    "the number c)",
    "sum_by_group": "for each row, the sums of the entries of a whose entries of b are 0, 1, 2 and "
    "so on",
    "falling_order": "for each row, the numbers of its columns from the largest entry to the "
    "smallest; equal ones "
    "keep their order",
    "count_below": "how many entries of the rising array a are smaller than each entry of table b",
    "count_up_to": "how many entries of the rising array a are smaller than or equal to each entry "
    "of table b",
}


def as_json(calibrator: Calibrator) -> str:
    """Return a calibrator as JSON: its formula step by step, its numbers, and a worked example."""
    program = recorded(calibrator)
    one_column = recorded_one_column(calibrator.prediction_.kind).steps
    steps = [*program.steps, *one_column] if calibrator.n_classes_ == 2 else program.steps
    content: JsonObject = {
        "schema": SCHEMA,
        "hcal": __version__,
        "method": calibrator.name,
        "title": calibrator.title,
        "input": calibrator.prediction_.kind,
        "classes": calibrator.classes_.tolist(),
        "preserves": calibrator.preserves,
        "scores": KINDS[calibrator.prediction_.kind],
        "missing": NAN_RULE,
        "how_to_read": list(HOW_TO_READ),
        "operations": _used_operations(steps),
        "formulas": _formulas(calibrator.prediction_),
        "arrays": _described_arrays(calibrator.prediction_, program),
        "steps": [_as_list(step) for step in program.steps],
        "example": example_of(calibrator),
    }
    if calibrator.n_classes_ == 2:
        content["one_score"] = ONE_COLUMN
        content["one_column"] = [_as_list(step) for step in one_column]
        polyline = polyline_of(calibrator.map_)
        if polyline is not None:
            content["curve"] = _described_curve(polyline, calibrator.prediction_)
    text = json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    return json_without_controls(text) + "\n"


def recorded(calibrator: Calibrator) -> Program:
    """Return the steps from a table of scores to probabilities."""
    prediction = calibrator.prediction_
    program = Program(arrays=dict(prediction.arrays()))
    scores = program.argument("scores", calibrator.n_classes_)
    probs: Value = prediction(whole_rows(scores, prediction.kind))
    return program.needed(probs)


def recorded_one_column(kind: str) -> Program:
    """Return the steps from one score a row, of the second class, to a table of two columns."""
    program = Program()
    two_columns(program.argument("score", 1), kind)
    return program


def example_scores(calibrator: Calibrator) -> Float64:
    """Return three rows of scores of the calibrator's kind."""
    n_classes = calibrator.n_classes_
    logits = 2 * np.cos(np.arange(3)[:, None] + np.arange(n_classes) * 1.7)
    of_kind: dict[str, Float64] = {
        "logits": logits,
        "log_probs": log_softmax(logits),
        "probs": softmax(logits),
    }
    return of_kind[calibrator.prediction_.kind]


def _as_list(step: Step) -> list[Operand]:
    return [step.name, step.operation, *map(_written, step.operands)]


def _written(operand: Operand) -> Operand:
    """Return what a step takes as JSON can hold it."""
    if isinstance(operand, float):
        return float(_finite(np.array(operand)))
    return operand


def _used_operations(steps: list[Step]) -> dict[str, str]:
    used = {step.operation for step in steps}
    return {name: words for name, words in OPERATIONS.items() if name in used}


def _formulas(map: Map) -> dict[str, str]:
    """Return what each type of the map and of its parts says about itself."""
    formulas = {type(map).__name__: inspect.getdoc(type(map)) or ""}
    for declared in dataclasses.fields(map):  # type: ignore[arg-type]
        part = getattr(map, declared.name)
        if isinstance(part, Map):
            formulas |= _formulas(part)
    return formulas


def _described_arrays(prediction: Prediction, program: Program) -> JsonObject:
    """Return the arrays of the model by name, with their meaning, and those that were computed for the steps."""
    meanings = _meanings(prediction)
    arrays = {name: array for name, array in prediction.arrays().items() if array.size}
    arrays |= program.arrays
    return {
        name: {
            "what": meanings.get(name, "computed from the arrays above"),
            "value": _numbers(array),
        }
        for name, array in arrays.items()
    }


def _meanings(map: Map, prefix: str = "") -> dict[str, str]:
    """Return what each array of a map holds, by the array's name."""
    meanings: dict[str, str] = {}
    for declared in dataclasses.fields(map):  # type: ignore[arg-type]
        part = getattr(map, declared.name)
        if isinstance(part, Map):
            meanings |= _meanings(part, f"{prefix}{declared.name}.")
        elif "array" in declared.metadata:
            meanings[prefix + declared.name] = declared.metadata["array"].what
    return meanings


def _numbers(values: FloatArray) -> NestedNumbers:
    """Return numbers as lists; infinity, which JSON lacks, becomes ±1e308."""
    numbers: NestedNumbers = _finite(values).tolist()
    return numbers


def _finite(values: FloatArray) -> FloatArray:
    return np.nan_to_num(values, nan=np.nan, posinf=1e308, neginf=-1e308)


def example_of(calibrator: Calibrator) -> JsonObject:
    """Return rows of scores and their probabilities, as lists."""
    scores = example_scores(calibrator)
    return {"scores": _numbers(scores), "probs": _numbers(calibrator.predict_proba(scores))}


def _described_curve(polyline: Polyline, prediction: Prediction) -> JsonObject:
    """Return the calibrated log-odds as a function of the log-odds, with the sentences that say how to read it."""
    steps = [_LOG_ODDS[prediction.kind]]
    if prediction.floor is not None:
        steps.append(_FLOOR)
    steps.append(_INTERPOLATE)
    if prediction.prior is not None:
        steps.append("Add prior[1] - prior[0] to v, where prior is the entry of 'arrays'.")
    steps.append("P(second class) = 1 / (1 + exp(-v)), and P(first class) = 1 / (1 + exp(v)).")
    if not prediction.states_zero:
        steps.append(f"A probability below {LEAST_PROBABILITY:g} becomes {LEAST_PROBABILITY:g}.")
    return {
        "what": "the calibrated log-odds v of the second class as a function of its log-odds u: "
        "the knots of the "
        "model itself, and a shorter way to the same probabilities",
        "how": steps,
        "knots": _numbers(polyline.knots),
        "values": _numbers(polyline.values),
    }


_LOG_ODDS = {
    "logits": "Let x be the two logits, and u = x[1] - x[0]; of one score, u is the score.",
    "probs": "Let x be ln p of both classes, with p = 1 - s and s of one score s, and u = x[1] - "
    "x[0].",
    "log_probs": "Let x be the two log-probabilities, and u = x[1] - x[0].",
}
_FLOOR = (
    "Before taking u, raise low entries of x: with k = ln(2 floor), where floor is the entry of "
    "'arrays', and d = k - x > 0, x becomes k - ln 2 * d / (d + ln 2)."
)
_INTERPOLATE = (
    "Find the last knot i that is not above u; if there is none, or if it is the last of all, "
    "take the first or the last but one. Then v = values[i] + (u - knots[i]) * (values[i+1] - "
    "values[i]) / (knots[i+1] - knots[i]): between two knots a straight line, and beyond the ends "
    "the first and the last line continue."
)
