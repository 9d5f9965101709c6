"""Log-probabilities of generated tokens as one confidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.io import Request, read
from hcal.language_models import sequence_score

TOKENS = [-0.1, -0.3, -1.1]
CONTENT = [{"token": "x", "logprob": value} for value in TOKENS]
CHAT = {"choices": [{"logprobs": {"content": CONTENT}}]}
COMPLETION = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [None, *TOKENS]}}]}
FORMATS: dict[str, Any] = {
    "list": TOKENS,
    "array": np.array(TOKENS),
    "record": {"token_logprobs": TOKENS},
    "chat": CHAT,
    "completion": COMPLETION,
}


@pytest.mark.parametrize("form", FORMATS)
def test_sum_mean_and_least(form: str) -> None:
    scores = {how: sequence_score(FORMATS[form], how) for how in ("sum", "mean", "least")}
    assert scores == {"sum": pytest.approx(-1.5), "mean": pytest.approx(-0.5), "least": -1.1}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([], "one or more"),
        ([0.5], "at most 0"),
        ([float("nan")], "at most 0"),
        (["a"], "could not convert"),
        ([[1]], "are numbers"),
        ("text", "one or more"),
        ({"choices": [{"logprobs": None}]}, "ask the server"),
        ({"choices": []}, "ask the server"),
        ({"token_logprobs": None}, "one or more"),
    ],
)
def test_what_is_no_log_probability_is_refused(response: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence_score(response)
    with pytest.raises(ValueError, match="how must be one of"):
        sequence_score(TOKENS, "median")


def test_answers_are_calibrated_from_file_to_file(tmp_path: Path) -> None:
    """Answers whose tokens are three times too sure: the sum is log P(right) times three."""
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.2, 0.9, 2000)
    right = rng.random(2000) < shares
    rows = []
    for number, (share, correct) in enumerate(zip(shares, right, strict=True)):
        tokens = [np.log(share) / 6] * 2
        rows.append({"token_logprobs": tokens, "correct": bool(correct), "id": number})
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    new = [{"id": "q", "token_logprobs": [np.log(0.5) / 6] * 2}]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, new)))

    data = read(path, Request(option_score="least"))
    assert data.kind == "log_probs"
    assert data.values.shape == (2000,)
    assert data.ids[3] == 3
    model = tmp_path / "m.hcal"
    run("fit", path, "-o", model, "-q")
    run("apply", model, tmp_path / "new.jsonl", "-o", tmp_path / "p.npz", "-q")

    with np.load(tmp_path / "p.npz") as file:
        assert file["probs"][0, 1] == pytest.approx(0.5, abs=0.05)
    before = hcal.metrics.ece_ew(np.exp(data.values), data.y)
    after = hcal.load(model).fit_.after["ece_ew"]
    assert after < before / 5
    other = run("evaluate", path, "--model", model, "--score", "mean", code=1)
    assert "fitted with option score sum, so mean cannot be right" in other.stderr
    refused = run("evaluate", path, "--score", "length", code=1)
    assert "is not for sequences of language models" in refused.stderr
