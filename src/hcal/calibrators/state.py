"""What a fitted calibrator holds, declared once: names, types, shapes, ranges.

Every method declares the arrays of its state as a :class:`StateSpec`. :func:`hcal.load` checks a file against
it before anything is computed, so that prediction, compiled or not, meets only arrays whose sizes fit each
other and whose values keep every probability finite. The page on the file format is printed from it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

StateArrays = Mapping[str, NDArray[Any]]
Sizes = Mapping[str, int]
Dim = str | int
Order = Literal["increasing", "not falling"]

#: Bound of most numbers: far beyond any fit, and products of two of them with any logit stay finite.
LARGE = 1e100
#: Bound of what multiplies logits and is large where they are small: times a logit of 1e4 it stays finite.
STEEP = 1e290
#: Least value of what is divided by.
SMALL = 1e-200
#: Bound of numbers that meet float32 logits.
LARGE32 = 1e30


@dataclass(frozen=True)
class Field:
    """One array of a state.

    Attributes
    ----------
    name : str
    what : str
        Its meaning, in a few words.
    dims : tuple of str or int
        The shape, in numbers and in symbols: ``"K"`` is the number of classes, ``"E"`` that of one-vs-rest
        events (K, but 1 of two classes), any other symbol a size that the first array which has it decides;
        sums and products such as ``"K+1"`` are allowed.
    low, high : float or str
        Every value lies in [low, high]; a bound may be in symbols too.
    dtype : {"float64", "int64"}
    order : {"increasing", "not falling"}, optional
        Of the values of a one-dimensional array.
    total : float, optional
        What the values sum to.
    nan : bool
        Whether a value may be NaN instead.
    optional : bool
        Whether a state may lack it; its dimensions are then numbers or ``"K"``.
    """

    name: str
    what: str
    dims: tuple[Dim, ...] = ()
    low: float | str = -LARGE
    high: float | str = LARGE
    dtype: Literal["float64", "int64"] = "float64"
    order: Order | None = None
    total: float | None = None
    nan: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Rule:
    """What one array owes to others.

    Attributes
    ----------
    name : str
        The array that is to blame.
    words : str
        The rule, to follow "must": "begin with 0".
    holds : callable
        Of the state and the sizes.
    """

    name: str
    words: str
    holds: Callable[[StateArrays, Sizes], bool]


@dataclass(frozen=True)
class StateSpec:
    """All arrays of a state, for some or all parameters of a method.

    Attributes
    ----------
    fields : tuple of Field
    sizes : mapping of symbol to (meaning, least value)
    rules : tuple of Rule
    where : mapping of parameter to values
        The parameters of the method for which the state looks like this.
    """

    fields: tuple[Field, ...] = ()
    sizes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The names of the arrays."""
        return {f.name for f in self.fields}

    def __add__(self, other: StateSpec) -> StateSpec:
        """Return the arrays and rules of both."""
        return StateSpec(
            self.fields + other.fields,
            {**self.sizes, **other.sizes},
            self.rules + other.rules,
            {**self.where, **other.where},
        )


def check_state(spec: StateSpec, state: StateArrays, n_classes: int) -> None:
    """Raise a ValueError that names the array which is not as declared.

    Examples
    --------
    >>> spec = StateSpec((Field("bias", "one a class", ("K",)),))
    >>> check_state(spec, {"bias": np.zeros(3)}, 3)
    >>> check_state(spec, {"bias": np.zeros(4)}, 3)
    Traceback (most recent call last):
    ...
    ValueError: 'bias' has shape (4,), declared is (K,) = (3,)
    """
    needed = {f.name for f in spec.fields if not f.optional}
    missing, extra = sorted(needed - set(state)), sorted(set(state) - spec.names)
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    if extra:
        raise ValueError(f"{extra[0][:80]!r} is not an array of this method")
    sizes = {"K": n_classes, "E": n_classes if n_classes > 2 else 1}
    there = [f for f in spec.fields if f.name in state]
    for each in there:
        _check_shape(each, state[each.name], sizes, spec.sizes)
    for each in there:
        _check_values(each, state[each.name], sizes)
    for rule in spec.rules:
        if not rule.holds(state, sizes):
            raise ValueError(f"{rule.name!r} must {rule.words}")


def choose_spec(specs: tuple[StateSpec, ...], params: Mapping[str, Any], names: set[str]) -> StateSpec:
    """Return the declaration that fits the parameters; of several, that whose arrays (``names``) are there.

    Examples
    --------
    >>> a, b = (StateSpec((Field(name, ""),)) for name in "ab")
    >>> choose_spec((a, b), {}, {"b"}) is b
    True
    """
    if not specs:
        raise ValueError("the method declares no state (state_specs), so its files could not be checked")
    able = [s for s in specs if all(params.get(key) in values for key, values in s.where.items())]
    if not able:
        raise ValueError("no state is declared for these parameters")
    return max(able, key=lambda s: len(s.names & names))


def dimension(dim: Dim, sizes: Sizes) -> int:
    """Return a size given in symbols.

    Examples
    --------
    >>> dimension("K*(K+1)", {"K": 3})
    12
    """
    return dim if isinstance(dim, int) else _value(ast.parse(dim, mode="eval").body, sizes)


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}


def _value(node: ast.expr, sizes: Sizes) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)
    return int(node.value)  # type: ignore[arg-type]


def _symbols(dim: Dim) -> set[str]:
    if isinstance(dim, int):
        return set()
    return {node.id for node in ast.walk(ast.parse(dim, mode="eval")) if isinstance(node, ast.Name)}


def _check_shape(
    field: Field, array: NDArray[Any], sizes: dict[str, int], declared: Mapping[str, tuple[str, int]]
) -> None:
    """Check type and shape; a symbol seen for the first time gets its size here."""
    if array.dtype != field.dtype:
        raise ValueError(f"{field.name!r} has type {array.dtype}, declared is {field.dtype}")
    good = array.ndim == len(field.dims) and all(
        _fits(dim, length, sizes, declared) for dim, length in zip(field.dims, array.shape, strict=True)
    )
    if not good:
        raise ValueError(f"{field.name!r} has shape {array.shape}, declared is {_in_words(field, sizes)}")


def _fits(dim: Dim, length: int, sizes: dict[str, int], declared: Mapping[str, tuple[str, int]]) -> bool:
    for symbol in _symbols(dim) - set(sizes):
        # The dimension is a line in its new symbol: two points give its slope, the length its size.
        start, slope = (dimension(dim, {**sizes, symbol: s}) for s in (0, 1))
        size, odd = divmod(length - start, slope - start)
        if odd or size < declared[symbol][1]:
            return False
        sizes[symbol] = size
    return dimension(dim, sizes) == length


def shape_words(field: Field) -> str:
    """Return the declared shape as text.

    Examples
    --------
    >>> shape_words(Field("a", "", ("K", 2))), shape_words(Field("a", ""))
    ('(K, 2)', '()')
    """
    comma = "," if len(field.dims) == 1 else ""
    return f"({', '.join(map(str, field.dims))}{comma})"


def _in_words(field: Field, sizes: Sizes) -> str:
    if all(_symbols(dim) <= set(sizes) for dim in field.dims) and any(map(_symbols, field.dims)):
        return f"{shape_words(field)} = {tuple(dimension(dim, sizes) for dim in field.dims)}"
    return shape_words(field)


def _check_values(field: Field, array: NDArray[Any], sizes: Sizes) -> None:
    if array.size == 0:
        return
    low, high = (float(dimension(b, sizes)) if isinstance(b, str) else b for b in (field.low, field.high))
    least, most = array.min(), array.max()  # NaN if one is: no comparison holds
    if not (least >= low and most <= high) and not (field.nan and np.isnan(array).all()):
        what = "NaN" if np.isnan(least) else f"{least if least < low else most:.6g}"
        raise ValueError(f"{field.name!r} holds {what}, declared are values in [{low:g}, {high:g}]")
    if field.order is not None:
        _check_order(field, array)
    if field.total is not None and abs(float(array.sum()) - field.total) > 1e-6:
        raise ValueError(f"{field.name!r} sums to {float(array.sum()):.6g}, declared is {field.total:g}")


def _check_order(field: Field, array: NDArray[Any]) -> None:
    good = array[1:] > array[:-1] if field.order == "increasing" else array[1:] >= array[:-1]
    if not good.all():
        raise ValueError(f"{field.name!r} must be {field.order}, entry {int(np.argmin(good)) + 1} is not")
