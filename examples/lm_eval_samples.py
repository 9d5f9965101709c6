"""Calibrate a language model from the samples that lm-evaluation-harness logs (``--log_samples``).

The example writes such files itself: two tasks, one with 4 options and one with 2, and log-likelihoods that are three
times too large. With your own files you need only ``calibrate``. On the command line, run
``hcal fit samples_arc_*.jsonl -o model.hcal``, then ``hcal report samples_boolq_*.jsonl -m model.hcal -o report.html``.

Run: python examples/lm_eval_samples.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import hcal
from hcal.language_models import MultipleChoiceCalibrator, read_lm_eval


def write_samples(path: Path, n: int, options: int, seed: int) -> None:
    """Write n documents of one task as the harness does: one line each, log-likelihoods as strings."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(n):
            evidence = rng.normal(size=options) * 1.5
            answer = int(rng.choice(options, p=hcal.softmax(evidence)))
            log_likelihoods = 3 * evidence - rng.uniform(5, 60)
            sample = {
                "doc_id": number,
                "target": str(answer),
                "arguments": {
                    f"gen_args_{i}": {"arg_0": "Question: … Answer:", "arg_1": f" option {i}"}
                    for i in range(options)
                },
                "filtered_resps": [
                    [str(v), str(v == log_likelihoods.max())] for v in log_likelihoods
                ],
                "filter": "none",
                "acc": float(log_likelihoods.argmax() == answer),
            }
            file.write(json.dumps(sample) + "\n")


def calibrate(learn_from: list[Path], judge_on: list[Path]) -> dict[str, hcal.Evaluation]:
    """Fit one temperature over all tasks, and measure it on other questions."""
    labelled = read_lm_eval(learn_from)
    new = read_lm_eval(judge_on)
    calibrator = MultipleChoiceCalibrator().fit(labelled.scores, labelled.y)
    print(f"temperature {calibrator.temperature_:.2f}, from {len(labelled)} questions")
    metrics = ["ece_ew", "smece", "nll", "brier", "accuracy"]
    return {
        "before": hcal.evaluate(new.probs(), new.y, metrics=metrics),
        "after": hcal.evaluate(calibrator.predict_proba(new.scores), new.y, metrics=metrics),
    }


def main() -> dict[str, hcal.Evaluation]:
    """Fit on two tasks, and test on other questions of the same two."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for part, seed in (("cal", 0), ("test", 10)):
            files[part] = [
                Path(folder) / f"samples_{task}_{part}.jsonl" for task in ("arc", "boolq")
            ]
            for path, options in zip(files[part], (4, 2), strict=True):
                write_samples(path, 800, options, seed + options)
        result = calibrate(files["cal"], files["test"])
    for name, evaluation in result.items():
        print(f"{name:7}", "  ".join(f"{k} {v:.3f}" for k, v in evaluation.values.items()))
    return result


if __name__ == "__main__":
    main()
