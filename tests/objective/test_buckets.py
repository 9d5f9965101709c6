"""The h loss from buckets: exact where a bucket is a value, elsewhere within its bound, finer is nearer."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hcal.maps import scaling
from hcal.objective.buckets import BucketTable, bucketed_h
from hcal.objective.definition import one_family
from hcal.objective.events import family_of
from hcal.objective.h import h
from hcal.objective.settings import ObjectiveSettings
from hcal.numerics import log_softmax
from hcal.partial import Partial
from hcal.solvers.methods import Lbfgs
from hcal.solvers.rows import PieceRows
from hcal.solvers.summed import SummedProblem, fit_rows
from helpers import synthetic


def task(n: int, k: int, digits: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities, with many ties where they are rounded, and labels."""
    x, y = synthetic(n, k, scale=1.6)
    log_probs = log_softmax(x)
    return log_probs if digits is None else np.log(np.round(np.exp(log_probs), digits) + 1e-3), y


SETTINGS: list[dict[str, Any]] = [
    {},
    {"norm": 2},
    {"weighting": "uniform"},
    {"window": 10**6},
    {"window": 1},
    {"window": 7, "epsilon": 0.05},
    {"window": 50, "epsilon": 0.1, "norm": 2},
]


@pytest.mark.parametrize("events", ["pooled", "top-label", "class-wise"])
@pytest.mark.parametrize("digits", [None, 2])
def test_a_bucket_a_value_is_the_definition(events: str, digits: int | None) -> None:
    log_probs, y = task(1500, 3, digits)
    probs, family = np.exp(log_probs), family_of(events)
    found = family.gather(probs, y)
    for settings in SETTINGS:
        exact = [
            one_family(q, o, ObjectiveSettings(**settings)) for q, o in zip(found.q, found.marks, strict=True)
        ]
        slope = family.scatter(np.stack([g for _, g in exact]) / len(exact), probs, found) * probs
        objective = bucketed_h(bits=64, events=events, **settings)
        value, gradient = objective.value_and_grad(log_probs, y, np.ones(len(y)))
        assert value == pytest.approx(np.mean([v for v, _ in exact]), rel=1e-10, abs=1e-9), settings
        np.testing.assert_allclose(gradient, slope, atol=1e-9 * np.abs(slope).max() + 1e-12)


def test_the_error_falls_with_the_bits_and_stays_within_its_bound() -> None:
    log_probs, y = task(8000, 5)
    events = family_of("pooled").gather(np.exp(log_probs), y)
    settings = ObjectiveSettings(weighting="uniform")
    exact = one_family(events.q[0], events.marks[0], settings)[0]
    found = [
        BucketTable(settings, bits).update(events.q[0], events.marks[0]).result()
        for bits in (14, 18, 22, 26, 30)
    ]
    errors = [abs(one.value - exact) for one in found]
    assert all(error <= one.bound for error, one in zip(errors, found, strict=True))
    assert all(a.bound > 3 * b.bound for a, b in pairwise(found))
    assert errors[0] > 10 * errors[2] > 100 * errors[4]
    assert errors[3] < 1e-3 * exact


def test_tables_merge_and_go_on() -> None:
    log_probs, y = task(900, 3)
    events = family_of("pooled").gather(np.exp(log_probs), y)
    q, marks = events.q[0], events.marks[0]
    whole = BucketTable(bits=20).update(q, marks)
    first, second = BucketTable(bits=20).update(q[:500], marks[:500]), BucketTable(bits=20)
    second.update(q[500:], marks[500:])
    again = BucketTable.from_state(second.state).merge(first)
    assert isinstance(again, Partial)
    assert again.result().value == pytest.approx(whole.result().value, rel=1e-12)
    np.testing.assert_allclose(
        again.result().slope_of(q, marks), whole.result().slope_of(q, marks), rtol=1e-9
    )
    with pytest.raises(ValueError, match="only tables of the same bits"):
        again.merge(BucketTable(bits=21))


def serial(work: Any, pieces: Any) -> Any:
    return map(work, pieces)


def test_a_map_is_fitted_on_blocks_in_two_passes() -> None:
    x, y = synthetic(3000, 3, scale=2.0)
    pieces = [[(x[a : a + 700], y[a : a + 700], np.ones(len(y[a : a + 700])))] for a in range(0, 3000, 700)]
    rows = PieceRows(pieces, list, serial, np.bincount(y).astype(float))
    theta = np.array([-0.2])
    make = partial(bucketed_h, bits=64)
    value, gradient = SummedProblem(scaling.temperature, make, rows, None, theta).loss()(theta)
    log_probs, pullback = scaling.temperature().vjp(theta, x)
    exact, slope = h().value_and_grad(log_probs, y, np.ones(len(y)))
    assert value == pytest.approx(exact, rel=1e-9)
    assert gradient == pytest.approx(pullback(slope), rel=1e-6)
    settings = {"bits": 26, "window": 300, "norm": 2}
    solved = fit_rows(scaling.temperature, partial(bucketed_h, **settings), Lbfgs(max_iterations=30), rows)
    assert abs(np.exp(solved.theta[0]) - 0.5) < 0.05  # labels were drawn at half of the logits
    uneven = [[(x[:10], y[:10], np.ones(10))], [(x[10:20], y[10:20], np.full(10, 2.0))]]
    with pytest.raises(ValueError, match="takes equal weights only"):
        SummedProblem(
            scaling.temperature, make, PieceRows(uneven, list, serial, rows.mass), None, theta
        ).loss()(theta)
    with pytest.raises(ValueError, match="is no sum over rows"):
        SummedProblem(scaling.temperature, h, rows, None, theta).loss()(theta)
