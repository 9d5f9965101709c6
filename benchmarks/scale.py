"""Commands on files larger than memory: time and memory of apply, evaluate and fit; one Dask worker and two.

    python benchmarks/scale.py --rows 100_000_000 --classes 2
    python benchmarks/scale.py --rows 1_280_000 --classes 1000

Makes a file ``rows.npz`` in a folder for the while, runs every command in a process of its own, and prints
seconds by the clock, CPU seconds and the peak of its memory as JSON lines (``-o`` also writes them). Two workers are
compared with one by the clock: on an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np

#: Numbers that are made at a time.
BLOCK = 20_000_000
#: Scores that a fit learns from.
SAMPLE = 20_000_000


def make_files(folder: Path, rows: int, classes: int) -> None:
    """Write logits in float32, over-confident by a factor of 1.5, and labels."""
    size = max(1, BLOCK // classes)
    scores = np.lib.format.open_memmap(folder / "logits.npy", "w+", np.float32, (rows, classes))
    labels = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int64, (rows,))
    for start in range(0, rows, size):
        rng = np.random.default_rng(start)
        logits = rng.standard_normal((min(size, rows - start), classes), dtype=np.float32) * 1.3
        y = rng.integers(0, classes, len(logits))
        signal = rng.normal(2 + np.log(classes) / 1.4, 2, len(y))
        logits[np.arange(len(y)), y] += signal.astype(np.float32)
        block = slice(start, start + len(y))
        scores[block] = logits * 1.5
        labels[block] = y
    np.savez(folder / "rows.npz", logits=scores, y=labels)
    for name in ("logits.npy", "y.npy"):
        (folder / name).unlink()


def run(words: list[str]) -> dict[str, Any]:
    """Run a command of hcal; return what it cost."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "hcal", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"hcal {' '.join(words)} failed")
    return {"seconds": time.perf_counter() - start, "cpu_s": used.ru_utime + used.ru_stime,
            "peak_gb": used.ru_maxrss * 1024 / 1e9}  # fmt: skip


@contextmanager
def scheduler(workers: int) -> Iterator[str]:
    """Start a Dask cluster of processes with one thread each; yield its address."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", memory_limit=0
    ) as cluster:
        yield cluster.scheduler_address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[1, 2], help="sizes of Dask clusters"
    )
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = Process(target=make_files, args=(folder, options.rows, options.classes))
        maker.start()  # a process of its own: what starts a command lends it the peak of its memory
        maker.join()
        model = str(folder / "model.hcal")
        columns = [
            str(folder / "rows.npz"),
            "--quiet",
            "--batch-rows",
            str(BLOCK // 10 // options.classes),
        ]
        fit = ["fit", *columns, "-o", model]
        apply = ["apply", model, *columns, "-o", str(folder / "probs.npy")]
        evaluate = ["evaluate", *columns, "--model", model]
        sample = min(200_000, SAMPLE // options.classes)
        jobs = {
            f"fit ts, {sample:,} rows": [*fit, "--method", "ts", "--sample-rows", str(sample)],
            f"fit pool, {sample:,} rows": [*fit, "--sample-rows", str(sample)],
            "apply": apply,
            "evaluate": evaluate,
        }
        for what, words in jobs.items():
            lines.append({"what": what, **run(words)})
            print(json.dumps(lines[-1]), flush=True)
        for workers in options.workers:
            with scheduler(workers) as address:
                run([*evaluate, "--scheduler", address])  # workers import and compile once
                lines.append(
                    {
                        "what": f"evaluate, {workers} Dask",
                        **run([*evaluate, "--scheduler", address]),
                    }
                )
            print(json.dumps(lines[-1]), flush=True)
    if options.output:
        records = [{"rows": options.rows, "classes": options.classes, **line} for line in lines]
        texts = []
        for record in records:
            rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in record.items()}
            texts.append(json.dumps(rounded))
        text = "\n".join(texts)
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
