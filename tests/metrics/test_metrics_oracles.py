"""Every metric against a literal implementation of its definition, and against independent libraries."""

from __future__ import annotations

import numpy as np
import oracles
import pytest

from hcal import metrics
from helpers import wait_for_release

EXACT = [n for n in metrics.list_metrics() if n != "tcwece_k" and hasattr(oracles, n)]


def test_every_metric_has_its_definition_written_out() -> None:
    missing = (
        set(metrics.list_metrics()) - set(EXACT) - {"tcwece_k"}
    )  # k-means depends on its start
    wait_for_release(missing, "a literal definition in tests/metrics/oracles.py")


def draw(
    n: int, k: int, seed: int, *, dtype=np.float64, sharp: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * sharp
    p = np.exp(z - z.max(1, keepdims=True))
    y = rng.integers(0, k, n)
    likely = rng.random(n) < 0.5
    y[likely] = p.argmax(1)[likely]
    return (p / p.sum(1, keepdims=True)).astype(dtype), y


def coarse(n: int, k: int, seed: int, parts: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Multiples of one part: many ties, exact zeros and ones, values on bin edges (of 20 parts, beside others)."""
    rng = np.random.default_rng(seed)
    shares = np.full(k, 1 / k) if seed % 2 else rng.dirichlet(np.full(k, 0.2))
    p = rng.multinomial(parts, shares, size=n) / parts
    is_top = rng.random(n) < 0.6
    y = np.where(is_top, p.argmax(1), rng.integers(0, k, n))
    return p, y


def sparse(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities below 3 % are 0; some others are small."""
    p, y = draw(n, k, seed)
    p[p < 0.03] = 0.0
    return p / p.sum(1, keepdims=True), y


SETS = {
    "five classes": draw(80, 5, 0),
    "two classes": draw(60, 2, 1),
    "twenty classes": draw(40, 20, 2),
    "float32": draw(70, 4, 3, dtype=np.float32),
    "ties and edges": coarse(90, 4, 4),
    "ties, flat": coarse(60, 3, 5, parts=20),
    "zeros and small values": sparse(60, 5, 8),
    "fewer rows than bins": draw(7, 3, 6),
    "class absent": (draw(50, 6, 7)[0], np.minimum(draw(50, 6, 7)[1], 3)),
}


@pytest.mark.parametrize("data", SETS)
def test_metrics_are_their_definitions(data: str) -> None:
    p, y = SETS[data]
    for name in EXACT:
        kwargs = {"window": 15} if name.startswith("hce") else {}
        if name == "nll" and (p[np.arange(len(y)), y] == 0).any():
            continue  # the literal logarithm of 0 does not exist
        if name == "smece" and data not in ("five classes", "two classes", "ties and edges"):
            continue  # its oracle takes a second
        expected = getattr(oracles, name)(p.astype(np.float64), y, **kwargs)
        # float32 rows are renormalised in float32: 6e-8 on each entry. kde_ece convolves by FFT: 1e-9 absolute.
        rel, tiny = (
            (1e-5, 1e-7) if data == "float32" else (1e-9, 1e-9 if name == "kde_ece" else 1e-12)
        )
        if name == "smece":  # a grid of 4096 cells, and a bisection of 22 steps in the oracle
            rel, tiny = 1e-3, 1e-5
        value = getattr(metrics, name)(p, y, **kwargs)
        assert value == pytest.approx(expected, rel=rel, abs=tiny), name
    for events in ("class-wise", "pooled", "top-label"):
        expected = oracles.hce(p.astype(np.float64), y, window=9, events=events)
        value = metrics.hce(p, y, window=9, events=events)
        assert value == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_kmeans_error_lies_in_the_spread_of_another_kmeans() -> None:
    p, y = draw(400, 3, 11)
    spread = [oracles.tcwece_k(p, y, seed) for seed in range(12)]
    ours = [metrics.tcwece_k(p, y, random_state=seed) for seed in range(12)]
    assert metrics.tcwece_k(p, y) == metrics.tcwece_k(p, y)
    assert min(spread) - 0.004 < np.mean(ours) < max(spread) + 0.004
    assert np.mean(ours) == pytest.approx(
        np.mean(spread), rel=0.05
    )  # both are random choices of bins


def test_scores_agree_with_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, log_loss, mean_squared_error

    p, y = draw(300, 6, 12)
    w = np.random.default_rng(0).random(300)
    labels = range(6)
    expected = log_loss(y, p, sample_weight=w, labels=labels)
    assert metrics.nll(p, y, sample_weight=w) == pytest.approx(expected)
    theirs = 6 * mean_squared_error(np.eye(6)[y], p, sample_weight=w)
    assert metrics.brier(p, y, sample_weight=w) == pytest.approx(theirs)
    assert metrics.accuracy(p, y) == accuracy_score(y, p.argmax(1))


def test_mmce_of_any_bandwidth() -> None:
    p, y = draw(60, 3, 16)
    conf, hit = (np.array(v) for v in oracles.top(p, y))
    a = hit - conf
    for bandwidth in (1e-4, 0.01, 0.4, 10.0):
        kernel = np.exp(-np.abs(conf[:, None] - conf) / bandwidth)
        expected = np.sqrt(a @ kernel @ a) / len(y)
        assert metrics.mmce(p, y, bandwidth=bandwidth) == pytest.approx(expected, rel=1e-10)


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from hcal.metrics import canonical, sample, windowed

    p, y = draw(60, 5, 17)
    at_once = {n: getattr(metrics, n)(p, y) for n in metrics.list_metrics()}
    for module in (canonical, sample, windowed):
        monkeypatch.setattr(module, "BLOCK", 128)
    monkeypatch.setattr(canonical, "_SPAN", 7)
    for name, value in at_once.items():
        in_one_block = pytest.approx(value, rel=1e-10, abs=1e-14)
        assert getattr(metrics, name)(p, y) == in_one_block, name
