"""Files that bite: small ones that ask for much, and names that are no files. All cost next to nothing."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hcal.io import read_arrays
from shim import read_data
from hcal.io.limits import check_bytes, max_bytes, open_regular

PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
Y = np.array([1, 0, 1])
#: What a refusal may take: memory in bytes, processor time in seconds (a hang would be minutes).
CHEAP, SOON = 40 * 2**20, 10.0


def _refused(path: Path, message: str, **options: object) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read_data(path, **options)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < CHEAP
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < SOON
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert path.name in text


def _npy_header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


# -- declared sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(10**12, 10), (2**62, 2**62), (-1, 4), (3, 3)])
def test_an_npy_that_claims_more_than_it_holds(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(_npy_header(shape) + b"\0" * 64)
    _refused(path, "claims", kind="logits")


def test_an_npz_whose_unwanted_entry_is_a_bomb_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=PROBS, y=Y)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as z, z.open("other.npy", "w") as entry:
        entry.write(_npy_header((2**24,)))
        for _ in range(128):
            entry.write(b"\0" * 2**20)  # 128 MiB in 128 KB
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(read_data(path).values, PROBS)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_an_npz_whose_wanted_entry_is_a_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z, z.open("logits.npy", "w") as entry:
        entry.write(_npy_header((300 * 2**20 // 8, 1)))
        for _ in range(300):
            entry.write(b"\0" * 2**20)
    _refused(path, r"would take 0.3 GB in memory, 1,0.. times the file; .* set HCAL_MAX_BYTES")
    monkeypatch.setenv("HCAL_MAX_BYTES", "1000000")
    _refused(path, r"over the limit of 1.0 MB; HCAL_MAX_BYTES sets another")


def test_an_npz_header_that_does_not_fit_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("logits.npy", _npy_header((10**12, 10)) + b"\0" * 64)
    _refused(path, "does not fit its 192 bytes")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_numpys_own_compression_is_read(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.npz"
    buffer = io.BytesIO()
    np.save(buffer, PROBS)
    with zipfile.ZipFile(path, "w", method) as z:
        z.writestr("logits.npy", buffer.getvalue())
    _refused(path, "compressed in another way than numpy's")


def test_two_entries_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    buffer = io.BytesIO()
    np.save(buffer, PROBS)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("logits.npy", buffer.getvalue())
        z.writestr("logits", buffer.getvalue())
    _refused(path, "two arrays named 'logits'")


def test_a_damaged_deflate_stream_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=np.random.default_rng(0).normal(size=(50, 4)))
    data = bytearray(path.read_bytes())
    data[400:440] = b"\xff" * 40
    path.write_bytes(bytes(data))
    _refused(path, "cannot read a.npz")


def test_a_single_array_under_the_name_of_an_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as f:
        np.save(f, PROBS)
    _refused(tmp_path / "a.npz", "a single .npy array: rename it")


def _safetensors(header: bytes, data: bytes = b"\0" * 16) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            _safetensors(b'{"logits":{"dtype":"F64","shape":[1000000000000,2],"data_offsets":[0,16]}}'),
            "claims",
        ),
        (_safetensors(b'{"logits":{"dtype":"F64","shape":[2],"data_offsets":[0,32]}}'), "claims"),
        (_safetensors(b'{"logits":{"dtype":"F64","shape":[-2],"data_offsets":[0,16]}}'), "is broken"),
        (_safetensors(b'{"logits":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}}'), "of type F8"),
        (_safetensors(b'{"y":1,"y":2}'), "twice"),
        (_safetensors(b"[" * 5000), "cannot read"),
        (struct.pack("<Q", 2**63) + b"{}", "longer than the file"),
        (b"\0\0", "cannot read"),
    ],
)
def test_safetensors_headers_that_lie(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    _refused(path, message)


def test_a_parquet_of_repeats_is_refused_by_its_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    column = pa.array(np.zeros(40_000_000, np.float32))
    parquet.write_table(pa.table({"probs_0": column, "probs_1": column}), path, compression="zstd")
    assert path.stat().st_size < 500_000
    _refused(path, r"would take 0.3 GB in memory, .* times the file")


def test_parquet_errors_are_one_line(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(
        pa.table({"probs_0": [0.5] * 100, "probs_1": [0.5] * 100, "x" * 9000: [1] * 100}), path
    )
    data = bytearray(path.read_bytes())
    data[-300:-200] = b"\xff" * 100
    path.write_bytes(bytes(data))
    _refused(path, "cannot read a.parquet")


# -- pickles --------------------------------------------------------------------------------------

# Tuples of twice the one before: sixty of them, and 2**60 parts. It leaves the last on the stack.
_NEST = b")q\x000" + b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(60)) + b"h\x3c"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # Nine bytes whose memo index asks Python's own machine for gigabytes: here it is a key like another.
        (b"\x80\x02]r\xff\xff\xff\x0f.", "expected"),
        (b"\x80\x02]p99999999999\n.", "expected"),
        (b"\x80\x02" + _NEST + b".", "parts"),
        (b"\x80\x02}" + _NEST + b"K\x01s.", "keys that are neither"),
        (b"\x80\x02cnumpy\ndtype\n" + _NEST + b"\x85R.", "only arrays of numbers"),
        (b"\x80\x02]q\0h\0a.", "levels"),
        (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "levels"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".", "ends early"),
        (b"\x80\x02\x8b" + struct.pack("<i", 500) + b"\x01" * 500 + b".", "more than 64 bytes"),
        (b"\x80\x02I" + b"9" * 5000 + b"\n.", "no pickle"),
        (b"\x80\x05\x97.", "not one that arrays need"),
    ],
    ids=range(11),
)
def test_pickles_that_would_take_for_ever(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.p"
    path.write_bytes(content)
    _refused(path, message)


def test_a_text_that_is_encoded_again_and_again(tmp_path: Path) -> None:
    text = b"x" * 100_000
    content = b"\x80\x02(c_codecs\nencode\nq\0X" + struct.pack("<I", len(text)) + text + b"\x85q\1R"
    content += b"h\0h\1R" * 5_000 + b"t."
    path = tmp_path / "a.p"
    path.write_bytes(content)
    _refused(path, "again and again")


def test_an_array_that_is_listed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "a.p"
    path.write_bytes(pickle.dumps({"logits": [np.zeros(100_000)] * 1000}))
    _refused(path, "again and again")


@pytest.mark.parametrize("module", ["zlib", "gzip", "lzma", "bz2"])
def test_compressed_pickles_say_so(tmp_path: Path, module: str) -> None:
    path = tmp_path / "a.p"
    path.write_bytes(__import__(module).compress(pickle.dumps((PROBS, Y))))
    _refused(path, "is compressed")


# -- what is no file ------------------------------------------------------------------------------

SUFFIXES = (".npz", ".npy", ".csv", ".parquet", ".safetensors", ".p")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path: Path, suffix: str) -> None:
    pipe, zero, folder = (tmp_path / f"{n}{suffix}" for n in ("pipe", "zero", "folder"))
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    folder.mkdir()
    _refused(pipe, "not a regular file", kind="logits")
    _refused(zero, "not a regular file", kind="logits")
    _refused(folder, "is a directory", kind="logits")


def test_a_file_that_becomes_a_pipe_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, PROBS)
    looked = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda _self: looked)
    with pytest.raises(ValueError, match="not a regular file"):
        open_regular(path)


def test_a_file_cut_short_while_it_is_in_use_is_no_signal(tmp_path: Path) -> None:
    """A mapped array would end the process with SIGBUS."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones((200_000, 2)))
    code = (
        "import os, sys; from hcal.io import read_data; "
        "data = read_data(sys.argv[1], kind='logits'); os.truncate(sys.argv[1], 10); print(data.values.sum())"
    )
    got = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (got.returncode, got.stdout) == (0, "400000.0\n")


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((2_000_000, 2)))
    seen: list[str] = []

    def read() -> None:
        try:
            read_arrays(path)
        except ValueError as error:
            seen.append(str(error))

    for size in (20_000_000, 1_000_000, 50):
        thread = threading.Thread(target=read)
        thread.start()
        os.truncate(path, size)
        thread.join()
    assert all("a.npy" in text for text in seen)
    assert seen  # the last one at least: its header claims more than is there


# -- the limit itself -----------------------------------------------------------------------------


def test_the_limit_is_half_of_the_memory_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCAL_MAX_BYTES", raising=False)
    half = max_bytes()
    assert half <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with pytest.raises(ValueError, match="over the limit"):
        check_bytes("a.npz", half + 1, half)
    check_bytes("a.npz", half, half)
    monkeypatch.setenv("HCAL_MAX_BYTES", "123")
    assert max_bytes() == 123
    monkeypatch.setenv("HCAL_MAX_BYTES", "much")
    with pytest.raises(ValueError, match="HCAL_MAX_BYTES must be a number of bytes, got 'much'"):
        max_bytes()


def test_what_is_said_also_allows_what_expands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCAL_MAX_BYTES", raising=False)
    with pytest.raises(ValueError, match="times the file"):
        check_bytes("a.npz", 300 * 2**20, 1000)
    monkeypatch.setenv("HCAL_MAX_BYTES", str(2**30))
    check_bytes("a.npz", 300 * 2**20, 1000)
