"""scikit-learn's way to measure: scorers for every metric, and a display of reliability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hcal.evaluation import ReliabilityCurve, reliability
from hcal.evaluation.diagram import draw_curve
from hcal.metrics.registry import get_metric


@dataclass(frozen=True)
class Scorer:
    """A metric as scikit-learn's ``scoring=`` takes it: greater is better, labels of any kind.

    Parameters
    ----------
    metric : str
        One of :func:`hcal.list_metrics`.

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

    def __post_init__(self) -> None:
        get_metric(self.metric)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of a fitted classifier, which has ``predict_proba`` and ``classes_``."""
        score = score_function(self.metric)
        value = score(y, estimator.predict_proba(X), sample_weight=sample_weight, labels=estimator.classes_)
        return float(-value if get_metric(self.metric).lower_is_better else value)


def score_function(metric: str) -> Any:
    """Return a metric as ``make_scorer`` takes it: ``function(y_true, y_proba, *, sample_weight, labels)``.

    Parameters
    ----------
    metric : str

    Returns
    -------
    callable
        For ``make_scorer(..., response_method="predict_proba", greater_is_better=False)``. ``labels`` names
        the columns; without it they are the sorted labels of ``y_true``.

    Examples
    --------
    >>> score_function("brier")(["no", "yes"], np.array([[0.8, 0.2], [0.4, 0.6]])).round(3)
    np.float64(0.2)
    """
    function = get_metric(metric).function

    def score(y_true: Any, y_proba: Any, *, sample_weight: Any = None, labels: Any = None) -> Any:
        known = np.unique(y_true) if labels is None else np.asarray(labels)
        columns = 2 if np.ndim(y_proba) == 1 else np.shape(y_proba)[1]
        if len(known) != columns:
            raise ValueError(f"{columns} columns for {len(known)} labels: name them with labels=")
        return np.float64(function(y_proba, encode(y_true, known), sample_weight=sample_weight))

    return score


def encode(y: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return labels as places among the (sorted) classes.

    >>> encode(["b", "a"], np.array(["a", "b"]))
    array([1, 0])
    """
    labels = np.asarray(y)
    new = np.setdiff1d(labels, classes)
    if new.size:
        raise ValueError(f"y has classes that the estimator does not know: {new.tolist()[:5]}")
    return np.searchsorted(classes, labels).astype(np.int64)


@dataclass
class CalibrationDisplay:
    """A reliability diagram with scikit-learn's interface, a consistency band, and any number of classes.

    Two classes: the probability of ``pos_label``. More: the confidence of the predicted class. Make one with
    :meth:`from_estimator` or :meth:`from_predictions`.

    Attributes
    ----------
    curve : ReliabilityCurve
    prob_true, prob_pred : arrays of shape (bins,)
        Frequencies and mean probabilities of the bins that hold rows.
    estimator_name : str
    pos_label : object
    ax_, figure_
        Where it was drawn.
    """

    curve: ReliabilityCurve
    ci: float
    estimator_name: str = ""
    pos_label: Any = None
    ax_: Any = None
    figure_: Any = None

    @property
    def prob_true(self) -> NDArray[np.float64]:
        """How often the event happened, in the bins that hold rows."""
        return np.asarray(self.curve.observed[self.curve.weight > 0])

    @property
    def prob_pred(self) -> NDArray[np.float64]:
        """The mean probability of the bins that hold rows."""
        return np.asarray(self.curve.predicted[self.curve.weight > 0])

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, name: str | None = None, **options: Any) -> Self:
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
        labels = np.asarray(estimator.classes_)
        title = type(estimator).__name__ if name is None else name
        return cls.from_predictions(y, estimator.predict_proba(X), labels=labels, name=title, **options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        n_bins: int = 15,
        strategy: str = "uniform",
        pos_label: Any = None,
        labels: Any = None,
        name: str | None = None,
        ci: float = 0.95,
        sample_weight: Any = None,
        ax: Any = None,
    ) -> Self:
        """Draw the diagram of probabilities.

        Parameters
        ----------
        y_true : array-like of shape (N,)
        y_prob : array-like of shape (N, K), or (N,) for the probability of ``pos_label``
        n_bins : int
        strategy : {"uniform", "quantile", "corp", "smooth"}
        pos_label : label, optional
            Of two classes, the one to look at; the second by default.
        labels : array-like of shape (K,), optional
            The classes of the columns; the sorted labels of ``y_true`` by default.
        name : str, optional
        ci : float
            Level of the band.
        sample_weight : array-like of shape (N,), optional
        ax : matplotlib Axes, optional
        """
        known = np.unique(y_true) if labels is None else np.asarray(labels)
        codes, p = encode(y_true, known), np.asarray(y_prob, dtype=np.float64)
        binning: Any = {"uniform": "equal-width", "quantile": "equal-mass"}.get(strategy, strategy)
        options: dict[str, Any] = {"bins": n_bins, "binning": binning, "ci": ci, "sample_weight": sample_weight}
        if p.ndim == 2 and p.shape[1] > 2:
            if pos_label is not None:
                raise ValueError("pos_label is for two classes; with more, the predicted class is shown")
            return cls(reliability(p, codes, **options)[0], ci, name or "").plot(ax=ax)
        if len(known) != 2:
            raise ValueError(f"two columns for {len(known)} labels: name both with labels=")
        positive = 1 if pos_label is None else int(encode([pos_label], known)[0])
        chosen = p if p.ndim == 1 else p[:, positive]
        found = reliability(chosen, (codes == positive).astype(np.int64), **options)[0]
        return cls(found, ci, name or "", known[positive]).plot(ax=ax)

    def plot(self, *, ax: Any = None, name: str | None = None) -> Self:
        """Draw it."""
        self.ax_ = draw_curve(self.curve, self.ci, ax)
        self.figure_ = self.ax_.figure
        event = "the predicted class" if self.pos_label is None else str(self.pos_label)
        title = f"{name or self.estimator_name}: {event}".removeprefix(": ")
        self.ax_.set_title(f"{title}, error {self.curve.error:.4f}", fontsize=10)
        return self
