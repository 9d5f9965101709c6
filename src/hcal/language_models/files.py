"""Read files with answers of language models as the fields of a :class:`hcal.io.DataFile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NotRequired, TypedDict

import numpy as np

from hcal.inputs import InputKind
from hcal.io.records import AnswerKind, Record, kind_of, records_of
from hcal.io.request import Request
from hcal.language_models import lm_eval, sequences
from hcal.language_models.columns import AnswerColumns
from hcal.language_models.lm_eval import read_samples
from hcal.language_models.questions import Questions
from hcal.language_models.responses import name_of, read_responses
from hcal.language_models.sequences import read_sequences
from hcal.language_models.stated import read_stated
from hcal.numerics import Float64, IntArray, NumpyArray

#: The ways to score an answer that each kind of file knows, the default first.
_SCORES: Final[dict[AnswerKind, tuple[str, ...]]] = {
    "samples": lm_eval.OPTION_SCORES,
    "responses": ("sum",),
    "sequences": sequences.WAYS,
    "stated": (),
}
#: The roles of columns that have a name for each answer.
_ROLES: Final = ("id", "groups", "weight")


class RoleColumns(TypedDict, total=False):
    """Columns of the answers by their roles."""

    ids: NumpyArray | None
    groups: NumpyArray | None
    weight: NumpyArray | None
    by: dict[str, NumpyArray]
    segments: dict[str, NumpyArray]
    beside: dict[str, NumpyArray]


class Fields(RoleColumns):
    """What is known of answers: fields of :class:`hcal.io.reading.DataFile`."""

    kind: InputKind
    values: Float64
    y: IntArray | None
    questions: NotRequired[bool]
    dropped: NotRequired[int]
    notes: NotRequired[tuple[str, ...]]


def read_answers(paths: Sequence[Path], request: Request, *, keep: bool = False) -> Fields:
    """Read questions with their options, or answers with a confidence.

    Questions give log-probabilities of shape (N, most options), −inf where an option does not exist. Generated answers
    give log-probabilities of shape (N,), and stated confidences probabilities of shape (N,), that the answer is right.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.jsonl"
    >>> _ = path.write_text('{"confidence": "80%", "correct": true}')
    >>> read_answers([path], Request())["values"]
    array([0.8])
    """
    kind = kind_of(paths[0])
    assert kind is not None
    score = _score(kind, request)
    columns = AnswerColumns(paths, _names(request), request.optional, keep=keep)
    records = records_of(paths)
    if kind == "samples":
        fields = _of_questions(read_samples(paths, score, columns))
    elif kind == "responses":
        fields = _of_questions(read_responses(records, columns))
    elif kind == "sequences":
        answers = read_sequences(records, score, columns)
        fields = {
            "kind": "log_probs",
            "values": answers.log_probs,
            "y": answers.correct,
            "ids": _ids(answers.ids),
        }
    else:
        fields = _of_stated(list(records), request, columns)
    return {**fields, **_with_roles(request, columns)}


def _score(kind: AnswerKind, request: Request) -> str:
    """Return how an answer is scored; refuse a way that the file does not know."""
    known = _SCORES[kind]
    score = request.option_score
    if score is None:
        return known[0] if known else ""
    if score not in known:
        listing = ", ".join(known) or "nothing: their confidence is stated"
        raise ValueError(
            f"score={score!r} (--score) is not for {kind} of language models; they know {listing}"
        )
    return str(score)


def _names(request: Request) -> list[str]:
    """Return the columns that a request names."""
    names = [getattr(request, role) for role in _ROLES if getattr(request, role) is not None]
    return [*names, *request.columns_of("by"), *request.columns_of("segments")]


def _of_questions(quiz: Questions) -> Fields:
    return {
        "kind": "log_probs",
        "values": quiz.log_probs(),
        "y": quiz.y,
        "ids": _ids(quiz.ids),
        "questions": True,
    }


def _of_stated(records: Sequence[Record], request: Request, columns: AnswerColumns) -> Fields:
    """Return stated confidences; what is dropped is counted and quoted."""
    stated = read_stated(
        [record.content for record in records],
        unit=request.unit or "fraction",
        ranges=request.ranges,
        unreadable=request.unreadable,
        places=[record.where for record in records],
    )
    unread = set(stated.unread)
    readable = [record for number, record in enumerate(records) if number not in unread]
    for record in readable:
        columns.pick(record)
    names = [name_of(record.content) for record in readable]
    return {
        "kind": "probs",
        "values": stated.confidence,
        "y": stated.correct,
        "ids": _ids(names) if all(isinstance(name, str | int) for name in names) else None,
        "dropped": len(unread),
        "notes": (stated.note,) if unread else (),
    }


def _ids(names: Sequence[object]) -> NumpyArray | None:
    return np.array(names) if names else None


def _with_roles(request: Request, columns: AnswerColumns) -> RoleColumns:
    """Return the columns that the request names, by their roles, and those that go with the rows into outputs."""
    roles: RoleColumns = {"beside": columns.kept()}
    if request.id is not None:
        roles["ids"] = columns.column(request.id)
    if request.groups is not None:
        roles["groups"] = columns.column(request.groups)
    if request.weight is not None:
        roles["weight"] = np.asarray(columns.column(request.weight), dtype=np.float64)
    for role in ("by", "segments"):
        roles[role] = {name: columns.column(name) for name in request.columns_of(role)}
    return roles
