"""Measure calibration errors in the evaluation of a Hugging Face Trainer, with one argument.

    trainer = Trainer(model, args, eval_dataset=..., compute_metrics=compute_metrics())

Trainer calls it with an ``EvalPrediction``: the logits and labels of the whole evaluation set. The example calls it in
the same way on a small PyTorch network, so it runs without transformers.

Run: python examples/trainer_metrics.py
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hcal
from hcal.integrations.evaluate import compute_metrics


def train(X: np.ndarray, y: np.ndarray) -> torch.nn.Module:
    """Return a network that was trained for many steps on few rows and is over-confident."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.from_numpy(X)
    labels = torch.from_numpy(y)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def main() -> dict[str, dict[str, float]]:
    """Train, evaluate, calibrate on a third of the rows, evaluate again."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16 + np.random.default_rng(0).normal(scale=0.6, size=X.shape)).astype(np.float32)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=600, random_state=0)
    X_cal, X_eval, y_cal, y_eval = train_test_split(X_rest, y_rest, train_size=0.5, random_state=0)
    model = train(X_train, y_train)
    with torch.no_grad():
        logits, logits_cal = (model(torch.from_numpy(part)).numpy() for part in (X_eval, X_cal))
    before = compute_metrics()(SimpleNamespace(predictions=logits, label_ids=y_eval))

    calibrator = hcal.make_calibrator("ts").fit(logits_cal, y_cal)
    calibrated = compute_metrics(input="probs")
    after = calibrated(
        SimpleNamespace(predictions=calibrator.predict_proba(logits), label_ids=y_eval)
    )
    for name, values in (("before", before), ("after", after)):
        print(f"{name:7}", "  ".join(f"eval_{k} {v:.3f}" for k, v in values.items()))
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
