"""Lines of .jsonl files, one JSON value each, and whether they are answers of language models.

What the answers mean is read in :mod:`hcal.language_models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hcal.io.files import open_regular, parse_json
from hcal.io.request import Request
from hcal.text import JsonObject, one_line

AnswerKind = Literal["samples", "responses", "sequences", "stated"]
#: Keys under which files hold the response: the batch format of OpenAI, and what people log.
WRAPPERS: Final = ("response", "body", "completion", "output")
#: The keys of responses with token log-probabilities.
_OF_RESPONSES: Final = {"choices", "logprobs", "top_logprobs"}
#: The beginnings of the names of columns of scores: such a file is a table.
_OF_TABLES: Final = ("logits", "probs", "log_probs")


@dataclass(frozen=True)
class Record:
    """One line of a file."""

    path: Path
    line: int
    content: Any

    @property
    def where(self) -> str:
        """The place of the line, as messages name it."""
        return f"{one_line(self.path.name, 80)}, line {self.line}"


def records_of(paths: Iterable[Path]) -> Iterator[Record]:
    """Yield every line of .jsonl files that is not blank."""
    for path in paths:
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{one_line(path.name, 80)}, line {number}"
                    yield Record(path, number, parse_json(line, where))


def is_answers(paths: Sequence[Path], request: Request) -> bool:
    """Whether files hold answers of language models, and not a table with one object a line."""
    names_scores = request.scores or request.label or request.labels
    return not names_scores and are_answers(paths)


def are_answers(paths: Sequence[Path]) -> bool:
    """Whether files hold answers of language models by their ending and the first line."""
    return all(path.suffix.lower() == ".jsonl" for path in paths) and kind_of(paths[0]) is not None


def kind_of(path: Path) -> AnswerKind | None:
    """Return what the first line of a file shows it to be; None for a table."""
    first = next(records_of([path]), None)
    if first is None or not isinstance(first.content, dict):
        return None
    record = first.content
    names = {*record, *unwrapped(record)}
    if any(name.startswith(_OF_TABLES) for name in names):
        return None
    if "filtered_resps" in names:
        return "samples"
    if "options" in names and names & _OF_RESPONSES:
        return "responses"
    if "token_logprobs" in names or names & _OF_RESPONSES:
        return "sequences"
    return "stated" if "confidence" in names else None


def unwrapped(record: JsonObject) -> JsonObject:
    """Return the response inside a record, or the record itself.

    >>> unwrapped({"response": {"body": {"choices": []}}})
    {'choices': []}
    """
    for name in WRAPPERS:
        if isinstance(record.get(name), dict):
            record = record[name]
    return record
