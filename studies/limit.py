"""How far the default is from the best that so many labels allow.

    python -m studies.limit        # results/limit.csv, docs/assets/limit.svg, and a summary

Gaps. On the test rows of ten networks: the mean of stated minus observed, for twelve bins of the confidence and for
every class, in units of its standard error. The error has two parts: the labels of the test rows, and those of the
calibration rows, which are drawn anew from the default's own probabilities and fitted again. A method without bias has
z-values of 1 in the root mean square.

Drawn labels. The measures of the boards with labels of the test rows that are drawn from the default's own
probabilities, so that these are calibrated to perfection, beside the real labels. What a measure shows of drawn labels
is not an error.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

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
#: How often the calibration labels are drawn and fitted again, and the test labels are drawn and measured.
REFITS: Final = 40
DRAWS: Final = 5
#: Regions of the confidence for the summary.
REGIONS: Final = {"below 0.9": (0.0, 0.9), "0.9 to 0.99": (0.9, 0.99), "above 0.99": (0.99, 1.01)}


class Parts:
    """Groups of test rows and a class for each, whose mean probability is compared with how often it happens."""

    def __init__(self, probs: Float64) -> None:
        self.top = probs.argmax(axis=1)
        self.rows = np.arange(len(probs))
        confidence = probs[self.rows, self.top]
        self.bins = np.array_split(np.argsort(confidence, kind="stable"), BINS)

    def by_confidence(self, values: Float64) -> Float64:
        """Return the mean of values (N, K) at the top class, bin by bin."""
        chosen = values[self.rows, self.top]
        return np.array([chosen[rows].mean() for rows in self.bins])

    def by_class(self, values: Float64) -> Float64:
        """Return the mean of values (N, K), class by class."""
        return np.asarray(values.mean(axis=0))

    def sizes(self) -> Float64:
        """Return the number of rows of each bin."""
        return np.array([len(rows) for rows in self.bins], dtype=float)


def fit(logits: Float64, y: np.ndarray, preserve: str | None = "auto") -> Any:
    """Return the default, fitted without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hcal.PooledCalibrator(preserve=preserve).fit(logits, y)


def gaps(task: str) -> Iterator[Row]:
    """Yield the gaps of a network with their standard errors."""
    cal, y, test, y_test = load(task)
    calibrator = fit(cal, y)
    probs = calibrator.predict_proba(test)
    parts = Parts(probs)
    again = refits(calibrator, cal, test)
    events = np.eye(probs.shape[1])[y_test]
    kinds = {
        "confidence": (parts.by_confidence, parts.sizes()),
        "class": (parts.by_class, float(len(test))),
    }
    for kind, (mean, size) in kinds.items():
        stated = mean(probs)
        observed = mean(events)
        from_test = mean(probs * (1 - probs)) / size
        from_fit = np.var([mean(other) for other in again], axis=0, ddof=1)
        for place, gap in enumerate(stated - observed):
            error = float(np.sqrt(from_test[place] + from_fit[place]))
            yield {
                "kind": kind,
                "task": task,
                "part": place,
                "stated": float(stated[place]),
                "gap": float(gap),
                "error": error,
                "z": float(gap) / error,
            }


def refits(calibrator: Any, cal: Float64, test: Float64) -> list[Float64]:
    """Return test probabilities (N, K) of fits to labels that are drawn from the calibrator's own probabilities."""
    truth = calibrator.predict_proba(cal)
    preserve = "accuracy" if calibrator.preserves == "accuracy" else None
    rng = np.random.default_rng(0)
    labels = [draw_labels(truth, rng) for _ in range(REFITS)]
    return [fit(cal, y, preserve).predict_proba(test) for y in labels]


def drawn(task: str) -> Iterator[Row]:
    """Yield the measures of a network with its real labels, and with labels drawn from the default's probabilities."""
    cal, y, test, y_test = load(task)
    before = measure(softmax(test), y_test)
    probs = fit(cal, y).predict_proba(test)
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
    return float(np.sqrt(np.mean([float(row["z"]) ** 2 for row in rows])))


def ratio(rows: Sequence[dict[str, str]], kind: str, column: str, task: str | None = None) -> float:
    """Return the mean of a measure over networks, or that of one network."""
    tasks = NETWORKS if task is None else [task]
    chosen = [row for row in rows if row["kind"] == kind]
    means = [np.mean([float(row[column]) for row in chosen if row["task"] == t]) for t in tasks]
    return float(np.mean(means))


def summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return what the page says of these rows, in lines."""
    lines = []
    for kind in ("confidence", "class"):
        chosen = [row for row in rows if row["kind"] == kind]
        lines.append(f"{kind}: rms z {root_mean_square(chosen):.2f} of {len(chosen)}")
        for task in NETWORKS:
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
        odds = [float(row["stated"]) / (1 - float(row["stated"])) for row in top]
        left.axhspan(-2, 2, color="#dddddd", label="within 2 standard errors")
        left.plot(odds, [float(row["z"]) for row in top], "o", color=SUBJECT, alpha=0.7)
        left.set(
            xscale="log",
            xlabel="stated confidence",
            ylabel="(stated − observed) / standard error",
            title=f"Ten networks, {BINS} bins each",
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
            x = [ratio(rows, "drawn", column, task) for task in NETWORKS]
            y = [ratio(rows, "real", column, task) for task in NETWORKS]
            right.plot(x, y, "os"[place], color=(SUBJECT, PALETTE[0])[place], label=name)
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
        rows = [row for task in NETWORKS for row in gaps(task)]
        rows += [row for task in NETWORKS for row in drawn(task)]
        write_rows(FILE, [stamped(row) for row in rows])
    measured = read_rows(FILE)
    draw(measured)
    print("\n".join(summary(measured)))


if __name__ == "__main__":
    main()
