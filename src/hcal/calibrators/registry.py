"""The list of methods, and the only one: found in this folder, and those that others register."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import cache
from typing import Any, TypeGuard, TypeVar

import hcal.calibrators as package
from hcal.calibrators.base import Calibrator

_Method = TypeVar("_Method", bound=type[Calibrator])
#: A name goes into command lines, CSV files and tables.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_registered: dict[str, type[Calibrator]] = {}


@cache
def _shipped() -> dict[str, type[Calibrator]]:
    """Import every module of this package and collect its named calibrators."""
    found: dict[str, type[Calibrator]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_") or module.name in ("base", "registry"):
            continue
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for cls in vars(loaded).values():
            if _is_method(cls) and f"{cls.__module__}.".startswith(f"{loaded.__name__}."):
                found[cls.name] = cls
    return found


def _is_method(cls: object) -> TypeGuard[type[Calibrator]]:
    named = inspect.isclass(cls) and issubclass(cls, Calibrator) and "name" in vars(cls)
    return named and not inspect.isabstract(cls)


def _methods() -> dict[str, type[Calibrator]]:
    return dict(sorted({**_shipped(), **_registered}.items()))


def register(cls: _Method) -> _Method:
    """Add a method that is defined elsewhere: it then saves, loads, benchmarks and reports as ours do.

    Parameters
    ----------
    cls : subclass of Calibrator
        Concrete, with a ``name`` of its own that no method of hcal has. Registering a name again replaces
        the class, so that a notebook cell can be run twice.

    Returns
    -------
    subclass of Calibrator
        The same class: ``register`` also decorates.

    Examples
    --------
    >>> from hcal.calibrators.uncal import Uncalibrated
    >>> @register
    ... class Mine(Uncalibrated):
    ...     name, title = "mine", "A method of mine"
    >>> get_calibrator("mine") is Mine
    True
    >>> unregister("mine")
    """
    if not _is_method(cls):
        raise TypeError(
            f"register takes a concrete subclass of Calibrator with a name of its own, got {cls!r}"
        )
    if not isinstance(cls.name, str) or not _NAME.fullmatch(cls.name):
        raise ValueError(f"the name of a method is lower-case letters, digits and _, got {cls.name!r}")
    if cls.name in _shipped() and _shipped()[cls.name] is not cls:
        raise ValueError(f"{cls.name!r} is a method of hcal: give yours another name")
    if not cls.state_specs:
        raise ValueError(f"{cls.__name__} declares no state_specs: without them its files cannot be checked")
    if cls.name not in _shipped():
        _registered[cls.name] = cls
    return cls


def unregister(name: str) -> None:
    """Forget a method that :func:`register` added.

    Examples
    --------
    >>> unregister("ts")
    Traceback (most recent call last):
    ...
    ValueError: 'ts' was not registered
    """
    if _registered.pop(name, None) is None:
        raise ValueError(f"{name!r} was not registered")


def is_shipped(cls: type[Calibrator]) -> bool:
    """Return whether a class is one of hcal's own methods, which every process finds by itself.

    Examples
    --------
    >>> is_shipped(get_calibrator("ts"))
    True
    """
    return _shipped().get(cls.name) is cls


def list_calibrators() -> list[str]:
    """Return the registry names of all methods.

    Examples
    --------
    >>> "ts" in list_calibrators()
    True
    """
    return list(_methods())


def get_calibrator(name: str) -> type[Calibrator]:
    """Return the class behind a registry name.

    Examples
    --------
    >>> get_calibrator("ts").preserves
    'order'
    """
    known = _methods()
    if name not in known:
        raise ValueError(f"unknown calibrator {name!r}; valid names: {', '.join(known)}")
    return known[name]


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Build any method by its registry name.

    Parameters
    ----------
    name : str
        One of :func:`list_calibrators`.
    **params
        Parameters of that method; an unknown one is an error that lists the valid ones.

    Examples
    --------
    >>> make_calibrator("ts", input="probs")
    TemperatureScaling(input='probs')
    """
    cls = get_calibrator(name)
    valid = [p for p in inspect.signature(cls.__init__).parameters if p != "self"]
    unknown = [p for p in params if p not in valid]
    if unknown:
        raise ValueError(
            f"{name!r} has no parameter {', '.join(map(repr, unknown))}; "
            f"valid parameters: {', '.join(valid) or 'none'}"
        )
    return cls(**params)
