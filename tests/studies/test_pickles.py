"""The reader of pickles: arrays of numbers come out, and nothing else does; no small file asks for much."""

from __future__ import annotations

import os
import pickle
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from studies.pickles import read_pickle

PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
Y = np.array([1, 0, 1])
#: What a refusal may take: memory in bytes, processor time in seconds (a hang would be minutes).
CHEAP = 40 * 2**20
SOON = 10.0
# Tuples of twice the one before: sixty of them, and 2**60 parts. It leaves the last on the stack.
NEST = b")q\x000" + b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(60)) + b"h\x3c"


class Evil:
    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def refused(content: bytes, message: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read_pickle(content)
        assert tracemalloc.get_traced_memory()[1] < CHEAP
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < SOON
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500


def test_arrays_of_every_protocol_and_layout() -> None:
    calibration = (PROBS.astype(np.float32), Y[:, None])
    task = (calibration, (np.asfortranarray(PROBS), Y.astype(">i4")))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        arrays = read_pickle(pickle.dumps(task, protocol=protocol))
        assert arrays["logits_cal"].dtype == np.float32
        np.testing.assert_array_equal(arrays["logits_cal"], task[0][0])
        np.testing.assert_array_equal(arrays["logits_test"], PROBS)
        np.testing.assert_array_equal(arrays["y_test"], Y)
    old = pickle.dumps((np.float32([[1, 2]]), np.int64([1])), protocol=2)
    arrays = read_pickle(old.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    np.testing.assert_array_equal(arrays["logits"], [[1, 2]])
    (only,) = read_pickle(pickle.dumps(PROBS)).values()
    np.testing.assert_array_equal(only, PROBS)
    refused(pickle.dumps([1, 2, 3]), "expected")


def test_nothing_but_numeric_arrays_leaves_a_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (
        Evil(os.system, "touch owned"),
        Evil(eval, "open('owned', 'w')"),
        Evil(getattr, "text", "format"),
        Evil(np.load, "owned"),
        (PROBS, Evil(os.system, "touch owned")),
        np.array([Evil(os.system, "touch owned")], dtype=object),
        np.array([None], dtype=object),
        np.zeros(2, dtype=[("a", "f8")]),
        np.dtype("O"),
        np.dtype("f8"),
        np.array(["text"]),
        np.ndarray,
        complex(1, 2),
    ):
        for protocol in (0, 2, 4, 5):
            with pytest.raises(ValueError, match="is no pickle of arrays"):
                read_pickle(pickle.dumps(content, protocol=protocol))
    assert not list(tmp_path.iterdir())


def test_pickles_that_would_take_for_ever() -> None:
    text = b"x" * 100_000
    again = b"\x80\x02(c_codecs\nencode\nq\0X" + struct.pack("<I", len(text)) + text + b"q\2\x85R"
    for content, message in (
        (b"\x80\x02]r\xff\xff\xff\x0f.", "memory index"),
        (b"\x80\x02]p99999999999\n.", "memory index"),
        (b"\x80\x02" + NEST + b".", "again and again"),
        (b"\x80\x02}" + NEST + b"K\x01s.", "again and again"),
        (b"\x80\x02cnumpy\ndtype\n" + NEST + b"\x85R.", "again and again"),
        (b"\x80\x02]q\0h\0a.", "again and again"),
        (b"\x80\x02]K\x01aq\0h\0a.", "again and again"),
        (
            b"\x80\x02cnumpy\ndtype\n" + NEST.replace(b"\x86q", b"\x86K\x010q") + b"\x85R.",
            "again and again",
        ),
        (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "expected"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".", "no pickle"),
        (b"\x80\x02I" + b"9" * 5000 + b"\n.", "no pickle"),
        (b"\x80\x05\x97.", "not one that arrays need"),
        (again + b"h\0h\2\x85R" * 5_000 + b"t.", "again and again"),
        (pickle.dumps({"logits": [np.zeros(100_000)] * 1000}), "expected"),
    ):
        refused(content, message)
    for module in ("zlib", "gzip", "lzma", "bz2"):
        compressed = __import__(module).compress(pickle.dumps((PROBS, Y)))
        refused(compressed, "is no pickle of arrays")
