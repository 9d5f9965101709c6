"""The published code's variant against its golden values."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from helpers import DATA
from studies.published_loss import PublishedLoss, sampled_kmeans

SETS = ("synthetic_600x7", "resnet110_c10_test_first1000", "resnet110_c10_val_5000")


def logits_of(name, golden):
    if name.startswith("synthetic"):
        with np.load(golden / "synthetic_600x7.npz") as f:
            return f["logits"], f["labels"].astype(np.int64)
    path = DATA / "cifar10_resnet110.npz"
    if not path.exists():
        pytest.skip("needs ../shared/data/cifar10_resnet110.npz")
    with np.load(path) as f:
        if name.endswith("val_5000"):
            return f["logits_cal"], f["y_cal"].astype(np.int64)
        return f["logits_test"][:1000], f["y_test"][:1000].astype(np.int64)


def measure(z, y, value, **keywords):
    """Loss, dL/ds, |dL/dP| and ΣdL/dP of P = softmax(s·z) at s = 1."""
    s = torch.tensor(1.0, requires_grad=True)
    probs = torch.softmax(torch.from_numpy(z).float() * s, 1)
    probs.retain_grad()
    loss_function = PublishedLoss(
        window=value["veclen"],
        weighting="uniform" if value["weighting"] == "unweighted" else "kmeans",
        leave_one_out=value["leave_one_class_out"],
        **keywords,
    )
    loss = loss_function(probs, torch.from_numpy(y))
    loss.backward()
    # the stored norm is a float32 one, the stored sum is not
    slopes = probs.grad
    return loss.item(), s.grad.item(), slopes.norm().item(), slopes.double().sum().item()


def expected(value):
    return tuple(value[k] for k in ("loss", "dloss_dscale", "grad_p_l2", "grad_p_sum"))


#: Probabilities of exactly 1 in the sets that the values were made of (golden/README).
ONES = {"synthetic_600x7": 0, "resnet110_c10_test_first1000": 284, "resnet110_c10_val_5000": 1504}
#: Loss, dL/ds, norm and sum of dL/dP where the probabilities differ by an ulp; see below.
ANOTHER_CPU = (5e-5, 2e-5, 1e-3, 3e-2)


@pytest.mark.parametrize("name", SETS)
def test_stable_sort_values(name, golden):
    """All sixteen numbers of each set at the synthetic set's tolerance: our sort is stable too.

    The input is a float32 softmax, and torch's exp rounds differently with AVX2, AVX-512 or neither
    (``ATEN_CPU_CAPABILITY``): 288 probabilities of the first 1000 rows are then 1, not 284. Where the ties of
    the input differ, windows of error nearly 0 change sign: little of the loss (1e-7 to 2e-5 was measured),
    more of the norm of its gradient (4e-4), most of the sum of it, which nearly cancels (1.5e-2).
    """
    z, y = logits_of(name, golden)
    probs = torch.softmax(torch.from_numpy(z).float(), 1)
    same = int((probs == 1).sum()) == ONES[name]
    for value in json.loads((golden / "loss_stable_sort.json").read_text())[name]:
        pairs = zip(measure(z, y, value), expected(value), ANOTHER_CPU, strict=True)
        for got, want, loose in pairs:
            assert got == pytest.approx(want, rel=1e-5 if same else loose), value


@pytest.mark.parametrize("name", SETS)
def test_golden_values(name, golden):
    """The stored values of one unstable sort: only the synthetic set has no ties (see golden/README)."""
    z, y = logits_of(name, golden)
    for value in json.loads((golden / f"loss_{name}.json").read_text())["values"]:
        got = measure(z, y, value)
        want = expected(value)
        if name.startswith("synthetic"):
            tolerance = (1e-5,) * 4
        elif value["weighting"] == "unweighted":
            tolerance = (1e-2, 2e-4, 2e-2)
        elif value["leave_one_class_out"] and "first1000" in name:
            tolerance = (2e-2, 3e-2, 1e-2)
        else:
            tolerance = (1e-3, 1e-5, 2e-3)
        for g, w, t in zip(got, want, tolerance, strict=False):
            assert g == pytest.approx(w, rel=t), value


def test_through_the_stored_centroids(golden):
    z, y = logits_of("synthetic_600x7", golden)
    checked = 0
    for value in json.loads((golden / "loss_synthetic_600x7.json").read_text())["values"]:
        if "kmeans_centroids_sorted" in value:
            stored = torch.tensor(value["kmeans_centroids_sorted"])
            got = measure(z, y, value, kmeans=lambda _, stored=stored: stored)
            assert got == pytest.approx(expected(value), rel=1e-5)
            checked += 1
    assert checked == 2


def test_kmeans_draws_as_the_library_it_stands_for():
    """Few, many and too many values; with ties some clusters are empty and take half of another one."""
    faiss = pytest.importorskip("faiss")
    for n, seed, digits in (
        (100, 100, 9),
        (3000, 3000, 9),
        (20_000, 20_000, 9),
        (300, 3, 2),
        (300, 9, 2),
    ):
        values = np.random.default_rng(seed).random(n) ** 6
        x = np.sort(np.round(values, digits).astype(np.float32))
        oracle = faiss.Kmeans(1, 15, niter=25, seed=1234, min_points_per_centroid=1)
        oracle.train(x[:, None])
        centroids = np.sort(oracle.centroids[:, 0])
        assert sampled_kmeans(x) == pytest.approx(centroids, rel=1e-5, abs=1e-6)
    assert sampled_kmeans([0.5, 0.5, 0.5], clusters=3).tolist() == [0.5] * 3  # nothing to split


def test_leave_one_out_with_an_absent_class():
    """Leaving out a class without rows changes nothing; leaving out the only class leaves no events."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(torch.randn(40, 3, generator=generator), 1)
    options = ({"window": 4, "leave_one_out": False}, {"window": 4}, {"epsilon": 1.0})
    plain, passes, tolerant = (PublishedLoss(weighting="uniform", **o) for o in options)
    y = torch.zeros(40, dtype=torch.int64)
    per_pass = plain(probs, y).item()
    assert passes(probs, y).item() == pytest.approx(per_pass * 2 / 3)
    assert tolerant(probs, y).item() == 0  # no error exceeds 1
    with pytest.raises(ValueError, match="even"):
        PublishedLoss(window=5)
