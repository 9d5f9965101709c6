"""hcal beside the packages that its users know, on the same arrays in one run: time against error.

    python -m venv peers
    peers/bin/pip install torch==2.13.0 probmetrics netcal betacal torchmetrics pandas '.[fast,plot]'
    peers/bin/python benchmarks/peers.py         # results/peers.csv, studies/peers.md, and the picture of
                                                 # docs/performance.md

Each method fits and predicts in a process of its own with one thread. A time is the least CPU time of three calls
after one that is not counted, as a multiple of what hcal's default takes for the same arrays. The error is the test
part's NLL as a share of the uncalibrated one; a number over several tasks is a geometric mean.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = Path(os.environ.get("HCAL_DATA", ROOT.parent / "shared" / "data"))
PAGE: Final = ROOT / "studies" / "peers.md"
PICTURE: Final = ROOT / "docs" / "assets" / "peers.svg"
RESULTS: Final = ROOT / "results" / "peers.csv"
#: Kind of task -> its tasks. A random forest states exact zeros and ones, naive Bayes is far off, boosting is close.
TASKS: Final[dict[str, tuple[str, ...]]] = {
    "2 classes": ("tabular/bank_hgb", "tabular/bank_gnb", "tabular/abalone_old_rf"),
    "10 classes": ("cifar10_resnet50", "cifar10_resnet50_weak", "cifar10_wideresnet"),
    "100 classes": ("cifar100_resnet50", "cifar100_resnet110"),
}
TWO: Final = ("2 classes",)
MANY: Final = ("10 classes", "100 classes")
ALL: Final = (*TWO, *MANY)
#: The reference of all times of calibrators, and of all times of evaluations.
DEFAULT: Final = "hcal pool"
REFERENCE: Final = {"fit": DEFAULT, "predict": DEFAULT, "evaluate": "hcal ECE"}
_REPEATS: Final = 3
#: The least probability that counts in the NLL, as in the tables of the shared tasks.
_LEAST: Final = 1e-15
_SECONDS: Final = 300
_MARKS: Final = ("<!-- peers -->", "<!-- end of peers -->")

Scores = np.ndarray
Fit = Callable[["Task"], Callable[[], Scores]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Probabilities of a classifier and labels, of rows to learn from and of rows to test on."""

    probs: Scores
    y: Scores
    test_probs: Scores
    test_y: Scores

    @property
    def n_classes(self) -> int:
        return int(self.probs.shape[1])

    @property
    def log_probs(self) -> Scores:
        return np.log(np.maximum(self.probs, _LEAST))

    @property
    def test_log_probs(self) -> Scores:
        return np.log(np.maximum(self.test_probs, _LEAST))


def load(name: str) -> Task:
    """Return a shared task; logits become probabilities."""
    with np.load(DATA / f"{name}.npz") as file:
        probs = []
        for part in ("cal", "test"):
            if f"probs_{part}" in file:
                probs.append(file[f"probs_{part}"].astype(np.float64))
            else:
                logits = file[f"logits_{part}"].astype(np.float64)
                below = np.exp(logits - logits.max(axis=1, keepdims=True))
                probs.append(below / below.sum(axis=1, keepdims=True))
        labels = [file[f"y_{part}"].astype(np.int64) for part in ("cal", "test")]
    return Task(probs[0], labels[0], probs[1], labels[1])


def both_classes(p: Scores) -> Scores:
    """Return the probabilities (N, 2) of two classes from that of class 1."""
    return np.column_stack([1 - p, p])


# -- calibrators: each returns what fits, and that returns what predicts ---------------------------------


def of_hcal(method: str, task: Task) -> Callable[[], Scores]:
    import hcal

    cal = hcal.make_calibrator(method, input="probs").fit(task.probs, task.y)
    return lambda: cal.predict_proba(task.test_probs)


def of_sklearn(method: str, task: Task) -> Callable[[], Scores]:
    """Fit what scikit-learn's CalibratedClassifierCV fits to the scores of a model."""
    from sklearn.calibration import _SigmoidCalibration, _TemperatureScaling
    from sklearn.isotonic import IsotonicRegression

    if method == "temperature":
        scaling = _TemperatureScaling().fit(task.log_probs, task.y)
        return lambda: scaling.predict(task.test_log_probs)
    if method == "sigmoid":
        sigmoid = _SigmoidCalibration().fit(task.probs[:, 1], task.y)
        return lambda: both_classes(sigmoid.predict(task.test_probs[:, 1]))
    isotonic = IsotonicRegression(out_of_bounds="clip").fit(task.probs[:, 1], task.y)
    return lambda: both_classes(isotonic.predict(task.test_probs[:, 1]))


def of_probmetrics(method: str, task: Task) -> Callable[[], Scores]:
    from probmetrics.calibrators import get_calibrator

    cal = get_calibrator(method).fit(task.probs, task.y)
    return lambda: cal.predict_proba(task.test_probs)


def of_netcal(method: str, task: Task) -> Callable[[], Scores]:
    from netcal import scaling

    cal = getattr(scaling, method)()
    two = task.n_classes == 2
    seen = task.probs[:, 1] if two else task.probs
    new = task.test_probs[:, 1] if two else task.test_probs
    cal.fit(seen, task.y, tensorboard=False)
    return lambda: both_classes(cal.transform(new)) if two else cal.transform(new)


def of_betacal(method: str, task: Task) -> Callable[[], Scores]:
    from betacal import BetaCalibration

    cal = BetaCalibration(parameters=method)
    cal.fit(task.probs[:, 1:], task.y)
    return lambda: both_classes(cal.predict(task.test_probs[:, 1:]))


#: Name on the page -> what fits it, and the kinds of tasks that it takes.
CALIBRATORS: Final[dict[str, tuple[Fit, tuple[str, ...]]]] = {
    DEFAULT: (partial(of_hcal, "pool"), ALL),
    "hcal ts": (partial(of_hcal, "ts"), ALL),
    "hcal beta": (partial(of_hcal, "beta"), TWO),
    "hcal sms": (partial(of_hcal, "sms"), MANY),
    "scikit-learn temperature": (partial(of_sklearn, "temperature"), ALL),
    "scikit-learn sigmoid": (partial(of_sklearn, "sigmoid"), TWO),
    "scikit-learn isotonic": (partial(of_sklearn, "isotonic"), TWO),
    "probmetrics quadratic": (partial(of_probmetrics, "quadratic-scaling"), TWO),
    "probmetrics svs": (partial(of_probmetrics, "svs"), MANY),
    "probmetrics sms": (partial(of_probmetrics, "sms"), MANY),
    "netcal temperature": (partial(of_netcal, "TemperatureScaling"), ALL),
    "netcal beta": (partial(of_netcal, "BetaCalibration"), TWO),
    "betacal abm": (partial(of_betacal, "abm"), TWO),
}


# -- evaluations: each returns a call that measures the same probabilities ------------------------------


def hcal_ece(task: Task) -> Callable[[], object]:
    import hcal

    return lambda: hcal.metrics.ece_ew(task.test_probs, task.test_y)


def hcal_all(task: Task) -> Callable[[], object]:
    import hcal

    return lambda: hcal.evaluate(task.test_probs, task.test_y)


def sklearn_scores(task: Task) -> Callable[[], object]:
    from sklearn.metrics import brier_score_loss, log_loss

    labels = np.arange(task.n_classes)

    def measure() -> tuple[float, float]:
        loss = log_loss(task.test_y, task.test_probs, labels=labels)
        return loss, brier_score_loss(task.test_y, task.test_probs, labels=labels)

    return measure


def probmetrics_ece(task: Task) -> Callable[[], object]:
    import torch
    from probmetrics.metrics import Metrics

    metrics = Metrics.from_names(["ece-15"])
    labels = torch.from_numpy(task.test_y)
    probs = torch.from_numpy(task.test_probs)
    return lambda: metrics.compute_all_from_labels_probs(labels, probs)


def netcal_ece(task: Task) -> Callable[[], object]:
    from netcal.metrics import ECE

    probs = task.test_probs[:, 1] if task.n_classes == 2 else task.test_probs
    return lambda: ECE(15).measure(probs, task.test_y)


def torchmetrics_ece(task: Task) -> Callable[[], object]:
    import torch
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        multiclass_calibration_error,
    )

    labels = torch.from_numpy(task.test_y)
    probs = torch.from_numpy(task.test_probs)
    if task.n_classes == 2:
        return lambda: binary_calibration_error(probs[:, 1], labels, n_bins=15)
    k = task.n_classes
    return lambda: multiclass_calibration_error(probs, labels, num_classes=k, n_bins=15)


EVALUATIONS: Final[dict[str, Callable[[Task], Callable[[], object]]]] = {
    "hcal ECE": hcal_ece,
    "hcal all metrics": hcal_all,
    "scikit-learn log-loss and Brier": sklearn_scores,
    "probmetrics ECE": probmetrics_ece,
    "netcal ECE": netcal_ece,
    "torchmetrics ECE": torchmetrics_ece,
}


# -- measurement ----------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of some calls, after one that is not counted."""
    work()
    seconds = []
    for _ in range(_REPEATS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def nll(probs: Scores, y: Scores) -> float:
    """Return the mean of −log of the label's probability."""
    stated = np.asarray(probs, dtype=np.float64)[np.arange(len(y)), y]
    return float(-np.log(np.maximum(stated, _LEAST)).mean())


def measure(name: str, task_name: str) -> Iterator[Row]:
    """Measure a calibrator, or an evaluation, on a task, in this process."""
    warnings.simplefilter("ignore")
    task = load(task_name)
    about = {"name": name, "package_version": version(name.split()[0]), "task": task_name}
    if name in EVALUATIONS:
        seconds = cpu_seconds(EVALUATIONS[name](task))
        yield about | {"what": "evaluate", "cpu_s": seconds}
        return
    fit, _ = CALIBRATORS[name]
    yield about | {"what": "fit", "cpu_s": cpu_seconds(lambda: fit(task))}
    predict = fit(task)
    error = nll(predict(), task.test_y) / nll(task.test_probs, task.test_y)
    yield about | {"what": "predict", "cpu_s": cpu_seconds(predict), "nll_left": error}


def in_new_process(name: str, task: str) -> list[Row]:
    """Measure in a new process with one thread; what fails, or takes too long, is said and left out."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    command = [sys.executable, __file__, "--one", name, task]
    try:
        answer = subprocess.run(
            command,
            env=os.environ | dict.fromkeys(threads, "1"),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        print(f"{name}, {task}: not within {_SECONDS} s", flush=True)
        return []
    except subprocess.CalledProcessError as error:
        print(f"{name}, {task}: {error.stderr.strip().splitlines()[-1]}", flush=True)
        return []
    print(f"{name}, {task}", flush=True)
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def run() -> list[Row]:
    """Measure everything."""
    rows = []
    for kind, tasks in TASKS.items():
        calibrators = [name for name, (_, kinds) in CALIBRATORS.items() if kind in kinds]
        for name in [*calibrators, *EVALUATIONS]:
            for task in tasks:
                rows += [{"kind": kind, **row} for row in in_new_process(name, task)]
    return rows


# -- the page -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What a method takes and leaves on the tasks of one kind."""

    ratio: float  # CPU time as a multiple of the reference's
    seconds: float
    nll_left: float | None = None


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(float(np.mean([math.log(value) for value in values])))


def summary(rows: Sequence[Row], kind: str, what: str, name: str) -> Summary | None:
    """Return the geometric means of a method over the tasks of a kind; None if one of them is missing."""
    measured = {
        (row["name"], row["task"]): row
        for row in rows
        if row["kind"] == kind and row["what"] == what
    }
    tasks = TASKS[kind]
    if any((name, task) not in measured for task in tasks):
        return None
    chosen = [measured[name, task] for task in tasks]
    references = [measured[REFERENCE[what], task] for task in tasks]
    seconds = [float(row["cpu_s"]) for row in chosen]
    reference_seconds = [float(row["cpu_s"]) for row in references]
    ratios = [s / r for s, r in zip(seconds, reference_seconds, strict=True)]
    left = None
    if what == "predict":
        left = geometric_mean(float(row["nll_left"]) for row in chosen)
    return Summary(geometric_mean(ratios), geometric_mean(seconds), left)


def table(rows: Sequence[Row]) -> str:
    """Return the tables of the page: calibrators with their errors, and evaluations."""
    lines = ["| method | " + " | ".join(f"{kind}: fit, predict, NLL left" for kind in TASKS) + " |"]
    lines.append("|---|" + "---|" * len(TASKS))
    for name in CALIBRATORS:
        cells = [calibrator_cell(rows, kind, name) for kind in TASKS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| evaluation | " + " | ".join(TASKS) + " |", "|---|" + "---|" * len(TASKS)]
    for name in EVALUATIONS:
        summaries = [summary(rows, kind, "evaluate", name) for kind in TASKS]
        cells = ["" if value is None else _ratio(value.ratio) for value in summaries]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def calibrator_cell(rows: Sequence[Row], kind: str, name: str) -> str:
    fit = summary(rows, kind, "fit", name)
    predict = summary(rows, kind, "predict", name)
    if fit is None or predict is None:
        return ""
    return f"{_ratio(fit.ratio)}, {_ratio(predict.ratio)}, {predict.nll_left:.3f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def write_page(rows: Sequence[Row]) -> None:
    """Put the tables between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    first, last = _MARKS
    pattern = re.compile(f"{re.escape(first)}.*?{re.escape(last)}", re.DOTALL)
    assert pattern.search(text), f"{PAGE.name} has no {first}"
    content = f"{first}\n{table(rows)}\n{last}"
    PAGE.write_text(pattern.sub(lambda _: content, text), encoding="utf-8")


COLOURS: Final = {
    "hcal": "#0b6e99",
    "scikit-learn": "#d9822b",
    "probmetrics": "#7a4fa3",
    "netcal": "#6b8e23",
    "betacal": "#555555",
}
#: The shape of a method's point, by the last word of its name.
MARKS: Final = {
    "pool": "*",
    "ts": "o",
    "temperature": "o",
    "beta": "^",
    "abm": "^",
    "sms": "s",
    "svs": "D",
    "sigmoid": "v",
    "isotonic": "P",
    "quadratic": "X",
}


def draw(rows: Sequence[Row]) -> None:
    """Draw error against the time of a fit, a panel for each kind of task, with one legend."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    mpl.rcParams.update({"svg.hashsalt": "hcal", "svg.fonttype": "none", "font.size": 8})
    figure, panels = plt.subplots(1, len(TASKS), figsize=(10, 3.2), layout="constrained")
    handles: dict[str, Any] = {}
    for panel, kind in zip(panels, TASKS, strict=True):
        for name in CALIBRATORS:
            fit = summary(rows, kind, "fit", name)
            predict = summary(rows, kind, "predict", name)
            if fit is None or predict is None:
                continue
            package, method = name.split()
            [handles[name]] = panel.plot(
                fit.seconds,
                predict.nll_left,
                MARKS[method],
                color=COLOURS[package],
                markersize=13 if name == DEFAULT else 6,
                alpha=0.85,
                linestyle="none",
            )
        panel.set(xscale="log", title=kind, xlabel="CPU seconds of a fit")
        panel.margins(x=0.15, y=0.12)
        low, high = panel.get_xlim()
        panel.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        panel.xaxis.set_major_locator(LogLocator(10))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("NLL after / before (lower is better)")
    figure.legend(handles.values(), handles, loc="outside right upper", frameon=False, fontsize=7)
    figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument(
        "--draw", action="store_true", help="table and picture from results/peers.csv"
    )
    options = parser.parse_args()
    if options.one:
        for row in measure(*options.one):
            print(json.dumps(row))
        return
    sys.path.insert(0, str(ROOT))
    from studies.records import read_rows, stamped, write_rows

    if not options.draw:
        write_rows(RESULTS, [stamped(row) for row in run()])
    rows: list[Row] = list(read_rows(RESULTS))
    write_page(rows)
    draw(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
