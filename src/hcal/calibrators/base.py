"""The contract that every calibrator keeps.

A method is one file in this folder with one subclass of :class:`Calibrator`. It writes two functions:
``_fit`` learns a dictionary of arrays (the *state*) and ``_predict`` is a pure function of that state
and of logits. Input checks, array libraries, warnings, before/after scores, files and preservation of
the argmax live here, once.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError

from hcal import inputs
from hcal.calibrators import calibration_rows, prior
from hcal.calibrators.argmax import keep_argmax
from hcal.calibrators.fitted import Fitted, State
from hcal.calibrators.floor import FLOOR_SPEC, apply_floor, learn_floor
from hcal.calibrators.on_device import predict_on_device, rows_on_device, score_on_device, top_on_device
from hcal.calibrators.params import refuse_types
from hcal.calibrators.row_order import arrange
from hcal.calibrators.state import Field, StateSpec, check_state, choose_spec
from hcal.io.class_names import ClassName, encode, names_of_fit
from hcal.io.provenance import fingerprint
from hcal.io.top_k import TopK
from hcal.metrics.summary import Scores, score_probs
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.runtime.log_rows import LogRows
from hcal.numerics import FloatArray, IntArray, bounded, softmax

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PRIOR", "CalibrationWarning", "Calibrator", "Fitted", "Preserves", "State"]

Preserves = Literal["order", "accuracy"] | None

#: Where a state holds ln of new over old class frequencies; absent where they are those of the fit.
PRIOR = "prior_log_ratio"
#: Beyond e^±700 a ratio of frequencies is 0 or infinite.
PRIOR_SPEC = StateSpec(
    (Field(PRIOR, "ln of new over old class frequencies", ("K",), -np.inf, 700.0, optional=True),)
)
# Rows are predicted in blocks of about this many events, so memory stays bounded at any N.
_BLOCK_EVENTS = 4_000_000
#: What ``info_`` says of predictions that other class frequencies change.
_OF_SIDES = {"notes", "changed_sides", "crossing"}
#: A sum of weights this many times the number of rows, or its inverse, is met with a sentence.
_FAR = 5.0


class CalibrationWarning(UserWarning):
    """A fit did not converge, left the calibration set worse than before, or got weights of an odd sum."""


class Calibrator(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base of every calibrator: ``fit(logits, y)``, then ``predict_proba(logits)``.

    Subclasses set ``name``, ``title`` and ``preserves`` and write ``_fit`` and ``_predict``. The constructor
    only stores its arguments (scikit-learn's rule), all of them keyword-only, ``input`` among them.
    A method that can run in PyTorch and ONNX also writes ``_graph(ops, x)``: the same map in
    :mod:`hcal.runtime.ops`.

    Parameters
    ----------
    input : {"logits", "probs", "log_probs"}
        What the scores are, in ``fit`` and in ``predict_proba``; every method takes it.

    Attributes
    ----------
    n_classes_ : int
    classes_ : array of shape (K,)
    converged_ : bool
    scores_ : dict
        ``{"before": {...}, "after": {...}}`` on the calibration set.
    info_ : dict
    state_ : dict of arrays
    """

    name: ClassVar[str]
    title: ClassVar[str]
    preserves: Preserves = None
    #: Whether ``_fit`` uses ``sample_weight``; if not, a weight is refused rather than ignored.
    weighted: ClassVar[bool] = False
    #: Methods that work row by row may take float32 as it is; all others compute in float64.
    native_float32: ClassVar[bool] = False
    #: What the state holds, declared once; several where it depends on parameters. Files are checked by it.
    state_specs: ClassVar[tuple[StateSpec, ...]] = ()
    #: Ranges of the numeric parameters that prediction uses: a file cannot ask for more.
    limits: ClassVar[Mapping[str, tuple[float, float]]] = {}
    #: Whether probabilities below all that the calibration set shows are drawn up to a floor (``floor.py``).
    floored: ClassVar[bool] = True

    input: inputs.InputKind
    state_: State
    n_classes_: int
    class_names_: tuple[ClassName, ...] | None = None
    converged_: bool
    info_: dict[str, Any]
    scores_: dict[str, Scores]

    def __init__(self, *, input: inputs.InputKind = "logits") -> None:
        self.input = input

    @abstractmethod
    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        """Learn the state from checked float64 logits (N, K) and labels (N,)."""

    @abstractmethod
    def _predict(self, logits: FloatArray) -> FloatArray:
        """Return probabilities (N, K) from checked logits (N, K) and ``self.state_``."""

    # -- public -----------------------------------------------------------------------------------

    def fit(self, logits: Any, y: Any, sample_weight: Any = None, *, classes: Any = None) -> Self:
        """Learn from the outputs of a trained classifier on held-out rows.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score, or TopK
            Logits, probabilities or log-probabilities, as the parameter ``input`` says.
        y : array-like of shape (N,)
            Integer labels 0..K−1, or the names that ``classes`` lists.
        sample_weight : array-like of shape (N,), optional
            Counts rows: an integer weight equals repetition.
        classes : sequence of K str or int, optional
            Names of the classes in the order of the columns; ``predict`` then answers with them. A DataFrame
            whose columns are named as the labels needs none.
        """
        self._forget()
        refuse_types(self)
        if isinstance(logits, TopK):
            from hcal.calibrators.top_k import fit_top_k

            return fit_top_k(self, logits, y, sample_weight)
        x, columns = self._enter(logits)
        names = names_of_fit(classes, y, columns, x.shape[1])
        labels = inputs.check_labels(encode(y, names), *x.shape)
        weight = self._check_weight(sample_weight, len(x))
        self._warn_of_weight(weight)
        rows, given = fingerprint(x), (x, labels)
        near = x if isinstance(x, DeviceRows) else bounded(x)
        x, labels, weight = arrange(near, labels, weight, merge=self.weighted)
        floor = learn_floor(x, weight) if self.floored and self.input != "logits" else None
        fitted = self._fit(self._working(apply_floor(x, floor)), labels, weight)
        if floor is not None:
            fitted.state["input_floor"] = floor
        mass = np.bincount(labels, weights=weight, minlength=x.shape[1])
        fitted.info["class_frequencies"] = (mass / mass.sum()).tolist()
        fitted = fitted.named(names)
        self._remember(fitted, x.shape[1], names)
        self.info_ = {**self.info_, "fitted_on": rows}
        try:
            self._score_fit(x, labels, weight)
            calibration_rows.remember(self, *given)
        except BaseException:
            self._forget()
            raise
        self._warn(fitted)
        return self

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities in the array library, device and float width of the input.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score

        Returns
        -------
        array of shape (N, K)
        """
        self._check_fitted()
        if isinstance(logits, TopK):
            from hcal.calibrators.top_k import predict_top_k

            return predict_top_k(self, logits)
        if (there := predict_on_device(self, logits)) is not None:
            return there
        x, origin = inputs.check_scores(logits, input=self.input, n_classes=self.n_classes_)
        return inputs.restore(self._predict_blocks(x), origin, scores=x, keep=self.preserves)

    def predict(self, logits: Any) -> NDArray[Any]:
        """Return the most probable class of each row, by its name where the fit was given names.

        Parameters
        ----------
        logits : array-like of shape (N, K)

        Returns
        -------
        array of shape (N,)
        """
        self._check_fitted()
        if isinstance(logits, TopK):
            return np.asarray(self.predict_proba(logits).top()[0])
        if (top := top_on_device(self, logits)) is None:
            x, _ = inputs.check_scores(logits, input=self.input, n_classes=self.n_classes_)
            top = np.asarray(self._predict_blocks(x).argmax(axis=1), dtype=np.int64)
        return top if self.class_names_ is None else self.classes_[top]

    def score(self, logits: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the negative NLL: accuracy cannot tell calibrators apart, a proper score can.

        Parameters
        ----------
        logits : array-like of shape (N, K)
        y : array-like of shape (N,)
        """
        from hcal.metrics import nll

        self._check_fitted()
        return -nll(self.predict_proba(logits), encode(y, self.class_names_), sample_weight=sample_weight)

    def with_prior(self, frequencies: Any) -> Self:
        """Return this calibrator for other class frequencies than those of the calibration set.

        Parameters
        ----------
        frequencies : array-like of shape (K,)
            How often each class comes where predictions are made; they are normalised.

        Returns
        -------
        Calibrator
            A new one, fitted; it saves, loads and exports like any other. The argmax may change.

        Examples
        --------
        >>> from hcal import make_calibrator
        >>> cal = make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
        >>> cal.with_prior([0.5, 0.5]).predict_proba([[0.0, 2.0]]).round(2)
        array([[0.5, 0.5]])
        """
        old = self._old_frequencies()
        new = prior.check_frequencies(frequencies, old.size)
        return self._shifted(new, prior.log_ratio(new, old, self.class_names_))

    def with_prior_from(self, scores: Any) -> Self:
        """Return this calibrator for the class frequencies of unlabelled rows, learned by EM.

        Saerens, Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities,
        Neural Computation 2002.

        Parameters
        ----------
        scores : array-like of shape (N, K)
            Of the rows to come, in the form of the calibrator's ``input``. Only class frequencies may differ
            from the calibration set: P(scores | class) must be the same.

        Returns
        -------
        Calibrator
            As from :meth:`with_prior`; ``info_["prior"]`` holds the frequencies found.
        """
        old = self._old_frequencies()
        x, _ = inputs.check_scores(scores, input=self.input, n_classes=self.n_classes_)
        probs = self._shifted(old, np.zeros(len(old)))._predict_blocks(x).astype(np.float64)
        new = prior.estimate_frequencies(probs, old)
        # Of a class that the calibration set lacks nothing can be learned: it keeps what it gets.
        return self._shifted(new, np.where(old > 0, prior.log_ratio(new, old), 0.0))

    def _old_frequencies(self) -> NDArray[np.float64]:
        self._check_fitted()
        if "class_frequencies" not in self.info_:
            raise ValueError("this calibrator was saved before 0.2, without class frequencies: fit again")
        return np.asarray(self.info_["class_frequencies"])

    def _shifted(self, new: NDArray[np.float64], ratio: NDArray[np.float64]) -> Self:
        """Return a fitted copy whose probabilities are multiplied by e^ratio, whatever this one's are."""
        other: Self = clone(self)
        info = {key: told for key, told in self.info_.items() if key not in _OF_SIDES}
        info["prior"] = new.tolist()
        fitted = Fitted({**self.state_, PRIOR: ratio}, self.converged_, "", info)
        other._remember(fitted, self.n_classes_, self.class_names_)
        other.scores_ = self.scores_
        return other

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of the classes in the order of the columns; 0..K−1 where the fit was given none."""
        self._check_fitted()
        return np.arange(self.n_classes_) if self.class_names_ is None else np.array(self.class_names_)

    # -- machinery --------------------------------------------------------------------------------

    def _enter(self, logits: Any) -> tuple[Any, Any]:
        """Return the checked logits of a fit, here or where the method can fit them, and names of columns."""
        if (there := rows_on_device(self, logits)) is not None:
            return there, None
        x, origin = inputs.check_logits(logits, input=self.input)
        return x, origin.columns

    def _fits_on_device(self, n_rows: int, n_classes: int) -> bool:
        """Return whether ``_fit`` takes so many rows as :class:`hcal.runtime.device_rows.DeviceRows`."""
        return False

    def _predict_on_cuda(self, logits: Tensor, *, check: bool = True) -> Tensor | None:
        """Return probabilities of a tensor by a kernel of the method's own, where there is one for it."""
        return None

    def _working(self, x: FloatArray) -> FloatArray:
        return x if self.native_float32 else x.astype(np.float64, copy=False)

    def _predict_into(self, x: FloatArray, out: FloatArray) -> None:
        """Write the probabilities of a block into ``out``, with the argmax kept where that is promised."""
        out[...] = self._predict(self._working(bounded(x)))
        if self.preserves is not None:
            keep_argmax(out, x)

    def _predict_blocks(self, x: FloatArray | LogRows) -> FloatArray:
        rows = max(1, _BLOCK_EVENTS // x.shape[1])
        out = np.empty(x.shape, dtype=x.dtype)
        floor = self.state_.get("input_floor")  # files from before 0.2 have none
        for start in range(0, len(x), rows):
            self._predict_into(apply_floor(x[start : start + rows], floor), out[start : start + rows])
        if PRIOR in self.state_:
            prior.shift(out, self.state_[PRIOR])
        return out

    def _check_weight(self, sample_weight: Any, n_rows: int) -> NDArray[np.float64] | None:
        weight = inputs.check_weight(sample_weight, n_rows)
        if weight is not None and not self.weighted:
            raise ValueError(f"{self.name!r} does not support sample_weight")
        return weight

    def _warn_of_weight(self, weight: NDArray[np.float64] | None) -> None:
        if weight is not None:
            self._warn_of_total(float(weight.sum()), int(np.count_nonzero(weight)))

    def _warn_of_total(self, total: float, rows: int) -> None:
        """Say so where the weights of rows, those of weight 0 left out, sum to far more or less than rows."""
        if not rows / _FAR <= total <= rows * _FAR:
            warnings.warn(
                f"{self.name}: sample_weight sums to {total:.4g} over {rows} rows; a weight counts rows (2 "
                "is the row twice), so the fit takes the data for that many: pass "
                "sample_weight * (len(sample_weight) / sample_weight.sum()) if only their ratios matter",
                CalibrationWarning,
                stacklevel=4,
            )

    def _remember(self, fitted: Fitted, n_classes: int, names: tuple[ClassName, ...] | None = None) -> None:
        self.state_ = fitted.state
        if PRIOR in fitted.state and not isinstance(getattr(type(self), "preserves", None), property):
            self.preserves = None
        self.n_classes_ = n_classes
        self.class_names_ = names
        self.converged_ = fitted.converged
        self.info_ = fitted.info

    def _forget(self) -> None:
        """Drop everything learned, so that a failed fit leaves no half-fitted object that predicts."""
        learned = [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]
        for name in [*learned, *({"preserves"} & set(vars(self)))]:
            delattr(self, name)

    def _check_fitted(self) -> None:
        if "state_" not in vars(self):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit(logits, y) first")

    def _check_state(self) -> None:
        """Raise a ValueError that names the array which is not as the method declares it."""
        spec = choose_spec(self.state_specs, self.get_params(deep=False), set(self.state_))
        check_state(spec + FLOOR_SPEC + PRIOR_SPEC, self.state_, self.n_classes_)

    def _score_fit(self, x: Logits, y: IntArray, weight: NDArray[np.float64] | None) -> None:
        if isinstance(x, DeviceRows):
            self.scores_ = score_on_device(self, x, y, weight)
            return
        self.scores_ = {
            "before": score_probs(softmax(x), y, weight),
            "after": score_probs(self._predict_blocks(x), y, weight),
        }

    def _warn(self, fitted: Fitted) -> None:
        if not fitted.converged:
            warnings.warn(
                f"{self.name}: {fitted.message or 'did not converge'}", CalibrationWarning, stacklevel=3
            )
        before, after = self.scores_["before"]["nll"], self.scores_["after"]["nll"]
        if after > before * (1 + 1e-6) + 1e-12:
            warnings.warn(
                f"{self.name}: NLL on the calibration set rose from {before:.6g} to {after:.6g}; "
                "the calibrator left it worse than before",
                CalibrationWarning,
                stacklevel=3,
            )

    def __iter__(self) -> Iterator[Any]:  # a calibrator is not a sequence; without this, np.asarray would try
        raise TypeError(f"{type(self).__name__} is not iterable")
