"""``hcal.validate``: how good model and calibrator together are on new rows, without other rows to test on.

A model looks better on the rows that it was fitted on than on new ones; that is its *optimism*. It is estimated by the
bootstrap: model and calibrator are fitted again on rows drawn with replacement, and measured on these and on the
original rows; the mean difference is subtracted from the apparent figure (Efron and Gong, The American Statistician
1983; Harrell, Lee and Mark, Statistics in Medicine 1996). The interval has two parts: how well that many rows tell the
figure of a given model, and how much the optimism differs from sample to sample.

About 63 % of the original rows are in each sample. A model that remembers its rows, such as a forest, looks good on
them, so its optimism is estimated too small. Rows outside a sample are therefore measured too (*out of bag*), and a
note says where that figure is to be taken.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from scipy.special import ndtri

from hcal.class_names import Classifier, ClassName, encode
from hcal.evaluation.crossfit import FEWEST_GROUPS, draw_units
from hcal.frames import AnyArray, refuse_lazy, refuse_other_index
from hcal.inputs import check_confidence, check_groups, check_names
from hcal.metrics.estimates import (
    Outcome,
    area,
    brier_scores,
    calibration_line,
    concordance,
    log_odds_of,
    slope_and_intercept,
)
from hcal.metrics.sample import check_integer
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.progress import progress
from hcal.results import Result
from hcal.text import JsonObject

#: The figures that are corrected.
FIGURES: Final = ("slope", "intercept", "brier", "auc")
#: What perfect calibration gives, and what is better.
_TARGET: Final = {
    "slope": "1 is calibrated",
    "intercept": "0 is calibrated",
    "brier": "lower is better",
    "auc": "higher is better",
}
#: A model remembers its rows if more than this share of its AUC above 0.5 is gone on rows that it has not seen. Of
#: 0.5 and 0.4 the second was nearer to the truth in simulations of logistic regressions and forests.
_REMEMBERED: Final = 0.4
#: Between which values a figure lies, where it cannot take every value.
_RANGES: Final = {"brier": (0.0, 2.0), "auc": (0.0, 1.0)}


@dataclass(frozen=True)
class ValidatedFigure:
    """One figure of a model.

    Attributes
    ----------
    name : str
    apparent : float
        On the rows of the fit.
    optimism : float
        By how much it looks too good there.
    corrected, low, high : float
        What to expect on new rows, with an interval.
    out_of_bag : float
        On rows that were not drawn, for models that were fitted on the others.

    Examples
    --------
    >>> figure = ValidatedFigure("slope", 1.0, 0.2, corrected=0.8, low=0.5, high=1.1, out_of_bag=0.7)
    >>> round(figure.apparent - figure.optimism, 1) == figure.corrected
    True
    """

    name: str
    apparent: float
    optimism: float
    corrected: float
    low: float
    high: float
    out_of_bag: float


@dataclass(frozen=True, repr=False)
class Validation(Result):
    """Figures of model and calibrator together, corrected for optimism.

    Attributes
    ----------
    slope, intercept, brier, auc : ValidatedFigure
        Slope and intercept are those of a logistic regression of the outcome on the predicted log-odds.
    model : object
        Fitted on all rows: the one to use.
    n, events : int
    resamples : int
        Bootstrap samples that were used.
    remembers : bool
        Whether the model fits its own rows so closely that the out-of-bag figures are to be taken.
    confidence : float
    notes : tuple of str

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3))
    >>> y = (X[:, 0] + rng.logistic(size=100) > 0).astype(int)
    >>> validation = hcal.validate(LogisticRegression(), X, y, resamples=20)
    >>> validation.slope.corrected < validation.slope.apparent
    True
    """

    schema: ClassVar[str] = "hcal/validation/1"

    slope: ValidatedFigure
    intercept: ValidatedFigure
    brier: ValidatedFigure
    auc: ValidatedFigure
    n: int
    events: int
    resamples: int
    remembers: bool
    confidence: float
    model: Classifier | None = None
    notes: tuple[str, ...] = ()

    @property
    def figures(self) -> tuple[ValidatedFigure, ...]:
        """All figures."""
        return self.slope, self.intercept, self.brier, self.auc

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name: what to expect on new rows."""
        return {
            figure.name: figure.out_of_bag if self.remembers else figure.corrected
            for figure in self.figures
        }

    @property
    def sentences(self) -> list[str]:
        """The procedure and its results, in words."""
        expected = self.gate_values()
        return [
            f"Model and calibrator were fitted on {self.n:,} rows, {self.events:,} of them with "
            f"the outcome, and again on {self.resamples:,} bootstrap samples.",
            f"On new rows expect a calibration slope of {expected['slope']:.3f}, an intercept of "
            f"{expected['intercept']:+.3f}, a Brier score of {expected['brier']:.4f} and an AUC of "
            f"{expected['auc']:.3f}.",
            *self.notes,
        ]

    def __str__(self) -> str:
        interval = f"{100 * self.confidence:g} % interval"
        heads = f"{'':<10} {'apparent':>9} {'optimism':>9} {'corrected':>10}"
        lines = [f"{heads}  {interval:>18}  {'out of bag':>10}"]
        for figure in self.figures:
            span = f"{figure.low:.4f} to {figure.high:.4f}"
            lines.append(
                f"{figure.name:<10} {figure.apparent:>9.4f} {figure.optimism:>9.4f} "
                f"{figure.corrected:>10.4f}  "
                f"{span:>18}  {figure.out_of_bag:>10.4f}  {_TARGET[figure.name]}"
            )
        return "\n".join([*self.sentences, "", *lines])

    def _headline(self) -> list[str]:
        return self.sentences

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each figure."""
        return [dict(vars(figure)) for figure in self.figures]

    def _content(self) -> JsonObject:
        content = super()._content()
        del content["model"]
        return content


def validate(  # noqa: PLR0913 - a public door
    model: Classifier,
    X: AnyArray,
    y: AnyArray,
    *,
    resamples: int = 200,
    groups: AnyArray = None,
    positive: ClassName | None = None,
    confidence: float = 0.95,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> Validation:
    """Return calibration slope, intercept, Brier score and AUC of a model and its calibrator, corrected for optimism.

    The whole model is fitted again on each bootstrap sample, so everything that learns from the rows must be inside
    it: choice of variables, model, calibrator.

    Parameters
    ----------
    model : classifier
        Anything of scikit-learn's kind with ``fit`` and ``predict_proba``, such as
        ``CalibratedClassifier(LogisticRegression())`` or a pipeline. It is copied and not changed.
    X : array-like of shape (N, features)
    y : array-like of shape (N,)
        Two classes.
    resamples : int
        Bootstrap samples.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other: the bootstrap draws whole groups.
    positive : label, optional
        The outcome; by default the greater of the two labels.
    confidence : float
        Level of the intervals.
    n_jobs : int, optional
        How many samples are worked on at the same time (joblib).
    random_state : int

    Returns
    -------
    Validation

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 10))
    >>> y = (X[:, 0] + rng.logistic(size=150) > 0).astype(int)
    >>> validation = validate(LogisticRegression(C=np.inf), X, y, resamples=50)
    >>> round(validation.slope.apparent, 2), validation.slope.corrected < 0.9
    (1.0, True)
    """
    from joblib import Parallel, delayed

    confidence = check_confidence(confidence)
    check_integer("resamples", resamples, 20)
    _refuse_fitted(model)
    data = _data(model, X, y, groups, positive)
    fitted = data.fit(np.arange(data.n))
    apparent = data.measure(fitted, np.arange(data.n))
    seeds = np.random.SeedSequence(random_state).spawn(resamples)
    work = (delayed(_resample)(data, seed) for seed in seeds)
    samples = []
    with progress("validating on bootstrap samples", resamples) as advance:
        for sample in Parallel(n_jobs=n_jobs, return_as="generator")(work):
            if sample is not None:
                samples.append(sample)
            advance(1)
    if len(samples) < resamples / 2:
        raise ValueError(
            f"only {len(samples)} of {resamples} bootstrap samples held rows with and without the "
            "outcome: these are too few rows to validate on"
        )
    return _validation(data, fitted, apparent, samples, confidence, resamples)


@dataclass(frozen=True)
class _Data:
    """The model, its rows, the outcome (N,) as 0 and 1, and the number of each row's unit (N,)."""

    model: Classifier
    X: AnyArray
    y: NumpyArray
    event: Float64
    unit: IntArray
    grouped: bool
    positive: ClassName | None

    @property
    def n(self) -> int:
        return len(self.y)

    def fit(self, rows: IntArray) -> Classifier:
        """Return the model fitted on some rows; copies of a row stay in one fold of a calibrator inside."""
        from sklearn.base import clone
        from sklearn.utils import _safe_indexing

        model: Classifier = clone(self.model)
        repeated = self.grouped or len(np.unique(rows)) < len(rows)
        if repeated and "groups" in inspect.signature(model.fit).parameters:
            return model.fit(_safe_indexing(self.X, rows), self.y[rows], groups=self.unit[rows])
        return model.fit(_safe_indexing(self.X, rows), self.y[rows])

    def risk(self, fitted: Classifier) -> Float64:
        """Return the probability (N,) of the outcome of all rows."""
        probs: FloatArray = np.asarray(fitted.predict_proba(self.X))
        column = list(fitted.classes_).index(self.positive)
        return np.asarray(probs[:, column], dtype=np.float64)

    def measure(self, fitted: Classifier, rows: IntArray) -> Float64:
        """Return the figures of some rows."""
        return figures_of(self.risk(fitted)[rows], self.event[rows])


def figures_of(risk: Float64, event: Float64) -> Float64:
    """Return slope, intercept, Brier score and AUC; NaN where there is none.

    >>> figures_of(np.array([0.2, 0.8, 0.3, 0.6]), np.array([0.0, 1.0, 1.0, 0.0]))[2:].round(3)
    array([0.465, 0.75 ])
    """
    intercept, slope = calibration_line(log_odds_of(risk), event)
    # Over both classes, as hcal.metrics.brier counts.
    brier = 2 * float(((risk - event) ** 2).mean())
    return np.array([slope, intercept, brier, concordance(risk, event)])


@dataclass(frozen=True)
class _Sample:
    """Figures of a model fitted on a bootstrap sample: on the sample, and on the original rows; risks out of bag."""

    inside: Float64
    original: Float64
    outside_rows: IntArray
    outside_risk: Float64


def _resample(data: _Data, seed: np.random.SeedSequence) -> _Sample | None:
    rows = draw_units(data.unit, np.random.default_rng(seed))
    if not 0 < data.event[rows].sum() < len(rows):
        return None
    with warnings.catch_warnings():
        # What is worth a warning was said by the fit on all rows.
        warnings.simplefilter("ignore")
        fitted = data.fit(rows)
    risk = data.risk(fitted)
    outside = np.setdiff1d(np.arange(data.n), rows)
    return _Sample(
        inside=figures_of(risk[rows], data.event[rows]),
        original=figures_of(risk, data.event),
        outside_rows=outside,
        outside_risk=risk[outside],
    )


def _validation(
    data: _Data,
    fitted: Classifier,
    apparent: Float64,
    samples: Sequence[_Sample],
    confidence: float,
    resamples: int,
) -> Validation:
    inside = np.array([sample.inside for sample in samples])
    gaps = inside - np.array([sample.original for sample in samples])
    optimism = np.array([_mean(column) for column in gaps.T])
    spread = np.array([_deviation(column) for column in gaps.T])
    errors = _standard_errors(data, fitted, confidence)
    margins = float(ndtri((1 + confidence) / 2)) * np.sqrt(spread**2 + errors**2)
    outside = _out_of_bag(data, samples)
    figures = {}
    for number, name in enumerate(FIGURES):
        corrected = apparent[number] - optimism[number]
        lowest, highest = _RANGES.get(name, (-np.inf, np.inf))
        figures[name] = ValidatedFigure(
            name=name,
            apparent=float(apparent[number]),
            optimism=float(optimism[number]),
            corrected=float(corrected),
            low=float(np.maximum(corrected - margins[number], lowest)),
            high=float(np.minimum(corrected + margins[number], highest)),
            out_of_bag=float(outside[number]),
        )
    remembers = _remembers(figures)
    return Validation(
        slope=figures["slope"],
        intercept=figures["intercept"],
        brier=figures["brier"],
        auc=figures["auc"],
        n=data.n,
        events=int(data.event.sum()),
        resamples=len(samples),
        remembers=remembers,
        confidence=confidence,
        model=fitted,
        notes=_notes(remembers, resamples - len(samples), int(np.isnan(gaps[:, 0]).sum())),
    )


def _out_of_bag(data: _Data, samples: Sequence[_Sample]) -> Float64:
    """Return the figures of all pairs of a sample and a row outside it; the AUC compares rows of one sample."""
    rows = np.concatenate([sample.outside_rows for sample in samples])
    risk = np.concatenate([sample.outside_risk for sample in samples])
    if not len(rows):
        return np.full(len(FIGURES), np.nan)
    figures = figures_of(risk, data.event[rows])
    areas = [
        figures_of(sample.outside_risk, data.event[sample.outside_rows])[3]
        for sample in samples
        if len(sample.outside_rows)
    ]
    figures[3] = _mean(np.array(areas))
    return figures


def _remembers(figures: dict[str, ValidatedFigure]) -> bool:
    auc = figures["auc"]
    return auc.apparent - auc.out_of_bag > _REMEMBERED * (auc.apparent - 0.5)


def _notes(remembers: bool, one_class: int, no_slope: int) -> tuple[str, ...]:
    notes = []
    if remembers:
        notes.append(
            "The model fits its own rows far better than others, as forests do. The optimism is "
            "then estimated too small: take the out-of-bag figures, which are slightly too bad."
        )
    if one_class:
        notes.append(
            f"{one_class} bootstrap samples held one class alone, or no row of it, and were "
            "left out."
        )
    if no_slope:
        notes.append(
            f"{no_slope} bootstrap samples had no slope: the predictions separate the outcomes."
        )
    return tuple(notes)


def _standard_errors(data: _Data, fitted: Classifier, confidence: float) -> Float64:
    """Return how well the rows tell slope, intercept, Brier score and AUC of a given model: half an interval over z."""
    groups = data.unit if data.grouped else None
    rows = Outcome(data.risk(fitted), data.event, confidence, groups)
    slope, intercept, _ = slope_and_intercept(rows)
    brier, _ = brier_scores(rows)
    estimates = [slope, intercept, brier, area(rows)]
    widths = np.array([estimate.high - estimate.low for estimate in estimates])
    # The Brier score counts both classes here, and one there.
    return np.asarray(np.array([1, 1, 2, 1]) * widths / (2 * rows.z))


def _deviation(values: Float64) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.std(ddof=1)) if len(numbers) > 1 else float("nan")


def _mean(values: Float64) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def _refuse_fitted(model: object) -> None:
    """Refuse a model whose fit would not learn from the rows again."""
    if not hasattr(model, "predict_proba") or not hasattr(model, "fit"):
        raise ValueError(
            "model must have fit and predict_proba, as classifiers of scikit-learn have; got "
            f"{type(model).__name__}"
        )
    parts = [model, *getattr(model, "get_params", dict)().values()]
    frozen = any(type(part).__name__ == "FrozenEstimator" for part in parts)
    if frozen or getattr(model, "cv", None) == "prefit":
        raise ValueError(
            "the model inside is fitted already, so its optimism cannot be seen: pass one that is "
            "fitted again on each sample, such as CalibratedClassifier(estimator), or test on "
            "other rows with hcal.clinical"
        )


def _data(
    model: Classifier, X: AnyArray, y: AnyArray, groups: AnyArray, positive: ClassName | None
) -> _Data:
    from sklearn.utils.validation import _num_samples

    for name, values in {"X": X, "y": y, "groups": groups}.items():
        refuse_lazy(values, name)
    refuse_other_index(X, {"y": y, "groups": groups})
    labels = check_names(y, _num_samples(X), "y")
    classes = np.unique(labels)
    if len(classes) != 2:
        raise ValueError(
            f"validate needs two classes, and y has {len(classes)}: pass y == class for one of "
            "several"
        )
    outcome = classes[1] if positive is None else positive
    if outcome not in classes:
        raise ValueError(f"positive must be one of {classes.tolist()}, got {positive!r}")
    group = check_groups(groups, len(labels))
    unit = np.arange(len(labels))
    if group is not None:
        unit = np.unique(group, return_inverse=True)[1]
        if unit.max() + 1 < FEWEST_GROUPS:
            raise ValueError(
                f"the bootstrap draws whole groups and needs at least {FEWEST_GROUPS}; there "
                f"are {unit.max() + 1}"
            )
    event = encode(labels, tuple(classes.tolist())) == list(classes).index(outcome)
    return _Data(model, X, labels, event.astype(np.float64), unit, group is not None, outcome)
