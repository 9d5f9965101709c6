"""``hcal warm`` leaves no kernel for later."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from hcal.cli import warm
from helpers import ROOT

pytest.importorskip("numba", reason="needs numba: the extra 'fast'")


def _kernels() -> dict[str, Any]:
    """Return all compiled functions of the package, by module and name."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        if "from hcal.runtime.jit import jit\n" in path.read_text(encoding="utf-8"):
            module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
            found |= {f"{module.__name__}.{n}": v for n, v in vars(module).items() if hasattr(v, "py_func")}
    return found


def test_every_kernel_that_python_calls_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = _kernels()
    assert len(kernels) > 50
    called_by_kernels = {name for kernel in kernels.values() for name in kernel.py_func.__code__.co_names}
    entries = {name: k for name, k in kernels.items() if name.rpartition(".")[2] not in called_by_kernels}
    ran: set[str] = set()

    def recorder(name: str, kernel: Any) -> Any:
        return lambda *arguments: (ran.add(name), kernel(*arguments))[1]

    modules = [m for name, m in sys.modules.items() if name.startswith("hcal.")]
    for name, kernel in entries.items():
        for module in modules:
            for alias in [a for a, value in vars(module).items() if value is kernel]:
                monkeypatch.setattr(module, alias, recorder(name, kernel))
    monkeypatch.setattr("hcal.calibrators.h.fused.is_ready", lambda *_: True)
    warm.warm_kernels()
    assert set(entries) - ran == set()
