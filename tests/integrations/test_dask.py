"""Dask on four worker processes: the answers of one process, whatever dies on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hcal
from hcal.certificates import CertificateStream
from hcal.cli.app import app
from hcal.metrics import METRICS, StreamingMetrics
from helpers import synthetic

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import dask.array as da  # noqa: E402
import dask.dataframe as dd  # noqa: E402

import hcal.integrations.dask as on_dask  # noqa: E402

# Older versions of Dask warn where a test compares the cluster with this process.
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")

ROWS, CLASSES = 3000, 4
LOGITS, Y = synthetic(ROWS, CLASSES)
CAL = hcal.make_calibrator("vs").fit(*synthetic(1000, CLASSES, seed=1))
PROBS = CAL.predict_proba(LOGITS)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    # Workers are forked from a process that has the imports: four times torch would be most of the test.
    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.comm.timeouts.connect": "5s",  # who calls a dead worker tries for so long
    }
    with dask.config.set(options):
        from distributed.utils import get_mp_context

        get_mp_context().set_forkserver_preload(["hcal.integrations.dask"])
        with (
            distributed.LocalCluster(
                n_workers=4, threads_per_worker=1, dashboard_address=":0", memory_limit=0
            ) as cluster,
            distributed.Client(cluster) as connected,
        ):
            yield connected


def _die_once(block: Any, mark: str, number: int, block_id: tuple[int, ...] = (0,)) -> Any:
    """Pass a block on; at one of them the process is killed, the first time that it is seen."""
    if block_id[0] == number:
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def _arrays() -> tuple[Any, Any]:
    return da.from_array(LOGITS, chunks=(400, 2)), da.from_array(Y, chunks=700)


# -- predictions -----------------------------------------------------------------------------------------


def test_predictions_are_lazy_and_those_of_one_process(client: Any, tmp_path: Path) -> None:
    x = _arrays()[0].rechunk((400, -1))
    p = on_dask.predict_proba(CAL, x)
    assert len(p.dask.layers) == len(x.dask.layers) + 1
    assert p.shape == x.shape
    assert p.chunks == x.chunks
    assert p.dtype == x.dtype
    np.testing.assert_array_equal(p, PROBS)
    fragile = x.map_blocks(_die_once, str(tmp_path / "mark"), 3, dtype=x.dtype)
    np.testing.assert_array_equal(on_dask.predict_proba(CAL, fragile), PROBS)
    assert (tmp_path / "mark").exists()
    narrow = on_dask.predict_proba(CAL, x.astype(np.float32))
    assert narrow.dtype == narrow.compute().dtype == np.float32


def test_a_graph_keeps_the_fit_that_it_was_made_of() -> None:
    logits, y = synthetic(200, 3)
    cal = hcal.make_calibrator("ts").fit(logits, y)
    expected = cal.predict_proba(logits)
    frame = dd.from_pandas(pd.DataFrame(logits, columns=list("abc")), npartitions=2)
    of_array = on_dask.predict_proba(cal, da.from_array(logits, chunks=(100, 3)))
    of_frame = on_dask.predict_proba(cal, frame)
    cal.fit(3 * logits, y)
    np.testing.assert_array_equal(of_array.compute(scheduler="sync"), expected)
    np.testing.assert_array_equal(of_frame.compute(scheduler="sync"), expected)


def test_frames_keep_their_index_and_get_the_names_of_classes(client: Any) -> None:
    ids = pd.Index(np.arange(ROWS) + 7, name="id")
    frame = pd.DataFrame(LOGITS, columns=list("abcd"), index=ids)
    x = dd.from_pandas(frame, npartitions=5)
    predicted = on_dask.predict_proba(CAL, x)
    assert predicted.npartitions == 5
    assert predicted.divisions == x.divisions
    pd.testing.assert_frame_equal(predicted.compute(), CAL.predict_proba(frame))
    names = ["north", "east", "south", "west"]
    named = hcal.make_calibrator("ts").fit(LOGITS, Y, classes=names)
    rare = float(frame.a.nlargest(2).iloc[-1])
    shuffled = x.rename(columns=dict(zip("abcd", names, strict=True)))[names[::-1]]
    few = on_dask.predict_proba(
        named, shuffled[shuffled.north >= rare]
    )  # most partitions are empty
    assert list(few.columns) == list(few.compute().columns) == names
    expected = frame.index[frame.a >= rare].tolist()
    assert few.compute().index.tolist() == expected


# -- sums --------------------------------------------------------------------------------------------------


def test_dask_streams_and_memory_agree(client: Any, tmp_path: Path) -> None:
    x, y = _arrays()
    p = on_dask.predict_proba(CAL, x)
    sums = on_dask.evaluate(p, y)
    streamed = StreamingMetrics(CLASSES)
    for at in range(0, ROWS, 333):
        streamed.update(PROBS[at : at + 333], Y[at : at + 333])
    bounds = sums.bounds()
    for name, value in sums.result().items():
        assert value == pytest.approx(streamed.result()[name], abs=1e-12)
        exact = METRICS[name].function(PROBS, Y)
        assert value == pytest.approx(exact, abs=1e-12 + bounds[name]), name
    with dask.config.set(scheduler="synchronous"):
        assert on_dask.evaluate(p, y).result() == sums.result()  # to the last bit
    fragile = y.map_blocks(_die_once, str(tmp_path / "mark"), 2, dtype=y.dtype)
    assert on_dask.evaluate(p, fragile).result() == sums.result()
    assert (tmp_path / "mark").exists()
    half = np.where(Y > 1, "high", "low")
    proof = on_dask.certify(p, y, by=da.from_array(half, chunks=1000)).to_dict()
    in_memory = CertificateStream(CLASSES).update(PROBS, Y, half).result().to_dict()
    assert proof["smooth_at_most"] == pytest.approx(in_memory["smooth_at_most"], abs=1e-12)
    assert [g["group"] for g in proof["subgroups"]] == [g["group"] for g in in_memory["subgroups"]]


# -- fits and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["vs", "iso"])
def test_a_fit_on_blocks_is_the_fit_in_memory(method: str, client: Any, tmp_path: Path) -> None:
    x, y = _arrays()
    fragile = y.map_blocks(_die_once, str(tmp_path / "mark"), 2, dtype=y.dtype)
    source = on_dask.rows(x, fragile, input="logits", classes=list("nesw"))
    by_blocks = hcal.make_calibrator(method).fit(source)
    in_memory = hcal.make_calibrator(method).fit(LOGITS, Y)
    np.testing.assert_allclose(
        by_blocks.predict_proba(LOGITS), in_memory.predict_proba(LOGITS), atol=1e-6
    )
    assert by_blocks.classes_.tolist() == list("nesw")
    assert (tmp_path / "mark").exists()


def test_commands_on_a_cluster_say_what_they_say_here(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are relative, and the workers stand in another folder."""
    monkeypatch.chdir(tmp_path)
    np.savez("scores.npz", logits=LOGITS, y=Y)
    hcal.save(CAL, "model.hcal")
    runner = CliRunner()
    for command in (
        ["evaluate", "scores.npz", "--model", "model.hcal", "--json"],
        ["apply", "model.hcal", "scores.npz", "-o", "probs.npz"],
    ):
        outputs = []
        for where in (["--scheduler", client.scheduler.address], []):
            done = runner.invoke(app, [*command, "--batch-rows", "700", *where])
            assert done.exit_code == 0, done.output
            outputs.append(done.stdout)
        assert outputs[0] == outputs[1]
    with np.load("probs.npz") as written:
        np.testing.assert_array_equal(written["probs"], PROBS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: on_dask.predict_proba(CAL, x[:, :2]), "2 classes .* fitted on 4"),
        (lambda x, y: on_dask.predict_proba(CAL, np.zeros((2, 4))), "must be a dask Array"),
        (
            lambda x, y: on_dask.evaluate(x, y[:-1], input="logits"),
            "y has 2999 rows, scores has 3000",
        ),
        (lambda x, y: on_dask.evaluate(x, y + 1, input="logits"), r"block \d: y must lie in 0..3"),
        (
            lambda x, y: on_dask.predict_proba(CAL, x * np.nan).compute(),
            r"block \d: logits contains NaN",
        ),
        (lambda x, y: on_dask.Runner("nowhere:1:2"), "no Dask scheduler answers at 'nowhere:1:2'"),
    ],
)
def test_errors_are_one_line(call: Any, message: str) -> None:
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises((ValueError, TypeError, OSError), match=message),
    ):
        call(*_arrays())


def test_a_driver_keeps_the_order_and_survives_a_worker(client: Any, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    run = on_dask.Runner(client)
    work = [(n, mark, 6, (n,)) for n in range(20)]
    assert list(run(lambda piece: _die_once(*piece), work)) == list(range(20))
    begun = run(str, iter(range(10**9)))  # endless, as far as the cluster can see
    assert next(begun) == "0"
    begun.close()
