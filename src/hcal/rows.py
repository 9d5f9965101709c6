"""Checked scores of rows, and all that belongs to them: labels, weights, groups, segments and names of classes.

Every public function makes its :class:`Rows` once, with :meth:`Rows.of`, and passes them on as a whole. So names,
groups and the kind of the scores reach whoever computes with them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.class_names import ClassName, check_classes, class_part, encode, is_text
from hcal.frames import ColumnName, Origin, columns_by_name, index_of, restore, to_numpy
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, is_ragged
from hcal.text import one_line

ClassNames = tuple[ClassName, ...]
#: The title of segments whose column has no name.
UNNAMED = "segment"
#: A number without a fraction, and a date with the time 00:00, as texts.
_WHOLE_NUMBER = re.compile(r"(-?\d+)\.0+")
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[ T]00:00(?::00(?:\.0+)?)?")
#: Fewer values than this may all lie in [0, 1] by chance, although they are logits.
ENOUGH_VALUES = 30


class Layout(Protocol):
    """What the columns of other rows, or of a fitted calibrator, are; columns that have names are put in this order."""

    @property
    def n_classes(self) -> int:
        """The number K of classes."""

    @property
    def names(self) -> ClassNames | None:
        """The names of the classes."""

    @property
    def columns(self) -> tuple[ColumnName, ...] | None:
        """How the columns of the frame were called."""

    @property
    def score_range(self) -> tuple[float, float] | None:
        """With two classes of logits, the least and the greatest score of class 1 that a fit saw."""


@dataclass(frozen=True)
class Segments:
    """The segment of each row: a country, a tenant, a task.

    Attributes
    ----------
    codes : array of int of shape (N,)
        Positions in ``names``.
    names : tuple of S str
        In ascending order; the values of several columns are joined with " · ".
    title : str
        The names of the columns, or "segment".
    """

    codes: IntArray
    names: tuple[str, ...]
    title: str = UNNAMED

    @classmethod
    def of(cls, by: Any, n_rows: int) -> Segments:
        """Return the segments of one or several columns; a row without a value is refused.

        >>> Segments.of(["DE", "FR", "DE"], 3)
        Segments(codes=array([0, 1, 0]), names=('DE', 'FR'), title='segment')
        """
        if isinstance(by, Segments):
            return by
        if isinstance(by, dict):
            columns = {str(title): values for title, values in by.items()}
        else:
            columns = _columns_of(by)
        codes = np.zeros(n_rows, dtype=np.int64)
        texts = [""]
        for values in columns.values():
            column = _coded(inputs.check_names(values, n_rows, "by"))
            pairs, codes = np.unique(codes * len(column.texts) + column.codes, return_inverse=True)
            heads, tails = np.divmod(pairs, len(column.texts))
            texts = [
                _joined(texts[head], column.texts[tail])
                for head, tail in zip(heads.tolist(), tails.tolist(), strict=True)
            ]
        # Different values may have one text, such as 1 and "1".
        names, places = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
        return cls(places[codes].astype(np.int64), tuple(names.tolist()), " · ".join(columns))

    def __getitem__(self, index: Any) -> Segments:
        return replace(self, codes=self.codes[index])

    def rows_of(self, code: int) -> IntArray:
        """Return the numbers of the rows of one segment."""
        return np.flatnonzero(self.codes == code)


@dataclass(frozen=True)
class Rows:
    """Checked scores of rows and all that belongs to them.

    Attributes
    ----------
    scores : array of shape (N, K)
        In float32 or float64, the classes in the order of ``names``.
    kind : {"logits", "probs", "log_probs"}
        What the scores are.
    y : array of int of shape (N,), optional
        The labels as positions of classes.
    weight : array of shape (N,), optional
        How many rows each row stands for.
    groups : array of int of shape (N,), optional
        Rows of one group depend on each other.
    by : Segments, optional
        The segment of each row.
    ids : array of shape (N,), optional
    names : tuple of K str or int, optional
        Names of the classes.
    columns : tuple of K str or int, optional
        How the source called the columns, in the order of ``scores``.
    origin : Origin
        The library, index and type of what was passed in.
    start : int
        The number of the first row in its source, for messages.
    one_column : bool
        Whether there was one score a row, of class 1.

    Examples
    --------
    >>> rows = Rows.of([[0.2, 0.8], [0.6, 0.4]], ["dog", "cat"], input="probs", classes=["cat", "dog"])
    >>> rows.y, rows[1:].scores, len(rows), rows.n_classes
    (array([1, 0]), array([[0.6, 0.4]]), 2, 2)
    """

    scores: FloatArray
    kind: InputKind
    y: IntArray | None = None
    weight: Float64 | None = None
    groups: IntArray | None = None
    by: Segments | None = None
    ids: NDArray[Any] | None = None
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None
    origin: Origin | None = None
    start: int = 0
    one_column: bool = False

    @classmethod
    def of(
        cls,
        scores: Any,
        y: Any = None,
        *,
        input: InputKind,
        weight: Any = None,
        groups: Any = None,
        by: Any = None,
        ids: Any = None,
        classes: Any = None,
        like: Layout | None = None,
        start: int = 0,
        whole: bool = True,
    ) -> Rows:
        """Check scores and what belongs to them, at a public door.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for the score of class 1 of two classes
            An array, a tensor, a frame of any library, or a list.
        y : array-like of shape (N,), optional
            Integers 0..K−1, or names of classes.
        input : {"logits", "probs", "log_probs"}
        weight, groups, ids : array-like of shape (N,), optional
        by : array-like of shape (N,), frame, or dict of columns, optional
        classes : sequence of K str or int, optional
            Names of the classes. A frame whose columns have these names is put in their order.
        like : Layout, optional
            What a calibrator was fitted on, or other rows: columns that have names are put in its order by name.
        start : int
            The number of the first row in its source.
        whole : bool
            Whether these are all rows of the source; a block alone does not show what kind its scores are.
        """
        with rows_from(start):
            rows = cls.of_scores(
                scores, input=input, classes=classes, like=like, start=start, whole=whole, y=y
            )
            others = {"y": y, "sample_weight": weight, "groups": groups, "by": by}
            _refuse_other_index(rows.origin, others)
            n_rows = len(rows)
            labels = None
            if y is not None:
                labels = inputs.check_labels(encode(y, rows.names), n_rows, rows.n_classes)
            return replace(
                rows,
                y=labels,
                weight=inputs.check_weight(weight, n_rows),
                groups=inputs.check_groups(groups, n_rows),
                by=None if by is None else Segments.of(by, n_rows),
                ids=None if ids is None else inputs.check_names(ids, n_rows, "ids"),
            )

    @classmethod
    def of_scores(
        cls,
        scores: Any,
        *,
        input: InputKind,
        classes: Any = None,
        like: Layout | None = None,
        start: int = 0,
        whole: bool = True,
        y: Any = None,
    ) -> Rows:
        """Check scores alone, as a prediction needs them; the arguments are those of :meth:`of`.

        ``y`` tells only whether the columns of a frame are names of classes.
        """
        if type(scores) is np.ndarray:
            array, origin = scores, Origin("numpy", scores.dtype)
        else:
            array, origin = to_numpy(scores, input)
        n_classes = None if like is None else like.n_classes
        names = None if like is None else like.names
        columns = None if like is None else like.columns
        if classes is not None or origin.columns is not None:
            names = _names(origin.columns, y, classes, like, n_classes=n_classes or _width(array))
        if origin.columns is not None:
            array, columns = _in_order(array, origin.columns, names, like)
        checked = inputs.check_array(array, input, n_classes=n_classes)
        one_column = array.ndim == 1
        if one_column and whole and like is not None:
            refuse_other_kind(array, input, like.score_range)
        return cls(
            scores=checked,
            kind=input,
            names=names,
            columns=columns,
            origin=origin,
            start=start,
            one_column=one_column,
        )

    @classmethod
    def of_predictions(cls, scores: Any, y: Any = None, *, input: InputKind, **others: Any) -> Rows:
        """Check rows that are to be evaluated; ``others`` are arguments of :meth:`of`.

        In a list of rows of different lengths each row is a question, and its entries are the question's options.
        Options that a question does not have get the probability 0.
        """
        if is_ragged(scores):
            return cls.of(inputs.to_probs(scores, input), y, input="probs", **others)
        return cls.of(scores, y, input=input, **others)

    @classmethod
    def of_baseline(cls, baseline: Any, rows: Rows, input: InputKind) -> Rows:
        """Check other predictions for the same rows; columns that have names are put in their order."""
        if not is_ragged(baseline):
            n_classes = _width(to_numpy(baseline, "baseline")[0])
            if n_classes != rows.n_classes:
                raise ValueError(
                    f"baseline has {n_classes} classes, and the predictions have {rows.n_classes}"
                )
        other = cls.of_predictions(baseline, input=input, like=rows)
        if len(other) != len(rows):
            raise ValueError(
                f"baseline has {len(other):,} rows, and the predictions have {len(rows):,}"
            )
        return other

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def n_classes(self) -> int:
        """The number K of classes."""
        return int(self.scores.shape[1])

    @property
    def labels(self) -> IntArray:
        """The labels; rows without labels raise a ValueError."""
        if self.y is None:
            raise ValueError("y is missing: pass one label a row")
        return self.y

    @property
    def x(self) -> Float64:
        """The scores as a fit takes them: float64."""
        return self.scores.astype(np.float64, copy=False)

    @property
    def total(self) -> float:
        """How many rows the rows stand for: the sum of the weights, or N."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @property
    def score_range(self) -> tuple[float, float] | None:
        """With two classes of logits, the least and the greatest score of class 1, else None."""
        if self.kind != "logits" or self.n_classes != 2:
            return None
        score = self.scores[:, 1] - self.scores[:, 0]
        return float(score.min()), float(score.max())

    def restored(self, probs: FloatArray) -> Any:
        """Return probabilities (N, K) of these rows in the library, device and float width of what was passed in."""
        origin = self.origin
        if origin is None or (origin.library == "numpy" and origin.dtype == probs.dtype):
            return probs
        return restore(probs, origin, self.names or self.columns)

    def logits(self) -> FloatArray:
        """Return the scores as finite logits (N, K)."""
        logits: FloatArray = inputs.to_logits(self.scores, self.kind)
        return logits

    def probs(self) -> FloatArray:
        """Return the probabilities (N, K) that the scores state."""
        return inputs.probs_of(self.scores, self.kind)

    def __getitem__(self, index: Any) -> Rows:
        """Return some of the rows, by a slice, numbers or marks."""
        origin = self.origin
        if origin is not None and origin.index is not None:
            origin = replace(origin, index=origin.index[index])
        first = index.start or 0 if isinstance(index, slice) else 0
        return replace(
            self,
            scores=self.scores[index],
            y=_some(self.y, index),
            weight=_some(self.weight, index),
            groups=_some(self.groups, index),
            by=None if self.by is None else self.by[index],
            ids=_some(self.ids, index),
            origin=origin,
            start=self.start + first,
        )

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield the rows in blocks of at most ``size`` rows."""
        for first in range(0, len(self), size):
            yield self[first : first + size]


class OneColumn:
    """The range of scores of one column over a whole source, which shows whether they can be of the stated kind.

    A partial result (:mod:`hcal.passes`): each block is added, and two parts are merged.
    """

    def __init__(self) -> None:
        self.count = 0
        self.low = np.inf
        self.high = -np.inf

    def update(self, rows: Rows) -> OneColumn:
        """Add a block of rows; rows with several columns say by their sums what they are."""
        if rows.one_column and rows.kind == "logits":
            self.count += len(rows)
            self.low = min(self.low, float(rows.scores[:, 1].min()))
            self.high = max(self.high, float(rows.scores[:, 1].max()))
        return self

    def merge(self, other: OneColumn) -> OneColumn:
        """Add the rows of another part."""
        self.count += other.count
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        return self

    def check(self, fitted: tuple[float, float] | None) -> None:
        """Raise a ValueError if all scores look like probabilities and those of the fit did not."""
        if self.count >= ENOUGH_VALUES:
            refuse_other_kind(np.array([self.low, self.high] * ENOUGH_VALUES), "logits", fitted)


@contextmanager
def rows_from(start: int) -> Iterator[None]:
    """Make an error about a block say at which row the block begins, because its message counts from there.

    Examples
    --------
    >>> with rows_from(65536):
    ...     raise ValueError("y: row 3 is 'cow'")
    Traceback (most recent call last):
    ...
    ValueError: counting from row 65,536: y: row 3 is 'cow'
    """
    try:
        yield
    except ValueError as error:
        if start == 0:
            raise
        raise type(error)(f"counting from row {start:,}: {error}") from None


def refuse_other_kind(
    values: NDArray[Any], kind: InputKind, fitted: tuple[float, float] | None
) -> None:
    """Refuse scores (N,) of class 1 that all lie in [0, 1] where a calibrator of logits saw scores outside.

    >>> refuse_other_kind(np.linspace(0.1, 0.9, 50), "logits", (-4.0, 5.0))
    Traceback (most recent call last):
    ...
    ValueError: all 50 scores lie in [0, 1] and look like probabilities, but the scores of the fit, or ...
    """
    if kind != "logits" or fitted is None or len(values) < ENOUGH_VALUES:
        return
    low, high = fitted
    if values.min() < 0 or values.max() > 1 or (low >= 0 and high <= 1):
        return
    raise ValueError(
        f"all {len(values):,} scores lie in [0, 1] and look like probabilities, but the scores of the fit, or the "
        f"reference, are logits from {low:.3g} to {high:.3g}: pass logits, ln(p / (1 − p))"
    )


# -- names of columns -----------------------------------------------------------------------------


def _width(array: NDArray[Any]) -> int:
    """Return the number of classes of an unchecked array."""
    return int(array.shape[1]) if array.ndim == 2 else 2


def _names(
    columns: tuple[ColumnName, ...] | None,
    y: Any,
    classes: Any,
    like: Layout | None,
    *,
    n_classes: int,
) -> ClassNames | None:
    """Return the names of the classes: those passed in, of the fit, or of columns that the labels use."""
    known = None if like is None else like.names
    if classes is not None:
        names = check_classes(classes, n_classes)
        if known is not None and names != known:
            raise ValueError(
                f"the classes are not those of the model: {_listed(names)} and {_listed(known)}"
            )
        return names
    if like is not None or columns is None or len(columns) != n_classes:
        return known
    if all(isinstance(name, int) for name in columns):
        return None if _are_numbers(columns) else check_classes(columns, n_classes)
    if all(isinstance(name, str) for name in columns) and y is not None and is_text(y):
        return check_classes(columns, n_classes)
    return None


def _in_order(
    array: NDArray[Any],
    columns: tuple[ColumnName, ...],
    names: ClassNames | None,
    like: Layout | None,
) -> tuple[NDArray[Any], tuple[ColumnName, ...]]:
    """Return the scores with their columns in the order of the classes, and the names of these columns."""
    fitted = None if like is None else like.columns
    order = _order(columns, names, fitted, refuse=like is not None)
    if order is None:
        return array, columns
    return array[:, order], tuple(columns[k] for k in order)


def _order(
    columns: tuple[ColumnName, ...],
    names: ClassNames | None,
    fitted: tuple[ColumnName, ...] | None,
    *,
    refuse: bool,
) -> list[int] | None:
    """Return the place of each class among named columns; None where the columns stay as they are.

    Columns are recognised by the names that the columns of the fit had, by the names of the classes, also behind
    a prefix such as ``logit_``, or by the numbers of the classes where these have no names.
    """
    references = [reference for reference in (fitted, names) if reference is not None]
    for reference in references or [tuple(range(len(columns)))]:
        for place in (_places(columns), _places([class_part(str(name)) for name in columns])):
            for sought in (reference, [class_part(str(name)) for name in reference]):
                if place.keys() == {str(name) for name in sought}:
                    return [place[str(name)] for name in sought]
    if references and (refuse or _share_names(columns, references[0])):
        raise ValueError(
            f"the columns are {_listed(columns)}, and the classes are {_listed(references[-1])}: rename the columns, "
            "or pass an array whose columns are in the order of the classes"
        )
    return None


def _places(columns: Sequence[ColumnName]) -> dict[str, int]:
    return {str(name): place for place, name in enumerate(columns)}


def _share_names(columns: Sequence[ColumnName], reference: Sequence[ColumnName]) -> bool:
    return bool({str(name) for name in columns} & {str(name) for name in reference})


def _are_numbers(columns: Sequence[ColumnName]) -> bool:
    """Return whether the columns are called by the numbers of the classes, 0..K−1, in any order."""
    return set(columns) == set(range(len(columns)))


def _listed(names: Sequence[ColumnName]) -> str:
    return one_line(", ".join(map(str, names)), 120)


# -- parts ----------------------------------------------------------------------------------------


def _some(values: NDArray[Any] | None, index: Any) -> Any:
    return None if values is None else values[index]


def _columns_of(by: Any) -> dict[str, Any]:
    """Return the columns of a frame or of an array by their titles."""
    named = columns_by_name(by, "by")
    if named is not None:
        return named
    array, _ = to_numpy(by, "by")
    if array.ndim != 2:
        title = getattr(by, "name", None)
        return {title if isinstance(title, str) and title else UNNAMED: by}
    return {f"{UNNAMED} {k}": array[:, k] for k in range(array.shape[1])}


@dataclass(frozen=True)
class _Coded:
    """The values of a column: their number (N,) in a list of texts."""

    codes: IntArray
    texts: list[str]


def _coded(values: NDArray[Any]) -> _Coded:
    """Return the segments of one column as numbers and texts."""
    if values.dtype.kind in "mM":
        # From nanoseconds numpy makes integers, and from microseconds dates.
        values = values.astype(f"{values.dtype.kind}8[us]")
    if values.dtype.kind in "biuf":
        distinct, codes = np.unique(values, return_inverse=True)
        return _Coded(codes.astype(np.int64), [segment_text(value) for value in distinct])
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values.tolist()])
    return _Coded(codes.astype(np.int64), [segment_text(value) for value in numbers])


def segment_text(value: Any) -> str:
    """Return the name of a segment, which is the same whatever library or file the value comes from.

    Whole numbers have no point, midnight is a date, and spaces around a text do not count.

    >>> [segment_text(value) for value in (2.0, "2.0", np.float32(0.1), True, " DE ")]
    ['2', '2', '0.1', 'True', 'DE']
    >>> segment_text(np.datetime64("2024-05-01").item()), segment_text("2024-05-01 00:00:00")
    ('2024-05-01', '2024-05-01')
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = unicodedata.normalize("NFC", str(value)).strip()
    if isinstance(value, bool | np.bool_):
        return text
    if text.casefold() in ("true", "false"):
        return text.capitalize()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    whole = _WHOLE_NUMBER.fullmatch(text) or _MIDNIGHT.fullmatch(text)
    return whole[1] if whole else text


def _joined(head: str, tail: str) -> str:
    return f"{head} · {tail}" if head else tail


def _refuse_other_index(origin: Origin | None, others: dict[str, Any]) -> None:
    """Refuse pandas objects whose rows have the labels of the scores' rows in another order."""
    if origin is None or origin.index is None:
        return
    index = origin.index
    for what, values in others.items():
        other = index_of(values)
        if other is None or len(other) != len(index) or other.equals(index):
            continue
        if index.is_unique and set(other) == set(index):
            raise ValueError(
                f"{what} has the index of the scores in another order: pass {what}.loc[scores.index]"
            )
