"""Tampered model files by the thousand: each is refused in one line, or predicts probabilities.

    python tests/fuzz --only models --count 2000 --seed 0

A case is a function of (seed, number) alone. Every method is fitted once; then bytes, the header, what it tells
of the fit (``info``, ``scores``), or arrays are changed, most of the time with the checksum made
anew, as one who means harm would. A process of its own reads the files under a limit on its memory.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from readers import Worker
from safetensors.numpy import load as to_arrays
from safetensors.numpy import save as to_bytes

import hcal
from hcal.io import Request
from hcal.io.model_file import digest
from helpers import quick

Rng = np.random.Generator
NUMBERS = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -1.0,
    1.0,
    1e-320,
    1e-30,
    1e15,
    1e100,
    1e290,
    1e300,
    -1e300,
    1.7e308,
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    2**40,
    10**30,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
]
VALUES += [
    [],
    [1],
    {},
    {"a": 1},
    ["x"],
    [[[[1]]]],
    "order",
    "probs",
    "logits",
    [0.1, 2.0],
    "\x1b[31m",
    "y" * 20_000,
]


def originals() -> list[bytes]:
    """Return a model file of every method that can be fitted here, of 2 and of 5 classes in turn."""
    files = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "m.hcal"
        for number, name in enumerate(hcal.list_calibrators()):
            k = 2 if number % 2 else 5
            rng = np.random.default_rng(number)
            logits = rng.normal(size=(80, k)) * 2
            y = (logits + rng.normal(size=logits.shape)).argmax(axis=1)
            calibrator = quick(name).fit(logits, y)
            calibrator.fit_.details["request"] = Request(scores="p_*", label="y").to_json()
            hcal.save(calibrator, path)
            files.append(path.read_bytes())
    return files


def tamper(content: bytes, rng: Rng) -> tuple[str, bytes]:
    """Return what was done and the changed file."""
    if rng.random() < 0.2:
        return _bytes(content, rng)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["hcal"])
    arrays = dict(to_arrays(content))
    part = str(rng.choice(["header", "info", "params", "scores", "map", "array", "array", "array"]))
    if part == "array":
        _array(arrays, rng)
    elif part == "header":
        _mapping(header, rng)
    elif isinstance(header.get(part), dict):
        _deep(header[part], rng)
    text = json.dumps(header)
    contiguous = {}
    for name, array in arrays.items():
        contiguous[name] = np.ascontiguousarray(array).reshape(np.shape(array))
    contiguous.pop("sha256", None)
    seal = digest(text, contiguous) if rng.random() < 0.9 else np.zeros(32, np.uint8)
    return part, bytes(to_bytes(contiguous | {"sha256": seal}, metadata={"hcal": text}))


def _bytes(content: bytes, rng: Rng) -> tuple[str, bytes]:
    data = bytearray(content)
    place = int(rng.integers(len(content)))
    kind = str(rng.choice(["flip", "flip", "cut", "grown", "zeroed", "length"]))
    if kind == "flip":
        data[place] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        data = data[:place]
    elif kind == "grown":
        data += rng.bytes(20)
    elif kind == "zeroed":
        data[place : place + 16] = bytes(len(data[place : place + 16]))
    else:
        lengths = [0, 1, 7, 2**31, 2**62, len(data), len(data) - 8]
        data[:8] = int(rng.choice(lengths)).to_bytes(8, "little")
    return f"bytes {kind}", bytes(data)


def _array(arrays: dict[str, Any], rng: Rng) -> None:
    name = str(rng.choice(sorted(arrays)))
    a = np.array(arrays[name])
    kind = int(rng.integers(9))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        new_name = str(rng.choice(["extra", "", "map.beta", "é" * 50]))
        arrays[new_name] = np.zeros(3)
    elif kind == 2:
        values = a if a.size else np.zeros(1)
        size = int(rng.choice([0, 1, 7, a.size + 1, 100_000]))
        arrays[name] = np.resize(values, size)
    elif kind == 3:
        arrays[name] = a.astype(str(rng.choice(["float32", "int64", "uint8", "bool"])))
    elif kind == 4:
        shapes = [a.reshape(-1), a[None], a.T, a[..., None]]
        arrays[name] = shapes[int(rng.integers(4))]
    elif kind == 5:
        with np.errstate(over="ignore", invalid="ignore"):
            factor = rng.choice([-1.0, 1e-6, 1e6, 1e20, 1e99, 1e200])
            arrays[name] = (a * factor).astype(a.dtype)
    elif kind == 6:
        arrays[name] = rng.permutation(a.reshape(-1)).reshape(a.shape)
    elif a.size:
        values = NUMBERS if a.dtype.kind == "f" else [-1, 0, 5, 2**40, 2**62]
        value = rng.choice(values)
        places = slice(None) if kind == 7 else int(rng.integers(a.size))
        with np.errstate(over="ignore"):
            a.reshape(-1)[places] = value if a.dtype.kind != "b" else True
        arrays[name] = a


def _mapping(content: dict[str, Any], rng: Rng) -> None:
    if rng.random() < 0.1:
        content[
            str(rng.choice(["extra", "self", "", "y" * 4000, "class_frequencies", "notes"]))
        ] = 1
    elif content:
        key = str(rng.choice(sorted(content)))
        if rng.random() < 0.15:
            del content[key]
        else:
            content[key] = VALUES[int(rng.integers(len(VALUES)))]


def _deep(content: dict[str, Any], rng: Rng) -> None:
    """Change an entry of an object, or of one inside it."""
    inner = [v for v in content.values() if isinstance(v, dict) and v]
    if inner and rng.random() < 0.5:
        _deep(inner[int(rng.integers(len(inner)))], rng)
    else:
        _mapping(content, rng)


# -- the judging process ----------------------------------------------------------------------------------


def judge(path: Path) -> str:
    """Return ``predicts``, ``refused``, or what is wrong with the way a file was met."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    try:
        calibrator = hcal.load(path)
    except ValueError as error:
        text = str(error)
        one_line = "\n" not in text and "\x1b" not in text and len(text) < 600 and str(path) in text
        return "refused" if one_line else f"message {text[:200]!r}"
    except Exception as error:
        return f"load: {type(error).__name__}: {str(error)[:200]}"
    try:
        repr(calibrator)
        Request().for_model(calibrator.fit_.request)
        if calibrator.n_classes_ <= 5000:
            # The parameter input may say something else: it is that of the next fit.
            x = probes(calibrator.n_classes_, calibrator.prediction_.kind)
            for p in (calibrator.predict_proba(x), calibrator.predict_proba(x.astype(np.float32))):
                if problem := _improbable(p):
                    return problem
            calibrator.with_prior(np.full(calibrator.n_classes_, 1 / calibrator.n_classes_))
    except Exception as error:
        return f"use: {type(error).__name__}: {str(error)[:200]}"
    return "predicts"


def probes(n_classes: int, kind: str) -> Any:
    """Return scores of all scales, with ties and zeros, in the kind that a calibrator takes."""
    scales = np.array([1e-4, 0.1, 1.0, 3.0, 10.0, 100.0, 1e4, 0.0])
    rng = np.random.default_rng(n_classes)
    z = rng.normal(size=(len(scales), n_classes)) * scales[:, None]
    z[2, 1] = z[2, 0]
    if kind == "logits":
        return z
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p if kind == "probs" else np.log(np.maximum(p, 1e-300))


def _improbable(p: Any) -> str:
    if not np.isfinite(p).all():
        return "a probability is not finite"
    if p.min() < 0 or p.max() > 1 + 1e-6:
        return f"a probability is {p.min() if p.min() < 0 else p.max()!r}"
    sums = p.sum(axis=1, dtype=np.float64)
    off = float(np.abs(sums - 1).max())
    return "" if off < 1e-5 else f"a row sums to 1 ± {off:.3g}"


def run(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Judge ``count`` tampered files; return what happened, and the failures."""
    files = originals()
    happened = Counter[str]()
    failures = list[str]()
    worker = Worker("models")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.hcal"
        for content in files:  # imports and compiled kernels take their memory before it is limited
            path.write_bytes(content)
            if (verdict := worker.read(path)) != "predicts":
                failures.append(f"an untouched model: {verdict}")
        worker.limit()
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            kind, content = tamper(files[number % len(files)], rng)
            path.write_bytes(content)
            verdict = worker.read(path)
            expected = verdict in ("predicts", "refused")
            happened[f"{kind} {verdict if expected else 'FAILED'}"] += 1
            if not expected:
                method = hcal.list_calibrators()[number % len(files)]
                failures.append(f"case {number} ({kind}, {method}): {verdict}")
    worker.stop()
    return happened, failures


def main(count: int, seed: int) -> int:
    """Run, print counts and failures; 1 if there is any."""
    happened, failures = run(count, seed)
    for what, times in sorted(happened.items()):
        print(f"{what:<24}{times:6d}")
    print("\n".join(failures) or "no failures")
    return int(bool(failures))
