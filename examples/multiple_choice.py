"""Calibrate a language model's answers to multiple-choice questions with 2 to 5 options.

The example makes its own data: per-option log-probabilities as a model gives them (the level of each question
differs, since long texts have low probabilities) that are three times too sure.

Run: python examples/multiple_choice.py
"""

from __future__ import annotations

import numpy as np

import hcal
from hcal.integrations.multiple_choice import MultipleChoiceCalibrator


def make_questions(n: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the log-probabilities of the options of n questions, and the right answers."""
    rng = np.random.default_rng(seed)
    scores, answers = [], []
    for k in rng.integers(2, 6, size=n):
        evidence = rng.normal(size=k) * 1.5
        scores.append(3 * evidence - rng.uniform(5, 60))
        answers.append(rng.choice(k, p=hcal.softmax(evidence)))
    return scores, np.array(answers)


def report(name: str, probs: list[np.ndarray], answers: np.ndarray) -> dict[str, float]:
    """Print and return accuracy, mean confidence and NLL of answers with any number of options."""
    result = {
        "accuracy": float(np.mean([p.argmax() == a for p, a in zip(probs, answers, strict=True)])),
        "confidence": float(np.mean([p.max() for p in probs])),
        "nll": float(np.mean([-np.log(p[a]) for p, a in zip(probs, answers, strict=True)])),
    }
    print(f"{name:12}", "  ".join(f"{k} {v:.3f}" for k, v in result.items()))
    return result


def main() -> dict[str, dict[str, float]]:
    """Fit on 2,000 questions, report on 2,000 others."""
    calibrator = MultipleChoiceCalibrator().fit(*make_questions(2000, seed=0))
    scores, answers = make_questions(2000, seed=1)
    print(f"temperature {calibrator.temperature_:.2f}")
    return {
        "before": report("before", [hcal.softmax(s) for s in scores], answers),
        "after": report("after", calibrator.predict_proba(scores), answers),
    }


if __name__ == "__main__":
    main()
