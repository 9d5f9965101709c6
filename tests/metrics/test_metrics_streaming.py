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


def check(
    p: np.ndarray, y: np.ndarray, cuts: list[int], w: np.ndarray | None = None
) -> dict[str, float]:
    bounds = [0, *sorted(cuts), len(y)]
    total = StreamingMetrics(p.shape[1])
    for a, b in zip(bounds[:-1], bounds[1:], strict=True):  # noqa: RUF007
        if b > a:
            part = StreamingMetrics(p.shape[1])
            weight = None if w is None else w[a:b]
            total.merge(part.update(p[a:b], y[a:b], weight))
    streamed = total.compute()
    allowed = total.bounds()
    assert total.n == len(y)
    for name in NAMES:
        if w is not None and name == "ece_em":
            continue
        exact = getattr(metrics, name)(p, y, sample_weight=w)
        rounding = 1e-9 * max(1, abs(exact))
        assert abs(streamed[name] - exact) <= allowed[name] + rounding, name
    return allowed


def test_parts_give_the_answer_of_the_whole() -> None:
    for p, y in SETS.values():
        check(p, y, [len(y) // 3, len(y) // 2])
    p, y = draw(90, 4, 3)
    check(p, y, [30], np.random.default_rng(0).random(90))


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


@pytest.mark.data
def test_bounds_are_tight_on_real_outputs() -> None:
    for task in ("cifar10_resnet110", "cifar100_resnet50"):
        _, _, logits, y = load_task(task)
        allowed = check(softmax(logits.astype(np.float64)), y, [1000, 2500])
        assert allowed["ks"] < 2e-3
        assert allowed["ece_em"] < 2e-2


def test_memory_is_what_the_metrics_need_and_does_not_grow() -> None:
    p, y = draw(50, 3, 0)
    all_metrics = StreamingMetrics(3).update(p, y)
    assert set(StreamingMetrics(3, ["nll"]).state["sums"]) == {"n", "scores"}
    for name, value in all_metrics.result().items():
        alone = StreamingMetrics(3, [name]).update(p, y)
        assert alone.result() == {name: value}
        assert alone.bounds() == {name: all_metrics.bounds()[name]}
        assert alone.mean_confidence == all_metrics.mean_confidence
    sizes = []
    for part in (StreamingMetrics(3), all_metrics):
        sizes.append({name: x.shape for name, x in part.state["sums"].items()})
    assert sizes[0] == sizes[1]
    for wrong, message in (
        (
            lambda: StreamingMetrics(3, ["mmce"]),
            "'mmce' cannot be streamed; those that can are ece_ew",
        ),
        (
            lambda: all_metrics.update(*draw(5, 4, 0)),
            "has 4 classes, these metrics were made for 3",
        ),
        (
            lambda: all_metrics.merge(StreamingMetrics(3, ["nll"])),
            "same classes, metrics, event and positive",
        ),
        (lambda: StreamingMetrics(3).result(), "no part was added"),
        (lambda: StreamingMetrics(3).bounds(), "no part was added"),
        (lambda: StreamingMetrics(1), "n_classes must be"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
