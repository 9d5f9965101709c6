"""The paper's tasks: found in folders and archives, downloaded and verified."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from studies import tasks

NAME = "resnet110_c10"
FILE = "probs_resnet110_c10_logits.p"


def task_bytes() -> bytes:
    """Return a made-up task in the published layout: a pickle of two pairs of logits and labels."""
    rng = np.random.default_rng(0)
    parts = []
    for n_rows in (5000, 10_000):
        logits = rng.normal(size=(n_rows, 10)).astype(np.float32)
        parts.append((logits, rng.integers(0, 10, (n_rows, 1))))
    return pickle.dumps(tuple(parts))


def write_zip(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("calibration/README.md", "no task")
        archive.writestr(f"calibration/logits/{FILE}", content)


def write_tar(path: Path, content: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"../calibration/{FILE}")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(("name", "write"), [("all.zip", write_zip), ("all.tar.gz", write_tar)])
def test_a_task_is_read_from_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Any
) -> None:
    folder = tmp_path / "papers" / "downloads"
    folder.mkdir(parents=True)
    write(folder / name, task_bytes())
    monkeypatch.setenv("HCAL_PAPER_DATA", str(tmp_path / "papers"))
    task = tasks.load_task(NAME, tmp_path)
    assert task.logits_test.shape == (10_000, 10)
    # The archive's own folders are not made, above all none outside the folder.
    written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert written == sorted([name, FILE])


class FakeHub:
    """What ``huggingface_hub`` gives: a list of files, their pointers, and downloads."""

    def __init__(self, folder: Path, files: dict[str, bytes], stated: str | None = None) -> None:
        self.folder = folder
        self.files = files
        self.stated = stated

    def HfApi(self) -> FakeHub:
        return self

    def list_repo_files(self, repository: str, repo_type: str) -> list[str]:
        assert repository == tasks.HUB_REPOSITORY
        assert repo_type == "dataset"
        return list(self.files)

    def get_paths_info(self, _: str, paths: list[str], repo_type: str) -> list[SimpleNamespace]:
        assert repo_type == "dataset"
        sha = self.stated or hashlib.sha256(self.files[paths[0]]).hexdigest()
        return [SimpleNamespace(lfs=SimpleNamespace(sha256=sha))]

    def hf_hub_download(self, _: str, file: str, repo_type: str) -> str:
        assert repo_type == "dataset"
        path = self.folder / Path(file).name
        path.write_bytes(self.files[file])
        return str(path)


def test_a_download_has_the_published_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HCAL_PAPER_DATA", raising=False)
    files = {"README.md": b"", f"logits/{FILE}": task_bytes()}
    monkeypatch.setattr(tasks, "_hub", lambda: FakeHub(tmp_path, files))
    assert tasks.load_task(NAME, tmp_path).logits_cal.shape == (5000, 10)

    monkeypatch.setattr(tasks, "_hub", lambda: FakeHub(tmp_path, files, stated="0" * 64))
    with pytest.raises(ValueError, match="was published: delete it and download again"):
        tasks.paper_file(NAME)
    monkeypatch.setattr(tasks, "_hub", lambda: FakeHub(tmp_path, {"README.md": b""}))
    with pytest.raises(ValueError, match="nor an archive that holds it; it has 1 files"):
        tasks.paper_file(NAME)


def test_an_archive_is_downloaded_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HCAL_PAPER_DATA", raising=False)
    write_zip(tmp_path / "made.zip", task_bytes())
    files = {"data/made.zip": (tmp_path / "made.zip").read_bytes()}
    monkeypatch.setattr(tasks, "_hub", lambda: FakeHub(tmp_path, files))
    assert tasks.paper_file(NAME).name == FILE


def test_a_call_without_arguments_lists_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HCAL_PAPER_DATA", str(tmp_path))
    (tmp_path / "probs_densenet40_c100_logits.p").write_bytes(b"")
    monkeypatch.setattr("sys.argv", ["tasks", "--data", str(tmp_path)])
    tasks.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert "not here: python -m studies.tasks get resnet110_c10" in lines[0]
    line_of_task = next(line for line in lines if line.startswith("densenet40_c100 "))
    assert str(tmp_path) in line_of_task


def test_a_pointer_is_not_taken_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCAL_PAPER_DATA", str(tmp_path))
    (tmp_path / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ValueError, match="is a pointer of Git LFS and not the file"):
        tasks.load_task(NAME, tmp_path)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCAL_PAPER_DATA", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        tasks.paper_file(NAME)
