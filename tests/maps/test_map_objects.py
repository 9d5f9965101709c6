"""Maps as objects: declared fields, files of them, one formula on numpy and torch, odd numbers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from hcal import xp
from hcal.h_calibration.paper_maps import TableMap
from hcal.maps.base import (
    Map,
    Prediction,
    array,
    build_map,
    keep_argmax,
    learn_floor,
    map_type,
    option,
    raise_to_floor,
    reweight,
)
from hcal.methods._scaling import Temperature
from hcal.methods.smooth_spline import OddsCurves
from helpers import changeable_records


@map_type
class Toy(Map):
    """A map of several arrays, a part and a word."""

    inner: Map
    knots: xp.Array = array("where", "G", order="increasing")
    values: xp.Array = array("what", "G+1", low=0.0, high=1.0)
    counts: xp.Array = array(
        "how many", "K", low=0, dtype="int64", order="not falling", optional=True
    )
    matrix: xp.Array = array("square", "G-1", "G-1", 2, optional=True)
    how: str = option("how it is read", ("step", "line"), "line")

    def __call__(self, x):
        return self.inner(x)

    def check(self) -> None:
        if self.values.size and self.values[0] != 0:
            raise ValueError("'values' must begin with 0")


def toy(**changes):
    fields = {
        "inner": Temperature(beta=np.array(0.5)),
        "knots": np.array([0.0, 1.0]),
        "values": np.array([0.0, 0.5, 1.0]),
    }
    return Toy(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"knots": np.array([1.0, 0.0])}, "'knots' must be increasing, entry 1 is not"),
        ({"knots": np.array([0.0, np.nan])}, "'knots' holds NaN"),
        ({"knots": np.array([1.0, 1.0])}, "'knots' must be increasing, entry 1 is not"),
        (
            {"knots": np.array([0.0, np.inf])},
            r"'knots' holds inf, declared are values in \[-1e\+100, 1e\+100\]",
        ),
        ({"knots": np.array([0, 1])}, "'knots' has type int64, declared is an array of float64"),
        (
            {"matrix": np.zeros((1, 2, 2))},
            r"'matrix' has shape \(1, 2, 2\), declared is \(G-1, G-1, 2\) with G = 2",
        ),
        ({"matrix": np.zeros((1, 1, 3))}, r"'matrix' has shape \(1, 1, 3\)"),
        (
            {"matrix": np.zeros((1, 1, 2), np.float32)},
            "'matrix' has type float32, declared is an array of float64",
        ),
        ({"counts": np.array([2, 1])}, "'counts' must be not falling, entry 1 is not"),
        ({"knots": np.zeros((2, 2))}, r"'knots' has shape \(2, 2\), declared is \(G\)"),
        (
            {"values": np.array([0.0, 1.0])},
            r"'values' has shape \(2,\), declared is \(G\+1\) with G = 2",
        ),
        (
            {"values": np.array([0.0, 0.5, 1.5])},
            r"'values' holds 1.5, declared are values in \[0, 1\]",
        ),
        ({"values": np.array([0.1, 0.5, 1.0])}, "'values' must begin with 0"),
        ({"counts": np.array([-1])}, "'counts' holds -1"),
        ({"how": "spline"}, "'how' is 'spline', declared is one of"),
    ],
)
def test_a_field_that_is_not_as_declared_is_named(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        toy(**changes)


def test_records_cannot_be_changed() -> None:
    assert changeable_records("hcal.maps") == set()


def test_a_size_is_not_negative() -> None:
    """Found by fuzzing: no offsets at all were E + 1 of them, with E = −1."""
    no_knots = np.zeros(0)
    with pytest.raises(ValueError, match=r"'offsets' has shape \(0,\), declared is \(E\+1\)"):
        OddsCurves(offsets=np.zeros(0, np.int64), knots=no_knots, values=no_knots)


def test_a_map_is_frozen_and_comes_back_from_what_a_file_holds() -> None:
    knots = np.array([0.0, 1e100])
    one = toy(counts=np.array([1, 2, 2]), knots=knots, matrix=np.zeros((1, 1, 2)))
    assert toy(knots=np.empty(0), values=np.zeros(1)).values.size == 1  # no value is out of range
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.how = "step"
    assert len({one, toy(), toy()}) == 3  # each object is itself: arrays are not compared
    options = one.options()
    arrays = one.arrays()
    assert options == {"type": "Toy", "inner": {"type": "Temperature"}, "how": "line"}
    assert set(arrays) == {"inner.beta", "knots", "values", "counts", "matrix"}
    again = build_map((Toy, Temperature), options, arrays)
    assert again.arrays().keys() == arrays.keys()
    again.check_fields({"K": 3})
    with pytest.raises(
        ValueError, match=r"'counts' has shape \(3,\), declared is \(K\) with K = 4"
    ):
        again.check_fields({"K": 4})


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda o, a: o.update(type="Evil"), "type 'Evil', declared is one of Toy, Temperature"),
        (lambda o, a: o.update(type=["Toy"]), "declared is one of"),
        (lambda o, a: a.pop("knots"), "'knots' is missing"),
        (lambda o, a: a.pop("inner.beta"), "'beta' is missing"),
        (lambda o, a: o.pop("inner"), "'inner.beta' is not a field"),
        (lambda o, a: a.update(more=np.zeros(1)), "'more' is not a field of Toy"),
        (lambda o, a: o.update(how=3), "'how' is 3"),
        (lambda o, a: a.update(inner=np.zeros(1)), "'inner' is no map"),
    ],
)
def test_a_tampered_file_is_refused_by_name(tamper, message) -> None:
    options = toy().options()
    arrays = toy().arrays()
    tamper(options, arrays)
    with pytest.raises(ValueError, match=message):
        build_map((Toy, Temperature), options, arrays)


def test_numpy_and_torch_have_the_same_operations() -> None:
    torch = pytest.importorskip("torch")
    from hcal import xp_torch

    outside = {
        "Any",
        "Array",
        "Literal",
        "Recorded",
        "TypeAlias",
        "annotations",
        "importlib",
        "namespace",
        "np",
    }
    public = {name for name in vars(xp) if not name.startswith("_")}
    assert public - outside <= set(dir(xp_torch))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4))
    edges = np.sort(rng.normal(size=7))
    t = torch.from_numpy(x)
    e = torch.from_numpy(edges)
    pairs = [
        (xp.log_softmax(x), xp_torch.log_softmax(t)),
        (xp.log_sum_exp(x), xp_torch.log_sum_exp(t)),
        (xp.sort_rows(x)[1], xp_torch.sort_rows(t)[1]),
    ]
    pairs += [
        (xp.searchsorted(edges, x, side="right"), xp_torch.searchsorted(e, t, side="right")),
        (xp.interp(x, edges, edges**3), xp_torch.interp(t, e, e**3)),
        (xp.clip(x, -0.5, 0.5), xp_torch.clip(t, -0.5, 0.5)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(theirs.numpy(), ours, atol=1e-12)


@map_type
class Lowest(Map):
    """What a map is given."""

    def __call__(self, x):
        return x

    probabilities = __call__


def test_a_floor_is_of_probabilities() -> None:
    with pytest.raises(ValueError, match="'floor' is a probability, and the scores are logits"):
        Prediction(map=Lowest(), floor=np.array(0.01))
    # Weights that sum to less than one row count as one: a quarter of 1/(N·K).
    thirds = np.log(np.full((1, 3), 1 / 3))
    assert learn_floor(thirds, np.array([0.3])) == pytest.approx(1 / 12)


def test_the_parts_of_a_prediction() -> None:
    x = np.log([[0.0 + 1e-300, 0.3, 0.7]])
    raised = raise_to_floor(x, np.array(0.01))
    assert 0.01 <= np.exp(raised[0, 0]) <= 0.02
    depth = np.log(0.02 / 0.015)  # below twice the floor by less than a nat
    between = np.log(0.02) - np.log(2) * depth / (depth + np.log(2))
    assert raise_to_floor(np.log(0.015), np.array(0.01)) == pytest.approx(between)
    np.testing.assert_array_equal(raised[0, 1:], x[0, 1:])
    # A class that does not occur gets nothing, also where the others have underflowed.
    excluded = np.array([0.0, np.log(3.0), -np.inf])
    np.testing.assert_allclose(reweight(np.array([[0.0, 0.0, 1.0]]), excluded), [[0.25, 0.75, 0.0]])
    near = np.array([[0.0, np.nextafter(0, 1)], [1.0, 1.0]])
    kept = keep_argmax(np.full((2, 2), 0.5), near)
    np.testing.assert_array_equal(kept.argmax(1), [1, 0])
    np.testing.assert_allclose(kept, 0.5, atol=1e-12)
    small = keep_argmax(np.full((1, 2), 1e-6), near[:1])
    assert 0 < small[0, 1] - small[0, 0] < 2 * np.spacing(1e-6)
    prediction = Prediction(map=Temperature(beta=np.array(1.0)), kind="log_probs")
    first_impossible = np.array([[-np.inf, 0.0]])
    np.testing.assert_allclose(prediction(first_impossible), [[0.0, 1.0]], atol=1e-300)
    with np.errstate(invalid="ignore"):
        no_scores = np.array([[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
        odd = prediction(no_scores)
    assert np.isnan(odd).all()
    identity = TableMap(table=np.array([0.0, 100.0]), step=np.array(100.0))
    close = np.array([[0.0, 1e-9]], np.float32)  # told apart in float64, tied once narrowed
    assert Prediction(map=identity, preserves="order").in_blocks(close).argmax() == 1
    for width, lowest in ((np.float32, -1e15), (np.float64, -1e30)):  # products with it stay finite
        probs = Prediction(map=Lowest())(np.array([[-np.inf, 3.0]], width))
        assert probs[0, 0] == pytest.approx(lowest)


@map_type
class Compiled(Map):
    """The softmax, with a kernel that counts its calls."""

    kernel_keeps_argmax = True
    calls: ClassVar[list[np.ndarray]] = []

    def __call__(self, x):
        return xp.log_softmax(x)

    def compiled(self, x):
        self.calls.append(x)
        return np.exp(xp.log_softmax(x))


@pytest.mark.parametrize(
    ("n", "changes", "options", "n_calls"),
    [
        (4095, {}, {}, 0),
        (4096, {}, {}, 1),
        (20_000, {}, {}, 1),
        (20_000, {}, {"once": True}, 0),
        (20_000, {"states_zero": False}, {}, 1),
        # The map is not all of the prediction: the kernel computes its part of each block.
        (20_000, {"kind": "probs"}, {}, 2),
        (20_000, {"kind": "log_probs", "preserves": "accuracy"}, {}, 2),
        (20_000, {"prior": np.log([4.0, 1, 1, 1, 2])}, {}, 2),
        (20_000, {"kind": "probs", "floor": np.array(0.01)}, {}, 2),
    ],
)
def test_a_kernel_predicts_many_rows_as_the_formula_does(n, changes, options, n_calls) -> None:
    rng = np.random.default_rng(0)
    prediction = Prediction(map=Compiled(), **changes)
    scores = rng.dirichlet(np.ones(5), size=n)
    if prediction.kind == "logits":
        scores = 100 * rng.normal(size=(n, 5))
    elif prediction.kind == "log_probs":
        scores = np.log(scores)
    Compiled.calls.clear()
    by_formula = prediction(scores)
    assert not Compiled.calls
    by_blocks = prediction.in_blocks(scores, **options)
    assert len(Compiled.calls) == n_calls
    np.testing.assert_allclose(by_blocks, by_formula, rtol=1e-12)


@map_type
class Wide(Compiled):
    expansion = 4


def test_a_map_of_more_numbers_takes_fewer_rows_at_once() -> None:
    assert Prediction(map=Compiled()).rows_at_once(5) == 65_536 // 5
    assert Prediction(map=Wide()).rows_at_once(5) == 65_536 // 20
    assert Prediction(map=Wide()).rows_at_once(100_000) == 1


@map_type
class Rounded(Map):
    """A kernel that rounds, so that classes tie, and does not say that it keeps the argmax."""

    def __call__(self, x):
        return xp.log_softmax(x)

    def compiled(self, x):
        return np.full(x.shape, 1 / x.shape[1])


def test_the_argmax_is_kept_after_a_kernel() -> None:
    scores = np.resize([0.0, 1.0, 2.0], (5000, 3))
    predicted = Prediction(map=Rounded(), preserves="order").in_blocks(scores)
    np.testing.assert_allclose(predicted, 1 / 3)  # the kernel's
    assert (predicted.argmax(axis=1) == 2).all()


@map_type
class Widening(Map):
    """A formula that computes in float64."""

    def __call__(self, x):
        return xp.log_softmax(x.astype(np.float64))


def test_probabilities_have_the_width_of_the_scores() -> None:
    prediction = Prediction(map=Widening())
    for width in (np.float32, np.float64):
        scores = np.zeros((2, 3), width)
        assert prediction(scores).dtype == width
        assert prediction.in_blocks(scores).dtype == width
