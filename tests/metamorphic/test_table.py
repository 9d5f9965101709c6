"""One table of changes that must not change an answer × public functions.

A cell calls a function twice, on two forms of the same rows, and compares the answers: they are equal, or within the
tolerance that the relation or ``EXCEPT`` states, or the second call is refused with the sentence that stands there. A
new public function fails the last test until it has a door in ``doors.py``, or a reason in ``EXEMPT``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import pytest
from data import Pair, world
from doors import DOORS, Answer, Door
from relations import RELATIONS, Relation

import hcal
from hcal import language_models
from hcal.methods import get_calibrator


@dataclass(frozen=True)
class Within:
    """Numbers of the answer may move by so much, and its sentences with them, for a reason."""

    tolerance: float
    why: str


@dataclass(frozen=True)
class Refused:
    """The call is refused with a sentence that matches."""

    match: str


@dataclass(frozen=True)
class Bug:
    """The cell fails, and should not; what is wrong."""

    what: str


#: Relations that make another class the second of two.
ANOTHER_CLASS_1 = (
    "classes renumbered",
    "all columns in another order",
    "columns of pandas in another order",
    "columns of polars in another order",
    "columns of pyarrow in another order",
    "columns of double[pyarrow] in another order",
    "integer columns in another order",
)
BLOCKS = ("blocks", "blocks of other sizes")
#: (relation, door) -> what holds there, if it is not that the answers are as near as the relation says.
EXCEPT: dict[tuple[str, str], Within | Refused | Bug] = {
    **dict.fromkeys(
        (("rows permuted", name) for name in ("monitor", "command_watch")),
        Within(math.inf, "a monitor tests rows in the order in which they came"),
    ),
    **dict.fromkeys(
        ((change, "monitor") for change in ANOTHER_CLASS_1),
        Within(0.01, "of two classes the monitor checks the second"),
    ),
    **dict.fromkeys(
        ((change, "command_watch") for change in ANOTHER_CLASS_1),
        Within(math.inf, "of two classes the monitor checks, and shows, the second"),
    ),
    **dict.fromkeys(
        ((change, door) for change in ANOTHER_CLASS_1 for door in ("report", "command_report")),
        Within(0.02, "the starts of the k-means of tcwece_k are drawn class by class"),
    ),
    ("rows permuted", "drift"): Within(
        math.inf, "the seed draws which rows the classifier learns from"
    ),
    ("rows permuted", "validate"): Within(math.inf, "the seed draws rows by their numbers"),
    ("rows permuted", "certify_out_of_fold"): Within(math.inf, "the seed deals rows to folds"),
    ("rows permuted", "report"): Within(0.05, "the seed draws signs for the p-values"),
    ("rows permuted", "command_report"): Within(0.05, "the seed draws signs for the p-values"),
    ("rows permuted", "command_certify"): Within(0.01, "the seed deals rows to halves"),
    **dict.fromkeys(
        (("probabilities", door) for door in ("joint_confidence", "joint_confidence_of_segments")),
        Within(3.0, "logits are joined as they are, and probabilities by their log-odds"),
    ),
    **dict.fromkeys(
        (
            ("columns 0 to K−1 in another order", door)
            for door in ("joint_confidence", "joint_confidence_of_segments")
        ),
        Refused("a frame or a dict of columns"),
    ),
    **dict.fromkeys(
        (
            (f"{columns} in another order", "multiple_choice_by_position")
            for columns in (
                "columns of pandas",
                "columns of polars",
                "columns of pyarrow",
                "columns of double[pyarrow]",
                "integer columns",
            )
        ),
        Refused("pass the columns in that order"),
    ),
    ("columns 0 to K−1 in another order", "multiple_choice_by_position"): Within(
        3.0, "columns without names are positions"
    ),
    ("log-probabilities", "multilabel"): Refused('"logits" or "probs"'),
    ("float32", "clinical"): Within(0.05, "log-odds of a probability that float32 rounds to 1"),
}

#: Public names without a door, and why.
EXEMPT: dict[str, str] = {
    "CalibrationWarning": "a warning",
    "HCalibrationLoss": "a loss of tensors: tests/h_calibration has its invariances",
    "__version__": "a text",
    "export_onnx": "tests/integrations/test_runtimes.py compares every runtime and kind",
    "h_calibration": "a module",
    "integrations": "a module",
    "language_models": "a module; its names follow",
    "language_models.Questions": "a record of questions that were read",
    "language_models.Stated": "a record of confidences that were read",
    "language_models.WORDS": "a dictionary",
    "language_models.option_scores": "reads the response of a server",
    "language_models.read_lm_eval": "reads files of samples; tests/language_models permutes lines",
    "language_models.read_stated": "reads what a model wrote",
    "language_models.sequence_score": "reads the response of a server",
    "list_calibrators": "takes no rows",
    "maps": "a module",
    "methods": "a module",
    "metrics": "a module; some of its functions are the door metrics",
    "register": "takes no rows",
    "register_metric": "takes no rows",
    "require": "takes a result, and no rows",
    "softmax": "takes rows one by one, without labels or names",
}


def _cells() -> list[Any]:
    cells = []
    for relation, door, k in product(RELATIONS, DOORS.values(), (2, 3)):
        has_classes = k in relation.classes and k in door.classes
        if has_classes and set(relation.needs.split()) <= door.takes:
            name = f"{relation.name}-{door.name}-{k}"
            cells.append(pytest.param(relation, door, k, id=name))
    return cells


CELLS = _cells()
RELATION = {relation.name: relation for relation in RELATIONS}


@cache
def changed(relation: Relation, k: int) -> Pair:
    return relation.change(world(k))


@cache
def base(relation: Relation, k: int) -> Pair:
    return relation.base(world(k))


@cache
def answer_of(door: Door, pair: Pair) -> Answer:
    return door.answer(pair)


@pytest.mark.parametrize(("relation", "door", "k"), CELLS)
def test_cell(relation: Relation, door: Door, k: int, request: pytest.FixtureRequest) -> None:
    absent = [name for name in relation.packages if find_spec(name) is None]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}")
    rule = EXCEPT.get((relation.name, door.name))
    if isinstance(rule, Bug):
        request.applymarker(pytest.mark.xfail(reason=rule.what, strict=True))
    expected = answer_of(door, base(relation, k))
    if isinstance(rule, Refused):
        with pytest.raises((ValueError, TypeError), match=rule.match):
            door.answer(changed(relation, k))
        return
    if isinstance(rule, Within):
        relation = replace(relation, tolerance=rule.tolerance, texts=False)
    compare(door.answer(changed(RELATION[relation.name], k)), expected, relation)


def compare(answer: Answer, expected: Answer, relation: Relation) -> None:
    """Fail where two answers have other names, texts, or numbers that differ by more than the tolerance."""
    assert answer.keys() == expected.keys()
    wrong = []
    for name, value in answer.items():
        if name.rpartition(".")[2] in relation.ignores:
            continue
        if not _agree(value, expected[name], relation):
            wrong.append(name)
    lines = [f"{name}: {answer[name]!r}, expected {expected[name]!r}" for name in wrong[:5]]
    assert not wrong, f"{len(wrong)} of {len(answer)} entries differ:\n" + "\n".join(lines)


def _agree(value: Any, expected: Any, relation: Relation) -> bool:
    tolerance = relation.tolerance
    if isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
        return bool(np.allclose(value, expected, rtol=tolerance, atol=tolerance, equal_nan=True))
    if isinstance(expected, np.ndarray):
        return bool((value == expected).mean() >= 1 - tolerance)
    if isinstance(expected, float) and isinstance(value, float | int):
        near = math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
        return near or (math.isnan(expected) and math.isnan(value))
    if isinstance(expected, str) and not relation.texts:
        return isinstance(value, str)
    return bool(value == expected)


def test_every_public_name_has_a_door_or_a_reason() -> None:
    covered = {name for door in DOORS.values() for name in door.covers}
    # Classes of methods differ in the map that they learn: test_invariances.py has a table of them all.
    covered |= {get_calibrator(name).__name__ for name in hcal.list_calibrators()}
    of_language_models = {f"language_models.{name}" for name in language_models.__all__}
    missing = {*hcal.__all__, *of_language_models} - covered - set(EXEMPT)
    assert not missing, f"enter these into tests/metamorphic/doors.py: {sorted(missing)}"
    assert not (set(EXEMPT) & covered)
    cells = {(relation.name, door) for relation in RELATIONS for door in DOORS}
    assert set(EXCEPT) <= cells
