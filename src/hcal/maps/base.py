"""What a map is: a frozen object of arrays with one ``__call__`` from scores to log-probabilities.

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
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from hcal.numerics import NumpyArray
from hcal.xp import Array, namespace

#: The default bound of numbers in a map: far beyond any fit, and products of two of them stay finite.
LARGE = 1e100
#: The bound of slopes and inverse temperatures, which are large where logits are small.
STEEP = 1e200
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


def array(what: str, *shape: str | int, **declared: Any) -> Any:
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
    default: Any = None if spec.optional else dataclasses.MISSING
    return dataclasses.field(default=default, metadata={"array": spec})


def option(what: str, choices: tuple[Any, ...], default: Any = dataclasses.MISSING) -> Any:
    """Declare a field with a few possible values, such as how a curve is interpolated."""
    return dataclasses.field(default=default, metadata={"choices": choices, "what": what})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(array, option))
def map_type(cls: type[_T]) -> type[_T]:
    """Make a class a map: a frozen dataclass whose fields are given by name."""
    return dataclass(frozen=True, kw_only=True, eq=False)(cls)


class Map(ABC):
    """A function from (N, K) scores to (N, K) log-probabilities; decorate subclasses with :func:`map_type`."""

    #: Whether float32 scores may be computed in float32; otherwise they are widened to float64.
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

    def device_kernel(self, *, keeps_argmax: bool, least: float) -> Any:
        """Return a torch module that computes all of a prediction from logits in one launch on a GPU, or None.

        No probability that it states is below ``least``.
        """
        return None

    def compiled(self, x: Array) -> Array | None:
        """Return probabilities (N, K) of a numpy array by a compiled version of the formula, or None without one."""
        return None

    def check(self) -> None:  # noqa: B027 - most maps have nothing to add
        """Raise a ValueError if fields contradict each other in a way that their declarations cannot express."""

    def __post_init__(self) -> None:
        if all(isinstance(value, np.ndarray) for value in self.arrays().values()):
            self.check_fields({})
            self.check()

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name; an array of an inner map is named ``field.name``."""
        arrays: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Map):
                for name, inner_array in value.arrays().items():
                    arrays[f"{field.name}.{name}"] = inner_array
            elif "array" in field.metadata and value is not None:
                arrays[field.name] = value
        return arrays

    def options(self) -> dict[str, Any]:
        """Return all other fields: options, and the types and options of inner maps."""
        options: dict[str, Any] = {"type": type(self).__name__}
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


def build_map(
    types: tuple[type[Map], ...], options: Mapping[str, Any], arrays: Mapping[str, NumpyArray]
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


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name!r} is {value!r}, declared is one of {choices}")


def _check_array(name: str, value: Any, spec: Spec, sizes: dict[str, int]) -> None:
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


def log_sigmoid(x: Array) -> Array:
    """Return −ln(1 + e^−x), without overflow on either side.

    >>> log_sigmoid(np.array([-1000.0, 1000.0]))
    array([-1000.,     0.])
    """
    xp = namespace(x)
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))
