"""Commands on files that memory does not hold: the same answers by blocks, in processes, and after a kill."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hcal
from hcal.calibrators.batched import apply_batches
from hcal.cli.app import app
from hcal.io import Request, batches, read
from hcal.evaluation import blocks as batched
from hcal.passes import Processes, WorkerDiedError
from helpers import synthetic

N = 6000
#: Of those that are added up over all rows, and those that are not.
EXACT = ("nll", "brier", "accuracy", "ece_ew", "cwece_a", "tcwece")


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, test rows in one file, and the same rows in a folder of tables with names and ids."""
    home = tmp_path_factory.mktemp("scale")
    x, y = synthetic(n=1000, seed=1)
    hcal.save(hcal.make_calibrator("ts").fit(x, y), home / "m.hcal")
    x, y = synthetic(n=N, seed=2)
    np.savez(home / "whole.npz", logits=x, y=y, g=np.arange(N) % 3)
    (home / "parts" / "deep").mkdir(parents=True)
    frame = pd.DataFrame(x, columns=[f"logits_{k}" for k in range(x.shape[1])])
    frame = frame.assign(y=y, key=[f"r{i}" for i in range(N)])
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        where = home / "parts" / ("deep" if number == 0 else "") / f"p{number}.parquet"
        frame.iloc[rows].to_parquet(where, row_group_size=700)
    (home / "parts" / "_SUCCESS").touch()
    return home


# -- apply ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [".npz", ".npy", ".csv", ".parquet"])
def test_apply_by_blocks_writes_what_apply_writes(folder: Path, tmp_path: Path, type_: str) -> None:
    model, data = folder / "m.hcal", folder / "whole.npz"
    one, other = tmp_path / f"one{type_}", tmp_path / f"other{type_}"
    run("apply", model, data, "-o", one, "-q")
    told = json.loads(run("apply", model, data, "-o", other, "--batch-rows", 777, "--json"))
    assert told["rows"] == N
    if type_ == ".csv":
        assert one.read_bytes() == other.read_bytes()
        return
    a, b = (read(path, Request(input="probs")) for path in (one, other))
    assert a.values.dtype == b.values.dtype
    np.testing.assert_array_equal(a.values, b.values)
    if a.y is not None:
        np.testing.assert_array_equal(a.labels(), b.labels())


def test_apply_to_a_folder_in_the_order_of_its_files(folder: Path, tmp_path: Path) -> None:
    ids = "id", "--id", "key"
    run("apply", folder / "m.hcal", folder / "parts", "-o", tmp_path / "o.npz", *ids[1:], "-q")
    run("apply", folder / "m.hcal", folder / "parts" / "*.parquet", "-o", tmp_path / "two.csv", "-q")
    whole = hcal.load(folder / "m.hcal").predict_proba(np.load(folder / "whole.npz")["logits"])
    found = np.load(tmp_path / "o.npz")
    np.testing.assert_array_equal(found["probs"], whole.astype(found["probs"].dtype))
    np.testing.assert_array_equal(found["key"], [f"r{i}" for i in range(N)])
    assert len(pd.read_csv(tmp_path / "two.csv")) == N - N // 3
    # 3 files in, 3 files of the same names out.
    done = run("apply", folder / "m.hcal", folder / "parts", "-o", tmp_path / "out", "--json")
    names = {p.name for p in (folder / "parts").rglob("*.parquet")}
    assert json.loads(done)["parts"] == len(names)
    assert {p.name for p in (tmp_path / "out").iterdir()} == names
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "exists" in fails("apply", folder / "m.hcal", folder / "parts", "-o", tmp_path / "full")


# -- evaluate, certify ----------------------------------------------------------------------------


def test_evaluate_by_blocks_says_what_is_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ("--model", folder / "m.hcal", "--json")
    asked = ("--metrics", ",".join([*EXACT, "ks", "dece"]))
    whole = json.loads(run("evaluate", folder / "whole.npz", *model, *asked))
    # As many rows as the sample holds: nothing is left to chance.
    small = json.loads(run("evaluate", folder / "parts", *model, *asked))
    assert small["metrics"] == pytest.approx(whole["metrics"], abs=1e-9)
    assert set(small["how"].values()) == {"all rows"}
    monkeypatch.setattr(batched, "SAMPLE_ROWS", 500)
    found = json.loads(run("evaluate", folder / "parts", *model, *asked, "--batch-rows", 333, "--ci", 0.9))
    for side in ("metrics", "before"):
        for name in EXACT:
            assert found[side][name] == pytest.approx(whole[side][name], rel=1e-12, abs=1e-12)
            assert found["how"][name] == "all rows"
    bound = float(found["how"]["ks"].removeprefix("all rows, within "))
    assert abs(found["metrics"]["ks"] - whole["metrics"]["ks"]) <= bound * 1.1  # printed with two digits
    assert found["how"]["dece"] == "sample"
    assert (found["rows"], found["sample_rows"]) == (N, 500)
    assert found["argmax_changed"] == whole["argmax_changed"]
    low, high = found["intervals"]["nll"]
    assert low < high
    shown = run("evaluate", folder / "parts", *model[:2], *asked, "--no-diagram")
    assert "seeded sample of 500 of 6,000 rows: dece" in shown


def test_certify_by_blocks_and_never_on_rows_of_the_fit(folder: Path, tmp_path: Path) -> None:
    named = ("certify", folder / "whole.npz", "--classes", "ant,bee,cat,dog")
    by_blocks, whole = (json.loads(run(*named, "--json", *more)) for more in (("--batch-rows", 500), ()))
    assert by_blocks["classes"]["names"] == whole["classes"]["names"] == ["ant", "bee", "cat", "dog"]
    rows = batches(folder / "whole.npz", Request(classes=("ant", "bee", "cat", "dog")), rows=500)
    proven = batched.evaluate_batches(rows, metrics=["nll"], ci=0.95).result.certificate
    assert proven is not None
    assert proven.classes is not None
    assert proven.classes.title(2) == "class cat"
    told = json.loads(run("certify", folder / "whole.npz", "--group", "g", "--batch-rows", 500, "--json"))
    assert told["n"] == N
    assert len(told["groups"]) == 3
    x, y = synthetic(n=1000, seed=1)
    fresh, labels = synthetic(n=1000, seed=5)
    np.savez(tmp_path / "mixed.npz", logits=np.concatenate([fresh, x]), y=np.concatenate([labels, y]))
    model = ("--model", folder / "m.hcal", "--batch-rows", 300)
    assert "used to fit" in fails("certify", tmp_path / "mixed.npz", *model)
    result = CliRunner().invoke(
        app, [str(a) for a in ("evaluate", tmp_path / "mixed.npz", *model, "--metrics", "nll")]
    )
    assert "learned from are among these" in result.stderr


def test_fit_by_blocks_is_the_fit(folder: Path, tmp_path: Path) -> None:
    for name, options in (("whole", ()), ("blocks", ("--batch-rows", 777))):
        told = json.loads(
            run(
                "fit", folder / "parts", "--method", "ts", "-o", tmp_path / f"{name}.hcal", *options, "--json"
            )
        )
        assert told["rows"] == N
    x = np.load(folder / "whole.npz")["logits"][:200]
    one, other = (hcal.load(tmp_path / f"{name}.hcal").predict_proba(x) for name in ("whole", "blocks"))
    np.testing.assert_allclose(one, other, atol=1e-6)  # sums in another order, on to a solver that stops


# -- processes --------------------------------------------------------------------------------------


def test_workers_change_nothing_even_killed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply to a folder and evaluate, with two processes of which one is killed in the middle."""
    calibrator = hcal.load(folder / "m.hcal")
    source = batches(folder / "parts", Request(id="key"), rows=200)
    monkeypatch.setattr(batched, "SAMPLE_ROWS", 500)
    metrics = ["nll", "ks", "dece"]
    killed: list[int] = []
    apply_batches(calibrator, source, tmp_path / "alone")
    done = apply_batches(
        calibrator, source, tmp_path / "two", driver=Processes(2), advance=lambda rows: _kill_one(killed)
    )
    assert done.rows == N
    names = sorted(p.name for p in (tmp_path / "alone").iterdir())
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == names
    for name in names:
        assert pd.read_parquet(tmp_path / "alone" / name).equals(pd.read_parquet(tmp_path / "two" / name))
    assert not list(tmp_path.glob(".hcal-tmp-*"))
    assert len(killed) == 1
    one = batched.evaluate_batches(source, calibrator, metrics)
    two = batched.evaluate_batches(  # one process at a time: they are slow to come
        source, calibrator, metrics, driver=Processes(1), advance=lambda rows: _kill_one(killed, 2)
    )
    assert len(killed) == 2
    assert one.result.to_dict() == two.result.to_dict()
    np.testing.assert_array_equal(one.sample.scores, two.sample.scores)


def _kill_one(killed: list[int], most: int = 1) -> None:
    """Kill a worker of this process, after its first piece and before its last."""
    if len(killed) < most:
        killed.append(active_children()[-1].pid or 0)
        os.kill(killed[-1], signal.SIGKILL)


def test_a_piece_that_kills_every_worker_is_one_line() -> None:
    with pytest.raises(WorkerDiedError, match="killed, one after the other"):
        list(Processes(1)(signal.raise_signal, [signal.SIGKILL]))


# -- memory -----------------------------------------------------------------------------------------


def test_a_file_larger_than_memory(tmp_path: Path) -> None:
    """240 MB of scores under a limit of address space: refused in one line, done by blocks."""
    n, limit = 6_000_000, 1_300_000_000
    np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (n, 10))  # zeros, and no disk for them
    x, y = synthetic(n=500, k=10, seed=1)
    hcal.save(hcal.make_calibrator("ts").fit(x, y), tmp_path / "m.hcal")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hcal", "apply", "m.hcal", "big.npy", "-o", "p.npy", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )

    refused = call()
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert "needs about 1.2 GB" in refused.stderr
    assert "--batch-rows" in refused.stderr
    done = call("--batch-rows", "65536")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "p.npy", mmap_mode="r").shape == (n, 10)
