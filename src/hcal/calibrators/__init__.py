"""Calibrators: one method a file. The registry finds them; nothing is listed by hand."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any, TypeGuard

from hcal.calibrators.base import CalibrationWarning, Calibrator, Fitted

__all__ = [
    "CalibrationWarning",
    "Calibrator",
    "Fitted",
    "get_calibrator",
    "list_calibrators",
    "make_calibrator",
]


@cache
def _registry() -> dict[str, type[Calibrator]]:
    """Import every module of this package and collect its named calibrators."""
    found: dict[str, type[Calibrator]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "base":
            continue
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        for cls in vars(loaded).values():
            if _is_method(cls) and f"{cls.__module__}.".startswith(f"{loaded.__name__}."):
                found[cls.name] = cls
    return dict(sorted(found.items()))


def _is_method(cls: object) -> TypeGuard[type[Calibrator]]:
    named = inspect.isclass(cls) and issubclass(cls, Calibrator) and "name" in vars(cls)
    return named and not inspect.isabstract(cls)


def list_calibrators() -> list[str]:
    """Return the registry names of all methods.

    Examples
    --------
    >>> "ts" in list_calibrators()
    True
    """
    return list(_registry())


def get_calibrator(name: str) -> type[Calibrator]:
    """Return the class behind a registry name.

    Examples
    --------
    >>> get_calibrator("ts").preserves
    'order'
    """
    try:
        return _registry()[name]
    except KeyError:
        raise ValueError(f"unknown calibrator {name!r}; valid names: {', '.join(_registry())}") from None


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Build any method by its registry name.

    Parameters
    ----------
    name : str
        One of :func:`list_calibrators`.
    **params
        Parameters of that method; an unknown one is an error that lists the valid ones.

    Returns
    -------
    Calibrator

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
