"""A table with an id column, string labels and 1 : 50 imbalance, on the command line.

    python examples/string_labels.py

Gradient boosting (LightGBM where it is installed, else scikit-learn's) finds frauds, one row in fifty. Its
raw margins go into a table as people have them, and four commands take it from there: fit, apply, evaluate,
certify. The names come out again, and so do the ids.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from typer.testing import CliRunner

from hcal.cli.app import app

CLASSES = ["fine", "fraud"]


def sample(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return features and string labels; about one row in fifty is a fraud."""
    x = rng.normal(size=(rows, 6))
    log_odds = -6.3 + 1.6 * x[:, 0] - 1.1 * x[:, 1] * x[:, 2] + 0.8 * np.abs(x[:, 3])
    fraud = rng.random(rows) < 1 / (1 + np.exp(-log_odds))
    return x, np.where(fraud, "fraud", "fine")


def margins(train: np.ndarray, labels: np.ndarray) -> object:
    """Return a function that gives the raw margin of a fraud."""
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        model = HistGradientBoostingClassifier(max_iter=300, random_state=0).fit(train, labels)
        return model.decision_function
    model = LGBMClassifier(n_estimators=300, random_state=0, n_jobs=1, verbose=-1).fit(train, labels)
    return lambda x: model.predict(x, raw_score=True)


def write(path: Path, margin: np.ndarray, labels: np.ndarray) -> None:
    with path.open("w", newline="") as f:
        table = csv.writer(f)
        table.writerow(["customer", "margin", "outcome"])
        for i, (score, label) in enumerate(zip(margin, labels, strict=True)):
            table.writerow([f"c{i:06}", repr(float(score)), label])


def hcal(*arguments: object) -> str:
    """Run a command of hcal as the shell would, and return what it printed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exit_code:
        raise SystemExit(result.output)
    return result.stdout


def main(rows: int = 6000) -> dict[str, object]:
    rng = np.random.default_rng(0)
    margin = margins(*sample(rows, rng))
    with tempfile.TemporaryDirectory() as folder:
        cal, test, model, out = (Path(folder) / n for n in ("cal.csv", "test.csv", "model.hcal", "probs.csv"))
        for path in (cal, test):
            x, labels = sample(rows, rng)
            write(path, margin(x), labels)
        columns = ("--scores", "margin", "--label", "outcome")
        hcal("fit", cal, *columns, "--input", "logits", "--classes", ",".join(CLASSES), "-o", model, "-q")
        found = json.loads(hcal("evaluate", test, *columns, "--model", model, "--json"))
        hcal("apply", model, test, *columns, "--id", "customer", "-o", out, "-q")
        proof = hcal("certify", test, *columns, "--model", model, "--positive", "fraud")
        with out.open() as f:
            first = next(csv.DictReader(f))
    keep = ("nll", "brier", "ece_ew")
    return {
        "before": {name: found["before"][name] for name in keep},
        "after": {name: found["metrics"][name] for name in keep},
        "first row": first,
        "certificate": proof.splitlines()[0],
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value}")
