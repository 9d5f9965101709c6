"""Fixtures and options shared by all tests; what tests import by name is in helpers.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers import GOLDEN, fit_quietly, quick, synthetic

#: What `make test` may lack: extras, and packages that only `make test-all` installs.
OPTIONAL = {
    *("torch", "matplotlib", "pandas", "pyarrow", "onnx", "onnxscript", "onnxruntime", "numba"),
    *("torchmetrics", "evaluate", "datasets", "mlflow", "dask", "distributed", "polars", "faiss"),
    *("lightgbm", "xgboost", "ignite", "selenium", "triton", "transformers", "lightning"),
    *("catboost", "pyspark", "starlette", "uvicorn", "python_multipart"),
}
ABSENT = {name for name in OPTIONAL if find_spec(name) is None}
_IMPORTS = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A test module that imports an absent package at its top is left out."""
    if ABSENT and collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        needed = ABSENT & set(_IMPORTS.findall(collection_path.read_text(encoding="utf-8")))
        return True if needed else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that asks for an absent package is skipped, with its name."""
    try:
        return (yield)
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        named_in_message = re.findall(r"needs? (\w+):", str(error))
        needed = {missing, *named_in_message} & ABSENT
        if needed:
            pytest.skip(f"needs {', '.join(needed)}")
        raise


def pytest_configure(config: pytest.Config) -> None:
    """Without an extra its modules cannot be imported; with it, failing to is an error."""
    if ABSENT:
        config.option.doctest_ignore_import_errors = True


@pytest.fixture(scope="session")
def fitted() -> Callable[..., Any]:
    """``fitted(name, k=3, width="float64", n=160)``: a calibrator, fitted once. Never change one."""

    @cache
    def fit(name: str, k: int = 3, width: str = "float64", n: int = 160) -> Any:
        logits, y = synthetic(n, k)
        return fit_quietly(quick(name), logits.astype(width), y)

    return fit


@pytest.fixture(autouse=True)
def _registries_stay_as_they_are() -> Iterator[None]:
    places = (("hcal.methods.registry", "_registered"), ("hcal.metrics.registry", "METRICS"))
    registries = [getattr(import_module(module), name) for module, name in places]
    contents = [dict(registry) for registry in registries]
    yield
    for registry, before in zip(registries, contents, strict=True):
        registry.clear()
        registry.update(before)


@pytest.fixture
def golden() -> Path:
    """The folder of golden values; skips where it is absent."""
    if not GOLDEN.exists():
        pytest.skip("needs ../shared/golden")
    return GOLDEN
