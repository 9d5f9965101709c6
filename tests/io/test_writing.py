"""Probabilities in files: every format, blocks, kept columns; outputs that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hcal.io import Request, atomic_path, can_write, files, read, write_blocks

PROBS = np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
NAMES = ("cat", "dog", "eel")
TARGET = np.array(["dog", "cat", "eel"])
IDS = np.array(["0017", "0002", "b"])


def test_what_apply_writes_is_read_again_with_names_ids_and_other_columns(tmp_path: Path) -> None:
    notes = np.array(["a", None, "ü"], dtype=object)
    kept = {"note": notes, "age": np.array([3, 4, 5])}
    for suffix in (".csv", ".parquet", ".feather", ".jsonl", ".npz"):
        path = tmp_path / f"p{suffix}"
        blocks = tmp_path / f"b{suffix}"
        names = {"id": "key"}
        targets = {path: [slice(3)], blocks: [slice(0, 2), slice(2, 3)]}
        for target, parts in targets.items():
            with write_blocks(target, 3, classes=NAMES, names=names) as write:
                for i in parts:
                    of_part = {column: values[i] for column, values in kept.items()}
                    write(PROBS[i], TARGET[i], ids=IDS[i], kept=of_part)
            data = read(target, Request(id="key"), keep=True)
            np.testing.assert_array_equal(data.values, PROBS)
            assert data.classes == NAMES
            np.testing.assert_array_equal(data.labels(), [1, 0, 2])
            assert data.ids.tolist() == IDS.tolist()
            assert [str(v) for v in data.beside["age"]] == ["3", "4", "5"]
            assert data.beside["note"][2] == "ü"


def test_nan_is_null_and_rows_are_counted(tmp_path: Path) -> None:
    with write_blocks(tmp_path / "p.jsonl", 1) as write:
        write(np.array([[np.nan, np.nan]]))
    assert json.loads((tmp_path / "p.jsonl").read_text()) == {"probs_0": None, "probs_1": None}
    with (
        pytest.raises(ValueError, match="3 rows came where 4 were announced"),
        write_blocks(tmp_path / "p.csv", 4) as write,
    ):
        write(PROBS)
    for name in ("p.doc", "p.xlsx", "p.safetensors"):
        with pytest.raises(ValueError, match="cannot write"):
            can_write(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["p.jsonl"]


# -- whole or not at all --------------------------------------------------------------------------------


def put(path: Path, text: str = "new") -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "a"
    put(path, "old")

    def half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            1 / 0

    with pytest.raises(ZeroDivisionError):
        half()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_links_pipes_devices_and_folders(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(ValueError, match="not a regular file: nothing was written"):
            put(tmp_path / name)
    with pytest.raises(ValueError, match="is a directory: name a file"):
        put(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        put(tmp_path / "no" / "a")

    def replaced() -> None:
        with atomic_path(tmp_path / "x"):
            os.mkfifo(tmp_path / "x")

    with pytest.raises(ValueError, match="not a regular file"):
        replaced()


def test_permissions_and_long_names(tmp_path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    put(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask
    for mode in (0o600, 0o444, 0o664):
        (tmp_path / "a").chmod(mode)
        put(tmp_path / "a")
        assert (tmp_path / "a").stat().st_mode & 0o777 == mode
    for name in ("a" * 255, "a." + "b" * 253, "model.tar.gz"):
        put(tmp_path / name)
        assert (tmp_path / name).read_text() == "new"


def test_content_is_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        files, "_sync", lambda path: done.append("folder" if path.is_dir() else "content")
    )
    replace = Path.replace

    def noticed(self: Path, to: Path) -> Path:
        done.append("rename")
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", noticed)
    put(tmp_path / "a")
    assert done == ["content", "rename", "folder"]
