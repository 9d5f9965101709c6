"""Files that bite: small ones that ask for much, and names that are no files. All cost next to nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcal.io import Request, batches, read
from hcal.io.files import atomic_path, open_regular
from hcal.io.reading import read_columns
from hcal.io.writing import write_blocks
from hcal.text import json_without_controls, without_controls

PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
Y = np.array([1, 0, 1])
HOSTILE_NAMES = ["\x1b[31mred", "\x9b31m", "\u202etxt"]
#: What a refusal may take: memory in bytes, processor time in seconds (a hang would be minutes).
CHEAP = 40 * 2**20
SOON = 10.0


def refused(path: Path, message: str, **options: Any) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read(path, Request(**options))
        assert tracemalloc.get_traced_memory()[1] < CHEAP
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < SOON
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert path.name in text


def npy_header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape})
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(path: Path, *entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as z:
        for name, content in entries:
            z.writestr(name, content)
    return path


def saved(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_arrays_that_claim_more_than_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    for shape in ((10**12, 10), (2**62, 2**62), (-1, 4), (3, 3)):
        path.write_bytes(npy_header(shape) + b"\0" * 64)
        refused(path, "claims", input="logits")
    path = tmp_path / "a.npz"
    refused(zipped(path, ("logits.npy", npy_header((10**12, 10)) + b"\0" * 64)), "claims the shape")
    refused(
        zipped(path, ("logits.npy", saved(PROBS)), ("logits", saved(PROBS))),
        "two arrays named 'logits'",
    )
    for name in ("a.npz", "a.npy"):
        with (tmp_path / name).open("wb") as f:
            objects = np.array([{}], dtype=object)
            np.savez(f, logits=objects) if name.endswith("z") else np.save(f, objects)
        refused(tmp_path / name, "never unpickled", input="logits")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("probs.npy", saved(PROBS))
        with z.open("logits.npy", "w") as entry:
            entry.write(npy_header((300 * 2**20 // 16, 2)))
            for _ in range(300):
                entry.write(b"\0" * 2**20)
    refused(path, r"would be unpacked to 315 MB in memory", input="logits")
    np.testing.assert_array_equal(
        read(path, Request(input="probs")).values, PROBS
    )  # the bomb is not touched
    first = next(
        iter(batches(path, Request(input="logits"), rows=1000))
    )  # nor filled, block by block
    assert first.scores.shape == (1000, 2)
    path = tmp_path / "a.npy"
    np.save(path, PROBS)
    monkeypatch.setattr("hcal.io.files._available_memory", lambda: 10)
    refused(
        path, r"needs about 0.0 GB of memory and there are 0.0: read it by blocks", input="probs"
    )


def test_tables_that_are_bombs(tmp_path: Path) -> None:
    """A cell of 150 MB took 2.5 GB."""
    path = tmp_path / "a.csv"
    with path.open("wb") as f:
        f.write(b"logits_0,logits_1\n1,")
        for _ in range(150):
            f.write(b"9" * 10**6)
    refused(path, "row 0 is longer than 16 MB")
    path.write_bytes(b'a,"' + b"x" * 200_000 + b'"\n1,2\n')
    refused(path, "field larger than field limit", input="logits")
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    column = pa.array(np.zeros(40_000_000, np.float32))
    parquet.write_table(pa.table({"probs_0": column, "probs_1": column}), path, compression="zstd")
    refused(path, r"would be unpacked to 640 MB in memory")
    table = pa.table({"probs_0": [0.5] * 100, "x" * 9000: [1] * 100})
    parquet.write_table(table, path)
    data = bytearray(path.read_bytes())
    data[-300:-200] = b"\xff" * 100
    path.write_bytes(bytes(data))
    refused(path, "cannot read a.parquet")


def test_little_that_would_be_unpacked_to_much(tmp_path: Path) -> None:
    """An .npz of 962 bytes took 78 s and 3.9 GB. Its declared size is read before anything is unpacked."""
    path = tmp_path / "a.npz"
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2)
    with archive, archive.open("probs.npy", "w", force_zip64=True) as entry:
        entry.write(npy_header((300 * 2**20 // 16, 2)))
        for _ in range(300):
            entry.write(b"\0" * 2**20)
    assert path.stat().st_size < 10_000
    refused(path, r"compressed in another way than numpy does", input="probs")


@pytest.mark.parametrize("name", ["classes", "hcal_model", "y"])
def test_arrays_beside_the_scores_are_no_bombs_either(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    n_cells = 300 * 2**20 // 4
    shape, descr = ((1,), f"<U{n_cells}") if name == "hcal_model" else ((n_cells,), "<U1")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("probs.npy", saved(PROBS))
        with z.open(f"{name}.npy", "w") as entry:
            entry.write(npy_header(shape, descr))
            for _ in range(300):
                entry.write(b"\0" * 2**20)
    if name != "y":
        refused(path, "would be unpacked to 315 MB in memory")
        return
    scores = zipped(tmp_path / "s.npz", ("probs.npy", saved(PROBS)))
    with pytest.raises(ValueError, match=r"a\.npz has 0.3 MB, and would be unpacked to 315 MB"):
        read(scores, Request(labels=path))


def test_feather_files_declare_what_is_unpacked(tmp_path: Path) -> None:
    """Numbers, lists and texts: pyarrow unpacks a whole batch to tell how many rows it has."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather

    path = tmp_path / "a.feather"
    n_rows = 1000
    plain = {"probs_0": np.full(n_rows, 0.25), "probs_1": np.full(n_rows, 0.75)}
    feather.write_feather(pa.table(plain), path, compression="zstd", chunksize=300)
    assert read(path).values.shape == (n_rows, 2)
    sizes = [len(batch) for batch in batches(path, rows=250)]
    assert sizes == [250, 50] * 3 + [100]

    numbers = pa.array(np.zeros(40_000_000))
    for column in (
        numbers,
        pa.FixedSizeListArray.from_arrays(numbers, 1000),
        pa.ListArray.from_arrays(pa.array([0, 40_000_000]), numbers),
        pa.array(["x" * 300_000_000]),
    ):
        feather.write_feather(
            pa.table({"probs": column}), path, compression="zstd", chunksize=len(column)
        )
        refused(path, r"a batch of it has 0.\d MB, and would be unpacked to 3\d\d MB")
    content = bytearray(path.read_bytes())
    for place in range(len(content) - 200, len(content) - 10, 7):
        damaged = bytearray(content)
        damaged[place : place + 4] = b"\xff\xff\xff\x7f"
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=r"a\.feather"):
            read(path)


def test_lists_and_texts_of_parquet_files_are_no_bombs(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40_000_000)), 1000)
    parquet.write_table(pa.table({"probs": lists}), path, compression="zstd")
    refused(path, r"would be unpacked to 320 MB in memory")
    huge_text = pa.array(["x" * 60_000])
    ids = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), huge_text)
    halves = np.full(20_000, 0.5)
    table = pa.table({"probs_0": halves, "probs_1": halves, "id": ids})
    parquet.write_table(table, path, compression="zstd")
    refused(path, r"column 'id' has 0.0 MB, and would be unpacked to 1,200 MB", id="id")


def test_one_long_text_among_many_short_ones(tmp_path: Path) -> None:
    """Every text of an array takes the room of the longest: 4 GB for 20,000 rows."""
    path = tmp_path / "a.csv"
    rows = [f"0.5,0.5,{number}" for number in range(20_000)]
    rows[7] += "x" * 50_000
    path.write_text("\n".join(["probs_0,probs_1,id", *rows]))
    refused(path, r"of which one has 50,001 characters: shorten it", id="id")


def test_an_error_names_the_file_behind_a_link(tmp_path: Path) -> None:
    if not Path("/proc/version").is_file():
        pytest.skip("a system without /proc")
    link = tmp_path / "out.csv"
    link.symlink_to("/proc/version")
    with pytest.raises(OSError, match=r"out\.csv \(a link to /proc/version\)"), atomic_path(link):
        raise AssertionError("nothing is written there")


def test_a_long_text_that_a_parquet_holds_once(tmp_path: Path) -> None:
    """A dictionary holds a text of a megabyte once, and 2,000 rows of it would take 2 GB."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    half = [0.5] * 2000
    columns = {"probs_0": half, "probs_1": half, "id": ["x" * 10**6] * 2000}
    parquet.write_table(pa.table(columns), path)
    refused(path, r"column 'id' holds a text of 1,000,000 characters", id="id")


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_long_texts_of_any_type_are_refused_before_they_are_decoded(
    tmp_path: Path, kind: str
) -> None:
    """A megabyte in each of 2,000 rows, in a file of some kilobytes; blocks decode a few rows at a time."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    text = "x" * (3 << 20)
    texts = pa.array([text if "string" in kind else text.encode()], getattr(pa, kind)())
    halves = np.full(200, 0.5)
    table = pa.table({"probs_0": halves, "probs_1": halves, "id": pa.concat_arrays([texts] * 200)})
    parquet.write_table(table, path, compression="zstd", data_page_size=1, write_batch_size=1)
    refused(path, r"would be unpacked to 6\d\d MB in memory", id="id")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'id' holds a text of 3,145,728"):
        batches(path, Request(id="id"), rows=1000)


def test_texts_that_share_their_bytes_count_in_every_row(tmp_path: Path) -> None:
    """polars writes feather files whose texts are views: many rows may show the same bytes."""
    pa = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    if not hasattr(pa, "string_view"):
        pytest.skip("pyarrow has no views")
    path = tmp_path / "a.feather"
    halves = np.full(20_000, 0.5)
    view = np.frombuffer(pa.array(["x" * 60_000], pa.string_view()).buffers()[1], dtype=np.int8)
    shared = pa.array(["x" * 60_000], pa.string_view()).buffers()[2]
    buffers = [None, pa.py_buffer(np.tile(view, 20_000).tobytes()), shared]
    ids = pa.Array.from_buffers(pa.string_view(), 20_000, buffers)
    table = pa.table({"probs_0": halves, "probs_1": halves, "id": ids})
    feather.write_feather(table, path, compression="zstd")
    refused(path, r"column 'id' has 0.0 MB, and would be unpacked to 1,200 MB", id="id")
    few = pa.array(["a", None, "bcd"], pa.string_view())
    plain = {"probs_0": halves[:3], "probs_1": halves[:3], "site": few}
    feather.write_feather(pa.table(plain), path)
    assert read(path, keep=True).beside["site"].tolist() == ["a", None, "bcd"]


def test_the_dictionaries_of_a_feather_file_are_declared_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    path = tmp_path / "a.feather"
    texts = pa.array(["x" * (1 << 20) + str(number) for number in range(300)])
    ids = pa.DictionaryArray.from_arrays(np.zeros(4, np.int32), texts)
    halves = [0.5] * 4
    table = pa.table({"probs_0": halves, "probs_1": halves, "id": ids})
    feather.write_feather(table, path, compression="zstd")
    refused(path, r"would be unpacked to 3\d\d MB in memory", id="id")


def test_a_damaged_feather_file_never_ends_the_process(tmp_path: Path) -> None:
    """pyarrow trusts the places of texts and lists: one wrong byte would be a segmentation fault."""
    pa = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    path = tmp_path / "a.feather"
    columns = {
        "probs_0": [0.5] * 50,
        "probs_1": [0.5] * 50,
        "y": ["cat", "dog"] * 25,
        "site": pa.array(["north", "south"] * 25).dictionary_encode(),
        "list": [[1.0, 2.0]] * 50,
    }
    feather.write_feather(pa.table(columns), path, compression="uncompressed")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    n_refused = 0
    for place in rng.integers(len(content), size=400).tolist():
        damaged = bytearray(content)
        damaged[place] = int(rng.choice([1, 127, 255]))
        path.write_bytes(bytes(damaged))
        try:
            read(path, Request(classes=("cat", "dog")), keep=True)
        except ValueError:
            n_refused += 1
    assert n_refused > 50


@pytest.mark.parametrize(
    "text", ["-" * 9000 + "1", "{'descr': '<f8', 'shape': (" + "(" * 50_000, "[" * 3000]
)
def test_a_header_that_is_no_description_of_an_array(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.npy"
    header = (text + "\n").encode()
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + bytes(64))
    refused(path, r"a\.npy is damaged: its header is no description of an array", input="logits")


def test_names_for_terminals() -> None:
    assert without_controls("a\x1b[31m\u202eb\n") == "a\\x1b[31m\\u202eb\n"
    text = json_without_controls(json.dumps(HOSTILE_NAMES, ensure_ascii=False))
    assert not set(text) & {"\x1b", "\x9b", "\u202e"}
    assert json.loads(text) == HOSTILE_NAMES


@pytest.mark.parametrize(
    "formula", ["=1+1", "=cmd|' /C calc'!A0", "+cmd|'x'!A", "-2+cmd|'x'!A", "@SUM(A1)", "\t=1"]
)
def test_a_csv_holds_no_formula_and_is_read_back_as_it_was(tmp_path: Path, formula: str) -> None:
    path = tmp_path / "a.csv"
    plain = ["-5", "+x", "@home", "'tis", "5 (of 7)"]
    texts = [formula, *plain]
    with write_blocks(path, len(texts), classes=[formula, "b"]) as write:
        probs = np.full((len(texts), 2), 0.5)
        cells = np.array(texts)
        write(probs, y=cells, ids=cells, kept={formula: cells})
    with path.open(newline="") as file:
        header, first, *others = csv.reader(file)
    assert header == ["id", f"'{formula}", f"probs_{formula}", "probs_b", "y"]
    assert first == [f"'{formula}", f"'{formula}", "0.5", "0.5", f"'{formula}"]
    assert [row[0] for row in others] == plain
    columns = read_columns(path, ["id", "y", formula])
    stripped = [text.strip() for text in texts]
    assert all(column.tolist() == stripped for column in columns.values())


def test_a_jsonl_holds_no_control_characters_and_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with write_blocks(path, 3) as write:
        write(PROBS, ids=HOSTILE_NAMES)
    assert without_controls(path.read_text(encoding="utf-8")) == path.read_text(encoding="utf-8")
    ids = read(path, Request(id="id")).ids
    assert ids is not None
    assert ids.tolist() == HOSTILE_NAMES


def test_a_semicolon_in_the_name_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("probs_0;a,probs_1;b\n0.25,0.75\n")
    request = Request(scores="probs_*", input="probs")
    assert read(path, request).values.tolist() == [[0.25, 0.75]]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_an_output_that_cannot_be_made_names_its_target() -> None:
    with (
        pytest.raises(OSError, match=r"cannot write /proc/hcal.json: ") as caught,
        atomic_path("/proc/hcal.json"),
    ):
        pass
    assert "hcal-tmp" not in str(caught.value)


def test_rows_that_are_announced_and_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by fuzzing: a damaged .parquet says that it has 40 rows, and pyarrow reads none."""
    (tmp_path / "a.csv").write_text("logits_0,logits_1,y\n1,2,0\n")
    monkeypatch.setattr("hcal.io.reading.read_blocks", lambda piece: iter(()))
    with pytest.raises(ValueError, match=r"cannot read a.csv: it has no rows"):
        read(tmp_path / "a.csv")


# -- what is no file, or is cut ---------------------------------------------------------------------


def test_pipes_devices_and_folders_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".npz", ".csv", ".parquet", ".jsonl"):
        pipe, zero, folder = (tmp_path / f"{n}{suffix}" for n in ("pipe", "zero", "folder"))
        os.mkfifo(pipe)
        zero.symlink_to("/dev/zero")
        folder.mkdir()
        refused(pipe, "not a regular file", input="logits")
        refused(zero, "not a regular file", input="logits")
        with pytest.raises(FileNotFoundError, match="no file of a known type is below"):
            read(folder)
    path = zipped(tmp_path / "none.npz", ("probs.npy", npy_header((10**12, 2, 0))))
    refused(path, "it has no rows|has no rows: its scores have no pixels")
    path = tmp_path / "a.npy"
    np.save(path, PROBS)
    looked = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda _self: looked)
    with pytest.raises(ValueError, match="not a regular file"):
        open_regular(path)


def test_a_file_cut_short_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((1000, 2)))
    blocks = iter(batches(path, Request(input="logits"), rows=100))
    next(blocks)
    os.truncate(path, 3000)
    with pytest.raises(ValueError, match=r"a.npy.*(claims|ends early)"):
        list(blocks)
