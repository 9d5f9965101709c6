"""One table over all methods: what must not change an answer, and does not.

A cell fits a method twice, on two forms of the same rows, and compares the probabilities of new rows. A new method
needs no line here; where an invariance cannot hold by a method's definition, ``EXCEPT`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import hcal
from hcal.methods import get_calibrator
from hcal.methods.folds import deal_folds, fold_sides
from helpers import fit_quietly, quick, synthetic

METHODS = hcal.list_calibrators()


class Task(NamedTuple):
    logits: np.ndarray
    y: np.ndarray
    new: np.ndarray


def _network() -> Task:
    """Continuous scores; in some rows two classes tie exactly, some rows stand twice."""
    logits, y = synthetic(60, 3, seed=11)
    logits[:6, 1] = logits[:6, 0]
    logits[6:9, 2] = logits[6:9].max(axis=1)
    logits = np.concatenate([logits, logits[20:24]])
    y = np.concatenate([y, y[20:24]])
    new = synthetic(24, 3, seed=12)[0]
    new[:4, 2] = new[:4, 1]
    return Task(logits, y, new)


def _votes() -> Task:
    """Scores of a small forest: few values, each with several labels, ties everywhere."""
    rng = np.random.default_rng(3)
    share = rng.dirichlet([0.8, 0.8, 0.8], size=84)
    votes = np.array([rng.multinomial(8, s) for s in share]) + 0.25
    p = votes / votes.sum(axis=1, keepdims=True)
    y = np.array([rng.choice(3, p=s) for s in share])
    scores = np.log(p)
    return Task(scores[:60], y[:60], scores[60:])


TASKS = {"network": _network(), "votes": _votes()}


def fit(name: str, logits: Any, y: Any, weight: Any = None) -> Any:
    return fit_quietly(quick(name), logits, y, sample_weight=weight)


@cache
def plain(name: str, task: str) -> tuple[Any, np.ndarray]:
    cal = fit(name, TASKS[task].logits, TASKS[task].y)
    return cal, np.asarray(cal.predict_proba(TASKS[task].new))


# -- the rows of the table: (method, task, plain fit) -> probabilities to compare with the plain ones


def rows_permuted(name: str, task: Task, _: Any) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(task.y))
    return fit(name, task.logits[order], task.y[order]).predict_proba(task.new)


def classes_permuted(name: str, task: Task, _: Any) -> np.ndarray:
    number = np.array([2, 0, 1])
    back = np.argsort(number)
    fitted = fit(name, task.logits[:, number], back[task.y])
    return fitted.predict_proba(task.new[:, number])[:, back]


def row_by_row(_: str, task: Task, cal: Any) -> np.ndarray:
    return np.concatenate([cal.predict_proba(row[None]) for row in task.new])


def constant_added(name: str, task: Task, _: Any) -> np.ndarray:
    rng = np.random.default_rng(1)
    constants = rng.normal(size=(len(task.y), 1)) * 5
    fitted = fit(name, task.logits + constants, task.y)
    constants = rng.normal(size=(len(task.new), 1)) * 5
    return fitted.predict_proba(task.new + constants)


def strides(name: str, task: Task, _: Any) -> np.ndarray:
    """Column-major, and every other row of a larger array."""
    wide = np.repeat(task.logits, 2, axis=0)[::2]
    return fit(name, np.asfortranarray(wide), task.y).predict_proba(np.asfortranarray(task.new))


def weights_of_one(name: str, task: Task, _: Any) -> np.ndarray:
    weighted = fit(name, task.logits, task.y, np.ones(len(task.y)))
    return weighted.predict_proba(task.new)


def float32(name: str, task: Task, _: Any) -> np.ndarray:
    fitted = fit(name, task.logits.astype(np.float32), task.y)
    narrow = fitted.predict_proba(task.new.astype(np.float32))
    return np.asarray(narrow, dtype=np.float64)


#: Sums in another order differ by rounding, and searches that follow them end within 1e-9 of each other.
TABLE: dict[str, tuple[Callable[[str, Task, Any], np.ndarray], float]] = {
    "rows permuted": (rows_permuted, 1e-9),
    "classes permuted": (classes_permuted, 1e-9),
    "row by row": (row_by_row, 1e-12),
    "a constant added to rows": (constant_added, 1e-9),
    "strides": (strides, 1e-9),
    "weights of one": (weights_of_one, 1e-9),
    # The rounding of the scores themselves, 6e-8, through a smooth map.
    "float32": (float32, 1e-4),
}

_STEPS = "a step function: a score that rounds across an edge gets the next bin's value"
_SEARCH = (
    "the search is not convex or stops early: scores that differ by 6e-8 may send it elsewhere"
)
_FOLDS = "rows nearer to each other than 6e-8 may change places, and the folds follow"
_TIES = "scores that tie in float32 differ in float64, and neighbours or ranks follow ties"
_TRAINED = (
    "networks trained in float32 batches: the paper's method promises the same seed, "
    "the same result"
)

#: (method, invariance) -> why it does not hold.
EXCEPT: dict[tuple[str, str], str] = (
    {
        (name, "float32"): _STEPS
        for name in ("hb", "bbq", "imax", "iso", "enir", "scabin", "venn_abers")
    }
    | {(name, "float32"): _SEARCH for name in ("dec", "diag", "gp")}
    | {(name, "float32"): _FOLDS for name in ("ms", "dir", "pool")}
    | {(name, "float32"): _TIES for name in ("lece", "ts_lece", "spline", "cir")}
    | {("h", what): _TRAINED for what in TABLE if what not in ("row by row", "strides")}
)


@pytest.mark.parametrize("name", METHODS)
def test_invariances(name: str) -> None:
    for task in TASKS:
        cal, expected = plain(name, task)
        for what, (change, tolerance) in TABLE.items():
            if (name, what) in EXCEPT or (what == "weights of one" and not cal.weighted):
                continue
            changed = change(name, TASKS[task], cal)
            np.testing.assert_allclose(
                changed, expected, rtol=0, atol=tolerance, err_msg=f"{task}: {what}"
            )


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_of_k_is_k_copies(name: str) -> None:
    for logits, y, new in TASKS.values():
        count = np.random.default_rng(4).integers(0, 4, len(y))
        if not get_calibrator(name).weighted:
            with pytest.raises(ValueError, match="does not support sample_weight"):
                fit(name, logits, y, count)
            return
        order = np.random.default_rng(5).permutation(int(count.sum()))
        repeated = np.repeat(logits, count, axis=0)
        copies = fit(name, repeated[order], np.repeat(y, count)[order])
        weighted = fit(name, logits, y, count)
        # Trained in float32; a search that is cut short; a scalar search that ends where rounding begins.
        tolerance = {"h": 1e-4, "gp": 1e-5, "ets": 1e-7, "softbin": 1e-7}.get(name, 1e-9)
        np.testing.assert_allclose(
            weighted.predict_proba(new), copies.predict_proba(new), rtol=0, atol=tolerance
        )


def test_weights_that_are_no_counts() -> None:
    """Millions are not written out as copies, fractions of a row are taken, and both are met with a sentence."""
    logits, y, new = TASKS["network"]
    for name in METHODS:
        if name in ("h", "pool") or not get_calibrator(name).weighted:
            continue
        huge = np.random.default_rng(0).uniform(1e6, 2e6, len(y))
        tiny = np.full(len(y), 1e-90)
        for weight in (huge, tiny):
            assert np.isfinite(fit(name, logits, y, weight).predict_proba(new)).all()
    probs = hcal.softmax(logits)
    huge = np.full(len(y), 1e11)
    one_tiny = np.where(np.arange(len(y)) == 3, 1e-200, 1.0)
    for weight in (huge, one_tiny):  # issue 28, item 9
        cal = fit_quietly(
            hcal.make_calibrator("dec", input="probs"), probs, y, sample_weight=weight
        )
        assert np.isfinite(cal.predict_proba(probs)).all()
    for total in (1 / len(y), 50.0):
        with pytest.warns(hcal.CalibrationWarning, match="a weight counts rows"):
            hcal.make_calibrator("svs").fit(logits, y, sample_weight=np.full(len(y), total))


def test_folds_are_fair_and_do_not_see_the_order_of_rows_or_labels() -> None:
    two_classes = Task(*synthetic(203, 2), np.empty(0))
    for logits, y, _ in (*TASKS.values(), two_classes):
        fold = deal_folds(logits, 5)
        assert np.ptp(np.bincount(fold)) <= 1
        p = hcal.softmax(logits)
        p = p[:, p.sum(axis=0).argmax()]
        for cut in np.quantile(p, [0.3, 0.5, 0.7]):  # every fold spans the scores as all rows do
            below = [np.count_nonzero(p[fold == f] < cut - 1e-9) for f in range(5)]
            assert np.ptp(below) <= 1
        order = np.random.default_rng(0).permutation(len(y))
        again = np.empty_like(fold)
        again[order] = deal_folds(logits[order], 5)
        same = np.array([[(a == b).all() for b in logits] for a in logits])
        for i in range(len(y)):  # copies of a row may change places among themselves
            assert sorted(fold[same[i]]) == sorted(again[same[i]])
    assert deal_folds(logits[:3], 5).max() == 2


def test_groups_stay_in_one_fold() -> None:
    """Copies of a row leak from fold to fold unless their group is named."""
    z, y = synthetic(60, 3)
    groups = np.repeat(np.arange(60), 3)
    fold = deal_folds(np.repeat(z, 3, axis=0), 5, groups)
    assert len(np.unique(fold)) == 5
    assert all(len(set(fold[groups == g])) == 1 for g in range(60))
    fit_rows, held_out = fold_sides(fold)[0]
    assert set(fit_rows) | set(held_out) == set(range(180))
    assert not set(groups[fit_rows]) & set(groups[held_out])
    for name in ("ms", "dir", "lece", "diag", "dec"):
        params = {"hidden": (2,), "max_iterations": 30} if name == "diag" else {}
        copies = np.repeat(z, 3, axis=0)
        copied_y = np.repeat(y, 3)
        alone = fit_quietly(hcal.make_calibrator(name, **params), copies, copied_y)
        grouped = hcal.make_calibrator(name, **params)
        fit_quietly(grouped, copies, copied_y, groups=groups)
        assert np.isfinite(grouped.predict_proba(z)).all()
        if name == "lece":  # with its own copies among the neighbours a row seems to know its label
            assert grouped.fit_.details["held_out_nll"] > alone.fit_.details["held_out_nll"]
