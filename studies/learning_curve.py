"""How many labelled rows the default needs to be as good as other methods with all of them.

    python -m studies.learning_curve        # results/learning_curve.csv, docs/assets/learning-curve.svg, and a table

Every method is fitted on 100 to 5,000 of the calibration rows: three draws of so many rows, the same for all methods,
or all rows where there are no more. Shown is the geometric mean over tasks of the test NLL divided by that of the
uncalibrated scores: ten networks, and the tables with at least 2,000 calibration rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from studies.drawing import PALETTE, SUBJECT, save_figure, styled
from studies.pool import NETWORKS, ROOT, Row, any_task, predict, score, tables
from studies.records import RESULTS, read_rows, stamped, write_rows

FILE: Final = RESULTS / "learning_curve.csv"
PICTURE: Final = ROOT / "docs" / "assets" / "learning-curve.svg"
METHODS: Final = ("pool", "ts", "svs", "sms")
SIZES: Final = {
    "networks": (100, 250, 500, 1000, 2000, 5000),
    "tables": (100, 250, 500, 1000, 2000),
}
DRAWS: Final = 3


def tasks(group: str) -> list[str]:
    """Return the networks, or the tables with as many rows as the largest size."""
    if group == "networks":
        return NETWORKS
    largest = max(SIZES[group])
    return [task for task, about in tables().items() if about["n_cal"] >= largest]


def curve(group: str, task: str) -> Iterator[Row]:
    """Yield the NLL of every method, size and draw, divided by the uncalibrated NLL."""
    (cal, y, test, y_test), kind = any_task(task)
    uncalibrated = predict("uncal", cal[:10], y[:10], test, kind)
    before = score(uncalibrated, y_test)["nll"]
    for size in SIZES[group]:
        for draw in range(DRAWS if size < len(y) else 1):
            chosen = np.random.default_rng([draw, size]).permutation(len(y))[:size]
            for method in METHODS:
                probs = predict(method, cal[chosen], y[chosen], test, kind)
                nll = score(probs, y_test)["nll"]
                yield {
                    "group": group,
                    "task": task,
                    "rows": size,
                    "draw": draw,
                    "method": method,
                    "ratio": nll / before,
                }


def mean_ratio(rows: Sequence[dict[str, str]], group: str, method: str, size: int) -> float:
    """Return the geometric mean over tasks of the mean over draws."""
    by_task: dict[str, list[float]] = {}
    for row in rows:
        if (row["group"], row["method"], int(row["rows"])) == (group, method, size):
            by_task.setdefault(row["task"], []).append(float(row["ratio"]))
    log_ratios = [np.log(np.mean(ratios)) for ratios in by_task.values()]
    return float(np.exp(np.mean(log_ratios)))


def table(rows: Sequence[dict[str, str]], group: str) -> list[str]:
    """Return the means of a group, as Markdown."""
    sizes = SIZES[group]
    lines = ["| rows | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
    lines.append("|---|" + "---:|" * len(sizes))
    for method in METHODS:
        cells = [f"{mean_ratio(rows, group, method, size):.3f}" for size in sizes]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return lines


def rows_saved(rows: Sequence[dict[str, str]], group: str) -> int | None:
    """Return the fewest rows with which the default is better than every other method with the most rows."""
    sizes = SIZES[group]
    others = [mean_ratio(rows, group, method, sizes[-1]) for method in METHODS[1:]]
    best = min(others)
    enough = [size for size in sizes if mean_ratio(rows, group, "pool", size) < best]
    return enough[0] if enough else None


def draw(rows: Sequence[dict[str, str]]) -> Path:
    """Draw the curves of both groups."""
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.1))
        for axis, group in zip(axes, SIZES, strict=True):
            _draw_group(axis, rows, group)
        axes[0].set_ylabel("NLL / uncalibrated NLL")
        axes[1].legend(loc="upper right")
        figure.tight_layout()
        return save_figure(figure, PICTURE)


def _draw_group(axis: Any, rows: Sequence[dict[str, str]], group: str) -> None:
    sizes = SIZES[group]
    for place, method in enumerate(METHODS):
        means = [mean_ratio(rows, group, method, size) for size in sizes]
        first = method == "pool"
        color = SUBJECT if first else (PALETTE[0], PALETTE[2], PALETTE[3])[place - 1]
        label = "pool (default)" if first else method
        axis.plot(sizes, means, "os^v"[place] + "-", color=color, label=label)
    others = [mean_ratio(rows, group, method, sizes[-1]) for method in METHODS[1:]]
    best = min(others)
    axis.axhline(best, color="#777777", linewidth=1, linestyle=":")
    number = len({row["task"] for row in rows if row["group"] == group})
    axis.set(xscale="log", xlabel="calibration rows", title=f"{number} {group}")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()


def main() -> None:
    """Measure, write, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", action="store_true", help="only draw what was measured")
    if not parser.parse_args().draw:
        rows = [row for group in SIZES for task in tasks(group) for row in curve(group, task)]
        write_rows(FILE, [stamped(row) for row in rows])
    measured = read_rows(FILE)
    draw(measured)
    for group in SIZES:
        print(group, *table(measured, group), sep="\n")
        fewest = rows_saved(measured, group)
        print(f"the default is better than all others with the most rows from {fewest} rows on")


if __name__ == "__main__":
    main()
