"""One table: every engine of the objective gives the same numbers, ties or not, whatever the order of rows.

The engines: numba with positions, numba by rank, plain torch, and Triton (by its interpreter on the CPU, on
the device itself where there is one). The reference is :mod:`hcal.objective.definition`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from hcal.objective._torch import families_loss
from hcal.objective.definition import one_family
from hcal.objective.settings import ObjectiveSettings
from hcal.runtime.jit import compiled
from hcal.numerics import softmax

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":  # read when the kernels are first imported, which nothing else does without a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

Result = tuple[float, np.ndarray]
WINDOW = 40
needs_numba = pytest.mark.skipif(not compiled(), reason="needs numba: the extra 'fast'")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton: pip install triton")


def with_positions(p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings) -> Result:
    from hcal.objective import _by_rank, _compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_by_rank, "suits", lambda *_: False)
        return _numba(_compiled.family_loss, p, marks, s)


def by_rank(p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings) -> Result:
    from hcal.objective import _by_rank, _compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_by_rank, "suits", lambda *_: True)
        return _numba(_compiled.family_loss, p, marks, s)


def _numba(
    family_loss: Callable[..., float], p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings
) -> Result:
    grad = np.full(len(p), np.nan, dtype=p.dtype)
    return family_loss(p, marks, s, grad), grad


def plain_torch(p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings) -> Result:
    return _tensors(families_loss, p, marks, s)


def by_triton(p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings) -> Result:
    from hcal.objective import _triton

    return _tensors(_triton.families_loss, p, marks, s)


def _tensors(engine: Callable[..., object], p: np.ndarray, marks: np.ndarray, s: ObjectiveSettings) -> Result:
    loss, grad = engine(*(torch.from_numpy(v)[None].to(DEVICE) for v in (p, marks)), s, True)
    return loss.item(), grad[0].cpu().numpy()


#: Each with its float widths, its norms, and the fewest events that it is for.
ENGINES = {
    "numba": (with_positions, ("float32", "float64"), (1, 2), 1, needs_numba),
    "by-rank": (by_rank, ("float32",), (1,), WINDOW, needs_numba),
    "torch": (plain_torch, ("float32", "float64"), (1, 2), 1, ()),
    "triton": (by_triton, ("float32",), (1, 2), 1, needs_triton),
}


@cache
def events(kind: str, n: int, width: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and marks of the pooled events of n rows."""
    rng = np.random.default_rng(n)
    probs = softmax(rng.normal(0, 2.5, (n, 4))).astype(width)
    y = (probs.cumsum(1) > rng.random((n, 1))).argmax(1)
    shape = {
        "none": lambda p: p,
        "3 digits": lambda p: np.round(p, 3),
        "1 digit": lambda p: np.round(p, 1),
        "copies": lambda p: p[np.arange(n) // 5],
        "zeros": lambda p: np.where(p < 0.2, p * 0, p),
        "all equal": lambda p: np.full_like(p, 0.25),
    }[kind]
    p = np.ascontiguousarray(shape(probs).astype(width).reshape(-1))
    marks = np.zeros((n, 4), dtype=bool)
    marks[np.arange(n), y] = True
    return p, marks.reshape(-1)


#: More than one block of 1024 ranks, a part of one, fewer events than a window, and one row.
TABLE = [
    pytest.param(engine, kind, n, width, weighting, norm, marks=marks,
                 id=f"{name}-{kind}-{n}-{width}-{weighting}-{norm}")
    for name, (engine, widths, norms, fewest, marks) in ENGINES.items()
    for kind in ("none", "3 digits", "1 digit", "copies", "zeros", "all equal")
    for n in (700, 60, 5, 1)
    if 4 * n >= fewest
    for width in widths
    for weighting in ("kmeans", "uniform")
    for norm in norms
    if n >= 60 or norm == 1
]  # fmt: skip


@pytest.mark.parametrize(("engine", "kind", "n", "width", "weighting", "norm"), TABLE)
def test_every_engine_is_the_definition(engine, kind, n, width, weighting, norm) -> None:
    p, marks = events(kind, n, width)
    # few iterations: the interpreter takes a tenth of a second for each
    s = ObjectiveSettings(window=WINDOW, weighting=weighting, norm=norm, clusters=5, iterations=3)
    expected_loss, expected = one_family(p, marks, s)
    loss, grad = engine(p, marks, s)
    # float64 inside, summed in another order: 1e-12 of the scale, and nothing of a loss of 0
    assert loss == pytest.approx(expected_loss, rel=1e-9, abs=1e-12 * s.scale)
    # a gradient of float32 is rounded once, at the end
    rounding = 3e-7 if width == "float32" else 1e-9
    np.testing.assert_allclose(grad, expected, rtol=rounding, atol=rounding * np.abs(expected).max() + 1e-9)
    moved = np.random.default_rng(0).permutation(len(p))
    moved_loss, moved_grad = engine(p[moved], marks[moved], s)
    assert moved_loss == loss
    np.testing.assert_array_equal(moved_grad, grad[moved])
