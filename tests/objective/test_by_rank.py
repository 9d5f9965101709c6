"""The objective by values alone against the one that carries positions: the same numbers on any events."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hcal
from hcal.objective.settings import ObjectiveSettings

pytest.importorskip("numba")

from hcal.objective import _by_rank, _compiled


def both(p, marks, s, monkeypatch, factor=1.0):
    """Loss and gradient with positions, then by rank."""
    out = []
    for chosen in (False, True):
        monkeypatch.setattr(_by_rank, "suits", lambda *_, chosen=chosen: chosen)
        grad = np.full(len(p), np.nan, dtype=np.float32)
        out.append((_compiled.family_loss(p, marks, s, grad, factor), grad))
    return out


def assert_same(p, marks, s, monkeypatch, factor=1.0):
    (loss, grad), (by_rank, read) = both(p, marks, s, monkeypatch, factor)
    assert by_rank == pytest.approx(loss, rel=1e-12)
    # a sum of slopes that cancel leaves rounding, which depends on where the running sums began
    np.testing.assert_allclose(read, grad, rtol=1e-6, atol=1e-9 * np.abs(grad).max())


def events(kind, n, rng):
    p = {
        "spread": np.exp(-rng.exponential(6, n)),
        "ties": np.round(rng.random(n), 2),
        "zeros": np.where(rng.random(n) < 0.6, 0.0, rng.random(n) ** 8),
        "equal": np.full(n, 0.25),
        "tiny": rng.random(n) * 1e-40,
        "ends": rng.choice([0.0, -0.0, 1.0, 1.0009], n),
    }[kind].astype(np.float32)
    return np.ascontiguousarray(p)


def test_many_ties_cost_no_more_than_none(monkeypatch):
    """Each used to walk past the others: 12 s instead of 0.05 at 2000 × 1000, with 3 digits."""
    rng = np.random.default_rng(0)
    spread = events("spread", 1 << 20, rng)
    tied = np.where(rng.random(1 << 20) < 0.15, np.float32(0.001), spread)
    marks = np.zeros(1 << 20, dtype=bool)
    marks[rng.choice(1 << 20, 200, replace=False)] = True
    monkeypatch.setattr(_by_rank, "suits", lambda *_: True)
    grad, seconds = np.empty_like(spread), []
    for p in (spread, spread, tied):
        start = time.process_time()
        _compiled.family_loss(p, marks, ObjectiveSettings(), grad)
        seconds.append(time.process_time() - start)
    assert seconds[2] < 10 * max(seconds[1], 0.02)  # it was 200 times as long; 1.0 to 1.5 now


@pytest.mark.parametrize("kind", ["spread", "ties", "zeros", "equal", "tiny", "ends"])
@pytest.mark.parametrize("n_marked", [0, 3, 200])
@pytest.mark.parametrize("weighting", ["kmeans", "uniform"])
def test_every_kind_of_events(kind, n_marked, weighting, monkeypatch):
    rng = np.random.default_rng(n_marked)
    p = events(kind, 30_000, rng)
    marks = np.zeros(30_000, dtype=bool)
    marks[rng.choice(30_000, n_marked, replace=False)] = True
    for window in (1, 50, 200, 700):
        s = ObjectiveSettings(window=window, weighting=weighting)
        assert_same(p, marks, s, monkeypatch)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(600, 9000),
    window=st.integers(1, 600),
    share=st.floats(0, 0.05),
    epsilon=st.sampled_from([1e-20, 1e-3, 0.2]),
)
def test_any_size(seed, n, window, share, epsilon):
    rng = np.random.default_rng(seed)
    p = events(("spread", "ties", "zeros")[seed % 3], n, rng)
    with pytest.MonkeyPatch.context() as patch:
        s = ObjectiveSettings(window=window, epsilon=epsilon, clusters=1 + seed % 15)
        assert_same(p, rng.random(n) < share, s, patch, factor=0.5)


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("kind", ["spread", "ties", "zeros", "equal"])
def test_threads_give_the_same(parts, kind, monkeypatch):
    rng = np.random.default_rng(1)
    p, marks = events(kind, 20_000, rng), rng.random(20_000) < 0.002
    monkeypatch.setattr("hcal.runtime.threads.PARALLEL_EVENTS", 1)
    monkeypatch.setattr("hcal.runtime.threads.thread_count", lambda: parts)
    assert_same(p, marks, ObjectiveSettings(window=100), monkeypatch)


def test_no_gradient_wanted(monkeypatch):
    rng = np.random.default_rng(0)
    p, marks = events("spread", 10_000, rng), rng.random(10_000) < 0.01
    monkeypatch.setattr(_by_rank, "suits", lambda *_: True)
    s = ObjectiveSettings()
    value = _compiled.family_loss(p, marks, s, None)
    assert value == _compiled.family_loss(p, marks, s, np.empty_like(p))


def test_it_is_taken_for_many_events_with_few_marks_only():
    s = ObjectiveSettings()
    assert _by_rank.suits(25_000_000, 25_000, s)
    assert not _by_rank.suits(25_000_000, 250_000, s)
    assert not _by_rank.suits(50_000, 10, s)
    assert not _by_rank.suits(25_000_000, 25_000, ObjectiveSettings(norm=2))


def test_a_graph_that_is_kept_gives_the_same_gradient_again():
    """The stored gradient is handed on as it is: nothing may be added into it."""
    probs = torch.softmax(torch.randn(50, 5, generator=torch.Generator().manual_seed(0)), 1).requires_grad_()
    loss = hcal.HCalibrationLoss()(probs, torch.zeros(50, dtype=torch.int64))
    loss.backward(retain_graph=True)
    once = probs.grad.clone()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(probs.grad, 3 * once)
