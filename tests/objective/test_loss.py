"""The loss: its value and gradient against the plain formula, and what must leave it unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hcal
from hcal.objective.definition import families_loss, sliding_means
from hcal.objective.engines import evaluate_loss
from hcal.objective.events import Events, Family, PooledEvents, family_of, register_family
from hcal.objective.kernels import loss_and_grad
from hcal.objective.settings import ObjectiveSettings
from hcal.objective.weights import window_weights
from hcal.runtime.jit import compiled
from hcal.numerics import softmax

EVENTS = ["pooled", "top-label", "class-wise", 1, [[0, 1], [2]]]


def problem(n=300, k=5, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return softmax(rng.normal(0, 2.5, (n, k))).astype(dtype), rng.integers(0, k, n)


def plain(probs, y, *, window, epsilon, norm, weighting, clusters=15):
    """eq:finalloss written down with autograd; only order and weights are detached."""
    marks = torch.nn.functional.one_hot(y, probs.shape[1]).reshape(-1)
    q, order = probs.reshape(-1).sort()
    means = (q - marks[order]).unfold(0, window, 1).mean(1)
    error = (means.abs() - epsilon).clamp_min(0) ** norm
    centroids = q.detach().unfold(0, window, 1).mean(1)
    if weighting == "uniform":
        return 1e5 * error.mean()
    return 1e5 * (torch.from_numpy(window_weights(centroids.numpy(), clusters)) * error).sum()


@pytest.mark.parametrize("window", [1, 20, 200])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("weighting", ["kmeans", "uniform"])
@pytest.mark.parametrize("epsilon", [1e-20, 0.05])
def test_equals_autograd_on_the_plain_formula(window, norm, weighting, epsilon):
    p, y = problem()
    probs = torch.tensor(p, requires_grad=True)
    keywords = {"window": window, "norm": norm, "weighting": weighting, "epsilon": epsilon}
    expected = plain(probs, torch.tensor(y), **keywords)
    expected.backward()
    loss, grad = loss_and_grad(p, y, **keywords)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(grad, probs.grad.numpy(), rtol=1e-9, atol=1e-9 * np.abs(grad).max())


@pytest.mark.parametrize("events", EVENTS)
def test_gradient_equals_finite_differences(events):
    """Along a random direction; uniform weights, because k-means weights move but carry no gradient."""
    p, y = problem(200, 4)
    direction = np.random.default_rng(1).normal(size=p.shape) * p
    keywords = {"window": 10, "norm": 2, "weighting": "uniform", "events": events, "epsilon": 0.0}
    _, grad = loss_and_grad(p, y, **keywords)
    h = 1e-7
    ahead, behind = (loss_and_grad(p + s * h * direction, y, **keywords)[0] for s in (1, -1))
    assert (grad * direction).sum() == pytest.approx((ahead - behind) / (2 * h), rel=1e-4)


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [3, 300])
def test_every_family_on_every_runtime_is_the_definition(events, dtype, n, monkeypatch):
    p, y = problem(n, 4, dtype=dtype)
    p[: n // 3] = p[0]  # ties
    p[-1] = [0, 0, 0, 1]
    s, family = ObjectiveSettings(window=20), family_of(events)
    found = family.gather(p, y)
    expected, slope = families_loss(found.q, found.marks, s)
    expected_grad = family.scatter(slope, p, found)
    for engine in (True, False):
        monkeypatch.setattr("hcal.objective.engines.compiled", lambda engine=engine: engine and compiled())
        for inputs in ((p, y), (torch.from_numpy(p), torch.from_numpy(y))):
            loss, grad = evaluate_loss(*inputs, s, family, need_grad=True)
            assert float(loss) == pytest.approx(expected, rel=1e-6 if dtype == np.float32 else 1e-9)
            np.testing.assert_allclose(
                grad, expected_grad, rtol=1e-5, atol=1e-6 * np.abs(expected_grad).max()
            )
            assert evaluate_loss(*inputs, s, family, need_grad=False)[1] is None


def test_families_are_the_definition():
    """A family of subsets is the mean over its members of the one-event loss."""
    p, y = problem()
    subsets = [[0, 1], [2], [1, 3, 4]]
    expected = []
    for subset in subsets:
        q, o = p[:, subset].sum(axis=1), np.isin(y, subset)
        order = np.lexsort((o, q))
        centroid, rate = sliding_means(q[order], 20), sliding_means(o[order], 20)
        expected.append(1e5 * (window_weights(centroid) * np.abs(centroid - rate)).sum())
    assert loss_and_grad(p, y, window=20, events=subsets)[0] == pytest.approx(np.mean(expected))
    one = [loss_and_grad(p, y, window=20, events=c)[0] for c in range(5)]
    assert loss_and_grad(p, y, window=20, events="class-wise")[0] == pytest.approx(np.mean(one))


def test_the_brier_case():
    """eq:ReduceToMSE: window 1, ε 0, norm 2, uniform weights, scale 1."""
    p, y = problem()
    onehot = np.eye(p.shape[1])[y]
    loss, grad = loss_and_grad(p, y, window=1, epsilon=0, norm=2, weighting="uniform", scale=1)
    assert loss == pytest.approx(np.mean((p - onehot) ** 2), rel=1e-13)
    # without numba a window is a difference of prefix sums: their last digit, 1e-16 of a sum of up to 1
    tiny = 1e-18 if compiled() else 1e-16
    np.testing.assert_allclose(grad, 2 * (p - onehot) / p.size, rtol=1e-12, atol=tiny)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(2, 5),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["pooled", "top-label", "class-wise"]),
)
def test_rows_and_classes_may_be_permuted(n, k, window, seed, events):
    """Also where probabilities tie: they are drawn from a coarse grid."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, 4, (n, k)) + 1e-3
    p[:, 0] += 1e-4 if events == "top-label" else 0  # argmax itself must not tie
    p /= p.sum(1, keepdims=True)
    y = rng.integers(0, k, n)
    rows, classes = rng.permutation(n), rng.permutation(k)
    loss, grad = loss_and_grad(p, y, window=window, events=events)
    if events == "top-label" and (np.sort(p, 1)[:, -1] == np.sort(p, 1)[:, -2]).any():
        classes = np.arange(k)  # the argmax of a tie depends on the order of classes
    moved, moved_grad = loss_and_grad(
        p[rows][:, classes], np.argsort(classes)[y[rows]], window=window, events=events
    )
    assert moved == pytest.approx(loss, rel=1e-9, abs=1e-6)
    np.testing.assert_allclose(
        moved_grad, grad[rows][:, classes], rtol=1e-7, atol=1e-9 * (1 + np.abs(grad).max())
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "k"), [(1, 2), (5, 2), (60, 3)])
def test_degenerate_sizes(n, k, dtype):
    """Fewer events than the window, two classes, one class in the labels: one window of everything."""
    p, _ = problem(n, k, dtype=dtype)
    y = np.zeros(n, dtype=np.int64)
    loss, grad = loss_and_grad(p, y, window=200, weighting="uniform")
    if n * k <= 200:  # all rows sum to 1, so the one window has mean(q) = mean(o) = 1/k
        assert loss == pytest.approx(0, abs=1e5 * 1e-6)
    assert np.isfinite(grad).all()
    top, _ = loss_and_grad(p, y, window=200, weighting="uniform", events="top-label")
    assert top == pytest.approx(1e5 * abs(p.max(1).mean() - (p.argmax(1) == 0).mean()), rel=1e-5)


def test_perfect_predictions_have_no_loss_and_no_gradient():
    p = np.eye(3)[[0, 1, 2, 0] * 100]
    loss, grad = loss_and_grad(p, p.argmax(1), window=10)
    assert loss == 0
    assert not grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_module_backward(dtype):
    p, y = problem()
    logits = torch.tensor(np.log(p), dtype=dtype, requires_grad=True)
    module = hcal.HCalibrationLoss(window=20)
    loss = module(logits.softmax(1), torch.tensor(y))
    (3 * loss).backward()
    assert loss.dtype == dtype
    value, grad = loss_and_grad(p, y, window=20)
    expected = 3 * p * (grad - (p * grad).sum(1, keepdims=True))
    assert loss.item() == pytest.approx(value, rel=1e-5)
    scale = np.abs(expected).max()
    # float32 softmax may swap near-ties of the sort: a few windows differ by one event
    assert np.abs(logits.grad.numpy() - expected).max() < (1e-9 if dtype == torch.float64 else 2e-2) * scale


def test_module_half_precision_and_no_grad():
    p, y = problem()
    loss = hcal.HCalibrationLoss()(torch.tensor(p).to(torch.bfloat16), torch.tensor(y))
    assert loss.dtype == torch.bfloat16
    assert not loss.requires_grad


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"window": 0}, "window"),
        ({"clusters": 0}, "clusters"),
        ({"norm": 3}, "norm"),
        ({"epsilon": -1}, "epsilon"),
        ({"scale": 0}, "scale"),
        ({"weighting": "none"}, "weighting"),
        ({"events": "none"}, "events"),
        ({"events": []}, "events"),
        ({"events": [[]]}, "events"),
        ({"events": 5.5}, "events"),
    ],
)
def test_bad_settings_are_named(keywords, message):
    with pytest.raises(ValueError, match=message):
        hcal.HCalibrationLoss(**keywords)


def test_bad_input_is_named():
    p, y = problem()
    module = hcal.HCalibrationLoss(events=7)
    with pytest.raises(ValueError, match="class 7"):
        module(torch.tensor(p), torch.tensor(y))
    with pytest.raises(ValueError, match="probs must be"):
        module(torch.tensor(p), torch.tensor(y[:5]))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        loss_and_grad(p * 3, y)
    with pytest.raises(ValueError, match="y must lie"):
        loss_and_grad(p, y + 5)
    with pytest.raises(ValueError, match="float32 or float64"):
        loss_and_grad(p.astype(np.float16), y)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        loss_and_grad(np.where(p > 0.9, np.nan, p), y)


def test_the_old_name_of_the_pooled_family_stays_readable():
    p, y = problem()
    assert loss_and_grad(p, y, events="atomic")[0] == loss_and_grad(p, y)[0]
    assert repr(hcal.HCalibrationLoss(events="atomic").events) == "'pooled'"
    with pytest.raises(ValueError, match="name of its own"):
        register_family(type("Atomic", (PooledEvents,), {"name": "atomic"}))


@pytest.fixture
def second_guess():
    """A family of a stranger's: one class, one line."""
    from hcal.objective.events import FAMILIES, row_index

    @register_family
    class SecondGuess(Family):
        name = "second-guess"

        def gather(self, probs, y):
            second = probs.argsort(1)[:, -2]
            return Events(probs[row_index(probs), second][None], (second == y)[None], second)

        def scatter(self, gradient, probs, events):
            out = 0 * probs
            out[row_index(probs), events.index] = gradient[0]
            return out

    yield SecondGuess
    del FAMILIES["second-guess"]


def test_a_new_family_is_one_class(second_guess):
    """It works by name in the arrays, the module and the objective, and its gradient is the definition's."""
    from hcal.objective.h import h

    p, y = problem(200, 4)
    keywords = {"window": 10, "norm": 2, "weighting": "uniform", "epsilon": 0.0, "events": "second-guess"}
    loss, grad = loss_and_grad(p, y, **keywords)
    second = np.sort(p, axis=1)[:, -2]
    hit = p.argsort(1)[:, -2] == y
    expected, slope = families_loss(
        second[None], hit[None], ObjectiveSettings(10, 0.0, weighting="uniform", norm=2)
    )
    assert loss == pytest.approx(expected)
    assert grad.sum(1) == pytest.approx(slope[0])
    probs = torch.tensor(p, requires_grad=True)
    value = hcal.HCalibrationLoss(**keywords)(probs, torch.tensor(y))
    value.backward()
    assert value.item() == pytest.approx(loss)
    np.testing.assert_allclose(probs.grad, grad, rtol=1e-9)
    by_objective = h(**keywords).value_and_grad(np.log(p), y, np.full(len(y), 1 / len(y)))
    assert by_objective[0] == pytest.approx(loss)
    np.testing.assert_allclose(by_objective[1], grad * p, rtol=1e-9)


def test_the_objective_refuses_unequal_weights():
    from hcal.objective.h import h

    p, y = problem()
    with pytest.raises(ValueError, match="equal weights"):
        h().value_and_grad(np.log(p), y, np.arange(1.0, len(y) + 1))
