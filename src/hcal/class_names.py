"""Labels and names of classes: users see names, hcal computes with 0..K−1; and labels that are missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.frames import AnyArray, refuse_lazy, refuse_other_index
from hcal.numerics import NumpyArray
from hcal.text import one_line, quoted

ClassName = str | int
#: A column of a file or of a frame: a list of plain values, or an array.
ColumnCells = Sequence[object] | NumpyArray
#: The beginning of a column name that tells the kind of its scores; the matched group is named after the kind.
PREFIX: Final = re.compile(
    r"(?:(?P<logits>logits?)|(?P<log_probs>log[_ ]?probs?)|(?P<probs>probs?|p(?=[_ .\-\[])))"
    r"[_ .\-]?",
    re.IGNORECASE,
)
#: A whole number as a text, also as a library writes a float.
_WHOLE_TEXT: Final = re.compile(r"(0|-?[1-9][0-9]*)(?:\.0)?")
#: The most characters of a name, which is shown in tables and becomes part of column names.
LONGEST_NAME: Final = 1_000
#: Texts that mean "no label", unless a class has that name.
MISSING: Final = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "None"})
#: An array of texts takes at most so many bytes, unless less than this multiple of its texts is padding.
_MOST_TEXT: Final = 2 * 2**30
_MOST_PADDING: Final = 16


class Classifier(Protocol):
    """A classifier of scikit-learn's kind; all but ``fit`` is there once it is fitted."""

    @property
    def fit(self) -> Callable[..., Classifier]:
        """The method that learns from rows; its options differ from class to class."""

    @property
    def predict(self) -> Callable[..., AnyArray]:
        """The method that returns the label of each row."""

    @property
    def predict_proba(self) -> Callable[..., AnyArray]:
        """The method that returns probabilities (N, K); with ``decision_function`` there need be none."""

    @property
    def classes_(self) -> Sequence[ClassName] | NumpyArray:
        """The names of the classes, in the order of the columns."""


def check_classes(classes: Iterable[ClassName], n_classes: int) -> tuple[ClassName, ...]:
    """Return names of classes that are K different texts or K different integers; refuse others.

    >>> check_classes(np.array(["cat", "dog"]), 2)
    ('cat', 'dog')
    """
    if isinstance(classes, str):
        raise ValueError("classes must be a sequence of names, got one text")
    if isinstance(classes, set | frozenset):
        raise ValueError("classes must be a sequence of names: a set has no order")
    names = [name.item() if isinstance(name, np.generic) else name for name in classes]
    if len(names) != n_classes:
        raise ValueError(f"classes has {len(names)} names for {n_classes} classes (columns)")
    if {type(name) for name in names} not in ({str}, {int}):
        raise ValueError("classes must be all text or all integers")
    if not all(0 < len(str(name)) <= LONGEST_NAME for name in names):
        raise ValueError(f"a class name must have 1 to {LONGEST_NAME} characters")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two classes are named {quoted(twice)}")
    return tuple(names)


def is_text(y: AnyArray) -> bool:
    """Whether labels are text.

    >>> is_text(["cat", "dog"]), is_text([0, 1])
    (True, False)
    """
    array = y if isinstance(y, np.ndarray) else inputs.to_numpy(y, "y")[0]
    if array.dtype.kind == "O":
        return any(isinstance(v, str) for v in array.ravel()[:100])
    return array.dtype.kind in "UST"


def encode(y: AnyArray, classes: Sequence[ClassName] | None) -> AnyArray:
    """Return labels as integers 0..K−1 if they are names; without names of classes, return them unchanged.

    If the names are text, labels that are text are looked up and integers are positions. If the names are integers,
    integers are looked up by value.

    >>> encode(["dog", "cat"], ["cat", "dog"]), encode([7, 3], [3, 7]), encode([1, 0], ["cat", "dog"])
    (array([1, 0]), array([1, 0]), [1, 0])
    """
    array, _ = inputs.to_numpy(y, "y")
    labels = np.asarray(array)
    if labels.ndim and labels.dtype.kind != "f":  # floats are checked together with the scores
        _refuse_missing_labels(labels, classes)
    if classes is None:
        if is_text(y):
            advice = (
                "say which column is which class, in the order of the columns, with classes=[…] "
                "(--classes a,b,…)"
            )
            raise ValueError(f"y holds text: {advice}; of one score a row, the second is its class")
        return y
    if isinstance(classes[0], str) and not is_text(y):
        return y
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"y must have shape (N,), got {labels.shape}")
    values = labels.tolist()  # 3.0 finds 3
    place = {name: i for i, name in enumerate(classes)}
    codes = np.fromiter((place.get(v, -1) for v in values), dtype=np.int64, count=len(values))
    is_unknown = codes < 0
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        listed = one_line(", ".join(map(str, classes)), 120)
        raise ValueError(f"y: row {row} is {quoted(values[row])}, no class of {listed}")
    return codes


def _refuse_missing_labels(labels: NumpyArray, classes: Sequence[ClassName] | None) -> None:
    missing = missing_labels(labels, classes)
    if not missing.any():
        return
    count = int(missing.sum())
    first = int(np.argwhere(missing)[0][0])
    raise ValueError(
        f"y has no label in {count:,} of {len(labels):,} rows, first row {first}: "
        "hcal.drop_unlabelled(scores, y) leaves them out"
    )


def class_part(column: str) -> str:
    """Return the part of a column's name that names its class: all but a prefix that tells the kind of scores.

    >>> class_part("logit_cat"), class_part("p_dog"), class_part("price")
    ('cat', 'dog', 'price')
    """
    return PREFIX.sub("", column, count=1).strip("[] ") if PREFIX.match(column) else column


def class_title(k: int, names: Sequence[ClassName] | None) -> str:
    """Return how messages call a class: by its name, or by its number if it has none.

    >>> class_title(1, None), class_title(1, ["well", "sick"])
    ('class 1', 'class sick')
    """
    return f"class {k if names is None else names[k]}"


def positive_number(
    positive: ClassName | None, names: Sequence[ClassName] | None, n_classes: int
) -> int:
    """Return the number of the positive class of two, from its name or its number; 1 with more classes.

    >>> positive_number("well", ["well", "sick"], 2), positive_number("well", None, 3)
    (0, 1)
    """
    return number_of_class(positive, names, 2) if n_classes == 2 else 1


def number_of_class(
    positive: ClassName | None, names: Sequence[ClassName] | None, n_classes: int
) -> int:
    """Return the number of a class from its name or its number; None is the second class.

    If the names are integers, an integer is a name, as it is among labels.

    >>> number_of_class("well", ["well", "sick"], 2), number_of_class(None, [2, 1], 2)
    (0, 1)
    >>> number_of_class(1, [2, 1], 2), number_of_class(1, [1, 2], 2)
    (1, 0)
    """
    if positive is None:
        return 1
    plain = positive.item() if isinstance(positive, np.generic) else positive
    if names is not None and type(plain) in (str, int) and plain in names:
        return list(names).index(plain)
    may_be_number = names is None or isinstance(names[0], str)
    if may_be_number and type(plain) is int and 0 <= plain < n_classes:
        return plain
    choices = []
    if may_be_number:
        numbers = "0 or 1" if n_classes == 2 else f"0 to {n_classes - 1}"
        choices.append(f"{numbers}, the number of a class")
    if names is not None:
        choices.append(f"one of {one_line(', '.join(map(str, names)), 120)}")
    raise ValueError(f"positive must be {', or '.join(choices)}, got {positive!r}")


def with_names(sentence: str, names: Sequence[ClassName] | None) -> str:
    """Return a sentence with the names of classes in place of their numbers.

    >>> with_names("every label is class 1", ["well", "sick"])
    'every label is class sick'
    """
    if names is None:
        return sentence
    return re.sub(r"\bclass (\d+)\b", lambda match: class_title(int(match[1]), names), sentence)


def reorder(columns: Sequence[ClassName], classes: Sequence[ClassName]) -> list[int] | None:
    """Return the position of each class among the named columns; None if they are in the same order.

    >>> reorder(["dog", "cat"], ["cat", "dog"])
    [1, 0]
    """
    if list(columns) == list(classes):
        return None
    place = {str(name): i for i, name in enumerate(columns)}
    missing = [str(name) for name in classes if str(name) not in place]
    if missing or len(columns) != len(classes):
        of_columns = one_line(", ".join(map(str, columns)), 80)
        of_model = one_line(", ".join(map(str, classes)), 80)
        raise ValueError(
            f"the classes of the columns are not those of the model: {of_columns} and {of_model}"
        )
    return [place[str(name)] for name in classes]


def places_of_classes(
    titles: Iterable[object], names: Sequence[ClassName] | None, n_classes: int, what: str
) -> list[int] | None:
    """Return the place of each class among the titles of values, one a class; None where the titles only count.

    >>> places_of_classes(["dog", "cat"], ["cat", "dog"], 2, "frequencies")
    [1, 0]
    """
    texts = [str(title) for title in titles]
    for reference in (names, range(n_classes)):
        sought = [] if reference is None else [str(name) for name in reference]
        if sought and sorted(texts) == sorted(sought):
            return [texts.index(name) for name in sought]
    if texts == [str(k) for k in range(len(texts))]:
        return None
    of_classes = ", ".join(map(str, range(n_classes) if names is None else names))
    raise ValueError(
        f"{what} are for {one_line(', '.join(texts), 120)}, and the classes are "
        f"{one_line(of_classes, 120)}"
    )


# -- cells ------------------------------------------------------------------------------------------


def typed(cells: ColumnCells) -> NumpyArray:
    """Return cells of labels, ids or groups as numbers if all are numbers, else as text.

    An array stays as it is, and lists become the rows of a matrix. A missing cell becomes NaN among numbers and
    an empty text among texts.

    >>> typed(["0017", "2"]), typed([1, None]), typed([True, False])
    (array(['0017', '2'], dtype='<U4'), array([ 1., nan]), array([1, 0]))
    """
    if isinstance(cells, np.ndarray) or (cells and isinstance(cells[0], list)):
        return np.asarray(cells)
    if all(isinstance(c, int | float | None) for c in cells):
        numbers = np.array([np.nan if c is None else c for c in cells])
        return numbers.astype(np.int64) if numbers.dtype.kind == "b" else numbers
    texts = ["" if c is None else str(c).strip() for c in cells]
    _check_padding(texts)
    return np.array(texts, dtype=np.str_)


def _check_padding(texts: Sequence[str]) -> None:
    """Refuse texts of which a few are so long that an array of all, each as long as the longest, would not fit."""
    longest = max(map(len, texts), default=0)
    n_bytes = 4 * longest * len(texts)
    if n_bytes > _MOST_TEXT and n_bytes > _MOST_PADDING * 4 * sum(map(len, texts)):
        raise ValueError(
            f"{len(texts):,} labels, ids or groups of which one has {longest:,} characters: "
            "shorten it"
        )


def label_cells(cells: ColumnCells, classes: Sequence[ClassName] | None) -> NumpyArray:
    """Return cells of labels; text that is no class name but can be read as numbers becomes numbers, (N, 1) is (N,).

    >>> label_cells(["1", "0"], None), label_cells(["3", "7"], ["3", "7"])
    (array([1, 0]), array(['3', '7'], dtype='<U1'))
    """
    y = typed(cells)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind != "U" or are_numbers(classes):
        return y
    if classes is not None and set(y.tolist()) & set(classes):
        return y
    try:
        numbers = np.where(missing_labels(y), "nan", y).astype(np.float64)
    except ValueError:
        return y
    if len(numbers) and np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all():
        return numbers.astype(np.int64)
    return y if np.isnan(numbers).all() else numbers


def are_numbers(classes: Sequence[ClassName] | None) -> bool:
    """Return whether the names of classes are whole numbers as texts, so that labels that are numbers are names.

    >>> are_numbers(["3", "7"]), are_numbers(["cat", "7"]), are_numbers(None)
    (True, False, False)
    """
    if classes is None:
        return False
    return all(isinstance(name, str) and _WHOLE_TEXT.fullmatch(name) for name in classes)


def labels_by_number(y: NumpyArray, classes: Sequence[ClassName] | None) -> NumpyArray:
    """Return labels as texts where the names of the classes are whole numbers as texts, else as they are.

    A library writes such labels as 3, "3" or 3.0.

    >>> labels_by_number(np.array([3, 7]), ["7", "3"]), labels_by_number(np.array([0, 1]), ["a", "b"])
    (array(['3', '7'], dtype='<U1'), array([0, 1]))
    """
    if not are_numbers(classes) or y.ndim != 1 or y.dtype.kind not in "biufUO":
        return y
    return np.array([_WHOLE_TEXT.sub(r"\1", str(_plain(label))) for label in y.tolist()])


def _plain(label: object) -> object:
    return int(label) if isinstance(label, bool) else label


def is_number(cell: object) -> bool:
    """Whether a cell can be read as a number."""
    if not isinstance(cell, str | bytes | SupportsFloat | SupportsIndex):
        return False
    try:
        float(cell)
    except (ValueError, TypeError):
        return False
    return True


def missing_labels(y: AnyArray, classes: Sequence[ClassName] | None = None) -> NDArray[np.bool_]:
    """Return which labels are missing (N,): None, NaN, or a text such as "" or "NA" that is no class name.

    >>> missing_labels(["cat", "", None, "NA"]).tolist()
    [False, True, True, True]
    """
    labels = y if isinstance(y, np.ndarray) else inputs.to_numpy(y, "y")[0]
    if labels.dtype.kind == "f":
        return np.asarray(np.isnan(labels))
    if labels.dtype.kind not in "OUST":
        return np.zeros(labels.shape, dtype=bool)
    nothing = MISSING - {str(name) for name in classes or ()}
    flat = [_is_missing(label, nothing) for label in labels.ravel().tolist()]
    return np.array(flat, dtype=bool).reshape(labels.shape)


def _is_missing(label: object, nothing: frozenset[str]) -> bool:
    """Whether a label is None, NaN, pandas' NA (which is neither equal nor unequal to itself), or such a text."""
    if label is None or type(label).__name__ == "NAType":
        return True
    return bool(label != label) or str(label).strip() in nothing


def drop_unlabelled(scores: AnyArray, y: AnyArray, *others: AnyArray) -> tuple[AnyArray, ...]:
    """Return scores, labels and other values of the rows, without the rows that have no label.

    Parameters
    ----------
    scores : array-like of shape (N, K) or (N,)
    y : array-like of shape (N,)
        None, NaN and empty text are no labels.
    others : array-like of shape (N,)
        Weights or groups.

    Returns
    -------
    tuple
        The arguments in their order, without these rows.

    Examples
    --------
    >>> drop_unlabelled(np.eye(3), [0, None, 2])[1]
    [0, 2]
    """
    from sklearn.utils import _safe_indexing

    beside_scores = {"y": y}
    for position, values in enumerate(others, 3):
        beside_scores[f"argument {position}"] = values
    for name, values in {"scores": scores, **beside_scores}.items():
        refuse_lazy(values, name)
    refuse_other_index(scores, beside_scores)
    kept = np.flatnonzero(~missing_labels(y))
    for values in (scores, *others):
        if len(values) != len(y):
            raise ValueError(f"{len(values)} rows beside {len(y)} labels")
    return tuple(_safe_indexing(values, kept) for values in (scores, y, *others))
