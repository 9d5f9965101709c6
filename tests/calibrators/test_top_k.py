"""Top-k scores: what the dense rows give where the tail is even, in memory for k and not for K."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal import TopK
from hcal.calibrators.top_k import methods_of_top_k
from hcal.io.language_models import top_tokens
from hcal.metrics import METRICS
from hcal.metrics.sample import Sample
from helpers import synthetic


@pytest.fixture(scope="module")
def task() -> tuple[TopK, np.ndarray, np.ndarray]:
    """Return the top 4 of 20 classes, the labels (some outside), and the dense rows with an even tail."""
    x, y = synthetic(600, 20)
    top = TopK.from_dense(hcal.softmax(0.6 * x), 4)
    assert 0.05 < (top.columns_of(y) == 4).mean() < 0.6
    return top, y, np.log(top.dense())


@pytest.mark.parametrize("name", methods_of_top_k())
@pytest.mark.parametrize("weighted", [False, True])
def test_an_even_tail_is_the_dense_fit(
    name: str, weighted: bool, task: tuple[TopK, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    top, y, dense = task
    weight = np.arange(len(y)) % 3 if weighted else None
    whole, found = (hcal.make_calibrator(name).fit(scores, y, weight) for scores in (dense, top))
    probs = found.predict_proba(top)
    # 1e-9: the dense fit of `ets` sorts its rows, and Brent ends elsewhere by its own tolerance.
    np.testing.assert_allclose(probs.dense(), whole.predict_proba(dense), atol=1e-9)
    assert (found.predict(top) == whole.predict(dense)).all()
    assert found.scores_["after"] == pytest.approx(whole.scores_["after"], abs=1e-9)
    assert found.score(top, y) == pytest.approx(whole.score(dense, y), abs=1e-9)
    few, many = (hcal.evaluate(p, y, sample_weight=weight) for p in (probs, probs.dense()))
    every = many.to_dict()
    assert {"nll", "brier", "accuracy", "ece_ew", "ks"} <= set(few.to_dict())
    for metric, value in few.to_dict().items():
        assert value == pytest.approx(every[metric], abs=1e-9), metric
    hcal.save(found, tmp_path / "model.hcal")
    again = hcal.load(tmp_path / "model.hcal")
    assert (again.predict_proba(top).log_probs == probs.log_probs).all()
    np.testing.assert_allclose(again.predict_proba(dense), whole.predict_proba(dense), atol=1e-9)


def test_a_vocabulary_is_never_built() -> None:
    rng, n, n_classes, k = np.random.default_rng(0), 2000, 100_000, 20
    values = -np.sort(rng.exponential(2.0, (n, k)))
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True)) + 0.2
    indices = rng.integers(0, n_classes // k, (n, k)) + np.arange(k) * (n_classes // k)
    y = np.where(rng.random(n) < 0.7, indices[:, 0], rng.integers(0, n_classes, n))
    tracemalloc.start()
    top = TopK(values, indices, n_classes=n_classes, kind="log_probs")
    cal = hcal.make_calibrator("ts").fit(top, y)
    result = hcal.evaluate(cal.predict_proba(top), y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6 < n * n_classes * 8 / 30  # the dense rows would be 1.6 GB
    assert cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    assert cal.info_["top_k"]["labels_listed"] == pytest.approx(0.7, abs=0.05)
    assert "cwece_a" in str(result.notes)


def test_a_tail_that_is_one_event_is_a_row_of_k_and_one_classes(
    task: tuple[TopK, np.ndarray, np.ndarray],
) -> None:
    top, y, _ = task
    event = TopK(top.values, top.indices, top.tail, 20, tail_as="event")
    listed = np.column_stack([top.log_probs, top.log_tail])
    whole = hcal.make_calibrator("ts").fit(listed, top.columns_of(y))
    found = hcal.make_calibrator("ts").fit(event, y)
    probs = found.predict_proba(event)
    np.testing.assert_allclose(np.exp(probs.log_tail), whole.predict_proba(listed)[:, -1], atol=1e-12)
    assert hcal.metrics.ece_ew(probs, y) < hcal.metrics.ece_ew(event, y)
    with pytest.raises(ValueError, match="was fitted with tail_as='event', the scores say 'classes'"):
        found.predict_proba(top)
    with pytest.raises(ValueError, match="so the tail cannot be one event"):
        hcal.make_calibrator("ets").fit(event, y)


def test_rows_may_list_fewer_and_intervals_need_no_vocabulary() -> None:
    top = TopK([[0.6, 0.3], [0.9, np.nan]], [[3, 0], [1, -1]], n_classes=5)
    assert top.others.tolist() == [3, 4]
    np.testing.assert_allclose(top.dense()[1], [0.025, 0.9, 0.025, 0.025, 0.025])
    labels = Sample(top, [0, 0]).data.drawn(20_000, np.random.default_rng(0))
    rates = np.stack([np.bincount(labels[:, row], minlength=5) / 20_000 for row in (0, 1)])
    np.testing.assert_allclose(rates, top.dense(), atol=0.015)  # four deviations of 20,000 draws
    many = TopK(np.tile(top.log_probs, (40, 1)), np.tile(top.indices, (40, 1)), n_classes=5, kind="log_probs")
    assert hcal.evaluate(many, [3, 2] * 40, metrics=["nll", "ece_ew"], ci=0.9, n_resamples=20).to_dict()
    whole = TopK.from_dense([[0.2, 0.8]], 5)
    assert whole.others.tolist() == [0]
    assert hcal.metrics.nll(whole, [0]) == pytest.approx(-np.log(0.2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.5, 0.4]], [[0, 0]]), "a class is listed twice; row 0"),
        (([[0.5, 0.4]], [[0, 9]]), r"indices must lie in 0..7; row 0"),
        (([[0.9, 0.4]], [[0, 1]]), "must sum to 1 .*row 0: 1.3"),
        (([[0.5, 0.1]], [[0, 1]], [0.1]), "must sum to 1 .*row 0: 0.7"),
        (([[0.01]], [[0]]), "these are not its top classes"),
        (([[np.nan]], [[0]]), "values must be finite; row 0"),
        (([[0.5]], [[-1]]), "no class is listed; row 0"),
        (([[0.5]], [[0.0]]), "indices must be integers"),
        (([0.5], [0]), r"must have one shape \(N, k\)"),
        (([[2.0]], [[0]], None, 8, "logits"), "logits do not say what is left"),
    ],
)
def test_faults_are_named(arguments: tuple[Any, ...], words: str) -> None:
    given = dict(zip(("values", "indices", "tail", "n_classes", "kind"), arguments, strict=False))
    with pytest.raises(ValueError, match=words):
        TopK(**{"n_classes": 8, **given})


def test_methods_and_metrics_that_need_all_classes_say_so(task: tuple[TopK, np.ndarray, np.ndarray]) -> None:
    top, y, dense = task
    for name in ("h", "vs"):
        with pytest.raises(
            ValueError, match="needs the scores of all classes; methods that take the top k are ets"
        ):
            hcal.make_calibrator(name).fit(top, y)
    with pytest.raises(ValueError, match="looks at every class"):
        hcal.evaluate(top, y, metrics=["cwece_a"])
    cal = hcal.make_calibrator("ts").fit(dense, y)
    with pytest.raises(ValueError, match="moves single classes"):
        cal.with_prior(np.full(20, 1 / 20)).predict_proba(top)
    with pytest.raises(ValueError, match="the scores are of 9 classes"):
        cal.predict_proba(TopK([[0.9]], [[0]], n_classes=9))
    logits = TopK([[2.0, 1.0]], [[0, 1]], [1.0], 3, "logits")
    np.testing.assert_allclose(logits.dense(), hcal.softmax(np.array([[2.0, 1.0, 1.0]])))
    with pytest.raises(ValueError, match="response 0: the token 'Z' is not in the vocabulary"):
        top_tokens([[{"Z": -0.1}]], {"A": 0, "B": 1})


def test_where_an_array_of_all_classes_is_wanted_the_error_says_so() -> None:
    top = TopK([[0.7, 0.2], [0.5, 0.3]], [[4, 1], [0, 2]], n_classes=5)
    for wants_all in (hcal.Monitor().update, hcal.certify):
        with pytest.raises(ValueError, match=r"the top k of K classes|top-k scores do not hold"):
            wants_all(top, [0, 1])
    every = [m for m in METRICS.values() if m.level in ("class-wise", "canonical")]
    for metric in every:
        with pytest.raises(ValueError, match="top-k scores do not hold them"):
            metric.function(top, [0, 1])
    assert [row.indices.tolist() for row in top] == [[[4, 1]], [[0, 2]]]
