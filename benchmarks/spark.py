"""Rows a second of Spark in one JVM, beside one core without Spark, on the same parquet files.

    python benchmarks/spark.py --rows 2_000_000 --cores 1 2

Each number is the second of two runs: the first one starts the workers. Needs Java and pyspark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hcal
from hcal.io import Request, batches

#: Rows of a file, which is a partition.
FILE_ROWS = 250_000
REQUEST = Request(scores="logit_*", label="y", input="logits")


def write_files(folder: Path, rows: int, classes: int) -> None:
    """Write files of over-confident logits and labels."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for part, start in enumerate(range(0, rows, FILE_ROWS)):
        rng = np.random.default_rng(part)
        logits = rng.standard_normal((min(FILE_ROWS, rows - start), classes)) * 2
        y = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        columns = {f"logit_{k}": logits[:, k] for k in range(classes)}
        parquet.write_table(pa.table({**columns, "y": y}), folder / f"{part:03}.parquet")


def session(cores: int) -> Any:
    """Return a Spark session with so many cores."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # Each file is a partition.
    started = builder.config("spark.sql.files.openCostInBytes", str(2**27)).getOrCreate()
    started.sparkContext.setLogLevel("OFF")
    return started


def seconds_of(work: Callable[[], Any]) -> list[float]:
    """Return how long two runs take."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def report(where: str, what: str, rows: int, work: Callable[[], Any]) -> None:
    """Print the rows a second of some work as a JSON line."""
    first, second = seconds_of(work)
    line = {
        "where": where,
        "what": what,
        "rows": rows,
        "first_s": round(first, 1),
        "second_s": round(second, 1),
        "rows_per_s": round(rows / second),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    from hcal.integrations import spark as on_spark

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, args.rows, args.classes)
        sample = batches(folder, REQUEST).as_source().sample(20_000)
        model = hcal.PooledCalibrator().fit(sample)
        model.remember_source(REQUEST.for_refit("logits", segmented=False), "", "", "")
        fresh = {"metrics": ["nll", "brier", "ece_ew"]}
        target = folder.with_name(f"{folder.name}-probs")
        report("one core", "predict", args.rows, lambda: hcal.apply(
            model, folder, target, keep=True, overwrite=True))  # fmt: skip
        report("one core", "evaluate", args.rows, lambda: hcal.evaluate(
            model, batches(folder, REQUEST), **fresh))  # fmt: skip
        for cores in args.cores:
            spark = session(cores)
            frame = spark.read.parquet(name)
            where = f"Spark, {cores} cores"
            report(where, "predict", args.rows, lambda frame=frame: on_spark.transform(
                frame, model).write.mode("overwrite").parquet(f"{target}-spark"))  # fmt: skip
            report(where, "evaluate", args.rows, lambda frame=frame: on_spark.evaluate(
                frame, model, REQUEST, **fresh))  # fmt: skip
            spark.stop()


if __name__ == "__main__":
    main()
