"""Changes of how rows are passed that must not change an answer, or change it only by rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from data import Data, Pair

#: The order in which columns, or classes, are permuted.
ORDER = {2: (1, 0), 3: (2, 0, 1)}
#: Sums of rows in another order differ by rounding, and searches that follow them end this near to each other.
SUMS = 1e-9
#: Sums over an array whose columns lie one after the other in memory, and not its rows.
LAYOUT = 1e-12


@dataclass(frozen=True)
class Relation:
    """A change of a pair; ``tolerance`` is by how much numbers of the answer may move."""

    name: str
    change: Callable[[Pair], Pair]
    tolerance: float = 0.0
    base: Callable[[Pair], Pair] = lambda pair: pair  # what it is compared with
    needs: str = ""  # what a door must take
    classes: tuple[int, ...] = (2, 3)
    texts: bool = True  # whether sentences stay the same too
    packages: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()  # entries that count rows, which a weight is not


def both(change: Callable[[Data], Data]) -> Callable[[Pair], Pair]:
    """Return the change of a pair that changes both of its sides."""
    return lambda pair: replace(pair, fit=change(pair.fit), test=change(pair.test))


def rows_permuted(data: Data) -> Data:
    return data[np.random.default_rng(7).permutation(len(data))]


def classes_renumbered(data: Data) -> Data:
    order = list(ORDER[len(data.names)])
    place = np.argsort(order)
    names = tuple(data.names[k] for k in order)
    return replace(data, logits=data.logits[:, order], y=place[data.y], names=names)


def in_library(library: str) -> Callable[[Data], Data]:
    return lambda data: replace(data, library=library)


def columns_permuted(data: Data) -> Data:
    return replace(data, order=ORDER[len(data.names)])


def numbered(names: dict[int, tuple[Any, ...]]) -> Callable[[Data], Data]:
    """Return the change to a pandas frame whose columns are called by these integers."""

    def change(data: Data) -> Data:
        k = len(data.names)
        titles = tuple(map(str, data.names))
        return replace(data, names=names[k], aliases=titles, library="pandas")

    return change


INTEGERS = {2: (71, 34), 3: (71, 34, 92)}
POSITIONS = {2: (0, 1), 3: (0, 1, 2)}


def only_test(change: Callable[[Data], Data]) -> Callable[[Pair], Pair]:
    """Return the change of a pair that changes the rows to predict alone."""
    return lambda pair: replace(pair, test=change(pair.test))


def weight_of_two(data: Data) -> Data:
    """Every third row counts twice."""
    return replace(data, weight=np.where(data.number % 3 == 0, 2.0, 1.0))


def rows_twice(data: Data) -> Data:
    """Every third row stands twice."""
    times = np.where(data.number % 3 == 0, 2, 1)
    return data[np.repeat(np.arange(len(data)), times)]


def of_kind(kind: str) -> Callable[[Data], Data]:
    return lambda data: replace(data, kind=kind)


def normalised(data: Data) -> Data:
    """Return logits that are logarithms of probabilities."""
    top = data.logits.max(axis=1, keepdims=True)
    below_top = data.logits - top
    logits = below_top - np.log(np.exp(below_top).sum(axis=1, keepdims=True))
    return replace(data, logits=logits)


def one_column(data: Data) -> Data:
    return replace(data, one_column=True)


def cut(*cuts: int) -> Callable[[Data], Data]:
    return lambda data: replace(data, cuts=cuts)


def single(data: Data) -> Data:
    return replace(data, width="float32")


def on_another_scale(data: Data) -> Data:
    """Return scores of which each class has its own unit and zero."""
    k = len(data.names)
    return replace(data, logits=data.logits * np.array([3, 0.5, 20])[:k] + np.array([5, -1, 2])[:k])


def rounded(data: Data) -> Data:
    """Return scores that float32 holds exactly."""
    return replace(data, logits=data.logits.astype(np.float32).astype(np.float64))


LIBRARIES = {
    "lists": (),
    "torch": ("torch",),
    "pandas": ("pandas",),
    "Float64": ("pandas",),
    "double[pyarrow]": ("pandas", "pyarrow"),
    "polars": ("polars",),
    "pyarrow": ("pyarrow",),
}

RELATIONS: list[Relation] = [
    Relation("rows permuted", both(rows_permuted), SUMS),
    Relation("classes renumbered", both(classes_renumbered), SUMS),
    *(
        Relation(f"in {library}", both(in_library(library)), LAYOUT, packages=packages)
        for library, packages in LIBRARIES.items()
    ),
    *(
        Relation(
            f"columns of {library} in another order",
            lambda pair, library=library: only_test(columns_permuted)(
                both(in_library(library))(pair)
            ),
            SUMS,
            packages=LIBRARIES[library],
        )
        for library in ("pandas", "polars", "pyarrow", "double[pyarrow]")
    ),
    Relation(
        "all columns in another order",
        lambda pair: both(columns_permuted)(both(in_library("pandas"))(pair)),
        SUMS,
        packages=("pandas",),
    ),
    Relation(
        "classes are integers", both(numbered(INTEGERS)), LAYOUT, texts=False, packages=("pandas",)
    ),
    Relation(
        "integer columns in another order",
        lambda pair: only_test(columns_permuted)(both(numbered(INTEGERS))(pair)),
        SUMS,
        texts=False,
        packages=("pandas",),
    ),
    Relation(
        "columns 0 to K−1 in another order",
        lambda pair: only_test(columns_permuted)(both(numbered(POSITIONS))(pair)),
        SUMS,
        texts=False,
        packages=("pandas",),
    ),
    Relation(
        "a weight of 2",
        both(weight_of_two),
        SUMS,
        base=both(rows_twice),
        needs="weight",
        ignores=("n", "changed", "rows", "argmax_changed"),
    ),
    Relation("probabilities", both(of_kind("probs")), SUMS, base=both(normalised)),
    Relation("log-probabilities", both(of_kind("log_probs")), SUMS, base=both(of_kind("probs"))),
    Relation("one column", both(one_column), SUMS, classes=(2,)),
    Relation(
        "one column of pandas",
        lambda pair: both(one_column)(both(in_library("pandas"))(pair)),
        SUMS,
        classes=(2,),
        packages=("pandas",),
    ),
    Relation("blocks", both(cut(63, 126)), SUMS, needs="blocks"),
    Relation("blocks of other sizes", both(cut(7, 100, 101)), SUMS, needs="blocks"),
    Relation("each score on another scale", both(on_another_scale), SUMS, needs="scale"),
    Relation("float32", both(single), 1e-4, base=both(rounded)),
    Relation("saved and loaded", lambda pair: replace(pair, saved=True), needs="saved"),
]
