"""Parameters of a method are annotated fields; their values are checked against the annotations."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import numpy as np

from hcal.inputs import InputKind
from hcal.text import JsonObject, quoted

if TYPE_CHECKING:
    from sklearn.utils import Tags

_T = TypeVar("_T")

_TYPES_IN_WORDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "text",
    types.NoneType: "None",
}


@dataclass(frozen=True)
class Between:
    """The range of a number, as in ``Annotated[int, Between(1)]``; with ``above``, ``low`` itself is excluded."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.above else 'of at least'} {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}]"


Count = Annotated[int, Between(1)]
TwoOrMore = Annotated[int, Between(2)]
NotBelowZero = Annotated[int, Between(0)]
Seed = Annotated[int, Between(0, 2**32 - 1)]
AboveZero = Annotated[float, Between(0, above=True)]
NotNegative = Annotated[float, Between(0)]


@typing.dataclass_transform(kw_only_default=True, eq_default=False)
def parameters(cls: type[_T]) -> type[_T]:
    """Write the constructor of a method from its annotated fields, all keyword-only (scikit-learn's rule).

    >>> @parameters
    ... class Method:
    ...     bins: int = 15
    >>> Method(bins=3).bins
    3
    """
    out = dataclass(kw_only=True, eq=False, repr=False)(cls)
    # get_type_hints looks each name up in the module of its class, also for inherited fields.
    hints = typing.get_type_hints(cls, include_extras=True)
    constructor = out.__init__
    declared = fields(out)  # type: ignore[arg-type]
    constructor.__annotations__ = {field.name: hints[field.name] for field in declared}
    return out


class Estimator:
    """An object with parameters that scikit-learn's pipelines, searches and ``clone`` accept.

    scikit-learn needs the methods but not its own base class, whose import would make commands slow to start.
    """

    #: What the object is called in the registry or in a model file.
    name: ClassVar[str]

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the arguments of the constructor by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: object) -> Self:
        """Set arguments of the constructor; return the object."""
        refuse_unknown(type(self), params)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def clone(self) -> Self:
        """Return an unfitted copy with the same parameters."""
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        usual = inspect.signature(type(self)).parameters
        changed = []
        for name, value in self.get_params().items():
            text = repr(value)
            if text != repr(usual[name].default):
                changed.append(f"{name}={text}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise NotFittedError for an attribute of a fit, whose name ends in one underscore, before the fit."""
            title = type(self).__name__
            is_fitted = any(attribute.endswith("_") for attribute in vars(self))
            if is_fitted or not name.endswith("_") or name.endswith("__"):
                raise AttributeError(f"{title!r} object has no attribute {name!r}")
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(
                f"this {title} is not fitted yet, so it has no {name}: call fit first"
            )


@parameters
class TakesScores(Estimator):
    """An estimator with the parameter ``input``, the kind of its scores."""

    input: InputKind = "logits"


def refuse_unknown(method: type[Estimator], names: Iterable[str], as_called: str = "") -> None:
    """Raise a ValueError if a method does not have one of these parameters; it lists the valid ones."""
    valid = inspect.signature(method).parameters
    for name in names:
        if name not in valid:
            title = as_called or method.name
            listed = ", ".join(valid) or "none"
            raise ValueError(
                f"{title!r} has no parameter {quoted(name)}; valid parameters: {listed}"
            )


def check_params(method: type[Estimator], params: Mapping[str, object]) -> JsonObject:
    """Check parameters, given or read from JSON, and return them in the form that the constructor takes.

    >>> from hcal.methods import get_calibrator
    >>> check_params(get_calibrator("ec"), {"bracket": [0.1, 2.0]})
    {'bracket': (0.1, 2.0)}
    >>> check_params(get_calibrator("ms"), {"folds": 0})
    Traceback (most recent call last):
    ...
    ValueError: parameter 'folds' of 'ms' must be an integer of at least 1, got 0
    """
    try:
        hints = typing.get_type_hints(method.__init__, include_extras=True)
    except (AttributeError, NameError, TypeError):  # names that only type checkers import
        hints = {}
    refuse_unknown(method, params)
    checked: JsonObject = {}
    for name, value in params.items():
        hint = hints.get(name, object)
        plain = value.item() if isinstance(value, np.generic) else value
        if not _accepts(hint, plain):
            raise ValueError(
                f"parameter {name!r} of {method.name!r} must be {_in_words(hint)}, got {value!r}"
            )
        checked[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    return checked


def _accepts(hint: object, value: object) -> bool:
    """Return whether a plain value matches an annotation; unknown annotations accept everything."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return _accepts(inner[0], value) and value in inner[1]
    if origin in (Union, types.UnionType):
        return any(_accepts(part, value) for part in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin is Callable:
        return callable(value)
    if origin is tuple:
        return _accepts_parts(inner, value)
    return _accepts_plain(hint, value)


def _accepts_parts(hints: tuple[object, ...], value: object) -> bool:
    """Return whether a tuple, or a list from JSON, matches the annotations of its parts."""
    if not isinstance(value, list | tuple):
        return False
    parts = hints[:1] * len(value) if Ellipsis in hints else hints
    return len(parts) == len(value) and all(map(_accepts, parts, value))


def _accepts_plain(hint: object, value: object) -> bool:
    if hint is bool:
        return isinstance(value, int) and value in (0, 1)
    if hint in (int, float):
        types_of_number = int if hint is int else int | float
        if not isinstance(value, types_of_number) or isinstance(value, bool):
            return False
        return abs(value) < math.inf  # NaN is not
    if hint is str:
        return isinstance(value, str)
    return value is None if hint is types.NoneType else True


def _in_words(hint: object) -> str:
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return f"{_in_words(inner[0])} {inner[1]}"
    if origin is tuple:
        parts = [_in_words(part) for part in inner if part is not Ellipsis]
        return f"a tuple of {' and '.join(parts)}"
    if origin is Callable:
        return "a function"
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if inner:
        return " or ".join(map(_in_words, inner))
    return _TYPES_IN_WORDS.get(hint, str(hint))
