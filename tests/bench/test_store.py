"""The results file: what is written is read back, and a cut-off write costs one cell, nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.bench.cell import collapsed
from hcal.bench.store import Cell, Key, Results, Store, export_results, read_results


def cell(task: str, method: str, seed: int = 0, nll: float = 0.5, status: str = "ok") -> Cell:
    notes = {"status": {"status": status, "error": 'a "quoted", text\nwith a line'}}
    return Cell(Key(task, method, seed), {"nll": 1.0}, {"nll": nll, "fit_s": 0.1}, notes)


def test_round_trip_csv_and_parquet(tmp_path: Path) -> None:
    cells = [cell("a", "ts", s, nll=0.5 + s) for s in range(3)] + [cell("b", "h")]
    with Store(tmp_path / "r.csv") as store:
        for c in cells:
            store.append(c)
    results = read_results(tmp_path / "r.csv")
    assert results.tasks == ["a", "b"]
    assert results.methods == ["ts", "h"]
    assert results.metrics == ["nll"]
    np.testing.assert_allclose(results.values("a", "ts", "nll"), [0.5, 1.5, 2.5])
    assert results.before("b", "nll") == 1.0
    for name in ("kept.csv", "kept.parquet"):
        export_results(results, tmp_path / name)
        again = read_results(tmp_path / name)
        assert again.cells == results.cells


def test_every_possible_cut_leaves_whole_cells_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    with Store(path) as store:
        store.append(cell("a", "ts"))
        first = path.stat().st_size
        store.append(cell("a", "h"))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        kept = set(read_results(path).cells)
        assert kept == ({Key("a", "ts", 0)} if length >= first else set())
    path.write_bytes(whole[: len(whole) - 5])
    with Store(path) as store:
        store.append(cell("a", "h"))
    assert path.read_bytes() == whole


def test_a_retry_replaces_a_failure(tmp_path: Path) -> None:
    with Store(tmp_path / "r.csv") as store:
        store.append(cell("a", "ts", status="failed"))
        assert [c.error for c in read_results(tmp_path / "r.csv").failures()] != []
        store.append(cell("a", "ts", nll=0.25))
    results = read_results(tmp_path / "r.csv")
    assert results.failures() == []
    assert results.value("a", "ts", "nll") == 0.25


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "r.csv"), pytest.raises(OSError, match="another benchmark run"):
        Store(tmp_path / "r.csv").__enter__()


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("my own data\n")
    with pytest.raises(ValueError, match="not a results file"):
        Store(path).__enter__()
    assert path.read_text() == "my own data\n"


def test_missing_values_are_nan() -> None:
    results = Results([cell("a", "ts")])
    assert np.isnan(results.value("a", "h", "nll"))
    assert np.isnan(results.before("zzz", "nll"))


@pytest.mark.parametrize("name", ["shared", "ablations"])
def test_stored_flags_are_those_of_the_rule(name: str) -> None:
    # A flag is a judgement of stored facts: when the rule changes, the files must follow (decision 090).
    classes = {"agnews_gpt2": 4, "pathmnist_resnet50": 9}
    found = read_results(Path(__file__).parents[2] / "results" / f"{name}.csv")
    for key, cell in found.good.items():
        k = classes.get(key.task, 100 if key.task.startswith("cifar100") else 10)
        assert cell.post["collapsed"] == float(collapsed(cell.post, cell.pre, k)), key


def test_a_metric_keeps_its_meaning_in_files(tmp_path: Path) -> None:
    # `hce` was pooled when the first files were written (decision 150).
    new = Cell(Key("a", "ts", 0), {}, {"hce": 0.3, "hce_pooled": 0.1}, {"status": {"status": "ok"}})
    with Store(tmp_path / "r.csv") as store:
        store.append(new)
    text = (tmp_path / "r.csv").read_text()
    assert "a,ts,0,hce,,0.1," in text
    assert "a,ts,0,hce_class,,0.3," in text
    found = read_results(tmp_path / "r.csv")
    assert found.value("a", "ts", "hce_pooled") == 0.1
    assert found.value("a", "ts", "hce") == 0.3


@pytest.mark.parametrize("package", ["pyarrow", "pandas"])
def test_what_is_not_installed_is_named_with_its_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    evaluation = hcal.evaluate([[0.2, 0.8]], [1], metrics="score")
    wants = {
        "pyarrow": lambda: export_results(Results([]), tmp_path / "r.parquet"),
        "pandas": evaluation.to_frame,
    }
    with pytest.raises(ImportError, match=rf"needs? {package}: pip install .*frames"):
        wants[package]()
