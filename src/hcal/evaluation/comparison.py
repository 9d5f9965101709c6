"""Methods × metrics on one task: fit on the calibration part, measure on the test part (or out of fold).

The module is not named ``compare`` so that ``hcal.compare`` is the function whatever is imported first.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from hcal import inputs
from hcal.calibrators import Calibrator, list_calibrators, make_calibrator
from hcal.io.class_names import check_classes, encode
from hcal.io.folds import Fold, kfold
from hcal.evaluation import coincidence
from hcal.evaluation.comparison_table import Comparison, MethodResult
from hcal.metrics import Sample, get_metric, list_metrics
from hcal.numerics import FloatArray, IntArray

#: Shown unless the user names others: one top-label error with and one without chance removed, one
#: class-wise error, and the two proper scores that a class-wise error must never be read without.
DEFAULT_METRICS = ("ece_ew", "dece", "cwece_a", "nll", "brier", "accuracy")
# Processes cost seconds to start; below this many events one process is faster.
_PARALLEL_EVENTS = 200_000

Methods = str | Iterable[str | Calibrator] | Mapping[str, "str | Calibrator | tuple[str, Mapping[str, Any]]"]


def compare(
    cal_logits: Any,
    cal_y: Any,
    test_logits: Any = None,
    test_y: Any = None,
    *,
    methods: Methods | None = None,
    metrics: str | Sequence[str] | None = None,
    input: inputs.InputKind = "logits",
    folds: int | None = None,
    stratify: bool = False,
    groups: Any = None,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: bool | None = None,
    classes: Any = None,
) -> Comparison:
    """Fit methods on calibration rows and measure them on test rows.

    Parameters
    ----------
    cal_logits : array-like of shape (N, K)
    cal_y : array-like of shape (N,)
    test_logits : array-like of shape (M, K), optional
        Without a test part give ``folds``: every row is then predicted by a fit that did not see it.
    test_y : array-like of shape (M,), optional
    methods : names, calibrators, or mapping of labels to either, optional
        ``{"hb 30": ("hb", {"bins": 30})}`` names a variant. All registered methods unless given;
        ``"uncal"`` is put first so that every table shows the state before.
    metrics : names, or "all", optional
    input : {"logits", "probs", "log_probs"}
    folds : int, optional
    stratify : bool
        Keep the shares of the labels in every fold.
    groups : array-like of shape (N,), optional
        Rows of one group never stand on both sides of a fold.
    random_state : int
        Seed of the folds.
    n_jobs : int, optional
        Processes, each with its share of the cores; −1 for all cores. Unless given: all when there is
        enough to do, else this process alone. Times are wall-clock: for comparable ones use 1.
    progress : bool, optional
        Show a bar on standard error; unless given, only in a terminal.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns, where the labels are names.

    Returns
    -------
    Comparison
        A table that prints well; ``to_frame()``, ``to_dict()``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(600, 3)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> table = compare(3 * z[:300], y[:300], 3 * z[300:], y[300:], methods=["ts", "hb"])
    >>> list(table.to_dict())
    ['uncal', 'ts', 'hb']
    >>> table["ts"]["nll"] < table["uncal"]["nll"]
    True
    """
    chosen = _named(methods, input)
    names = _metric_names(metrics)
    if classes is not None:
        known = check_classes(classes, len(classes))
        cal_y, test_y = (None if y is None else encode(y, known) for y in (cal_y, test_y))
    task = _task(cal_logits, cal_y, test_logits, test_y, input, folds, stratify, groups, random_state)
    jobs = _n_jobs(n_jobs, len(chosen), task.fit.size)
    results: dict[str, MethodResult] = {}
    with _bar(progress, len(chosen)) as advance:
        for result in _run_all(chosen, task, names, jobs):
            results[result.label] = result
            advance(result.label)
    ordered = [results.get(label, _died(label, cal.name)) for label, cal in chosen.items()]
    return Comparison([r.judged(ordered[0], task.fit.shape[1]) for r in ordered], names)


@dataclass(frozen=True)
class _Task:
    """Checked arrays and the pairs of (rows to fit on, rows to predict); None for all and all."""

    fit: FloatArray
    fit_y: IntArray
    test: FloatArray
    test_y: IntArray
    folds: list[Fold] | None = None


def _task(
    cal_logits: Any,
    cal_y: Any,
    test_logits: Any,
    test_y: Any,
    input: inputs.InputKind,
    folds: int | None,
    stratify: bool,
    groups: Any,
    random_state: int,
) -> _Task:
    fit, _ = inputs.check_logits(cal_logits, input=input)
    fit_y = inputs.check_labels(cal_y, *fit.shape)
    if (test_logits is None) != (test_y is None):
        raise ValueError("test_logits and test_y belong together: give both, or neither and folds")
    if test_logits is None:
        if folds is None:
            raise ValueError("give a test part (test_logits, test_y), or folds to predict out of fold")
        labels = fit_y if stratify else None
        parts = kfold(len(fit), folds, random_state=random_state, stratify=labels, groups=groups)
        return _Task(fit, fit_y, fit, fit_y, parts)
    if folds is not None or groups is not None:
        raise ValueError("folds and groups divide the calibration part; with a test part leave them out")
    test, _ = inputs.check_logits(test_logits, input=input, n_classes=fit.shape[1])
    labels = inputs.check_labels(test_y, *test.shape)
    if text := coincidence(fit, test):
        warnings.warn(text, UserWarning, stacklevel=3)
    return _Task(fit, fit_y, test, labels)


def _named(methods: Methods | None, input: inputs.InputKind) -> dict[str, Calibrator]:
    """Return labels and unfitted calibrators, ``uncal`` first."""
    if methods is None:
        methods = list_calibrators()
    if isinstance(methods, str):
        methods = [methods]
    items: Iterable[tuple[str | None, Any]]
    items = methods.items() if isinstance(methods, Mapping) else ((None, m) for m in methods)
    found: dict[str, Calibrator] = {"uncal": make_calibrator("uncal", input=input)}
    for label, method in items:
        cal = _build(method, input)
        key = label or cal.name
        if key in found and key != "uncal":
            raise ValueError(f"two methods are called {key!r}; pass a mapping of labels to methods")
        found[key] = cal
    return found


def _build(method: Any, input: inputs.InputKind) -> Calibrator:
    if isinstance(method, str):
        return make_calibrator(method, input=input)
    if isinstance(method, Calibrator):
        if method.input != input:
            raise ValueError(f"{method.name!r} expects input={method.input!r}, compare was given {input!r}")
        return method
    if isinstance(method, tuple) and len(method) == 2:
        return make_calibrator(method[0], **{"input": input, **method[1]})
    raise ValueError(f"a method is a name, a calibrator or (name, parameters), got {method!r}")


def _metric_names(metrics: str | Sequence[str] | None) -> list[str]:
    if metrics == "all":
        return list_metrics()
    if metrics is None:
        return list(DEFAULT_METRICS)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    return [get_metric(name).name for name in names]


def _n_jobs(n_jobs: int | None, n_methods: int, n_events: int) -> int:
    from joblib import cpu_count, effective_n_jobs

    if n_jobs is None:
        n_jobs = cpu_count() if n_events >= _PARALLEL_EVENTS else 1
    return max(1, min(int(effective_n_jobs(n_jobs)), n_methods))


def _run_all(
    methods: Mapping[str, Calibrator], task: _Task, metrics: list[str], jobs: int
) -> Iterator[MethodResult]:
    if jobs == 1:
        yield from (run_one(label, cal, task, metrics) for label, cal in methods.items())
        return
    from joblib import Parallel, cpu_count, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # Every process gets its share of the cores; without this, each would start a thread on all of them.
    with parallel_config("loky", inner_max_num_threads=max(1, cpu_count() // jobs)):
        work = (delayed(run_one)(label, cal, task, metrics) for label, cal in methods.items())
        try:
            yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(work)
        except TerminatedWorkerError:
            return  # what has no result is reported as died


def _died(label: str, name: str) -> MethodResult:
    return MethodResult(
        label, name, error="its worker process died, perhaps out of memory; try it alone with n_jobs=1"
    )


def run_one(label: str, calibrator: Calibrator, task: _Task, metrics: list[str]) -> MethodResult:
    """Fit, predict and measure one method; whatever goes wrong is recorded, not raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            probs, fit_s, predict_s = _predictions(calibrator, task)
            scores = _measure(probs, task.test_y, metrics)
        except Exception as error:
            return MethodResult(label, calibrator.name, error=f"{type(error).__name__}: {error}")
    said = tuple(dict.fromkeys(str(w.message) for w in caught))
    return MethodResult(label, calibrator.name, scores, fit_s, predict_s, said)


def _predictions(calibrator: Calibrator, task: _Task) -> tuple[FloatArray, float, float]:
    everything: Any = [(slice(None), slice(None))]
    out = np.empty(task.test.shape, dtype=task.test.dtype)
    fit_s = predict_s = 0.0
    for rows, held in task.folds or everything:
        # The input was checked and turned into logits once; a method that was told probs sees their logs.
        kind = "logits" if calibrator.input == "logits" else "log_probs"
        cal = clone(calibrator).set_params(input=kind)
        start = time.perf_counter()
        cal.fit(task.fit[rows], task.fit_y[rows])
        fitted = time.perf_counter()
        out[held] = cal.predict_proba(task.test[held])
        fit_s += fitted - start
        predict_s += time.perf_counter() - fitted
    return out, fit_s, predict_s


def _measure(probs: FloatArray, y: IntArray, metrics: list[str]) -> dict[str, float]:
    """The metrics asked for, and those that tell a collapsed predictor."""
    sample = Sample(probs, y)
    needed = dict.fromkeys([*metrics, "nll", "brier", "accuracy"])
    scores = {name: float(get_metric(name).function(sample)) for name in needed}
    scores["mean_confidence"] = float(sample.data.conf.mean())
    return scores


@contextmanager
def _bar(progress: bool | None, total: int) -> Iterator[Any]:
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        yield lambda _label: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("comparing", total=total)
        yield lambda label: bar.update(shown, advance=1, description=f"done: {label}")
