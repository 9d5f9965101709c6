"""An array is one block: evaluate of arrays, of blocks, of files and of a generator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.certificates import survey
from hcal.io.sources import source_of_blocks
from hcal.rows import Rows
from helpers import synthetic

METRICS = ("nll", "brier", "ece_ew", "ks", "skce")


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Four files of rows with groups and segments; a group has rows in two of them."""
    scores, y = synthetic(1200, 2)
    sites = [f"s{number}" for number in np.arange(1200) // 7]
    countries = np.array(["DE", "FR", "IT"])[np.arange(1200) % 3]
    columns = {"logits": scores, "y": y, "site": np.array(sites), "country": countries}
    folder = tmp_path / "days"
    folder.mkdir()
    for day in range(4):
        rows = slice(300 * day, 300 * day + 300)
        np.savez(folder / f"{day}.npz", **{name: array[rows] for name, array in columns.items()})
    return folder, columns


def plain(result: Any) -> dict[str, Any]:
    content: dict[str, Any] = result.to_dict()
    return content


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_blocks_files_and_generators_are_evaluated_as_arrays(
    table: tuple[Path, dict[str, Any]], confidence: float | None
) -> None:
    folder, columns = table
    cal = hcal.make_calibrator("platt").fit(*synthetic(500, 2, seed=5))
    settings: dict[str, Any] = {"confidence": confidence, "metrics": METRICS, "resamples": 50}
    by = {"country": columns["country"]}
    rows = Rows.of(columns["logits"], columns["y"], input="logits", by=by)
    in_memory = hcal.evaluate(cal, columns["logits"], columns["y"], by=by, **settings)
    others = [
        hcal.evaluate(cal, rows, **settings),
        hcal.evaluate(cal, rows.blocks(170), **settings),
        hcal.evaluate(cal, folder, by="country", **settings),
        hcal.evaluate(cal, str(folder / "*.npz"), by="country", **settings),
    ]
    for other in others:
        assert plain(other) == plain(in_memory)
        assert other.changed == in_memory.changed


def test_groups_that_lie_in_two_blocks_are_one_group(table: tuple[Path, dict[str, Any]]) -> None:
    folder, columns = table
    probs = hcal.softmax(columns["logits"])
    in_memory = hcal.evaluate(
        probs, columns["y"], groups=columns["site"], confidence=0.9, metrics=METRICS, resamples=50
    )
    by_file = hcal.evaluate(folder, groups="site", confidence=0.9, metrics=METRICS, resamples=50)
    assert in_memory.certificate is not None
    assert in_memory.certificate.n_groups == len(np.unique(columns["site"]))
    assert plain(by_file) == plain(in_memory)


def test_what_does_not_fit_into_the_sample_is_added_up(
    table: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, columns = table
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 500)
    cal = hcal.make_calibrator("platt").fit(*synthetic(500, 2, seed=5))
    countries = columns["country"]
    in_memory = hcal.evaluate(cal, columns["logits"], columns["y"], confidence=0.9, by=countries)
    summed = hcal.evaluate(cal, folder, confidence=0.9, by="country")
    assert summed.n == 1200
    assert summed.sample_rows == 500
    assert in_memory.sample_rows is None
    for name in ("nll", "brier", "ece_ew", "accuracy"):
        assert summed.how[name] == "all rows"
        assert summed[name] == pytest.approx(in_memory[name], rel=1e-9)
        assert summed.differences[name].change == pytest.approx(in_memory.differences[name].change)
    assert summed.how["skce"] == "sample"
    assert summed["ks"] == pytest.approx(in_memory["ks"], abs=1e-6)
    assert summed.before is not None
    assert in_memory.before is not None
    assert summed.before.nll == pytest.approx(in_memory.before.nll)
    assert summed.changed == in_memory.changed
    assert summed.accuracy == pytest.approx(in_memory.accuracy)
    # The certificate counts all rows, and every segment.
    assert summed.certificate is not None
    assert summed.certificate.n == 1200
    assert len(summed.groups) == 3
    assert summed.groups[0].n == in_memory.groups[0].n
    assert any("seeded sample of 500 of 1,200 rows" in line for line in summed.sampling)


def test_a_generator_that_is_longer_than_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 300)
    scores, y = synthetic(2000, 3)

    def stream() -> Iterator[Rows]:
        """Yield blocks that do not know where they stand."""
        for first in range(0, 2000, 333):
            yield Rows.of(scores[first : first + 333], y[first : first + 333], input="logits")

    result = hcal.evaluate(stream())
    assert result.n == 2000
    assert result.sample_rows == 300
    assert result.nll == pytest.approx(hcal.evaluate(hcal.softmax(scores), y).nll)


def test_named_columns_of_blocks_go_by_name() -> None:
    scores, y = synthetic(900, 3)
    names = ("ant", "bee", "cat")
    cal = hcal.make_calibrator("vs").fit(scores, y, classes=names)
    turned_scores = scores[:, [2, 0, 1]]
    labels = np.array(names)[y]
    turned = Rows.of(turned_scores, labels, input="logits", classes=("cat", "ant", "bee"))
    expected = hcal.evaluate(cal, scores, y)
    assert hcal.evaluate(cal, turned.blocks(200)).values == pytest.approx(expected.values)
    other = Rows.of(scores, y, input="logits", classes=("ant", "bee", "dog"))
    with pytest.raises(ValueError, match="dog"):
        hcal.evaluate(cal, other)
    with pytest.raises(ValueError, match="hold probs, but the calibrator takes input='logits'"):
        hcal.evaluate(cal, Rows.of(hcal.softmax(scores), y, input="probs"))


def test_one_column_of_probabilities_is_refused_over_the_whole_source(tmp_path: Path) -> None:
    """Each block alone could be logits by chance (house.md, Rows)."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=400)
    rate = 1 / (1 + np.exp(-logits))
    y = (rng.random(400) < rate).astype(int)
    cal = hcal.make_calibrator("platt").fit(logits, y)
    columns = {"logits": np.sort(logits), "not logits": rng.random(400)}
    for name, column in columns.items():
        np.savez(tmp_path / f"{name}.npz", logits=column, y=y)
    source = hcal.io.batches(tmp_path / "logits.npz", rows=7)
    assert hcal.evaluate(cal, source).n == hcal.evaluate(source).n == 400
    wrong = hcal.io.batches(tmp_path / "not logits.npz", rows=7)
    with pytest.raises(ValueError, match="all 400 scores lie in"):
        hcal.evaluate(cal, wrong)
    with pytest.raises(ValueError, match="logits look like probabilities: all 400 scores"):
        hcal.evaluate(wrong)


def test_what_needs_all_rows_at_once_says_so(table: tuple[Path, dict[str, Any]]) -> None:
    folder, columns = table
    with pytest.raises(
        ValueError, match="baseline needs all rows at once: pass arrays, or one file"
    ):
        hcal.evaluate(folder, baseline=columns["logits"], input="logits")
    with pytest.raises(ValueError, match="pass them to Rows"):
        hcal.evaluate(iter([]), groups="site")
    with pytest.raises(TypeError, match="by must be the name of a column of the files, got int"):
        hcal.evaluate(folder, by=[1, 2])


def test_weights_and_segments_of_a_segmented_calibrator() -> None:
    """The segments are needed for the prediction, so the weights do not forbid the evaluation."""
    scores, y = synthetic(900, 2)
    country = np.array(["DE", "FR", "IT"])[np.arange(900) % 3]
    cal = hcal.SegmentedCalibrator("platt").fit(scores, y, by=country)
    result = hcal.evaluate(cal, scores, y, by=country, sample_weight=np.full(900, 2.0))
    assert result.certificate is None
    assert any("segments are not certified" in note for note in result.notes)


def test_a_source_that_yields_more_rows_than_it_says_is_refused() -> None:
    """Nothing was added up over its rows, because the sample was to be all of them."""
    rows = Rows.of(*synthetic(40, 3), input="logits")
    source = replace(source_of_blocks(rows.blocks(10)), n_rows=20)
    with pytest.raises(ValueError, match="says that it has 20 rows, and yields 40"):
        survey.survey_rows(source, most_rows=20)
