"""Samples of lm-evaluation-harness, and responses of servers."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.io import read
from hcal.language_models import option_scores, read_lm_eval
from lm_eval_files import write_samples

# -- lm-evaluation-harness ---------------------------------------------------------------------------


def test_accuracy_and_brier_are_those_of_the_harness(tmp_path: Path) -> None:
    for as_strings, target, counts in product([True, False], ["index", "text"], [(4,), (2, 3, 5)]):
        written = write_samples(tmp_path, as_strings=as_strings, target=target, counts=counts)
        quiz = read_lm_eval(written.path)
        evaluation = hcal.evaluate(quiz.probs(), quiz.y, metrics=["accuracy", "brier"])
        assert evaluation["accuracy"] == pytest.approx(written.acc, abs=1e-9)
        assert evaluation["brier"] == pytest.approx(written.brier_score, abs=1e-9)


def test_length_and_mutual_information(tmp_path: Path) -> None:
    written = write_samples(tmp_path, mutual=True, n=200)
    assert len({written.acc, written.acc_norm, written.acc_mutual_info}) == 3
    for score, expected in (
        ("length", written.acc_norm),
        ("mutual-information", written.acc_mutual_info),
    ):
        quiz = read_lm_eval(written.path, score=score)
        assert quiz.log_probs().shape == (200, 4)
        assert hcal.metrics.accuracy(quiz.probs(), quiz.y) == pytest.approx(expected, abs=1e-9)
        evaluation = json.loads(run("evaluate", written.path, "--score", score, "--json").stdout)
        assert evaluation["metrics"]["accuracy"]["value"] == pytest.approx(expected, abs=1e-9)
    path = write_samples(tmp_path).path
    for score, message in (
        ("mutual-information", "line 1: no requests without a context"),
        ("t", "must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            read_lm_eval(path, score=score)


def test_several_tasks_and_filters(tmp_path: Path) -> None:
    one = write_samples(tmp_path, "arc_easy", n=20, filters=("none", "strict"))
    two = write_samples(tmp_path, "boolq", n=30, counts=(2,), target="text", seed=1)
    quiz = read_lm_eval([one.path, two.path])
    assert len(quiz) == 50  # a document counts once, whatever the number of filters
    accuracy = hcal.metrics.accuracy(quiz.probs(), quiz.y)
    expected = (20 * one.acc + 30 * two.acc) / 50
    assert accuracy == pytest.approx(expected)


def change(path: Path, **new) -> Path:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for field, value in new.items():
            row[field] = value(row) if callable(value) else value
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_options_that_are_numbers_are_told_from_indices_by_the_harness_own_accuracy(
    tmp_path: Path,
) -> None:
    """Options " 1" to " 4" with the target "2": the second option, not the third."""
    written = write_samples(tmp_path)
    right = read_lm_eval(written.path).y
    options = {f"gen_args_{i}": {"arg_0": "Q", "arg_1": f" {i + 1}"} for i in range(4)}
    path = change(
        written.path, target=lambda row: str(int(row["target"]) + 1), arguments=lambda row: options
    )
    path.write_text(
        "\n".join(line for line in path.read_text().splitlines() if '"target": "4"' not in line)
    )
    kept = [y for y in right if y != 3]
    assert read_lm_eval(path).y.tolist() == kept


def test_one_continuation_after_two_contexts_takes_the_answer_from_the_record(
    tmp_path: Path,
) -> None:
    """Winogrande's form: both requests end with the same text, so the target names neither."""
    written = write_samples(tmp_path, counts=(2,))
    right = read_lm_eval(written.path).y
    both = {f"gen_args_{i}": {"arg_0": f"context {i}", "arg_1": " the end"} for i in range(2)}
    path = change(written.path, target="the end", arguments=both)
    assert read_lm_eval(path).y.tolist() == right.tolist()


def test_bad_samples_are_named(tmp_path: Path) -> None:
    for new, message in (
        ({"filtered_resps": ["an answer"]}, "line 1: 'filtered_resps' holds no"),
        ({"filtered_resps": [["-1.0", "True"]]}, "line 1: 1 option"),
        (
            {"filtered_resps": [["nan", "True"], ["-1", "False"]]},
            "line 1: 'filtered_resps' holds NaN",
        ),
        ({"target": "no such text"}, "line 1: the target 'no such text' is no index or text"),
        (
            {"target": "9", "arguments": {"gen_args_0": "Q"}},
            "line 1: the target '9' is no index or text",
        ),
    ):
        path = change(write_samples(tmp_path, n=3).path, **new)
        with pytest.raises(ValueError, match=message):
            read_lm_eval(path)


def test_other_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, message in (
        ("", "is empty"),
        ("{", "line 1: not JSON"),
        ("3", "line 1 is no JSON object"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read(path)
    with pytest.raises(ValueError, match=r"files of several types, .jsonl, .npz"):
        read([path, tmp_path / "b.npz"])


def test_an_impossible_option_is_an_option(tmp_path: Path) -> None:
    responses = [["-1.0", "True"], ["-inf", "False"]]
    written = write_samples(tmp_path, n=4, counts=(2,))
    path = change(written.path, acc=0.0, target="1", filtered_resps=responses)
    quiz = read_lm_eval(path)
    assert quiz.probs().tolist() == [[1.0, 0.0]] * 4
    assert np.isfinite(quiz.scores[0]).all()


# -- from file to page -------------------------------------------------------------------------------


def test_fit_evaluate_apply_and_report_read_samples(tmp_path: Path) -> None:
    cal = []
    for seed in range(2):
        written = write_samples(tmp_path, f"cal{seed}", n=300, counts=(2, 3, 5), seed=seed)
        cal.append(written.path)
    test = write_samples(tmp_path, "test", n=300, counts=(2, 4), seed=9)
    model = tmp_path / "model.hcal"
    run("fit", *cal, "-o", model)
    assert hcal.load(model).temperature_ == pytest.approx(3, rel=0.3)
    plain = json.loads(run("evaluate", test.path, "--json").stdout)
    assert plain["metrics"]["accuracy"]["value"] == pytest.approx(test.acc, abs=1e-9)
    assert plain["metrics"]["brier"]["value"] == pytest.approx(test.brier_score, abs=1e-9)
    after = json.loads(run("evaluate", test.path, "--model", model, "--json").stdout)
    assert after["changed"] == 0
    assert after["metrics"]["nll"]["value"] < 0.9 * after["metrics"]["nll"]["baseline"]
    run("apply", model, test.path, "-o", tmp_path / "probs.npz")
    with np.load(tmp_path / "probs.npz") as written_file:
        assert written_file["probs"].shape == (300, 4)
        assert (written_file["probs"] == 0).any()


# -- servers -----------------------------------------------------------------------------------------


TOP = {"A": -0.5, " B": -1.5, "B": -3.0, "Sure": -4.0}
LISTED = [{"token": t, "logprob": v, "bytes": None} for t, v in TOP.items()]
COMPLETION = {"text": "A", "logprobs": {"tokens": ["A"], "top_logprobs": [TOP]}}
TWO_TOKENS = [{"top_logprobs": [{"token": "(", "logprob": -0.1}]}, {"top_logprobs": LISTED}]
FORMATS = {
    "chat": {"choices": [{"logprobs": {"content": [{"token": "A", "top_logprobs": LISTED}]}}]},
    "completions": {"choices": [COMPLETION]},
    "later token": {"choices": [{"logprobs": {"content": TWO_TOKENS}}]},
}


def test_options_of_a_response() -> None:
    both = np.log(np.exp(-1.5) + np.exp(-3.0))
    left = np.log(1 - np.exp(list(TOP.values())).sum())
    for name, response in FORMATS.items():
        scores = option_scores(response, ["A", "B", "C"])
        assert scores == pytest.approx([-0.5, both, min(-4.0, left)]), name
    for response, options, message in (
        (FORMATS["chat"], ["x", "y"], "no option of"),
        ({"choices": [{"text": "A", "logprobs": None}]}, ["A", "B"], "ask the server"),
        (FORMATS["chat"], ["A"], "2 or more different"),
    ):
        with pytest.raises(ValueError, match=message):
            option_scores(response, options)


def test_responses_of_a_server_in_a_file(tmp_path: Path) -> None:
    """OpenAI's JSONL: labels as tokenizers and models write them, targets as label, text or index."""
    tokens = {"**B**": -0.5, "ĠA": -1.5, "b)": -3.0, "c": -4.0}
    top = [{"token": token, "logprob": value} for token, value in tokens.items()]
    response = {"choices": [{"logprobs": {"content": [{"token": "B", "top_logprobs": top}]}}]}
    texts = ["Lyon", "Paris", "Rome"]
    lines = [
        {
            "response": {"body": response},
            "options": ["A)", "B)", "C)"],
            "target": "b",
            "custom_id": "q1",
        },
        {**response, "options": texts, "target": "paris.", "custom_id": "q2"},
        {**response, "options": texts, "target": 1, "custom_id": "q3"},
        {**response, "options": texts, "target": "(B)", "custom_id": "q4"},
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    data = read(path)
    assert data.questions is True
    assert data.y.tolist() == [1, 1, 1, 1]
    assert data.ids.tolist() == ["q1", "q2", "q3", "q4"]
    both = np.exp(-0.5) + np.exp(-3.0)
    expected = np.array([np.exp(-1.5), both, np.exp(-4.0)])
    shares = expected / expected.sum()
    expected = np.tile(shares, (4, 1))
    np.testing.assert_allclose(np.exp(data.values), expected)
    path.write_text(json.dumps(response))
    with pytest.raises(ValueError, match=r"r.jsonl, line 1: .* needs 'options'"):
        read(path)
    path.write_text(json.dumps({**response, "options": texts, "target": "Oslo"}))
    with pytest.raises(ValueError, match=r"line 1: the target 'Oslo' is no index or text"):
        read(path)
