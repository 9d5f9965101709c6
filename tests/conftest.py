"""Fixtures and options shared by all tests; what tests import by name is in helpers.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# One conftest for all folders: two modules cannot share a name.
from bench_results import results
from helpers import GOLDEN

__all__ = ["results"]


def pytest_configure(config: pytest.Config) -> None:
    """Without the extra "fast" the compiled modules cannot be imported; with it, failing to is an error."""
    if find_spec("numba") is None:
        config.option.doctest_ignore_import_errors = True


@pytest.fixture(autouse=True)
def _no_method_stays_registered() -> Iterator[None]:
    yield
    registry = sys.modules.get("hcal.calibrators.registry")
    if registry is not None:
        registry._registered.clear()


@pytest.fixture(autouse=True, scope="session")
def _kernels_at_once() -> None:
    """Answers are compared to the last bit: none of them comes from numpy because a kernel is not on disk."""
    if find_spec("numba") is not None:
        from hcal.calibrators.h import fused

        fused.PATIENCE = 0


@pytest.fixture
def golden() -> Path:
    """The folder of golden values; skips where it is absent."""
    if not GOLDEN.exists():
        pytest.skip("needs ../shared/golden")
    return GOLDEN
