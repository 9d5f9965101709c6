"""Blocks of rows: a sample that does not depend on the blocks, and the fit in memory where it holds all rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.io import Batch, batches
from hcal.methods import batches as module
from hcal.methods.batches import fit_batches
from helpers import synthetic


def cut(x: np.ndarray, y: np.ndarray, step: int = 330, **columns: np.ndarray) -> list[Batch]:
    return [
        Batch(
            x[a : a + step],
            "logits",
            y[a : a + step],
            a,
            **{k: v[a : a + step] for k, v in columns.items()},
        )
        for a in range(0, len(x), step)
    ]


def elsewhere(work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
    """What a pool of processes does to functions, pieces and results, in the opposite order."""
    for piece in reversed(list(pieces)):
        yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(work))(piece)))


def test_a_sample_that_holds_all_rows_is_the_fit_in_memory() -> None:
    x, y = synthetic(500, 3)
    for name, columns in (
        ("iso", {}),
        ("platt", {"weight": np.arange(500.0) % 3}),
        ("lece", {"groups": np.arange(500) // 5}),
    ):
        whole = hcal.make_calibrator(name).fit(
            x, y, columns.get("weight"), groups=columns.get("groups"), classes=None
        )
        found = fit_batches(hcal.make_calibrator(name), iter(cut(x, y, **columns)))
        np.testing.assert_allclose(
            found.predict_proba(x), whole.predict_proba(x), rtol=0, atol=1e-12
        )
        used = np.count_nonzero(columns.get("weight", np.ones(500)))
        assert (found.fit_.source_rows, found.fit_.rows) == (500, used)


def test_the_sample_does_not_depend_on_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = synthetic(3000, 3)
    for part in range(2):
        half = slice(1500 * part, 1500 * part + 1500)
        np.savez(tmp_path / f"{part}.npz", logits=x[half], y=y[half])
    source = batches(tmp_path, rows=400)
    fits = [
        fit_batches(hcal.make_calibrator("iso"), source, sample_rows=700),
        fit_batches(hcal.make_calibrator("iso"), source, sample_rows=700, run=elsewhere),
        fit_batches(hcal.make_calibrator("iso"), iter(cut(x, y, 77)), sample_rows=700),
        fit_batches(hcal.make_calibrator("iso"), lambda: cut(x, y, 77), sample_rows=700),
        fit_batches(hcal.make_calibrator("iso"), [lambda: cut(x, y, 1000)], sample_rows=700),
    ]
    for each in fits[1:]:
        np.testing.assert_array_equal(each.predict_proba(x), fits[0].predict_proba(x))
    assert fits[0].fit_.sampled == "fitted on a sample of 700 of 3,000 rows"
    frequencies = fits[0].fit_.frequencies
    assert frequencies == pytest.approx(np.bincount(y) / len(y), abs=0.05)
    monkeypatch.setattr(module, "SAMPLE_SCORES", 900)  # many classes: fewer rows
    assert fit_batches(hcal.make_calibrator("ts"), cut(x, y)).fit_.rows == 300


def test_names_of_classes_come_with_the_blocks() -> None:
    x, y = synthetic(200, 2)
    for names in (["ham", "spam"], [3, 7]):
        cal = fit_batches(hcal.make_calibrator("ts"), cut(x, y), classes=names)
        assert cal.classes_.tolist() == names


def test_faults_are_named_with_their_rows() -> None:
    first, second, *_ = cut(*synthetic(700, 3))
    for change, words in (
        (
            lambda b: replace(b, scores=b.scores * np.nan),
            "counting from row 330: logits contains NaN",
        ),
        (
            lambda b: replace(b, kind="probs"),
            "holds probs, but the calibrator takes input='logits'",
        ),
        (lambda b: replace(b, y=None), "counting from row 330: the batch has no labels"),
        (lambda b: replace(b, scores=b.scores[:, :2], y=0 * b.y), "batches differ"),
        (lambda b: replace(b, weight=np.ones(len(b))), "batches differ"),
        (lambda b: replace(b, y=b.y + 3), r"counting from row 330: y must lie in 0\.\.2"),
        (lambda b: (b.scores, b.y), r"must hold hcal\.io\.Batch objects, got ndarray"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            fit_batches(hcal.make_calibrator("ts"), [first, change(second)])
    with pytest.raises(ValueError, match="there are no rows to fit on"):
        fit_batches(hcal.make_calibrator("ts"), [])
    with pytest.raises(ValueError, match="sample_rows must be at least 1"):
        fit_batches(hcal.make_calibrator("ts"), [first], sample_rows=0)
    with pytest.raises(ValueError, match="'bbq' does not support sample_weight"):
        fit_batches(hcal.make_calibrator("bbq"), [replace(first, weight=np.ones(330))])
