"""The scaling and non-linear methods against the paper's numbers; see test_published.py for the columns."""

from __future__ import annotations

import numpy as np
import pytest
from test_published import LOOSE, TIGHT, Row, check

import hcal
from helpers import load_task

TEN = (0.1, 0.1, 0.1)

ROWS = [
    Row("vs", (0.01203, 0.00394, 0.2078), LOOSE, changed=80),
    # Check, not published: the published table very likely fed probabilities, which the second row does.
    # The pairs (lambda, mu) are those that the grid chooses: test_the_grid_chooses_the_pairs_used_above.
    # Ours centres the logits (decision 098): the penalty then bites otherwise, ECE .0118 at an equal NLL.
    Row("ms", (0.0110, 0.0036, 0.2034), (0.1, 0.05, 0.05), (("penalty", (0.1, 1e-4)),), changed=116),
    Row(
        "ms", (0.0149, 0.0043, 0.2950), LOOSE, (("features", "probs"), ("penalty", (1e-4, 1e-3))), changed=16
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
    Row(
        "diag", (0.00712, 0.00377, 0.2080), (0.1, 0.1, 1.0), (("hidden", (10,)), ("early_stopping", False)), 0
    ),
    # 99 critics, the published choice by the Brier score of the TEST set; never chosen like that by default.
    Row("dec", (0.00813, 0.00323, 0.2358), TEN, (("critics", 99), ("floor", 1e-7))),
]


@pytest.mark.data
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_published_numbers(row: Row) -> None:
    check(row)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("row", LONG, ids=lambda row: row.name)
def test_published_numbers_of_long_fits(row: Row) -> None:
    check(row)


@pytest.mark.data
def test_softbin_at_the_published_temperature() -> None:
    """T = 2.5659 is solved from the published NLL; it gives the other two as well."""
    _, _, logits, y = load_task("cifar10_resnet110")
    p = hcal.softmax(logits.astype(np.float64) / 2.5659)
    scores = hcal.metrics.ece_ew(p, y), hcal.metrics.cwece_a(p, y), hcal.metrics.nll(p, y)
    assert scores == pytest.approx((0.00551, 0.00432, 0.2091), rel=0.02)


@pytest.mark.data
def test_temperatures_are_those_of_the_check() -> None:
    logits, y, _, _ = load_task("cifar10_resnet110")
    found = {
        n: hcal.make_calibrator(n).fit(logits, y).info_["temperature"] for n in ("ts", "ec", "sctl", "ets")
    }
    expected = {"ts": 2.39501, "ec": 2.46306, "sctl": 2.4717, "ets": 2.5245}
    assert found == pytest.approx(expected, abs=1e-4)
    assert 2.48 < hcal.make_calibrator("softbin").fit(logits, y).info_["temperature"] < 2.60


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "pair"), [("ms", (0.1, 1e-4)), ("dir", (0.1, 1e-3))])
def test_the_grid_chooses_the_pairs_used_above(name: str, pair: tuple[float, float]) -> None:
    logits, y, _, _ = load_task("cifar10_resnet110")
    info = hcal.make_calibrator(name).fit(logits.astype(np.float64), y).info_
    assert (info["lambda"], info["mu"]) == pytest.approx(pair)


@pytest.mark.data
@pytest.mark.slow
def test_dec_chooses_its_critics_on_held_out_rows_and_diag_stops_in_time() -> None:
    """The defaults: neither may give away what temperature scaling reaches in NLL by more than 10 %."""
    logits, y, test_logits, test_y = load_task("cifar10_resnet110")
    dec = hcal.make_calibrator("dec").fit(logits, y)
    assert dec.info_["chosen_on_held_out_rows"]
    assert 0 <= dec.info_["critics"] < 100  # 0 where no critic helps the held-out fifth
    diag = hcal.make_calibrator("diag").fit(logits, y)
    for cal in (dec, diag):
        assert hcal.metrics.nll(cal.predict_proba(test_logits), test_y) < 1.1 * 0.2093
