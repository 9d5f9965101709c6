"""Parameters of a method: declared as annotated fields, checked against these annotations."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from hcal.inputs import InputKind

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

_T = TypeVar("_T")
#: What a seed may be.
SEEDS = (0, 2**32 - 1)
_LONGEST = 1000


@dataclass_transform(kw_only_default=True, eq_default=False)
def parameters(cls: type[_T]) -> type[_T]:
    """Write the constructor of a method from its annotated fields, all keyword-only (scikit-learn's rule).

    >>> @parameters
    ... class Method:
    ...     bins: int = 15
    >>> Method(bins=3).bins
    3
    """
    out = dataclass(kw_only=True, eq=False, repr=False)(cls)
    hints = get_type_hints(cls)  # each name is looked up where it was written, also of an inherited field
    out.__init__.__annotations__ = {field.name: hints[field.name] for field in fields(out)}  # type: ignore[arg-type]
    return out


class Estimator:
    """An object of parameters, as scikit-learn takes it in pipelines, searches and ``clone``.

    scikit-learn asks for methods and not for its own base class, whose import would take most of a command's start.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor; return the object."""
        valid = self.get_params()
        for name, value in params.items():
            if name not in valid:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(valid)}")
            setattr(self, name, value)
        return self

    def clone(self) -> Self:
        """Return an unfitted one with the same parameters."""
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        defaults = {n: p.default for n, p in inspect.signature(type(self).__init__).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if value is not defaults[name]}
        given = ", ".join(f"{name}={value!r}" for name, value in changed.items() if value != defaults[name])
        return f"{type(self).__name__}({given})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    if not TYPE_CHECKING:  # a type checker is to know the attributes

        def __getattr__(self, name: str) -> Any:
            """Say that there was no fit: what it learns ends in one underscore."""
            own, fitted = type(self).__name__, any(known.endswith("_") for known in vars(self))
            if fitted or not name.endswith("_") or name.endswith("__"):
                raise AttributeError(f"{own!r} object has no attribute {name!r}")
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {own} is not fitted yet, so it has no {name}: call fit first")


@parameters
class TakesScores(Estimator):
    """An estimator that is told of what kind its scores are."""

    input: InputKind = "logits"


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a parameter that counts something, or say what it must be.

    >>> whole_number("bins", 15, 1)
    15
    """
    if not isinstance(value, Real) or not float(value).is_integer() or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {kind}, got {value!r}")
    return int(float(value))


def check_params(method: type[Calibrator], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters read from JSON as the constructor takes them; name the first that is not one.

    >>> from hcal.calibrators import get_calibrator
    >>> check_params(get_calibrator("ec"), {"bracket": [0.1, 2.0]})
    {'bracket': (0.1, 2.0)}
    >>> check_params(get_calibrator("ec"), {"bracket": "wide"})
    Traceback (most recent call last):
    ...
    ValueError: parameter 'bracket' of 'ec' cannot be 'wide'
    """
    hints = _hints(method)
    valid = [name for name in inspect.signature(method.__init__).parameters if name != "self"]
    found: dict[str, Any] = {}
    for name, value in params.items():
        if name not in valid:
            raise ValueError(f"{method.name!r} has no parameter {name!r}")
        seedless = value is None and name in ("seed", "random_state")
        if not (seedless or (_accepts(hints.get(name, Any), value) and _in_range(method, name, value))):
            raise ValueError(f"parameter {name!r} of {method.name!r} cannot be {value!r}")
        found[name] = _as_tuple(hints.get(name, Any), value)
    return found


def refuse_types(calibrator: Calibrator) -> None:
    """Name the first parameter that is not of its annotated type; of values the methods speak themselves.

    >>> from hcal.calibrators import make_calibrator
    >>> refuse_types(make_calibrator("ms", folds="five"))
    Traceback (most recent call last):
    ...
    ValueError: parameter 'folds' of 'ms' must be int, got 'five'
    """
    for name, value in calibrator.get_params(deep=False).items():
        hint = _hints(type(calibrator)).get(name, Any)
        plain = value.item() if isinstance(value, np.generic) else value
        takes_number = get_origin(hint) is not tuple and {int, float} & {hint, *get_args(hint)}
        # whether a number or a named choice is a good one is the method's to say
        if (isinstance(plain, Real) and takes_number) or "Literal[" in str(hint):
            continue
        if not _accepts(hint, plain):
            wanted = hint.__name__ if isinstance(hint, type) else str(hint)
            raise ValueError(f"parameter {name!r} of {calibrator.name!r} must be {wanted}, got {value!r}")


def _hints(method: type[Calibrator]) -> dict[str, Any]:
    try:
        return get_type_hints(method.__init__)
    except (AttributeError, NameError, TypeError):  # of others: a name that only type checkers import
        return {}


def _in_range(method: type[Calibrator], name: str, value: Any) -> bool:
    limits = {"seed": SEEDS, "random_state": SEEDS, **method.limits}
    if name not in limits or not isinstance(value, int | float):
        return True
    low, high = limits[name]
    return low <= value <= high


def _accepts(hint: Any, value: Any) -> bool:
    """Return whether a plain value is of the annotated type; what is not known here is not judged."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_accepts(part, value) for part in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) <= _LONGEST and _each(inner, value)
    if hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, int) and value in (0, 1)
    if hint in (int, float):
        return _is_number(value, whole=hint is int)
    return isinstance(value, str) if hint is str else True


def _each(inner: tuple[Any, ...], values: Any) -> bool:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(_accepts(inner[0], v) for v in values)
    return len(inner) == len(values) and all(map(_accepts, inner, values))


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, int):
        return abs(value) < 2**63
    return math.isfinite(value) and (not whole or value == int(value))


def _as_tuple(hint: Any, value: Any) -> Any:
    """JSON has no tuples: a list stands where the constructor takes one."""
    if not isinstance(value, list):
        return value
    able = [hint, *get_args(hint)]
    return tuple(value) if any(get_origin(h) is tuple for h in able) else value
