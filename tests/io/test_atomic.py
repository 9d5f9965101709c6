"""Outputs: whole or not at all, never over something that is not a file, nothing left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hcal.io import atomic
from hcal.io.atomic import atomic_path


def _write(path: Path, text: str = "new") -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def test_it_is_light() -> None:
    """Readers of data use it: it must not bring scikit-learn with it."""
    seen = "import sys, hcal.io.atomic; print(sorted({'sklearn', 'scipy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True).stdout == "[]\n"


# -- what may be written to ----------------------------------------------------------------------


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "model.hcal", tmp_path / "link.hcal"
    real.write_text("old")
    link.symlink_to("real/model.hcal")
    _write(link)
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["link.hcal", "model.hcal", "real"]


def test_a_link_to_a_new_name_makes_that_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("absent.txt")
    _write(link)
    assert link.is_symlink()
    assert (tmp_path / "absent.txt").read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("through_link", [False, True])
def test_a_fifo_is_refused_and_stays(tmp_path: Path, through_link: bool) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    target = fifo
    if through_link:
        target = tmp_path / "link"
        target.symlink_to(fifo)
    with pytest.raises(ValueError, match=f"{target.name} is not a regular file"):
        _write(target)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert not list(tmp_path.glob(".hcal*"))


def test_a_device_node_is_refused_and_stays(tmp_path: Path) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except (AttributeError, OSError):
        pytest.skip("needs the right to make a device node")
    with pytest.raises(ValueError, match="not a regular file"):
        _write(node)
    assert stat.S_ISCHR(node.lstat().st_mode)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match="d is a directory"):
        _write(tmp_path / "d")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        _write(tmp_path / "no" / "a")
    assert [p.name for p in tmp_path.rglob("*")] == ["d"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_what_became_special_while_writing_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def write() -> None:
        with atomic_path(target):
            os.mkfifo(target)

    with pytest.raises(ValueError, match="not a regular file"):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert stat.S_ISFIFO(target.lstat().st_mode)


@pytest.mark.parametrize("name", ["a" * 255, "a." + "b" * 253, "model.tar.gz"])
def test_long_names(tmp_path: Path, name: str) -> None:
    _write(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]


# -- permissions ---------------------------------------------------------------------------------


def test_the_umask_is_obeyed_and_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask belongs to the whole process"))
        _write(tmp_path / "a")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o664])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(mode)
    with atomic_path(target) as temporary:
        assert temporary.stat().st_mode & 0o077 == mode & 0o077  # from the start, not at the end
        temporary.write_text("new")
    assert target.stat().st_mode & 0o777 == mode
    assert target.read_text() == "new"


def test_a_writer_that_makes_a_file_of_its_own_does_not_decide(tmp_path: Path) -> None:
    """safetensors does: it writes a private file and renames it."""
    with atomic_path(tmp_path / "a") as temporary:
        usual = temporary.stat().st_mode
        temporary.unlink()
        temporary.touch(0o600)
    assert (tmp_path / "a").stat().st_mode == usual


# -- on the disk ---------------------------------------------------------------------------------


def test_content_is_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def note_replace(self: Path, target: Path) -> Path:
        happened.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    _write(tmp_path / "a")
    assert happened == ["file", "rename", "folder"]


def test_a_failed_sync_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"):
        _write(tmp_path / "a")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


# -- what killed runs leave ----------------------------------------------------------------------

_WAIT = """
import sys, time, hcal.io.atomic
with hcal.io.atomic.atomic_path(sys.argv[1]) as temporary:
    print(temporary, flush=True)
    time.sleep(60)
"""


def test_the_next_run_tidies_after_a_killed_one_but_not_a_living_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WAIT, str(tmp_path / "model.hcal")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            left = Path(process.stdout.readline().strip())
            _write(tmp_path / "other.hcal")
            assert left.exists()
        finally:
            process.kill()
    assert left.exists()
    _write(tmp_path / "another.hcal")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["another.hcal", "other.hcal"]


def test_a_former_process_of_the_same_number_and_another_machine(tmp_path: Path) -> None:
    ours = tmp_path / f".hcal-tmp-{atomic._machine()}-{os.getpid()}-{'0' * 16}.npz"
    theirs = tmp_path / f".hcal-tmp-{'0' * 8}-1-{'0' * 16}.npz"
    old = tmp_path / f".hcal-tmp-{'0' * 8}-1-{'1' * 16}.npz"
    strange = tmp_path / ".hcal-tmp-notes.txt"
    for path in (ours, theirs, old, strange):
        path.touch()
    day_ago = time.time() - 25 * 3600
    os.utime(old, (day_ago, day_ago))
    os.utime(strange, (day_ago, day_ago))
    _write(tmp_path / "a")
    assert {p.name for p in tmp_path.iterdir()} == {theirs.name, strange.name, "a"}


def test_threads_do_not_tidy_each_other_away(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for j in range(20):
                _write(tmp_path / f"{i % 2}", f"{i} {j}" * 50)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]


def test_a_folder_does_not_keep_what_a_dead_writer_of_another_machine_left(tmp_path: Path) -> None:
    with atomic.atomic_folder(tmp_path / "parts") as folder:
        (folder / "part-0.npy").touch()
        (folder / f".hcal-tmp-{'0' * 8}-1-{'0' * 16}.npy").touch()
    assert [p.name for p in (tmp_path / "parts").iterdir()] == ["part-0.npy"]
