"""Metrics and a watch over several ranks: four processes over gloo say what one says of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch import multiprocessing as mp

import hcal
from hcal.integrations.torch_distributed import DistributedMetrics, DistributedMonitor
from hcal.metrics.streaming import StreamingMetrics
from helpers import synthetic

RANKS = 4


def _share(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one rank, of its own number: the last has none."""
    logits, y = synthetic(400, 3, seed=rank)
    rows = (400, 250, 90, 0)[rank]
    return torch.from_numpy(logits[:rows]), torch.from_numpy(y[:rows])


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    metrics = DistributedMetrics(3, input="logits")
    watch = DistributedMonitor(input="logits")
    logits, y = _share(rank)
    for rows in (slice(0, 30), slice(30, None)):
        metrics(logits[rows], y[rows])
        watch(logits[rows], y[rows])
        watch.compute()
    results = {
        "metrics": metrics.compute(),
        "again": metrics.compute(),
        "evidence": watch.log_evidence,
    }
    results |= {"own": watch.part.state, "alarm": watch.alarm, "kept": watch.state_dict()}
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("ranks")
    # One import for four processes, none of them forked from this one and its threads.
    mp.get_context("forkserver").set_forkserver_preload(["hcal.integrations.torch_distributed"])
    mp.start_processes(_work, (str(folder),), nprocs=RANKS, start_method="forkserver")
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def test_sums_over_ranks_are_the_metrics_of_all_rows(ranks: list[dict[str, object]]) -> None:
    shares = [_share(rank) for rank in range(RANKS)]
    logits, y = (np.concatenate(parts) for parts in zip(*shares, strict=True))
    of_all_rows = StreamingMetrics(3).update(hcal.softmax(logits), y).result()
    for rank in ranks:
        assert rank["metrics"] == pytest.approx(of_all_rows, abs=1e-12)
        assert rank["again"] == rank["metrics"] == ranks[0]["metrics"]


def test_capitals_of_ranks_multiply(ranks: list[dict[str, object]]) -> None:
    parts = [_share(rank) for rank in range(RANKS)]
    monitors = []
    for z, y in parts:
        if len(y):
            monitors.append(hcal.Monitor().update(hcal.softmax(z.numpy()), y))
    for rank in ranks:
        expected = sum(m.log_evidence for m in monitors)
        assert rank["evidence"] == pytest.approx(expected, abs=1e-9)
        assert rank["alarm"] == ranks[0]["alarm"]
    alarm = ranks[0]["alarm"]
    assert isinstance(alarm, hcal.certificates.monitor.Alarm)
    assert alarm.row in (90, 740)  # the rows of all ranks when it was first looked at, and then
    back = DistributedMonitor(input="logits")
    back.load_state_dict(ranks[1]["kept"])  # type: ignore[arg-type]
    assert back.alarm == alarm
    assert back.part.state == ranks[1]["own"]


def test_one_process_needs_no_group_and_training_cannot_touch_the_sums() -> None:
    module = DistributedMetrics(3, ["nll"], input="logits")
    logits, y = _share(0)
    module(logits, y)
    assert list(module.buffers()) == list(module.parameters()) == []  # nothing for DDP to overwrite
    before = module.half().compute()
    again = DistributedMetrics(3, ["nll"], input="logits")
    again.load_state_dict(module.state_dict())
    expected = StreamingMetrics(3, ["nll"]).update(hcal.softmax(logits.numpy()), y)
    assert again.compute() == before
    assert before == expected.result()
    module.reset()
    with pytest.raises(ValueError, match="no part was added"):
        module.compute()
    with pytest.raises(ValueError, match="input must be one of"):
        DistributedMetrics(3, input="odds")  # type: ignore[arg-type]
