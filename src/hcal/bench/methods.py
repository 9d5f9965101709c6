"""Which methods a run compares: registry names, the paper protocol's three selectors, classes of others."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hcal.bench.catalog import PAPER_PROTOCOL, QUICK_METHODS, method_key

#: The group of the paper protocol's three selectors.
PAPER_GROUP: Final = "paper protocol"


@dataclass(frozen=True)
class Method:
    """A name in the results and how to build the calibrator behind it."""

    name: str
    calibrator: str  # registry name, or ``module:Class`` of a calibrator that is in no registry
    #: Parameters of the calibrator, beside ``random_state``.
    params: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""  # methods of one group differ only in ``select`` and share one training

    @property
    def seeded(self) -> bool:
        """Whether a seed changes anything; if not, one seed is run."""
        return "random_state" in self._signature()

    def build(self, seed: int, device: str | None = None) -> Any:
        """Return the unfitted calibrator; a device goes to those that take one."""
        takes = self._signature()
        extra = {k: v for k, v in {"random_state": seed, "device": device}.items() if k in takes}
        params = {**self.params, **extra}
        if ":" in self.calibrator:
            return self._class()(**params)
        if self.group == PAPER_GROUP:
            from hcal.bench.paper_fit import SharedPaperFit

            return SharedPaperFit(self.params["select"], seed, device)
        from hcal.calibrators import make_calibrator

        return make_calibrator(self.calibrator, **params)

    def _class(self) -> Any:
        if ":" in self.calibrator:
            module, _, name = self.calibrator.partition(":")
            return getattr(importlib.import_module(module), name)
        from hcal.calibrators import get_calibrator

        return get_calibrator(self.calibrator)

    def _signature(self) -> Mapping[str, Any]:
        return inspect.signature(self._class().__init__).parameters


def benchmark_methods() -> dict[str, Method]:
    """Return every method by name, in the order of the tables: the registry and the paper protocol."""
    from hcal.calibrators import get_calibrator, list_calibrators

    found = {name: Method(name, _address(get_calibrator(name))) for name in list_calibrators()}
    if "h" in found:
        for name, select in PAPER_PROTOCOL.items():
            params = {"protocol": "paper", "select": select}
            found[name] = Method(name, "h", params, group=PAPER_GROUP)
    return dict(sorted(found.items(), key=lambda item: method_key(item[0])))


def _address(cls: Any) -> str:
    """Return what a worker process finds a method by: a registered one of others by its module."""
    from hcal.calibrators.registry import is_shipped

    return str(cls.name) if is_shipped(cls) else f"{cls.__module__}:{cls.__qualname__}"


def resolve_methods(text: str) -> list[Method]:
    """Turn a comma-separated selection of names, ``all`` or ``quick`` into methods.

    ``uncal`` always comes first: every other cell is compared with it.

    >>> [m.name for m in resolve_methods("ts")]
    ['uncal', 'ts']
    """
    known = benchmark_methods()
    chosen: dict[str, Method] = {"uncal": known["uncal"]}
    for item in (i.strip() for i in text.split(",")):
        if item == "all":
            chosen |= known
        elif item == "quick":
            chosen |= {name: known[name] for name in QUICK_METHODS if name in known}
        elif item in known:
            chosen[item] = known[item]
        else:
            raise ValueError(f"unknown method {item!r}; valid: all, quick, {', '.join(known)}")
    return list(chosen.values())
