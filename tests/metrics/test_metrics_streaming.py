"""Streaming: any split of the data gives the answer of one pass, and the stated bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metrics_oracles import SETS, draw

from hcal import metrics
from hcal.metrics.streaming import NAMES, StreamingMetrics
from hcal.numerics import softmax
from helpers import load_task


def check(p: np.ndarray, y: np.ndarray, cuts: list[int], w: np.ndarray | None = None) -> dict[str, float]:
    bounds = [0, *sorted(cuts), len(y)]
    total = StreamingMetrics(p.shape[1])
    for a, b in zip(bounds[:-1], bounds[1:], strict=True):  # noqa: RUF007
        if b > a:
            part = StreamingMetrics(p.shape[1])
            total.merge(part.update(p[a:b], y[a:b], None if w is None else w[a:b]))
    found, allowed = total.compute(), total.bounds()
    assert total.n == len(y)
    for name in NAMES:
        if w is not None and name == "ece_em":
            continue
        exact = getattr(metrics, name)(p, y, sample_weight=w)
        assert abs(found[name] - exact) <= allowed[name] + 1e-9 * max(1, abs(exact)), name
    return allowed


@pytest.mark.parametrize("data", SETS)
def test_parts_give_the_answer_of_the_whole(data: str) -> None:
    p, y = SETS[data]
    check(p, y, [len(y) // 3, len(y) // 2])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 80),
    k=st.integers(2, 6),
    sharp=st.sampled_from([0.1, 2.0, 30.0]),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
def test_any_split_of_any_data(seed: int, n: int, k: int, sharp: float, cuts: list[int]) -> None:
    p, y = draw(n, k, seed, sharp=sharp)
    check(p, y, [min(c, n) for c in cuts])


def test_weights() -> None:
    p, y = draw(90, 4, 3)
    check(p, y, [30], np.random.default_rng(0).random(90))


@pytest.mark.data
@pytest.mark.parametrize("task", ["cifar10_resnet110", "cifar100_resnet50", "agnews_gpt2"])
def test_bounds_are_tight_on_real_outputs(task: str) -> None:
    _, _, logits, y = load_task(task)
    allowed = check(softmax(logits.astype(np.float64)), y, [1000, 2500])
    assert allowed["ks"] < 2e-3
    assert allowed["ece_em"] < 2e-2


def test_only_what_the_metrics_need_is_added_up() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet([1, 1, 1], 50), rng.integers(0, 3, 50)
    every = StreamingMetrics(3).update(p, y)
    assert set(StreamingMetrics(3, ["nll"]).state["sums"]) == {"n", "scores"}
    for name, value in every.compute().items():
        alone = StreamingMetrics(3, [name]).update(p, y)
        assert alone.compute() == {name: value}
        assert alone.bounds() == {name: every.bounds()[name]}
        assert alone.mean_confidence == every.mean_confidence


def test_memory_does_not_grow_and_errors_are_named() -> None:
    s = StreamingMetrics(3, ["nll", "ks"])
    sizes = set()
    for seed in range(3):
        s.update(*draw(200, 3, seed))
        sizes.add(sum(x.nbytes for x in s._sums.values()))
    assert len(sizes) == 1
    assert set(s.compute()) == {"nll", "ks"}
    with pytest.raises(ValueError, match="'mmce' cannot be streamed; those that can are ece_ew"):
        StreamingMetrics(3, ["mmce"])
    with pytest.raises(ValueError, match="has 4 classes, these metrics were made for 3"):
        s.update(*draw(5, 4, 0))
    with pytest.raises(ValueError, match="same classes and metrics"):
        s.merge(StreamingMetrics(3))
    with pytest.raises(ValueError, match="no part was added"):
        StreamingMetrics(3).compute()
    with pytest.raises(ValueError, match="no part was added"):
        StreamingMetrics(3).bounds()
    with pytest.raises(ValueError, match="n_classes must be"):
        StreamingMetrics(1)
