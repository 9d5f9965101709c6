"""Each method declares its state once: every fit keeps the declaration, whatever breaks it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_contract import METHODS, SECONDS, fit_quietly, make

import hcal
from hcal.calibrators import get_calibrator
from hcal.calibrators.params import check_params
from hcal.calibrators.state import Field, Rule, StateSpec, check_state, choose_spec
from helpers import synthetic

# -- every method -----------------------------------------------------------------------------------------


def _perfect(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return logits, logits.argmax(axis=1)


def _absent(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return logits[y != 1], y[y != 1]


#: What makes estimates run to their bounds: the declared ranges must hold there too.
SITUATIONS: dict[str, Any] = {
    "plain": lambda z, y: (z, y),
    "two classes": lambda z, y: (z[:, :2], y % 2),
    "every label right": _perfect,
    "every label wrong": lambda z, y: (z, z.argmin(axis=1)),
    "one class only": lambda z, y: (z, np.zeros_like(y)),
    "a class absent": _absent,
    "tiny logits": lambda z, y: (z * 1e-8, y),
    "huge logits": lambda z, y: (z * 1e6, y),
    "rounded logits": lambda z, y: (np.round(z), y),
    "all rows equal": lambda z, y: (np.ones_like(z), y),
    "three rows": lambda z, y: (z[:3], y[:3]),
}


def _marks(name: str, situation: str) -> list[Any]:
    return [pytest.mark.slow] if name in SECONDS and situation not in ("plain", "every label right") else []


TABLE = [
    pytest.param(name, situation, marks=_marks(name, situation))
    for name in METHODS
    for situation in SITUATIONS
]


@pytest.mark.parametrize(("name", "situation"), TABLE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # what extreme logits do to a fit is tested elsewhere
def test_every_fit_keeps_its_declaration(name: str, situation: str) -> None:
    logits, y = SITUATIONS[situation](*synthetic(90, 4))
    fit_quietly(make(name), logits, y)._check_state()


@pytest.mark.parametrize("name", METHODS)
def test_declarations_are_whole(name: str) -> None:
    """Every method has one, every symbol in it is explained, every rule blames an array that exists."""
    specs = get_calibrator(name).state_specs
    assert specs
    for spec in specs:
        assert len(spec.names) == len(spec.fields)
        assert {rule.name for rule in spec.rules} <= spec.names
        assert all(field.what for field in spec.fields)
        used = {s for f in spec.fields for d in f.dims for s in str(d) if s.isalpha()}
        assert used <= {"K", "E", *spec.sizes}


@pytest.mark.parametrize("preserve", ["accuracy", "order", None])
def test_the_state_of_h_depends_on_its_parameters(preserve: Any) -> None:
    cal = fit_quietly(hcal.HCalibrator(preserve=preserve), *synthetic(90, 3))
    cal._check_state()
    cal.state_ = cal.state_ | {"lift": np.array(np.nan)}
    if preserve is None:
        cal._check_state()
    else:
        with pytest.raises(ValueError, match="'lift' holds NaN"):
            cal._check_state()


def test_the_kernel_is_reached_with_fitting_shapes_only() -> None:
    """Also where a state was changed in memory, which no file check sees."""
    pytest.importorskip("numba")
    logits, y = synthetic(90, 3)
    cal = fit_quietly(hcal.HCalibrator(), logits, y)
    whole, knots = dict(cal.state_), ("curve.knots", "final.knots", "last.knots")
    for name in sorted(whole):
        array = whole[name]
        if array.ndim == 1 and name not in (*knots, "final.classes"):
            cal.state_ = whole | {name: np.append(array, 1.0)}
            with pytest.raises(ValueError, match=f"'{name}' has shape"):
                cal.predict_proba(logits)
    for name in knots:
        cal.state_ = whole | {name: np.append(whole[name], 1.0)}
        with pytest.raises(ValueError, match=f"'{name.partition('.')[0]}.weights' has shape"):
            cal.predict_proba(logits)


# -- the check itself -------------------------------------------------------------------------------------

SPEC = StateSpec(
    (
        Field("scale", "a number", low=0, high=10),
        Field("edges", "ends", ("B-1",), order="increasing"),
        Field("values", "of bins", ("B",), 0, 1, total=1.0),
        Field("matrix", "square", ("K", "K")),
        Field("theta", "all", ("K*(K+1)",)),
        Field("classes", "seen", ("C",), 0, "K-1", "int64", "increasing"),
    ),
    {"B": ("bins", 2), "C": ("classes", 1)},
    (Rule("scale", "not be 3", lambda s, _: s["scale"] != 3),),
)
GOOD = {
    "scale": np.array(2.0),
    "edges": np.array([0.1, 0.5]),
    "values": np.array([0.5, 0.25, 0.25]),
    "matrix": np.eye(3),
    "theta": np.zeros(12),
    "classes": np.array([0, 2]),
}


def test_a_good_state_passes() -> None:
    check_state(SPEC, GOOD, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": None}, "'scale' is missing"),
        ({"more": np.zeros(1)}, "'more' is not an array of this method"),
        ({"scale": np.zeros(1)}, r"'scale' has shape \(1,\), declared is \(\)"),
        ({"scale": np.array(11.0)}, r"'scale' holds 11, declared are values in \[0, 10\]"),
        ({"scale": np.array(-1.0)}, "'scale' holds -1"),
        ({"scale": np.array(np.nan)}, "'scale' holds NaN"),
        ({"scale": np.array(3.0)}, "'scale' must not be 3"),
        ({"edges": np.array([0.1, np.inf])}, "'edges' holds inf"),
        ({"edges": np.array([0.5, 0.1])}, "'edges' must be increasing, entry 1 is not"),
        ({"edges": np.array([0.1, 0.1])}, "'edges' must be increasing"),
        ({"edges": np.array([0.1])}, r"'values' has shape \(3,\), declared is \(B,\) = \(2,\)"),
        ({"edges": np.zeros(0)}, r"'edges' has shape \(0,\), declared is \(B-1,\)"),
        ({"values": np.array([0.5, 0.25, 0.0])}, "'values' sums to 0.75, declared is 1"),
        ({"matrix": np.zeros((3, 4))}, r"'matrix' has shape \(3, 4\), declared is \(K, K\) = \(3, 3\)"),
        ({"theta": np.zeros(9)}, r"'theta' has shape \(9,\), declared is .* = \(12,\)"),
        ({"theta": np.zeros(12, np.float32)}, "'theta' has type float32, declared is float64"),
        ({"classes": np.array([0, 3])}, r"'classes' holds 3, declared are values in \[0, 2\]"),
        ({"classes": np.array([0.0, 2.0])}, "'classes' has type float64, declared is int64"),
        ({"classes": np.zeros(0, np.int64)}, r"'classes' has shape \(0,\)"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    state = {k: v for k, v in (GOOD | changes).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        check_state(SPEC, state, 3)


def test_nan_where_it_is_allowed_and_not_mixed() -> None:
    spec = StateSpec((Field("lift", "", low=0, high=1, nan=True),))
    check_state(spec, {"lift": np.array(np.nan)}, 2)
    with pytest.raises(ValueError, match="'lift' holds 2"):
        check_state(spec, {"lift": np.array(2.0)}, 2)


def test_a_declaration_is_chosen_by_parameters_then_by_names() -> None:
    a = StateSpec((Field("a", ""),), where={"mode": ("x",)})
    b = StateSpec((Field("b", ""),), where={"mode": ("y", None)})
    c = StateSpec((Field("c", ""),), where={"mode": ("y", None)})
    assert choose_spec((a, b, c), {"mode": "x"}, {"b"}) is a
    assert choose_spec((a, b, c), {"mode": None}, {"c"}) is c
    with pytest.raises(ValueError, match="no state is declared"):
        choose_spec((a, b, c), {"mode": "z"}, set())


# -- parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_every_method_pass_through_json(name: str) -> None:
    import json

    params = make(name).get_params()
    assert check_params(get_calibrator(name), json.loads(json.dumps(params))) == params


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_of_another_type_is_refused_by_name(name: str) -> None:
    z, y = np.eye(3)[np.arange(30) % 3], np.arange(30) % 3
    for param in hcal.make_calibrator(name).get_params():
        for odd in ([1, 2, "a"], object(), "no such thing"):
            if (param, odd) == ("device", "no such thing"):
                continue  # a word: torch knows the devices
            calibrator = hcal.make_calibrator(name, **{param: odd})
            with pytest.raises(ValueError, match=param):
                calibrator.fit(z * 2, y)
            assert not hasattr(calibrator, "state_")
    with pytest.raises(ValueError, match=r"'penalty' of 'ms' must be tuple\[float, float\] \| None, got 3"):
        hcal.make_calibrator("ms", penalty=3).fit(z, y)


def test_annotations_that_only_type_checkers_can_read_are_not_judged() -> None:
    def start(self, scale: NoSuchType = 1.0) -> None:  # type: ignore[name-defined]  # noqa: F821
        self.scale = scale

    method = type("Odd", (get_calibrator("uncal"),), {"__init__": start, "name": "odd", "input": "logits"})
    method("x").fit([[0.0, 2.0]], [1])
    assert check_params(method, {"scale": 3}) == {"scale": 3}


def test_numbers_of_numpy_are_parameters_too() -> None:
    z, y = np.eye(3)[np.arange(30) % 3], np.arange(30) // 10
    hcal.make_calibrator("sms", strength=np.float32(1), max_iterations=np.int64(5)).fit(z, y)
    hcal.make_calibrator("platt", smooth=np.True_).fit(z, y)


@pytest.mark.parametrize(
    ("name", "param", "value", "good"),
    [
        ("gp", "samples", 60_000_000, False),
        ("gp", "samples", -1, False),
        ("gp", "samples", 100.0, True),
        ("gp", "samples", 1.5, False),
        ("gp", "samples", True, False),
        ("imax", "random_state", -1, False),
        ("imax", "random_state", 2**32, False),
        ("imax", "random_state", None, True),
        ("hb", "floor", 0, True),
        ("hb", "floor", float("nan"), False),
        ("hb", "floor", [0.1], False),
        ("hb", "input", "guess", False),
        ("hb", "input", None, False),
        ("diag", "hidden", [2, 10], True),
        ("diag", "hidden", [2, "x"], False),
        ("diag", "hidden", list(range(2000)), False),
        ("ms", "penalty", [0.1, 0.2, 0.3], False),
        ("ms", "features", "probs", True),
        ("ms", "features", "other", False),
        ("h", "verbose", 1, True),
        ("h", "verbose", "yes", False),
        ("h", "device", "cuda", True),
        ("h", "protocol", ["default"], False),
        ("h", "preserve", None, True),
    ],
)
def test_a_parameter_of_another_type_or_range_is_refused(
    name: str, param: str, value: Any, good: bool
) -> None:
    if good:
        check_params(get_calibrator(name), {param: value})
    else:
        with pytest.raises(ValueError, match=f"parameter '{param}' of '{name}' cannot be"):
            check_params(get_calibrator(name), {param: value})


def test_gp_samples_have_a_limit_in_a_fit_too() -> None:
    with pytest.raises(ValueError, match=r"samples in \[0, 100000\]"):
        hcal.make_calibrator("gp", samples=10**6).fit(*synthetic(20, 3))


def test_a_floor_that_leaves_no_room_is_refused_and_zeros_are_met() -> None:
    logits, y = synthetic(60, 3)
    with pytest.raises(ValueError, match=r"floor must be at most 0\.5"):
        hcal.make_calibrator("dec", critics=1, floor=0.7).fit(logits, y)
    cal = fit_quietly(hcal.make_calibrator("dec", critics=1, floor=0.0), logits, y)
    cal.state_ = cal.state_ | {"shifts": np.full((1, 2, 3), -5.0)}
    np.testing.assert_array_equal(cal.predict_proba(logits[:1]), np.full((1, 3), 1 / 3))
