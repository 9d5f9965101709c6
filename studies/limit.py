"""How far the default is from the best that so many labels allow.

    python -m studies.limit        # results/limit.csv, docs/assets/limit.svg, and a summary

Gaps. On the test rows of nine networks: the mean of stated minus observed, for twelve bins of the confidence and for
every class, in units of its standard error. The error has two parts: the labels of the test rows of the bin or class,
and those of its calibration rows. So a fit of each bin or class alone, without bias, has z-values of 1 in the root mean
square. The tenth network's test rows have other class frequencies than its calibration rows, and are left out.

Drawn labels. The measures of the boards with labels of the test rows that are drawn from the default's own
probabilities, so that these are calibrated to perfection, beside the real labels. What a measure shows of drawn labels
is not an error.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

import hcal
from hcal.numerics import Float64, softmax
from studies.drawing import PALETTE, SUBJECT, save_figure, styled
from studies.pool import GROUPS, NETWORKS, ROOT, Row, joint, load, measure
from studies.records import RESULTS, read_rows, stamped, write_rows
from studies.worlds import draw_labels

FILE: Final = RESULTS / "limit.csv"
PICTURE: Final = ROOT / "docs" / "assets" / "limit.svg"
#: Bins of the confidence, with equally many test rows.
BINS: Final = 12
#: How often test labels are drawn and measured.
DRAWS: Final = 5
#: The networks whose test rows are like their calibration rows.
TASKS: Final = [task for task in NETWORKS if task != "cifar10lt_resnet110"]
#: Regions of the confidence for the summary.
REGIONS: Final = {"below 0.9": (0.0, 0.9), "0.9 to 0.99": (0.9, 0.99), "above 0.99": (0.99, 1.01)}


def fitted_probs(task: str) -> list[Float64]:
    """Return the default's probabilities of the calibration and of the test rows of a network."""
    cal, y, test, _ = load(task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = hcal.PooledCalibrator().fit(cal, y)
    return [calibrator.predict_proba(cal), calibrator.predict_proba(test)]


def bin_edges(probs: Float64) -> Float64:
    """Return the confidences between bins with equally many rows, (BINS − 1,)."""
    inner = np.linspace(0, 1, BINS + 1)[1:-1]
    return np.quantile(probs.max(axis=1), inner)


def by_confidence(probs: Float64, values: Float64, edges: Float64) -> tuple[Float64, Float64]:
    """Return the mean of values (N, K) at the likeliest class of the rows of each bin, and how many these are.

    An empty bin has the mean NaN.
    """
    rows = np.arange(len(probs))
    top = probs.argmax(axis=1)
    place = np.searchsorted(edges, probs[rows, top], side="right")
    sizes = np.bincount(place, minlength=BINS)
    sums = np.bincount(place, weights=values[rows, top], minlength=BINS)
    with np.errstate(invalid="ignore"):
        return sums / sizes, sizes.astype(float)


def by_class(probs: Float64, values: Float64, edges: Float64) -> tuple[Float64, Float64]:
    """Return the mean of values (N, K) of each class, and the number of rows."""
    n_rows, n_classes = values.shape
    return values.mean(axis=0), np.full(n_classes, float(n_rows))


def gaps(task: str) -> Iterator[Row]:
    """Yield the gaps of a network with their standard errors."""
    y_test = load(task)[3]
    cal, test = fitted_probs(task)
    events = np.eye(test.shape[1])[y_test]
    edges = bin_edges(test)
    for kind, mean in {"confidence": by_confidence, "class": by_class}.items():
        stated = mean(test, test, edges)[0]
        observed = mean(test, events, edges)[0]
        variance = noise(mean(test, test * (1 - test), edges))
        variance += noise(mean(cal, cal * (1 - cal), edges))
        for place, gap in enumerate(stated - observed):
            error = float(np.sqrt(variance[place]))
            yield {
                "kind": kind,
                "task": task,
                "part": place,
                "stated": float(stated[place]),
                "gap": float(gap),
                "error": error,
                "z": float(gap) / error,
            }


def noise(mean_and_size: tuple[Float64, Float64]) -> Float64:
    """Return the variance of a mean of so many labels, from their mean variance."""
    mean, size = mean_and_size
    return mean / size


def drawn(task: str) -> Iterator[Row]:
    """Yield the measures of a network with its real labels, and with labels drawn from the default's probabilities."""
    _, _, test, y_test = load(task)
    before = measure(softmax(test), y_test)
    probs = fitted_probs(task)[1]
    yield {"kind": "real", "task": task, **joint(measure(probs, y_test), before)}
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        labels = draw_labels(probs, rng)
        yield {"kind": "drawn", "task": task, **joint(measure(probs, labels), before)}


# -- what the rows say --------------------------------------------------------------------------------


def root_mean_square(rows: Sequence[dict[str, str]]) -> float:
    """Return the root of the mean squared z-value.

    >>> round(root_mean_square([{"z": "1"}, {"z": "-3"}]), 3)
    2.236
    """
    squares = [float(row["z"]) ** 2 for row in rows]
    return float(np.sqrt(np.mean(squares)))


def ratio(rows: Sequence[dict[str, str]], kind: str, column: str, task: str | None = None) -> float:
    """Return the mean of a measure over networks, or that of one network."""
    tasks = TASKS if task is None else [task]
    chosen = [row for row in rows if row["kind"] == kind]
    by_task = []
    for name in tasks:
        by_task.append([float(row[column]) for row in chosen if row["task"] == name])
    return float(np.mean([np.mean(values) for values in by_task]))


def summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return what the page says of these rows, in lines."""
    lines = []
    for kind in ("confidence", "class"):
        chosen = [row for row in rows if row["kind"] == kind]
        lines.append(f"{kind}: rms z {root_mean_square(chosen):.2f} of {len(chosen)}")
        for task in TASKS:
            of_task = [row for row in chosen if row["task"] == task]
            lines.append(f"    {task}: {root_mean_square(of_task):.2f}")
    top = [row for row in rows if row["kind"] == "confidence"]
    for name, (low, high) in REGIONS.items():
        inside = [row for row in top if low <= float(row["stated"]) < high]
        lines.append(f"confidence {name}: rms z {root_mean_square(inside):.2f} of {len(inside)}")
    for column in ("joint", *GROUPS):
        real = ratio(rows, "real", column)
        lines.append(f"{column}: real {real:.3f}, drawn {ratio(rows, 'drawn', column):.3f}")
    return lines


def draw(rows: Sequence[dict[str, str]]) -> Path:
    """Draw the z-values against the confidence, and the measures of real against drawn labels."""
    with styled() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.3))
        top = [row for row in rows if row["kind"] == "confidence"]
        stated = [float(row["stated"]) for row in top]
        odds = [p / (1 - p) for p in stated]
        left.axhspan(-2, 2, color="#dddddd", label="within 2 standard errors")
        z_scores = [float(row["z"]) for row in top]
        left.plot(odds, z_scores, "o", color=SUBJECT, alpha=0.7)
        left.set(
            xscale="log",
            xlabel="stated confidence",
            ylabel="(stated − observed) / standard error",
            title=f"Nine networks, {BINS} bins each",
            ylim=(-4, 4),
        )
        marks = (0.5, 0.9, 0.99, 0.999)
        left.set_xticks([mark / (1 - mark) for mark in marks], [str(mark) for mark in marks])
        left.minorticks_off()
        left.legend(loc="upper left")

        right.plot([0, 1.2], [0, 1.2], color="#999999", linewidth=1)
        for place, (column, name) in enumerate(
            {"joint": "joint error", "canonical": "dkde_ce alone"}.items()
        ):
            x = [ratio(rows, "drawn", column, task) for task in TASKS]
            y = [ratio(rows, "real", column, task) for task in TASKS]
            marker = "os"[place]
            color = (SUBJECT, PALETTE[0])[place]
            right.plot(x, y, marker, color=color, label=name)
        right.set(
            xlabel="labels drawn from the default's probabilities",
            ylabel="real labels",
            title="Error as a share of the uncalibrated one",
            xlim=(0, 1.2),
            ylim=(0, 1.2),
        )
        right.legend(loc="upper left")
        figure.tight_layout()
        return save_figure(figure, PICTURE)


def main() -> None:
    """Measure, write, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", action="store_true", help="only draw what was measured")
    if not parser.parse_args().draw:
        rows = [row for task in TASKS for row in gaps(task)]
        rows += [row for task in TASKS for row in drawn(task)]
        write_rows(FILE, [stamped(row) for row in rows])
    measured = read_rows(FILE)
    draw(measured)
    print("\n".join(summary(measured)))


if __name__ == "__main__":
    main()
