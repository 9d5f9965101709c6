"""Evaluation with scikit-learn's interfaces: a scorer for every metric, and a reliability display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from hcal.class_names import Classifier
from hcal.columns import order_by
from hcal.evaluation import Reliability, reliability
from hcal.evaluation.curves import Binning
from hcal.frames import AnyArray, refuse_other_index, to_numpy
from hcal.integrations._classifier_scores import class_numbers, stated_probs
from hcal.metrics.registry import get_metric
from hcal.metrics.sample import Event, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

#: How rows become points of a diagram: in scikit-learn's words, or in those of :func:`hcal.reliability`.
Strategy = Literal["uniform", "quantile"] | Binning


class DiagramOptions(TypedDict, total=False):
    """Options of :func:`hcal.reliability` for one diagram."""

    level: Literal["top-label", "positive"]
    groups: AnyArray
    confidence: float
    sample_weight: AnyArray
    resamples: int
    random_state: int


class DisplayOptions(DiagramOptions, total=False):
    """Options of :meth:`CalibrationDisplay.from_predictions`."""

    n_bins: int
    strategy: Strategy
    pos_label: object
    ax: Axes | None


@dataclass(frozen=True)
class Scorer:
    """A metric as scikit-learn's ``scoring=`` takes it: greater is better, labels of any kind.

    Parameters
    ----------
    metric : str
        One of :func:`hcal.list_metrics`.
    event : {"auto", "top-label"}
        What top-label metrics measure. "auto": the probability of the class ``pos_label`` if there are two classes,
        else that of the predicted class. "top-label": that of the predicted class, for two classes too.
    pos_label : label, optional
        The positive class of two; the second class by default.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import GridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500)
    >>> search = GridSearchCV(model, {"C": [0.1, 1.0]}, scoring=Scorer("nll"), cv=3)
    >>> search.fit(X, y).best_params_
    {'C': 1.0}
    """

    metric: str
    event: Event = "auto"
    pos_label: object = None

    def __post_init__(self) -> None:
        get_metric(self.metric)

    def __call__(
        self, estimator: Classifier, X: AnyArray, y: AnyArray, sample_weight: AnyArray = None
    ) -> float:
        """Return the score of a fitted classifier, which has ``predict_proba`` and ``classes_``."""
        refuse_other_index(X, {"y": y, "sample_weight": sample_weight})
        metric = get_metric(self.metric)
        classes = np.asarray(estimator.classes_)
        positive = 1 if self.pos_label is None else int(class_numbers([self.pos_label], classes)[0])
        sample = Sample(
            stated_probs(estimator, X),
            class_numbers(y, classes),
            sample_weight,
            event=self.event,
            positive=positive,
        )
        value = metric.function(sample)
        return float(-value if metric.lower_is_better else value)


@dataclass
class CalibrationDisplay:
    """A reliability diagram with scikit-learn's interface and a consistency band, for any number of classes.

    With two classes it shows the probability of ``pos_label``, with more the confidence of the predicted class. Make
    one with :meth:`from_estimator` or :meth:`from_predictions`.

    Attributes
    ----------
    diagram : Reliability
    prob_true, prob_pred : arrays of shape (bins,)
        Frequencies and mean probabilities of the bins that hold rows.
    estimator_name : str
    pos_label : object
    ax_, figure_
        The matplotlib axes and figure of the diagram.

    Examples
    --------
    >>> display = CalibrationDisplay.from_predictions([0, 1, 1], [0.2, 0.8, 0.9], n_bins=2)
    >>> display.prob_pred
    array([0.2 , 0.85])
    """

    diagram: Reliability
    prob_true: NDArray[np.float64]
    prob_pred: NDArray[np.float64]
    estimator_name: str = ""
    pos_label: object = None
    ax_: Axes | None = None
    figure_: Figure | SubFigure | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Classifier,
        X: AnyArray,
        y: AnyArray,
        *,
        name: str | None = None,
        **options: Unpack[DisplayOptions],
    ) -> Self:
        """Measure a fitted classifier and draw its diagram.

        Parameters
        ----------
        estimator : classifier
            With ``predict_proba``.
        X : array-like of shape (N, features)
        y : array-like of shape (N,)
        name : str, optional
        **options
            As for :meth:`from_predictions`.
        """
        refuse_other_index(X, {"y": y})
        title = type(estimator).__name__ if name is None else name
        return cls.from_predictions(
            y, stated_probs(estimator, X), labels=estimator.classes_, name=title, **options
        )

    @classmethod
    def from_predictions(  # noqa: PLR0913
        cls,
        y_true: AnyArray,
        y_prob: AnyArray,
        *,
        n_bins: int = 15,
        strategy: Strategy = "uniform",
        pos_label: object = None,
        labels: AnyArray = None,
        name: str = "",
        ax: Axes | None = None,
        **options: Unpack[DiagramOptions],
    ) -> Self:
        """Draw the diagram of probabilities.

        Parameters
        ----------
        y_true : array-like of shape (N,)
        y_prob : array-like of shape (N, K), or (N,) for the probability of ``pos_label``
        n_bins : int
        strategy : {"uniform", "quantile", "corp", "smooth"}
        pos_label : label, optional
            The positive class of two; the second class by default.
        labels : array-like of shape (K,), optional
            The classes of the columns; the sorted labels of ``y_true`` by default.
        name : str, optional
        ax : matplotlib Axes, optional
        **options
            Of :func:`hcal.reliability`, such as ``ci`` and ``sample_weight``.
        """
        refuse_other_index(y_prob, {"y_true": y_true})
        classes = np.unique(y_true) if labels is None else np.asarray(labels)
        codes = class_numbers(y_true, classes)
        p = np.asarray(y_prob, dtype=np.float64)
        columns = 2 if p.ndim == 1 else p.shape[1]
        if len(classes) != columns:
            raise ValueError(f"{columns} columns for {len(classes)} labels: name them with labels=")
        titles = to_numpy(y_prob, "y_prob")[1].columns
        order = None if titles is None else order_by(classes.tolist(), titles)
        if order is not None:
            p = p[:, order]
        if columns == 2:
            positive = 1 if pos_label is None else int(class_numbers([pos_label], classes)[0])
            pos_label = classes[positive]
            codes = (codes == positive).astype(np.int64)
            p = p if p.ndim == 1 else p[:, positive]
        elif pos_label is not None:
            raise ValueError(
                "pos_label is for two classes; with more, the predicted class is shown"
            )
        diagram = reliability(p, codes, bins=n_bins, binning=_binning(strategy), **options)
        full = diagram[0].weight > 0
        return cls(
            diagram, diagram[0].observed[full], diagram[0].predicted[full], name, pos_label
        ).plot(ax=ax)

    def plot(self, *, ax: Axes | None = None, name: str | None = None) -> Self:
        """Draw the diagram."""
        axes = cast("Axes", self.diagram.plot(ax))  # of one event, and so no figure of many
        self.ax_ = axes
        self.figure_ = axes.figure
        event = "the predicted class" if self.pos_label is None else str(self.pos_label)
        title = f"{name or self.estimator_name}: {event}".removeprefix(": ")
        axes.set_title(f"{title}, error {self.diagram[0].error:.4f}", fontsize=10)
        return self


def _binning(strategy: Strategy) -> Binning:
    if strategy == "uniform":
        return "equal-width"
    return "equal-mass" if strategy == "quantile" else strategy
