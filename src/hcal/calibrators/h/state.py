"""The state of ``h``, declared: three stages of the default protocol, or an exported map of the paper's.

Sizes are numbers here, not imports of the stages' constants, so that reading the declaration stays light; the
contract test holds every fitted state against it.
"""

from __future__ import annotations

from hcal.calibrators._shared import BETA
from hcal.calibrators.state import LARGE32, Field, Rule, Sizes, StateArrays, StateSpec

_KNOTS, _FEATURES = 16, 6
#: Bounds of what multiplies margins, so that their product stays finite in float32: g, and κ.
STEEPEST, MOST_KAPPA = 1e12, 1e8
#: Bound of the weights of the pool.
MOST_WEIGHT = 1e6


def _small(name: str, what: str, *dims: str | int, low: float = -LARGE32) -> Field:
    return Field(name, what, dims, low, LARGE32)


_REFINED = StateSpec(
    (
        Field("refined.beta", "inverse temperature 1/T", (), BETA.low, BETA.high),
        Field("refined.values", "g at its knots", (_KNOTS,), 0, STEEPEST, order="not falling"),
        _small("refined.weights", "of the features in the scale of a row", _FEATURES),
        _small("refined.mean", "of the features", _FEATURES),
        _small("refined.deviation", "of the features", _FEATURES, low=1 / LARGE32),
        _small("refined.low", "standard features are cut below it", _FEATURES),
        _small("refined.high", "and above it", _FEATURES),
    ),
    rules=(
        Rule("refined.values", "begin with 0", lambda s, _: s["refined.values"][0] == 0),
        Rule(
            "refined.high",
            "not lie below refined.low",
            lambda s, _: bool((s["refined.high"] >= s["refined.low"]).all()),
        ),
    ),
)


def _curve(part: str, what: str, size: str, features: int, classes: Field) -> StateSpec:
    def scales(state: StateArrays, _: Sizes) -> bool:
        _, deviation, low, high = state[f"{part}.scaler"]
        return bool(deviation >= 1 / LARGE32 and low <= high)

    return StateSpec(
        (
            Field(f"{part}.knots", f"knots of {what}", (size,), -LARGE32, LARGE32, order="not falling"),
            _small(f"{part}.scaler", "mean, deviation, low and high of the log-odds", 4),
            _small(f"{part}.weights", "constant, slope, hinges, features", f"{size}+{2 + features}"),
            classes,
        ),
        {size: (f"knots of {what}", 0)},
        (Rule(f"{part}.scaler", "have a deviation above 0 and low not above high", scales),),
    )


_EVENTS = (
    _REFINED
    + _curve(
        "curve",
        "the top-label correction",
        "H",
        _FEATURES,
        _small("curve.classes", "one term a predicted class", "K"),
    )
    + _curve(
        "final",
        "the last correction",
        "J",
        0,
        Field("final.classes", "none here", ("K",), 0, 0),
    )
    + StateSpec(
        (
            Field("rest.kappa", "slope of the classes below the top", low=0, high=MOST_KAPPA),
            _small("rest.bias", "of the classes below the top", "K"),
        )
    )
)


_POOL = _curve(
    "last", "the pool's correction", "Q", 0, _small("last.classes", "one term a predicted class", "K")
) + StateSpec(
    (
        Field("blend.events", "weight of the events", low=0, high=MOST_WEIGHT),
        Field("blend.refined", "weight of the refined margins", low=0, high=MOST_WEIGHT),
        Field("blend.cap", "margins count up to it in the linear part", low=0, high=1e12),
        Field("blend.matrix", "the linear part, or nothing", ("L", "L"), -MOST_WEIGHT, MOST_WEIGHT),
        Field("blend.scale", "of the margins, in the linear part", low=-MOST_WEIGHT, high=MOST_WEIGHT),
        _small("blend.bias", "of the classes", "K"),
        _small("blend.prefer", "of tied classes the highest is on top", "K"),
    ),
    {"L": ("K, or 0 without a matrix", 0)},
    (Rule("blend.matrix", "be K × K or empty", lambda s, n: n["L"] in (0, n["K"])),),
)
_TWO = StateSpec(
    (
        Field("table.knots", "log-odds of class 1", ("P",), -LARGE32, LARGE32, order="increasing"),
        Field("table.values", "calibrated log-odds there", ("P",), -LARGE32, LARGE32, order="increasing"),
    ),
    {"P": ("knots", 2)},
    where={"protocol": ("default",)},
)


def _default(lift: Field, *preserve: str | None) -> StateSpec:
    return _EVENTS + StateSpec((lift,), where={"protocol": ("default",), "preserve": preserve})


_PAPER = {"protocol": ("paper",)}
_TABLE = StateSpec(
    (
        Field("table", "V at the knots −c·step", ("G+1",), 0, LARGE32, order="not falling"),
        Field("step", "distance of the knots", low=1e-100),
    ),
    {"G": ("cells", 1)},
    (Rule("table", "begin with 0", lambda s, _: s["table"][0] == 0),),
    _PAPER,
)
_ENSEMBLE = StateSpec(
    (
        Field("slopes", "of the members", ("M",), 0, LARGE32),
        Field("shares", "of the members", ("M",), 0, 1, total=1.0),
    ),
    {"M": ("members", 1)},
    where=_PAPER,
)
_KEPT = _default(Field("lift", "λ of the kept argmax", low=0, high=1), "auto", "accuracy", "order")
_FREE = _default(Field("lift", "λ, or NaN: the argmax may change", low=0, high=1, nan=True), None)
#: Models of version 0.1 end with their events; later ones pool them, and have one table for two classes.
STATES = (_KEPT, _KEPT + _POOL, _FREE, _FREE + _POOL, _TWO, _TABLE, _ENSEMBLE)
