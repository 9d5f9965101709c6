"""The sample of rows: their numbers alone decide what is in it, and its weights restore the classes."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.io.row_sample import RowSample
from hcal.partial import Partial, merged

N, K, ROWS = 20_000, 4, 2000


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Scores that hold their row's number, and labels of which class 3 is rare."""
    y = np.random.default_rng(0).choice(K, N, p=[0.5, 0.3, 0.197, 0.003])
    return np.arange(N * 2.0).reshape(N, 2), y


def drawn(rows: tuple[np.ndarray, np.ndarray], cuts: list[int], *, expect: bool = False, **settings: int):
    x, y = rows
    parts = []
    for a, b in zip([0, *cuts], [*cuts, N], strict=True):
        part = RowSample(K, ROWS, **settings)
        if expect:
            part.expect(np.bincount(y, minlength=K))
        parts.append(part.update(x[a:b], y[a:b], np.ones(b - a), a))
    return merged(parts[::-1], lambda: RowSample(K, ROWS, **settings)).result()


def test_cuts_order_and_foreknowledge_change_nothing(rows: tuple[np.ndarray, np.ndarray]) -> None:
    whole = drawn(rows, [])
    for other in (drawn(rows, [7, 5000, 5001]), drawn(rows, [300 * i for i in range(1, 60)], expect=True)):
        assert (whole.scores == other.scores).all()
        assert (whole.weight == other.weight).all()
    assert not np.array_equal(drawn(rows, [], random_state=1).scores, whole.scores)


def test_it_is_a_uniform_sample_with_enough_of_every_class(rows: tuple[np.ndarray, np.ndarray]) -> None:
    sample, y = drawn(rows, [4000]), rows[1]
    assert sample.seen == N
    assert not sample.whole
    assert sample.plain.sum() == ROWS
    rare = int((y == 3).sum())
    assert (sample.y == 3).sum() == rare < ROWS // (4 * K)  # all of a class that is too rare for its quota
    # The mean of a uniform sample of row numbers is the middle, with a deviation of N/√(12·ROWS).
    number = sample.scores[sample.plain, 0] / 2
    assert abs(number.mean() - N / 2) < 4 * N / np.sqrt(12 * ROWS)
    shares = np.bincount(sample.y, weights=sample.weight) / sample.weight.sum()
    np.testing.assert_allclose(shares, np.bincount(y) / N, rtol=1e-12)
    assert sample.weight.mean() == pytest.approx(1.0)


def test_one_accumulator_that_sees_many_blocks_keeps_the_protocol(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = rows
    sample = RowSample(K, ROWS)
    for a in range(0, N, 700):
        sample.update(x[a : a + 700], y[a : a + 700], np.ones(len(y[a : a + 700])), a)
        sample = RowSample.from_state(sample.state) if a == 7000 else sample
    assert isinstance(sample, Partial)
    assert (sample.result().scores == drawn(rows, []).scores).all()
    with pytest.raises(ValueError, match="only samples of one size"):
        sample.merge(RowSample(K, 5))
