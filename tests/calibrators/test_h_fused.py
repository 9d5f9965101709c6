"""The compiled prediction of the default calibrator against numpy's, and what a fused kernel could break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hcal
from hcal.calibrators.h.candidates import fit_candidates, new_setting
from hcal.calibrators.h.events import Rest
from hcal.calibrators.h.fit import assemble, out_of_fold, pool
from hcal.calibrators.h.model import Model, from_state, no_curve, predict_into, predict_model, predict_plain
from hcal.calibrators.h.refine import KNOTS, Refined
from hcal.calibrators.h.rows import N_FEATURES
from helpers import synthetic

pytest.importorskip("numba")

# Of probabilities: float32 has 6e-8 to give, its exponentials 2 ulp, and a row's scale multiplies margins.
TOLERANCE = {"float32": 1e-6, "float64": 1e-14}
#: Those of version 0.1 end with their events; the pool of today has more stages.
OLD = ("classes-0", "classes-1", "free", "refined", "identity")
NEW = ("pool-0", "pool-1", "pool-free")


def plain_model(k: int, **stage: np.ndarray) -> Model:
    """Return stage 1 alone: temperature scaling by 1, but for what is given."""
    zero, one = np.zeros(N_FEATURES), np.ones(N_FEATURES)
    refined = Refined(np.array(1.0), KNOTS.copy(), zero, zero, one, -one, one)._replace(**stage)
    rest = Rest(np.array(1.0), np.zeros(k))
    return Model(refined, no_curve(N_FEATURES, k), no_curve(0, k), rest, 0.0)


def models(k: int) -> dict[str, Model]:
    z, y = synthetic(400, k, scale=2.0)
    setting = new_setting(z, y, np.ones(400), classes=True)
    fitted = fit_candidates(z, y, np.ones(400), setting)
    held = out_of_fold(z, y, np.ones(400), setting)
    kept, free = (assemble(fitted, pool(held, setting, free=free)[0]) for free in (False, True))
    found = {"pool-0": kept._replace(lift=0.0), "pool-1": kept._replace(lift=1.0), "pool-free": free}
    events = fitted.model
    found |= {"classes-0": events, "classes-1": events._replace(lift=1.0), "free": events._replace(lift=None)}
    return found | {"refined": plain_model(k, **events.refined._asdict()), "identity": plain_model(k)}


def plain(model: Model, logits: np.ndarray) -> np.ndarray:
    out = np.empty(logits.shape, dtype=logits.dtype)
    predict_plain(model, logits, out)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [3, 10, 67, 1000, 9000])
def test_every_candidate_is_the_same_by_numpy(k: int, dtype: str) -> None:
    z = np.random.default_rng(0).normal(0, 4, (40, k)).astype(dtype)
    z[:5] *= 30  # saturated rows
    fitted = models(min(k, 67))
    for name in (*OLD, *NEW):
        model = fitted[name]
        if k > 67:  # fitting thousands of classes is not the matter here
            model = widened(model, k)
        probs = predict_model(model, z)
        assert probs.dtype == z.dtype
        np.testing.assert_allclose(probs, plain(model, z), atol=TOLERANCE[dtype], rtol=0, err_msg=name)
        np.testing.assert_allclose(probs.sum(axis=1, dtype=np.float64), 1, atol=TOLERANCE[dtype])
        if "free" not in name:
            np.testing.assert_array_equal(probs.argmax(axis=1), z.argmax(axis=1), err_msg=name)


def widened(model: Model, k: int) -> Model:
    """The model with its class terms repeated for k classes."""
    model = model._replace(
        rest=model.rest._replace(bias=np.resize(model.rest.bias, k)),
        curve=model.curve._replace(classes=np.resize(model.curve.classes, k)),
        final=model.final._replace(classes=np.zeros(k)),
    )
    if model.blend is None or model.last is None:
        return model
    blend, last = model.blend, model.last
    return model._replace(
        blend=blend._replace(bias=np.resize(blend.bias, k), prefer=np.resize(blend.prefer, k)),
        last=last._replace(classes=np.resize(last.classes, k)),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [3, 10, 100, 3000])
def test_a_row_alone_gets_what_it_gets_in_a_batch(k: int, dtype: str) -> None:
    z = np.random.default_rng(1).normal(0, 3, (60, k)).astype(dtype)
    model = models(10)["pool-0"] if k == 10 else widened(models(67)["pool-0"], k)
    batch = predict_model(model, z)
    np.testing.assert_array_equal(np.concatenate([predict_model(model, row[None]) for row in z]), batch)
    np.testing.assert_array_equal(predict_model(model, np.asfortranarray(z)), batch)
    out = np.full((62, k), -1, dtype=dtype)
    predict_into(model, z, out[1:-1])
    assert (out[[0, -1]] == -1).all()


hostile = st.one_of(
    st.sampled_from([0.0, -0.0, 1e30, -1e30, 3e38, -3e38, 1e-30, 1.0]), st.floats(-50, 50, width=32)
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_hostile_rows(dtype: str, data: st.DataObject) -> None:
    shape = data.draw(st.integers(1, 4)), 5
    z = data.draw(arrays(np.float64, shape, elements=hostile)).astype(dtype)
    for name, model in MODELS_OF_FIVE.items():
        probs = predict_model(model, z)
        assert np.isfinite(probs).all()
        assert (probs >= 0).all()
        np.testing.assert_allclose(probs.sum(axis=1, dtype=np.float64), 1, atol=TOLERANCE[dtype])
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(probs, plain(model, z), atol=TOLERANCE[dtype], rtol=0)
        if "free" not in name:
            np.testing.assert_array_equal(probs.argmax(axis=1), z.argmax(axis=1))


MODELS_OF_FIVE = models(5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_logits_get_equal_probabilities_wherever_they_stand(dtype: str) -> None:
    """Vector registers and the left-over end of a row must round alike."""
    model = MODELS_OF_FIVE["refined"]
    for k in (2, 5, 31, 100, 1001):
        parts = np.zeros(k)
        wide = model._replace(
            rest=model.rest._replace(bias=parts),
            curve=model.curve._replace(classes=parts),
            final=model.final._replace(classes=parts),
        )
        z = np.full((3, k), -2.7, dtype=dtype)
        z[1, k // 2], z[2, 0] = 1.3, 9.1
        probs = predict_model(wide, z)
        below = np.where(z == z.max(axis=1, keepdims=True), np.nan, probs)
        assert (np.nanmax(below[1:], axis=1) == np.nanmin(below[1:], axis=1)).all()


def neighbours(k: int, dtype: str) -> np.ndarray:
    """Rows of logits that lie one float apart from each other, in clusters at every distance from the top."""
    rng = np.random.default_rng(k)
    z = (rng.normal(0, 4, (300, k)) * rng.choice([0.01, 1.0, 5.0], (300, 1))).astype(dtype)
    for column in range(1, k - k // 4):
        if column % 5:
            z[:, column] = np.nextafter(z[:, column - 1], z.dtype.type(np.inf))
    return z


def assert_in_order(probs: np.ndarray, z: np.ndarray) -> None:
    order = np.argsort(z, axis=1, kind="stable")
    steps, rises = (np.diff(np.take_along_axis(v, order, 1), axis=1) for v in (probs, z))
    assert (steps[rises > 0] >= 0).all()
    assert (steps[rises == 0] == 0).all()  # ties stay ties


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [3, 100])
def test_the_kernel_inverts_no_pair(k: int, dtype: str) -> None:
    model, z = order_model(k), neighbours(k, dtype)
    probs = predict_model(model, z)
    np.testing.assert_allclose(probs, plain(model, z), atol=TOLERANCE[dtype], rtol=0)
    assert_in_order(probs, z)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_pair_is_inverted_where_the_curve_bends(dtype: str) -> None:
    """Cells rounded each by itself inverted 204 pairs of 120,000 in float32, and 116 in float64."""
    one = np.dtype(dtype).type
    z = np.zeros((len(KNOTS) - 1, 41), dtype)
    z[:, 0], z[:, 20] = -KNOTS[1:] - 1, -KNOTS[1:]
    for j in range(1, 20):
        z[:, 20 - j] = np.nextafter(z[:, 21 - j], one(-np.inf))
        z[:, 20 + j] = np.nextafter(z[:, 19 + j], one(0))
    for seed in range(200):
        rises = np.exp(np.random.default_rng(seed).normal(0, 1.5, len(KNOTS) - 1)) * np.diff(KNOTS)
        bent = plain_model(41, values=np.concatenate([[0.0], np.cumsum(rises)]))
        assert_in_order(predict_model(bent, z), z)


def order_model(k: int) -> Model:
    z, y = synthetic(400, k, scale=2.0)
    weight = np.ones(400)
    setting = new_setting(z, y, weight, classes=False)
    fitted = fit_candidates(z, y, weight, setting)
    return assemble(fitted, pool(out_of_fold(z, y, weight, setting), setting, free=False)[0])


def test_cells_end_where_the_next_begin() -> None:
    """Also for slopes from e⁻⁷ to e⁷, and where a cell's rise is lost in the rounding of the values."""
    from hcal.calibrators.h.fused import _cells

    rng = np.random.default_rng(0)
    for height in (1.0, 1e4, 1e9):
        rises = np.exp(rng.uniform(-7, 7, len(KNOTS) - 1)) * np.diff(KNOTS)
        values = height * np.concatenate([[0.0], np.cumsum(rises)])
        for dtype in (np.float32, np.float64):
            start, slope = _cells(values, dtype)
            assert (start[:-1] + slope[:-1] <= start[1:]).all()
            np.testing.assert_allclose(
                start, np.interp(np.arange(len(start)) / 2, KNOTS, values), rtol=8 * np.finfo(dtype).eps
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_rises_over_neighbouring_floats(dtype: type) -> None:
    """A million floats from each start on; all 1,119,092,736 of float32 from −87 to 0 were tried once."""
    from numba import njit

    from hcal.calibrators.h._compiled import ordered_exp

    @njit
    def fill(v: np.ndarray, out: np.ndarray) -> None:
        for i in range(len(v)):
            out[i] = ordered_exp(v[i])

    for start in (0.34, 0.69, 1.03, 2.0, 40.0):
        bits = np.array(start, dtype).view("i4" if dtype == np.float32 else "i8")
        v = -(bits + np.arange(1_000_000, dtype=bits.dtype)).view(dtype)
        out = np.empty_like(v)
        fill(v, out)
        assert (np.diff(out) <= 0).all()
        np.testing.assert_allclose(out, np.exp(v), rtol={np.float32: 3e-7, np.float64: 4e-15}[dtype])


def test_a_model_is_prepared_once_and_never_taken_for_another() -> None:
    from hcal.calibrators.h import fused

    z, y = synthetic(300, 4)
    cal = hcal.HCalibrator().fit(z, y)
    one = cal.predict_proba(z)
    kept = len(fused._PREPARED)
    np.testing.assert_array_equal(cal.predict_proba(z), one)
    assert len(fused._PREPARED) == kept
    kappa = cal.state_["rest.kappa"]
    for times in np.linspace(1.5, 3.0, fused._MOST_PREPARED + 1):  # more models than are kept
        cal.state_["rest.kappa"] = kappa * times  # another array, another model
        assert not np.array_equal(cal.predict_proba(z), one)
    assert len(fused._PREPARED) <= fused._MOST_PREPARED
    cal.state_["rest.kappa"] = kappa
    np.testing.assert_array_equal(cal.predict_proba(z), one)


def test_knots_are_where_the_table_has_its_cells() -> None:
    from hcal.calibrators.h._compiled import CELL

    np.testing.assert_array_equal(np.round(KNOTS / CELL), KNOTS / CELL)


def test_without_numba_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = synthetic(300, 6)
    cal = hcal.HCalibrator().fit(z, y)
    fused = cal.predict_proba(z.astype(np.float32))
    monkeypatch.setattr("hcal.calibrators.h.model.compiled", lambda: False)
    np.testing.assert_allclose(cal.predict_proba(z.astype(np.float32)), fused, atol=TOLERANCE["float32"])


def test_no_class_is_left_at_an_even_share_to_the_last_digit() -> None:
    """Metrics count entries above 1/K: which side an entry is on must not be a matter of rounding."""
    torch = pytest.importorskip("torch")
    from hcal.calibrators.on_device import predict_tensor
    from hcal.integrations.torch import CalibrationHead

    z, y = synthetic(400, 4)
    backwards = (y + 2) % 4  # the top class is right less often than any other: it is held at its lowest
    with pytest.warns(hcal.CalibrationWarning):
        cal = hcal.HCalibrator().fit(z, backwards)
    x, model = torch.from_numpy(z), from_state(cal.state_)
    found = {
        "kernel": predict_model(model, z),
        "numpy": plain(model, z),
        "graph": CalibrationHead(cal)(x.clone().requires_grad_()).detach().numpy(),
        "tensor": predict_tensor(cal, x).numpy(),
    }
    assert (np.abs(found["numpy"] - 0.25) < 1e-8).all(axis=1).sum() > 100
    for name, probs in found.items():
        assert np.abs(probs - 0.25).min() > 1e-11, name
        np.testing.assert_array_equal(probs > 0.25, found["numpy"] > 0.25, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_predicts_until_the_kernel_is_ready(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hcal.calibrators.h import fused

    logits, y = synthetic(300, 4)
    cal, x = hcal.HCalibrator().fit(logits, y), logits.astype(dtype)
    expected = cal.predict_proba(x)
    by_kernel = []
    inner = fused.predict_fused
    monkeypatch.setattr(fused, "predict_fused", lambda *a: by_kernel.append(1) or inner(*a))
    monkeypatch.setattr(fused, "is_ready", lambda *a: False)
    monkeypatch.setattr(fused, "PATIENCE", 6 * x.size)
    monkeypatch.setattr(fused._Waited, "events", 0)
    monkeypatch.setattr(fused._Waited, "over", set())
    cold = cal.predict_proba(x)
    assert not by_kernel
    np.testing.assert_allclose(cold, expected, atol=TOLERANCE[dtype], rtol=0)
    np.testing.assert_array_equal(cold.argmax(axis=1), x.argmax(axis=1))
    for _ in range(6):
        warm = cal.predict_proba(x)
    assert by_kernel  # waited for long enough
    np.testing.assert_array_equal(warm, expected)


def test_no_other_kind_of_array_is_compiled_for() -> None:
    """A file mapped into memory was one: 16 CPU-seconds for a second kernel that computes the same."""
    predict_rows = pytest.importorskip("hcal.calibrators.h.fused").predict_rows
    z, y = synthetic(300, 4)
    cal = hcal.HCalibrator().fit(z, y)
    expected = cal.predict_proba(z)
    compiled_for = len(predict_rows.signatures)
    for array in (fixed := z.copy(), np.asfortranarray(z), np.repeat(z, 2, axis=0)[::2]):
        fixed.flags.writeable = False
        np.testing.assert_array_equal(cal.predict_proba(array), expected)
    cal.state_ = {name: np.array(value) for name, value in cal.state_.items()}
    for value in cal.state_.values():
        value.flags.writeable = False
    np.testing.assert_array_equal(cal.predict_proba(fixed), expected)
    assert len(predict_rows.signatures) == compiled_for
