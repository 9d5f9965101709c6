"""Mutated data files, thousands of them: each is read, or refused in one line, within memory and time.

    python tests/fuzz --only readers --count 3000 --seed 0

A worker process reads the files under a limit on its memory; a signal, another error than ValueError or
OSError, a message of several lines, values that are no numbers, or a slow file is a failure and is kept.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hcal.io import Request, read

#: Beyond what the libraries need; no file here is larger than 100 KB.
EXTRA_BYTES = 2**29
SECONDS = 10.0
#: Said to a worker instead of a path.
LIMIT = "limit"
_RNG = np.random.default_rng(20240601)
LOGITS = _RNG.normal(size=(40, 5))
Y = _RNG.integers(0, 5, size=40)
TASK = {"logits_cal": LOGITS, "y_cal": Y, "logits_test": LOGITS[::2], "y_test": Y[::2]}

Maker = Callable[[], bytes]


def _saved(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _csv(head: str) -> bytes:
    rows = []
    for row, label in zip(LOGITS, Y, strict=True):
        cells = [f"{value:.6g}" for value in row]
        rows.append(",".join([*cells, str(label)]))
    return "\n".join([head, *rows, ""]).encode()


def _arrow(write: str, compression: str, lists: bool = False) -> bytes:
    import pyarrow as pa

    module, _, function = write.partition(".")
    save = getattr(importlib.import_module(f"pyarrow.{module}"), function)
    if lists:
        scores = {"logits": LOGITS.tolist()}
    else:
        scores = {f"logits_{k}": column for k, column in enumerate(LOGITS.T)}
    return _saved(lambda f: save(pa.table(scores | {"y": Y}), f, compression=compression))


def _jsonl(flat: bool) -> bytes:
    rows = []
    for z, label in zip(LOGITS.tolist(), Y.tolist(), strict=True):
        scores = {f"logits_{k}": v for k, v in enumerate(z)} if flat else {"logits": z}
        rows.append(scores | {"y": label})
    return "\n".join(map(json.dumps, rows)).encode()


#: Suffix -> what whole files of it look like.
SEEDS: dict[str, list[Maker]] = {
    ".npz": [
        lambda: _saved(lambda f: np.savez(f, **TASK)),
        lambda: _saved(lambda f: np.savez_compressed(f, **TASK)),
    ],
    ".npy": [
        lambda: _saved(lambda f: np.save(f, LOGITS)),
        lambda: _saved(lambda f: np.save(f, np.asfortranarray(LOGITS.astype(">f4")))),
    ],
    ".csv": [
        lambda: _csv("logits_0,logits_1,logits_2,logits_3,logits_4,y"),
        lambda: _csv("logits_a,logits_b,logits_c,logits_d,logits_e,y"),
    ],
    ".parquet": [
        lambda: _arrow("parquet.write_table", "snappy"),
        lambda: _arrow("parquet.write_table", "zstd", lists=True),
    ],
    ".feather": [lambda h=h: _arrow("feather.write_feather", h) for h in ("uncompressed", "zstd")],
    ".jsonl": [lambda: _jsonl(True), lambda: _jsonl(False)],
}
_INTERESTING = [
    0,
    1,
    2,
    7,
    8,
    *(2**k for k in (7, 15, 31, 40, 62, 63)),
    *(2**k - 1 for k in (16, 31, 32, 64)),
]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a broken copy: bytes changed, sizes exaggerated, parts cut, repeated, swapped or dropped."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(0, max(len(out), 1)))
        # Half of the blows fall on the first or the last 300 bytes, where the headers are.
        if rng.random() < 0.5 and len(out) > 600:
            near_start = rng.random() < 0.5
            offset = int(rng.integers(0, 300)) if near_start else int(rng.integers(1, 300))
            place = offset if near_start else len(out) - offset
        out = _BLOWS[int(rng.integers(len(_BLOWS)))](out, place, rng)
    return bytes(out)


def _flip(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    if out:
        out[place] ^= 1 << int(rng.integers(8))
    return out


def _size(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    width = rng.choice([2, 4, 8])
    order = rng.choice(["little", "big"])
    value = _INTERESTING[int(rng.integers(len(_INTERESTING)))] % 2 ** (8 * int(width))
    out[place : place + width] = value.to_bytes(int(width), str(order))  # type: ignore[arg-type]
    return out


def _digit(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    """Make a number in the text around a place longer: a shape, an index, an offset."""
    for i in range(place, min(place + 200, len(out))):
        if 48 <= out[i] <= 57:
            out[i:i] = b"9" * int(rng.integers(1, 20))
            break
    return out


def _cut(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    """Drop some bytes, or all to the end."""
    if rng.random() >= 0.5:
        return out[:place]
    return out[:place] + out[place + int(rng.integers(1, 64)) :]


def _repeat(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    size = int(rng.integers(1, 200))
    times = int(rng.integers(1, 100))
    out[place:place] = out[place : place + size] * times
    return out


def _noise(out: bytearray, place: int, rng: np.random.Generator) -> bytearray:
    length = int(rng.choice([1, 16]))
    out[place : place + length] = rng.bytes(length)
    return out


_BLOWS = (_flip, _size, _digit, _cut, _repeat, _noise)


# -- reading, in a process that may die -------------------------------------------------------------


def judge(path: Path) -> str:
    """Return ``read``, ``refused``, or what is wrong with the way a file was met."""
    start = time.monotonic()
    try:
        data = read(path, Request(input="logits"), part="cal")
        problem = "" if data.values.dtype.kind in "biuf" else f"values of {data.values.dtype}"
        verdict = "read"
    except (ValueError, OSError) as error:
        text = str(error)
        problem = (
            ""
            if "\n" not in text and len(text) < 600 and path.name in text
            else f"message {text[:300]!r}"
        )
        verdict = "refused"
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:200]}"
        verdict = "failed"
    seconds = time.monotonic() - start
    if not problem and seconds > SECONDS:
        problem = f"took {seconds:.0f} s"
    return problem or verdict


def _work(connection: Connection, module: str) -> None:
    import resource

    sys.path[:0] = [str(Path(__file__).parent)]
    judge_file = importlib.import_module(module).judge
    with contextlib.suppress(ImportError):
        import pyarrow.feather
        import pyarrow.parquet  # noqa: F401
    while (path := connection.recv()) is not None:
        if path == LIMIT:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + EXTRA_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        connection.send("limited" if path == LIMIT else judge_file(path))


class Worker:
    """The ``judge`` of a module in a process of its own; a new one where the old one died."""

    def __init__(self, module: str) -> None:
        self.context = get_context("spawn")
        self.module = module
        self.start()

    def start(self) -> None:
        self.here, far_end = self.context.Pipe()
        self.process = self.context.Process(target=_work, args=(far_end, self.module), daemon=True)
        self.process.start()
        far_end.close()

    def limit(self) -> None:
        """Let it have no more memory than it has, and a little."""
        self.here.send(LIMIT)
        self.here.recv()

    def read(self, path: Path) -> str:
        self.here.send(path)
        try:
            if self.here.poll(6 * SECONDS):
                return str(self.here.recv())
            self.process.kill()
            problem = f"no answer in {6 * SECONDS:.0f} s"
        except EOFError:
            self.process.join()
            problem = f"the process died with {self.process.exitcode}"
        self.start()
        self.limit()
        return problem

    def stop(self) -> None:
        self.here.send(None)
        self.process.join()
        self.here.close()


def run(count: int, seed: int, keep: Path) -> tuple[Counter[str], list[str]]:
    """Read ``count`` mutated files; return what happened, and the failures, whose files lie in ``keep``."""
    rng = np.random.default_rng(seed)
    suffixes = list(SEEDS)
    seeds = {suffix: [make() for make in SEEDS[suffix]] for suffix in suffixes}
    happened: Counter[str] = Counter()
    failures: list[str] = []
    worker = Worker("readers")
    worker.limit()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            suffix = suffixes[i % len(suffixes)]
            data = seeds[suffix][int(rng.integers(len(seeds[suffix])))]
            path = Path(folder) / f"f{suffix}"
            path.write_bytes(mutate(data, rng))
            verdict = worker.read(path)
            happened[
                f"{suffix} {verdict}" if verdict in ("read", "refused") else f"{suffix} FAILED"
            ] += 1
            if verdict not in ("read", "refused"):
                kept = keep / f"case-{seed}-{i}{suffix}"
                keep.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(path.read_bytes())
                failures.append(f"{kept}: {verdict}")
    worker.stop()
    return happened, failures


def main(count: int, seed: int) -> int:
    """Run, print counts and failures, whose files go to ``fuzz-failures``; 1 if there is any."""
    happened, failures = run(count, seed, Path("fuzz-failures"))
    for what, times in sorted(happened.items()):
        print(f"{what:<24}{times:6d}")
    print("\n".join(failures) or "no failures")
    return int(bool(failures))
