"""Sources of rows: a sample that does not depend on the blocks, and the fit in memory where it holds all rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.io import Request, batches
from hcal.io.sources import RowSample, source_of_blocks
from hcal.rows import Rows
from helpers import synthetic


def reversed_elsewhere(work: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
    """What a pool of processes does to functions, pieces and results, the last piece first."""
    results = []
    for piece in reversed(list(pieces)):
        elsewhere = pickle.loads(pickle.dumps(work))
        results.append(pickle.loads(pickle.dumps(elsewhere(piece))))
    yield from reversed(results)


def test_a_sample_that_holds_all_rows_is_the_fit_in_memory() -> None:
    x, y = synthetic(500, 3)
    columns: dict[str, dict[str, Any]] = {
        "iso": {},
        "platt": {"weight": np.arange(500.0) % 3},
        "lece": {"groups": np.arange(500) // 5},
    }
    for name, column in columns.items():
        rows = Rows.of(x, y, input="logits", **column)
        in_memory = hcal.make_calibrator(name).fit(rows)
        by_blocks = hcal.make_calibrator(name).fit(rows.blocks(330))
        np.testing.assert_array_equal(by_blocks.predict_proba(x), in_memory.predict_proba(x))
        used = np.count_nonzero(column.get("weight", np.ones(500)))
        assert by_blocks.fit_.source_rows == 500
        assert by_blocks.fit_.rows == used


def test_the_sample_does_not_depend_on_the_blocks(tmp_path: Path) -> None:
    x, y = synthetic(3000, 3)
    rows = Rows.of(x, y, input="logits")
    for part in range(2):
        half = slice(1500 * part, 1500 * part + 1500)
        np.savez(tmp_path / f"{part}.npz", logits=x[half], y=y[half])
    files = batches(tmp_path, rows=400)
    samples = [
        files.as_source().sample(700),
        files.as_source(runner=reversed_elsewhere).sample(700),
        source_of_blocks(rows.blocks(77)).sample(700),
        source_of_blocks(lambda: list(rows.blocks(77))).sample(700),
        source_of_blocks([lambda: rows.blocks(1000)]).sample(700),
        source_of_blocks([rows]).sample(700),
    ]
    for sample in samples:
        np.testing.assert_array_equal(sample.scores, samples[0].scores)
        np.testing.assert_array_equal(sample.y, samples[0].y)
    cal = hcal.make_calibrator("iso").fit(samples[0])
    assert cal.fit_.sampled == "fitted on a sample of 700 of 3,000 rows"
    expected = np.bincount(y) / len(y)
    assert cal.fit_.frequencies == pytest.approx(expected, abs=0.05)
    many_classes = source_of_blocks(rows.blocks(77)).sample(most_scores=900)
    assert len(many_classes) == 300


def test_parts_of_a_sample_hold_their_share_when_the_number_of_rows_is_known() -> None:
    x, y = synthetic(20_000, 2)
    rows = Rows.of(x, y, input="logits")
    parts = [RowSample(1000, 10**9, 20_000).update(block) for block in rows.blocks(2000)]
    kept = [len(part.rows()) for part in parts]
    assert max(kept) < 200
    merged = RowSample(1000, 10**9, 20_000)
    for part in reversed(parts):
        merged.merge(part)
    expected = RowSample(1000, 10**9).update(rows)
    np.testing.assert_array_equal(merged.rows().scores, expected.rows().scores)


def test_a_group_in_two_blocks_is_one_group() -> None:
    """Blocks that number their groups by themselves are joined by the names of the groups."""
    x, y = synthetic(400, 2)
    patient = np.array([f"p{number}" for number in np.arange(400) // 7])
    in_memory = Rows.of(x, y, input="logits", groups=patient)
    blocks = []
    for first in range(0, 400, 90):
        block = slice(first, first + 90)
        blocks.append(Rows.of(x[block], y[block], input="logits", groups=patient[block]))
    joined = Rows.joined(blocks)
    assert joined.groups is not None
    assert len(np.unique(joined.groups)) == len(np.unique(patient))
    same = joined.groups[:, None] == joined.groups
    together = in_memory.groups[:, None] == in_memory.groups  # type: ignore[index]
    np.testing.assert_array_equal(same, together)


def test_files_bring_weights_groups_and_segments_to_a_fit(tmp_path: Path) -> None:
    x, y = synthetic(600, 2)
    country = np.array(["DE", "FR", "IT"])[np.arange(600) % 3]
    site = np.arange(600) // 4
    for part in range(2):
        half = slice(300 * part, 300 * part + 300)
        columns = {"country": country[half], "site": site[half]}
        np.savez(tmp_path / f"{part}.npz", logits=x[half], y=y[half], **columns)
    by_file = hcal.SegmentedCalibrator("platt").fit(tmp_path, by="country", groups="site")
    in_memory = hcal.SegmentedCalibrator("platt").fit(x, y, by={"country": country}, groups=site)
    expected = in_memory.predict_proba(x, by={"country": country})
    np.testing.assert_allclose(
        by_file.predict_proba(x, by={"country": country}), expected, atol=1e-12
    )
    assert by_file.fit_.effective_rows == pytest.approx(in_memory.fit_.effective_rows)


def test_names_of_classes_come_with_the_blocks() -> None:
    x, y = synthetic(200, 2)
    for names in (["ham", "spam"], [3, 7]):
        rows = Rows.of(x, np.array(names)[y], input="logits", classes=names)
        cal = hcal.make_calibrator("ts").fit(rows.blocks(50))
        assert cal.classes_.tolist() == names


def test_faults_are_named_with_their_rows(tmp_path: Path) -> None:
    x, y = synthetic(700, 3)
    first = Rows.of(x[:330], y[:330], input="logits")
    second = Rows.of(x[330:660], y[330:660], input="logits")
    two_classes = Rows.of(x[330:, :2], 0 * y[330:], input="logits")
    weighted = replace(second, weight=np.ones(330))
    differing: tuple[tuple[Any, str], ...] = (
        (two_classes, "the first has logits of 3 classes, .* row 330 on has logits of 2 classes"),
        (weighted, "row 330 on has logits of 3 classes, labels, weights"),
        (replace(second, y=None), "blocks of rows differ"),
        ((x, y), r"must yield hcal.rows.Rows .*, got ndarray"),
    )
    for other, words in differing:
        with pytest.raises((ValueError, TypeError), match=words):
            hcal.make_calibrator("ts").fit(iter([first, other]))
    with pytest.raises(ValueError, match="hold probs, but the calibrator takes input='logits'"):
        hcal.make_calibrator("ts").fit([replace(first, scores=first.probs(), kind="probs")])
    with pytest.raises(ValueError, match="the rows have no labels"):
        hcal.make_calibrator("ts").fit([replace(first, y=None)])
    with pytest.raises(ValueError, match="there are no rows: the source yields none"):
        hcal.make_calibrator("ts").fit(iter([]))
    with pytest.raises(ValueError, match="a sample needs at least 1 row"):
        source_of_blocks([first]).sample(0)
    with pytest.raises(ValueError, match="'bbq' does not support sample_weight"):
        hcal.make_calibrator("bbq").fit([weighted])
    with pytest.raises(ValueError, match="pass them to Rows"):
        hcal.make_calibrator("ts").fit(iter([first]), groups="patient")
    with pytest.raises(TypeError, match="groups must be the name of a column of the files"):
        hcal.make_calibrator("ts").fit("a.npz", groups=np.arange(3))
    x[400] = np.nan
    np.savez(tmp_path / "a.npz", logits=x, y=y)
    with pytest.raises(ValueError, match="counting from row 330: logits contains NaN"):
        list(batches(tmp_path / "a.npz", Request(), rows=330))


def test_functions_of_earlier_versions_name_the_new_call() -> None:
    with pytest.raises(
        AttributeError, match=r"fit_batches is gone: since 0.4 it is calibrator.fit"
    ):
        partial(getattr, hcal)("fit_batches")
