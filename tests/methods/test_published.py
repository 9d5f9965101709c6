"""Each method against the paper's own numbers on CIFAR-10 ResNet-110 (spec/methods.md, section 5).

One row a method. ``reference`` is the published value, or the independent re-computation ("check") where
the published one is known not to follow from the method's definition; the row says so. The parameters are
those of the publication where they differ from ours.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import hcal
from hcal.methods import imax
from hcal.methods._log_odds import log_odds
from helpers import fit_quietly, load_task


class Row(NamedTuple):
    name: str
    reference: tuple[float, float, float]  # ece_ew, cwece_a, nll on the test part
    tolerance: tuple[float, float, float]  # relative
    params: tuple[tuple[str, Any], ...] = ()
    changed: int | None = (
        None  # rows whose argmax differs from the uncalibrated one, where the check says
    )


PUBLISHED_FLOOR = (("floor", 1e-25),)
TIGHT = (0.02, 0.02, 0.02)
LOOSE = (0.05, 0.05, 0.05)
TEN = (0.1, 0.1, 0.1)

ROWS = [
    Row("uncal", (0.04750, 0.00983, 0.3583), TIGHT, changed=0),
    Row("ts", (0.01132, 0.00434, 0.2093), TIGHT, changed=0),
    Row("hb", (0.01131, 0.00462, 0.5022), TIGHT, PUBLISHED_FLOOR, changed=135),
    Row("iso", (0.01473, 0.00430, 0.3215), LOOSE, PUBLISHED_FLOOR, changed=80),
    Row("bbq", (0.00993, 0.00455, 0.3269), TIGHT, PUBLISHED_FLOOR, changed=112),
    # Check, not published: the upstream code loses intervals where three or more groups merge at once.
    Row("enir", (0.01518, 0.00423, 0.3217), TIGHT, PUBLISHED_FLOOR, changed=75),
    Row(
        "scabin", (0.00797, 0.00408, 0.2741), TIGHT, (("floor", 1e-25), ("bins", 15)), changed=1013
    ),
    Row("spline", (0.01192, 0.00409, 0.3240), TIGHT, (("floor", 1e-20),), changed=176),
    # At the published choice: it was made on folds dealt by position, ours are dealt by content.
    Row(
        "lece",
        (0.03314, 0.00694, 0.2667),
        TIGHT,
        (("fraction", 0.06), ("threshold", 0.0)),
        changed=9,
    ),
    Row(
        "ts_lece",
        (0.00734, 0.00377, 0.2055),
        TIGHT,
        (("fraction", 0.03), ("threshold", 0.01)),
        changed=36,
    ),
    Row("vs", (0.01203, 0.00394, 0.2078), LOOSE, changed=80),
    # Check, not published: the published table very likely fed probabilities, which the second row does.
    # Ours centres the logits: the penalty then bites otherwise, ECE .0118 at an equal NLL.
    Row(
        "ms", (0.0110, 0.0036, 0.2034), (0.1, 0.05, 0.05), (("penalty", (0.1, 1e-4)),), changed=116
    ),
    Row(
        "ms",
        (0.0149, 0.0043, 0.2950),
        LOOSE,
        (("features", "probs"), ("penalty", (1e-4, 1e-3))),
        changed=16,
    ),
    Row("dir", (0.01134, 0.00373, 0.2051), LOOSE, (("penalty", (0.1, 1e-3)),), changed=101),
    Row("beta", (0.01307, 0.00372, 0.2094), LOOSE, changed=62),
    Row("ec", (0.00861, 0.00437, 0.2089), TIGHT, changed=0),
    Row("sctl", (0.00847, 0.00436, 0.2089), LOOSE, changed=0),
    Row("ets", (0.0058, 0.0043, 0.2089), TIGHT, changed=0),
    Row("svs", (0.0107, 0.0037, 0.2068), LOOSE, changed=37),
    Row("sms", (0.0106, 0.0036, 0.2033), LOOSE, changed=90),
    # Own fits with the two softnesses of the specification; nothing of it was published.
    Row("softbin", (0.0063, 0.0043, 0.2090), LOOSE, (("tau", 0.001),), changed=0),
    Row("softbin", (0.0077, 0.0044, 0.2089), LOOSE, changed=0),
    # Stopped by held-out NLL, our default, all three published numbers come out; see LONG for the other.
    Row("diag", (0.00712, 0.00377, 0.2080), (0.1, 0.1, 0.02), (("hidden", (10,)),), changed=0),
    Row("gp", (0.00697, 0.00387, 0.2056), (0.1, 0.1, 0.02), changed=2),
]

LONG = [
    # To convergence, as specified, the NLL hangs on the seed (check .2099 to .2318 over three, ours
    # .30 to .33): it is not compared. The tolerance of 1 only keeps the column.
    # On folds along the scores four seeds of the networks lie between 0.0070 and 0.0082 in ECE; this one is 0.0082.
    Row(
        "diag",
        (0.00712, 0.00377, 0.2080),
        (0.16, 0.1, 1.0),
        (("hidden", (10,)), ("early_stopping", False)),
        0,
    ),
    # 99 critics, the published choice by the Brier score of the TEST set; never chosen like that by default.
    # Each critic builds on those before, so processors differ by the end: three seeds lie between 0.0073 and 0.0091.
    Row("dec", (0.00813, 0.00323, 0.2358), (0.15, 0.15, 0.1), (("critics", 99), ("floor", 1e-7))),
]


@cache
def _test_scores(name: str, params: tuple[tuple[str, Any], ...]) -> tuple[float, float, float, int]:
    logits_cal, y_cal, logits, y = load_task("cifar10_resnet110")
    logits_cal = logits_cal.astype(np.float64)
    logits = logits.astype(np.float64)
    cal = fit_quietly(hcal.make_calibrator(name, **dict(params)), logits_cal, y_cal)
    p = cal.predict_proba(logits)
    m = hcal.metrics
    changed = int((p.argmax(1) != logits.argmax(1)).sum())
    return m.ece_ew(p, y), m.cwece_a(p, y), m.nll(p, y), changed


@pytest.mark.data
@pytest.mark.parametrize(
    "row",
    [*ROWS, *(pytest.param(row, marks=pytest.mark.slow) for row in LONG)],
    ids=lambda row: row.name,
)
def test_published_numbers(row: Row) -> None:
    *scores, changed = _test_scores(row.name, row.params)
    names = ("ece_ew", "cwece_a", "nll")
    for metric, ours, theirs, tolerance in zip(
        names, scores, row.reference, row.tolerance, strict=True
    ):
        assert ours == pytest.approx(theirs, rel=tolerance), metric
    if row.changed is not None:
        assert changed == pytest.approx(row.changed, rel=0.1, abs=2)


@pytest.mark.data
def test_softbin_at_the_published_temperature() -> None:
    """T = 2.5659 is solved from the published NLL; it gives the other two as well."""
    _, _, logits, y = load_task("cifar10_resnet110")
    p = hcal.softmax(logits.astype(np.float64) / 2.5659)
    m = hcal.metrics
    scores = m.ece_ew(p, y), m.cwece_a(p, y), m.nll(p, y)
    assert scores == pytest.approx((0.00551, 0.00432, 0.2091), rel=0.02)


@pytest.mark.data
def test_temperatures_are_those_of_the_check() -> None:
    logits, y, _, _ = load_task("cifar10_resnet110")
    temperatures = {}
    for name in ("ts", "ec", "sctl", "ets"):
        cal = hcal.make_calibrator(name).fit(logits, y)
        temperatures[name] = cal.fit_.details["temperature"]
    expected = {"ts": 2.39501, "ec": 2.46306, "sctl": 2.4717, "ets": 2.5245}
    assert temperatures == pytest.approx(expected, abs=1e-4)
    assert 2.48 < hcal.make_calibrator("softbin").fit(logits, y).fit_.details["temperature"] < 2.60


@pytest.mark.data
def test_published_numbers_of_imax_from_its_published_start() -> None:
    """The published start draws events by position, class after class; a fit draws from them sorted."""
    z, y_cal, logits, y = load_task("cifar10_resnet110")
    odds = log_odds(z.astype(np.float64)).T
    positives = np.sort(odds[y_cal, np.arange(len(y_cal))])
    start = imax.seed_centres(odds.ravel(), 15, 755619)
    odds = np.sort(odds, axis=None)
    edges = imax.maximise_information(odds, start)
    values = imax.label_frequencies(odds, positives, edges)
    published_map = imax.SharedBins(edges=edges, values=values, floor=np.array(1e-25))
    p = published_map.probabilities(logits.astype(np.float64))
    m = hcal.metrics
    scores = m.ece_ew(p, y), m.cwece_a(p, y), m.nll(p, y)
    assert scores == pytest.approx((0.00966, 0.00427, 0.2306), rel=0.02)
    changed = (p.argmax(1) != logits.argmax(1)).sum()
    assert changed == pytest.approx(8, abs=2)
