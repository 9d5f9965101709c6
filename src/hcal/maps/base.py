"""Maps: frozen objects of arrays with one ``__call__`` from scores to log-probabilities; and how they predict.

A fitted calibrator predicts with a map. Each field of a map is declared with its shape and range, checked when the
object is made, and stored in the model file. The formula is written once in the operations of :mod:`hcal.xp`, so the
same ``__call__`` runs on numpy arrays and on torch tensors, under ``torch.compile`` and in an exported ONNX graph.

>>> @map_type
... class Scaled(Map):
...     beta: Array = array("inverse temperature 1/T", low=0.0)
...
...     def __call__(self, x):
...         return namespace(x).log_softmax(self.beta * x)
>>> np.exp(Scaled(beta=np.array(0.5))(np.array([[0.0, 2.0]]))).round(3)
array([[0.269, 0.731]])
>>> Scaled(beta=np.array(-1.0))
Traceback (most recent call last):
...
ValueError: 'beta' holds -1, declared are values in [0, 1e+100]

:class:`Prediction` is the map around every other, all that ``predict_proba`` computes: scores → logits → floor → map →
class frequencies → argmax kept → not 0. All calibrators share it; only the map in the middle differs.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    dataclass_transform,
)

import numpy as np

from hcal.inputs import INPUT_KINDS, InputKind, to_logits, zero_or_nan
from hcal.numerics import Float64, FloatArray, NumpyArray
from hcal.text import JsonObject
from hcal.xp import Array, namespace

if TYPE_CHECKING:
    from torch import nn

#: The default bound of numbers in a map: far beyond any fit, and products of two of them stay finite.
LARGE = 1e100
#: The bound of slopes and inverse temperatures, which are large where logits are small.
STEEP = 1e200
#: Constants from here on, and their products with scores, could overflow in float32.
_STEEP_FLOAT32 = 1e15
#: The least value of a divisor.
SMALL = 1e-200

_T = TypeVar("_T")
_SIZE = re.compile(r"([A-Z])([+-]\d+)?")


@dataclass(frozen=True)
class Spec:
    """The declaration of one array, as :func:`array` takes it."""

    what: str
    shape: tuple[str | int, ...]
    low: float = -LARGE
    high: float = LARGE
    dtype: Literal["float64", "int64"] = "float64"
    order: Literal["increasing", "not falling"] | None = None
    optional: bool = False


class ArrayProperties(TypedDict, total=False):
    """Further properties of an array."""

    low: float
    high: float
    dtype: Literal["float64", "int64"]
    order: Literal["increasing", "not falling"] | None
    optional: bool


def array(what: str, *shape: str | int, **declared: Unpack[ArrayProperties]) -> Any:
    """Declare an array of a map.

    Parameters
    ----------
    what : str
        Its meaning, in a few words; the page on the file format prints it.
    *shape : str or int
        Sizes; a letter stands for a size that all arrays of the map share ("K": classes), "K+1" for one more.
    **declared
        Further properties:
    low, high : float
        The range of the values; ±1e100 by default.
    dtype : {"float64", "int64"}
    order : {"increasing", "not falling"}, optional
        The order of the values of a one-dimensional array.
    optional : bool
        Whether the field may be None.
    """
    spec = Spec(what, shape, **declared)
    if spec.optional:
        return dataclasses.field(default=None, metadata={"array": spec})
    return dataclasses.field(metadata={"array": spec})


def option(what: str, choices: tuple[object, ...], default: object = dataclasses.MISSING) -> Any:
    """Declare a field with a few possible values, such as how a curve is interpolated."""
    return dataclasses.field(default=default, metadata={"choices": choices, "what": what})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(array, option))
def map_type(cls: type[_T]) -> type[_T]:
    """Make a class a map: a frozen dataclass whose fields are given by name."""
    return dataclass(frozen=True, kw_only=True, eq=False)(cls)


class Map(ABC):
    """A function from (N, K) scores to (N, K) log-probabilities; decorate subclasses with :func:`map_type`."""

    #: Whether the formula can be computed in float32; :attr:`fits_float32` also looks at the constants.
    float32_safe: ClassVar[bool] = False
    #: Whether ``compiled`` itself keeps the argmax of its logits where the calibrator promises that.
    kernel_keeps_argmax: ClassVar[bool] = False
    #: How many numbers the formula needs in memory for each score; blocks of rows are smaller accordingly.
    expansion: ClassVar[int] = 1

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of finite logits (N, K)."""

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of finite logits (N, K)."""
        return namespace(x).exp(self(x))

    def device_kernel(self, *, keeps_argmax: bool, least: float) -> nn.Module | None:
        """Return a torch module that computes all of a prediction from logits in one launch on a GPU, or None.

        No probability that it states is below ``least``.
        """
        return None

    def compiled(self, x: Array) -> Array | None:
        """Return probabilities (N, K) of a numpy array by a compiled version of the formula, or None without one."""
        return None

    def check(self) -> None:  # noqa: B027 - most maps have nothing to add
        """Raise a ValueError if fields contradict each other in a way that their declarations cannot express."""

    @cached_property
    def fits_float32(self) -> bool:
        """Whether float32 scores may be computed in float32: the formula can, and no constant is out of reach."""
        if not self.float32_safe:
            return False
        arrays = self.arrays().values()
        return all(np.abs(a[np.isfinite(a)]).max(initial=0.0) < _STEEP_FLOAT32 for a in arrays)

    def __post_init__(self) -> None:
        if all(isinstance(value, np.ndarray) for value in self.arrays().values()):
            self.check_fields({})
            self.check()

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name; an array of an inner map is named ``field.name``."""
        arrays: dict[str, Array] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Map):
                for name, inner_array in value.arrays().items():
                    arrays[f"{field.name}.{name}"] = inner_array
            elif "array" in field.metadata and value is not None:
                arrays[field.name] = value
        return arrays

    def options(self) -> JsonObject:
        """Return all other fields: options, and the types and options of inner maps."""
        options: JsonObject = {"type": type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if "array" in field.metadata:
                continue
            value = getattr(self, field.name)
            options[field.name] = value.options() if isinstance(value, Map) else value
        return options

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        """Raise a ValueError that names a field that is not as declared; ``sizes`` gives sizes such as K if known."""
        all_sizes = dict(sizes)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            name = field.name
            value = getattr(self, name)
            if isinstance(value, Map):
                value.check_fields(sizes)
            elif not field.metadata:
                raise ValueError(f"{name!r} is no map")
            elif "array" in field.metadata:
                _check_array(name, value, field.metadata["array"], all_sizes)
            elif "choices" in field.metadata:
                _check_choice(name, value, field.metadata["choices"])


class ProbabilityMap(Map):
    """A map whose formula gives probabilities; ``__call__`` takes their logarithm."""

    @abstractmethod
    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of finite logits (N, K)."""

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K); a probability of 0 counts as the smallest positive normal number."""
        xp = namespace(x)
        return xp.log(xp.maximum(self.probabilities(x), xp.tiny(x)))


# -- the formula around every map -------------------------------------------------------------------


#: The logarithm of a probability that counts as 0, because no data set could tell it from 0.
_LOG_TINY = float(np.log(1e-30))
_LEAST_FLOOR = 1e-31
#: The least probability that a calibrator states, a normal number of float32: it has never seen that an event cannot
#: happen.
LEAST_PROBABILITY = 1e-37
_LOG_2 = float(np.log(2.0))
#: Rows are predicted in blocks of about this many scores, which stay in the cache: larger blocks take three times as
#: long at 5000 x 100. Memory stays bounded at any N.
_BLOCK_SCORES = 65_536
#: A call of fewer rows is a request or a small file, and the formula answers it before anybody waits: in .7 ms at
#: 1000 x 10 and 3 ms at 1000 x 100. Loading a kernel takes .27 s, and compiling it 3.5 s. Larger calls are taken for
#: parts of long work: at 5000 x 10 a kernel is nine times as fast as the formula.
MANY_ROWS = 4_096
#: So many scores take the formula .03 s, however they are cut into rows.
MANY_SCORES = 1_000_000
#: Scores further below the top score of their row count as this far below, so that products with them stay finite.
_LOWEST = -1e30


@map_type
class Prediction(Map):
    """Turns scores of the declared kind into probabilities."""

    map: Map
    kind: InputKind = option("what the scores are", INPUT_KINDS, "logits")
    preserves: str | None = option("what is promised", ("order", "accuracy", None), None)
    floor: Array = array(
        "what a probability of 0 is taken for", low=_LEAST_FLOOR, high=0.5, optional=True
    )
    prior: Array = array(
        "ln of new over old class frequencies", "K", low=-np.inf, high=700.0, optional=True
    )
    states_zero: bool = option("whether a probability may be 0", (True, False), True)

    def check(self) -> None:
        """Refuse a floor of logits: it counts from probability 1."""
        if self.floor is not None and self.kind == "logits":
            raise ValueError("'floor' is a probability, and the scores are logits")

    def __call__(self, scores: Array) -> Array:
        """Return probabilities (N, K) of any scores (N, K).

        A row with NaN or +inf, or with −inf for every class, gives NaN: numpy input with such rows was refused before,
        but a deployed graph has no other check. A single −inf means that the class has the least probability.
        """
        xp = namespace(scores)
        x = to_logits(scores, self.kind)
        if self.floor is None:  # a floor counts from probability 1, and bounds the logits itself
            x = xp.maximum(x - xp.row_max(x), _LOWEST)
        # In ONNX, the largest score of a row may leave out a NaN, so each score is looked at.
        each_is_sound = xp.row_min(xp.astype(scores < np.inf, scores))
        one_is_finite = xp.astype(xp.row_max(scores) > -np.inf, scores)
        return self.of_logits(x, scores) + zero_or_nan(xp.minimum(each_is_sound, one_is_finite))

    def in_blocks(self, scores: FloatArray, *, once: bool = False) -> FloatArray:
        """Return probabilities (N, K) of checked numpy scores (N, K), computed block by block.

        ``once`` says that the caller predicts these rows and no others, so that a kernel must pay for its loading.
        """
        kernel = kernel_pays(*scores.shape, once=once)
        width = scores.dtype if self.map.fits_float32 else np.dtype(np.float64)
        does_all = (
            self.kind == "logits"
            and self.prior is None
            and self.map.kernel_keeps_argmax
            and scores.dtype == width
        )
        if kernel and does_all and to_logits(scores, self.kind) is scores:
            # The kernel works in blocks of its own and does all that is left to do.
            probs: FloatArray | None = self.map.compiled(scores)
            if probs is not None:
                return (
                    probs if self.states_zero else np.maximum(probs, LEAST_PROBABILITY, out=probs)
                )

        out = np.empty(scores.shape, dtype=scores.dtype)
        step = self.rows_at_once(scores.shape[1])
        for start in range(0, len(scores), step):
            block = scores[start : start + step]
            x = to_logits(block, self.kind).astype(width, copy=False)
            probs = self.of_logits(x, block, kernel=kernel)
            if probs.dtype != out.dtype:
                probs = self.narrowed(probs, block)
            out[start : start + step] = probs
        return out

    def rows_at_once(self, n_classes: int) -> int:
        """Return how many rows :meth:`in_blocks` takes at a time."""
        return max(1, _BLOCK_SCORES // (n_classes * self.map.expansion))

    def of_logits(self, x: Array, scores: Array, *, kernel: bool = False) -> Array:
        """Return probabilities (N, K) of finite logits x (N, K), in their float width; x was made from ``scores``."""
        inner = x if self.floor is None else raise_to_floor(x, self.floor)
        probs = self.map.compiled(inner) if kernel else None
        is_kept = probs is not None and self.map.kernel_keeps_argmax and inner is scores

        if probs is None:
            probs = self.map.probabilities(inner)
            if probs.dtype != x.dtype:
                probs = namespace(x).astype(probs, x)
        if self.prior is not None:
            probs = reweight(probs, self.prior)
        if not is_kept and self.preserves is not None:
            probs = keep_argmax(probs, scores)
        if self.states_zero:
            return probs
        return namespace(x).maximum(probs, LEAST_PROBABILITY)

    def narrowed(self, probs: Array, x: Array) -> Array:
        """Return probabilities in the narrower float type of the logits x, with the argmax kept after this rounding."""
        narrow = namespace(x).astype(probs, x)
        return narrow if self.preserves is None else keep_argmax(narrow, x)


def kernel_pays(n_rows: int, n_classes: int, *, once: bool = False) -> bool:
    """Return whether a prediction is long enough for a compiled kernel, which must be loaded, or compiled first.

    ``once`` says that the rows are predicted once, as in a fit or an evaluation: then the scores alone decide. The
    answer depends on these arguments and not on whether a kernel was compiled before.

    >>> [kernel_pays(n_rows, 10) for n_rows in (1, 1_000, 5_000)]
    [False, False, True]
    """
    many_scores = n_rows * n_classes >= MANY_SCORES
    return many_scores or (n_rows >= MANY_ROWS and not once)


def learn_floor(log_probs: FloatArray, weight: Float64 | None) -> Float64:
    """Return the probability that a 0 is replaced by, learned from a calibration set.

    If the set has zeros, this is half of its smallest positive probability. Otherwise it is a quarter of that or of
    1/(N·K), whichever is smaller, so that new probabilities only a little below those of the set stay as they are.

    >>> round(float(learn_floor(np.log([[1e-300, 1.0], [0.01, 0.99]]), None)), 6)
    0.005
    >>> round(float(learn_floor(np.log([[0.4, 0.6]] * 10), None)), 6)
    0.0125
    """
    total = float(len(log_probs)) if weight is None else float(weight.sum())
    believed = log_probs >= _LOG_TINY
    smallest = float(np.exp(np.min(log_probs, where=believed, initial=0.0)))
    if believed.all():
        smallest = min(smallest, 1 / (max(total, 1.0) * log_probs.shape[1])) / 2
    return np.array(max(smallest / 2, _LEAST_FLOOR))  # weights may sum to any number


def raise_to_floor(x: Array, floor: Array) -> Array:
    """Return log-probabilities in which those below ln(2·floor) are raised to between ln(floor) and ln(2·floor).

    A probability of 0 is usually a small number that was rounded; the floor says how small. With the depth
    d = ln(2·floor) − x > 0, x becomes ln(2·floor) − ln 2 · d/(d + ln 2), which is increasing and smooth.

    >>> np.exp(raise_to_floor(np.log([1e-300, 0.01, 0.5]), np.array(0.005))).round(4)
    array([0.005, 0.01 , 0.5  ])
    """
    xp = namespace(x)
    knee = xp.log(2 * floor)
    depth = xp.maximum(knee - x, 0.0)
    raised = knee - _LOG_2 * (depth / (depth + _LOG_2))
    return xp.where(depth > 0, raised, x)


def reweight(probs: Array, log_ratio: Array) -> Array:
    """Return probabilities (N, K) times e^log_ratio (K,), normalised.

    A row whose products are all 0 says nothing about the classes that are left, and gets the factors alone.

    >>> reweight(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0.0, -np.inf]))
    array([[1., 0.],
           [1., 0.]])
    """
    xp = namespace(probs)
    factors = xp.exp(log_ratio - xp.row_max(log_ratio))
    products = probs * factors
    total = xp.row_sum(products)
    scaled = products / xp.where(total > 0, total, 1.0)
    return xp.where(total > 0, scaled, factors / xp.row_sum(factors))


def keep_argmax(probs: Array, x: Array) -> Array:
    """Return the probabilities with the same argmax as x, in case rounding made the top class equal to an earlier one.

    A strictly increasing map cannot change the argmax, but rounding can: two nearly equal logits may get equal
    probabilities, and ``argmax`` takes the first.

    >>> keep_argmax(np.array([[0.5, 0.5]]), np.array([[0.0, 1e-20]])).argmax()
    np.int64(1)
    """
    xp = namespace(probs)
    top = xp.argmax(x)
    top_after = xp.argmax(probs)
    if isinstance(probs, np.ndarray) and (top == top_after).all():
        return probs
    largest = xp.take_along(probs, top_after)
    just_above = largest + xp.eps(probs) * xp.abs(largest)
    top_prob = xp.where(top == top_after, xp.take_along(probs, top), just_above)
    return xp.put_along(probs, top, top_prob)


# -- a map from its parts, and what is checked of them -----------------------------------------------


def build_map(
    types: tuple[type[Map], ...], options: JsonObject, arrays: Mapping[str, NumpyArray]
) -> Map:
    """Return the map that :meth:`Map.options` and :meth:`Map.arrays` describe, checked; only ``types`` may occur."""
    classes = {cls.__name__: cls for cls in types}
    name = options.get("type")
    if not isinstance(name, str) or name not in classes:
        raise ValueError(
            f"the map is of type {str(name)[:60]!r}, declared is one of {', '.join(classes)}"
        )

    values = {key: value for key, value in options.items() if key != "type"}
    outer_arrays = dict(arrays)
    for key, value in values.items():
        if isinstance(value, dict):
            inner_arrays = _pop_inner(outer_arrays, f"{key}.")
            values[key] = build_map(types, value, inner_arrays)
    values |= outer_arrays

    declared = dataclasses.fields(classes[name])  # type: ignore[arg-type]
    fields = {field.name: field for field in declared}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"{unknown[0][:80]!r} is not a field of {name}")
    for key, field in fields.items():
        if field.default is dataclasses.MISSING and key not in values:
            raise ValueError(f"{key!r} is missing")
    return classes[name](**values)


def _pop_inner(arrays: dict[str, NumpyArray], prefix: str) -> dict[str, NumpyArray]:
    """Remove the arrays of an inner map, and return them by their names in it."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name!r} is {value!r}, declared is one of {choices}")


def _check_array(name: str, value: object, spec: Spec, sizes: dict[str, int]) -> None:
    """Raise a ValueError if a value is not as declared; sizes that it defines are added to ``sizes``."""
    if value is None and spec.optional:
        return
    if not isinstance(value, np.ndarray) or value.dtype != spec.dtype:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{name!r} has type {kind}, declared is an array of {spec.dtype}")
    if not _has_shape(value, spec, sizes):
        shape = ", ".join(map(str, spec.shape))
        letters = ", ".join(f"{letter} = {n}" for letter, n in sizes.items())
        raise ValueError(
            f"{name!r} has shape {value.shape}, declared is ({shape}) "
            f"with {letters or 'no size known yet'}"
        )
    if value.size == 0:
        return
    _check_range(name, value, spec)
    if spec.order is not None:
        _check_order(name, value, spec.order)


def _has_shape(value: NumpyArray, spec: Spec, sizes: dict[str, int]) -> bool:
    if value.ndim != len(spec.shape):
        return False
    axes = zip(spec.shape, value.shape, strict=True)
    return all(_fits(size, length, sizes) for size, length in axes)


def _fits(size: str | int, length: int, sizes: dict[str, int]) -> bool:
    """Return whether an axis is as long as declared; the first axis with a letter defines the letter's size."""
    if isinstance(size, int):
        return length == size
    parts = _SIZE.fullmatch(size)
    assert parts is not None, f"a size is a number, a letter, or a letter and a number: {size!r}"
    letter, more_entries = parts.groups()
    count = length - int(more_entries or 0)
    return count >= 0 and count == sizes.setdefault(letter, count)


def _check_range(name: str, value: NumpyArray, spec: Spec) -> None:
    least = value.min()  # NaN if any value is, and then no comparison holds
    most = value.max()
    if least >= spec.low and most <= spec.high:
        return
    wrong = least if least < spec.low else most
    text = "NaN" if np.isnan(least) else f"{wrong:.6g}"
    raise ValueError(f"{name!r} holds {text}, declared are values in [{spec.low:g}, {spec.high:g}]")


def _check_order(name: str, value: NumpyArray, order: str) -> None:
    steps_up = value[1:] > value[:-1] if order == "increasing" else value[1:] >= value[:-1]
    if not steps_up.all():
        entry = int(np.argmin(steps_up)) + 1
        raise ValueError(f"{name!r} must be {order}, entry {entry} is not")
