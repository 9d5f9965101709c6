"""Answers of language models: token log-probabilities of an API, and confidences that are said in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from hcal.io.top_k import TopK
from hcal.numerics import Float64, IntArray


def option_scores(response: Any, options: Sequence[str]) -> Float64:
    """Return the log-probability of each answer option, from the top tokens that a server reports.

    Reads OpenAI's chat and completion formats, which vLLM's server shares, and the ``logprobs`` of vLLM's
    own outputs. The first generated token whose alternatives name an option counts; "A" and " A" are the
    same option, and their probabilities are added. An option that is not among the alternatives is at most as
    probable as the least of them, and as what they leave: it gets the smaller of the two.

    Parameters
    ----------
    response : mapping or object
        The whole response, one of its choices, or its ``logprobs``.
    options : sequence of K str
        As they stand at the start of an answer: ``["A", "B", "C", "D"]``.

    Returns
    -------
    array of shape (K,)

    Examples
    --------
    >>> logs = {"B": -0.2, " A": -2.0, "The": -4.0}
    >>> top = [{"token": token, "logprob": value} for token, value in logs.items()]
    >>> response = {"choices": [{"logprobs": {"content": [{"token": "B", "top_logprobs": top}]}}]}
    >>> option_scores(response, ["A", "B", "C"]).round(2).tolist()
    [-2.0, -0.2, -4.0]
    """
    names = [option.strip() for option in options]
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise ValueError(f"options must be 2 or more different texts, got {list(options)!r}")
    seen = []
    for alternatives in _positions(response):
        seen = [token for token, _ in alternatives]
        found = [[value for token, value in alternatives if token.strip() == name] for name in names]
        if any(found):
            floor = _left_over([value for _, value in alternatives])
            return np.array([np.logaddexp.reduce(own) if own else floor for own in found])
    raise ValueError(f"no option of {names} is among the reported tokens{f': {seen[:5]}' if seen else ''}")


def top_tokens(responses: Iterable[Any], vocabulary: Mapping[str, int], *, position: int = 0) -> TopK:
    """Return the top tokens of one generated position of every response, and the probability they leave.

    Parameters
    ----------
    responses : iterable of mappings or objects
        As for :func:`option_scores`.
    vocabulary : mapping of str to int
        The number of every token, 0..K−1, as a tokenizer's ``get_vocab()`` gives it.
    position : int
        Which generated token.

    Returns
    -------
    TopK

    Examples
    --------
    >>> vocabulary = {"A": 0, "B": 1, "C": 2, "D": 3}
    >>> top = top_tokens([[{"B": -0.2, "A": -2.0}], [{"C": -0.1}]], vocabulary)
    >>> top.indices.tolist(), np.exp(top.log_tail).round(3).tolist()
    ([[1, 0], [2, -1]], [0.046, 0.095])
    """
    rows = []
    for number, response in enumerate(responses):
        found = next(islice(_positions(response), position, None), [])
        if not found:
            raise ValueError(f"response {number} reports no tokens at position {position}")
        unknown = [token for token, _ in found if token not in vocabulary]
        if unknown:
            raise ValueError(f"response {number}: the token {unknown[0]!r} is not in the vocabulary")
        rows.append(found)
    shape = len(rows), max(map(len, rows), default=0)
    values, indices = np.full(shape, -np.inf), np.full(shape, -1)
    for number, found in enumerate(rows):
        values[number, : len(found)] = [value for _, value in found]
        indices[number, : len(found)] = [vocabulary[token] for token, _ in found]
    return TopK(values, indices, n_classes=max(vocabulary.values()) + 1, kind="log_probs")


def _left_over(values: list[float]) -> float:
    """Return the largest log-probability that a token outside the list can have."""
    rest = 1 - float(np.exp(np.array(values)).sum())
    return min(min(values), np.log(rest) if rest > 0 else min(values))


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _positions(response: Any) -> Iterator[list[tuple[str, float]]]:
    """Yield the (token, log-probability) pairs of every generated position, whatever the format."""
    found = response
    for name in ("choices", "outputs"):  # of a server, of vLLM in the same process
        if _get(found, name):
            found = _get(found, name)[0]
    found = _get(found, "logprobs") or found
    content = _get(found, "content")
    if content is not None:
        for position in content:
            top = _get(position, "top_logprobs") or []
            yield [(_get(each, "token"), float(_get(each, "logprob"))) for each in top]
        return
    listed = _get(found, "top_logprobs") or found
    if not isinstance(listed, list | tuple):
        raise ValueError("the response has no 'logprobs' with their 'top_logprobs': ask the server for them")
    for position in listed:
        if not isinstance(position, Mapping):
            raise ValueError("the response has no 'top_logprobs': ask the server for them")
        yield [_token(key, value) for key, value in position.items()]


def _token(key: Any, value: Any) -> tuple[str, float]:
    """Return text and log-probability of {text: number}, or of vLLM's {id: Logprob}."""
    if isinstance(value, int | float):
        return str(key), float(value)
    text = _get(value, "decoded_token")
    return str(key if text is None else text), float(_get(value, "logprob"))


# -- confidences in words ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """Stated confidences, and whether the answers were right: a binary problem for everything in hcal.

    Attributes
    ----------
    confidence : array of shape (N,)
        P(right), as it was said.
    correct : array of shape (N,)
        1 where the answer was right.
    unread : list of int
        The records without a confidence, by number; they are not among the N.
    """

    confidence: Float64
    correct: IntArray
    unread: list[int]


def read_stated(records: Iterable[Mapping[str, Any]], *, scale: float = 1.0) -> Stated:
    """Read what a model, or a judge, says about its own answers.

    Parameters
    ----------
    records : iterable of mappings
        Each with ``confidence`` (a number, or a text such as "85%" or "Confidence: 0.85") and either
        ``correct`` (true or false) or ``answer`` and ``target``, which are compared as texts.
    scale : float
        What a plain number for certainty is: 1, or 100 where the model was asked for a number up to 100. A
        per cent sign needs none.

    Examples
    --------
    >>> rows = [
    ...     {"answer": "Paris", "target": "paris", "confidence": "90%"},
    ...     {"answer": "Lyon", "target": "Paris", "confidence": 0.6},
    ...     {"correct": True, "confidence": "I do not know"},
    ... ]
    >>> stated = read_stated(rows)
    >>> stated.confidence, stated.correct, stated.unread
    (array([0.9, 0.6]), array([1, 0]), [2])
    """
    confidence, correct, unread = [], [], []
    for number, record in enumerate(records):
        right = _is_right(record, number)
        said = _confidence(record.get("confidence"), scale, number)
        if said is None:
            unread.append(number)
        else:
            confidence.append(said)
            correct.append(right)
    if not confidence:
        raise ValueError("no record has a confidence that could be read")
    return Stated(np.array(confidence), np.array(correct, dtype=np.int64), unread)


_NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)\s*(%|per ?cent\b)?", re.IGNORECASE)


def _confidence(said: Any, scale: float, number: int) -> float | None:
    if said is None or isinstance(said, bool):
        return None
    value, whole = said, scale
    if isinstance(said, str):
        found = _NUMBER.findall(said)
        if not found:
            return None
        text, percent = found[-1]  # "of 3 sources, confidence 80%": the last number is the confidence
        value, whole = float(text), 100.0 if percent else scale
    share = float(value) / whole
    if not 0 <= share <= 1:
        raise ValueError(
            f"record {number}: the confidence {said!r} is not between 0 and {whole:g}"
            + ("; say scale=100 if numbers go up to 100" if whole == 1 else "")
        )
    return share


def _is_right(record: Mapping[str, Any], number: int) -> int:
    if "correct" in record:
        value = record["correct"]
        if isinstance(value, bool | np.bool_ | int | float) and value in (0, 1):
            return int(value)
        raise ValueError(f"record {number}: 'correct' must be true or false, got {value!r}")
    if "answer" in record and "target" in record:
        answer, target = (" ".join(str(record[name]).split()).casefold() for name in ("answer", "target"))
        return int(answer == target)
    raise ValueError(f"record {number} has neither 'correct' nor 'answer' and 'target'")
