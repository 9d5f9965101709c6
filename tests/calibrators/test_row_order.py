"""Rows by content: one order for any order of them, copies as weights, folds without leaks."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.calibrators.row_order import ArrangedRows, are_discrete, arrange, content_order, deal, fold_parts
from helpers import synthetic

Z, Y = synthetic(150, 4, seed=2)
RNG = np.random.default_rng(5)
ORDER = RNG.permutation(len(Y))
COUNT = RNG.integers(1, 4, len(Y))


def assert_same(a: ArrangedRows, b: ArrangedRows, atol: float = 0.0) -> None:
    """Same rows at the same places, whatever constant they carry."""
    top = [r.logits - r.logits.max(axis=1, keepdims=True) for r in (a, b)]
    np.testing.assert_allclose(*top, rtol=0, atol=atol)
    np.testing.assert_array_equal(a.y, b.y)
    assert (a.weight is None) == (b.weight is None)
    if a.weight is not None and b.weight is not None:
        np.testing.assert_allclose(a.weight, b.weight, rtol=1e-14)


def forest(n: int = 600, k: int = 2, trees: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Votes of few trees: the same scores again and again, with either label."""
    rng = np.random.default_rng(1)
    votes = rng.multinomial(trees, np.full(k, 1 / k), size=n) + 0.5
    p = votes / votes.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.log(p), y


@pytest.mark.parametrize("scale", [1e-270, 1e-12, 1e-4, 1.0, 1e4, 1e100])
@pytest.mark.parametrize("merge", [False, True])
def test_any_order_is_one_order(scale: float, merge: bool) -> None:
    z = Z * scale
    assert_same(
        arrange(z, Y, None, merge=merge),
        arrange(z[ORDER], Y[ORDER], None, merge=merge),
    )


@pytest.mark.parametrize("rows", [(Z, Y), forest(), forest(300, 3)], ids=["network", "forest", "forest-3"])
def test_the_numbers_of_classes_do_not_matter(rows: tuple[np.ndarray, np.ndarray]) -> None:
    z, y = rows
    number = np.random.default_rng(0).permutation(z.shape[1])
    renumbered = np.argsort(number)[y]
    here, there = arrange(z, y, None, merge=True), arrange(z[:, number], renumbered, None, merge=True)
    np.testing.assert_allclose(here.logits[:, number], there.logits, atol=1e-12)
    np.testing.assert_array_equal(here.y, number[there.y])


def test_mirror_images_are_ordered_by_what_classes_hold() -> None:
    """Scores and labels of a and b swapped: only the rows of the class tell them apart."""
    z = np.array([[2.0, 0.0], [0.0, 2.0], [0.5, 0.0]])
    y = np.array([0, 1, 0])
    here, there = arrange(z, y, None, merge=True), arrange(z[:, ::-1], 1 - y, None, merge=True)
    np.testing.assert_array_equal(here.logits, there.logits[:, ::-1])


def test_a_constant_in_a_row_does_not_matter() -> None:
    shifted = Z + RNG.normal(size=(len(Y), 1)) * 100
    assert_same(arrange(Z, Y, None, merge=True), arrange(shifted, Y, None, merge=True), atol=1e-12)
    both = np.concatenate([Z, shifted]), np.concatenate([Y, Y])
    weight = arrange(*both, None, merge=True).weight
    assert weight is not None
    np.testing.assert_array_equal(weight, np.full(len(Y), 2.0))


def test_copies_are_weights() -> None:
    repeated = np.repeat(Z, COUNT, axis=0)[::-1], np.repeat(Y, COUNT)[::-1]
    weighted = arrange(Z, Y, COUNT.astype(float), merge=True)
    assert_same(weighted, arrange(*repeated, None, merge=True))
    assert len(arrange(*repeated, None, merge=False).y) == COUNT.sum()


def test_a_weight_of_zero_is_absence() -> None:
    weight = np.where(np.arange(len(Y)) % 3 == 0, 0.0, 1.0)
    kept = weight > 0
    assert_same(
        arrange(Z, Y, weight, merge=True),
        ArrangedRows(*arrange(Z[kept], Y[kept], None, merge=True)[:2], np.ones(kept.sum())),
    )


def test_near_rows_are_not_copies() -> None:
    z = np.concatenate([Z, Z + RNG.normal(size=Z.shape) * 1e-6])
    assert not content_order(z, np.concatenate([Y, Y]))[1].any()
    assert not content_order(Z * 1e-12, Y)[1].any()  # a tiny unit makes no copies either


def test_equal_scores_with_other_labels_are_not_copies() -> None:
    order, copy = content_order(np.zeros((4, 3)), np.array([0, 1, 2, 1]))
    assert order.size == 4
    assert copy.sum() == 1


def test_extreme_rows() -> None:
    z = np.array([[1e150, -1e150], [1e-320, 0.0], [0.0, 0.0], [-1e150, -1e150], [700.0, -700.0]])
    y = np.array([1, 0, 0, 1, 0])
    for merge in (False, True):
        rows = arrange(z, y, None, merge=merge)
        assert np.isfinite(rows.logits).all()
        assert_same(rows, arrange(z[::-1], y[::-1], None, merge=merge), atol=1e-270)


def test_one_row() -> None:
    rows = arrange(np.array([[0.0, 1.0]]), np.array([1]), None, merge=True)
    assert (rows.logits.tolist(), rows.y.tolist(), rows.weight) == ([[0.0, 1.0]], [1], None)
    [(fit, held)] = fold_parts(rows.logits, rows.y, None, 5)
    assert fit is held


def test_first_rows_are_no_biased_sample() -> None:
    """Sorted rows would put the surest wrong answers first."""
    z, y = synthetic(4000, 3, seed=3)
    rows = arrange(z, y, None, merge=True)
    right = rows.logits.argmax(axis=1) == rows.y
    assert abs(right[:1000].mean() - right.mean()) < 0.05  # three standard errors


# -- discrete scores -------------------------------------------------------------------------------


def test_votes_are_discrete_and_repeated_rows_are_not() -> None:
    z, y = forest()
    rows = arrange(z, y, None, merge=True)
    assert rows.weight is not None
    assert are_discrete(rows.logits, rows.y, rows.weight)
    copied = arrange(np.repeat(Z, 5, axis=0), np.repeat(Y, 5), None, merge=True)
    assert copied.weight is not None
    assert not are_discrete(copied.logits, copied.y, copied.weight)
    assert not are_discrete(Z, Y, np.full(len(Y), 2500.0))


# -- folds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("folds", [2, 5, 10])
def test_every_row_is_held_out_once_in_all(folds: int, discrete: bool) -> None:
    weight = COUNT.astype(float)
    held = deal(Y, weight, folds, discrete=discrete)
    assert held.shape == (folds, len(Y))
    assert (held >= 0).all()
    np.testing.assert_allclose(held.sum(axis=0), weight, rtol=1e-14)
    if not discrete:
        assert (np.count_nonzero(held, axis=0) == 1).all()
    for k in range(4):  # stratified: a fold differs from the next by one row (or count) of a class at most
        unit = (held[:, k == Y] if discrete else held[:, k == Y] > 0).sum(axis=1)
        assert unit.max() - unit.min() <= 1


def test_a_fractional_weight_is_dealt_whole() -> None:
    held = deal(np.zeros(4, dtype=int), np.array([0.3, 0.2, 2.5, 0.1]), 2, discrete=True)
    np.testing.assert_allclose(held.sum(axis=0), [0.3, 0.2, 2.5, 0.1])
    np.testing.assert_allclose(held[:, 2], [1.25, 1.25])


def test_classes_are_dealt_in_the_order_of_their_first_rows() -> None:
    swap = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(deal(Y, np.ones(len(Y)), 5), deal(swap[Y], np.ones(len(Y)), 5))


def test_copies_stay_on_one_side() -> None:
    z, y = np.repeat(Z, COUNT, axis=0), np.repeat(Y, COUNT)
    origin = np.repeat(np.arange(len(Y)), COUNT)
    for fit, held in fold_parts(z, y, None, 5):
        assert not set(origin[fit.rows]) & set(origin[held.rows])
        assert len(fit.rows) + len(held.rows) == len(y)


def test_votes_are_dealt_one_by_one() -> None:
    z, y = forest()
    rows = arrange(z, y, None, merge=True)
    assert rows.weight is not None
    for fit, held in fold_parts(rows.logits, rows.y, rows.weight, 5):
        total = fit.weight.sum() + held.weight.sum()
        assert total == pytest.approx(600)
        assert held.weight.sum() == pytest.approx(120, abs=2)  # dealt as one, a big group would fill a fold
    written_out = fold_parts(z, y, None, 5)
    assert [len(held.rows) for _, held in written_out] == [120] * 5


def test_no_fold_is_empty() -> None:
    for n in range(1, 8):
        folds = fold_parts(Z[:n], Y[:n], None, 5)
        assert len(folds) == max(1, min(5, n))
        assert all(len(fit.rows) and len(held.rows) for fit, held in folds)


def test_random_state_deals_otherwise() -> None:
    first, again, other = (fold_parts(Z, Y, None, 5, random_state=s)[0][1].rows.tolist() for s in (0, 0, 1))
    assert first == again
    assert first != other


def test_weights_cost_nothing() -> None:
    """Never written out: a million copies of each row are as many rows as before."""
    rows = arrange(Z, Y, np.full(len(Y), 1e6), merge=True)
    assert rows.logits.shape == Z.shape
    assert sum(len(held.rows) for _, held in fold_parts(rows.logits, rows.y, rows.weight, 5)) == len(Y)
