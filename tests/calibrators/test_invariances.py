"""One table over all methods: what must not change an answer, and does not.

A cell fits a method twice, on two forms of the same rows, and compares the probabilities of new rows. A new
method needs no line here; where an invariance cannot hold by a method's definition, ``EXCEPT`` says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_contract import METHODS, fit_quietly, make

import hcal
from helpers import synthetic


class Task(NamedTuple):
    logits: np.ndarray
    y: np.ndarray
    new: np.ndarray


def _network() -> Task:
    """Continuous scores; in some rows two classes tie exactly, some rows stand twice."""
    logits, y = synthetic(60, 3, seed=11)
    logits[:6, 1] = logits[:6, 0]
    logits[6:9, 2] = logits[6:9].max(axis=1)
    logits, y = np.concatenate([logits, logits[20:24]]), np.concatenate([y, y[20:24]])
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
    return Task(np.log(p[:60]), y[:60], np.log(p[60:]))


TASKS = {"network": _network(), "votes": _votes()}


def fit(name: str, logits: Any, y: Any, weight: Any = None) -> Any:
    return fit_quietly(make(name), logits, y, sample_weight=weight)


@cache
def plain(name: str, task: str) -> Any:
    return fit(name, TASKS[task].logits, TASKS[task].y)


@cache
def answer(name: str, task: str) -> np.ndarray:
    return np.asarray(plain(name, task).predict_proba(TASKS[task].new))


# -- the rows of the table: (method, task) -> probabilities to compare with the plain ones -----------


def rows_permuted(name: str, task: Task, _: Any) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(task.y))
    return fit(name, task.logits[order], task.y[order]).predict_proba(task.new)


def rows_sorted_by_loss(name: str, task: Task, _: Any) -> np.ndarray:
    own = hcal.softmax(task.logits)[np.arange(len(task.y)), task.y]
    order = np.argsort(own, kind="stable")
    return fit(name, task.logits[order], task.y[order]).predict_proba(task.new)


def classes_permuted(name: str, task: Task, _: Any) -> np.ndarray:
    number = np.array([2, 0, 1])
    back = np.argsort(number)
    return fit(name, task.logits[:, number], back[task.y]).predict_proba(task.new[:, number])[:, back]


def halves_apart(_: str, task: Task, cal: Any) -> np.ndarray:
    half = len(task.new) // 2
    return np.concatenate([cal.predict_proba(task.new[:half]), cal.predict_proba(task.new[half:])])


def row_by_row(_: str, task: Task, cal: Any) -> np.ndarray:
    return np.concatenate([cal.predict_proba(row[None]) for row in task.new])


def constant_added(name: str, task: Task, _: Any) -> np.ndarray:
    rng = np.random.default_rng(1)
    fitted = fit(name, task.logits + rng.normal(size=(len(task.y), 1)) * 5, task.y)
    return fitted.predict_proba(task.new + rng.normal(size=(len(task.new), 1)) * 5)


def two_runs(name: str, task: Task, _: Any) -> np.ndarray:
    return fit(name, task.logits, task.y).predict_proba(task.new)


def two_threads(name: str, task: Task, _: Any) -> np.ndarray:
    def run(_: int) -> np.ndarray:
        return np.asarray(make(name).fit(task.logits, task.y).predict_proba(task.new))

    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:  # filters belong to the process
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        first, second = pool.map(run, range(2))
    np.testing.assert_array_equal(first, second)
    return first


def strides(name: str, task: Task, _: Any) -> np.ndarray:
    """Column-major, and every other row of a larger array."""
    wide = np.repeat(task.logits, 2, axis=0)[::2]
    return fit(name, np.asfortranarray(wide), task.y).predict_proba(np.asfortranarray(task.new))


def weights_of_one(name: str, task: Task, _: Any) -> np.ndarray:
    return fit(name, task.logits, task.y, np.ones(len(task.y))).predict_proba(task.new)


def float32(name: str, task: Task, _: Any) -> np.ndarray:
    narrow = fit(name, task.logits.astype(np.float32), task.y).predict_proba(task.new.astype(np.float32))
    return np.asarray(narrow, dtype=np.float64)


class Invariance(NamedTuple):
    change: Callable[[str, Task, Any], np.ndarray]
    tolerance: float


#: Sums in another order differ by rounding, and searches that follow them end within 1e-9 of each other.
TABLE = {
    "rows permuted": Invariance(rows_permuted, 1e-9),
    "rows sorted by loss": Invariance(rows_sorted_by_loss, 1e-9),
    "classes permuted": Invariance(classes_permuted, 1e-9),
    "halves predicted apart": Invariance(halves_apart, 1e-12),
    "row by row": Invariance(row_by_row, 1e-12),
    "a constant added to rows": Invariance(constant_added, 1e-9),
    "two runs": Invariance(two_runs, 0.0),
    "two threads": Invariance(two_threads, 0.0),
    "strides": Invariance(strides, 1e-9),
    "weights of one": Invariance(weights_of_one, 1e-9),
    # The rounding of the scores themselves, 6e-8, through a smooth map.
    "float32": Invariance(float32, 1e-4),
}

_STEPS = "a step function: a score that rounds across an edge gets the next bin's value"
_SEARCH = "the search is not convex or stops early: scores that differ by 6e-8 may send it elsewhere"
_FOLDS = "rows nearer to each other than 6e-8 may change places, and the folds follow"
_TIES = "scores that tie in float32 differ in float64, and neighbours or ranks follow ties"
_REFUSED = "takes no sample_weight, and says so"

#: (method, invariance) -> why it does not hold.
EXCEPT: dict[tuple[str, str], str] = (
    {(name, "float32"): _STEPS for name in ("hb", "bbq", "imax", "iso", "enir", "scabin", "venn_abers")}
    | {(name, "float32"): _SEARCH for name in ("dec", "diag", "gp", "h")}
    | {(name, "float32"): _FOLDS for name in ("ms", "dir")}
    | {(name, "float32"): _TIES for name in ("lece", "ts_lece", "spline", "cir", "smooth_spline")}
    | {
        (name, "weights of one"): _REFUSED
        for name in METHODS
        if not hcal.calibrators.get_calibrator(name).weighted
    }
)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("what", TABLE)
@pytest.mark.parametrize("name", METHODS)
def test_invariance(name: str, what: str, task: str) -> None:
    reason = EXCEPT.get((name, what))
    if reason == _REFUSED:
        with pytest.raises(ValueError, match="does not support sample_weight"):
            weights_of_one(name, TASKS[task], None)
        return
    if reason is not None:
        pytest.skip(reason)
    change, tolerance = TABLE[what]
    changed = change(name, TASKS[task], plain(name, task))
    np.testing.assert_allclose(changed, answer(name, task), rtol=0, atol=tolerance)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", METHODS)
def test_a_weight_of_k_is_k_copies(name: str, task: str) -> None:
    logits, y, new = TASKS[task]
    count = np.random.default_rng(4).integers(0, 4, len(y))
    order = np.random.default_rng(5).permutation(int(count.sum()))
    copies = np.repeat(logits, count, axis=0)[order], np.repeat(y, count)[order]
    if not make(name).weighted:
        with pytest.raises(ValueError, match="does not support sample_weight"):
            fit(name, logits, y, count)
        return
    weighted, repeated = fit(name, logits, y, count), fit(name, *copies)
    np.testing.assert_allclose(weighted.predict_proba(new), repeated.predict_proba(new), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["dir", "ms", "diag"])
def test_copies_do_not_leak_across_folds(name: str) -> None:
    """Ten copies of every row say no more of held-out rows than one: the choice stays.

    These methods do not look at the number of rows: with copies on one side, they are the same fits.
    """
    logits, y, new = TASKS["network"]
    params: dict[str, Any] = {"hidden": (2, 4), "max_iterations": 60} if name == "diag" else {}
    one, ten = (
        fit_quietly(hcal.make_calibrator(name, **params), logits, y, sample_weight=np.full(len(y), w))
        for w in (1.0, 10.0)
    )
    for chosen in ("lambda", "mu", "hidden"):
        assert one.info_.get(chosen) == ten.info_.get(chosen)
    np.testing.assert_allclose(one.predict_proba(new), ten.predict_proba(new), rtol=0, atol=1e-9)


def test_large_weights_cost_nothing() -> None:
    """Weights of a million are not written out: a fit that did would need 10¹² bytes."""
    logits, y, new = TASKS["network"]
    weight = np.random.default_rng(0).uniform(1e6, 2e6, len(y))
    for name in METHODS:
        if name != "h" and make(name).weighted:
            p = fit(name, logits, y, weight).predict_proba(new)
            assert np.isfinite(p).all()


@pytest.mark.parametrize("total", ["one", "thousands"])
def test_a_sum_far_from_the_number_of_rows_is_said(total: str) -> None:
    logits, y, _ = TASKS["network"]
    weight = np.full(len(y), 1 / len(y) if total == "one" else 50.0)
    with pytest.warns(hcal.CalibrationWarning, match="a weight counts rows") as caught:
        hcal.make_calibrator("svs").fit(logits, y, sample_weight=weight)
    assert len([w for w in caught if "counts rows" in str(w.message)]) == 1


def test_usual_weights_are_met_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    logits, y, _ = TASKS["network"]
    hcal.make_calibrator("ts").fit(logits, y, sample_weight=np.arange(len(y)) % 4)
    assert not [w for w in recwarn if "counts rows" in str(w.message)]
