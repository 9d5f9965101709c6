"""Answers of language models: scores of options, token log-probabilities, and confidences stated in words.

hcal recognises three kinds of ``.jsonl`` files by their first line: samples of lm-evaluation-harness
(``filtered_resps``), responses of an OpenAI-style server with ``top_logprobs``, and answers with a ``confidence``.
In the harness's files a line is one document under one filter: ``filtered_resps`` holds one
``[log-likelihood, is_greedy]`` for each request, ``arguments`` the requests, ``target`` the right answer as an index
or as its text. Tasks with mutual information request every option twice, the second time without a context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hcal.io.files import open_regular, parse_json
from hcal.io.request import OptionScore, Request
from hcal.numerics import Float64, IntArray, log_softmax_options, pad_options
from hcal.text import quoted

#: An option whose log-likelihood is −inf gets a score this far below the lowest finite one of its question.
_HOPELESS: Final = 1e3
#: Keys under which files hold the response: the batch format of OpenAI, and what people log.
_WRAPPERS: Final = ("response", "body", "completion", "output")
#: The keys by which the kinds of files are recognised, tried in this order.
_MARKS: Final = {"samples": {"filtered_resps"}, "responses": {"choices", "logprobs", "top_logprobs"},
                 "stated": {"confidence"}}  # fmt: skip
#: The confidence that words stand for if no number is stated; pass another table to :func:`read_stated`.
WORDS: Final[Mapping[str, float]] = {
    "certain": 0.99, "almost certain": 0.95, "highly likely": 0.9, "very likely": 0.9, "likely": 0.7,
    "probable": 0.7, "better than even": 0.6, "about even": 0.5, "toss-up": 0.5, "possible": 0.4,
    "unlikely": 0.2, "improbable": 0.2, "very unlikely": 0.1, "highly unlikely": 0.1,
    "almost no chance": 0.05, "impossible": 0.01,
}  # fmt: skip


@dataclass(frozen=True)
class Questions:
    """Multiple-choice questions with their options' scores and the right answers.

    Attributes
    ----------
    scores : list of N arrays
        The score of each option: a log-probability, or anything that grows with it.
    y : array of shape (N,)
        The position of the right option.
    ids : list of N
        The names of the questions in the file (``doc_id``, ``custom_id``); empty if it has none.

    Examples
    --------
    >>> quiz = Questions([np.array([-1.0, -3.0]), np.array([-1.0, -2.0, -9.0])], np.array([0, 1]))
    >>> quiz.probs().round(2)
    array([[0.88, 0.12, 0.  ],
           [0.73, 0.27, 0.  ]])
    """

    scores: list[Float64]
    y: IntArray
    ids: Sequence[Any] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def log_probs(self) -> Float64:
        """Return the logarithms of :meth:`probs`, −inf where a question has no such option."""
        return log_softmax_options(pad_options(self.scores, -np.inf))

    def probs(self) -> Float64:
        """Return the softmax over the options of each question, 0 elsewhere; shape (N, most options)."""
        return np.exp(self.log_probs())


# -- files --------------------------------------------------------------------------------------------


def is_questions(paths: Sequence[Path]) -> bool:
    """Whether files hold answers of language models, and not a table with one object a line."""
    return all(path.suffix.lower() == ".jsonl" for path in paths) and _kind_of(paths[0]) is not None


def _kind_of(path: Path) -> str | None:
    """Return what the first line of a file shows it to be: samples, responses, stated confidences, or None."""
    first = next(json_lines(path), ("", None))[1]
    keys = {*first, *_unwrapped(first)} if isinstance(first, dict) else set()
    return next((kind for kind, marks in _MARKS.items() if marks & keys), None)


def read_questions(paths: Sequence[Path], request: Request) -> dict[str, Any]:
    """Read questions with their options, or answers with their stated confidence, as fields of a DataFile.

    Questions give log-probabilities of shape (N, most options), −inf where an option does not exist; stated
    confidences give probabilities of shape (N,) that the answer is right.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.jsonl"
    >>> _ = path.write_text('{"confidence": "80%", "correct": true}')
    >>> read_questions([path], Request())["values"]
    array([0.8])
    """
    kind, lines = _kind_of(paths[0]), (line for path in paths for line in json_lines(path))
    if kind == "stated":
        places, records = zip(*lines, strict=True)
        asked: Any = {
            "unit": request.unit or "fraction",
            "ranges": request.ranges,
            "unreadable": request.unreadable,
        }
        stated = read_stated(records, **asked, places=places)
        lost = len(stated.unread)
        notes = (f"{lost:,} answers whose confidence cannot be read were dropped",) if lost else ()
        return {
            "kind": "probs",
            "values": stated.confidence,
            "y": stated.correct,
            "dropped": lost,
            "notes": notes,
        }
    samples = kind == "samples"
    found = (
        read_lm_eval(paths, score=request.option_score or "sum")
        if samples
        else _read_responses(lines)
    )
    ids = np.array(found.ids) if found.ids else None
    return {
        "kind": "log_probs",
        "values": found.log_probs(),
        "y": found.y,
        "ids": ids,
        "questions": True,
    }


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place ("name, line 3") and the value of every line of a .jsonl file."""
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path.name}, line {number}"
                yield where, parse_json(line, where)


def _questions(scores: Iterable[Float64], answers: Iterable[int], ids: Iterable[Any]) -> Questions:
    named = [name for name in ids if isinstance(name, str | int)]
    scores = list(scores)
    return Questions(
        scores, np.array(list(answers), dtype=np.int64), named if len(named) == len(scores) else []
    )


# -- lm-evaluation-harness ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sample:
    """One document: the scores of its options, and which option its target means under each way to read it."""

    where: str
    row: dict[str, Any]
    scores: Float64
    answers: list[int]


def read_lm_eval(
    paths: str | Path | Sequence[str | Path], *, score: OptionScore = "sum"
) -> Questions:
    """Read multiple-choice samples of lm-evaluation-harness.

    Parameters
    ----------
    paths : path-like, or sequence of them
        Files of one or several tasks.
    score : {"sum", "length", "mutual-information"}
        The score of an option: its log-likelihood (as in the harness's ``acc`` and ``brier_score``), the
        log-likelihood divided by its number of characters (``acc_norm``), or minus its log-likelihood
        without the question (``acc_mutual_info``).

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "samples_quiz.jsonl"
    >>> line = '{"doc_id": 0, "filtered_resps": [["-1.5", "True"], ["-2.5", "False"]], "target": "0"}'
    >>> _ = path.write_text(line)
    >>> read_lm_eval(path).probs().round(2)
    array([[0.73, 0.27]])
    """
    Request(option_score=score)  # raises ValueError for an unknown one
    samples, answers = list[_Sample](), list[int]()
    for path in [paths] if isinstance(paths, str | Path) else paths:
        found = list(_samples(Path(path), score))
        answers += _answers(found)
        samples += found
    return _questions((s.scores for s in samples), answers, (s.row.get("doc_id") for s in samples))


def _samples(path: Path, score: OptionScore) -> Iterator[_Sample]:
    """Yield each document of a file once: under the filter of the first line."""
    filters: list[Any] = []
    for where, row in json_lines(path):
        if not isinstance(row, dict) or "filtered_resps" not in row:
            raise ValueError(
                f"{where}: no sample of lm-evaluation-harness (it has no 'filtered_resps')"
            )
        filters = filters or [row.get("filter")]
        if row.get("filter") == filters[0]:
            yield _sample(where, row, score)
    if not filters:
        raise ValueError(f"{path.name} holds no samples")


def _sample(where: str, row: dict[str, Any], score: OptionScore) -> _Sample:
    logs, requests = _log_likelihoods(where, row["filtered_resps"]), _requests(row.get("arguments"))
    without, options, half = None, [text for _, text in requests], len(logs) // 2
    asked = [
        bool(context) for context, _ in requests
    ]  # mutual information: each option again, without the question
    if (
        len(options) == len(logs)
        and options[:half] == options[half:]
        and any(asked[:half])
        and not any(asked[half:])
    ):
        logs, without, options = logs[:half], logs[half:], options[:half]
    if len(logs) < 2:
        raise ValueError(f"{where}: {len(logs)} option; this is no multiple-choice task")
    options = options if len(options) == len(logs) else []
    scores = logs
    if score == "mutual-information":
        if without is None:
            raise ValueError(f"{where}: no requests without a context, as mutual information needs")
        scores = logs - without
    elif score == "length":
        spaced = all(
            text.startswith(" ") for text in options
        )  # the harness puts one space before each option
        lengths = np.array([len(text) - spaced for text in options], dtype=np.float64)
        if not options or not lengths.all():
            raise ValueError(
                f"{where}: 'arguments' lacks the text of an option, as its length needs"
            )
        scores = logs / lengths
    return _Sample(
        where, row, scores, _possible_answers(row, logs, [text.strip() for text in options])
    )


def _log_likelihoods(where: str, responses: Any) -> Float64:
    try:
        listed = (
            json.loads(responses) if isinstance(responses, str) else responses
        )  # older files hold text
        values = np.array([float(first) for first, _is_greedy in listed])
    except (TypeError, ValueError):
        raise ValueError(
            f"{where}: 'filtered_resps' holds no [log-likelihood, is_greedy] a choice"
        ) from None
    if np.isnan(values).any() or np.isposinf(values).any() or np.isneginf(values).all():
        raise ValueError(f"{where}: 'filtered_resps' holds NaN or +inf, or -inf for every option")
    lowest = values[np.isfinite(values)].min()
    return np.where(np.isneginf(values), lowest - _HOPELESS, values)


def _requests(arguments: Any) -> list[tuple[Any, str]]:
    """Return the (context, continuation) pairs of the requests; none if a continuation is no text."""
    if isinstance(
        arguments, dict
    ):  # {"gen_args_0": {"arg_0": context, "arg_1": continuation}, ...}
        keys = sorted(arguments, key=lambda key: int("0" + "".join(filter(str.isdecimal, key))))
        arguments = [
            list(a.values()) if isinstance(a := arguments[key], dict) else a for key in keys
        ]
    held = arguments if isinstance(arguments, list) else []
    pairs = [(a[0], a[1]) for a in held if isinstance(a, list) and len(a) > 1]
    return pairs if all(isinstance(text, str) for _, text in pairs) else []


def _answers(samples: list[_Sample]) -> list[int]:
    """Return the right option of every document of a file, reading all targets in the same way.

    The target "2" may be an index or an option called 2. The right way to read it is the one that fits every
    line, and the harness's own ``acc`` if the file has it.
    """
    ways = list(zip(*(sample.answers for sample in samples), strict=True))
    for found in ways:
        if -1 not in found:
            return list(found)
    bad = samples[min(ways, key=lambda found: found.count(-1)).index(-1)]
    raise ValueError(f"{bad.where}: {_no_target(bad.row.get('target', ''))}")


def _possible_answers(row: dict[str, Any], logs: Float64, options: list[str]) -> list[int]:
    """Return the right option if the target is an index, if it is a text, and by the harness's results; −1 for none."""
    n, best, target = len(logs), int(np.argmax(logs)), str(row.get("target", "")).strip()
    accuracy, brier = row.get("acc"), row.get("brier_score")
    recorded = isinstance(accuracy, int | float)
    by_index = int(target) if target.isdecimal() and len(target) < 8 else n
    by_text = options.index(target) if options.count(target) == 1 else n
    by_record = n
    if isinstance(brier, list) and str(brier[:1]).strip("[]").isdecimal():
        by_record = int(brier[0])
    elif n == 2 and recorded:
        by_record = best if accuracy == 1 else 1 - best
    ways = (by_index, by_text, by_record)
    return [a if a < n and (not recorded or (a == best) == (accuracy == 1)) else -1 for a in ways]


def _no_target(target: Any) -> str:
    return f"the target {quoted(target)} is no index or text of one of its options"


# -- token log-probabilities --------------------------------------------------------------------------


def _read_responses(lines: Iterable[tuple[str, Any]]) -> Questions:
    """Read responses of an OpenAI-style server, one a line, with their ``top_logprobs``.

    A line is a response, or holds it under ``response``. The line also has ``options`` (the labels, or the texts
    that the labels A, B, C, … stand for) and ``target`` (a label, a text or an index).
    """
    scores, answers, ids = [], [], []
    for where, row in lines:
        try:
            given = [str(option) for option in row["options"]]
            short = all(len(option_label(option)) <= 2 for option in given)
            labels = given if short else [chr(ord("A") + i) for i in range(len(given))]
            scores.append(option_scores(_unwrapped(row), labels))
            answers.append(_target(row["target"], labels, given))
        except (KeyError, TypeError) as error:
            needed = f"a response needs 'options' (such as [\"A\", \"B\"]) and 'target' beside it ({quoted(error)})"
            raise ValueError(f"{where}: {needed}") from None
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        ids.append(next((row[k] for k in ("custom_id", "doc_id", "id") if k in row), None))
    return _questions(scores, answers, ids)


def _unwrapped(row: dict[str, Any]) -> dict[str, Any]:
    for name in _WRAPPERS:
        if isinstance(row.get(name), dict):
            row = row[name]
    return row


def _target(target: Any, labels: Sequence[str], texts: Sequence[str]) -> int:
    """Return the right option of a target that is a label, the text of an option, or an index."""
    for plain, options in ((option_label, labels), (normal_answer, texts)):
        names, wanted = [plain(option) for option in options], plain(str(target))
        if not isinstance(target, bool | int) and names.count(wanted) == 1:
            return names.index(wanted)
    if (
        not isinstance(target, bool)
        and str(target).strip().isdecimal()
        and int(target) < len(labels)
    ):
        return int(target)
    raise ValueError(_no_target(target))


def option_label(text: str) -> str:
    """Return the label of an option without the characters that tokenizers and answers put around it.

    >>> [option_label(text) for text in ("B)", "**B**", "ĠB", " b.", "(B")]
    ['b', 'b', 'b', 'b', 'b']
    """
    return text.replace("Ġ", " ").replace("▁", " ").strip(" \n\t*_`\"'().:,;[]#").casefold()


def option_scores(response: Any, options: Sequence[str]) -> Float64:
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
    seen = []
    for alternatives in _positions(response):
        seen = [token for token, _ in alternatives]
        found = [
            [value for token, value in alternatives if option_label(token) == name]
            for name in names
        ]
        if any(found):
            values = [value for _, value in alternatives]
            rest = 1 - float(np.exp(np.array(values)).sum())
            floor = min(min(values), np.log(rest) if rest > 0 else min(values))
            return np.array([np.logaddexp.reduce(own) if own else floor for own in found])
    raise ValueError(
        f"no option of {list(options)} is among the reported tokens{f': {seen[:5]}' if seen else ''}"
    )


def _positions(response: Any) -> Iterator[list[tuple[str, float]]]:
    """Yield the (token, log-probability) pairs of every generated position."""
    found = response.model_dump() if hasattr(response, "model_dump") else response
    for name in ("choices", "logprobs", "content", "top_logprobs"):
        found = found.get(name) or found if isinstance(found, Mapping) else found
        found = found[0] if name == "choices" and isinstance(found, list) else found
    if not isinstance(found, list) or not all(isinstance(position, Mapping) for position in found):
        raise ValueError("the response has no 'top_logprobs': ask the server for them")
    for position in found:
        top = position.get("top_logprobs", position)  # a list of objects, or {text: number}
        pairs = (
            top.items()
            if isinstance(top, Mapping)
            else [(e["token"], e["logprob"]) for e in top or ()]
        )
        yield [(str(token), float(value)) for token, value in pairs]


# -- confidences in words -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """Stated confidences, and whether the answers were right: for hcal a problem with two classes.

    Attributes
    ----------
    confidence : array of shape (N,)
        The stated probability that the answer is right.
    correct : array of shape (N,)
        1 where the answer was right.
    unread : list of int
        The numbers of the records whose confidence could not be read; they are not among the N.
    """

    confidence: Float64
    correct: IntArray
    unread: list[int]


def read_stated(
    records: Iterable[Mapping[str, Any]],
    *,
    unit: str = "fraction",
    ranges: str = "error",
    unreadable: str = "drop",
    words: Mapping[str, float] = WORDS,
    places: Sequence[str] | None = None,
) -> Stated:
    """Read the confidences that a model, or a judge, states about answers.

    Parameters
    ----------
    records : iterable of mappings
        Each with ``confidence`` (a number, or a text such as "85%", "95,5 %", "9/10", "8 out of 10" or
        "very likely") and either ``correct`` (true or false, yes or no) or ``answer`` and ``target``,
        which are compared by :func:`normal_answer`.
    unit : {"fraction", "percent"}
        Whether plain numbers go up to 1 or to 100. A number with a per cent sign is always a percentage.
    ranges : {"error", "middle"}
        Whether "70-80 %" counts as unreadable or as 0.75.
    unreadable : {"drop", "error"}
        What happens to records whose confidence cannot be read.
    words : mapping of str to float
        What words mean if no number is stated; :data:`WORDS` by default.
    places : sequence of str, optional
        How error messages name the records.

    Examples
    --------
    >>> rows = [
    ...     {"answer": "Paris.", "target": "paris", "confidence": "95,5 %"},
    ...     {"answer": "Lyon", "target": "Paris", "confidence": 0.6},
    ...     {"correct": "yes", "confidence": "I do not know"},
    ... ]
    >>> stated = read_stated(rows)
    >>> stated.confidence, stated.correct, stated.unread
    (array([0.955, 0.6  ]), array([1, 0]), [2])
    """
    confidence, correct, unread = list[float](), list[int](), dict[int, str]()
    for number, record in enumerate(records):
        where = f"record {number}" if places is None else places[number]
        if not isinstance(record, Mapping):
            raise ValueError(f"{where}: no answer with its 'confidence'")
        right, said = _is_right(record, where), record.get("confidence")
        share = _confidence(said, 100.0 if unit == "percent" else 1.0, where, ranges, words)
        if share is None:
            unread[number] = f"{quoted(said)} ({where})"
        else:
            confidence.append(share)
            correct.append(right)
    if not confidence or (unread and unreadable != "drop"):
        counts, some = (
            f"{len(unread)} of {len(unread) + len(confidence)}",
            ", ".join([*unread.values()][:3]),
        )
        advice = "unreadable='drop' (--unreadable drop) goes on without them"
        raise ValueError(f"{counts} confidences cannot be read, such as {some}: {advice}")
    return Stated(np.array(confidence), np.array(correct, dtype=np.int64), [*unread])


_N: Final = r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)"
_PERCENT: Final = r"\s*(%|per ?cent\b)"
_RANGE: Final = re.compile(
    rf"{_N}(?:{_PERCENT})?\s*(?:-|–|—|to|bis)\s*(\d+(?:\.\d+)?|\.\d+)(?:{_PERCENT})?"
)
_RATIO: Final = re.compile(rf"{_N}\s*(?:/|out of|of)\s*(\d+(?:\.\d+)?)")
_NUMBER: Final = re.compile(rf"{_N}(?:{_PERCENT})?")


def _confidence(
    said: Any, whole: float, where: str, ranges: str, words: Mapping[str, float]
) -> float | None:
    """Return a stated confidence as a number from 0 to 1; None if it cannot be read."""
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        return None
    value, plain = float("nan"), str(said).casefold().replace(",", ".")
    if not isinstance(said, str):
        value = float(said)
    elif found := _RATIO.search(plain):
        value, whole = float(found[1]), float(found[2]) or 1.0
    elif found := _RANGE.search(plain):
        if ranges == "middle":
            value = (float(found[1]) + float(found[3])) / 2
        whole = 100.0 if found[2] or found[4] else whole
    elif numbers := _NUMBER.findall(plain):
        # "of 3 sources, confidence 0.8": the last number is the confidence, or the last with a per cent sign
        text, percent = next((n for n in reversed(numbers) if n[1]), numbers[-1])
        value, whole = float(text), 100.0 if percent else whole
    else:
        told = [name for name in words if re.search(rf"\b{re.escape(name)}\b", plain)]
        if told and not re.search(r"\bnot\b", plain):
            return float(words[max(told, key=len)])
    share = value / whole
    if np.isnan(share):
        return None
    if not 0 <= share <= 1:
        hint = "; unit='percent' (--unit percent) if numbers go up to 100" if whole == 1 else ""
        raise ValueError(
            f"{where}: the confidence {quoted(said)} is not between 0 and {whole:g}{hint}"
        )
    return share


def normal_answer(text: Any) -> str:
    """Return an answer in the form in which answers are compared: lower case, single spaces, no outer punctuation.

    >>> normal_answer(" Paris. ") == normal_answer("paris"), normal_answer("The  Hague!")
    (True, 'the hague')
    """
    return " ".join(str(text).split()).strip(" .,;:!?\"'`*()[]").casefold()


_RIGHT: Final = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "correct": 1, "right": 1,
                 "0": 0, "0.0": 0, "false": 0, "no": 0, "incorrect": 0, "wrong": 0}  # fmt: skip


def _is_right(record: Mapping[str, Any], where: str) -> int:
    if "correct" not in record:
        if not {"answer", "target"} <= record.keys():
            raise ValueError(f"{where} has neither 'correct' nor 'answer' and 'target'")
        return int(normal_answer(record["answer"]) == normal_answer(record["target"]))
    if (said := normal_answer(record["correct"])) not in _RIGHT:
        raise ValueError(f"{where}: 'correct' must be true or false, got {quoted(said)}")
    return _RIGHT[said]
