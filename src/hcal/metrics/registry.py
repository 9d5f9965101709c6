"""The registry of metrics: hcal's own, those that you register, and those of other packages (entry points).

Evaluation, resampling, comparisons and reports read a metric's level, direction, weights and kind of interval from
its :class:`Metric`; none of them treats a metric by its name.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from importlib.metadata import entry_points
from typing import Any, Literal, SupportsIndex, TypeVar

import numpy as np

from hcal.frames import AnyArray
from hcal.metrics.sample import MOST_COPIES, Sample, Vector, as_sample

Level = Literal["top-label", "class-wise", "canonical", "score"]
LEVELS: tuple[Level, ...] = ("top-label", "class-wise", "canonical", "score")
F = TypeVar("F", bound=Callable[..., float])
#: Names appear in command lines, CSV files and tables.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: Entry points of this group are loaded when metrics are listed, or when a name is not known yet.
ENTRY_POINTS = "hcal.metrics"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name : str
        Its name in ``hcal.metrics`` and ``hcal.evaluate``.
    level : {"top-label", "class-wise", "canonical", "score"}
    label : str
        Its short name, for narrow tables.
    title : str
        Its usual name in papers.
    explain : str
        One line that explains it.
    function : callable
        ``(probs, y, *, sample_weight=None, ...) -> float``.
    lower_is_better : bool
    kind : {"plug-in", "debiased", "score"}
        A plug-in error is positive by chance even for calibrated predictions; a debiased one is signed, with a
        mean of about 0 then; a score is neither. What a plug-in error shows by chance is computed by
        :mod:`hcal.metrics.by_chance`.
    weights : {"any", "counts", "copies"}
        Which ``sample_weight`` it takes: any; whole repetition counts; or counts with a sum of at most
        ``MOST_COPIES``, because it looks at every repetition.
    of_hits : bool
        Whether it looks at one event of every row, and depends on labels only through whether that happened (see
        ``Event`` in :mod:`hcal.metrics.sample`); tests then draw hits instead of labels.
    large : bool
        Whether it looks at all pairs of rows, so that ``hcal.evaluate`` computes it on ``Sample.subset``.
    rows : callable, optional
        ``(sample) -> array of shape (N,)`` whose weighted mean is the metric.
    shares : callable, optional
        ``(sample) -> array of shape (N,)`` whose mean is the metric of an unweighted sample and whose standard
        error is, to first order, the metric's.
    ends : callable, optional
        ``(sample, value, z) -> (low, high)``: an interval from the metric's own standard error, for metrics that
        are too costly to bootstrap; None where there is none.
    by_chance : callable, optional
        ``(sample, value) -> float``: of a plug-in error, its mean if every label is drawn from its probability, in
        closed form. Without it, labels are drawn.
    undefined : callable, optional
        ``(sample) -> str``: why the metric is NaN on a sample; empty where it has a value. None if it always has one.

    Examples
    --------
    >>> import hcal
    >>> metric = hcal.metrics.get_metric("ece_ew")
    >>> metric.level, metric.kind, metric.lower_is_better
    ('top-label', 'plug-in', True)
    """

    name: str
    level: Level
    label: str
    title: str
    explain: str
    function: Callable[..., float]
    lower_is_better: bool = True
    kind: Literal["plug-in", "debiased", "score"] = "plug-in"
    weights: Literal["any", "counts", "copies"] = "any"
    of_hits: bool = False
    large: bool = False
    rows: Callable[[Sample], Vector] | None = None
    shares: Callable[[Sample], Vector] | None = None
    ends: Callable[[Sample, float, float], tuple[float, float] | None] | None = None
    by_chance: Callable[[Sample, float], float] | None = None
    undefined: Callable[[Sample], str] | None = None

    @property
    def interval(self) -> Literal["mean", "bootstrap", "jackknife", "bias-aware"]:
        """How its interval is built; :mod:`hcal.metrics.resampling` explains the kinds."""
        if self.rows is not None:
            return "mean"
        if self.kind == "plug-in":
            return "bias-aware"
        if self.ends is not None:
            return "jackknife"
        # A debiased error of bins is still positive by chance where they hold few rows.
        return "bias-aware" if self.kind == "debiased" else "bootstrap"

    @property
    def is_ours(self) -> bool:
        """Whether it is one of hcal's own metrics."""
        return self.function.__module__.startswith("hcal.")

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        """Pickle a metric of hcal by its name: every process knows it."""
        return (get_metric, (self.name,)) if self.is_ours else super().__reduce_ex__(protocol)

    def takes(self, s: Sample) -> bool:
        """Return whether the metric is defined for the weights of a sample, and affordable."""
        if s.weight is None or self.weights == "any":
            return True
        return s.is_whole and (self.weights == "counts" or s.total <= MOST_COPIES)

    def why_undefined(self, s: Sample) -> str:
        """Return why the metric is NaN on a sample; empty where it has a value."""
        return "" if self.undefined is None else self.undefined(s)


def needs_pair(s: Sample) -> str:
    """Return why a metric of pairs of rows has no value; empty where it has one.

    >>> needs_pair(Sample([[0.5, 0.5]], [0]))
    'it compares pairs of rows, and there is one row'
    """
    return "it compares pairs of rows, and there is one row" if s.total < 2 else ""


METRICS: dict[str, Metric] = {}

_SHARED = """Parameters
----------
probs : array-like of shape (N, K)
y : array-like of shape (N,)
sample_weight : array-like of shape (N,), optional
"""
_EVENT = """event : {"auto", "top-label"}
    Which probability is compared with what happened. "auto": that of the class ``positive`` if
    there are two classes, else that of the predicted class. "top-label": that of the predicted
    class in any case.
positive : int or str, optional
    The positive one of two classes, by its number or, of a frame, its name; the second by default.
"""


def metric(
    level: Level, title: str, explain: str, *, label: str = "", **facts: Any
) -> Callable[[F], F]:
    """Register a metric of hcal, and add the parameters and return value that all metrics share to its docstring."""

    def add(function: F) -> F:
        name = function.__name__
        new = Metric(name, level, label or title, title, explain, function, **facts)
        METRICS[name] = new
        function.__doc__ = complete_docstring(
            function.__doc__, counts=new.weights != "any", event=level == "top-label"
        )
        return function

    return add


def complete_docstring(text: str | None, *, counts: bool = False, event: bool = False) -> str:
    """Add the shared parameters, before a metric's own, and the return value to a docstring.

    >>> "Whole repetition counts." in complete_docstring("Return 1.", counts=True)
    True
    """
    text, examples_title, examples = inspect.cleandoc(text or "").partition("Examples\n--------\n")
    summary, _, parameters = text.partition("Parameters\n----------\n")
    parts = [summary.rstrip("\n"), "\n\n", _SHARED]
    if counts:
        parts.append("    Whole repetition counts.\n")
    if event:
        parts.append(_EVENT)
    parts.append(parameters or "\n")
    if "Returns\n-------\n" not in parameters:
        parts.append("Returns\n-------\nfloat\n\n")
    return "".join([*parts, examples_title, examples])


def register_metric(  # noqa: PLR0913 - a public door
    function: Callable[..., float] | None = None,
    *,
    name: str | None = None,
    level: Level = "top-label",
    title: str | None = None,
    explain: str | None = None,
    lower_is_better: bool = True,
    kind: Literal["plug-in", "debiased", "score"] | None = None,
) -> Callable[..., Any]:
    """Add a metric of your own, for use by its name in ``hcal.evaluate``, ``hcal.compare`` and all commands.

    Parameters
    ----------
    function : callable
        ``(probs, y)`` or ``(probs, y, *, sample_weight=None)`` to a number. It gets checked arrays: float
        probabilities (N, K) and integer labels (N,). If its signature has no ``sample_weight``, rows are repeated
        according to whole weights, and other weights are refused.
    name : str, optional
        Lower-case letters, digits and _; the function's own name by default. Registering a name again
        replaces your metric; those of hcal cannot be replaced.
    level : {"top-label", "class-wise", "canonical", "score"}
        The section of the tables in which it appears.
    title, explain : str, optional
        Its name in tables, and one line that explains it (by default the first line of the docstring).
    lower_is_better : bool
    kind : {"plug-in", "debiased", "score"}, optional
        ``"plug-in"`` (positive by chance even for calibrated predictions; its interval allows for that),
        ``"debiased"`` (may be negative) or ``"score"`` (neither). The default is ``"score"`` for the level
        "score", else ``"plug-in"``.

    Returns
    -------
    callable
        The function itself, so that ``register_metric`` can be used as a decorator.

    Examples
    --------
    >>> @register_metric(level="score")
    ... def log_ten(probs, y):
    ...     "Mean −log₁₀ of the label's probability."
    ...     return -np.log10(probs[np.arange(len(y)), y]).mean()
    >>> round(get_metric("log_ten").function([[0.9, 0.1]], [1]), 6)
    1.0
    >>> del METRICS["log_ten"]
    """
    if function is None:
        return partial(register_metric, name=name, level=level, title=title, explain=explain,
                       lower_is_better=lower_is_better, kind=kind)  # fmt: skip
    if not callable(function):
        raise TypeError(f"register_metric takes a function (probs, y) -> float, got {function!r}")
    name = str(name or getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of a metric is lower-case letters, digits and _, got {name!r}")
    _check_level(level)
    if name in LEVELS or (name in METRICS and METRICS[name].is_ours):
        raise ValueError(f"{name!r} is a name of hcal: give your metric another")
    documentation = inspect.getdoc(function) or name
    first_line = documentation.partition("\n")[0].strip().rstrip(".")
    weighs = "sample_weight" in inspect.signature(function).parameters
    METRICS[name] = Metric(
        name=name,
        level=level,
        label=title or name,
        title=title or name,
        explain=explain or first_line,
        function=_on_sample(function, name, weighs),
        lower_is_better=lower_is_better,
        kind=kind or ("score" if level == "score" else "plug-in"),
        weights="any" if weighs else "copies",
    )
    return function


def _on_sample(function: Callable[..., float], name: str, weighs: bool) -> Callable[..., float]:
    """Wrap a user's metric so that it checks its input and accepts a ``Sample``, as hcal's metrics do."""

    @wraps(function)
    def call(
        probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, **options: object
    ) -> float:
        s = as_sample(probs, y, sample_weight)
        if weighs:
            value = function(s.data.probs, s.y, sample_weight=s.weight, **options)
        else:
            s = s.repeated(name)
            value = function(s.data.probs, s.y, **options)
        if np.ndim(value) != 0 or not np.isreal(value):
            raise ValueError(f"metric {name!r} must return one number, got {type(value).__name__}")
        return float(value)

    return call


def metrics_of_others(names: Iterable[str]) -> list[Metric]:
    """Return those of the named metrics that are not hcal's, which another process may have to register first."""
    return [m for m in map(get_metric, names) if not m.is_ours]


def add_metrics(metrics: Iterable[Metric]) -> None:
    """Register metrics that come from another process."""
    METRICS.update({m.name: m for m in metrics})


def _load_entry_points(name: str | None = None) -> None:
    """Register metrics of other packages: the named one (an error if it fails), or all (a warning if one fails)."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name in METRICS or name not in (None, point.name):
            continue
        try:
            loaded = point.load()
            if point.name not in METRICS:  # importing its module may have registered it already
                register_metric(loaded, name=point.name)
        except Exception as error:
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            text = f"metric {point.name!r} ({point.value}) cannot be loaded: {reason}"
            if name is not None:
                raise ValueError(text) from error
            warnings.warn(text, UserWarning, stacklevel=3)


def _check_level(level: object) -> None:
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(repr, LEVELS))}, got {level!r}")


def list_metrics(level: Level | None = None) -> list[str]:
    """Return the names of all metrics, or of one level, in the order in which they are reported.

    Parameters
    ----------
    level : {"top-label", "class-wise", "canonical", "score"}, optional

    Examples
    --------
    >>> list_metrics("score")
    ['nll', 'brier', 'accuracy', 'd2_nll', 'd2_brier', 'auc']
    """
    if level is not None:
        _check_level(level)
    _load_entry_points()
    chosen = [m for m in METRICS.values() if level in (None, m.level)]
    return [m.name for m in sorted(chosen, key=lambda m: LEVELS.index(m.level))]


def get_metric(name: str) -> Metric:
    """Return a metric by name; an unknown name is an error that lists the valid ones.

    Examples
    --------
    >>> get_metric("ks").level
    'top-label'
    """
    if name not in METRICS:
        _load_entry_points(name)
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; the metrics are {', '.join(list_metrics())}")
    return METRICS[name]
