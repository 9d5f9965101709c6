"""No method states that something cannot happen, and narrow input does not change the prediction."""

from __future__ import annotations

import numpy as np
import pytest

import hcal
from helpers import fit_quietly, quick

METHODS = [name for name in hcal.list_calibrators() if name not in ("uncal", "gp")]


def saturated(k: int, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Logits so far apart that softmax in float32 has zeros; a few labels are not the top class."""
    rng = np.random.default_rng(k)
    y = rng.integers(0, k, n)
    z = rng.normal(size=(n, k)) + 60 * np.eye(k)[y]
    y[:8] = (y[:8] + 1) % k
    return z.astype(np.float32), y


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", METHODS)
def test_no_method_states_zero(name: str, k: int) -> None:
    z, y = saturated(k)
    cal = fit_quietly(quick(name), z, y)
    probs = cal.predict_proba(np.concatenate([z, 5 * z, -5 * z]))
    assert probs.min() > 0
    np.testing.assert_allclose(probs.sum(axis=1, dtype=np.float64), 1, atol=1e-5)


def test_diag_states_at_least_half_of_a_rows_share() -> None:
    z, y = saturated(4)
    cal = fit_quietly(hcal.make_calibrator("diag", hidden=(2,)), z, y)
    also_certain = np.concatenate([z, 50 * z])
    assert cal.predict_proba(also_certain).min() >= 1 / (2 * len(z))
    probs = cal.predict_proba(z[8:])
    assert (probs.argmax(axis=1) == z[8:].argmax(axis=1)).all()


@pytest.mark.parametrize("name", ["ts", "pool", "spline"])
def test_half_precision_comes_back_as_float32_with_its_prediction(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    z = (3 * rng.normal(size=(600, 5))).astype(np.float16)
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    cal = fit_quietly(hcal.make_calibrator(name), z, y)
    if cal.preserves is None:
        pytest.skip("it may change predictions")
    assert cal.predict_proba(z).dtype == np.float32
    tops = cal.predict_proba(z).argmax(axis=1)
    assert (tops == z.argmax(axis=1)).all()
    for narrow in (torch.float16, torch.bfloat16):
        scores = torch.tensor(z.astype(np.float32)).to(narrow)
        probs = cal.predict_proba(scores)
        assert probs.dtype == torch.float32
        assert bool((probs.argmax(1) == scores.argmax(1)).all())
