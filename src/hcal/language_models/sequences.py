"""Answers of several tokens: one confidence from the log-probabilities of the tokens that were generated.

The sum is the log-probability of the whole answer, which falls with its length. The mean is that of a typical token,
and the least that of the weakest one. Which says most about the answer differs between tasks: fit and compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.io.records import Record, unwrapped
from hcal.language_models.answers import is_right
from hcal.language_models.columns import AnswerColumns
from hcal.language_models.responses import log_probability, name_of, positions
from hcal.language_models.stated import answers_of
from hcal.numerics import Float64, IntArray
from hcal.text import quoted

#: The ways to make one number of the log-probabilities of tokens.
WAYS: Final = ("sum", "mean", "least")


@dataclass(frozen=True)
class Sequences:
    """Generated answers with the log-probability of each, and whether they were right.

    Attributes
    ----------
    log_probs : array of shape (N,)
    correct : array of shape (N,), or None
        1 where the answer was right; None if no record says so.
    ids : list of N
        The names of the records; empty if they have none.
    """

    log_probs: Float64
    correct: IntArray | None
    ids: list[object]


def sequence_score(response: object, how: str = "sum") -> float:
    """Return one log-probability for a generated answer.

    Parameters
    ----------
    response : sequence of float, mapping, or object of OpenAI's client
        The log-probabilities of the generated tokens, or a server's response that holds them.
    how : {"sum", "mean", "least"}
        The log-probability of the whole answer, the mean over its tokens, or that of its least probable token.

    Examples
    --------
    >>> [round(sequence_score([-0.1, -0.3, -1.1], how), 2) for how in ("sum", "mean", "least")]
    [-1.5, -0.5, -1.1]
    """
    if how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}, got {how!r}")
    tokens = token_log_probs(response)
    if how == "sum":
        return float(tokens.sum())
    return float(tokens.mean() if how == "mean" else tokens.min())


def token_log_probs(response: object) -> Float64:
    """Return the log-probabilities of the tokens that a model generated.

    >>> response = {"choices": [{"logprobs": {"content": [{"token": "Yes", "logprob": -0.2}]}}]}
    >>> token_log_probs(response)
    array([-0.2])
    """
    listing = response
    if isinstance(response, Mapping) and "token_logprobs" in response:
        listing = response["token_logprobs"]
    elif isinstance(response, Mapping) or hasattr(response, "model_dump"):
        listing = _of_response(response)
    if not isinstance(listing, list | tuple | np.ndarray) or len(listing) == 0:
        raise ValueError("an answer needs the log-probabilities of its tokens, one or more")
    try:
        return np.array([log_probability(value) for value in listing])
    except TypeError:
        raise ValueError(
            f"log-probabilities of tokens are numbers, got {quoted(listing)}"
        ) from None


def _of_response(response: object) -> list[float]:
    """Return the log-probabilities in a server's response: of the chat format, or of the completion format."""
    inner = response.model_dump() if hasattr(response, "model_dump") else response
    assert isinstance(inner, Mapping)
    choices = inner.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else inner
    details = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if isinstance(details, list):
        return details
    if isinstance(details, Mapping) and "token_logprobs" in details:
        # The first token of an echoed prompt has no log-probability.
        return [value for value in details["token_logprobs"] if value is not None]
    try:
        return [position["logprob"] for position in positions(response)]
    except KeyError:
        raise ValueError(
            "the response has no 'logprob' of its tokens: ask the server for them; a response to "
            "a question needs 'options' (such as [\"A\", \"B\"]) and 'target' beside it"
        ) from None


def read_sequences(records: Iterable[Record], how: str, columns: AnswerColumns) -> Sequences:
    """Read generated answers, one a line: with ``token_logprobs``, or as a server's response.

    A line also has ``correct``, or ``answer`` and ``target``; new answers have neither.
    """
    scores = list[float]()
    correct = list[bool | None]()
    ids = list[object]()
    for record in records:
        if not isinstance(record.content, dict):
            raise ValueError(f"{record.where}: no answer with the log-probabilities of its tokens")
        try:
            scores.append(sequence_score(unwrapped(record.content), how))
        except ValueError as error:
            raise ValueError(f"{record.where}: {error}") from None
        columns.pick(record)
        correct.append(is_right(record.content, record.where))
        ids.append(name_of(record.content))
    is_named = all(isinstance(name, str | int) for name in ids)
    return Sequences(np.array(scores), answers_of(correct), ids if is_named else [])
