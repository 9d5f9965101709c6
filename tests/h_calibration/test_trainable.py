"""The paper's maps: golden outputs, gradients, and that nothing ever inverts a pair."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hcal.h_calibration import trainable_maps
from hcal.h_calibration.engines import has_kernel
from hcal.h_calibration.paper_maps import MixtureMap, TableMap, table_scores
from hcal.h_calibration.trainable_maps import (
    PAPER_MAPS,
    EnsembleLinear,
    MonotonicNet,
    PiecewiseLinear,
    build_trainable,
)
from hcal.numerics import log_softmax, softmax

SMALL = ("piecewise-1", "piecewise-7", "monotonic-5", "ensemble-4")


def problem(n=50, k=6, scale=4.0, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(log_softmax(rng.normal(0, scale, (n, k)).astype(dtype)))


def disturbed(name, x, seed=0):
    """A map with random parameters, far from the identity."""
    new = build_trainable(name, x, init="published", random_state=seed)
    draw = torch.Generator().manual_seed(seed)
    for p in new.parameters():
        p.data += torch.randn(p.shape, generator=draw, dtype=p.dtype)
    return new


def with_values(new, *values):
    """Give the parameters of a map the values of a golden file."""
    for parameter, value in zip(new.parameters(), values, strict=True):
        parameter.data = torch.as_tensor(np.asarray(value, dtype=np.float64)).reshape(
            parameter.shape
        )
    return new


def with_slopes(slopes):
    """Return the piecewise linear map of given slopes: the smooth positive part, inverted."""
    slopes = np.asarray(slopes)
    return with_values(PiecewiseLinear(len(slopes)), slopes - 1e-4 / slopes)


def stored(golden):
    values = json.loads((golden / "mappings.json").read_text())
    return values, np.array(values["inputs"], dtype=np.float64)


def test_golden_ensemble(golden):
    values, z = stored(golden)
    entry = values["ensemble_linear"]
    new = with_values(EnsembleLinear(len(entry["a"])), entry["a"], entry["w"])
    probs = new(torch.from_numpy(log_softmax(z))).detach()
    np.testing.assert_allclose(probs, entry["probs"], atol=1e-6)
    of_numpy = np.exp(new.fitted("log_softmax")(z))
    np.testing.assert_allclose(of_numpy, entry["probs"], atol=1e-6)


def test_golden_piecewise(golden):
    """Continuous as in the paper; the published formula agrees only where every slope in reach is 1."""
    published, z = stored(golden)
    x = log_softmax(z)
    for name in ("pwlinear_z10", "pwlinear_z500"):
        new = with_slopes(published[name]["slopes"][1:])
        scores = table_scores(torch.from_numpy(x), new.values(), new.step)
        got = scores.detach().numpy()
        correct = json.loads((golden / "piecewise_continuous.json").read_text())[name]["out_logits"]
        np.testing.assert_allclose(got, correct, atol=1e-6)
        fitted = new.fitted("log_softmax")
        np.testing.assert_allclose(fitted(z), log_softmax(got), atol=1e-12)
        agrees = np.allclose(got, published[name]["out_logits"], atol=1e-5)
        assert agrees == (name == "pwlinear_z10")


def test_golden_monotonic_net(golden):
    """1e-5 in logits, as the golden README allows for an exact integral instead of its quadrature."""
    values, z = stored(golden)
    x = torch.from_numpy(log_softmax(z))
    entry = values["monotonic_2_2"]
    place = {"mean": entry["mean"], "std": entry["std"], "lowest": float(x.min())}
    new = with_values(MonotonicNet(2, **place, init="published"), *entry["weights"].values())
    anchored = table_scores(x, new.values(), new.step)
    centre = torch.tensor([[entry["mean"]]], dtype=torch.float64)
    zero = table_scores(centre, new.values(), new.step)
    np.testing.assert_allclose((anchored - zero).detach(), entry["out_logits"], atol=1e-5)
    expected = softmax(np.array(entry["out_logits"]))
    np.testing.assert_allclose(new(x).detach(), expected, atol=1e-6)


def test_monotonic_net_is_the_integral_of_its_network():
    """Against a finer quadrature at every event, with a network far from linear."""
    x = problem(20, 4)
    new = disturbed("monotonic-20", x, seed=3)
    std, mean = torch.std_mean(x)

    def positive(v):
        layers = [p.detach() for p in new.layers]
        out = v[:, None]
        weights = layers[0:-2:2]
        biases = layers[1:-2:2]
        for w, b in zip(weights, biases, strict=True):
            out = torch.relu(out @ w.T + b)
        last = (out @ layers[-2].T + layers[-1])[:, 0]
        return torch.nn.functional.elu(last) + 1

    steps = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    ends = x.reshape(-1)
    areas = [positive((e * steps - mean) / std).mean() * e / std for e in ends]
    exact = torch.stack(areas).reshape(x.shape)
    np.testing.assert_allclose(new(x).detach(), torch.softmax(exact, 1), atol=1e-5)


def test_starts():
    x = problem()
    for name in PAPER_MAPS:
        start = build_trainable(name, x)(x).detach()
        np.testing.assert_allclose(start, x.exp(), atol=2e-6)
    of_100 = problem(k=100)
    near_uniform = build_trainable("ensemble-128", of_100, init="published")(of_100).detach()
    assert near_uniform.max() < 0.05
    steps = [0.999, 0.9995, 1.0, 1.0005, 1.001]
    assert EnsembleLinear(5).a.tolist() == pytest.approx(steps, abs=1e-12)
    assert EnsembleLinear(2).a.tolist() == pytest.approx([0.999, 1.001])
    assert EnsembleLinear(1).a.item() == 1.0
    assert EnsembleLinear(1).w.item() == 1.0
    layers = build_trainable("monotonic-3", x).layers
    assert [bool(layer.any()) for layer in layers] == [True] * 4 + [False] * 2
    net = build_trainable("monotonic-3", x, init="published")
    assert net.scale == pytest.approx(1 / float(x.std()))
    assert len(net.values()) == 2049
    assert net.step == pytest.approx(-float(x.min()) / 2048)
    bounds = [1, 1, *[3**-0.5] * 4]  # 1/√fan-in of weight and bias, layer by layer
    for layer, bound in zip(net.layers, bounds, strict=True):
        assert 0.2 * bound < layer.abs().max() <= bound
    flat = build_trainable("monotonic-3", torch.zeros(4, 3))  # identical logits have no spread
    probs = flat(torch.zeros(1, 3)).detach()
    np.testing.assert_allclose(probs, 1 / 3, atol=1e-12)
    makers = [partial(MonotonicNet, 3, mean=-1.0, std=1.0), partial(EnsembleLinear, 4)]
    makers += [partial(build_trainable, name, x) for name in ("monotonic-3", "ensemble-4")]
    for make in makers:  # the seed decides, and it is 0 unless given
        seeds = ({}, {"random_state": 0}, {"random_state": 1})
        starts = [make(init="published", **seed) for seed in seeds]
        one, two, other = (
            torch.cat([p.detach().ravel() for p in start.parameters()]) for start in starts
        )
        assert torch.equal(one, two)
        assert not torch.equal(one, other)


def test_gradients_against_finite_differences():
    x = problem()
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for name in SMALL:
        new = disturbed(name, x)
        (new(x) * direction).sum().backward()
        for p in new.parameters():
            flat = p.data.reshape(-1)
            slope = p.grad.reshape(-1)
            for i in range(min(4, len(flat))):
                kept = flat[i].item()
                values = []
                for h in (1e-6, -1e-6):
                    flat[i] = kept + h
                    values.append((new(x) * direction).sum().item())
                flat[i] = kept
                # the network is evaluated on a grid: a kink may lie within the difference
                numeric = (values[0] - values[1]) / 2e-6
                assert slope[i].item() == pytest.approx(numeric, rel=1e-4, abs=1e-5)


def test_kernels_formula_and_fitted_map_agree(monkeypatch):
    """Deleting the kernels leaves everything working; the fitted map is the same on numpy and torch."""
    pytest.importorskip("numba")
    x = problem(300, 11, dtype=np.float32)
    assert trainable_maps.kernels_for(x) is not None
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))

    def run(new):
        new.zero_grad()
        probs = new(x)
        (probs * direction).sum().backward()
        return probs.detach(), [p.grad.clone() for p in new.parameters()]

    for name in SMALL:
        new = disturbed(name, x)
        probs, grads = run(new)
        with monkeypatch.context() as patch:
            patch.setattr(trainable_maps, "kernels_for", lambda x: None)
            plain_probs, plain_grads = run(new)
        np.testing.assert_allclose(probs, plain_probs, atol=1e-6)
        for a, b in zip(grads, plain_grads, strict=True):
            close = 1e-4 * float(b.abs().max())
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=close)
        fitted = new.fitted("log_softmax")
        assert isinstance(fitted, MixtureMap if name.startswith("ensemble") else TableMap)
        of_numpy = np.exp(fitted(x.double().numpy()))
        np.testing.assert_allclose(of_numpy, probs, atol=2e-6)
        if (compiled := fitted.compiled(x.numpy())) is not None:
            np.testing.assert_allclose(compiled, probs, atol=2e-6)


def test_a_module_of_kernels_is_there_if_its_compiler_is():
    """The package of ``_mixture_numba`` was taken to be mixture_numba, so no kernel of it ever ran."""
    for compiler in ("numba", "triton"):
        for module in (f"_{compiler}", f"_mixture_{compiler}"):
            is_installed = find_spec(compiler) is not None
            assert has_kernel(f"hcal.h_calibration.{module}") == is_installed
    assert not has_kernel("hcal.h_calibration._absent_numba")
    assert not has_kernel("hcal.h_calibration._absent")


def test_sums_over_ordered_cells_are_the_same_gradient():
    """What the backward pass on a GPU computes, on the CPU; some events lie below the last knot."""
    x = problem(40, 5, scale=20.0)
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for name in ("piecewise-1", "piecewise-40", "monotonic-5"):
        grads = []
        new = disturbed(name, x / 2)
        for order in (None, new.cell_order(x)):
            new.zero_grad()
            (new(x, order) * direction).sum().backward()
            grads.append(torch.cat([p.grad.ravel() for p in new.parameters()]))
        close = 1e-10 * float(grads[0].abs().max())
        np.testing.assert_allclose(grads[1], grads[0], atol=close)
    assert build_trainable("ensemble-2", x).cell_order(x) is None


def test_which_kernels_take_a_tensor(monkeypatch):
    """Tensors that only say where they are: Triton's kernels count in 32 bits and hold a row in registers."""
    monkeypatch.setattr(trainable_maps.importlib, "import_module", lambda module: module)
    monkeypatch.setattr(trainable_maps, "has_kernel", lambda _: True)
    most = 2**31 - 2**16
    narrow = torch.float32
    for events, classes, dtype in (
        (most - 1, 8192, narrow),
        (most, 8192, narrow),
        (9, 8193, narrow),
        (9, 3, None),
    ):
        x = SimpleNamespace(is_cuda=True, shape=(2, classes), dtype=dtype)
        x.numel = lambda n=events: n
        assert trainable_maps.kernels_for(x) == (
            "hcal.h_calibration._mixture_triton" if events == most - 1 else None
        )
    assert trainable_maps.kernels_for(torch.zeros(1, 9000)) == "hcal.h_calibration._mixture_numba"


special = st.sampled_from([0.0, 1e4, -1e4, 1.0, 1e-30, -0.0])
hostile = st.one_of(special, st.floats(-1e4, 1e4), st.floats(-5, 5))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_never_inverts_a_pair(data):
    """Pairs in order of their logits are in order of their probabilities; ties may appear."""
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    n = data.draw(st.integers(1, 4))
    k = data.draw(st.integers(2, 8))
    shape = (n, k)
    logits = data.draw(hnp.arrays(np.float64, shape, elements=hostile)).astype(dtype)
    reference = data.draw(st.sampled_from(["log_softmax", "largest"]))
    x = (
        log_softmax(logits)
        if reference == "log_softmax"
        else logits - logits.max(axis=1, keepdims=True)
    )
    name = data.draw(st.sampled_from(SMALL))
    seed = data.draw(st.integers(0, 1000))
    new = disturbed(name, problem(), seed=seed)
    order = np.argsort(logits, axis=1, kind="stable")
    apart = np.diff(np.take_along_axis(logits, order, axis=1), axis=1) > 0
    of_torch = new(torch.from_numpy(x)).detach().numpy()
    of_numpy = new.fitted(reference).probabilities(logits)
    for probs in (of_torch, of_numpy):
        ascending = np.take_along_axis(probs, order, axis=1)
        assert (np.diff(ascending, axis=1)[apart] >= 0).all()
        assert np.isfinite(probs).all()
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)


def test_neighbouring_floats_across_a_knot():
    """Every float next to a knot, on both sides: rounding in the look-up may tie them, never swap them."""
    new = with_slopes(np.random.default_rng(0).uniform(0.01, 9, 500))
    table = new.values().detach()
    for dtype in (np.float32, np.float64):
        knots = (-np.arange(1, 501) * new.step).astype(dtype)
        below = np.nextafter(knots, dtype(-1e9))
        towards_zero = np.nextafter(knots, dtype(0))
        x = np.sort(np.concatenate([below, knots, towards_zero]))
        of_numpy = table_scores(x, table.numpy(), new.step)
        of_torch = table_scores(torch.from_numpy(x), table, new.step)
        for g in (of_numpy, of_torch):
            assert (np.diff(np.asarray(g)) >= 0).all()


def test_bad_names_are_named():
    for name in ("none-3", "piecewise", "piecewise-0", "ensemble-x", "temperature"):
        with pytest.raises(ValueError, match="unknown map"):
            build_trainable(name, problem())
    with pytest.raises(ValueError, match="init"):
        build_trainable("piecewise-2", problem(), init="random")
