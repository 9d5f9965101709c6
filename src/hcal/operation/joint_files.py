"""Several confidences of an answer in the columns of a file: joined to one P(correct), and applied to other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hcal.fit_record import unknown_segments
from hcal.io.files import checksum
from hcal.io.reading import column_names, read_columns
from hcal.io.request import Request
from hcal.io.writing import write_blocks
from hcal.language_models import JointConfidence, read_stated
from hcal.language_models.answers import is_right
from hcal.leakage import model_fingerprint
from hcal.numerics import Float64, IntArray, NumpyArray
from hcal.operation.applying import Applied
from hcal.text import quoted

#: The column that says which answers are right, unless the caller names another.
_LABEL: Final = "correct"


def parse_kinds(text: str) -> dict[str, str]:
    """Return the kind of each column of confidences that a text lists.

    >>> parse_kinds("said=stated, mean=log_probs")
    {'said': 'stated', 'mean': 'log_probs'}
    """
    kinds: dict[str, str] = {}
    for part in text.split(","):
        column, equals, kind = (word.strip() for word in part.partition("="))
        if not equals or not column or column in kinds:
            raise ValueError(
                f"--confidences takes each column once with its kind, such as said=stated, got "
                f"{quoted(text)}"
            )
        kinds[column] = kind
    return kinds


def fit_joint(
    path: Path, kinds: Mapping[str, str], request: Request, method: str
) -> JointConfidence:
    """Join the confidences of a file, and remember how its columns are called."""
    label = request.label or _LABEL
    beside = [name for name in (request.groups, request.weight) if name is not None]
    segments = request.columns_of("by")
    columns = read_columns(path, [*kinds, label, *beside, *segments])
    weight = None if request.weight is None else _numbers(columns, request.weight)
    joint = JointConfidence(kinds, method).fit(
        _confidences(columns, kinds, request),
        _correct(columns[label]),
        weight,
        groups=None if request.groups is None else columns[request.groups],
        by={name: columns[name] for name in segments} or None,
    )
    columns_of_fit = request.for_refit("logits", segmented=bool(segments))
    joint.remember_source({**columns_of_fit, "label": label}, path.name, "", checksum(path))
    return joint


def apply_joint(
    joint: JointConfidence, path: Path, output: Path, request: Request, *, keep: bool = False
) -> Applied:
    """Write the probabilities (N, 2) of a file, with its ids and labels where it has them."""
    segments = request.columns_of("segments")
    held = column_names(path)
    carried = [name for name in (request.id, request.label) if name is not None and name in held]
    needed = [*joint.kinds_, *segments]
    others = [name for name in held if name not in carried] if keep else []
    columns = read_columns(path, list(dict.fromkeys([*needed, *carried, *others])))
    by = {name: columns[name] for name in segments}
    probs = joint.predict_proba(_confidences(columns, joint.kinds_, request), by=by or None)

    names = {"id": request.id or "id", "label": request.label or _LABEL}
    [member] = joint.members_.values()
    model = model_fingerprint(member)
    with write_blocks(output, len(probs), names=names, model=model) as write:
        write(
            probs,
            y=_correct(columns[names["label"]]) if names["label"] in carried else None,
            ids=columns[names["id"]] if names["id"] in carried else None,
            kept={name: columns[name] for name in others},
        )
    return Applied(
        output=str(output),
        files=1,
        rows=len(probs),
        finished=0,
        empty=0,
        unknown=unknown_segments(member, by),
        mean_confidence=float(probs.max(axis=1).mean()),
        method=joint.name,
        model=model,
    )


def _confidences(
    columns: Mapping[str, NumpyArray], kinds: Mapping[str, str], request: Request
) -> dict[str, NumpyArray]:
    """Return columns of confidences as numbers; what a model stated is read as in a file of answers."""
    confidences: dict[str, NumpyArray] = {}
    for name, kind in kinds.items():
        if kind != "stated":
            confidences[name] = _numbers(columns, name)
            continue
        stated = read_stated(
            [{"confidence": cell} for cell in columns[name].tolist()],
            unit=request.unit or "fraction",
            ranges=request.ranges,
            places=_places(name, columns[name]),
        )
        confidences[name] = stated.confidence
    return confidences


def _numbers(columns: Mapping[str, NumpyArray], name: str) -> Float64:
    """Return a column as numbers; refuse the first cell that is none."""
    cells: list[Any] = columns[name].tolist()
    numbers = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            numbers[row] = float(cell)
        except (TypeError, ValueError):
            raise ValueError(
                f"the column {quoted(name)} must hold numbers, and row {row} is {quoted(cell)}"
            ) from None
    return numbers


def _correct(cells: NumpyArray) -> IntArray:
    """Return 1 for right answers and 0 for wrong ones."""
    values: list[Any] = cells.tolist()
    right = [is_right({"correct": value}, f"row {row}") for row, value in enumerate(values)]
    if None in right:
        raise ValueError(f"row {right.index(None)} does not say whether the answer is right")
    return np.array(right, dtype=np.int64)


def _places(name: str, cells: NumpyArray) -> Sequence[str]:
    return [f"{name}, row {row}" for row in range(len(cells))]
