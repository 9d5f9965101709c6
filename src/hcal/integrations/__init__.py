"""hcal inside other tools: scikit-learn, PyTorch, ONNX, Dask, torchmetrics, evaluate, MLflow.

Every module here loads on first use, so that none of these tools is imported before it is needed.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name in __dir__():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
