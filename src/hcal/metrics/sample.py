"""A checked sample of predictions, with the intermediate results that metrics share.

What the top-label metrics measure is decided here, once: of two classes the probability of the positive one, else the
probability of the predicted class (:data:`Event`). Every metric computes from a :class:`Sample`, which checks the input
once and caches what it computes: one sort for all top-label metrics, one pass for the entries of class-wise bins.
A bootstrap replicate is the same sample with other weights. The input check copies tensors on an accelerator to the
host.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.class_names import number_of_class
from hcal.frames import AnyArray, refuse_other_index
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray, prefix_sums, row_blocks
from hcal.rows import ClassNames, Rows

if TYPE_CHECKING:
    from hcal.metrics.windowed import HError

Vector = Float64
#: What top-label metrics measure. "auto": P(positive) if there are two classes, else the predicted class.
Event = Literal["auto", "top-label"]
#: The positive one of two classes: its number, or its name where the columns have names; None is the second.
PositiveClass = int | str | None

#: N x K arrays are processed in blocks of about this many numbers, so that memory stays bounded.
BLOCK = 1 << 22
#: So many numbers stay in the cache of a core.
CACHED = 1 << 16
#: The largest sum of integer weights for metrics that look at every repetition of a row.
MOST_COPIES = 10**7
#: ``Sample.subset`` has at most this many rows, and at most this many probabilities.
SUBSET_ROWS, SUBSET_NUMBERS = 10_000, 5_000_000


class Entries(NamedTuple):
    """The entries p_ik above a threshold, in row-major order."""

    row: IntArray
    column: IntArray
    value: Vector
    mark: NDArray[np.bool_]  # [y_i = k]


class Data:
    """Probabilities and labels without weights; everything derived from them is computed at its first use."""

    def __init__(
        self, probs: AnyArray, y: AnyArray, event: Event = "auto", positive: PositiveClass = 1
    ) -> None:
        self.probs, _ = inputs.check_probs(probs)
        self.n, self.k = self.probs.shape
        self.y = inputs.check_labels(y, self.n, self.k)
        self.event, self.positive = check_event(event, positive, self.k)
        self._entries: dict[float, Entries] = {}
        #: The bin of every entry above a threshold, by how the bins were cut.
        self.places: dict[Hashable, IntArray] = {}
        # Caches of costly results that do not depend on weights: kernel sums, h-errors.
        self.pair_sums: dict[float, tuple[Vector, float]] = {}
        self.h_errors: dict[tuple[str, int], HError] = {}

    @cached_property
    def pred(self) -> IntArray:
        """Predicted class, shape (N,); with ties the first."""
        return np.asarray(self.probs.argmax(axis=1), dtype=np.int64)

    @cached_property
    def top_conf(self) -> Vector:
        """Probability of the predicted class, max_k p_ik, shape (N,)."""
        return self.probs[np.arange(self.n), self.pred].astype(np.float64)

    @cached_property
    def top_hit(self) -> Vector:
        """[prediction = label] as 0.0 or 1.0, shape (N,)."""
        return np.asarray(self.pred == self.y, dtype=np.float64)

    @property
    def judges_positive(self) -> bool:
        """Whether the measured event is "the label is ``positive``", and not "the prediction is right"."""
        return self.k == 2 and self.event == "auto"

    @cached_property
    def conf(self) -> Vector:
        """Probability of the measured event, shape (N,)."""
        return self.column(self.positive) if self.judges_positive else self.top_conf

    @cached_property
    def hit(self) -> Vector:
        """Whether the measured event happened, as 0.0 or 1.0, shape (N,)."""
        if not self.judges_positive:
            return self.top_hit
        return np.asarray(self.y == self.positive, dtype=np.float64)

    @cached_property
    def chosen(self) -> Vector:
        """Probability of the label, shape (N,)."""
        return np.asarray(self.probs[np.arange(self.n), self.y], dtype=np.float64)

    @cached_property
    def squares(self) -> Vector:
        """Sum of squared probabilities of each row, shape (N,)."""
        blocks = (block.astype(np.float64) for block in self.row_blocks())
        return np.concatenate([np.einsum("nk,nk->n", b, b) for b in blocks])

    def row_blocks(self) -> list[FloatArray]:
        """Views of consecutive rows, about ``BLOCK`` numbers each."""
        return [self.probs[rows] for rows in row_blocks(self.probs.shape, BLOCK)]

    @cached_property
    def order(self) -> IntArray:
        """Indices that sort ``conf`` in ascending order (stable); all top-label metrics share this sort."""
        return np.argsort(self.conf, kind="stable").astype(np.int64)

    @cached_property
    def conf_sorted(self) -> Vector:
        """Probabilities of the measured event, ascending."""
        return self.conf[self.order]

    @cached_property
    def hit_sorted(self) -> Vector:
        """Hits in the order of the confidences."""
        return self.hit[self.order]

    @cached_property
    def run_ends(self) -> IntArray:
        """Position after the last row of each run of equal values in ``conf_sorted``, shape (runs,)."""
        return np.flatnonzero(np.diff(self.conf_sorted, append=np.inf) > 0) + 1

    def column(self, k: int) -> Vector:
        """Return the probabilities of one class, shape (N,)."""
        return np.asarray(self.probs[:, k], dtype=np.float64)

    def columns(self) -> Iterator[FloatArray]:
        """Yield the probabilities of each class in turn, as a contiguous array of shape (N,)."""
        step = max(1, BLOCK // self.n)
        for k in range(0, self.k, step):
            yield from np.ascontiguousarray(self.probs[:, k : k + step].T)

    def entries(self, threshold: float) -> Entries:
        """Return the entries p_ik > threshold."""
        if threshold not in self._entries:
            rows, columns, values = [], [], []
            first = 0
            for block in self.row_blocks():
                flat = np.flatnonzero(block.astype(np.float64, copy=False) > threshold)
                row, column = np.divmod(flat, self.k)
                rows.append(row + first)
                columns.append(column)
                values.append(block.ravel()[flat].astype(np.float64))
                first += len(block)
            row, column = np.concatenate(rows), np.concatenate(columns)
            mark = self.y[row] == column
            self._entries[threshold] = Entries(row, column, np.concatenate(values), mark)
        return self._entries[threshold]

    def column_sums(self, weight: Float64, power: int = 1) -> Float64:
        """Return Σ w·p of every class, or Σ w·p², of shape (K,), or (B, K) for B weights."""
        sums = np.zeros((*weight.shape[:-1], self.k))
        # A power is a new array, which had better stay in the cache.
        for rows in row_blocks(self.probs.shape, BLOCK if power == 1 else CACHED):
            block = self.probs[rows].astype(np.float64, copy=False)
            sums += weight[..., rows] @ (block if power == 1 else block**power)
        return sums

    def relabelled(self, y: IntArray) -> Data:
        """Return the same predictions with other (checked) labels; results that do not depend on y are shared."""
        other = copy(self)
        for name in ("top_hit", "hit", "chosen", "hit_sorted"):
            other.__dict__.pop(name, None)
        other.y = y
        other.pair_sums, other.h_errors = {}, {}
        other._entries = {}
        for threshold, entries in self._entries.items():
            mark = y[entries.row] == entries.column
            other._entries[threshold] = entries._replace(mark=mark)
        return other

    def judging(self, event: Event, positive: int) -> Data:
        """Return the same rows for another event; results that do not depend on it are shared."""
        other = copy(self)
        other.event, other.positive = check_event(event, positive, self.k)
        for name in ("conf", "hit", "order", "conf_sorted", "hit_sorted", "run_ends"):
            other.__dict__.pop(name, None)
        return other

    def drawn(self, n_draws: int, rng: np.random.Generator) -> IntArray:
        """Draw labels with the predicted probabilities, shape (D, N), as if the predictions were calibrated."""
        return np.concatenate(
            [draw_columns(block, n_draws, rng) for block in self.row_blocks()], axis=1
        )


def draw_columns(weights: FloatArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw a column for every row with probabilities proportional to weights (N, C), D times; shape (D, N).

    >>> draw_columns(np.array([[0.0, 1.0]]), 3, np.random.default_rng(0)).ravel()
    array([1, 1, 1])
    """
    rows = np.arange(len(weights))
    cumulated = np.cumsum(weights, axis=1, dtype=np.float64)
    cumulated /= cumulated[:, -1:]
    flat = (cumulated + rows[:, None]).ravel()
    places = np.searchsorted(flat, rng.random((n_draws, len(rows))) + rows, side="right")
    columns = np.clip(places - rows * weights.shape[1], 0, weights.shape[1] - 1)
    return np.asarray(columns, dtype=np.int64)


def check_event(event: Event, positive: PositiveClass, n_classes: int) -> tuple[Event, int]:
    """Return what top-label metrics measure, or refuse it.

    >>> check_event("auto", 2, 3)
    Traceback (most recent call last):
    ...
    ValueError: positive chooses one of two classes, and probs has 3: leave it out, or pass two columns
    """
    if event not in get_args(Event):
        raise ValueError(f"event must be 'auto' or 'top-label', got {event!r}")
    is_number = isinstance(positive, int | np.integer) and not isinstance(positive, bool)
    if n_classes == 2 and (not is_number or positive not in (0, 1)):
        raise ValueError(f"positive must be 0 or 1, the number of a class, got {positive!r}")
    if n_classes != 2 and (not is_number or positive != 1):
        raise ValueError(
            f"positive chooses one of two classes, and probs has {n_classes}: leave it out, "
            "or pass two columns"
        )
    return event, 1 if positive == 1 else 0


class Ranked:
    """Weighted events in ascending order of their probability, with prefix sums.

    ``conf`` are the ascending probabilities, ``hit`` is 1.0 if the event happened, else 0.0; all arrays are (N,).
    ``run_ends`` (runs,) are the positions after the last row of each run of equal probabilities.

    >>> conf, hit = np.array([0.5, 0.75]), np.array([0.0, 1.0])
    >>> float(Ranked(conf, hit, np.ones(2), run_ends=np.array([1, 2])).total)
    2.0
    """

    def __init__(self, conf: Vector, hit: Vector, weight: Vector, run_ends: IntArray) -> None:
        self.conf = conf
        self.hit = hit
        self.weight = weight
        self.run_ends = run_ends

    @cached_property
    def prefix(self) -> Float64:
        """Prefix sums, from 0, of weight, weight·conf and weight·hit, shape (3, N + 1)."""
        return np.stack([prefix_sums(self.weight * x) for x in (1.0, self.conf, self.hit)])

    @cached_property
    def variance(self) -> Vector:
        """The variance p(1 − p) of each event if it is drawn, shape (N,)."""
        return self.conf * (1 - self.conf)

    @cached_property
    def noise_prefix(self) -> Vector:
        """Prefix sums, from 0, of weight·p(1 − p), shape (N + 1,)."""
        return prefix_sums(self.weight * self.variance)

    @cached_property
    def weighted_noise_prefix(self) -> Vector:
        """Prefix sums, from 0, of weight²·p(1 − p), shape (N + 1,)."""
        return prefix_sums(self.weight**2 * self.variance)

    @cached_property
    def cuts(self) -> IntArray:
        """0 and the ends of the runs of equal probabilities, shape (runs + 1,)."""
        return np.concatenate([[0], self.run_ends])

    @cached_property
    def cut_copies(self) -> Vector:
        """Sum of the weights before each of ``cuts``, shape (runs + 1,)."""
        return np.asarray(self.prefix[0, self.cuts])

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.prefix[0, -1])

    @property
    def gap(self) -> Vector:
        """Cumulated weight·(conf − hit) at the end of each run of equal probabilities, shape (runs,)."""
        cumulated = np.cumsum(self.weight * (self.conf - self.hit))
        return np.asarray(cumulated[self.run_ends - 1])


class Clusters:
    """Boundaries of the k-means clusters of every class, by the arguments of the metric that found them.

    They depend on the weights of the rows; bootstrap replicates use those of the sample that they are drawn from.
    """

    def __init__(self, weight: Vector | None) -> None:
        self.weight = weight
        self.edges: dict[tuple[int, int], Float64] = {}


class Sample:
    """N predictions with their labels and, optionally, weights: the input of every metric.

    Pass it to a metric in place of ``probs``, without ``y`` and ``sample_weight``; then several metrics share the
    input check and the sort.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        numpy, torch (CPU or CUDA), pandas, polars.
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
    event : {"auto", "top-label"}
        What top-label metrics measure. "auto": the probability of the class ``positive`` if there are two classes,
        else that of the predicted class. "top-label": that of the predicted class, for two classes too.
    positive : int or str, optional
        The positive one of two classes, by its number or, of a frame, its name; the second by default.

    Attributes
    ----------
    n, k : int
        Rows and classes.
    names : tuple of K str or int, or None
        Names of the classes, of a frame whose columns are named like the labels.

    Examples
    --------
    >>> s = Sample([[0.2, 0.8], [0.6, 0.4]], [1, 1])
    >>> s.n, s.k, float(s.total)
    (2, 2, 2.0)
    """

    def __init__(
        self,
        probs: AnyArray,
        y: AnyArray,
        sample_weight: AnyArray = None,
        *,
        event: Event = "auto",
        positive: PositiveClass = None,
    ) -> None:
        self.names: ClassNames | None = None
        if type(probs) is not np.ndarray:  # columns of a frame have names, and its rows an index
            rows = Rows.of_predictions(probs, y, input="probs", weight=sample_weight)
            self.names = rows.names
            probs, y = rows.scores, rows.labels
        else:
            refuse_other_index(probs, {"y": y, "sample_weight": sample_weight})
        self.data = Data(probs, y, event, _number_of(positive, self.names))
        self.n, self.k = self.data.n, self.data.k
        self.weight = inputs.check_weight(sample_weight, self.n)
        self.clusters = Clusters(self.weight)

    def reweighted(self, weight: Vector | None) -> Sample:
        """Return the same predictions with other (checked) weights; all cached results are shared."""
        other = object.__new__(Sample)
        other.data, other.n, other.k = self.data, self.n, self.k
        other.names = self.names
        other.weight = weight
        other.clusters = self.clusters if weight is self.weight else Clusters(weight)
        return other

    def replicate(self, weight: Vector) -> Sample:
        """Return a bootstrap replicate: the same predictions with other weights, in the clusters of this sample."""
        other = self.reweighted(weight)
        other.clusters = self.clusters
        return other

    def judging(self, event: Event, positive: int = 1) -> Sample:
        """Return the same rows for another event."""
        if (event, positive) == (self.data.event, self.data.positive):
            return self
        other = self.reweighted(self.weight)
        other.data = self.data.judging(event, positive)
        return other

    def relabelled(self, y: IntArray) -> Sample:
        """Return the same predictions and weights with other (checked) labels."""
        other = self.reweighted(self.weight)
        other.data = self.data.relabelled(y)
        for name in ("w", "total", "column_sums"):  # none of these depends on labels
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    def with_hits(self, hit: NumpyArray) -> Sample:
        """Return the same confidences with other hits, which are given in ascending order of the confidences.

        A hit may be a share, if a row stands for several.
        """
        other = self.reweighted(self.weight)
        other.data = copy(self.data)
        other.data.__dict__["hit_sorted"] = hit.astype(np.float64)
        return other

    @property
    def y(self) -> IntArray:
        """Labels, shape (N,)."""
        return self.data.y

    @cached_property
    def w(self) -> Vector:
        """Weights, ones if none were given, shape (N,)."""
        return np.ones(self.n) if self.weight is None else self.weight

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.w.sum())

    @cached_property
    def ranked(self) -> Ranked:
        """The measured events in the order of their probabilities."""
        data = self.data
        return Ranked(data.conf_sorted, data.hit_sorted, self.w[data.order], data.run_ends)

    @cached_property
    def column_sums(self) -> Vector:
        """Weighted sums of every class's probabilities, shape (K,)."""
        return self.data.column_sums(self.w)

    @cached_property
    def column_variances(self) -> Vector:
        """Σ w·p(1 − p) of every class, shape (K,)."""
        return self.column_sums - self.data.column_sums(self.w, power=2)

    @cached_property
    def weighted_column_variances(self) -> Vector:
        """Σ w²·p(1 − p) of every class, shape (K,)."""
        if self.weight is None:
            return self.column_variances
        square = self.w**2
        return self.data.column_sums(square) - self.data.column_sums(square, power=2)

    @cached_property
    def subset_rows(self) -> IntArray:
        """Row numbers of :meth:`systematic_rows` for metrics that look at all pairs of rows.

        They are at most 10,000 rows and 5 million probabilities.
        """
        return self.systematic_rows(min(SUBSET_ROWS, max(2, SUBSET_NUMBERS // self.k)))

    def systematic_rows(self, most: int) -> IntArray:
        """Return the numbers, ascending, of at most so many rows that represent all of them.

        They are rows at equal steps in the order of confidence, prediction and label. So they do not depend on the
        order of the rows in the data.
        """
        size = min(self.n, most)
        order = np.lexsort((self.y, self.data.pred, self.data.conf))
        steps = (np.arange(size) + 0.5) * (self.n / size)
        return np.sort(order[steps.astype(np.int64)])

    @cached_property
    def subset(self) -> Sample:
        """The sample restricted to ``subset_rows``; the sample itself if it is small enough."""
        rows = self.subset_rows
        if len(rows) == self.n:
            return self
        return self.at(rows, None if self.weight is None else self.weight[rows])

    def at(self, rows: IntArray, weight: Vector | None) -> Sample:
        """Return the given rows, which may repeat, with other (checked) weights."""
        data = self.data
        probs = data.probs[rows]
        labels = data.y[rows]
        return Sample(probs, labels, weight, event=data.event, positive=data.positive)

    def mean(self, values: Vector) -> float:
        """Return the weighted mean of one value a row."""
        return float(np.dot(self.w, values) / self.total)

    def repeated(self, metric: str) -> Sample:
        """Return the sample with each row repeated as often as its integer weight says."""
        if self.weight is None:
            return self
        self.need_repetitions(metric, copied=True)
        rows = np.repeat(np.arange(self.n), self.weight.astype(np.int64))
        return self.at(rows, None)

    @property
    def is_whole(self) -> bool:
        """Whether every weight is a whole number, which stands for that many copies of the row."""
        return self.weight is None or np.array_equal(self.weight, np.rint(self.weight))

    def need_repetitions(self, metric: str, *, copied: bool = False) -> None:
        """Refuse weights that are not whole, or whose sum is too large if rows will be ``copied``."""
        if self.weight is None:
            return
        if not self.is_whole:
            raise ValueError(
                f"{metric} counts samples, so sample_weight must hold whole repetition counts; "
                f"row {int(np.argmax(self.weight != np.rint(self.weight)))} is not whole"
            )
        if copied and self.total > MOST_COPIES:
            raise ValueError(
                f"{metric} looks at every repetition: sample_weight sums to {self.total:.3g}; the "
                f"limit is {MOST_COPIES:.0e}"
            )


def _number_of(positive: PositiveClass, names: ClassNames | None) -> PositiveClass:
    """Return the number of the positive class of two; what cannot be a name is left to :func:`check_event`."""
    if positive is None:
        return 1
    if names is None or len(names) != 2:
        return positive
    return number_of_class(positive, names, 2)


def check_integer(name: str, value: object, least: int) -> int:
    """Return an integer argument of a metric; anything else, or less than ``least``, is refused.

    >>> check_integer("bins", 2.5, 1)
    Traceback (most recent call last):
    ...
    ValueError: bins must be an integer of at least 1, got 2.5
    """
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def check_bandwidth(bandwidth: float) -> None:
    """Refuse a bandwidth that is not positive."""
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")


def as_sample(
    probs: AnyArray,
    y: AnyArray,
    sample_weight: AnyArray,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> Sample:
    """Return the arguments of a metric as a checked sample; a ``Sample`` is returned as it is.

    >>> s = as_sample([[0.2, 0.8]], [1], None)
    >>> as_sample(s, None, None) is s
    True
    """
    if isinstance(probs, Sample):
        if y is not None or sample_weight is not None:
            raise ValueError("a Sample already holds y and sample_weight: do not pass them again")
        if (event, positive) != ("auto", None):
            raise ValueError(
                "a Sample already holds event and positive: pass them to Sample(...) instead"
            )
        return probs
    if y is None:
        raise ValueError("y is missing: pass integer labels of shape (N,)")
    return Sample(probs, y, sample_weight, event=event, positive=positive)
