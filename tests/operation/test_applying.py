"""A calibrator is applied to files: no row is lost, none is written twice, and no file is replaced unasked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.io import Request, batches, read, read_blocks
from hcal.passes import Processes
from helpers import synthetic

COUNTRIES = ("DE", "FR", "ES", "S%C3%A3o")
ROWS = 50


@pytest.fixture(scope="module")
def calibrator() -> hcal.methods.base.Calibrator:
    return hcal.make_calibrator("ts").fit(*synthetic(400, 3, seed=9))


@pytest.fixture
def hive(tmp_path: Path, calibrator: object) -> Path:
    """A partitioned table of csv files that all have the same name, and a model."""
    for number, country in enumerate(COUNTRIES):
        write_table(tmp_path / f"hive/country={country}/part-0.csv", seed=number)
    hcal.save(calibrator, tmp_path / "m.hcal")
    return tmp_path / "hive"


def write_table(path: Path, seed: int, rows: int = ROWS) -> Path:
    logits, y = synthetic(rows, 3, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{seed}-{row},{','.join(map(str, logits[row]))},{y[row]}" for row in range(rows)]
    path.write_text("\n".join(["key,logits_0,logits_1,logits_2,y", *lines]) + "\n")
    return path


def written(folder: Path) -> dict[str, int]:
    """Return the rows of each file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    counts = {}
    for path in files:
        data = read(path, Request(input="probs"))
        counts[path.relative_to(folder).as_posix()] = len(data.values)
    return counts


ALL = {f"country={country}/part-0.csv": ROWS for country in sorted(COUNTRIES)}


def test_outputs_mirror_the_folders_of_inputs_however_they_are_named(hive: Path) -> None:
    model = hive.parent / "m.hcal"
    names: dict[str, tuple[object, ...]] = {
        "folder": (hive,),
        "pattern": (hive / "country=*" / "part-0.csv",),
        "deep": (hive / "**" / "*.csv",),
        "folders": (hive / "*",),
        "shell": tuple(hive / f"country={country}" / "part-0.csv" for country in COUNTRIES),
        "listed": tuple(hive / f"country={country}" for country in COUNTRIES),
        "workers": (hive, "--jobs", 2),
        "blocks": (hive, "--batch-rows", 7),
    }
    for name, arguments in names.items():
        out = hive.parent / name
        result = json.loads(run("apply", model, *arguments, "-o", out, "--json").stdout)
        assert result["schema"] == "hcal/apply/1"
        assert result["files"] == 4
        assert result["rows"] == 200
        assert written(out) == ALL, name


def test_runners_write_the_same_as_this_process(hive: Path, calibrator: object) -> None:
    dask = pytest.importorskip("dask.distributed")
    from hcal.integrations.dask import Runner

    hcal.apply(calibrator, hive, hive.parent / "here")
    hcal.apply(calibrator, hive, hive.parent / "processes", runner=Processes(2))
    with dask.Client(processes=False, n_workers=1, dashboard_address=None) as client:
        hcal.apply(calibrator, hive, hive.parent / "dask", runner=Runner(client))
    for name in ALL:
        texts = {(hive.parent / way / name).read_text() for way in ("here", "processes", "dask")}
        assert len(texts) == 1


def test_a_folder_that_is_not_empty_is_refused_and_an_interrupted_run_goes_on(
    hive: Path, calibrator: object
) -> None:
    out = hive.parent / "out"
    hcal.apply(calibrator, hive, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.csv")}
    with pytest.raises(ValueError, match=r"is not empty: resume=True \(--resume\)"):
        hcal.apply(calibrator, hive, out)
    with pytest.raises(ValueError, match="give one"):
        hcal.apply(calibrator, hive, out, resume=True, overwrite=True)

    lost = out / "country=FR/part-0.csv"
    lost.unlink()
    half = out / "country=DE/part-0.csv"  # cut short by hand: not complete
    half.write_text("\n".join(half.read_text().splitlines()[:20]) + "\n")
    resumed = hcal.apply(calibrator, hive, out, resume=True)
    assert resumed.files == 2
    assert resumed.rows == 2 * ROWS
    assert resumed.finished == 2
    assert "2 files were complete already" in str(resumed)
    assert written(out) == ALL
    kept = [path for path in before if path.stat().st_mtime_ns == before[path]]
    assert {path.parent.name for path in kept} == {"country=ES", "country=S%C3%A3o"}
    assert hcal.apply(calibrator, hive, out, resume=True).files == 0

    again = hcal.apply(calibrator, hive, out, overwrite=True)
    assert again.files == 4
    assert again.finished == 0


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_resume_writes_files_of_another_model_other_columns_or_new_inputs_again(
    tmp_path: Path, calibrator: object, suffix: str
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    data = tmp_path / "data"
    out = tmp_path / "out"
    data.mkdir()
    logits, y = synthetic(ROWS, 3, seed=1)
    if suffix == ".npz":
        np.savez(data / "a.npz", logits=logits, y=y)
    else:
        csv = write_table(tmp_path / "a.csv", seed=1)
        if suffix == ".csv":
            csv.rename(data / "a.csv")
        else:
            pd = pytest.importorskip("pandas")
            pd.read_csv(csv).to_parquet(data / "a.parquet")
    hcal.apply(calibrator, data, out)
    assert hcal.apply(calibrator, data, out, resume=True).finished == 1
    other = hcal.make_calibrator("ts").fit(logits * 3, y)
    assert hcal.apply(other, data, out, resume=True).files == 1
    os.utime(next(data.iterdir()), (2e9, 2e9))  # the input is newer than the output
    assert hcal.apply(other, data, out, resume=True).files == 1
    if suffix != ".npz":
        for path in out.iterdir():
            os.utime(path, (3e9, 3e9))
        assert hcal.apply(other, data, out, resume=True, keep=True).files == 1


def test_clashes_are_refused_before_the_first_file_is_written(
    hive: Path, calibrator: object
) -> None:
    folder = hive.parent
    first = write_table(folder / "in/a.csv", 1)
    cases = {
        "named twice": [first, first],
        "are one file": [folder / "in", folder / "in" / ".." / "in" / "a.csv"],
    }
    (folder / "in2").mkdir()
    (folder / "in2" / "link.csv").symlink_to(first)
    cases["link.csv are one file"] = [folder / "in", folder / "in2"]
    for words, source in cases.items():
        with pytest.raises(ValueError, match=words):
            hcal.apply(calibrator, source, folder / "out")
    np.savez(folder / "in/b.npz", logits=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="files of several types"):
        hcal.apply(calibrator, folder / "in", folder / "out")
    assert not (folder / "out").exists()


def test_an_output_may_not_replace_an_input_or_be_read_by_the_next_run(
    hive: Path, calibrator: object
) -> None:
    part = hive / "country=DE" / "part-0.csv"
    link = hive.parent / "link.csv"
    link.symlink_to(part)
    cases = {
        "is inside the input": [(hive, hive / "out"), (hive, hive / "all.csv")],
        "is also an input": [(part, part), (part, link), (hive / "*" / "*.csv", part)],
        "is inside the output": [(hive / "*" / "*.csv", hive)],
    }
    for words, calls in cases.items():
        for source, output in calls:
            with pytest.raises(ValueError, match=words):
                hcal.apply(calibrator, source, output, overwrite=output.is_dir())
    assert sorted(path.name for path in hive.rglob("*.csv")) == ["part-0.csv"] * 4
    plain = hive.parent / "plain.csv"  # one output file is replaced, as before
    for _ in range(2):
        assert hcal.apply(calibrator, part, plain).rows == ROWS


def test_rows_of_several_files_in_one_output_say_where_they_come_from(
    hive: Path, calibrator: object
) -> None:
    pd = pytest.importorskip("pandas")
    out = hive.parent / "all.csv"
    hcal.apply(calibrator, hive, out, request=Request(id="key"), keep=True)
    frame = pd.read_csv(out)
    assert frame.groupby("file").size().to_dict() == ALL
    assert frame["country"].unique().tolist() == ["DE", "ES", "FR", "São"]
    assert frame["key"].is_unique


def test_a_kept_column_is_never_replaced_by_an_output_column(
    tmp_path: Path, calibrator: object
) -> None:
    pd = pytest.importorskip("pandas")
    logits, _ = synthetic(20, 3)
    frame = pd.DataFrame(logits, columns=[f"logits_{k}" for k in range(3)])
    frame.assign(probs_0=0.125, file="x").to_csv(tmp_path / "a.csv", index=False)
    hcal.apply(calibrator, tmp_path / "a.csv", tmp_path / "p.csv", keep=True,
               request=Request(input="logits"))  # fmt: skip
    output = pd.read_csv(tmp_path / "p.csv")
    assert (output["probs_0_before"] == 0.125).all()
    assert (output["file"] == "x").all()
    assert output["probs_0"].between(0, 1).all()
    with pytest.raises(ValueError, match="--keep"):
        hcal.apply(calibrator, tmp_path / "a.csv", tmp_path / "p.npy", keep=True)


def test_partition_columns_are_read_as_columns(hive: Path) -> None:
    table = read(hive, Request(by="country"))
    assert table.by["country"].tolist().count("FR") == ROWS
    source = batches(hive, Request(by="country"), rows=20)
    blocks = [data for piece in source.pieces() for _, data in read_blocks(piece)]
    assert sum(data.by["country"].tolist().count("São") for data in blocks) == ROWS
    as_label = read(hive / "country=DE", Request(label="country", classes=("DE", "FR", "ES")))
    assert set(as_label.labels()) == {0}


def test_an_input_without_rows_gives_no_file_and_is_said(hive: Path, calibrator: object) -> None:
    empty = hive / "country=IT" / "part-0.csv"
    write_table(empty, 1, rows=0)
    applied = hcal.apply(calibrator, hive, hive.parent / "out")
    assert applied.files == 4
    assert applied.empty == 1
    assert written(hive.parent / "out") == ALL


def test_folders_behind_links_are_read_and_closed_folders_are_errors(
    hive: Path, calibrator: object
) -> None:
    elsewhere = hive.parent / "elsewhere"
    (hive / "country=DE").rename(elsewhere)
    (hive / "country=DE").symlink_to(elsewhere)
    (hive / "loop").symlink_to(hive)
    assert hcal.apply(calibrator, hive, hive.parent / "out").files == 4
    (hive / "x.csv.gz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"x\.csv\.gz: their rows are left out"):
        read(hive)
    (hive / "x.csv.gz").unlink()
    (hive / "country=FR").chmod(0)
    try:
        if os.access(hive / "country=FR", os.R_OK):
            pytest.skip("this user may read every folder")
        with pytest.raises(PermissionError):
            read(hive)
    finally:
        (hive / "country=FR").chmod(0o755)
