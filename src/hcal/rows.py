"""Checked scores of rows, and all that belongs to them: labels, weights, groups, segments and names of classes.

Every public function makes its :class:`Rows` once, with :meth:`Rows.of`, and passes them on as a whole. So names,
groups and the kind of the scores reach whoever computes with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.ageing import Times
from hcal.class_names import ClassName, encode
from hcal.columns import ClassNames as ClassNames
from hcal.columns import Layout as Layout
from hcal.columns import (
    class_names_of_rows,
    columns_in_order,
    count_of_columns,
    listing,
    order_by,
    order_of_columns,
    refuse_numbers_from_one,
)
from hcal.frames import (
    AnyArray,
    ColumnName,
    Origin,
    refuse_index_of_others,
    refuse_other_index,
    restore,
    to_numpy,
)
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray, RowIndex, is_ragged
from hcal.row_segments import UNNAMED as UNNAMED
from hcal.row_segments import Segments as Segments
from hcal.row_segments import coded_texts

Scalar = TypeVar("Scalar", bound=np.generic)
#: Fewer values than this may all lie in [0, 1] by chance, although they are logits.
ENOUGH_VALUES = 30


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
    group_names : array of shape (G,), optional
        What the source calls the groups: by its name a group is recognised in another block of rows.
    by : Segments, optional
        The segment of each row.
    ids : array of shape (N,), optional
    time : Times, optional
        When each row was made.
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
    source_rows : int, optional
        Where these rows are a sample: how many rows the source has.

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
    group_names: NumpyArray | None = None
    by: Segments | None = None
    ids: NumpyArray | None = None
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None
    time: Times | None = None
    origin: Origin | None = None
    start: int = 0
    one_column: bool = False
    source_rows: int | None = None

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        scores: AnyArray,
        y: AnyArray = None,
        *,
        input: InputKind,
        weight: AnyArray = None,
        groups: AnyArray = None,
        by: AnyArray = None,
        ids: AnyArray = None,
        time: AnyArray = None,
        classes: Iterable[ClassName] | None = None,
        like: Layout | None = None,
        start: int = 0,
        complete: bool = True,
    ) -> Rows:
        """Check scores and what belongs to them, at a public door.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for the score of class 1 of two classes
            An array, a tensor, a frame of any library, or a list.
        y : array-like of shape (N,), optional
            Integers 0..K−1, or names of classes.
        input : {"logits", "probs", "log_probs"}
        weight, groups, ids, time : array-like of shape (N,), optional
        by : array-like of shape (N,), frame, or dict of columns, optional
        classes : sequence of K str or int, optional
            Names of the classes. A frame whose columns have these names is put in their order.
        like : Layout, optional
            What a calibrator was fitted on, or other rows: columns that have names are put in its order by name.
        start : int
            The number of the first row in its source.
        complete : bool
            Whether these are all rows of the source; a block alone does not show what kind its scores are.
        """
        with rows_from(start):
            rows = cls.of_scores(
                scores, input=input, classes=classes, like=like, start=start, complete=complete, y=y
            )
            beside_scores = {"y": y, "sample_weight": weight, "groups": groups}
            beside_scores |= {"by": by, "ids": ids, "time": time}
            refuse_other_index(scores, beside_scores)
            n_rows = len(rows)
            labels = None
            if y is not None:
                labels = inputs.check_labels(encode(y, rows.names), n_rows, rows.n_classes)
                if complete and like is None and rows.names is None and rows.columns is not None:
                    refuse_numbers_from_one(rows.columns, labels)
            members = group_names = None
            if groups is not None:
                members, group_names = inputs.numbered_groups(groups, n_rows)
            return replace(
                rows,
                y=labels,
                weight=inputs.check_weight(weight, n_rows),
                groups=members,
                group_names=group_names,
                by=None if by is None else Segments.of(by, n_rows),
                ids=None if ids is None else inputs.check_names(ids, n_rows, "ids"),
                time=None if time is None else Times.of(time, n_rows),
            )

    @classmethod
    def of_scores(  # noqa: PLR0913
        cls,
        scores: AnyArray,
        *,
        input: InputKind,
        classes: Iterable[ClassName] | None = None,
        like: Layout | None = None,
        start: int = 0,
        complete: bool = True,
        y: AnyArray = None,
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
            names = class_names_of_rows(
                origin.columns, y, classes, like, n_classes=n_classes or count_of_columns(array)
            )
        if origin.columns is not None:
            array, columns = columns_in_order(array, origin.columns, names, like)
        one_column = array.ndim == 1
        if one_column and not complete:
            n_classes = 2  # the few logits of a block may all lie in [0, 1] by chance
        checked = inputs.check_array(array, input, n_classes=n_classes)
        if one_column and complete and like is not None:
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
    def of_predictions(
        cls, scores: AnyArray, y: AnyArray = None, *, input: InputKind, **others: AnyArray
    ) -> Rows:
        """Check rows that are to be evaluated; ``others`` are arguments of :meth:`of`.

        In a list of rows of different lengths each row is a question, and its entries are the question's options.
        Options that a question does not have get the probability 0.
        """
        if is_ragged(scores):
            return cls.of(inputs.to_probs(scores, input), y, input="probs", **others)
        return cls.of(scores, y, input=input, **others)

    @classmethod
    def of_baseline(cls, baseline: AnyArray, rows: Rows, input: InputKind) -> Rows:
        """Check other predictions for the same rows; columns that have names are put in their order."""
        if rows.origin is not None:
            refuse_index_of_others(rows.origin.index, {"baseline": baseline})
        if not is_ragged(baseline):
            array, _ = to_numpy(baseline, "baseline")
            n_classes = count_of_columns(array)
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

    @classmethod
    def joined(cls, blocks: Sequence[Rows]) -> Rows:
        """Return the rows of several blocks of one source, one after the other.

        A group, or a segment, that has rows in several blocks is recognised by its name.

        >>> blocks = [Rows.of([[0.0, 1.0]], input="logits", groups=[name]) for name in ("b", "a", "b")]
        >>> Rows.joined(blocks).groups
        array([1, 0, 1])
        """
        first = blocks[0]
        _refuse_differences(blocks)
        groups = _joined_groups(blocks)
        segments = [block.by for block in blocks if block.by is not None]
        times = [block.time for block in blocks if block.time is not None]
        return replace(
            first,
            scores=np.concatenate([block.scores for block in blocks]),
            y=_end_to_end(block.y for block in blocks),
            weight=_end_to_end(block.weight for block in blocks),
            groups=groups,
            group_names=None,
            by=Segments.joined(segments) if segments else None,
            ids=_end_to_end(block.ids for block in blocks),
            time=Times.joined(times) if times else None,
            origin=None,
        )

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
    def weights(self) -> Float64:
        """How many rows each row stands for: the weights, or ones."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def total(self) -> float:
        """How many rows the rows stand for: the sum of the weights, or N."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @property
    def score_range(self) -> tuple[float, float] | None:
        """With two classes of logits, the least and the greatest score of class 1, else None."""
        if self.kind != "logits" or self.n_classes != 2:
            return None
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            score = np.clip(self.x[:, 1] - self.x[:, 0], -largest, largest)
        return float(score.min()), float(score.max())

    def in_order_of(self, fit: Layout, kind: InputKind) -> Rows:
        """Return these rows with their columns in the order of a fit, by name; another kind of scores is refused."""
        if self.kind != kind:
            raise ValueError(f"the rows hold {self.kind}, but the calibrator takes input={kind!r}")
        if self.n_classes != fit.n_classes:
            raise ValueError(
                f"the rows have {self.n_classes} classes, and the calibrator was fitted on "
                f"{fit.n_classes}"
            )
        titles = self.names or self.columns
        order = None
        if titles is not None:
            order = order_of_columns(titles, fit.names, fit.columns, refuse=self.names is not None)
        rows = self
        if titles is not None and order is not None and order != list(range(self.n_classes)):
            if self.y is not None and self.names is None:
                raise ValueError(
                    f"the columns of the rows are {listing(titles)}, and those of the fit are "
                    f"{listing(fit.columns or fit.names or ())}: labels that are numbers may count "
                    "either, so pass labels that are names"
                )
            rows = self.with_columns(order)
        return rows if fit.names is None else replace(rows, names=fit.names)

    def with_columns(self, order: Sequence[int]) -> Rows:
        """Return these rows with their columns in another order; their labels stay those of the same columns."""
        labels = None if self.y is None else np.argsort(order)[self.y].astype(np.int64)
        names = None if self.names is None else tuple(self.names[k] for k in order)
        columns = None if self.columns is None else tuple(self.columns[k] for k in order)
        scores = self.scores[:, list(order)]
        return replace(self, scores=scores, y=labels, names=names, columns=columns)

    def like_first(self, first: Rows) -> Rows:
        """Return a later block of a source with its columns in the order of the first block, by name.

        >>> first, later = (
        ...     Rows.of([[0.0, 1.0]], ["b"], input="logits", classes=names) for names in (["a", "b"], ["b", "a"])
        ... )
        >>> later.like_first(first).names, later.like_first(first).y
        (('a', 'b'), array([1]))
        """
        titles = self.names or self.columns
        expected = first.names or first.columns
        if titles == expected or titles is None or expected is None:
            return self
        order = order_by(expected, titles)
        if order == list(range(len(titles))):
            return self
        lists = (
            f"the columns of the first block are {listing(expected)}, and of that from row "
            f"{self.start:,} on {listing(titles)}"
        )
        if order is None:
            raise ValueError(f"{lists}: blocks of rows need the same columns")
        if self.y is not None and None in (self.names, first.names):
            raise ValueError(
                f"{lists}: labels that are numbers may count either, so pass labels that are names"
            )
        return self.with_columns(order)

    def restored(self, probs: FloatArray) -> AnyArray:
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

    def __getitem__(self, index: RowIndex) -> Rows:
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
            time=None if self.time is None else self.time[index],
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
        """Raise a ValueError if all scores look like probabilities and those of the fit, if there was one, did not."""
        if self.count < ENOUGH_VALUES:
            return
        if fitted is None and self.low >= 0 and self.high <= 1:
            raise ValueError(
                f"logits look like probabilities: all {self.count:,} scores lie in [0, 1]; say "
                'input="probs"'
            )
        _refuse_range(self.count, self.low, self.high, fitted)


class BlockOrder:
    """The columns of the first block that has names for them; later blocks are put in their order.

    >>> order = BlockOrder()
    >>> for names in (["a", "b"], ["b", "a"]):
    ...     block = order.put(Rows.of([[0.0, 1.0]], ["b"], input="logits", classes=names))
    >>> block.names, block.y
    (('a', 'b'), array([1]))
    """

    def __init__(self) -> None:
        self.first: Rows | None = None

    @classmethod
    def of(
        cls, n_classes: int, names: Iterable[ClassName] | None, columns: Iterable[ColumnName] | None
    ) -> BlockOrder:
        """Return the order that a saved state holds: lists of names, or None."""
        order = cls()
        if names is not None or columns is not None:
            order.first = Rows(
                np.empty((0, n_classes)),
                "probs",
                names=None if names is None else tuple(names),
                columns=None if columns is None else tuple(columns),
            )
        return order

    def put(self, block: Rows) -> Rows:
        """Return a block with its columns in the order of the first."""
        if self.first is not None:
            return block.like_first(self.first)
        if block.names is not None or block.columns is not None:
            no_rows = np.empty((0, block.n_classes))
            self.first = Rows(no_rows, block.kind, names=block.names, columns=block.columns)
        return block

    def merge(self, other: BlockOrder) -> BlockOrder:
        """Take the order of another part; sums over columns in two orders are refused."""
        if self.first is None:
            self.first = other.first
        titles = [
            order.first.names or order.first.columns
            for order in (self, other)
            if order.first is not None
        ]
        if len(set(titles)) > 1:
            raise ValueError(
                f"the columns of one part are {listing(titles[0] or ())}, and of the other "
                f"{listing(titles[1] or ())}: sums can be merged where all have the same order"
            )
        return self


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
    values: NumpyArray, kind: InputKind, fitted: tuple[float, float] | None
) -> None:
    """Refuse scores (N,) of class 1 that all lie in [0, 1] where a calibrator of logits saw scores outside.

    >>> refuse_other_kind(np.linspace(0.1, 0.9, 50), "logits", (-4.0, 5.0))
    Traceback (most recent call last):
    ...
    ValueError: all 50 scores lie in [0, 1] and look like probabilities, but the scores of the fit, or ...
    """
    if kind == "logits" and len(values) >= ENOUGH_VALUES:
        _refuse_range(len(values), float(values.min()), float(values.max()), fitted)


def _refuse_range(count: int, low: float, high: float, fitted: tuple[float, float] | None) -> None:
    """Refuse logits that lie in [0, 1] where those of the fit did not."""
    if fitted is None or low < 0 or high > 1 or (fitted[0] >= 0 and fitted[1] <= 1):
        return
    raise ValueError(
        f"all {count:,} scores lie in [0, 1] and look like probabilities, but the scores of the "
        f"fit, or the reference, are logits from {fitted[0]:.3g} to {fitted[1]:.3g}: pass logits, "
        "ln(p / (1 − p))"
    )


def refuse_beside_rows(beside: Mapping[str, object]) -> None:
    """Refuse labels and other arguments beside checked rows, which would have no effect.

    >>> refuse_beside_rows({"y": None, "sample_weight": [2.0]})
    Traceback (most recent call last):
    ...
    ValueError: sample_weight was passed beside checked rows, which bring their own: pass it to Rows.of
    """
    passed = [name for name, values in beside.items() if values is not None]
    if passed:
        raise ValueError(
            f"{', '.join(passed)} was passed beside checked rows, which bring their own: pass it "
            "to Rows.of"
        )


# -- parts ----------------------------------------------------------------------------------------


def _refuse_differences(blocks: Sequence[Rows]) -> None:
    """Refuse to join blocks with other classes, kinds or columns beside the scores than the first."""
    first = _form(blocks[0])
    for block in blocks:
        if _form(block) != first:
            raise ValueError(
                f"blocks of rows differ: the first has {first}, and that from row {block.start:,} "
                f"on has {_form(block)}; all need the same"
            )


def _form(block: Rows) -> str:
    """Return in words what belongs to the rows of a block."""
    beside = {"labels": block.y, "weights": block.weight, "groups": block.groups}
    words = [name for name, values in beside.items() if values is not None]
    if block.by is not None:
        words.append(f"segments by {block.by.title}")
    names = "" if block.names is None else f" ({listing(block.names)})"
    return ", ".join([f"{block.kind} of {block.n_classes} classes{names}", *words])


def _end_to_end(columns: Iterable[NDArray[Scalar] | None]) -> NDArray[Scalar] | None:
    """Return the columns end to end; None where there are none."""
    arrays = [column for column in columns if column is not None]
    return np.concatenate(arrays) if arrays else None


def _joined_groups(blocks: Sequence[Rows]) -> IntArray | None:
    """Return the number of each row's group, where one name is one group in all blocks."""
    names = [_group_names(block) for block in blocks if block.groups is not None]
    if not names:
        return None
    _, numbers = np.unique(np.concatenate(names), return_inverse=True)
    return numbers.astype(np.int64)


def _group_names(block: Rows) -> NumpyArray:
    """Return the name of each row's group, as text."""
    assert block.groups is not None
    names = block.groups if block.group_names is None else block.group_names[block.groups]
    coded = coded_texts(names)
    return np.array(coded.texts)[coded.codes]


def _some(values: NDArray[Scalar] | None, index: RowIndex) -> NDArray[Scalar] | None:
    return None if values is None else values[index]
