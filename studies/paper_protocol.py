"""The paper protocol on one task over seeds, all three selectors from the same training runs.

    python -m studies.paper_protocol ../shared/data/cifar10_resnet110.npz --seeds 0 1 2 3 4

Prints one line a seed and selector, then medians and ranges.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from hcal import metrics
from hcal.calibrators.h.paper import PaperSettings, fit_paper
from hcal.maps.predict import predict_map
from hcal.numerics import log_softmax

SELECTORS = ("top-label", "class-wise", "nll")
METRICS = ("ece_s1", "tcwece", "dkde_ce", "nll", "ece_ew", "accuracy")


def run(task: str, seed: int) -> list[tuple[str, str, dict[str, float], float]]:
    with np.load(task) as f:
        cal, y_cal = f["logits_cal"], f["y_cal"].astype(np.int64)
        test, y_test = f["logits_test"].astype(np.float64), f["y_test"].astype(np.int64)
    start = time.perf_counter()
    fitted = fit_paper(
        log_softmax(cal.astype(np.float64)), y_cal, PaperSettings(SELECTORS), random_state=seed
    )
    seconds = time.perf_counter() - start
    rows = []
    for select, result in fitted.items():
        probs = predict_map(result.state, test)
        values = {m: float(getattr(metrics, m)(probs, y_test)) for m in METRICS}
        rows.append((select, result.info["map"], values, seconds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    table: dict[str, list[dict[str, float]]] = {s: [] for s in SELECTORS}
    for seed in arguments.seeds:
        for select, name, values, seconds in run(arguments.task, seed):
            table[select].append(values)
            shown = "  ".join(f"{m} {v:.5f}" for m, v in values.items())
            print(f"seed {seed}  {select:10}  {name:14}  {shown}  ({seconds:.0f} s)", flush=True)
    for select, rows in table.items():
        for m in METRICS:
            column = np.array([r[m] for r in rows])
            low, high = column.min(), column.max()
            print(f"{select:10}  {m:9}  median {np.median(column):.5f}  range {low:.5f}–{high:.5f}")


if __name__ == "__main__":
    main()
