"""Columns that have names: which class each of them is, and in which order they are taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from hcal.class_names import ClassName, check_classes, class_part, is_text
from hcal.frames import AnyArray, ColumnName
from hcal.numerics import IntArray, NumpyArray
from hcal.text import one_line

ClassNames = tuple[ClassName, ...]
#: The name of a column that ends in the number of a class: class_2, x2.
_NUMBERED: Final = re.compile(r"(?P<prefix>.*?)(?P<number>0|[1-9][0-9]{0,8})")
#: The name of a column that is a whole number, also as a library writes a float: 2, 2.0.
_WHOLE: Final = re.compile(r"(0|-?[1-9][0-9]{0,8})(?:\.0)?")


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


def count_of_columns(array: NumpyArray) -> int:
    """Return the number of classes of an unchecked array."""
    return int(array.shape[1]) if array.ndim == 2 else 2


def names_of_classes(
    columns: tuple[ColumnName, ...] | None,
    y: AnyArray,
    classes: Iterable[ClassName] | None,
    like: Layout | None,
    *,
    n_classes: int,
) -> ClassNames | None:
    """Return the names of the classes of rows that are not in memory, as :meth:`Rows.of` finds them.

    >>> names_of_classes(("cat", "dog"), ["dog"], None, None, n_classes=2)
    ('cat', 'dog')
    """
    if classes is None and columns is None:
        return None if like is None else like.names
    return class_names_of_rows(columns, y, classes, like, n_classes=n_classes)


def class_names_of_rows(
    columns: tuple[ColumnName, ...] | None,
    y: AnyArray,
    classes: Iterable[ClassName] | None,
    like: Layout | None,
    *,
    n_classes: int,
) -> ClassNames | None:
    """Return the names of the classes: those passed in, of the fit, or of columns that the labels use."""
    fitted = None if like is None else like.names
    if classes is not None:
        names = check_classes(classes, n_classes)
        if fitted is not None and names != fitted:
            raise ValueError(
                f"the classes are not those of the model: {listing(names)} and {listing(fitted)}"
            )
        return names
    if like is not None or columns is None or len(columns) != n_classes:
        return fitted
    if y is not None and is_text(y) and all(isinstance(name, str) for name in columns):
        return check_classes(columns, n_classes)
    numbers = columns
    if y is not None:  # frames of some libraries have only texts as names
        numbers = tuple(_plain_numbers([str(name) for name in columns]))
    if all(isinstance(name, int) for name in numbers):
        return None if _are_numbers(numbers) else check_classes(numbers, n_classes)
    return None


def names_of_columns(
    columns: tuple[ColumnName, ...] | None, like: Layout
) -> tuple[ColumnName, ...] | None:
    """Return what the columns of predictions of a frame are called: by the classes, or as the frame's are."""
    if like.names is not None or columns is None:
        return like.names
    order = order_of_columns(columns, None, like.columns, refuse=True)
    return columns if order is None else tuple(columns[k] for k in order)


def columns_in_order(
    array: NumpyArray,
    columns: tuple[ColumnName, ...],
    names: ClassNames | None,
    like: Layout | None,
) -> tuple[NumpyArray, tuple[ColumnName, ...]]:
    """Return the scores with their columns in the order of the classes, and the names of these columns."""
    fitted = None if like is None else like.columns
    order = order_of_columns(columns, names, fitted, refuse=like is not None)
    if order is None:
        return array, columns
    return array[:, order], tuple(columns[k] for k in order)


def order_of_columns(
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
        order = order_by(reference, columns)
        if order is not None:
            return order
    if references and (refuse or _share_names(columns, references[0])):
        raise ValueError(
            f"the columns are {listing(columns)}, and the classes are {listing(references[-1])}: "
            "rename the columns, or pass an array whose columns are in the order of the classes"
        )
    return None


def order_by(reference: Sequence[ColumnName], columns: Sequence[ColumnName]) -> list[int] | None:
    """Return the place of each name of a reference among columns.

    Columns are also recognised without the prefix that tells the kind of scores, by how they spell a number, and by
    the numbers behind a common prefix.
    """
    parts = [class_part(str(name)) for name in columns]
    numbers = _numbers_behind_prefix(parts)
    reference_parts = [class_part(str(name)) for name in reference]
    spellings = (columns, parts, _plain_numbers(parts), numbers, _from_zero(numbers))
    for place in map(_places, spellings):
        for sought in (reference, reference_parts, _plain_numbers(reference_parts)):
            texts = [str(name) for name in sought]
            if place.keys() == set(texts):
                return [place[text] for text in texts]
    return None


def _places(columns: Sequence[ColumnName]) -> dict[str, int]:
    return {str(name): place for place, name in enumerate(columns)}


def _plain_numbers(names: Sequence[str]) -> Sequence[ColumnName]:
    """Return texts such as 2.0, or True and False, as whole numbers; other names are returned as they are.

    >>> _plain_numbers(["1.0", "0.0"]), _plain_numbers(["True", "False"]), _plain_numbers(["1", "one"])
    ([1, 0], [1, 0], ['1', 'one'])
    """
    if sorted(name.casefold() for name in names) == ["false", "true"]:
        return [int(name.casefold() == "true") for name in names]
    matches = [match for match in map(_WHOLE.fullmatch, names) if match is not None]
    return [int(match[1]) for match in matches] if len(matches) == len(names) else names


def _numbers_behind_prefix(names: Sequence[str]) -> Sequence[ColumnName]:
    """Return the numbers of columns such as class_2, class_0, class_1.

    Columns that are not called so are returned as they are.
    """
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match is not None]
    prefixes = {match["prefix"] for match in matches}
    if len(matches) < len(names) or len(prefixes) > 1:
        return names
    return [int(match["number"]) for match in matches]


def _from_zero(names: Sequence[ColumnName]) -> Sequence[ColumnName]:
    """Return the numbers 1 to K less 1; other names are returned as they are."""
    if set(names) != set(range(1, len(names) + 1)):
        return names
    return [int(name) - 1 for name in names]


def refuse_numbers_from_one(columns: tuple[ColumnName, ...], labels: IntArray) -> None:
    """Refuse labels without a 0 where the columns count from 1: the labels may count from 1 too."""
    numbers = _numbers_behind_prefix([str(name) for name in columns])
    if columns and _from_zero(numbers) is not numbers and labels.min() > 0:
        from_one = list(range(1, len(numbers) + 1))
        raise ValueError(
            f"the columns {listing(columns)} count from 1 and no label is 0, so the labels "
            f"may count from 1 too: pass classes={from_one} (--classes "
            f"{','.join(map(str, from_one))}) if they do, and labels from 0 in an array without "
            "names if they do not"
        )


def _share_names(columns: Sequence[ColumnName], reference: Sequence[ColumnName]) -> bool:
    return bool({str(name) for name in columns} & {str(name) for name in reference})


def _are_numbers(columns: Sequence[ColumnName]) -> bool:
    """Return whether the columns are called by the numbers of the classes, 0..K−1, in any order."""
    return set(columns) == set(range(len(columns)))


def listing(names: Sequence[ColumnName]) -> str:
    """Return names as messages list them."""
    return one_line(", ".join(map(str, names)), 120)
