"""How the default behaves with few rows and few errors: one row less, and the loss beside simpler methods.

    python -m studies.small_sets        # results/small_sets.csv, and a summary

Dropped: the largest change of a test row's probabilities if one calibration row is left out, averaged over test rows
and over ten dropped rows, on every shared table. Errors: the NLL of the default over that of the better of no
calibration and temperature scaling, on tables, on networks of which most errors were taken out, and on made-up tasks.
Which of the two is better is known only afterwards. The z-value is that of the paired difference on the test rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from hcal.numerics import Float64, IntArray
from studies.pool import DEMOS, Row, Split, any_task, load, load_table, predict, tables
from studies.records import RESULTS, read_rows, stamped, write_rows

FILE: Final = RESULTS / "small_sets.csv"
METHODS: Final = ("pool", "ts", "svs", "sms")
#: So many rows are dropped, one at a time; and so few errors are left of 5,000 rows of a network.
DROPS: Final = 10
FEW_ERRORS: Final = 44
NETWORKS: Final = (
    "cifar10_resnet110",
    "cifar10_resnet50",
    "cifar10_wideresnet",
    "pathmnist_resnet50",
)
#: From so many rows on, the default should not lose.
LEAST_ROWS: Final = 300


def dropped(task: str, method: str) -> Row:
    """Return how far the rows of a table move if one calibration row is left out."""
    cal, y, test, _ = load_table(task)
    base = predict(method, cal, y, test, "probs")
    moves = []
    for row in np.random.default_rng(0).permutation(len(y))[:DROPS]:
        others = np.delete(np.arange(len(y)), row)
        probs = predict(method, cal[others], y[others], test, "probs")
        moves.append(largest_change(base, probs))
    return {
        "kind": "dropped",
        "task": task,
        "rows": len(y),
        "method": method,
        "mean": float(np.mean(moves)),
        "max": float(np.max(moves)),
    }


def largest_change(before: Float64, after: Float64) -> float:
    """Return the largest change of a row's probabilities (N, K), averaged over the rows."""
    return float(np.abs(after - before).max(axis=1).mean())


def thinned(network: str, draw: int) -> Split:
    """Return a network with few errors: the rows that it gets right, and a share of the others."""
    rng = np.random.default_rng(draw)
    cal, y, test, y_test = load(network)
    wrong = cal.argmax(axis=1) != y
    share = FEW_ERRORS * len(y) / 5000 / wrong.sum()
    seen = _with_share(wrong, share, rng)
    fresh = _with_share(test.argmax(axis=1) != y_test, share, rng)
    return cal[seen], y[seen], test[fresh], y_test[fresh]


def _with_share(wrong: np.ndarray, share: float, rng: np.random.Generator) -> IntArray:
    """Return the places of the rows that are right, and of a share of the wrong ones."""
    places = np.flatnonzero(wrong)
    chosen = rng.choice(places, round(share * len(places)), replace=False)
    return np.sort(np.append(np.flatnonzero(~wrong), chosen))


def few_errors() -> Iterator[Row]:
    """Compare the default with the better of two simpler choices, task by task."""
    for task, about in tables().items():
        if about["n_cal"] >= LEAST_ROWS:
            yield compared(task, load_table(task), "probs")
    for network in NETWORKS:
        for draw in range(3):
            yield compared(f"{network}, few errors, {draw}", thinned(network, draw), "logits")
    for task in DEMOS:
        yield compared(task, *any_task(task))


def compared(task: str, data: Split, kind: str) -> Row:
    """Return the NLL of the default over the better of no calibration and temperature scaling, and its z-value."""
    cal, y, test, y_test = data
    losses = {}
    for method in ("uncal", "ts", "pool"):
        probs = predict(method, cal, y, test, kind)
        losses[method] = -np.log(np.maximum(probs[np.arange(len(y_test)), y_test], 1e-15))
    better = min(("uncal", "ts"), key=lambda method: float(losses[method].mean()))
    gap = losses["pool"] - losses[better]
    error = float(gap.std(ddof=1)) / np.sqrt(len(gap))
    return {
        "kind": "errors",
        "task": task,
        "rows": len(y),
        "method": "pool",
        "errors": int((cal.argmax(axis=1) != y).sum()),
        "ratio": float(losses["pool"].mean() / losses[better].mean()),
        "z": float(gap.mean() / max(error, 1e-300)),
    }


def summary(rows: list[dict[str, str]]) -> list[str]:
    """Return what the page says of these rows, in lines."""
    lines = []
    for method in METHODS:
        moves = [row for row in rows if row["kind"] == "dropped" and row["method"] == method]
        worst = max(moves, key=lambda row: float(row["mean"]))
        above = sum(float(row["mean"]) > 3e-3 for row in moves)
        lines.append(
            f"one row less, {method}: {float(worst['mean']):.1e} on {worst['task']}, "
            f"above 3e-3 on {above} of {len(moves)} tables"
        )
    ratios = [row for row in rows if row["kind"] == "errors"]
    worse = [row for row in ratios if float(row["ratio"]) > 1.005]
    mean = np.exp(np.mean([np.log(float(row["ratio"])) for row in ratios]))
    lines.append(f"NLL: geometric mean {mean:.3f}, above 1.005 on {len(worse)} of {len(ratios)}")
    for row in worse:
        name = f"{row['task']} ({row['rows']} rows, {row['errors']} errors)"
        lines.append(f"    {name}: {float(row['ratio']):.3f}, z = {float(row['z']):.1f}")
    return lines


def main() -> None:
    """Measure, write and print."""
    rows = [dropped(task, method) for task in tables() for method in METHODS]
    rows += few_errors()
    write_rows(FILE, [stamped(row) for row in rows])
    print("\n".join(summary(read_rows(FILE))))


if __name__ == "__main__":
    main()
