"""Folds partition the rows, follow the published draws, and keep shares or groups."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.io.folds import kfold


def test_plain_folds_match_scikit_learn() -> None:
    from sklearn.model_selection import KFold

    theirs = KFold(5, shuffle=True, random_state=15).split(np.zeros(103))
    for (fit, held), (fit_ref, held_ref) in zip(kfold(103, 5, random_state=15), theirs, strict=True):
        np.testing.assert_array_equal(fit, fit_ref)
        np.testing.assert_array_equal(held, held_ref)


@pytest.mark.parametrize("kind", ["plain", "stratify", "groups"])
def test_folds_partition_the_rows(kind: str) -> None:
    column = np.random.default_rng(0).integers(0, 7, 101)
    extra = {} if kind == "plain" else {kind: column}
    folds = kfold(101, 4, random_state=3, **extra)
    assert sorted(np.concatenate([held for _, held in folds]).tolist()) == list(range(101))
    for fit, held in folds:
        assert not np.intersect1d(fit, held).size
        assert len(fit) + len(held) == 101


def test_stratified_folds_keep_shares_and_size() -> None:
    y = np.random.default_rng(1).choice(5, 203, p=[0.5, 0.3, 0.1, 0.07, 0.03])
    held = [h for _, h in kfold(203, 5, stratify=y)]
    counts = np.array([np.bincount(y[h], minlength=5) for h in held])
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp([len(h) for h in held]) <= 1


def test_groups_stay_whole_and_folds_even() -> None:
    groups = np.repeat(np.arange(40), np.random.default_rng(2).integers(1, 6, 40)).astype(str)
    folds = kfold(len(groups), 4, groups=groups)
    for fit, held in folds:
        assert not set(groups[fit]) & set(groups[held])
    assert np.ptp([len(h) for _, h in folds]) <= 5


@pytest.mark.parametrize("kind", ["plain", "stratify", "groups"])
def test_seed_decides(kind: str) -> None:
    column = np.random.default_rng(0).integers(0, 20, 80)
    extra = {} if kind == "plain" else {kind: column}
    again, same, other = (kfold(80, 4, random_state=s, **extra) for s in (1, 1, 2))
    assert all((a[1] == b[1]).all() for a, b in zip(again, same, strict=True))
    assert any(a[1].tolist() != b[1].tolist() for a, b in zip(again, other, strict=True))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_folds": 1}, "n_folds must lie in 2..6"),
        ({"n_folds": 7}, "n_folds must lie in 2..6"),
        ({"n_folds": 3, "groups": [0, 0, 0, 1, 1, 1]}, "only 2 groups"),
        ({"n_folds": 2, "groups": [0, 1]}, "groups must have shape"),
        ({"n_folds": 2, "groups": [0] * 6, "stratify": [0] * 6}, "not both"),
    ],
)
def test_bad_folds_say_why(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kfold(6, **kwargs)
