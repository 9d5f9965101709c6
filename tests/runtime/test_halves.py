"""float16 and bfloat16: what a method promises to keep is kept in the float that is returned."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hcal
from hcal.integrations.torch import CalibrationHead
from hcal.runtime.halves import HALVES, narrow
from helpers import load_task

#: Methods of each promise, and of both ways through: a graph in torch, and numpy.
METHODS = {
    "ts": {},
    "ets": {},
    "diag": {"hidden": (2,), "max_iterations": 40},
    "h": {},
    "h order": {"preserve": "order"},
}
#: Eleven and eight bits at 1: a row of so few digits sums to 1 up to a lift and a rounding of its largest.
SPACING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@cache
def fitted(name: str, task: str) -> hcal.calibrators.Calibrator:
    z, y, _, _ = load_task(task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        return hcal.make_calibrator(name.split()[0], **METHODS[name]).fit(z[:1500], y[:1500])


def assert_kept(out: np.ndarray, scores: np.ndarray, promise: str) -> None:
    np.testing.assert_array_equal(out.argmax(axis=1), scores.argmax(axis=1))
    if promise == "order":
        higher = scores[:, :, None] > scores[:, None, :]
        assert (out[:, :, None] > out[:, None, :])[higher].all()


@pytest.mark.parametrize("task", ["agnews_gpt2", "pathmnist_resnet50"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_answer_keeps_the_promise(name: str, dtype: torch.dtype, task: str) -> None:
    """On agnews 840 of 3800 argmaxes, on pathmnist 159 of 3590 were lost by the cast."""
    cal = fitted(name, task)
    x = torch.from_numpy(load_task(task)[2]).to(dtype)
    scores = x.float().numpy()
    answers = [cal.predict_proba(x), CalibrationHead(cal)(x), CalibrationHead(cal, "log_probs")(x)]
    if dtype == torch.float16:
        answers.append(torch.from_numpy(cal.predict_proba(x.numpy())))
    for out in answers:
        assert out.dtype == dtype
        assert_kept(out.float().numpy(), scores, cal.preserves)
    probs = answers[0].double().numpy()
    np.testing.assert_allclose(probs, cal.predict_proba(scores), atol=2 * SPACING[dtype])
    assert np.abs(probs.sum(axis=1) - 1).max() < 2 * SPACING[dtype]


def test_what_promises_nothing_is_only_rounded() -> None:
    z, y, test, _ = load_task("agnews_gpt2")
    cal = hcal.make_calibrator("vs").fit(z, y)
    half = test.astype(np.float16)
    expected = cal.predict_proba(half.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(cal.predict_proba(half), expected)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(2, 40),
    dtype=st.sampled_from(HALVES),
    keep=st.sampled_from(["order", "accuracy"]),
    logarithm=st.booleans(),
)
def test_any_increasing_map_is_kept_by_the_smallest_lift(seed, k, dtype, keep, logarithm) -> None:
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(-6, 7, (20, k)) * rng.choice([1e-3, 0.1, 1.0], (20, 1))).float()
    values = torch.softmax(scores.double(), 1)
    values = values.log() if logarithm else values
    out = narrow(values, scores, dtype, keep)
    assert_kept(out.float().numpy(), scores.numpy(), keep)
    plain = values.to(dtype)
    if keep == "accuracy":  # nothing but the top class is touched
        assert ((out != plain).sum(1) <= 1).all()
    again = narrow(out.double(), scores, dtype, keep)
    assert torch.equal(again, out)


def test_the_gradient_passes_through() -> None:
    cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    x = torch.tensor([[0.5, 0.5005]], dtype=torch.float16, requires_grad=True)
    out = CalibrationHead(cal)(x)
    out[0, 1].backward()
    assert out.argmax().item() == 1
    assert x.grad[0, 1] > 0
