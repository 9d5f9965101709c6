"""Calibrate three million rows of a parquet file with bounded memory: fit on a part, apply to all of it.

    python examples/large_parquet.py [rows]

The example reads only the columns that it needs, one row group at a time, and writes the probabilities to another
parquet file in the same way. It needs the extra ``frames``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hcal
from hcal.extras import load_extra

pa = load_extra("this example", "pyarrow", "frames")
pq = load_extra("this example", "pyarrow.parquet", "frames")

CLASSES = ["cat", "dog", "eel", "fox"]
SCORES = [f"logit_{name}" for name in CLASSES]
GROUP = 250_000


def write(path: Path, rows: int) -> None:
    """Write a file as a pipeline would: ids, scores, labels as text, and other columns."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, GROUP):
        n = min(GROUP, rows - start)
        evidence = rng.normal(size=(n, len(CLASSES))) * 1.5
        y = (evidence + rng.gumbel(size=evidence.shape)).argmax(axis=1)
        scores = (2.5 * evidence).astype(np.float32)
        table = pa.table(
            {"id": np.arange(start, start + n)}
            | dict(zip(SCORES, scores.T, strict=True))
            | {"target": np.array(CLASSES)[y], "note": ["…"] * n}
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def matrix(batch: pa.RecordBatch) -> np.ndarray:
    return np.stack([batch.column(name).to_numpy() for name in SCORES], axis=1)


def main(rows: int = 3_000_000) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "scores.parquet"
        target = Path(folder) / "probs.parquet"
        write(source, rows)
        start = time.perf_counter()
        file = pq.ParquetFile(source)
        first = file.read_row_group(0, columns=[*SCORES, "target"]).slice(
            0, 20_000
        )  # the rows are in random order
        batch = first.combine_chunks().to_batches()[0]
        labels = batch.column("target").to_pylist()
        cal = hcal.make_calibrator("ts").fit(matrix(batch), labels, classes=CLASSES)
        writer, right, done = None, 0, 0
        for batch in file.iter_batches(GROUP, columns=["id", *SCORES, "target"]):
            probs = cal.predict_proba(matrix(batch))
            top = cal.classes_[probs.argmax(axis=1)]
            right += int((top == np.array(batch.column("target").to_pylist())).sum())
            done += len(probs)
            table = pa.table(
                {"id": batch.column("id"), "prediction": top}
                | {f"probs_{name}": probs[:, k] for k, name in enumerate(CLASSES)}
            )
            writer = writer or pq.ParquetWriter(target, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        seconds = time.perf_counter() - start
        written = pq.ParquetFile(target).metadata.num_rows
    return {
        "rows": written,
        "accuracy": right / done,
        "seconds": seconds,
        "nll": cal.fit_.after["nll"],
    }


if __name__ == "__main__":
    for name, value in main(*map(int, sys.argv[1:])).items():
        print(f"{name}: {value:,.4g}")
