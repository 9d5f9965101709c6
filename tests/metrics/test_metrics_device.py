"""Metrics of tensors on a device against those of arrays: the same numbers, intervals included.

The device is the CPU (the operations are the same ones, whatever the device) and, where there is one, CUDA.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hcal import metrics
from hcal.certificates import certify
from hcal.evaluation import evaluate
from hcal.evaluation.assessment import vector_test
from hcal.metrics import resampling
from hcal.metrics.device import check_tensor
from hcal.metrics.registry import METRICS
from hcal.metrics.sample import Sample

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
DEVICES = ["cpu", CUDA]
# Sums of float64 in another order. The roots of hce are of differences that may be 0: its square is compared.
TOLERANCE = {"rel": 1e-9, "abs": 1e-12}
ROOTS = ("hce", "hce_pooled")


def draw(n: int, k: int, random_state: int, sixteenths: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are not calibrated; in sixteenths they tie, are often 0, and fit any float."""
    rng = np.random.default_rng(random_state)
    y = rng.integers(0, k, n)
    z = rng.normal(0, 2, (n, k))
    z[np.arange(n), y] += rng.normal(np.log(k) + 1, 2, n)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    if sixteenths:
        p = np.floor(16 * p) / 16
        p[np.arange(n), p.argmax(axis=1)] += 1 - p.sum(axis=1)
    return p, y


def on(device: str, p: np.ndarray, y: np.ndarray, w: Any = None, dtype: Any = None) -> Sample:
    """A sample of a tensor on a device; on the CPU, where tensors are viewed as arrays, by force."""
    tensor = torch.from_numpy(p).to(device=device, dtype=dtype)
    if device == "cuda":
        return Sample(tensor, y if dtype is None else torch.tensor(y).cuda(), w)
    s = Sample(p, y, w)
    s.data.tensor = check_tensor(tensor)
    del s.data._probs
    return s


def counts(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 4, n).astype(np.float64)


CASES: dict[str, tuple[tuple[np.ndarray, np.ndarray], Any, Any]] = {
    "many classes, float32": (draw(120, 40, 0), None, torch.float32),
    "float64": (draw(240, 5, 1), None, torch.float64),
    "ties and zeros, bfloat16": (draw(160, 5, 2, sixteenths=True), None, torch.bfloat16),
    "two classes": (draw(150, 2, 3), None, torch.float64),
    "two classes, ties": (draw(90, 2, 4, sixteenths=True), None, torch.float16),
    "counts": (draw(90, 4, 5), counts(90), torch.float64),
    "fractions": (draw(90, 4, 6), np.random.default_rng(4).random(90), torch.float64),
    "three rows": (draw(3, 3, 7), None, torch.float64),
    "all right": ((np.eye(4)[np.arange(40) % 4] * 0.8 + 0.05, np.arange(40) % 4), None, torch.float64),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_values_and_intervals_are_those_of_arrays(
    case: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resampling, "CHANCE_RESAMPLES", 8)
    (p, y), w, dtype = CASES[case]
    p = torch.from_numpy(p).to(dtype).double().numpy() if dtype != torch.float32 else p.astype(np.float32)
    y = y.copy()
    y.setflags(write=False)
    here, there = Sample(p, y, w), on(device, p, y, w, dtype)
    names = [n for n, m in METRICS.items() if m.takes(here)]
    one, two = ({n: METRICS[n].function(s) for n in names} for s in (here, there))
    ends = [resampling.intervals(s, v, 0.9, n_resamples=20) for s, v in ((here, one), (there, two))]
    assert ends[0].keys() == ends[1].keys()
    for n in names:
        found = [[v[n], *((e[n].low, e[n].high, e[n].chance or 0.0) if n in e else ())]
                 for v, e in zip((one, two), ends, strict=True)]  # fmt: skip
        a, b = (np.square(x) if n in ROOTS else x for x in found)
        assert b == pytest.approx(a, nan_ok=True, **TOLERANCE), n
    assert "probs" not in there.data.__dict__, "the probabilities were copied to the host"


@pytest.mark.parametrize("device", DEVICES)
def test_tests_and_paired_differences_are_those_of_arrays(device: str) -> None:
    p, y = draw(80, 4, 8)
    here, there = Sample(p, y), on(device, p, y)
    for options in (
        {},
        {"statistic": "kuiper"},
        {"statistic": "tcwece"},
        {"statistic": "hce"},
        {"method": "skce"},
    ):
        a, b = (metrics.calibration_test(s, n_resamples=39, **options) for s in (here, there))
        assert (b.p_value, b.value) == pytest.approx((a.p_value, a.value), rel=1e-9)
    a, b = (vars(vector_test(s)) for s in (here, there))
    assert b.pop("value") == pytest.approx(a.pop("value"), rel=1e-9)
    assert b == a
    other = draw(80, 4, 9)[0]
    chosen = {"metrics": ["ece_ew", "tcwece", "nll", "dece"], "ci": 0.9, "n_resamples": 40, "test": False}
    pairs = (here, Sample(other, y)), (there, on(device, other, y))
    a, b = (evaluate(s, None, baseline=before, **chosen) for s, before in pairs)
    for n, difference in a.differences.items():
        assert vars(b.differences[n]) == pytest.approx(vars(difference), rel=1e-9), n


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "sixteenths"), [(50, False), (1000, False), (1000, True)])
def test_certificates_are_those_of_arrays(n: int, sixteenths: bool, device: str) -> None:
    """Few rows have one window; sixteenths are so few values that each is a window of its own."""
    p, y = draw(n, 20, 11, sixteenths)
    there = on(device, p, y)
    a, b = certify(Sample(p, y)), certify(there)
    assert b.sentences == a.sentences
    assert a.classes is not None
    assert b.classes is not None
    assert list(b.classes.kept) == list(a.classes.kept)
    assert b.classes.needed == a.classes.needed
    one, two = a.classes.to_dict(), b.classes.to_dict()
    assert two.pop("refuted").keys() == one.pop("refuted").keys()
    for name in one.keys() - {"names"}:
        assert two[name] == pytest.approx(one[name], rel=1e-9, abs=1e-12), name
    for k, refutation in a.classes.refutations.items():
        found = vars(b.classes.refutations[k])
        assert found.pop("direction") == refutation.direction
        for name, value in found.items():
            assert value == pytest.approx(getattr(refutation, name), rel=1e-9), (k, name)
    assert "probs" not in there.data.__dict__, "the probabilities were copied to the host"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_logits_on_a_device_are_those_of_arrays() -> None:
    z = np.random.default_rng(12).normal(0, 3, (60, 4))
    y = np.arange(60) % 4
    a, b = (evaluate(x, y, input="logits") for x in (z, torch.from_numpy(z).cuda()))
    assert b.to_dict() == pytest.approx(a.to_dict(), rel=1e-9, abs=1e-8)  # hce: a root of 1e-16
    with pytest.raises(ValueError, match="look like probabilities"):
        evaluate(torch.full((3, 2), 0.5).cuda(), [0, 1, 0], input="logits")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_second_run_gives_the_same_bits() -> None:
    p, y = draw(3000, 20, 10)
    w = np.random.default_rng(0).random(3000)
    one, two = (
        evaluate(torch.from_numpy(p).cuda(), y, ci=0.9, sample_weight=w, n_resamples=40) for _ in range(2)
    )
    assert one.results == two.results


@pytest.mark.parametrize("bad", ["nan", "sum", "negative", "shape", "one class"])
def test_device_check_words_the_same_errors(bad: str) -> None:
    from hcal.inputs import check_probs as on_host

    p = np.full((3, 4), 0.25)
    if bad == "nan":
        p[1, 2] = np.nan
    elif bad == "sum":
        p[2, 0] = 0.9
    elif bad == "negative":
        p[0, :2] = -0.25, 0.75
    elif bad == "shape":
        p = p[None]
    else:
        p = np.ones((3, 1))
    with pytest.raises(ValueError) as device:
        check_tensor(torch.from_numpy(p))
    with pytest.raises(ValueError) as host:
        on_host(p)
    assert str(device.value) == str(host.value)


def test_a_row_is_divided_by_its_sum_or_not_whatever_stands_beside_it() -> None:
    p = np.array([[0.25, 0.25, 0.5], [0.3, 0.3, 0.40002]])
    both = check_tensor(torch.from_numpy(p))
    for i in (0, 1):
        assert torch.equal(both[i : i + 1], check_tensor(torch.from_numpy(p[i : i + 1])))
