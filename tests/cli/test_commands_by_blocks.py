"""Commands on files that memory does not hold: folders, blocks, processes; the answers are those of one file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.passes import Processes, WorkerDiedError
from helpers import synthetic

pd = pytest.importorskip("pandas")
N = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("blocks")
    z, y = synthetic(N, seed=2)
    np.savez(where / "whole.npz", logits=z, y=y, key=np.arange(N))
    (where / "parts").mkdir()
    for i in range(4):
        rows = slice(i * N // 4, (i + 1) * N // 4)
        frame = pd.DataFrame(z[rows], columns=[f"logits_{k}" for k in range(4)])
        part = frame.assign(y=y[rows], key=np.arange(N)[rows])
        part.to_parquet(where / "parts" / f"{i}.parquet")
    cal, labels = synthetic(1000, seed=1)
    hcal.save(hcal.make_calibrator("ts").fit(cal, labels), where / "m.hcal")
    return where


def test_apply_is_the_same_by_blocks_and_by_files(folder: Path, tmp_path: Path) -> None:
    model = folder / "m.hcal"
    run("apply", model, folder / "whole.npz", "-o", tmp_path / "a.npz")
    run("apply", model, folder / "whole.npz", "-o", tmp_path / "b.npz", "--batch-rows", 300)
    run("apply", model, folder / "parts", "--id", "key", "-o", tmp_path / "parts")
    run("apply", model, folder / "parts", "--id", "key", "-o", tmp_path / "one.csv")
    expected = np.load(tmp_path / "a.npz")["probs"]
    np.testing.assert_array_equal(np.load(tmp_path / "b.npz")["probs"], expected)
    applied = pd.concat([pd.read_parquet(tmp_path / "parts" / f"{i}.parquet") for i in range(4)])
    np.testing.assert_array_equal(applied[[f"probs_{k}" for k in range(4)]], expected)
    assert applied["key"].tolist() == list(range(N))
    one = pd.read_csv(tmp_path / "one.csv")
    np.testing.assert_allclose(one[[f"probs_{k}" for k in range(4)]], expected, rtol=1e-12)


def test_the_name_of_an_option_before_is_refused_with_the_new_one(folder: Path) -> None:
    command = ("evaluate", folder / "whole.npz", "--workers", 2)
    assert "--workers is now --jobs" in run(*command, code=2).stderr


def test_evaluate_certify_fit_and_report_by_blocks(folder: Path, tmp_path: Path) -> None:
    of_model = ("--model", folder / "m.hcal", "--metrics", "nll,brier,ece_ew", "--json")
    in_memory = json.loads(run("evaluate", folder / "whole.npz", *of_model).stdout)
    blocks = json.loads(run("evaluate", folder / "parts", *of_model).stdout)
    for name, row in blocks["metrics"].items():
        assert row["value"] == pytest.approx(in_memory["metrics"][name]["value"], rel=1e-9)
    assert blocks["changed"] == in_memory["changed"]
    certificate = json.loads(
        run("certify", folder / "whole.npz", "--batch-rows", 300, "--json").stdout
    )
    assert certificate["n"] == N
    for name, options in (
        ("whole", ()),
        ("blocks", ("--batch-rows", 777)),
        ("sample", ("--sample-rows", 1500)),
    ):
        run(
            "fit",
            folder / "parts",
            "--method",
            "ts",
            "-o",
            tmp_path / f"{name}.hcal",
            *options,
            "--json",
        )
    temperatures = []
    for name in ("whole", "blocks"):
        model = hcal.load(tmp_path / f"{name}.hcal")
        temperatures.append(model.fit_.details["temperature"])
    one, two = temperatures
    assert one == pytest.approx(two, rel=1e-6)
    assert hcal.load(tmp_path / "sample.hcal").fit_.rows == 1500
    run("report", folder / "parts", "--model", folder / "m.hcal", "-o", tmp_path / "r.html")
    assert (tmp_path / "r.html").exists()


def test_rows_of_the_fit_are_found_among_blocks(folder: Path, tmp_path: Path) -> None:
    z, y = synthetic(1000, seed=1)
    fresh, labels = synthetic(1000, seed=5)
    scores = np.concatenate([fresh, z])
    np.savez(tmp_path / "mixed.npz", logits=scores, y=np.concatenate([labels, y]))
    model = ("--model", folder / "m.hcal", "--batch-rows", 300)
    assert "used to fit" in run("certify", tmp_path / "mixed.npz", *model, code=1).stderr


@pytest.mark.slow
def test_workers_change_nothing(folder: Path, tmp_path: Path) -> None:
    for words in (("evaluate", "--metrics", "nll,brier"), ("report", "-o", tmp_path / "r.html")):
        command = (*words, folder / "parts", "--json")
        one = json.loads(run(*command).stdout)
        two = json.loads(run(*command, "--jobs", 2).stdout)
        for content in (one, two):
            content.pop("run", None)  # the command of a report
        assert one == two
    with patch("hcal.passes.Processes.__call__", side_effect=RuntimeError("asked")):
        page = tmp_path / "r.html"
        refused = run("report", folder / "parts", "-o", page, "--jobs", 2, code=1)
        assert "asked" in refused.stderr
    model = folder / "m.hcal"
    run("apply", model, folder / "parts", "-o", tmp_path / "two", "--jobs", 2)
    assert len(list((tmp_path / "two").iterdir())) == 4
    with pytest.raises(WorkerDiedError, match="was killed"):
        list(Processes(2)(signal.raise_signal, [signal.SIGKILL]))


@pytest.mark.slow
def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """240 MB of scores under a limit on the address space: evaluate names the way out, apply reads by blocks."""
    n, limit = 6_000_000, 1_300_000_000
    np.lib.format.open_memmap(
        tmp_path / "big.npy", "w+", np.float32, (n, 10)
    )  # zeros, and no disk for them
    np.save(tmp_path / "y.npy", np.zeros(n, dtype=np.int8))
    x, y = synthetic(n=500, k=10, seed=1)
    hcal.save(hcal.make_calibrator("ts").fit(x, y), tmp_path / "m.hcal")

    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def call(words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hcal", *words.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | one_thread,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )

    refused = call("evaluate big.npy --input logits --labels y.npy")
    assert refused.returncode == 1, refused.stderr
    assert "--batch-rows" in refused.stderr, refused.stderr
    done = call("apply m.hcal big.npy -o p.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "p.npy", mmap_mode="r").shape == (n, 10)
