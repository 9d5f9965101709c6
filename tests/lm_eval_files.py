"""Files in the format that lm-evaluation-harness writes, with the results that it would print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass
class Written:
    """A file, and the harness's own figures for it, from their definitions and row by row."""

    path: Path
    acc: float
    acc_norm: float
    acc_mutual_info: float
    brier_score: float


def write_samples(
    folder: Path,
    task: str = "quiz",
    *,
    n: int = 60,
    counts: tuple[int, ...] = (4,),
    as_strings: bool = True,
    target: str = "index",
    mutual: bool = False,
    filters: tuple[str, ...] = ("none",),
    sure: float = 3.0,
    seed: int = 0,
) -> Written:
    """Write ``samples_{task}_{date}.jsonl``: log-likelihoods ``sure`` times too spread."""
    rng = np.random.default_rng(seed)
    lines, figures = [], []
    for doc_id in range(n):
        k = int(rng.choice(counts))
        choices = []
        for i in range(k):
            words = ["word"] * int(rng.integers(1, 6))
            choices.append(" ".join([*words, f"o{i}"]))
        evidence = rng.normal(size=k) * 1.5
        shares = np.exp(evidence) / np.exp(evidence).sum()
        gold = int(rng.choice(k, p=shares))
        lls = sure * evidence - rng.uniform(5, 60)
        unconditional = -rng.uniform(2, 8, size=k)
        requests = [("Question?", f" {c}") for c in choices]
        log_likelihoods = list(lls)
        if mutual:
            requests += [("", f" {c}") for c in choices]
            log_likelihoods += list(unconditional)
        greedy = int(np.argmax(lls))
        responses = [[float(v), i == greedy] for i, v in enumerate(log_likelihoods)]
        likelihoods = np.exp(lls - lls.max())
        probs = likelihoods / likelihoods.sum()
        lengths = np.array([len(choice) for choice in choices])
        best = [np.argmax(score) for score in (lls, lls / lengths, lls - unconditional)]
        brier = float(((probs - np.eye(k)[gold]) ** 2).sum())
        figures.append([*(float(choice == gold) for choice in best), brier])
        for name in filters:
            texts = [[str(likelihood), str(is_greedy)] for likelihood, is_greedy in responses]
            arguments = {}
            for i, (context, text) in enumerate(requests):
                arguments[f"gen_args_{i}"] = {"arg_0": context, "arg_1": text}
            lines.append(
                {
                    "doc_id": doc_id,
                    "doc": {"question": "Question?", "choices": choices, "label": gold},
                    "target": str(gold) if target == "index" else choices[gold],
                    "arguments": arguments,
                    "resps": [[text] for text in texts],
                    "filtered_resps": texts if as_strings else responses,
                    "filter": name,
                    "acc": figures[-1][0],
                }
            )
    path = folder / f"samples_{task}_2026-11-01T10-00-00.123456.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    means = [float(np.mean(column)) for column in zip(*figures, strict=True)]
    return Written(path, *means)
