"""The paper's maps: golden outputs, gradients, and that nothing ever inverts a pair."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hcal.maps import (
    PAPER_MAPS,
    EnsembleLinear,
    MonotonicNet,
    PiecewiseLinear,
    build_map,
    predict_map,
)
from hcal.maps import table as table_module
from hcal.maps.lookup import apply_table
from hcal.maps.monotonic_net import standardisation
from hcal.maps.table import interpolate
from hcal.numerics import log_softmax, softmax

SMALL = ("temperature", "piecewise-7", "monotonic-5", "ensemble-4")


def problem(n=50, k=6, scale=4.0, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return log_softmax(rng.normal(0, scale, (n, k)).astype(dtype))


def disturbed(name, x, seed=0):
    """A map with random parameters, far from the identity."""
    new = build_map(name, x, init="published", random_state=seed)
    draw = torch.Generator().manual_seed(seed)
    for p in new.parameters():
        p.data += torch.randn(p.shape, generator=draw, dtype=p.dtype)
    return new


def with_values(new, *values):
    """Give the parameters of a map the values of a golden file."""
    for parameter, value in zip(new.parameters(), values, strict=True):
        parameter.data = torch.as_tensor(np.asarray(value, dtype=np.float64)).reshape(parameter.shape)
    return new


def with_slopes(slopes):
    """Return the piecewise linear map of given slopes: the smooth positive part, inverted."""
    slopes = np.asarray(slopes)
    return with_values(PiecewiseLinear(len(slopes)), slopes - 1e-4 / slopes)


def stored(golden, name="mappings.json"):
    values = json.loads((golden / name).read_text())
    inputs = json.loads((golden / "mappings.json").read_text())["inputs"]
    return values, log_softmax(np.array(inputs, dtype=np.float64))


def test_golden_ensemble(golden):
    values, x = stored(golden)
    entry = values["ensemble_linear"]
    new = with_values(EnsembleLinear(len(entry["a"])), entry["a"], entry["w"])
    np.testing.assert_allclose(new(torch.from_numpy(x)).detach(), entry["probs"], atol=1e-6)
    np.testing.assert_allclose(predict_map(new.export(), x), entry["probs"], atol=1e-6)


@pytest.mark.parametrize("name", ["pwlinear_z10", "pwlinear_z500"])
def test_golden_piecewise(golden, name):
    """Continuous as in the paper; the published formula agrees only where every slope in reach is 1."""
    published, x = stored(golden)
    new = with_slopes(published[name]["slopes"][1:])
    got = interpolate(torch.from_numpy(x), new.values(), new.step).detach().numpy()
    correct = json.loads((golden / "piecewise_continuous.json").read_text())[name]["out_logits"]
    np.testing.assert_allclose(got, correct, atol=1e-6)
    np.testing.assert_allclose(apply_table(x, **new.export()), got, atol=1e-12)
    agrees = np.allclose(got, published[name]["out_logits"], atol=1e-5)
    assert agrees == (name == "pwlinear_z10")


def test_golden_monotonic_net(golden):
    """1e-5 in logits, as the golden README allows for an exact integral instead of its quadrature."""
    values, x = stored(golden)
    entry = values["monotonic_2_2"]
    place = {"mean": entry["mean"], "std": entry["std"], "lowest": float(x.min())}
    new = with_values(MonotonicNet(2, **place, init="published"), *entry["weights"].values())
    anchored = interpolate(torch.from_numpy(x), new.values(), new.step)
    zero = interpolate(torch.tensor([[new.mean]], dtype=torch.float64), new.values(), new.step)
    np.testing.assert_allclose((anchored - zero).detach(), entry["out_logits"], atol=1e-5)
    probs = softmax(np.array(entry["out_logits"]))
    np.testing.assert_allclose(new(torch.from_numpy(x)).detach(), probs, atol=1e-6)


def test_monotonic_net_is_the_integral_of_its_network():
    """Against an independent quadrature at every event, with a network far from linear."""
    x = problem(20, 4)
    new = disturbed("monotonic-20", x, seed=3)

    def positive(v):
        layers = [p.detach() for p in new.layers]
        out = v[:, None]
        for w, b in zip(layers[0:-2:2], layers[1:-2:2], strict=True):
            out = torch.relu(out @ w.T + b)
        return torch.nn.functional.elu(out @ layers[-2].T + layers[-1])[:, 0] + 1

    # a trapezoid rule four hundred times finer than the table
    u = (x.ravel() - new.mean) / new.std
    top = -new.mean / new.std
    fine = np.linspace(u.min(), top, 800_001)
    height = positive(torch.from_numpy(fine)).numpy()
    area = np.concatenate([[0.0], np.cumsum((height[1:] + height[:-1]) / 2 * np.diff(fine))])
    exact = np.interp(u, fine, area) - area[-1]
    got = interpolate(torch.from_numpy(x), new.values(), new.step).detach().numpy().ravel()
    # relative: the disturbed network is steep (logits down to -46)
    np.testing.assert_allclose(got, exact, rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(softmax(got.reshape(x.shape)), softmax(np.reshape(exact, x.shape)), atol=3e-5)


@pytest.mark.parametrize("name", [*SMALL, *PAPER_MAPS])
def test_starts(name):
    x = problem(seed=1)
    np.testing.assert_allclose(build_map(name, x)(torch.from_numpy(x)).detach(), np.exp(x), atol=2e-6)
    one, two, other = (
        build_map(name, x, init="published", random_state=s)(torch.from_numpy(x)).detach() for s in (0, 0, 1)
    )
    assert torch.equal(one, two)
    if name.startswith(("ensemble", "monotonic")):
        assert not torch.equal(one, other)


def test_the_published_ensemble_starts_near_uniform():
    x = problem(100, 100, 5.0)
    probs = build_map("ensemble-128", x, init="published")(torch.from_numpy(x)).detach()
    assert probs.max() < 0.05


@pytest.mark.parametrize("name", SMALL)
def test_gradients_against_finite_differences(name):
    x = torch.from_numpy(problem())
    new = disturbed(name, x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (new(x) * direction).sum().backward()
    for p in new.parameters():
        flat, slope = p.data.reshape(-1), p.grad.reshape(-1)
        for i in range(min(4, len(flat))):
            kept, values = flat[i].item(), []
            for h in (1e-6, -1e-6):
                flat[i] = kept + h
                values.append((new(x) * direction).sum().item())
            flat[i] = kept
            # the network is evaluated on a grid: a kink may lie within the difference
            assert slope[i].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_compiled_and_plain_agree(name, monkeypatch):
    pytest.importorskip("numba")
    x = torch.from_numpy(problem(300, 11, dtype=np.float32))
    new = disturbed(name, x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))

    def run():
        new.zero_grad()
        probs = new(x)
        (probs * direction).sum().backward()
        return probs.detach(), [p.grad.clone() for p in new.parameters()]

    probs, grads = run()
    monkeypatch.setattr(table_module, "compiled", lambda: False)
    plain_probs, plain_grads = run()
    np.testing.assert_allclose(probs, plain_probs, atol=1e-6)
    for a, b in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
    np.testing.assert_allclose(predict_map(new.export(), x.numpy()), probs, atol=2e-6)


hostile = st.one_of(
    st.sampled_from([0.0, 1e4, -1e4, 1.0, 1e-30, -0.0]), st.floats(-1e4, 1e4), st.floats(-5, 5)
)


def assert_never_swaps(logits, probs):
    """Pairs in order of their logits must be in order of their probabilities; ties may appear."""
    order = np.argsort(logits, axis=1, kind="stable")
    p = np.take_along_axis(probs, order, axis=1)
    z = np.take_along_axis(logits, order, axis=1)
    assert (np.diff(p, axis=1)[np.diff(z, axis=1) > 0] >= 0).all()
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_never_inverts_a_pair(name, dtype, data):
    shape = (data.draw(st.integers(1, 4)), data.draw(st.integers(2, 8)))
    logits = data.draw(hnp.arrays(np.float64, shape, elements=hostile)).astype(dtype)
    x = log_softmax(logits)
    new = disturbed(name, problem(), seed=data.draw(st.integers(0, 1000)))
    for probs in (new(torch.from_numpy(x)).detach().numpy(), predict_map(new.export(), logits)):
        assert probs.dtype == dtype
        assert_never_swaps(logits, probs)
        top = logits.argmax(1)
        assert (probs[np.arange(len(probs)), top] == probs.max(1)).all()


def test_neighbouring_floats_across_a_knot():
    """Every float next to a knot, on both sides: rounding in the look-up may tie them, never swap them."""
    new = with_slopes(np.random.default_rng(0).uniform(0.01, 9, 500))
    for dtype in (np.float32, np.float64):
        knots = (-np.arange(1, 501) * new.step).astype(dtype)
        x = np.sort(np.concatenate([np.nextafter(knots, dtype(-1e9)), knots, np.nextafter(knots, dtype(0))]))
        for g in (
            apply_table(x, **new.export()),
            interpolate(torch.from_numpy(x)[None], new.values().to(torch.from_numpy(x).dtype), new.step)
            .detach()
            .numpy()[0],
        ):
            assert (np.diff(g) >= 0).all()


def test_standardisation_of_arrays_and_tensors():
    x = problem()
    one, two = standardisation(x), standardisation(torch.from_numpy(x))
    assert one == pytest.approx(two)
    assert one["std"] == pytest.approx(x.std(ddof=1))
    assert standardisation(np.zeros((3, 2)))["std"] == 1.0


@pytest.mark.parametrize("name", ["none-3", "piecewise", "piecewise-0", "ensemble-x", "temperature-2"])
def test_unknown_maps_are_named(name):
    with pytest.raises(ValueError, match="unknown map"):
        build_map(name, problem())


@pytest.mark.parametrize("name", SMALL)
def test_unknown_init_is_named(name):
    with pytest.raises(ValueError, match="init"):
        build_map(name, problem(), init="random")
