"""The h loss: its definition, every engine compared with it, and its invariances."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hcal
from hcal import numerics
from hcal.h_calibration import definition, engines
from hcal.h_calibration.definition import (
    ObjectiveSettings,
    kmeans_ranges,
    one_family,
    sliding_means,
    window_weights,
)
from hcal.h_calibration.engines import evaluate_loss, loss_and_grad
from hcal.h_calibration.events import Family, FamilyEvents, family_of
from hcal.h_calibration.loss import check_tensors
from hcal.numerics import softmax
from hcal.xp import namespace
from studies.published_loss import PublishedLoss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if (
    DEVICE == "cpu"
):  # read when the kernels are first imported, which nothing else does without a GPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

EVENTS = ["pooled", "top-label", "class-wise", 1, [[0, 1], [2]]]
NAN = float("nan")


def problem(n=300, k=5, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    probs = softmax(rng.normal(0, 2.5, (n, k)))
    labels = rng.integers(0, k, n)
    return probs.astype(dtype), labels


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


def test_windows_of_the_definition():
    assert sliding_means([1.0, 3.0], 10).tolist() == [2.0]  # fewer values than the window
    # values near 1e-12 beside a million near 1: float32 prefix sums would return 0
    q = np.concatenate([np.full(1000, 1e-12), np.ones(100_000)])
    assert sliding_means(q, 200)[0] == pytest.approx(1e-12, rel=1e-9)


def lloyd_by_hand(x, clusters, iterations):
    centres = np.quantile(x, (np.arange(clusters) + 0.5) / clusters)
    for _ in range(iterations):
        nearest = np.abs(x[:, None] - centres).argmin(1)
        for cluster in range(clusters):
            members = x[nearest == cluster]
            if members.size:
                centres[cluster] = members.mean()
    return centres, np.abs(x[:, None] - centres).argmin(1)


def test_kmeans_is_lloyd_from_quantiles():
    x = np.sort(np.random.default_rng(1).random(500) ** 4)
    few = x[::40]  # clusters of one value
    for values, clusters, iterations in ((x, 15, 1), (x, 15, 25), (x, 15, 400), (few, 8, 400)):
        centres, edges = kmeans_ranges(values, clusters, iterations)
        by_hand, nearest = lloyd_by_hand(values, clusters, iterations)
        assert centres == pytest.approx(by_hand)
        expected = np.bincount(nearest, minlength=clusters).tolist()
        assert np.diff(edges).tolist() == expected
    by_itself = kmeans_ranges(x, 15, 400)[1]
    assert kmeans_ranges(x, 15, 10**6)[1].tolist() == by_itself.tolist()
    of_equal = window_weights(np.zeros(4), clusters=3)
    assert of_equal == pytest.approx(np.full(4, 1 / 12))  # an empty cluster counts 0


def test_equals_autograd_on_the_plain_formula():
    p, y = problem()
    for window in (1, 20, 200):
        for norm, weighting, epsilon in (
            (1, "kmeans", 1e-20),
            (2, "kmeans", 0.05),
            (1, "uniform", 0.05),
        ):
            probs = torch.tensor(p, requires_grad=True)
            keywords = {"window": window, "norm": norm, "weighting": weighting, "epsilon": epsilon}
            expected = plain(probs, torch.tensor(y), **keywords)
            expected.backward()
            loss, grad = loss_and_grad(p, y, **keywords)
            assert loss == pytest.approx(expected.item(), rel=1e-12)
            close = 1e-9 * np.abs(grad).max()
            np.testing.assert_allclose(grad, probs.grad.numpy(), rtol=1e-9, atol=close)


def test_gradient_equals_finite_differences():
    """Along a random direction; uniform weights, because k-means weights move but carry no gradient."""
    p, y = problem(200, 4)
    direction = np.random.default_rng(1).normal(size=p.shape) * p
    for events in EVENTS:
        keywords = {
            "window": 10,
            "norm": 2,
            "weighting": "uniform",
            "events": events,
            "epsilon": 0.0,
        }
        _, grad = loss_and_grad(p, y, **keywords)
        h = 1e-7
        ahead = loss_and_grad(p + h * direction, y, **keywords)[0]
        behind = loss_and_grad(p - h * direction, y, **keywords)[0]
        slope = (ahead - behind) / (2 * h)
        assert (grad * direction).sum() == pytest.approx(slope, rel=1e-4), events


def tied(kind, n, width):
    """Probabilities and marks of the pooled events of n rows, with ties of a kind."""
    rng = np.random.default_rng(n)
    probs = softmax(rng.normal(0, 2.5, (n, 4))).astype(width)
    y = (probs.cumsum(1) > rng.random((n, 1))).argmax(1)
    shape = {
        "none": lambda p: p,
        "3 digits": lambda p: np.round(p, 3),
        "1 digit": lambda p: np.round(p, 1),
        "copies": lambda p: p[np.arange(n) // 5],
        "zeros": lambda p: np.where(p < 0.2, p * -0.0, p),
        "all equal": lambda p: np.full_like(p, 0.25),
    }[kind]
    marks = np.zeros((n, 4), dtype=bool)
    marks[np.arange(n), y] = True
    values = shape(probs).astype(width).reshape(-1)
    return np.ascontiguousarray(values), marks.reshape(-1)


@pytest.mark.parametrize("name", ["numba", "torch", "triton"])
def test_every_engine_is_the_definition(name):
    """More than one block of 1024 ranks, a part of one, fewer events than a window, and one row."""
    if find_spec(name) is None:
        pytest.skip(f"needs {name}")
    module = importlib.import_module(
        "hcal.h_calibration.loss" if name == "torch" else f"hcal.h_calibration._{name}"
    )

    def engine(p, marks, s):
        events = (p[None], marks[None])
        if name != "numba":
            events = (torch.from_numpy(v).to(DEVICE) for v in events)
        loss, grad = module.families_loss(*events, s, True)
        return float(loss), np.asarray(grad[0] if name == "numba" else grad[0].cpu())

    widths = ("float32",) if name == "triton" else ("float32", "float64")
    for kind in ("none", "3 digits", "1 digit", "copies", "zeros", "all equal"):
        for n, weighting, norm, epsilon in (
            (700, "kmeans", 1, 1e-20),
            (60, "uniform", 2, 0.01),
            (60, "kmeans", 1, 0.0),
            (5, "kmeans", 1, 1e-20),
            (1, "kmeans", 2, 1e-20),
        ):
            for width in widths:
                p, marks = tied(kind, n, width)
                # few iterations: the interpreter takes a tenth of a second for each
                s = ObjectiveSettings(
                    window=40,
                    weighting=weighting,
                    norm=norm,
                    clusters=5,
                    iterations=3,
                    epsilon=epsilon,
                )
                want_loss, want = one_family(p, marks, s)
                loss, grad = engine(p, marks, s)
                # float64 inside, summed in another order
                assert loss == pytest.approx(want_loss, rel=1e-9, abs=1e-12 * s.scale)
                rounding = 3e-7 if width == "float32" else 1e-9
                close = rounding * np.abs(want).max() + 1e-9
                np.testing.assert_allclose(grad, want, rtol=rounding, atol=close)
                moved = np.random.default_rng(0).permutation(len(p))
                moved_loss, moved_grad = engine(p[moved], marks[moved], s)
                assert moved_loss == loss
                np.testing.assert_array_equal(moved_grad, grad[moved])


def test_kernels_take_tensors_of_the_cpu(monkeypatch):
    pytest.importorskip("numba")
    choose = engines.engine_for
    kinds = []

    def noted(q):
        kinds.append(type(q))
        return choose(q)

    monkeypatch.setattr(engines, "engine_for", noted)
    p, y = problem()
    tensors = (torch.from_numpy(p), torch.from_numpy(y))
    family = family_of("pooled")
    by_kernel, _ = evaluate_loss(*tensors, ObjectiveSettings(window=5), family, False)
    monkeypatch.setattr(engines, "has_kernel", lambda _: False)
    by_torch, _ = evaluate_loss(*tensors, ObjectiveSettings(window=5), family, False)
    assert kinds == [np.ndarray, torch.Tensor]
    assert float(by_kernel) == pytest.approx(float(by_torch), rel=1e-9)


def test_which_tensors_triton_takes(monkeypatch):
    monkeypatch.setattr(engines, "has_kernel", lambda _: True)
    for events, dtype in (
        (2**31 - 2**16 - 1, torch.float32),
        (2**31 - 2**16, torch.float32),
        (9, torch.float64),
    ):
        q = SimpleNamespace(is_cuda=True, numel=lambda n=events: n, dtype=dtype)
        assert engines.takes_triton(q) == (events == 2**31 - 2**16 - 1)
    assert not engines.takes_triton(torch.zeros(1, 9))


def test_many_events_and_threads(monkeypatch):
    """The radix sort and the parts of several threads, on more events than one takes; ties are not cut apart."""
    monkeypatch.setattr(numerics, "thread_count", lambda: 3)
    for digits, dtype in ((9, np.float32), (2, np.float32), (2, np.float64)):
        p, y = problem(60_000, 4, dtype=dtype)
        p = np.round(p, digits)
        loss, grad = loss_and_grad(p, y)
        gathered = family_of("pooled").gather(p, y)
        want, slope = definition.families_loss(gathered.q, gathered.marks, ObjectiveSettings())
        assert loss == pytest.approx(want, rel=1e-9)
        close = 1e-6 * np.abs(slope).max()
        np.testing.assert_allclose(grad.ravel(), slope[0], rtol=1e-5, atol=close)


def test_every_family_with_and_without_the_kernels(monkeypatch):
    """Deleting the kernel files leaves everything working: engines fall back on the definition and on torch."""
    kernel = engines.has_kernel
    for with_kernels in (True, False):
        monkeypatch.setattr(
            engines, "has_kernel", lambda name, on=with_kernels: on and kernel(name)
        )
        for events in EVENTS:
            for n, dtype in ((3, np.float64), (300, np.float32)):
                p, y = problem(n, 4, dtype=dtype)
                p[: n // 3] = p[0]  # ties
                p[-1] = [0, 0, 0, 1]
                s = ObjectiveSettings(window=20)
                family = family_of(events)
                gathered = family.gather(p, y)
                want, slope = definition.families_loss(gathered.q, gathered.marks, s)
                want_grad = family.scatter(slope, p, gathered)
                for inputs in ((p, y), (torch.from_numpy(p), torch.from_numpy(y))):
                    loss, grad = evaluate_loss(*inputs, s, family, need_grad=True)
                    assert float(loss) == pytest.approx(
                        want, rel=1e-6 if dtype == np.float32 else 1e-9
                    )
                    close = 1e-6 * np.abs(want_grad).max()
                    np.testing.assert_allclose(grad, want_grad, rtol=1e-5, atol=close)
                    assert evaluate_loss(*inputs, s, family, need_grad=False)[1] is None


def test_families_are_means_of_one_event_losses():
    p, y = problem()
    subsets = [[0, 1], [2], [1, 3, 4]]
    expected = []
    for subset in subsets:
        q = p[:, subset].sum(axis=1)
        o = np.isin(y, subset)
        order = np.lexsort((o, q))
        centroid = sliding_means(q[order], 20)
        rate = sliding_means(o[order], 20)
        expected.append(1e5 * (window_weights(centroid) * np.abs(centroid - rate)).sum())
    of_subsets = loss_and_grad(p, y, window=20, events=subsets)[0]
    assert of_subsets == pytest.approx(np.mean(expected))
    one = [loss_and_grad(p, y, window=20, events=c)[0] for c in range(5)]
    of_classes = loss_and_grad(p, y, window=20, events="class-wise")[0]
    assert of_classes == pytest.approx(np.mean(one))


def test_the_brier_case():
    """eq:ReduceToMSE: window 1, ε 0, norm 2, uniform weights, scale 1."""
    p, y = problem()
    onehot = np.eye(p.shape[1])[y]
    loss, grad = loss_and_grad(p, y, window=1, epsilon=0, norm=2, weighting="uniform", scale=1)
    expected = np.mean((p - onehot) ** 2)
    assert loss == pytest.approx(expected, rel=1e-13)
    # in the definition a window is a difference of prefix sums: their last digit, 1e-16 of a sum of up to 1
    expected = 2 * (p - onehot) / p.size
    np.testing.assert_allclose(grad, expected, rtol=1e-12, atol=1e-16)


@settings(max_examples=30, deadline=None)
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
    rows = rng.permutation(n)
    classes = rng.permutation(k)
    loss, grad = loss_and_grad(p, y, window=window, events=events)
    ascending = np.sort(p, 1)
    if events == "top-label" and (ascending[:, -1] == ascending[:, -2]).any():
        classes = np.arange(k)  # the argmax of a tie depends on the order of classes
    moved_y = np.argsort(classes)[y[rows]]
    moved, moved_grad = loss_and_grad(p[rows][:, classes], moved_y, window=window, events=events)
    assert moved == pytest.approx(loss, rel=1e-9, abs=1e-6)
    expected = grad[rows][:, classes]
    close = 1e-9 * (1 + np.abs(grad).max())
    np.testing.assert_allclose(moved_grad, expected, rtol=1e-7, atol=close)


def test_degenerate_sizes():
    """Fewer events than the window, two classes, one class in the labels: one window of everything."""
    for dtype in (np.float32, np.float64):
        for n, k in ((1, 2), (5, 2), (60, 3)):
            p, _ = problem(n, k, dtype=dtype)
            y = np.zeros(n, dtype=np.int64)
            loss, grad = loss_and_grad(p, y, window=200, weighting="uniform")
            if n * k <= 200:  # all rows sum to 1, so the one window has mean(q) = mean(o) = 1/k
                assert loss == pytest.approx(0, abs=1e5 * 1e-6)
            assert np.isfinite(grad).all()
            top, _ = loss_and_grad(p, y, window=200, weighting="uniform", events="top-label")
            gap = abs(p.max(1).mean() - (p.argmax(1) == 0).mean())
            assert top == pytest.approx(1e5 * gap, rel=1e-5)
    p = np.eye(3)[[0, 1, 2, 0] * 100]
    loss, grad = loss_and_grad(p, p.argmax(1), window=10)
    assert loss == 0
    assert not grad.any()


def test_module_backward():
    p, y = problem()
    module = hcal.HCalibrationLoss(window=20)
    for dtype in (torch.float32, torch.float64):
        logits = torch.tensor(np.log(p), dtype=dtype, requires_grad=True)
        loss = module(logits.softmax(1), torch.tensor(y))
        (3 * loss).backward()
        assert loss.dtype == dtype
        value, grad = loss_and_grad(p, y, window=20)
        expected = 3 * p * (grad - (p * grad).sum(1, keepdims=True))
        assert loss.item() == pytest.approx(value, rel=1e-5)
        # float32 softmax may swap near-ties of the sort: a few windows differ by one event
        tolerance = (1e-9 if dtype == torch.float64 else 2e-2) * np.abs(expected).max()
        assert np.abs(logits.grad.numpy() - expected).max() < tolerance
    rounded = torch.tensor(p).to(torch.bfloat16)
    half = hcal.HCalibrationLoss()(rounded, torch.tensor(y))
    assert half.dtype == torch.bfloat16
    assert not half.requires_grad


def test_bad_settings_are_named():
    bad = [
        ("window", 0),
        ("window", 2.5),
        ("clusters", 0),
        ("iterations", 0),
        ("norm", 3),
        ("epsilon", -1),
    ]
    bad += [
        ("scale", 0),
        ("weighting", "none"),
        ("events", "none"),
        ("events", []),
        ("events", [[]]),
        ("events", 5.5),
    ]
    for name, value in bad:
        with pytest.raises(ValueError, match=f"{name}[ :]"):
            hcal.HCalibrationLoss(**{name: value})


#: Probabilities, labels, and what is said of them.
BAD = {
    "a label to ignore": (
        [[0.5, 0.5]] * 2,
        [0, -100],
        "y must lie in 0..1; its labels range from -100 to 0",
    ),
    "a label too large": (
        [[0.5, 0.5]] * 2,
        [7, 1],
        "y must lie in 0..1; its labels range from 1 to 7",
    ),
    "NaN": (
        [[0.5, 0.5], [NAN, NAN]],
        [0, 1],
        r"probs must lie in \[0, 1\]; they range from nan to nan",
    ),
    "logits": (
        [[0.5, 0.5], [-2.0, 3.0]],
        [0, 1],
        r"probs must lie in \[0, 1\]; they range from -2 to 3",
    ),
    "above 1": ([[0.5, 0.5], [0.0, 1.5]], [0, 1], "range from 0 to 1.5"),
    "infinite": ([[0.5, 0.5], [float("inf"), 0.0]], [0, 1], "range from 0 to inf"),
    "fractional labels": ([[0.5, 0.5]] * 2, [0.0, 1.5], "y must hold integers"),
    "nothing": (np.zeros((0, 2)), np.zeros(0, dtype=np.int64), "empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_every_engine(case, monkeypatch):
    probs, y, message = BAD[case]
    kernel = engines.has_kernel
    for with_kernels in (True, False):
        monkeypatch.setattr(
            engines, "has_kernel", lambda name, on=with_kernels: on and kernel(name)
        )
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            scores = torch.tensor(np.asarray(probs), dtype=dtype, device=DEVICE)
            tensors = (scores, torch.tensor(y, device=DEVICE))
            for loss in (hcal.HCalibrationLoss(window=2), PublishedLoss(window=2)):
                with pytest.raises(ValueError, match=message):
                    loss(*tensors)


def test_bad_arrays_are_named():
    p, y = problem()
    for arguments, message in (
        ((p * 3, y), r"\[0, 1\]"),
        ((p, y + 5), "y must lie"),
        ((p.astype(np.float16), y), "float32 or float64"),
        ((p, y[:5]), "probs must be"),
        ((p[None], y[:1]), "probs must be"),
        ((p[:0], y[:0]), "not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_and_grad(*arguments)
    with pytest.raises(ValueError, match="class 7"):
        loss_and_grad(p, y, events=7)
    loss_and_grad(
        np.array([[0.0, 1.0009]]), np.array([1])
    )  # a sum of classes in float32 may be that much
    # on the CPU there is no unchecked way into the kernels
    unchecked = hcal.HCalibrationLoss(check=False)
    with pytest.raises(ValueError, match=r"they range from 0.5 to 3e\+09"):
        unchecked(torch.tensor([[0.5, 3e9]]), torch.tensor([0]))


def test_on_a_device_one_answer_is_read_back(monkeypatch):
    """The GPU branch, on CPU tensors that claim to be on a device: one transfer of four numbers."""

    class Elsewhere(torch.Tensor):
        device = torch.device("xpu")
        __torch_function__ = torch._C._disabled_torch_function_impl

    read = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: read.append(t.numel()) or tolist(t))
    for other in ("item", "__bool__", "__int__", "__float__", "cpu", "numpy"):
        monkeypatch.setattr(
            torch.Tensor, other, lambda t, other=other: pytest.fail(f"waits in {other}")
        )
    for case in ("a label to ignore", "NaN", "logits"):
        probs, y, message = BAD[case]
        with pytest.raises(ValueError, match=message):
            check_tensors(
                torch.tensor(probs).as_subclass(Elsewhere), torch.tensor(y).as_subclass(Elsewhere)
            )
    assert read == [4, 4, 4]


class SecondGuess(Family):
    """A user-defined family: the event that the second most probable class is the label."""

    def gather(self, probs, y):
        second = probs.argsort(1)[:, -2:-1]
        score = namespace(probs).take_along(probs, second)
        hit = second == y[:, None]
        return FamilyEvents(score.T, hit.T, second)

    def scatter(self, gradient, probs, events):
        return namespace(probs).put_along(0 * probs, events.index, gradient.T)


def test_a_new_family_is_one_class():
    """It works on arrays and in the module, and its gradient is the definition's."""
    p, y = problem(200, 4)
    keywords = {
        "window": 10,
        "norm": 2,
        "weighting": "uniform",
        "epsilon": 0.0,
        "events": SecondGuess(),
    }
    loss, grad = loss_and_grad(p, y, **keywords)
    second = np.sort(p, axis=1)[:, -2]
    hit = p.argsort(1)[:, -2] == y
    want, slope = one_family(second, hit, ObjectiveSettings(10, 0.0, weighting="uniform", norm=2))
    assert loss == pytest.approx(want)
    assert grad.sum(1) == pytest.approx(slope)
    probs = torch.tensor(p, requires_grad=True)
    value = hcal.HCalibrationLoss(**keywords)(probs, torch.tensor(y))
    value.backward()
    assert value.item() == pytest.approx(loss)
    np.testing.assert_allclose(probs.grad, grad, rtol=1e-9)
