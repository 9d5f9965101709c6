"""Rows larger than memory, made block by block: memory and time of apply, evaluate and fit; one worker, two.

    python benchmarks/scale.py --rows 10_000_000 --classes 10
    python benchmarks/scale.py --rows 128_000 --classes 1000

The sizes of the issue, on an idle machine: ``--rows 100_000_000 --classes 10`` and ``--rows 1_280_000
--classes 1000``. Every line is measured in processes of its own; memory is the peak of a process, whole.
``per_row`` is CPU seconds of a pass (neighbours do not change it) without the making of rows. In memory,
``--memory-rows`` of them are one array. Two workers are compared by the clock: on an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS_A_PIECE = 4
METHODS = ("ts", "vs")


def make_task(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits in float32 with about 76 % accuracy at K = 1000, over-confident by a factor of 1.5."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes), dtype=np.float32)
    logits *= 1.3
    y = rng.integers(0, classes, rows)
    logits[np.arange(rows), y] += rng.normal(7, 3, rows).astype(np.float32)
    logits *= 1.5
    return logits, y


def memory(field: str) -> int:
    """Return a line of this process's status in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


@dataclass(frozen=True)
class Made:
    """Some blocks of rows that exist while they are looked at."""

    first: int
    blocks: int
    rows: int
    classes: int

    def __call__(self) -> Iterator[Any]:
        from hcal.io import Batch

        for number in range(self.first, self.first + self.blocks):
            scores, y = make_task(self.rows, self.classes, seed=number)
            yield Batch(scores, "logits", y, number * self.rows)


def pieces(rows: int, classes: int) -> list[Made]:
    from hcal.io.blocks import NUMBERS, ROWS

    size = min(ROWS, NUMBERS // classes, rows)
    blocks = max(1, round(rows / size))
    return [
        Made(at, min(BLOCKS_A_PIECE, blocks - at), size, classes) for at in range(0, blocks, BLOCKS_A_PIECE)
    ]


def seen(found: list[Made]) -> int:
    return sum(piece.blocks * piece.rows for piece in found)


# -- what is done with a piece ---------------------------------------------------------------------------


def make(piece: Made) -> int:
    return sum(len(batch) for batch in piece())


def apply(calibrator: Any, piece: Made) -> float:
    return sum(float(calibrator.predict_proba(batch.scores).max(axis=1).sum()) for batch in piece())


def evaluate(calibrator: Any, piece: Made) -> Any:
    from hcal.metrics import StreamingMetrics

    part = StreamingMetrics(piece.classes)
    for batch in piece():
        part.update(calibrator.predict_proba(batch.scores), batch.y)
    return part


def passes(calibrator: Any, found: list[Made], run: Any) -> dict[str, Callable[[], int]]:
    """Return what is measured, by name; each gives the number of its passes over the rows."""
    import hcal
    from hcal.metrics import StreamingMetrics
    from hcal.passes import merged

    def summed() -> int:
        whole = merged(run(partial(evaluate, calibrator), found), partial(StreamingMetrics, found[0].classes))
        assert whole.n == seen(found)
        return 1

    def fitted(method: str) -> int:
        made = hcal.fit_batches(hcal.make_calibrator(method), found, run=run)
        return int(made.info_["batches"]["passes"])

    works: dict[str, Callable[[], int]] = {
        "make": lambda: len(list(run(make, found))) and 1,
        "apply": lambda: len(list(run(partial(apply, calibrator), found))) and 1,
        "evaluate": summed,
    }
    return works | {f"fit {method}": partial(fitted, method) for method in METHODS}


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds by the clock and of the processor, and what the work gave."""
    start, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - start, time.process_time() - cpu, found


# -- the measurements, each in a process of its own ----------------------------------------------------------


def calibrated(classes: int) -> Any:
    import hcal

    return hcal.make_calibrator("vs").fit(*make_task(min(20_000, 2_000_000 // classes), classes, seed=10**6))


def streamed(name: str, rows: int, classes: int) -> dict[str, Any]:
    found, calibrator = pieces(rows, classes), calibrated(classes)
    passes(calibrator, pieces(1000, classes), map)[name]()  # imports, and kernels compiled or loaded
    works = passes(calibrator, found, map)
    _, making, _ = timed(works["make"])
    total, cpu, count = timed(works[name])
    n = seen(found)
    return {
        "how": "streamed",
        "what": name,
        "rows": n,
        "classes": classes,
        "seconds": total,
        "passes": count,
        "per_row": (cpu / count - making) / n,
        "peak_gb": memory("VmHWM") / 1e9,
    }


def in_memory(name: str, rows: int, classes: int) -> dict[str, Any]:
    import hcal
    from hcal.metrics import StreamingMetrics

    calibrator = calibrated(classes)
    works: dict[str, Callable[[Any, Any], Any]] = {
        "apply": lambda x, y: calibrator.predict_proba(x).max(axis=1).sum(),
        "evaluate": lambda x, y: StreamingMetrics(classes).update(calibrator.predict_proba(x), y),
    }
    works |= {f"fit {m}": lambda x, y, m=m: hcal.make_calibrator(m).fit(x, y) for m in METHODS}
    works[name](*make_task(1000, classes))
    scores, y = make_task(rows, classes)
    total, cpu, _ = timed(partial(works[name], scores, y))
    return {
        "how": "in memory",
        "what": name,
        "rows": rows,
        "classes": classes,
        "seconds": total,
        "per_row": cpu / rows,
        "peak_gb": memory("VmHWM") / 1e9,
    }


def files(rows: int, classes: int, *, blocks: bool) -> dict[str, Any]:
    """A file of logits to a file of probabilities: read, predict, write."""
    from hcal.io import Request, batches, read, write_blocks, write_probs

    calibrator = calibrated(classes)
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "scores.npy", Path(folder) / "probs.npy"
        found = pieces(rows, classes)
        made = np.lib.format.open_memmap(given, "w+", np.float32, (seen(found), classes))
        for piece in found:
            for batch in piece():
                made[batch.start : batch.start + len(batch)] = batch.scores
        made.flush()
        del made
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here

        def whole() -> int:
            write_probs(out, calibrator.predict_proba(read(given, Request(input="logits")).values), None)
            return 1

        def streaming() -> int:
            source = batches(given, Request(input="logits"))
            with write_blocks(out, source.n_rows or 0) as write:
                for batch in source:
                    write(calibrator.predict_proba(batch.scores), None)
            return 1

        calibrator.predict_proba(make_task(1000, classes)[0])
        total, cpu, _ = timed(streaming if blocks else whole)
    return {
        "how": "streamed file" if blocks else "whole file",
        "what": "apply",
        "rows": seen(found),
        "classes": classes,
        "seconds": total,
        "per_row": cpu / seen(found),
        "peak_gb": memory("VmHWM") / 1e9,
    }


def warm(calibrator: Any, classes: int) -> None:
    """Import and compile what the first block of a process would wait for."""
    works = passes(calibrator, pieces(1000, classes), map)
    for name in ("evaluate", "fit ts"):
        works[name]()


def clustered(workers: int, rows: int, classes: int) -> list[dict[str, Any]]:
    import distributed

    from hcal.integrations.dask import Runner

    found, lines = pieces(rows, classes), []
    calibrator = calibrated(classes)
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0", memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        works = passes(calibrator, found, Runner(client))
        client.run(warm, calibrator, classes)
        for name in ("evaluate", "fit ts"):
            before = sum(client.run(time.process_time).values())
            total, cpu, count = timed(works[name])
            peaks = client.run(memory, "VmHWM").values()
            lines.append(
                {
                    "how": f"{workers} Dask worker{'s' * (workers > 1)}",
                    "what": name,
                    "rows": seen(found),
                    "classes": classes,
                    "seconds": total,
                    "passes": count,
                    "seconds_a_pass": total / count,
                    "client_cpu": cpu,  # and the scheduler's, which is a thread of it
                    "workers_cpu": sum(client.run(time.process_time).values()) - before,
                    "peak_gb": max(peaks) / 1e9,
                }
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--memory-rows", type=int, help="rows of one array; default: 20 million numbers")
    parser.add_argument("--skip", default="", help="of streamed, memory, files, workers; by commas")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    held = asked.memory_rows or 20_000_000 // asked.classes
    each = ["apply", "evaluate", *(f"fit {m}" for m in METHODS)]
    jobs: dict[str, Callable[[], Any]] = {}
    for name in each:
        jobs[f"streamed {name}"] = partial(streamed, name, asked.rows, asked.classes)
        jobs[f"memory {name}"] = partial(in_memory, name, held, asked.classes)
    for blocks in (False, True):
        jobs[f"files {blocks}"] = partial(files, held, asked.classes, blocks=blocks)
    for workers in (1, 2):
        jobs[f"workers {workers}"] = partial(clustered, workers, asked.rows, asked.classes)
    if asked.one:
        print(json.dumps(jobs[asked.one]()))
        return
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    for job in jobs:
        if job.split()[0] in asked.skip.split(","):
            continue
        load = os.getloadavg()[0]
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--one", job], env=environment, stdout=subprocess.PIPE,
            check=True, text=True,
        )  # fmt: skip
        found = json.loads(done.stdout.strip().splitlines()[-1])
        for line in found if isinstance(found, list) else [found]:
            line["load"] = load
            print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
