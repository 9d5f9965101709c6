"""Responses of an OpenAI-style server with the log-probabilities of its top tokens: scores of answer options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from hcal.io.records import Record, unwrapped
from hcal.language_models.answers import normal_answer
from hcal.language_models.columns import AnswerColumns
from hcal.language_models.lm_eval import no_target
from hcal.language_models.questions import Questions
from hcal.numerics import Float64, IntArray
from hcal.text import JsonObject, quoted

#: Where a record says its name.
_NAMES = ("custom_id", "doc_id", "id")
#: How far above 0 rounding may raise a log-probability.
_ROUNDING = 1e-3
#: A token, and its log-probability.
Alternative = tuple[str, float]


def read_responses(records: Iterable[Record], columns: AnswerColumns) -> Questions:
    """Read responses, one a line, with their ``top_logprobs``.

    A line is a response, or holds it under ``response``. The line also has ``options`` (the labels, or the texts
    that the labels A, B, C, … stand for) and ``target`` (a label, a text or an index); new questions have no target.
    """
    scores = list[Float64]()
    answers = list[int | None]()
    ids = list[object]()
    for record in records:
        columns.pick(record)
        option_logs, answer = _question(record)
        scores.append(option_logs)
        answers.append(answer)
        ids.append(name_of(record.content))
    is_named = all(isinstance(name, str | int) for name in ids)
    return Questions(scores, _all_or_none(answers), ids if is_named else [], columns.standard())


def name_of(content: Mapping[str, object]) -> object:
    """Return the name of a record, None if it has none."""
    return next((content[key] for key in _NAMES if key in content), None)


def _all_or_none(answers: Sequence[int | None]) -> IntArray | None:
    """Return the right answers as an array; None if no question says its own, and an error if some do not."""
    if all(answer is None for answer in answers):
        return None
    missing = [number for number, answer in enumerate(answers) if answer is None]
    if missing:
        raise ValueError(f"question {missing[0]} has no 'target', and others have one")
    return np.array(answers, dtype=np.int64)


def _question(record: Record) -> tuple[Float64, int | None]:
    """Return the scores of the options of one response, and the right option if the record says it."""
    row = record.content
    try:
        texts = [str(option) for option in row["options"]]
        are_labels = all(len(option_label(text)) <= 2 for text in texts)
        labels = texts if are_labels else [chr(ord("A") + number) for number in range(len(texts))]
        scores = option_scores(unwrapped(row), labels)
        answer = _target(row["target"], labels, texts) if "target" in row else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{record.where}: a response needs 'options' (such as [\"A\", \"B\"]) and 'target' "
            f"beside it ({quoted(error)})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{record.where}: {error}") from None
    return scores, answer


def _target(target: object, labels: Sequence[str], texts: Sequence[str]) -> int:
    """Return the right option of a target that is a label, the text of an option, or an index."""
    is_number = isinstance(target, bool | int)
    _refuse_two_readings(target, texts)
    for plain, options in ((option_label, labels), (normal_answer, texts)):
        names = [plain(option) for option in options]
        name = plain(str(target))
        if not is_number and names.count(name) == 1:
            return names.index(name)
    digits = str(target).strip()
    is_index = not isinstance(target, bool) and digits.isdecimal() and len(digits) < 8
    if is_index and int(digits) < len(labels):
        return int(digits)
    raise ValueError(no_target(target))


def _refuse_two_readings(target: object, texts: Sequence[str]) -> None:
    """Refuse a number that is the index of one option and the name of another."""
    if not isinstance(target, int) or isinstance(target, bool) or not 0 <= target < len(texts):
        return
    names = [text.strip() for text in texts]
    if str(target) in names and names.index(str(target)) != target:
        raise ValueError(
            f"the target {target} may be the option {str(target)!r}, or the index of the option "
            f"{names[target]!r}: write a text for the option"
        )


def option_label(text: str) -> str:
    """Return the label of an option without the characters that tokenizers and answers put around it.

    >>> [option_label(text) for text in ("B)", "**B**", "ĠB", " b.", "(B")]
    ['b', 'b', 'b', 'b', 'b']
    """
    return text.replace("Ġ", " ").replace("▁", " ").strip(" \n\t*_`\"'().:,;[]#").casefold()


def option_scores(response: object, options: Sequence[str]) -> Float64:
    """Return the log-probability of each answer option, computed from the top tokens that a server reports.

    Reads OpenAI's chat and completion formats, which vLLM's server shares. The scores come from the first
    generated token that has an option among its alternatives. "A", " a" and "**A**" are the same option, and
    their probabilities are added. An option that is not among the alternatives can be at most as probable as the
    least probable of them, and as the probability that they leave over; it gets the smaller of the two.

    Parameters
    ----------
    response : mapping, or object of OpenAI's client
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
    names = [option_label(option) for option in options]
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise ValueError(f"options must be 2 or more different texts, got {list(options)!r}")
    tokens = list[str]()
    for alternatives in _alternatives(response):
        tokens = [token for token, _ in alternatives]
        if any(option_label(token) in names for token in tokens):
            return _scores_of(alternatives, names)
    reported = f": {quoted(tokens[:5])}" if tokens else ""
    raise ValueError(f"no option of {list(options)} is among the reported tokens{reported}")


def _scores_of(alternatives: Sequence[Alternative], names: Sequence[str]) -> Float64:
    """Return the log-probabilities of options at a position where at least one of them is reported."""
    values = np.array([value for _, value in alternatives])
    left_over = 1 - float(np.exp(values).sum())
    least = float(values.min())
    floor = min(least, float(np.log(left_over))) if left_over > 0 else least
    scores = np.full(len(names), -np.inf)
    for token, value in alternatives:
        label = option_label(token)
        if label in names:
            place = names.index(label)
            scores[place] = np.logaddexp(scores[place], value)
    return np.where(np.isneginf(scores), floor, scores)


def _alternatives(response: object) -> Iterator[list[Alternative]]:
    """Yield the tokens with their log-probabilities that compete at every generated position."""
    for position in positions(response):
        top = position.get("top_logprobs", position)  # a list of objects, or {text: number}
        if isinstance(top, Mapping):
            pairs = list(top.items())
        else:
            pairs = [(entry["token"], entry["logprob"]) for entry in top or ()]
        if pairs:
            yield [(str(token), log_probability(value)) for token, value in pairs]


def log_probability(value: float | str) -> float:
    """Return the log-probability of a token; refuse what cannot be one.

    >>> log_probability(-0.5), log_probability("-inf")
    (-0.5, -inf)
    """
    number = float(value)
    if not number <= _ROUNDING:
        raise ValueError(f"a log-probability is at most 0, got {quoted(value)}")
    return min(number, 0.0)


def positions(response: object) -> list[JsonObject]:
    """Return what a server says about every generated position, with ``top_logprobs`` or the token alone."""
    inner = response.model_dump() if hasattr(response, "model_dump") else response
    for name in ("choices", "logprobs", "content", "top_logprobs"):
        if isinstance(inner, Mapping):
            inner = inner.get(name) or inner
        if name == "choices" and isinstance(inner, list):
            inner = inner[0] if inner else None
    if not isinstance(inner, list) or not all(isinstance(entry, Mapping) for entry in inner):
        raise ValueError("the response has no 'top_logprobs': ask the server for them")
    return inner
