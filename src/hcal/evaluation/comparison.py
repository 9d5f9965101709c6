"""``hcal.compare``: fit several methods on one or more tasks and compare their metrics.

A *cell* is one method on one task. :func:`run_cell` fits and measures it; :class:`Comparison` is the table of all
cells. Finished cells can be kept in a results file, so that a later call only runs those that are missing. The module
is not named ``compare`` because ``hcal.compare`` must be the function, whatever is imported first.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hcal import inputs, leakage
from hcal._version import __version__
from hcal.class_names import ClassName
from hcal.evaluation.comparison_table import Cell, Comparison, chance_column
from hcal.evaluation.crossfit import Learner, predict_unseen, score_folds
from hcal.evaluation.evaluator import chosen_metrics
from hcal.evaluation.results_file import append_cell, read_cells
from hcal.frames import AnyArray
from hcal.io.doors import NOTHING, RowInfo
from hcal.io.files import checksum
from hcal.language_models import MultipleChoiceCalibrator
from hcal.methods import Calibrator, list_calibrators, make_calibrator
from hcal.metrics import Sample
from hcal.metrics.by_chance import levels_by_chance
from hcal.metrics.registry import Metric, add_metrics, metrics_of_others
from hcal.metrics.resampling import bootstrap, measure
from hcal.metrics.scores import mean_confidence
from hcal.numerics import IntArray, NumpyArray
from hcal.passes import Processes, WorkerDiedError
from hcal.progress import progress as show_progress
from hcal.progress import silent
from hcal.renamed import renamed
from hcal.rows import Rows

if TYPE_CHECKING:
    from distributed import Client

    from hcal.io import DataFile

#: The default metrics: a plug-in and a debiased top-label error, a class-wise error, and the proper scores, without
#: which a class-wise error says little.
DEFAULT_METRICS: Final = ("ece_ew", "dece", "cwece_a", "nll", "brier", "accuracy")
#: Resampled test sets behind the intervals of differences.
RESAMPLES: Final = 200

Method = str | Calibrator | tuple[str, Mapping[str, object]]
Methods = str | Iterable[str | Calibrator] | Mapping[str, Method]


@dataclass(frozen=True)
class Task:
    """Checked rows to fit on and rows to test on; with ``fold`` they are the same rows, predicted out of fold."""

    name: str
    cal: Rows
    test: Rows
    fold: IntArray | None = None
    questions: bool = (
        False  # rows are questions with options; −inf is an option that does not exist
    )

    @classmethod
    def from_arrays(  # noqa: PLR0913
        cls,
        name: str,
        scores: AnyArray,
        y: AnyArray,
        test_scores: AnyArray = None,
        test_y: AnyArray = None,
        input: inputs.InputKind = "logits",
        folds: int | None = None,
        *,
        cal_rows: RowInfo = NOTHING,
        test_rows: RowInfo = NOTHING,
    ) -> Task:
        """Check arrays and return them as a task; warn if test rows are also calibration rows.

        ``cal_rows`` and ``test_rows`` hold weights, groups, segments and names of classes.
        """
        if (test_scores is None) != (test_y is None):
            raise ValueError(
                "test_scores and test_y belong together: give both, or neither and folds"
            )
        if test_scores is not None and folds is not None:
            raise ValueError("folds divide the calibration part; with a test part leave them out")
        if test_scores is None and folds is None:
            raise ValueError(
                "give a test part (test_scores, test_y), or folds to predict out of fold"
            )
        if test_scores is None and not test_rows.empty:
            raise ValueError("test_weight, test_groups and test_by belong to a test part")
        cal = cal_rows.rows(scores, y, input)
        if folds is not None:
            return cls(name, cal, cal, score_folds(cal.logits(), folds, cal.groups))
        test = test_rows.rows(test_scores, test_y, input, like=cal)
        if text := leakage.coincidence(cal.logits(), test.logits()):
            warnings.warn(text, UserWarning, stacklevel=4)
        return cls(name, cal, test)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Task:
        """Return the task of a file; without a test part its rows are predicted out of fold."""
        from hcal.io import Request, read

        cal = read(Path(path), part="cal")
        if not cal.part:
            return cls.from_data(Path(path).stem, cal, folds=FOLDS)
        return cls.from_data(
            Path(path).stem, cal, read(Path(path), Request(input=cal.kind), part="test")
        )

    @classmethod
    def from_data(
        cls, name: str, cal: DataFile, test: DataFile | None = None, folds: int | None = None
    ) -> Task:
        """Return the task of rows that were read from files, with their weights, groups and names of classes."""
        if cal.questions:
            return cls.from_questions(name, cal, test, folds)
        info = RowInfo(cal.weight, cal.groups, cal.by or None, cal.classes)
        if test is None:
            return cls.from_arrays(
                name, cal.values, cal.labels(), input=cal.kind, folds=folds, cal_rows=info
            )
        return cls.from_arrays(
            name,
            cal.values,
            cal.labels(),
            test.values,
            replace(test, from_one=()).labels(),
            cal.kind,
            cal_rows=info,
            test_rows=RowInfo(test.weight, test.groups, test.by or None, cal.classes),
        )

    @classmethod
    def from_questions(
        cls, name: str, cal: DataFile, test: DataFile | None, folds: int | None
    ) -> Task:
        """Return the task of multiple-choice questions, whose number of options may vary."""
        rows = _questions(cal)
        if test is None:
            # Questions with similar confidence go to different folds.
            fold = score_folds(rows.logits(), folds or FOLDS, None)
            return cls(name, rows, rows, fold, questions=True)
        return cls(name, rows, _questions(test), questions=True)


def _questions(data: DataFile) -> Rows:
    """Return questions with the log-probabilities of their options, −inf where a question has no such option."""
    return Rows(np.asarray(data.values, dtype=np.float64), "log_probs", data.labels())


#: Folds of a file without a test part.
FOLDS = 5
TaskSource = Task | str | os.PathLike[str]
#: Tasks by name: arrays to fit on and to judge by, or where such a task is; or the files alone.
Tasks = (
    Mapping[str, tuple[AnyArray, AnyArray, AnyArray, AnyArray] | TaskSource]
    | Sequence[str | os.PathLike[str]]
)


@renamed(
    cal_logits="scores",
    cal_y="y",
    test_logits="test_scores",
    n_folds="folds",
    n_resamples="resamples",
)
def compare(  # noqa: PLR0913 - a public door
    scores: AnyArray = None,
    y: AnyArray = None,
    test_scores: AnyArray = None,
    test_y: AnyArray = None,
    *,
    tasks: Tasks | None = None,
    methods: Methods | None = None,
    metrics: str | Sequence[str] | None = None,
    input: inputs.InputKind = "logits",
    folds: int | None = None,
    sample_weight: AnyArray = None,
    groups: AnyArray = None,
    by: AnyArray = None,
    test_weight: AnyArray = None,
    test_groups: AnyArray = None,
    test_by: AnyArray = None,
    resamples: int = RESAMPLES,
    results: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    scheduler: str | Client | None = None,
    progress: bool | None = None,
    classes: Iterable[ClassName] | None = None,
) -> Comparison:
    """Fit methods on calibration rows and compare them on test rows, of one task or of several.

    Parameters
    ----------
    scores : array-like of shape (N, K)
        Of the calibration rows.
    y : array-like of shape (N,)
    test_scores : array-like of shape (M, K), optional
        Without a test part give ``folds``: every row is then predicted by a fit that did not see it.
    test_y : array-like of shape (M,), optional
    tasks : mapping of names to (scores, y, test_scores, test_y), to files or to Task; or a list of files
        Instead of arrays. A file has a calibration and a test part; without a test part its rows are predicted out of
        five folds.
    methods : names, calibrators, or mapping of labels to either, optional
        ``{"hb 30": ("hb", {"bins": 30})}`` names a variant. All registered methods unless given;
        ``"uncal"`` always comes first, so that every table shows the uncalibrated scores.
    metrics : names, or "all", optional
    input : {"logits", "probs", "log_probs"}
    folds : int, optional
    sample_weight, groups, by : array-like of shape (N,), optional
        Of the calibration rows, as for ``fit``: weights, rows that depend on each other, and segments (for methods
        that fit segments). A group is always in one fold, of this comparison and of every fit inside.
    test_weight, test_groups, test_by : array-like of shape (M,), optional
        Of the test rows: weights for the metrics, groups that are resampled as a whole, and segments. With ``folds``
        the test rows are the calibration rows, with what belongs to them.
    resamples : int
        Bootstrap samples of the test rows (of whole groups), the same for every method, for the intervals of
        differences on one task; 0 for none. Of several tasks, the tasks are compared (see ``differences``).
    results : path-like, optional
        A file of JSON lines to which every finished cell is appended. A cell that is already there, with the same
        version of hcal, rows and settings, is not run again.
    n_jobs : int, optional
        How many processes share the cores; −1 for one process a core. By default the methods run one after the
        other in this process, so that their wall-clock times can be compared.
    scheduler : address or dask.distributed.Client, optional
        Run the cells on a Dask cluster instead.
    progress : bool, optional
        Show a progress bar on standard error; by default only in a terminal, after two seconds.
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
    >>> list(table.to_dict()["methods"])
    ['uncal', 'ts', 'hb']
    >>> table["ts"]["nll"] < table["uncal"]["nll"]
    True
    """
    names = list(DEFAULT_METRICS) if metrics is None else chosen_metrics(metrics)
    chosen = named_methods(methods, input)
    cal_rows = RowInfo(sample_weight, groups, by, classes)
    test_rows = RowInfo(test_weight, test_groups, test_by, classes if test_y is not None else None)
    if tasks is None:
        task = Task.from_arrays(
            "task",
            scores,
            y,
            test_scores,
            test_y,
            input,
            folds,
            cal_rows=cal_rows,
            test_rows=test_rows,
        )
        sources: dict[str, TaskSource] = {"task": task}
    else:
        others = (scores, y, folds, sample_weight, groups, by, test_weight, test_groups, test_by)
        if any(value is not None for value in others):
            raise ValueError(
                "tasks take the place of arrays, folds and groups: give one or the other"
            )
        sources = _sources(tasks, input, RowInfo(classes=classes))
    if not sources:
        raise ValueError("tasks is empty: name at least one file or four arrays")
    work = []
    for name, source in sources.items():
        digest = "" if results is None else _fingerprint(source)
        for label, calibrator in chosen.items():
            cell = Work(name, source, label, calibrator, tuple(names), resamples, digest)
            work.append(cell)
    return Comparison(_run(work, results, n_jobs, scheduler, progress), names)


def _sources(tasks: Tasks, input: inputs.InputKind, names: RowInfo) -> dict[str, TaskSource]:
    """Return the tasks by name; arrays are checked, and files are read where they are needed."""
    sources: dict[str, TaskSource] = {}
    by_name = tasks if isinstance(tasks, Mapping) else named_files(tasks)
    for name, task in by_name.items():
        if isinstance(task, tuple | list):
            if len(task) != 4:
                raise ValueError(
                    f"task {name!r} is (scores, y, test_scores, test_y), got {len(task)} arrays"
                )
            cal, cal_y, test, test_y = task
            sources[name] = Task.from_arrays(
                name, cal, cal_y, test, test_y, input, cal_rows=names, test_rows=names
            )
        else:
            sources[name] = task
    return sources


def named_files(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    """Return files by their names without the ending, or by their paths where two have the same name.

    >>> list(named_files(["a/x.npz", "a/y.npz"])), list(named_files(["a/x.npz", "b/x.npz"]))
    (['x', 'y'], ['a/x.npz', 'b/x.npz'])
    """
    files = [Path(path) for path in paths]
    different = len({path.stem for path in files}) == len(files)
    return {path.stem if different else str(path): path for path in files}


def named_methods(
    methods: Methods | None, input: inputs.InputKind = "logits"
) -> dict[str, Calibrator]:
    """Return labels and unfitted calibrators, ``uncal`` first.

    >>> list(named_methods({"hb 30": ("hb", {"bins": 30})}))
    ['uncal', 'hb 30']
    """
    calibrators: dict[str, Calibrator] = {"uncal": make_calibrator("uncal", input=input)}
    for label, method in _labelled(methods):
        cal = _build(method, input)
        key = label or (method if isinstance(method, str) else cal.name)  # "h:class_wise" is a name
        if key in calibrators and key != "uncal":
            raise ValueError(f"two methods are called {key!r}; pass a mapping of labels to methods")
        calibrators[key] = cal
    return calibrators


def _labelled(methods: Methods | None) -> list[tuple[str | None, Method]]:
    """Return pairs of a label, where there is one, and a method."""
    if isinstance(methods, Mapping):
        return list(methods.items())
    if methods is None:
        methods = list_calibrators()
    elif isinstance(methods, str):
        methods = [methods]
    return [(None, method) for method in methods]


def _build(method: Method, input: inputs.InputKind) -> Calibrator:
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
    task: TaskSource
    label: str
    calibrator: Calibrator
    metrics: tuple[str, ...]
    resamples: int = 0
    rows: str = ""  # a digest of the task's rows if there is a results file

    @property
    def key(self) -> str:
        """The key of the cell in a results file: it depends on version, rows, method, parameters and settings."""
        params = sorted(self.calibrator.get_params(deep=False).items())
        name = self.calibrator.name
        settings = (__version__, self.rows, name, params, self.metrics, self.resamples)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:24]

    def __getstate__(self) -> tuple[dict[str, object], list[Metric]]:
        """Include the user's own metrics, which a worker process does not know."""
        return self.__dict__, metrics_of_others(self.metrics)

    def __setstate__(self, state: tuple[dict[str, object], list[Metric]]) -> None:
        entries, of_others = state
        add_metrics(of_others)
        self.__dict__.update(entries)


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
            method = _method_for(task, work.calibrator)
            probs, fit_s, predict_s = predict_unseen(method, task.cal, task.test, task.fold)
            sample = Sample(probs, task.test.y, task.test.weight)
            needed = list(dict.fromkeys([*work.metrics, "nll", "brier", "accuracy"]))
            scores = measure(sample, needed)[0]
            levels = {}
            if task.test.groups is None:
                levels = levels_by_chance(sample, scores)
            scores["mean_confidence"] = mean_confidence(sample)
            scores |= {chance_column(name): level for name, level in levels.items()}
            drawn = {}
            if work.resamples:  # replicate b draws the same rows for every method
                rng = np.random.default_rng(sample.n)
                replicated = bootstrap(
                    [sample], needed, work.resamples, rng, first_order=True, groups=task.test.groups
                )[0]
                drawn = {
                    name: [float(f"{value:.8g}") for value in values]
                    for name, values in replicated.items()
                }
        except Exception as error:
            return replace(cell, error=f"{type(error).__name__}: {error}")
    messages = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return replace(
        cell,
        scores=scores,
        n_classes=sample.k,
        n=sample.n,
        fit_s=fit_s,
        predict_s=predict_s,
        warnings=messages,
        drawn=drawn,
    )


def _method_for(task: Task, calibrator: Calibrator) -> Learner:
    """Return an unfitted calibrator for the rows of a task: for questions the one that ``hcal fit`` makes of it."""
    if not task.questions:
        return calibrator.clone().set_params(input=task.cal.kind)
    if calibrator.name == "uncal":
        return UncalibratedQuestions()
    return MultipleChoiceCalibrator(calibrator)


class UncalibratedQuestions:
    """The probabilities that a language model states, by softmax over the options of each question."""

    def clone(self) -> UncalibratedQuestions:
        """Return itself: there is nothing to learn."""
        return self

    def fit(self, scores: AnyArray, y: AnyArray) -> UncalibratedQuestions:
        """Learn nothing."""
        return self

    def predict_proba(self, scores: AnyArray) -> AnyArray:
        """Return the softmax over each question's own options."""
        return MultipleChoiceCalibrator().uncalibrated(scores)


# -- all cells ------------------------------------------------------------------------------------


def _run(
    work: list[Work],
    path: str | os.PathLike[str] | None,
    n_jobs: int | None,
    scheduler: str | Client | None,
    progress: bool | None,
) -> list[Cell]:
    finished = {} if path is None else read_cells(Path(path))
    keys = {(w.name, w.label): w.key for w in work}
    done = {}
    for place, key in keys.items():
        if key in finished:
            done[place] = replace(finished[key], task=place[0], label=place[1])
    left = [w for w in work if (w.name, w.label) not in done]
    bar = silent() if progress is False else nullcontext()
    with bar, show_progress("comparing", len(left), verbose=bool(progress)) as advance:
        for cell in _cells(left, n_jobs, scheduler):
            place = (cell.task, cell.label)
            done[place] = cell
            if path is not None and not cell.error:
                append_cell(Path(path), keys[place], cell)
            advance(1)
    died = "its worker process died, perhaps out of memory; try it alone with n_jobs=1"
    return [
        done.get((w.name, w.label), Cell(w.name, w.label, w.calibrator.name, error=died))
        for w in work
    ]


def _fingerprint(task: TaskSource) -> str:
    """Return a digest of a task's rows, or of its file."""
    if not isinstance(task, Task):
        return checksum(task)
    digest = hashlib.sha256(repr((task.cal.kind, task.cal.names, task.questions)).encode())
    for rows in (task.cal, task.test):
        for array in (rows.scores, rows.y, rows.weight, rows.groups):
            digest.update(_bytes_of(array))
        if rows.by is not None:
            digest.update(repr(rows.by.names).encode())
            digest.update(_bytes_of(rows.by.codes))
    digest.update(_bytes_of(task.fold))
    return digest.hexdigest()


def _bytes_of(array: NumpyArray | None) -> bytes:
    """Return the shape, the type and the values of an array."""
    if array is None:
        return b"none"
    return repr((array.shape, array.dtype.str)).encode() + array.tobytes()


def _cells(work: list[Work], n_jobs: int | None, scheduler: str | Client | None) -> Iterator[Cell]:
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
