"""The default where the scores lie: its stages on tensors, and its kernel, give what numpy gives.

Tensors are on the GPU where there is one; without one they are in memory, and Triton runs by its interpreter.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import hcal
from hcal.calibrators import on_device
from hcal.calibrators.h import _tensors, events, judge, keep, pool, refine, refine_problem
from hcal.calibrators.h import calibrator as flagship
from hcal.calibrators.h.blend import split_top, top_class
from hcal.calibrators.h.rows import fit_scaler, look
from hcal.io.provenance import fingerprint
from hcal.runtime.device_rows import DeviceRows
from hcal.solvers.rows import PieceRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton: pip install triton")


def sample(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits with ties on top, labels, and weights that are not 1."""
    rng = np.random.default_rng(seed)
    z, y = rng.normal(0, 2, (n, k)), rng.integers(0, k, n)
    z[np.arange(n), y] += rng.normal(2, 2, n)
    z[: n // 10] = np.round(z[: n // 10])
    return z.astype(np.float32), y, rng.integers(1, 3, n).astype(np.float64)


def there(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


@pytest.fixture
def everything_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any tensor counts as lying on a device, of any size."""
    monkeypatch.setattr(on_device, "is_elsewhere", lambda scores: isinstance(scores, torch.Tensor))
    monkeypatch.setattr(flagship, "_WORTH_A_DEVICE", 0)
    monkeypatch.setattr(refine, "EXACT_EVENTS", 0)  # solved to the end on both sides


@pytest.mark.parametrize(("preserve", "n"), [("auto", 1200), ("order", 300), (None, 300)])
@pytest.mark.usefixtures("everything_there")
def test_a_fit_on_the_device_is_the_fit_on_the_host(preserve: str | None, n: int) -> None:
    z, y, w = sample(n, 34)
    weight = w if preserve == "order" else None
    here = hcal.HCalibrator(preserve=preserve).fit(z, y, weight)
    cal = hcal.HCalibrator(preserve=preserve).fit(there(z), there(y), weight)
    # Solvers stop at a gradient of 1e-7 to 1e-9: what is left of it in the probabilities. Issue: 1e-5.
    np.testing.assert_allclose(cal.predict_proba(z), here.predict_proba(z), atol=1e-5)
    assert cal.info_["fitted_on"] == here.info_["fitted_on"]
    assert cal.info_["calibration_rows"]["scores"] == here.info_["calibration_rows"]["scores"]
    assert cal.info_["lift"] == here.info_["lift"]
    for when in ("before", "after"):
        assert cal.scores_[when] == pytest.approx(here.scores_[when], abs=1e-5)


@pytest.mark.usefixtures("everything_there")
def test_few_rows_and_copies_there() -> None:
    z, y, _ = sample(120, 40)
    z, y = np.concatenate([z, z[:30]]), np.concatenate([y, y[:30]])
    here, cal = hcal.HCalibrator().fit(z, y), hcal.HCalibrator().fit(there(z), y)
    np.testing.assert_allclose(cal.predict_proba(z), here.predict_proba(z), atol=1e-5)


@pytest.mark.usefixtures("everything_there")
def test_what_the_host_words_is_left_to_it() -> None:
    z, y, _ = sample(100, 40)
    bad = z.copy()
    bad[3, 5] = np.nan
    with pytest.raises(ValueError, match="contains NaN, first at row 3, column 5"):
        hcal.HCalibrator().fit(there(bad), y)
    with pytest.raises(ValueError, match='say input="probs"'):
        hcal.HCalibrator().fit(torch.softmax(there(z), 1), y)
    with pytest.raises(ValueError, match=r"y must lie in 0\.\.39"):
        hcal.HCalibrator().fit(there(z), np.where(y == y[0], 40, y))
    z, y, _ = sample(300, 5)
    cal = hcal.HCalibrator().fit(there(z), y)  # has candidates that only the host fits
    assert on_device.rows_on_device(cal, there(z)) is None


def test_only_large_scores_of_many_classes_stay_there() -> None:
    assert not on_device.is_elsewhere(torch.empty(2, 2))
    assert not on_device.is_elsewhere(torch.empty(2, 2, device="meta"))
    assert not on_device.is_elsewhere(np.empty((2, 2)))
    new = hcal.HCalibrator()
    assert new._fits_on_device(25_000, 1000)
    assert not new._fits_on_device(5000, 100)
    assert not new._fits_on_device(10**6, 10)
    assert not hcal.HCalibrator(protocol="paper")._fits_on_device(25_000, 1000)
    assert not hcal.make_calibrator("ts")._fits_on_device(25_000, 1000)


def test_rows_are_hashed_there_as_here() -> None:
    z, _, _ = sample(50, 7)
    for scores in (z, z.astype(np.float64) - 0.5, np.where(z > 0, 0.0, -0.0)):
        assert fingerprint(DeviceRows(there(scores))) == fingerprint(scores)


class TestStages:
    z, y, w = sample(300, 60, 1)
    beta = 0.8

    def test_top_classes_and_features(self) -> None:
        prefer = np.arange(60.0)[::-1] // 7
        top = top_class(self.z, prefer)
        np.testing.assert_array_equal(top_class(DeviceRows(there(self.z)), prefer), top)
        here = look(self.z.astype(np.float64), self.beta, top)
        margin, feature = _tensors.look(there(self.z), self.beta, there(top))
        np.testing.assert_allclose(margin.cpu().numpy(), here.margin, rtol=1e-12)
        np.testing.assert_allclose(feature.cpu().numpy(), here.feature, rtol=1e-9, atol=1e-12)

    def test_stage_1_its_slopes_and_its_curvature(self) -> None:
        x = self.z.astype(np.float64)
        seen, label, counts, feature = refine._compress(x, self.y, self.beta)
        scaler = fit_scaler(feature, self.w)
        parts = refine_problem.problem_blocks(seen, label, counts, scaler(feature), self.w)
        sums = _tensors.RefinedSums(DeviceRows(there(x)), self.y, self.w, self.beta)
        sums.standardise(scaler(feature))
        slope, c = np.exp(np.linspace(-0.5, 0.5, 15)), np.linspace(-0.3, 0.3, 6)
        here, other = refine_problem.sum_blocks(parts, slope, c), sums(slope, c)
        for a, b in zip(here, other, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9)
        curvature = refine_problem.sum_curvatures(parts, slope, c)
        np.testing.assert_allclose(sums.curvature(slope, c), curvature, rtol=1e-9, atol=1e-9)

    def test_the_curvature_is_the_slope_of_the_slope(self) -> None:
        seen, label, counts, feature = refine._compress(self.z.astype(np.float64), self.y, self.beta)
        x = fit_scaler(feature, self.w)(feature)
        parts = refine_problem.problem_blocks(seen, label, counts, x, self.w)
        problem = refine_problem.RefineProblem(
            lambda s, c: refine_problem.sum_blocks(parts, s, c), float(self.w.sum()), 30.0,
            lambda s, c: refine_problem.sum_curvatures(parts, s, c),
        )  # fmt: skip
        theta = np.random.default_rng(0).normal(0, 0.3, problem.size)
        steps = 1e-6 * np.eye(problem.size)
        slopes = np.array([(problem(theta + s)[1] - problem(theta - s)[1]) / 2e-6 for s in steps])
        np.testing.assert_allclose(problem.hessian(theta), slopes, atol=1e-7)  # central differences

    def test_rows_by_blocks_end_where_rows_in_memory_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(refine, "EXACT_EVENTS", 0)
        z, y, w = sample(1200, 34, 5)
        x = z.astype(np.float64)
        blocks = [[(x[part], y[part], w[part])] for part in (slice(500), slice(500, None))]
        mass = np.bincount(y, weights=w, minlength=34)
        rows = PieceRows(blocks, list, map, mass)
        here, there_ = refine.fit_refined(x, y, w)[0], refine.fit_refined_rows(rows, x, w)[0]
        np.testing.assert_allclose(there_.values, here.values, rtol=1e-7)
        np.testing.assert_allclose(there_.weights, here.weights, atol=1e-7)

    def test_the_classes_below_the_top(self) -> None:
        rng = np.random.default_rng(2)
        margin, top = rng.exponential(3, (300, 60)), rng.integers(0, 60, 300)
        y = (top + 1 + rng.integers(0, 58, 300)) % 60
        theta = rng.normal(0, 0.2, 61)
        for classes in (True, False):
            here = events.rest_sums(theta, margin=margin, top=top, y=y, weight=self.w, classes=classes)
            value, slope = _tensors.RestSums(there(margin), top, y, self.w, classes=classes)(theta)
            assert value == pytest.approx(here[0], rel=1e-10)
            np.testing.assert_allclose(slope, here[1], rtol=1e-8, atol=1e-9)

    def test_the_pool_its_top_and_its_judge(self) -> None:
        rng = np.random.default_rng(3)
        log_p = rng.normal(0, 1, (3, 300, 60))
        weights = pool.log_linear_weights(log_p, self.y, self.w)
        np.testing.assert_allclose(pool.log_linear_weights(there(log_p), self.y, self.w), weights, atol=1e-6)
        scores, top = log_p[0], log_p[1].argmax(1)
        odds, rest = split_top(scores, top)
        odds_there, rest_there = split_top(there(scores), top)
        np.testing.assert_allclose(odds_there, odds, rtol=1e-10)
        for lift in (None, 0.0, 0.5, 1.0):
            probs = keep.join(1 / (1 + np.exp(-odds)), rest, top, lift)
            other = keep.join(1 / (1 + np.exp(-odds)), rest_there, top, lift)
            np.testing.assert_allclose(other.cpu().numpy(), probs, rtol=1e-9, atol=1e-15)

    def test_the_judge(self) -> None:
        # No two probabilities are near: a last digit must not swap two neighbours of a window.
        probs = np.random.default_rng(4).dirichlet(np.ones(60), 300)
        here = judge.judge(probs, self.y, self.w)
        np.testing.assert_allclose(judge.judge(there(probs), self.y, self.w), here, rtol=1e-9, atol=1e-12)


@needs_triton
class TestKernel:
    """One kernel predicts what numba's does, in every width, and says which scores are none."""

    @pytest.mark.parametrize(("n", "k"), [(90, 3), (70, 10), (40, 40), (30, 100)])
    @pytest.mark.parametrize("preserve", ["auto", None])
    def test_it_predicts_as_the_host_does(self, n: int, k: int, preserve: str | None) -> None:
        from hcal.calibrators.h.on_cuda import predict_kernel

        z, y, _ = sample(400, k)
        cal = hcal.HCalibrator(preserve=preserve).fit(z, y)
        z = z[:n]
        found = predict_kernel(cal, there(z))
        assert found is not None
        # Both are float32: features of a sure row differ by 1e-4 of the last digits of 1 − p.
        np.testing.assert_allclose(found.cpu().numpy(), cal.predict_proba(z), atol=5e-6)
        halves = [torch.float16] if DEVICE == "cpu" else [torch.float16, torch.bfloat16]
        for dtype in halves:  # the interpreter has no bfloat16
            x = there(z).to(dtype)
            half = predict_kernel(cal, x)
            assert half is not None
            assert half.dtype is dtype
            wide = cal.predict_proba(x.float().cpu().numpy())
            np.testing.assert_allclose(half.float().cpu().numpy(), wide, atol=torch.finfo(dtype).eps)
            if preserve == "auto":
                top = half.float().cpu().numpy().argmax(1)
                np.testing.assert_array_equal(top, x.float().cpu().numpy().argmax(1))

    def test_it_refuses_what_is_no_logit(self) -> None:
        from hcal.calibrators.h.on_cuda import predict_kernel, takes_kernel

        z, y, _ = sample(400, 5)
        cal = hcal.HCalibrator().fit(z, y)
        bad = z[:20].copy()
        bad[3, 2] = np.nan
        assert predict_kernel(cal, there(bad)) is None
        assert predict_kernel(cal, there(z[:20] * 1e30)) is None
        assert predict_kernel(cal, torch.softmax(there(z[:20]), 1)) is None
        unchecked = predict_kernel(cal, there(bad), check=False)
        assert unchecked is not None
        assert torch.isnan(unchecked).any(1).nonzero().flatten().tolist() == [3]
        assert takes_kernel(cal.state_, 5)
        assert not takes_kernel(cal.with_prior([0.2] * 5).state_, 5)
