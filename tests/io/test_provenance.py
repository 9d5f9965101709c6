"""Which rows a calibrator learned from, and the one rule for rows on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.io.provenance import fingerprint, row_hashes
from hcal.evaluation import coincidence, learned_from
from hcal.reporting import measure_report
from helpers import synthetic

NOTE = "these are the rows that the calibrator learned from: judge it on others"


def test_every_fit_says_what_it_learned_from(tmp_path: Path) -> None:
    z, y = synthetic()
    cal = hcal.make_calibrator("ts").fit(z, y)
    assert cal.info_["fitted_on"] == fingerprint(z)
    hcal.save(cal, tmp_path / "m.hcal")
    loaded = hcal.load(tmp_path / "m.hcal")
    assert learned_from(loaded, z) == [NOTE]
    assert learned_from(loaded, z[::-1].astype(np.float64)) == [NOTE]  # in any order
    assert learned_from(loaded, z + 1e-9) == []
    assert learned_from(loaded, z[:-1]) == []
    assert NOTE in measure_report(z, y, loaded).notes


def test_weights_do_not_change_the_rows() -> None:
    z, y = synthetic(200)
    weighted = hcal.make_calibrator("ts").fit(z, y, np.full(200, 2.0))
    assert weighted.info_["fitted_on"] == fingerprint(z)


def test_hashes_see_every_cell_and_its_place() -> None:
    z = np.random.default_rng(0).normal(size=(1000, 7))
    assert len(np.unique(row_hashes(z))) == 1000
    assert (row_hashes(z) == row_hashes(np.asfortranarray(z))).all()
    assert (row_hashes(z.astype(np.float32)) == row_hashes(z.astype(np.float32).astype(np.float64))).all()
    assert (row_hashes(z) != row_hashes(np.roll(z, 1, axis=1))).all()
    for column in range(7):
        changed = z.copy()
        changed[:, column] = np.nextafter(z[:, column], 9)
        assert (row_hashes(z) != row_hashes(changed)).all()
    # Kept in models: the same for ever, whatever numpy does.
    assert row_hashes(np.array([[0.5, 0.25, -3.0]])).tolist() == [1545356975428783931]
    assert row_hashes(np.array([[0.0, 1.0]])) == row_hashes(np.array([[-0.0, 1.0]]))


@pytest.mark.parametrize(("common", "told"), [(0, False), (2, False), (3, True), (50, True)])
def test_one_threshold_for_evaluate_compare_and_report(common: int, told: bool) -> None:
    (z, y), (new, y_new) = synthetic(seed=1), synthetic(300, seed=2)
    test, labels = np.r_[new, z[:common]], np.r_[y_new, y[:common]]
    sentence = f"{common} of {300 + common} test rows also stand in the calibration set"
    assert (sentence in coincidence(z, test)) == told
    notes = measure_report(test, labels, calibration=z).notes
    assert any(sentence in note for note in notes) == told
    p, q = hcal.softmax(z), hcal.softmax(test)
    if told:
        with pytest.warns(UserWarning, match=sentence):
            hcal.evaluate(q, labels, "nll", calibration=p)
        with pytest.warns(UserWarning, match=sentence):
            hcal.compare(z, y, test, labels, methods=["ts"])
    else:  # a warning is an error here
        hcal.evaluate(q, labels, "nll", calibration=p)
        hcal.compare(z, y, test, labels, methods=["ts"])


@pytest.mark.parametrize("values", [101, 1000, 5000])
def test_scores_of_few_values_coincide_by_chance_without_a_word(values: int) -> None:
    """A forest of 100 trees has 101 scores: equal rows are independent rows."""
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(40):
        a, b = (rng.integers(0, values, size=(n, 1)) / values for n in (500, 400))
        told += bool(coincidence(np.hstack([a, 1 - a]), np.hstack([b, 1 - b])))
    assert told <= 2  # three standard errors: one in a thousand, and the estimate itself has noise
