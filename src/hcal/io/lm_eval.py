"""Samples of lm-evaluation-harness (``samples_{task}_{date}.jsonl``), read as they are.

A line is a document under one filter. ``filtered_resps`` holds one ``[log-likelihood, is_greedy]`` a request,
as numbers or as strings; ``arguments`` the requests themselves; ``target`` the right answer, as an index or
as its text. Tasks with mutual information ask for every option twice, the second time without a context.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from hcal.io.limits import check_bytes, one_line, open_regular, size_of
from hcal.io.questions import Questions
from hcal.numerics import Float64

OptionScore = Literal["sum", "length", "mutual-information"]
OPTION_SCORES: Final[tuple[str, ...]] = get_args(OptionScore)
#: How far below a row's lowest option one lies whose log-likelihood is −inf: it is there, and hopeless.
_HOPELESS: Final = 1e3


@dataclass(frozen=True)
class _Sample:
    """One document as the file has it."""

    where: str
    task: str
    conditional: Float64
    unconditional: Float64 | None
    options: list[str]
    target: str
    recorded: dict[str, Any]


def read_lm_eval(paths: str | Path | Sequence[str | Path], *, score: OptionScore = "sum") -> Questions:
    """Read multiple-choice samples of lm-evaluation-harness.

    Parameters
    ----------
    paths : path-like, or sequence of them
        Files of one or several tasks.
    score : {"sum", "length", "mutual-information"}
        What an option's score is: its log-likelihood (the harness's ``acc`` and ``brier_score``), that
        divided by its number of characters (``acc_norm``), or that less its log-likelihood without the
        question (``acc_mutual_info``).

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "samples_quiz.jsonl"
    >>> line = '{"doc_id": 0, "filtered_resps": [["-1.5", "True"], ["-2.5", "False"]], "target": "0"}'
    >>> _ = path.write_text(line)
    >>> read_lm_eval(path).probs().round(2)
    array([[0.73, 0.27]])
    """
    if score not in OPTION_SCORES:
        raise ValueError(f"score must be one of {', '.join(OPTION_SCORES)}, got {score!r}")
    files = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise ValueError("no file of samples was given")
    scores, answers, tasks, options = [], [], [], []
    for path in files:
        samples = list(_samples(path))
        answers += _answers(samples)
        scores += [_scored(sample, score) for sample in samples]
        tasks += [sample.task for sample in samples]
        options += [sample.options for sample in samples]
    return Questions(scores, np.array(answers, dtype=np.int64), tasks, options)


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place ("name, line 3") and the value of every line of a .jsonl file."""
    with open_regular(path) as file:
        check_bytes(path.name, size_of(file), size_of(file))
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({one_line(error, 80)})") from None


def is_samples(path: Path) -> bool:
    """Return whether a .jsonl file holds samples of lm-evaluation-harness, by its first line."""
    first = next(json_lines(path), ("", None))[1]
    return isinstance(first, dict) and "filtered_resps" in first


def _samples(path: Path) -> Iterator[_Sample]:
    """Yield the documents of a file once each: under the first filter that the file names."""
    filters: list[Any] = []
    task = _task(path)
    for where, row in json_lines(path):
        if not isinstance(row, dict) or "filtered_resps" not in row:
            raise ValueError(f"{where}: no sample of lm-evaluation-harness (it has no 'filtered_resps')")
        filters = filters or [row.get("filter")]
        if row.get("filter") == filters[0]:
            yield _sample(where, task, row)
    if not filters:
        raise ValueError(f"{path.name} holds no samples")


def _task(path: Path) -> str:
    """Return the name of the task: ``samples_{task}_{date}.jsonl``, the date with its ``T``."""
    name = path.stem.removeprefix("samples_")
    head, _, tail = name.rpartition("_")
    return head if head and tail[:4].isdigit() and "T" in tail else name


def _sample(where: str, task: str, row: dict[str, Any]) -> _Sample:
    scores = _log_likelihoods(where, row["filtered_resps"])
    contexts, options = _requests(row.get("arguments"))
    conditional, unconditional = scores, None
    half = len(scores) // 2
    twice = len(options) == len(scores) == 2 * half and options[:half] == options[half:]
    if twice and any(contexts[:half]) and not any(contexts[half:]):
        conditional, unconditional, options = scores[:half], scores[half:], options[:half]
    if len(conditional) < 2:
        raise ValueError(f"{where}: {len(conditional)} option; this is no multiple-choice task")
    recorded: dict[str, Any] = {name: row[name] for name in ("acc", "brier_score") if name in row}
    target = str(row.get("target", ""))
    known = options if len(options) == len(conditional) else []
    return _Sample(where, task, conditional, unconditional, known, target, recorded)


def _log_likelihoods(where: str, responses: Any) -> Float64:
    try:
        values = np.array([float(response[0]) for response in _listed(responses)])
        pairs = all(len(response) == 2 and not isinstance(response, str) for response in _listed(responses))
    except (TypeError, ValueError, IndexError, KeyError):
        pairs = False
    if not pairs:
        raise ValueError(f"{where}: 'filtered_resps' holds no [log-likelihood, is_greedy] a choice")
    if np.isnan(values).any() or np.isposinf(values).any():
        raise ValueError(f"{where}: 'filtered_resps' holds NaN or +inf")
    if np.isneginf(values).all():
        raise ValueError(f"{where}: every option has a log-likelihood of -inf")
    lowest = values[np.isfinite(values)].min()
    return np.where(np.isneginf(values), lowest - _HOPELESS, values)


def _listed(value: Any) -> list[Any]:
    """Return a list; older files hold the text of one."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise TypeError("not a list")
    return found


def _requests(arguments: Any) -> tuple[list[str], list[str]]:
    """Return the contexts and the continuations of the requests, as far as the file has them."""
    if isinstance(arguments, dict):  # {"gen_args_0": {"arg_0": context, "arg_1": continuation}, ...}
        keys = sorted(arguments, key=lambda key: int("0" + "".join(c for c in key if c.isdigit())))
        pairs = [(arguments[key].get("arg_0"), arguments[key].get("arg_1")) for key in keys]
    elif isinstance(arguments, list) and all(isinstance(a, list) and len(a) >= 2 for a in arguments):
        pairs = [(a[0], a[1]) for a in arguments]
    else:
        return [], []
    if not all(isinstance(text, str) for _, text in pairs):
        return [], []
    return [str(context or "") for context, _ in pairs], [text for _, text in pairs]


def _scored(sample: _Sample, score: OptionScore) -> Float64:
    if score == "sum":
        return sample.conditional
    if score == "mutual-information":
        if sample.unconditional is None:
            raise ValueError(f"{sample.where}: no requests without a context, as mutual information needs")
        return sample.conditional - sample.unconditional
    if not sample.options:
        raise ValueError(f"{sample.where}: 'arguments' has no texts of the options, as their length needs")
    lengths = np.array([len(text) for text in _without_delimiter(sample.options)], dtype=np.float64)
    if not lengths.all():
        raise ValueError(f"{sample.where}: an option is empty: it has no length to divide by")
    return sample.conditional / lengths


def _without_delimiter(options: list[str]) -> list[str]:
    """Return the options as the task has them: the harness puts one space before each continuation."""
    return [text[1:] for text in options] if all(text.startswith(" ") for text in options) else options


# -- the right answer --------------------------------------------------------------------------------


def _by_index(sample: _Sample) -> int | None:
    text = sample.target.strip()
    inside = text.isdecimal() and int(text) < len(sample.conditional)
    return int(text) if inside else None


def _by_text(sample: _Sample) -> int | None:
    found = [i for i, text in enumerate(sample.options) if text.strip() == sample.target.strip()]
    return found[0] if len(found) == 1 else None


def _by_record(sample: _Sample) -> int | None:
    """Return the answer that the harness's own results imply, where every option has the same text."""
    recorded = sample.recorded.get("brier_score")
    if isinstance(recorded, list) and recorded and str(recorded[0]).isdecimal():
        return int(recorded[0])
    if len(sample.conditional) == 2 and "acc" in sample.recorded:
        best = int(np.argmax(sample.conditional))
        return best if float(sample.recorded["acc"]) == 1 else 1 - best
    return None


_WAYS: Final[tuple[Callable[[_Sample], int | None], ...]] = (_by_index, _by_text, _by_record)


def _answers(samples: list[_Sample]) -> list[int]:
    """Return the right option of every document of a file, all read in the same way.

    "2" may be an index or an option called 2: the way that fits every line, and the harness's own ``acc``
    where the file has it, is the right one.
    """
    for way in _WAYS:
        found = [way(sample) for sample in samples]
        if all(map(_agrees, samples, found)):
            return [answer for answer in found if answer is not None]
    # No way fits all: name the first line that the first way able to read anything cannot read.
    best = max(_WAYS, key=lambda way: sum(way(sample) is not None for sample in samples))
    bad = next((s for s in samples if not _agrees(s, best(s))), samples[0])
    target = one_line(repr(bad.target), 60)
    raise ValueError(f"{bad.where}: the target {target} is no index or text of one of its options")


def _agrees(sample: _Sample, answer: int | None) -> bool:
    if answer is None or not 0 <= answer < len(sample.conditional):
        return False
    if not isinstance(sample.recorded.get("acc"), int | float):
        return True
    return (int(np.argmax(sample.conditional)) == answer) == (float(sample.recorded["acc"]) == 1)
