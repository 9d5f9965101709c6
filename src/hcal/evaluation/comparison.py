"""``hcal.compare``: fit several methods on one or more tasks and compare their metrics.

A *cell* is one method on one task. :func:`run_cell` fits and measures it; :class:`Comparison` is the table of all
cells. Finished cells can be kept in a results file, so that a later call only runs those that are missing. The module
is not named ``compare`` because ``hcal.compare`` must be the function, whatever is imported first.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hcal import inputs, leakage
from hcal._version import __version__
from hcal.class_names import check_classes, encode
from hcal.evaluation.comparison_table import Cell, Comparison
from hcal.evaluation.crossfit import predict_unseen, score_folds
from hcal.evaluation.evaluator import chosen_metrics
from hcal.methods import Calibrator, list_calibrators, make_calibrator
from hcal.metrics import Sample
from hcal.metrics.registry import add_metrics, metrics_of_others
from hcal.metrics.resampling import bootstrap, measure
from hcal.metrics.scores import mean_confidence
from hcal.numerics import FloatArray, IntArray
from hcal.passes import Processes, WorkerDiedError
from hcal.progress import progress as show_progress
from hcal.progress import silent

#: The default metrics: a plug-in and a debiased top-label error, a class-wise error, and the proper scores, without
#: which a class-wise error says little.
DEFAULT_METRICS: Final = ("ece_ew", "dece", "cwece_a", "nll", "brier", "accuracy")
#: Resampled test sets behind the intervals of differences.
RESAMPLES: Final = 200

Method = str | Calibrator | tuple[str, Mapping[str, Any]]
Methods = str | Iterable[str | Calibrator] | Mapping[str, Method]


@dataclass(frozen=True)
class Task:
    """Checked rows to fit on and rows to test on; with ``fold`` they are the same rows, predicted out of fold."""

    name: str
    cal: FloatArray
    cal_y: IntArray
    test: FloatArray
    test_y: IntArray
    kind: inputs.InputKind = "logits"
    fold: IntArray | None = None

    @classmethod
    def from_arrays(
        cls,
        name: str,
        cal: Any,
        cal_y: Any,
        test: Any = None,
        test_y: Any = None,
        input: inputs.InputKind = "logits",
        folds: int | None = None,
        groups: Any = None,
    ) -> Task:
        """Check arrays and return them as a task; warn if test rows are also calibration rows."""
        if (test is None) != (test_y is None):
            raise ValueError(
                "test_logits and test_y belong together: give both, or neither and folds"
            )
        if test is not None and (folds is not None or groups is not None):
            raise ValueError(
                "folds and groups divide the calibration part; with a test part leave them out"
            )
        if test is None and folds is None:
            raise ValueError(
                "give a test part (test_logits, test_y), or folds to predict out of fold"
            )
        kind: inputs.InputKind = "logits" if input == "logits" else "log_probs"
        fit, _ = inputs.check_logits(cal, input=input)
        labels = inputs.check_labels(cal_y, *fit.shape)
        if folds is not None:
            fold = score_folds(fit, folds, inputs.check_groups(groups, len(labels)))
            return cls(name, fit, labels, fit, labels, kind, fold)
        scores, _ = inputs.check_logits(test, input=input, n_classes=fit.shape[1])
        if text := leakage.coincidence(fit, scores):
            warnings.warn(text, UserWarning, stacklevel=4)
        return cls(name, fit, labels, scores, inputs.check_labels(test_y, *scores.shape), kind)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Task:
        """Return the task of a file; without a test part its rows are predicted out of fold."""
        from hcal.io import Request, read

        cal = read(Path(path), part="cal")
        if not cal.part:
            return cls.from_arrays(
                Path(path).stem, cal.values, cal.labels(), input=cal.kind, folds=FOLDS
            )
        test = read(Path(path), Request(input=cal.kind), part="test")
        parts = cal.values, cal.labels(), test.values, test.labels()
        return cls.from_arrays(Path(path).stem, *parts, cal.kind)


#: Folds of a file without a test part.
FOLDS = 5
Source = Task | str | os.PathLike[str]


def compare(
    cal_logits: Any = None,
    cal_y: Any = None,
    test_logits: Any = None,
    test_y: Any = None,
    *,
    tasks: Mapping[str, Any] | Sequence[str | os.PathLike[str]] | None = None,
    methods: Methods | None = None,
    metrics: str | Sequence[str] | None = None,
    input: inputs.InputKind = "logits",
    folds: int | None = None,
    groups: Any = None,
    resamples: int = RESAMPLES,
    results: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    scheduler: Any = None,
    progress: bool | None = None,
    classes: Any = None,
) -> Comparison:
    """Fit methods on calibration rows and compare them on test rows, of one task or of several.

    Parameters
    ----------
    cal_logits : array-like of shape (N, K)
    cal_y : array-like of shape (N,)
    test_logits : array-like of shape (M, K), optional
        Without a test part give ``folds``: every row is then predicted by a fit that did not see it.
    test_y : array-like of shape (M,), optional
    tasks : mapping of names to (cal_logits, cal_y, test_logits, test_y) or to files; or a list of files
        Instead of arrays. A file has a calibration and a test part; without a test part its rows are predicted out of
        five folds.
    methods : names, calibrators, or mapping of labels to either, optional
        ``{"hb 30": ("hb", {"bins": 30})}`` names a variant. All registered methods unless given;
        ``"uncal"`` always comes first, so that every table shows the uncalibrated scores.
    metrics : names, or "all", optional
    input : {"logits", "probs", "log_probs"}
    folds : int, optional
    groups : array-like of shape (N,), optional
        Rows of one group are always in the same fold.
    resamples : int
        Bootstrap samples of the test rows, the same for every method, for the intervals of differences; 0 for none.
    results : path-like, optional
        A file of JSON lines to which every finished cell is appended. A cell that is already there, with the same
        version of hcal, rows and settings, is not run again.
    n_jobs : int, optional
        How many processes share the cores; −1 for one process a core. By default the methods run one after the
        other in this process, so that their wall-clock times can be compared.
    scheduler : address or dask.distributed.Client, optional
        Run the cells on a Dask cluster instead.
    progress : bool, optional
        Show a progress bar on standard error; by default only in a terminal, after three seconds.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns, if the labels are names.

    Returns
    -------
    Comparison
        Print it, or use ``sorted(metric)``, ``differences(metric)``, ``to_latex()``,
        ``to_markdown()``, ``to_csv()``, ``to_frame()``, ``to_dict()``.

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
    names = list(DEFAULT_METRICS) if metrics is None else chosen_metrics(metrics)
    chosen = named_methods(methods, input)
    sources: dict[str, Source]
    if tasks is None:
        if classes is not None:
            known = check_classes(classes, len(classes))
            cal_y, test_y = (None if y is None else encode(y, known) for y in (cal_y, test_y))
        sources = {
            "task": Task.from_arrays(
                "task", cal_logits, cal_y, test_logits, test_y, input, folds, groups
            )
        }
    elif cal_logits is not None or folds is not None or groups is not None:
        raise ValueError("tasks take the place of arrays, folds and groups: give one or the other")
    else:
        given = tasks if isinstance(tasks, Mapping) else named_files(tasks)
        sources = {
            name: Task.from_arrays(name, t[0], t[1], t[2], t[3], input)
            if isinstance(t, tuple | list)
            else t
            for name, t in given.items()
        }
    if not sources:
        raise ValueError("tasks is empty: name at least one file or four arrays")
    work = []
    for name, source in sources.items():
        rows = "" if results is None else _fingerprint(source)
        work += [
            Work(name, source, lb, cal, tuple(names), resamples, rows) for lb, cal in chosen.items()
        ]
    return Comparison(_run(work, results, n_jobs, scheduler, progress), names)


def named_files(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    """Return files by their names without the ending, or by their paths where two have the same name.

    >>> list(named_files(["a/x.npz", "a/y.npz"])), list(named_files(["a/x.npz", "b/x.npz"]))
    (['x', 'y'], ['a/x.npz', 'b/x.npz'])
    """
    found = [Path(path) for path in paths]
    different = len({path.stem for path in found}) == len(found)
    return {path.stem if different else str(path): path for path in found}


def named_methods(
    methods: Methods | None, input: inputs.InputKind = "logits"
) -> dict[str, Calibrator]:
    """Return labels and unfitted calibrators, ``uncal`` first.

    >>> list(named_methods({"hb 30": ("hb", {"bins": 30})}))
    ['uncal', 'hb 30']
    """
    given: Any = (
        list_calibrators()
        if methods is None
        else [methods]
        if isinstance(methods, str)
        else methods
    )
    items = given.items() if isinstance(given, Mapping) else ((None, method) for method in given)
    found: dict[str, Calibrator] = {"uncal": make_calibrator("uncal", input=input)}
    for label, method in items:
        cal = _build(method, input)
        key = label or (method if isinstance(method, str) else cal.name)  # "h:class_wise" is a name
        if key in found and key != "uncal":
            raise ValueError(f"two methods are called {key!r}; pass a mapping of labels to methods")
        found[key] = cal
    return found


def _build(method: Any, input: inputs.InputKind) -> Calibrator:
    name, parameters = method if isinstance(method, tuple) and len(method) == 2 else (method, {})
    if isinstance(name, str):
        return make_calibrator(name, **{"input": input, **parameters})
    if not isinstance(method, Calibrator):
        raise ValueError(f"a method is a name, a calibrator or (name, parameters), got {method!r}")
    if method.input != input:
        raise ValueError(
            f"{method.name!r} expects input={method.input!r}, compare was given {input!r}"
        )
    return method


# -- one cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The input of one cell: a task (or its file), a method with its label, and the metrics."""

    name: str
    task: Source
    label: str
    calibrator: Calibrator
    metrics: tuple[str, ...]
    resamples: int = 0
    rows: str = ""  # a digest of the task's rows if there is a results file

    @property
    def key(self) -> str:
        """The key of the cell in a results file: it depends on version, rows, method, parameters and settings."""
        params = sorted(self.calibrator.get_params(deep=False).items())
        told = (__version__, self.rows, self.calibrator.name, params, self.metrics, self.resamples)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:24]

    def __getstate__(self) -> dict[str, Any]:
        """Include the user's own metrics, which a worker process does not know."""
        return {**self.__dict__, "of_others": metrics_of_others(self.metrics)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        add_metrics(state.pop("of_others"))
        self.__dict__.update(state)


def run_cell(work: Work) -> Cell:
    """Fit, predict and measure one method on one task; an error is recorded in the cell, not raised.

    Examples
    --------
    >>> z, y = np.eye(2)[[0, 1] * 50], np.array([0, 1] * 50)
    >>> task = Task.from_arrays("toy", z, y, 2 * z, y)
    >>> cell = run_cell(Work("toy", task, "ts", make_calibrator("ts"), ("brier",)))
    >>> cell.error, cell.scores["accuracy"]
    ('', 1.0)
    """
    cell = Cell(work.name, work.label, work.calibrator.name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            task = work.task if isinstance(work.task, Task) else Task.from_file(work.task)
            # The scores are checked already, and probabilities have been turned into their logarithms.
            method = work.calibrator.clone().set_params(input=task.kind)
            probs, fit_s, predict_s = predict_unseen(
                method, task.cal, task.cal_y, task.test, task.fold
            )
            sample = Sample(probs, task.test_y)
            needed = list(dict.fromkeys([*work.metrics, "nll", "brier", "accuracy"]))
            scores = measure(sample, needed)[0] | {"mean_confidence": mean_confidence(sample)}
            drawn = {}
            if work.resamples:  # replicate b draws the same rows for every method
                rng = np.random.default_rng(sample.n)
                found = bootstrap([sample], needed, work.resamples, rng, first_order=True)[0]
                drawn = {
                    name: [float(f"{v:.8g}") for v in values] for name, values in found.items()
                }
        except Exception as error:
            return replace(cell, error=f"{type(error).__name__}: {error}")
    told = tuple(dict.fromkeys(str(w.message) for w in caught))
    cell = replace(cell, scores=scores, n_classes=sample.k, drawn=drawn, warnings=told)
    return replace(cell, fit_s=fit_s, predict_s=predict_s)


# -- all cells ------------------------------------------------------------------------------------


def _run(
    work: list[Work], path: Any, n_jobs: int | None, scheduler: Any, progress: bool | None
) -> list[Cell]:
    known = {} if path is None else read_cells(Path(path))
    keys = {(w.name, w.label): w.key for w in work}
    done = {
        at: replace(known[key], task=at[0], label=at[1]) for at, key in keys.items() if key in known
    }
    left = [w for w in work if (w.name, w.label) not in done]
    bar = silent() if progress is False else nullcontext()
    with bar, show_progress("comparing", len(left), verbose=bool(progress)) as advance:
        for cell in _cells(left, n_jobs, scheduler):
            done[at := (cell.task, cell.label)] = cell
            if path is not None and not cell.error:
                append_cell(Path(path), keys[at], cell)
            advance(1)
    died = "its worker process died, perhaps out of memory; try it alone with n_jobs=1"
    return [
        done.get((w.name, w.label), Cell(w.name, w.label, w.calibrator.name, error=died))
        for w in work
    ]


def _fingerprint(task: Source) -> str:
    """Return a digest of a task's rows, or of its file."""
    if not isinstance(task, Task):
        with Path(task).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256(repr((task.kind, task.cal.shape, task.test.shape)).encode())
    for array in (task.cal, task.cal_y, task.test, task.test_y, task.fold):
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _cells(work: list[Work], n_jobs: int | None, scheduler: Any) -> Iterator[Cell]:
    """Run cells here, in processes, or on a cluster."""
    if scheduler is not None:
        from hcal.integrations.dask import Runner

        with Runner(scheduler) as runner:
            yield from runner(run_cell, work)
        return
    from joblib import effective_n_jobs

    try:
        yield from Processes(max(1, min(effective_n_jobs(n_jobs), len(work))))(run_cell, work)
    except WorkerDiedError:
        return  # what has no result is reported as died


def read_cells(path: Path) -> dict[str, Cell]:
    """Return the cells of a results file by their keys; a last line that a crash cut off is dropped.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> append_cell(path, "key", Cell("toy", "ts", "ts", {"nll": 0.2}))
    >>> read_cells(path)["key"].scores
    {'nll': 0.2}
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    try:
        found = {row["key"]: Cell(**row["cell"]) for row in map(json.loads, whole.splitlines())}
    except (ValueError, TypeError, KeyError):
        why = "is not a results file of hcal.compare: choose another name"
        raise ValueError(f"{path.name} {why}") from None
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return found


def append_cell(path: Path, key: str, cell: Cell) -> None:
    """Add a finished cell to a results file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "hcal": __version__, "cell": asdict(cell)}) + "\n")
