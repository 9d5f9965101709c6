"""Write what NannyML estimates without labels for fixed probabilities, to ``nannyml.json`` beside this file.

It runs once, in an environment of its own: ``pip install nannyml==0.13.1``, then ``python nannyml_numbers.py``. The
test ``test_nannyml_estimates_the_same`` reads the file; nothing of NannyML is needed there.
"""

from __future__ import annotations

import json
from pathlib import Path

import nannyml
import numpy as np
import pandas as pd

N = 4000
THRESHOLD = 0.3


def frame(n: int, seed: int) -> pd.DataFrame:
    """Return probabilities, decisions, and labels that follow them evenly, in shuffled order."""
    place = (np.arange(n) + 0.5) / n
    risk = 0.95 * place**3
    label = np.diff(np.floor(np.cumsum(risk) + 0.5), prepend=0.0)
    decided = (risk >= THRESHOLD).astype(int)
    rows = pd.DataFrame({"risk": risk, "decided": decided, "y": label.astype(int)})
    return rows.sample(frac=1, random_state=seed)


def main() -> None:
    names = ["roc_auc", "f1", "precision", "recall", "specificity", "accuracy"]
    estimator = nannyml.CBPE(
        y_pred_proba="risk",
        y_pred="decided",
        y_true="y",
        problem_type="classification_binary",
        metrics=[*names, "business_value"],
        business_value_matrix=np.array([[0, -1], [-20, 0]]),
        chunk_number=1,
    )
    estimator.fit(frame(40_000, seed=0))
    estimates = estimator.estimate(frame(N, seed=1).drop(columns="y"))
    table = estimates.filter(period="analysis").to_df()
    values = {name: float(table[name]["value"].iloc[0]) for name in [*names, "business_value"]}
    errors = {name: float(table[name]["sampling_error"].iloc[0]) for name in values}
    content = {
        "version": nannyml.__version__,
        "rows": N,
        "threshold": THRESHOLD,
        "calibrated_again": bool(estimator.needs_calibration),
        "values": values,
        "sampling_errors": errors,
    }
    path = Path(__file__).with_name("nannyml.json")
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
