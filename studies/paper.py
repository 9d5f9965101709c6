"""The paper's tables beside ours: all methods and metrics on the two of its tasks that are here.

    python -m studies.paper run --data ../shared/data       # writes results/paper.csv; goes on where it stopped
    python -m studies.paper page                            # tables and pictures of docs/reproduction.md

``run`` fits every method on the calibration part and measures it on the test part. ``page`` (``studies.paper_page``)
reads the paper's numbers from ``../shared/paper_tables*.csv``, writes the whole comparison to
``studies/reproduction-tables.md`` and how many agree into ``docs/reproduction.md``. It needs no training.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal import metrics
from hcal.numerics import Float64, IntArray, softmax
from studies.records import RESULTS, add_rows, read_rows
from studies.tasks import DATA, Task, load_task

FILE: Final = RESULTS / "paper.csv"
TASKS: Final = {"resnet110_c10": "CIFAR-10, ResNet-110", "densenet40_c10": "CIFAR-10, DenseNet-40"}
#: Our metric name -> its column in the paper's tables, in the paper's order.
METRICS: Final = {
    "ece_s1": "ECE_s_r1",
    "ece_s2": "ECE_s_r2",
    "kde_ece": "KDE_ECE",
    "mmce": "MMCE",
    "ks": "KSerror",
    "ece_em": "ECE_em",
    "ace": "ACE",
    "dece": "dECE",
    "ece_ew": "ECE_ew",
    "ece_r2": "ECE_r2",
    "cwece_s": "CWECE_s",
    "cwece_a": "CWECE_a",
    "cwece_r2": "CWECE_r2",
    "tcwece": "tCWECE",
    "tcwece_k": "tCWECE_k",
    "dkde_ce": "DKDE_CE",
    "skce": "SKCE",
    "nll": "NLL",
}
#: Our name -> the paper's; the last three are its own method in its three settings.
METHODS: Final = {
    "hb": "HB",
    "iso": "Iso",
    "bbq": "BBQ",
    "enir": "ENIR",
    "ts": "TS",
    "vs": "VS",
    "ms": "MS",
    "beta": "Beta",
    "scabin": "ScaBin",
    "dir": "Dir",
    "gp": "GP",
    "diag": "DIAG",
    "dec": "DEC",
    "imax": "IMax",
    "softbin": "SoftBin",
    "spline": "Spline",
    "ec": "EC",
    "lece": "LECE",
    "sctl": "SCTL",
    "ts_lece": "TS+LECE",
    "h": "h",
    "h:class_wise": "h",
    "h:score": "h",
}
#: What the paper does not have and a reader will ask for.
MORE: Final = ("svs", "sms", "pool")
#: The metrics that the paper prints for its own method, and in which setting; the page's table shows the first.
PRINTED: Final = {"ece_s1": "h", "tcwece": "h:class_wise", "dkde_ce": "h:class_wise"}
SHORT: Final = "ece_s1"
#: The bins of the reliability diagrams of all methods, and the training of the paper's method epoch by epoch.
BINS: Final = RESULTS / "paper_bins.csv"
CURVES: Final = RESULTS / "paper_curves.csv"
#: What our own methods change against temperature scaling, with paired intervals over the test rows.
PAIRS: Final = RESULTS / "paper_pairs.csv"
PAIRED: Final = ("h", "h:class_wise", "h:score", "pool")
REFERENCE: Final = "ts"
PAIRED_METRICS: Final = ("ece_s1", "ks", "tcwece", "nll")
N_BINS: Final = 15

Numbers = Mapping[tuple[str, str, str], float]


def run(data: Path, file: Path = FILE) -> None:
    """Fit and measure what the file lacks."""
    done = {(row["task"], row["method"]) for row in read(file)}
    for name in TASKS:
        task = load_task(name, data)
        for method in ("uncal", *METHODS, *MORE):
            if (name, method) in done:
                continue
            start = time.process_time()
            cal = _fitted(method, task)
            seconds = time.process_time() - start
            probs = (
                softmax(task.logits_test) if cal is None else cal.predict_proba(task.logits_test)
            )
            labels = {"task": name, "method": method}
            add_rows(file, [labels | row for row in _metric_rows(probs, task, seconds)])
            add_rows(BINS, [labels | row for row in _bin_rows(probs, task.y_test)])
            if cal is not None and cal.fit_.history:
                add_rows(CURVES, [labels | row for row in _curve_rows(cal.fit_.history)])
            if method in PAIRED:
                before = _fitted(REFERENCE, task).predict_proba(task.logits_test)
                add_rows(PAIRS, [labels | row for row in pair_rows(probs, before, task.y_test)])
            print(name, method, f"{seconds:.1f} s", flush=True)


def _fitted(method: str, task: Task) -> Any:
    """Return the fitted calibrator of a method; None for no calibration."""
    if method == "uncal":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hcal.make_calibrator(method).fit(task.logits_cal, task.y_cal)


def _metric_rows(probs: Float64, task: Task, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each metric of test probabilities."""
    values = {}
    for name in (*METRICS, "brier", "accuracy"):
        values[name] = float(getattr(metrics, name)(probs, task.y_test))
    values["mean_confidence"] = float(probs.max(axis=1).mean())
    before = task.logits_test.argmax(axis=1)
    values["changed_predictions"] = float((probs.argmax(axis=1) != before).sum())
    return [
        {"metric": name, "value": f"{value:.8g}", "fit_seconds": f"{seconds:.1f}"}
        for name, value in values.items()
    ]


def _bin_rows(probs: Float64, y: IntArray) -> list[dict[str, Any]]:
    """Return the bins of a reliability diagram that hold a row: count, accuracy and mean confidence."""
    confidence = probs.max(axis=1)
    hit = probs.argmax(axis=1) == y
    place = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    count = np.bincount(place, minlength=N_BINS)
    hits = np.bincount(place, hit, N_BINS)
    total = np.bincount(place, confidence, N_BINS)
    rows = []
    for index in np.flatnonzero(count):
        accuracy = hits[index] / count[index]
        mean = total[index] / count[index]
        rows.append({"bin": index, "count": count[index], "accuracy": accuracy, "confidence": mean})
    return rows


def pair_rows(probs: Float64, before: Float64, y: IntArray) -> list[dict[str, Any]]:
    """Return the change of each metric from other probabilities of the same rows, with its 95 % paired interval."""
    evaluation = hcal.evaluate(
        probs, y, metrics=PAIRED_METRICS, baseline=before, confidence=0.95, test=False
    )
    return [
        {
            "reference": REFERENCE,
            "metric": name,
            "change": difference.change,
            "low": difference.low,
            "high": difference.high,
        }
        for name, difference in evaluation.differences.items()
    ]


def _curve_rows(history: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return a row for each epoch of a training: the loss, and the error that the schedule follows."""
    pairs = zip(history["loss"], history["ece_ew"], strict=True)
    return [
        {"epoch": epoch, "loss": loss, "ece_ew": error}
        for epoch, (loss, error) in enumerate(pairs, start=1)
    ]


def read(file: Path = FILE) -> list[dict[str, str]]:
    """Return the rows of a file; none where there is no file."""
    return read_rows(file)


def network(task: str) -> str:
    """Return the name of a task's network.

    >>> network("resnet110_c10")
    'ResNet-110'
    """
    return TASKS[task].partition(", ")[2]


def ours(rows: list[dict[str, str]]) -> Numbers:
    """Return our values by task, method and metric."""
    values = {}
    for row in rows:
        values[row["task"], row["method"], row["metric"]] = float(row["value"])
    return values


def theirs(shared: Path) -> Numbers:
    """Return the paper's values by task, method (our name; its own is ``h``) and metric; ``uncal`` is "pre"."""
    metric_of = {title: name for name, title in METRICS.items()}
    method_of = {title: name for name, title in METHODS.items() if title != "h"}
    numbers: dict[tuple[str, str, str], float] = {}
    for file in ("paper_tables.csv", "paper_tables_densenet40.csv"):
        for row in read(shared / file):
            if row["task"] not in TASKS or row["metric"] not in metric_of:
                continue
            task = row["task"]
            metric = metric_of[row["metric"]]
            numbers[task, method_of.get(row["method"], "h"), metric] = float(row["post"])
            if row["pre"]:
                numbers.setdefault((task, "uncal", metric), float(row["pre"]))
    return numbers


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.data)
        return
    from studies import paper_page

    for path in paper_page.write(arguments.data.parent):
        print(path)


if __name__ == "__main__":
    main()
