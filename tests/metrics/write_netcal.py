"""Write what netcal says of a few made-up sets to ``netcal.json``, which a test compares with hcal's numbers.

netcal needs packages that the tests do not, so its numbers are stored, with its version and this program:

    python -m venv --system-site-packages ENV && ENV/bin/pip install --no-deps netcal==1.4.0
    ENV/bin/python tests/metrics/write_netcal.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

OUT = Path(__file__).with_name("netcal.json")
BINS = 15


def churn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """P(churn) of about 20 %, four times what happens: probabilities of class 1, and labels."""
    rng = np.random.default_rng(seed)
    truth = rng.beta(0.6, 11.0, n)
    y = (rng.random(n) < truth).astype(int)
    return np.clip(4 * truth, 0.0, 1.0), y


def overconfident(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds doubled: probabilities of class 1, and labels."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(size=n)
    happened = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    return 1 / (1 + np.exp(-2 * log_odds)), happened.astype(int)


SETS = {
    "churn": churn(4000, 0),
    "small": overconfident(90, 1),
    "overconfident": overconfident(3000, 2),
}


def main() -> None:
    """Write the numbers of netcal."""
    from netcal.metrics import ACE, ECE, MCE

    measures = {"ECE": ECE(BINS), "MCE": MCE(BINS), "ACE": ACE(BINS)}
    values = {}
    for name, (p, y) in SETS.items():
        values[name] = {title: float(measure.measure(p, y)) for title, measure in measures.items()}
    stored = {"netcal": version("netcal"), "numpy": np.__version__, "bins": BINS, "values": values}
    OUT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
