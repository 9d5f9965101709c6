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
from numpy.typing import NDArray

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

    def device_kernel(self, *, keeps_argmax: bool) -> Any:
        """Return a torch module that computes all of a prediction from logits in one launch on a GPU, or None."""
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
        found: dict[str, Any] = {}
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, Map):
                found |= {f"{each.name}.{name}": part for name, part in value.arrays().items()}
            elif "array" in each.metadata and value is not None:
                found[each.name] = value
        return found

    def options(self) -> dict[str, Any]:
        """Return all other fields: options, and the types and options of inner maps."""
        others = (f.name for f in dataclasses.fields(self) if "array" not in f.metadata)  # type: ignore[arg-type]
        found = {name: getattr(self, name) for name in others}
        own = {
            name: value.options() if isinstance(value, Map) else value
            for name, value in found.items()
        }
        return {"type": type(self).__name__, **own}

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        """Raise a ValueError that names a field that is not as declared; ``sizes`` gives sizes such as K if known."""
        known = dict(sizes)
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, Map):
                value.check_fields(sizes)
            elif not each.metadata:
                raise ValueError(f"{each.name!r} is no map")
            elif "array" in each.metadata:
                _check_array(each.name, value, each.metadata["array"], known)
            elif "choices" in each.metadata and value not in each.metadata["choices"]:
                raise ValueError(
                    f"{each.name!r} is {value!r}, declared is one of {each.metadata['choices']}"
                )


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
    types: tuple[type[Map], ...], options: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> Map:
    """Return the map that :meth:`Map.options` and :meth:`Map.arrays` describe, checked; only ``types`` may occur."""
    known = {each.__name__: each for each in types}
    name = options.get("type")
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"the map is of type {str(name)[:60]!r}, declared is one of {', '.join(known)}"
        )
    fields = {each.name: each for each in dataclasses.fields(known[name])}  # type: ignore[arg-type]
    given = {key: value for key, value in options.items() if key != "type"}
    for key, value in given.items():
        if isinstance(value, dict):
            start = f"{key}."
            own = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            arrays = {n: a for n, a in arrays.items() if not n.startswith(start)}
            given[key] = build_map(types, value, own)
    given |= arrays
    if unknown := sorted(set(given) - set(fields)):
        raise ValueError(f"{unknown[0][:80]!r} is not a field of {name}")
    needed = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in given]
    if needed:
        raise ValueError(f"{needed[0]!r} is missing")
    return known[name](**given)


def _check_array(name: str, value: Any, spec: Spec, sizes: dict[str, int]) -> None:
    if value is None and spec.optional:
        return
    if not isinstance(value, np.ndarray) or value.dtype != spec.dtype:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{name!r} has type {kind}, declared is an array of {spec.dtype}")
    if value.ndim != len(spec.shape) or not all(
        map(_fits, spec.shape, value.shape, [sizes] * value.ndim)
    ):
        shape, known = (
            ", ".join(map(str, spec.shape)),
            ", ".join(f"{letter} = {n}" for letter, n in sizes.items()),
        )
        raise ValueError(
            f"{name!r} has shape {value.shape}, declared is ({shape}) with {known or 'no size known yet'}"
        )
    if value.size == 0:
        return
    least, most = value.min(), value.max()  # NaN if any value is, and then no comparison holds
    if not (least >= spec.low and most <= spec.high):
        bad = "NaN" if np.isnan(least) else f"{least if least < spec.low else most:.6g}"
        raise ValueError(
            f"{name!r} holds {bad}, declared are values in [{spec.low:g}, {spec.high:g}]"
        )
    if spec.order is not None:
        good = value[1:] > value[:-1] if spec.order == "increasing" else value[1:] >= value[:-1]
        if not good.all():
            raise ValueError(
                f"{name!r} must be {spec.order}, entry {int(np.argmin(good)) + 1} is not"
            )


def _fits(size: str | int, length: int, sizes: dict[str, int]) -> bool:
    """Return whether an axis is as long as declared; the first axis with a letter defines the letter's size."""
    if isinstance(size, int):
        return length == size
    found = _SIZE.fullmatch(size)
    assert found is not None, f"a size is a number, a letter, or a letter and a number: {size!r}"
    count = length - int(found[2] or 0)
    return count >= 0 and count == sizes.setdefault(found[1], count)


def log_sigmoid(x: Array) -> Array:
    """Return −ln(1 + e^−x), without overflow on either side.

    >>> log_sigmoid(np.array([-1000.0, 1000.0]))
    array([-1000.,     0.])
    """
    xp = namespace(x)
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))
