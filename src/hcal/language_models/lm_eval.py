"""Samples of lm-evaluation-harness.

A line is one document under one filter: ``filtered_resps`` holds one ``[log-likelihood, is_greedy]`` for each request,
``arguments`` the requests, ``target`` the right answer as an index or as its text. Tasks with mutual information
request every option twice, the second time without a context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hcal.io.records import Record, records_of
from hcal.language_models.columns import AnswerColumns
from hcal.language_models.questions import Questions
from hcal.numerics import Float64
from hcal.text import JsonObject, one_line, quoted

#: An option whose log-likelihood is −inf gets a score this far below the lowest finite one of its question.
_HOPELESS: Final = 1e3
#: The ways to score an option.
OPTION_SCORES: Final = ("sum", "length", "mutual-information")
#: The position of a right answer that a way to read the target does not find.
_NOWHERE: Final = -1


@dataclass(frozen=True)
class _Question:
    """One document: the scores of its options, and which option its target means under each way to read it."""

    where: str
    target: object
    doc_id: object
    scores: Float64
    answers: list[int]


@dataclass(frozen=True)
class _Requests:
    """What the model was asked for: the log-likelihood and the text of each option, and those without a question."""

    log_likelihoods: Float64
    options: list[str]
    without_question: Float64 | None


def read_lm_eval(paths: str | Path | Sequence[str | Path], *, score: str = "sum") -> Questions:
    """Read multiple-choice samples of lm-evaluation-harness.

    Parameters
    ----------
    paths : path-like, or sequence of them
        Files of one or several tasks, and of one or several models.
    score : {"sum", "length", "mutual-information"}
        The score of an option: its log-likelihood (as in the harness's ``acc`` and ``brier_score``), the
        log-likelihood divided by its number of characters (``acc_norm``), or minus its log-likelihood
        without the question (``acc_mutual_info``).

    Returns
    -------
    Questions
        ``columns`` holds the ``task`` of each question, the ``model`` where it is known, and with several files the
        ``file``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "samples_quiz.jsonl"
    >>> line = '{"doc_id": 0, "filtered_resps": [["-1.5", "True"], ["-2.5", "False"]], "target": "0"}'
    >>> _ = path.write_text(line)
    >>> read_lm_eval(path).probs().round(2)
    array([[0.73, 0.27]])
    """
    names = [paths] if isinstance(paths, str | Path) else paths
    files = [Path(path) for path in names]
    columns = AnswerColumns(files)
    return read_samples(files, score, columns)


def read_samples(paths: Sequence[Path], score: str, columns: AnswerColumns) -> Questions:
    """Return the documents of files; what else is known about each goes to ``columns``."""
    if score not in OPTION_SCORES:
        raise ValueError(f"score must be one of {', '.join(OPTION_SCORES)}, got {score!r}")
    samples = list[_Question]()
    answers = list[int]()
    for path in paths:
        of_file = list(_samples(path, score, columns))
        answers += _answers(of_file)
        samples += of_file
    ids = [sample.doc_id for sample in samples]
    is_named = all(isinstance(name, str | int) for name in ids)
    return Questions(
        [sample.scores for sample in samples],
        np.array(answers, dtype=np.int64),
        ids if is_named else [],
        columns.standard(),
    )


def _samples(path: Path, score: str, columns: AnswerColumns) -> Iterator[_Question]:
    """Yield each document of a file once: under the filter of the first line."""
    filters = list[object]()
    for record in records_of([path]):
        row = record.content
        if not isinstance(row, dict) or "filtered_resps" not in row:
            raise ValueError(
                f"{record.where}: no sample of lm-evaluation-harness (it has no 'filtered_resps')"
            )
        filters = filters or [row.get("filter")]
        if row.get("filter") == filters[0]:
            columns.pick(record)
            yield _sample(record, score)
    if not filters:
        raise ValueError(f"{one_line(path.name, 80)} holds no samples")


def _sample(record: Record, score: str) -> _Question:
    """Return a document with the scores of its options."""
    row = record.content
    requests = _requests(record)
    n_options = len(requests.log_likelihoods)
    if n_options < 2:
        raise ValueError(f"{record.where}: {n_options} option; this is no multiple-choice task")
    texts = [text.strip() for text in requests.options]
    return _Question(
        where=record.where,
        target=row.get("target", ""),
        doc_id=row.get("doc_id"),
        scores=_scores(record.where, requests, score),
        answers=_possible_answers(row, requests.log_likelihoods, texts),
    )


def _requests(record: Record) -> _Requests:
    """Return the log-likelihood and the text of each option."""
    log_likelihoods = _log_likelihoods(record.where, record.content["filtered_resps"])
    pairs = _contexts_and_options(record.content.get("arguments"))
    options = [option for _, option in pairs]
    if len(options) != len(log_likelihoods):
        return _Requests(log_likelihoods, [], None)
    half = len(options) // 2
    has_context = [bool(context) for context, _ in pairs]
    # Mutual information: each option again, without the question.
    is_doubled = options[:half] == options[half:] and any(has_context[:half])
    if is_doubled and not any(has_context[half:]):
        return _Requests(log_likelihoods[:half], options[:half], log_likelihoods[half:])
    return _Requests(log_likelihoods, options, None)


def _scores(where: str, requests: _Requests, score: str) -> Float64:
    """Return the scores of the options."""
    if score == "mutual-information":
        if requests.without_question is None:
            raise ValueError(f"{where}: no requests without a context, as mutual information needs")
        return requests.log_likelihoods - requests.without_question
    if score == "length":
        # The harness puts one space before each option.
        spaced = all(option.startswith(" ") for option in requests.options)
        lengths = np.array([len(option) - spaced for option in requests.options], dtype=np.float64)
        if not requests.options or not lengths.all():
            raise ValueError(
                f"{where}: 'arguments' lacks the text of an option, as its length needs"
            )
        return requests.log_likelihoods / lengths
    return requests.log_likelihoods


def _log_likelihoods(where: str, responses: str | list[tuple[float, bool]]) -> Float64:
    """Return the finite log-likelihoods of the requests; the responses of older files are text."""
    try:
        listing = json.loads(responses) if isinstance(responses, str) else responses
        values = np.array([float(first) for first, _is_greedy in listing])
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"{where}: 'filtered_resps' holds no [log-likelihood, is_greedy] a choice"
        ) from None
    if not len(values):
        raise ValueError(f"{where}: 'filtered_resps' is empty")
    if np.isnan(values).any() or np.isposinf(values).any() or np.isneginf(values).all():
        raise ValueError(f"{where}: 'filtered_resps' holds NaN or +inf, or -inf for every option")
    lowest = values[np.isfinite(values)].min()
    return np.where(np.isneginf(values), lowest - _HOPELESS, values)


def _contexts_and_options(arguments: object) -> list[tuple[object, str]]:
    """Return the (context, continuation) pairs of the requests; none if a continuation is no text."""
    listing = arguments if isinstance(arguments, list) else []
    # {"gen_args_0": {"arg_0": context, "arg_1": continuation}, …}
    if isinstance(arguments, dict):
        ordered = sorted(arguments, key=_number_in)
        listing = [_values(arguments[key]) for key in ordered]
    pairs = [(entry[0], entry[1]) for entry in listing if isinstance(entry, list) and entry[1:]]
    return pairs if all(isinstance(option, str) for _, option in pairs) else []


def _number_in(name: str) -> int:
    """Return the number in the name of a request, 0 without one.

    >>> _number_in("gen_args_12")
    12
    """
    digits = "".join(filter(str.isdecimal, name))
    return int(digits[:9] or 0)


def _values(entry: object) -> object:
    return list(entry.values()) if isinstance(entry, dict) else entry


# -- right answers --------------------------------------------------------------------------------


def _answers(samples: list[_Question]) -> list[int]:
    """Return the right option of every document of a file, reading all targets in the same way.

    The target "2" may be an index or an option called 2. The right way to read it is the one that fits every
    line, and the harness's own ``acc`` if the file has it.
    """
    ways = [list(way) for way in zip(*(sample.answers for sample in samples), strict=True)]
    by_index, by_text, by_record = ways
    if _NOWHERE not in by_index + by_text and by_index != by_text and by_record not in ways[:2]:
        number = next(k for k in range(len(samples)) if by_index[k] != by_text[k])
        sample = samples[number]
        raise ValueError(
            f"{sample.where}: the target {quoted(sample.target)} may be an option or its index, "
            "and no accuracy in the file tells which"
        )
    if _NOWHERE not in by_index + by_text and by_record == by_text:
        return by_text
    for answers in ways:
        if _NOWHERE not in answers:
            return answers
    nearest = min(ways, key=_count_nowhere)
    bad = samples[nearest.index(_NOWHERE)]
    raise ValueError(f"{bad.where}: {no_target(bad.target)}")


def _count_nowhere(answers: list[int]) -> int:
    return answers.count(_NOWHERE)


def _possible_answers(row: JsonObject, log_likelihoods: Float64, options: list[str]) -> list[int]:
    """Return the right option if the target is an index, if it is a text, and by the harness's results."""
    n_options = len(log_likelihoods)
    best = int(np.argmax(log_likelihoods))
    target = str(row.get("target", "")).strip()
    by_index = by_text = _NOWHERE
    if target.isdecimal() and len(target) < 8 and int(target) < n_options:
        by_index = int(target)
    if options.count(target) == 1:
        by_text = options.index(target)
    ways = [by_index, by_text, _by_record(row, best, n_options)]
    accuracy = row.get("acc")
    if not isinstance(accuracy, int | float):
        return ways
    was_right = accuracy == 1
    return [way if (way == best) == was_right else _NOWHERE for way in ways]


def _by_record(row: JsonObject, best: int, n_options: int) -> int:
    """Return the right option by what the harness recorded: in its Brier score, or with two options its accuracy."""
    brier = row.get("brier_score")
    accuracy = row.get("acc")
    if isinstance(brier, list) and str(brier[:1]).strip("[]").isdecimal():
        return int(brier[0]) if int(brier[0]) < n_options else _NOWHERE
    if n_options == 2 and isinstance(accuracy, int | float):
        return best if accuracy == 1 else 1 - best
    return _NOWHERE


def no_target(target: object) -> str:
    """Return the sentence on a target that is none of the options."""
    return f"the target {quoted(target)} is no index or text of one of its options"
