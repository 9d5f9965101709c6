"""Find methods by name: each method is the file of that name in this folder, and others can be registered.

``methods/ts.py`` holds ``ts``. A file is imported when its method is asked for. Other packages add methods by
:func:`register` or by entry points of the group ``hcal.methods``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeGuard, TypeVar

import hcal.methods as package
from hcal.methods.base import Calibrator
from hcal.methods.parameters import refuse_unknown

_Method = TypeVar("_Method", bound=type[Calibrator])
#: A name goes into command lines, CSV files and tables.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: Files of this folder that hold no method.
_NO_METHOD = {"base", "batches", "files", "folds", "multilabel", "parameters", "prior", "registry"}
#: Methods that have a folder of their own.
_ROOMS = {"h": "hcal.h_calibration.calibrator", "pool": "hcal.pool.calibrator"}
#: Methods whose fit needs more than scores and labels; they are not among those that all tables list.
_SPECIAL = {"segmented": "hcal.segments.calibrator"}
_registered: dict[str, type[Calibrator]] = {}


def _shipped() -> list[str]:
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    methods = [name for name in names if not name.startswith("_") and name not in _NO_METHOD]
    return [*_ROOMS, *methods]


def _is_method(cls: object) -> TypeGuard[type[Calibrator]]:
    named = inspect.isclass(cls) and issubclass(cls, Calibrator) and "name" in vars(cls)
    return named and not inspect.isabstract(cls)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="hcal.methods")}


def register(cls: _Method) -> _Method:
    """Add a method that is defined elsewhere, so that it can be saved, loaded, compared and reported like hcal's own.

    Parameters
    ----------
    cls : subclass of Calibrator
        Concrete, with a ``name`` of its own that no method of hcal has. Registering a name again replaces
        the class, so that a notebook cell can be run twice.

    Returns
    -------
    subclass of Calibrator
        The same class, so that ``register`` can be used as a decorator.

    Examples
    --------
    >>> from hcal.methods.uncal import Uncalibrated
    >>> @register
    ... class Mine(Uncalibrated):
    ...     name, title = "mine", "A method of mine"
    >>> get_calibrator("mine") is Mine
    True
    """
    if not _is_method(cls):
        raise TypeError(
            f"register takes a concrete subclass of Calibrator with a name of its own, got {cls!r}"
        )
    if not isinstance(cls.name, str) or not _NAME.fullmatch(cls.name):
        raise ValueError(
            f"the name of a method is lower-case letters, digits and _, got {cls.name!r}"
        )
    if cls.name in _shipped() or cls.name in _SPECIAL:
        raise ValueError(f"{cls.name!r} is a method of hcal: give yours another name")
    if not cls.map_types:
        raise ValueError(
            f"{cls.__name__} declares no map_types: without them its files cannot be checked"
        )
    _registered[cls.name] = cls
    return cls


def list_calibrators() -> list[str]:
    """Return the registry names of all methods that learn from scores and labels alone.

    ``"segmented"`` (:class:`hcal.SegmentedCalibrator`), which also needs the segments of rows, is not listed.

    Examples
    --------
    >>> "ts" in list_calibrators()
    True
    """
    return sorted({*_shipped(), *_registered, *_plugins()})


def is_calibrator(name: str) -> bool:
    """Return whether a method of this name exists, in the list or with a fit that needs more than scores and labels.

    >>> is_calibrator("segmented"), is_calibrator("nothing")
    (True, False)
    """
    return name in _SPECIAL or name in list_calibrators()


def get_calibrator(name: str) -> type[Calibrator]:
    """Return the class behind a registry name.

    Examples
    --------
    >>> get_calibrator("ts").promises
    'order'
    """
    if name in _registered:
        return _registered[name]
    if name in _shipped():
        module = importlib.import_module(_ROOMS.get(name, f"{package.__name__}.{name}"))
        return next(cls for cls in vars(module).values() if _is_method(cls) and cls.name == name)
    if name in _SPECIAL:
        special: type[Calibrator] = importlib.import_module(_SPECIAL[name]).SegmentedCalibrator
        return special
    plugins = _plugins()
    if name in plugins:
        method: type[Calibrator] = register(plugins[name].load())
        return method
    raise ValueError(f"unknown calibrator {name!r}; valid names: {', '.join(list_calibrators())}")


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Build any method by its registry name.

    Parameters
    ----------
    name : str
        One of :func:`list_calibrators`, or a name and a variant of it, such as ``"h:class_wise"``.
    **params
        Parameters of that method; an unknown one is an error that lists the valid ones.

    Examples
    --------
    >>> make_calibrator("ts", input="probs")
    TemperatureScaling(input='probs')
    """
    base, _, variant = name.partition(":")
    cls = get_calibrator(base)
    if variant and variant not in cls.variants:
        valid = ", ".join(f"{base}:{word}" for word in cls.variants) or "none"
        raise ValueError(f"{base!r} has no variant {variant!r}; valid variants: {valid}")
    refuse_unknown(cls, params, name)
    of_variant = cls.variants[variant] if variant else {}
    return cls(**{**of_variant, **params})
