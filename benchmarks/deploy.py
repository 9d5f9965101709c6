"""Deployed speed, as ratios in one run: torch eager and compiled against a softmax, ONNX against the graph of ``ts``.

python benchmarks/deploy.py [--device cuda]
python benchmarks/deploy.py --sql            # rows a second of two classes in databases, on one core
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

import hcal
from hcal.integrations.torch import CalibrationHead


def task(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k)).astype(np.float32) * 1.5
    z[np.arange(n), rng.integers(0, k, n)] += 3
    return 2.5 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def seconds(function, wait, repeats: int = 9) -> float:
    function()
    wait()
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def torch_ratios(n: int, k: int, device: str) -> dict[str, float]:
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    z, y = task(n, k)
    head = CalibrationHead(hcal.PooledCalibrator().fit(z, y)).eval().to(device)
    x = torch.from_numpy(z).to(device)
    with torch.inference_mode():
        unit = seconds(lambda: torch.softmax(x, dim=1), wait)
        eager = seconds(lambda: head(x), wait) / unit
        start = time.perf_counter()
        compiled = torch.compile(head, fullgraph=True, dynamic=True)
        compiled(x)
        wait()
        first = time.perf_counter() - start
        start = time.perf_counter()
        compiled(x[: n // 2 + 1])
        wait()
        other = time.perf_counter() - start
        ratio = seconds(lambda: compiled(x), wait) / unit
    return {"eager": eager, "compiled": ratio, "first compile s": first, "other batch s": other}


def onnx_ratios(n: int, k: int) -> dict[str, float]:
    import onnx
    import onnxruntime

    z, y = task(5000, k)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ts", "pool"):
            path = Path(folder) / f"{name}.onnx"
            hcal.export(hcal.make_calibrator(name).fit(z, y), path)
            session = onnxruntime.InferenceSession(str(path))
            run = partial(session.run, None, {"scores": z[:n]})
            figures[f"{name} ms"] = 1e3 * seconds(run, lambda: None, 50)
            figures[f"{name} nodes"] = len(onnx.load(path).graph.node)
    return figures | {"pool over ts": figures["pool ms"] / figures["ts ms"]}


def rows_in_sql(method: str, n: int) -> dict[str, float]:
    """Return how many rows of one logit a second a query of two classes calibrates, in DuckDB and SQLite."""
    import duckdb
    import pandas as pd

    z, y = task(5000, 2)
    cal = hcal.make_calibrator(method).fit(z[:, 1] - z[:, 0], y)
    scores = 3 * np.random.default_rng(0).normal(size=n)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sql"
        queries = {}
        for dialect in ("duckdb", "sqlite"):
            hcal.export(cal, path, dialect=dialect, columns=["logit"])
            lines = path.read_text(encoding="utf-8").splitlines()
            queries[dialect] = "\n".join(line for line in lines if not line.startswith("--"))
    in_duckdb = duckdb.connect()
    in_duckdb.execute("SET threads = 1")
    frame = pd.DataFrame({"logit": scores})
    in_duckdb.register("frame", frame)
    in_duckdb.execute("CREATE TABLE scores AS SELECT * FROM frame")
    in_sqlite = sqlite3.connect(":memory:")
    in_sqlite.execute("CREATE TABLE scores (logit REAL)")
    in_sqlite.executemany("INSERT INTO scores VALUES (?)", [(score,) for score in scores.tolist()])
    speeds = {}
    for dialect, database in (("duckdb", in_duckdb), ("sqlite", in_sqlite)):
        start = time.perf_counter()
        database.execute(f"CREATE TABLE result AS {queries[dialect]}")
        speeds[dialect] = n / (time.perf_counter() - start)
    return speeds


def print_sql() -> None:
    for method in ("ts", "platt", "pool", "iso"):
        speeds = rows_in_sql(method, 1_000_000)
        print(
            f"{method:8} "
            + "  ".join(f"{name} {speed:,.0f} rows/s" for name, speed in speeds.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="*", default=["5000x10", "5000x100", "25000x1000"])
    parser.add_argument("--sql", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.sql:
        print_sql()
        return
    for size in args.sizes:
        n, k = map(int, size.split("x"))
        row = {"size": size, "device": args.device, **torch_ratios(n, k, args.device)}
        rounded = {key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()}
        print(json.dumps(rounded), flush=True)
    if args.device == "cpu":
        for k in (10, 1000):
            row = {"onnx": f"64x{k}", **onnx_ratios(64, k)}
            rounded = {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}
            print(json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main()
