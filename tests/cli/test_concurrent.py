"""Several processes that run one command on one file at the same time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hcal
from command_line import start


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
