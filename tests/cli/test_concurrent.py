"""Several processes that run one command on one file at the same time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import start
from hcal.io.locks import alone


def test_six_watches_of_one_state_lose_no_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(6):
        probs = rng.uniform(0.1, 0.9, 500)
        np.savez(tmp_path / f"day{number}.npz", probs=probs, y=rng.random(500) < probs)

    processes = [
        start(tmp_path, "watch", f"day{number}.npz", "--state", "s.json", "--prometheus", "s.prom")
        for number in range(6)
    ]

    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, outputs
    monitor = hcal.Monitor.load(tmp_path / "s.json")
    assert monitor.n == 3000
    assert len(monitor.files) == 6
    # The counts are those of the last state, not of a process that wrote later and read earlier.
    assert (tmp_path / "s.prom").read_text() == monitor.prometheus()


def test_a_link_and_its_file_have_one_lock(tmp_path: Path) -> None:
    state = tmp_path / "s.json"
    hcal.Monitor().save(state)
    link = tmp_path / "link.json"
    link.symlink_to(state)
    with (
        alone(link),
        pytest.raises(TimeoutError, match="another process has held"),
        alone(state, patience=0.05),
    ):
        pass


def test_a_lock_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    """Waiting for it would take ten minutes."""
    if not Path("/proc/self").is_dir():
        pytest.skip("a system without /proc")
    with pytest.raises(OSError, match="cannot lock /proc/state"), alone("/proc/state.json"):
        raise AssertionError("there is no such lock")
    for device in ("/dev/null", "/dev/full"):
        with pytest.raises(ValueError, match="not a regular file"), alone(device):
            raise AssertionError("there is no such lock")
        assert not Path(f"{device}.lock").exists()
