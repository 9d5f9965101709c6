"""How a model file is tampered with: changes to an array, to several, to the header, or to the bytes."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as to_arrays
from safetensors.numpy import save as to_bytes

import hcal
from hcal.calibrators.state import choose_spec, dimension
from hcal.io.model_file import digest

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
Rng = np.random.Generator
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """An untouched model: its bytes, and the two parts of them."""

    name: str
    content: bytes
    header: dict[str, Any]
    arrays: Arrays
    answers: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A tampered file.

    ``sealed``: the checksum was made anew, as one who means harm would. ``damaged``: the content differs from
    what the checksum of the file speaks of.
    """

    kind: str
    content: bytes
    sealed: bool
    damaged: bool
    answers: list[Any]


def open_model(content: bytes, name: str = "") -> Model:
    """Return the parts of a model file."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["hcal"])
    return Model(name, content, header, to_arrays(content))


def seal(header: Any, arrays: Arrays, checksum: str | None = None) -> bytes:
    """Return a file of any header and arrays, with the right checksum unless one is given."""
    text = json.dumps(header)
    held = {k: np.ascontiguousarray(v).reshape(np.shape(v)) for k, v in arrays.items()}
    real = {k: v for k, v in held.items() if k != "_empty"}
    metadata = {"hcal": text, "sha256": digest(text, real) if checksum is None else checksum}
    return bytes(to_bytes(held or {"_empty": np.zeros(1)}, metadata=metadata))


def originals(fresh: bool, methods: list[str]) -> list[Model]:
    """Return the golden models of every schema and, if asked, newly fitted ones of other sizes."""
    from models import predict_probes

    found = [
        open_model(p.read_bytes(), f"{p.parent.name}/{p.stem}") for p in sorted(GOLDEN.glob("v*/*.hcal"))
    ]
    if fresh:
        found += _fitted()
    wanted = [m for m in found if methods == [""] or m.header["name"] in methods]
    return [replace(model, answers=predict_probes(_loaded(model))) for model in wanted]


def _loaded(model: Model) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.hcal"
        path.write_bytes(model.content)
        return hcal.load(path)


# Smaller searches for the methods whose default one is long: what is saved does not depend on how thorough.
_QUICK: dict[str, dict[str, Any]] = {
    "ms": {"penalty": (0.1, 1e-3), "folds": 2},
    "dir": {"penalty": (0.1, 1e-3), "folds": 2},
    "diag": {"hidden": (2,), "max_iterations": 30},
    "dec": {"critics": 3},
    "gp": {"inducing": 4, "samples": 10, "max_iterations": 5},
}


def _fitted() -> list[Model]:
    import tempfile
    import warnings

    from helpers import synthetic

    found = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in hcal.list_calibrators():
            for k in (2, 7):
                logits, y = synthetic(80, k, seed=k)
                path = Path(folder) / "m.hcal"
                hcal.save(hcal.make_calibrator(name, **_QUICK.get(name, {})).fit(logits, y), path)
                found.append(open_model(path.read_bytes(), f"fresh/{name}-{k}"))
    return found


def tamper(models: list[Model], rng: Rng) -> Case:
    """Return one tampered file: in ten, two by bytes, two by header, six by arrays."""
    model = models[int(rng.integers(len(models)))]
    draw = rng.random()
    if draw < 0.2:
        kind, content = _bytes(model.content, rng)
        checked = model.header["schema"] >= 2
        return Case(f"bytes {kind}: {model.name}", content, not checked, True, model.answers)
    header, arrays = json.loads(json.dumps(model.header)), dict(model.arrays)
    change = _header if draw < 0.4 else _joint if draw < 0.5 else _within if draw < 0.65 else _array
    kind = change(header, arrays, rng)
    sealed = rng.random() < 0.8 or header.get("schema") == 1
    content = seal(header, arrays, None if sealed else "0" * 64)
    return Case(f"{kind}: {model.name}", content, sealed, True, model.answers)


# -- bytes ------------------------------------------------------------------------------------------------


def _bytes(content: bytes, rng: Rng) -> tuple[str, bytes]:
    data = bytearray(content)
    kind = str(rng.choice(["flip", "flip", "flip", "flips", "cut", "grown", "zeroed", "length"]))
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else 4):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        data = data[: int(rng.integers(len(data)))]
    elif kind == "grown":
        data += bytes(rng.integers(0, 256, size=int(rng.integers(1, 40)), dtype=np.uint8))
    elif kind == "zeroed":
        at = int(rng.integers(len(data)))
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    else:
        data[:8] = int(rng.choice([0, 1, 7, 2**31, 2**62, len(data), len(data) - 8])).to_bytes(8, "little")
    return kind, bytes(data)


# -- one array --------------------------------------------------------------------------------------------

_SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    -1.0,
    1.0,
    2.0,
    1e-320,
    1e-30,
    1e15,
    1e30,
    1e100,
    1e300,
    -1e300,
    1.7e308,
]
_WHOLE = [-1, 0, 1, 2, 5, 1000, 2**31, 2**40, 2**62, -(2**62)]
_TYPES = ["float32", "float16", "int64", "int32", "uint8", "bool", "float64"]


def _array(header: Any, arrays: Arrays, rng: Rng) -> str:
    """Change one array in one way; return what was done."""
    name = str(rng.choice(sorted(arrays)))
    kinds: list[Callable[[Any, Rng], Any]] = [_longer, _shorter, _huge, _typed, _entry, _entry, _entry]
    kinds += [_filled, _scaled, _shuffled, _reshaped, _emptied]
    draw = int(rng.integers(len(kinds) + 3))
    if draw < len(kinds):
        arrays[name] = kinds[draw](np.array(arrays[name]), rng)
        return f"array {kinds[draw].__name__[1:]}"
    if draw == len(kinds):
        del arrays[name]
        return "array missing"
    if draw == len(kinds) + 1:
        arrays[str(rng.choice(["extra", "", "beta", "table", "é" * 50]))] = np.zeros(3)
        return "array extra"
    other = str(rng.choice(sorted(arrays)))
    arrays[name], arrays[other] = arrays[other], arrays[name]
    return "array swapped"


def _axis(a: Any, rng: Rng) -> int:
    return int(rng.integers(a.ndim))


def _longer(a: Any, rng: Rng) -> Any:
    if a.ndim == 0:
        return np.repeat(a, 2)
    axis = _axis(a, rng)
    return (
        np.concatenate([a, a.take([-1], axis=axis)], axis=axis) if a.shape[axis] else np.zeros(a.shape or 1)
    )


def _shorter(a: Any, rng: Rng) -> Any:
    if a.ndim == 0:
        return a.reshape(1, 1)
    axis = _axis(a, rng)
    return a.take(range(max(a.shape[axis] - 1, 0)), axis=axis)


def _huge(a: Any, rng: Rng) -> Any:
    return np.resize(a if a.size else np.zeros(1, a.dtype), int(rng.choice([1000, 100_000, 500_000])))


def _typed(a: Any, rng: Rng) -> Any:
    return a.astype(str(rng.choice(_TYPES)))


def _value(a: Any, rng: Rng) -> Any:
    return rng.choice(_WHOLE) if a.dtype.kind in "iu" else rng.choice(_SPECIAL)


def _entry(a: Any, rng: Rng) -> Any:
    if a.size:
        a.reshape(-1)[int(rng.integers(a.size))] = _value(a, rng)
    return a


def _filled(a: Any, rng: Rng) -> Any:
    return np.full_like(a, _value(a, rng))


def _scaled(a: Any, rng: Rng) -> Any:
    factor = rng.choice([-1.0, 1e-6, 1e6, 1e20, 1e99, 1e200])
    return (a * (int(factor) if a.dtype.kind == "i" and abs(factor) <= 1e6 else factor)).astype(a.dtype)


def _shuffled(a: Any, rng: Rng) -> Any:
    return rng.permutation(a.reshape(-1)).reshape(a.shape)


def _reshaped(a: Any, rng: Rng) -> Any:
    return [a.reshape(-1), a[None], a.T, a.reshape(-1, 1)][int(rng.integers(4))]


def _emptied(a: Any, rng: Rng) -> Any:
    return np.zeros([(0,), (0, 4), (4, 0), (2**40, 0)][int(rng.integers(4))], a.dtype)


# -- several arrays alike ---------------------------------------------------------------------------------


def _joint(header: Any, arrays: Arrays, rng: Rng) -> str:
    """Give all arrays that share a length another one, or all of a prefix the same extreme value."""
    sized = sorted({n for a in arrays.values() for n in np.shape(a)})
    if not sized or rng.random() < 0.4:
        prefix = str(rng.choice(sorted(arrays))).partition(".")[0]
        value = float(rng.choice(_SPECIAL))
        for name, a in arrays.items():
            if name.partition(".")[0] == prefix and a.dtype.kind == "f":
                arrays[name] = np.full_like(a, value)
        return "joint values"
    old = int(rng.choice(sized))
    new = int(rng.choice([0, 1, max(old - 1, 0), old + 1, 2 * old, 2 * old + 1, 20_000]))
    if new == 20_000 and max(np.ndim(a) for a in arrays.values()) > 1:
        new = 300
    for name, a in arrays.items():
        for axis in range(np.ndim(a)):
            if np.shape(a)[axis] == old:
                source = arrays[name]
                arrays[name] = (
                    source.take(np.arange(new) % old, axis=axis)
                    if old
                    else np.zeros([*source.shape[:axis], new, *source.shape[axis + 1 :]], a.dtype)
                )
    if header.get("n_classes") == old and rng.random() < 0.5:
        header["n_classes"] = new
    return "joint lengths"


# -- all that the declaration lets through ----------------------------------------------------------------


def _within(header: Any, arrays: Arrays, rng: Rng) -> str:
    """Draw some or all arrays anew from what the method declares, its bounds among them.

    What passes the checks must predict: this asks whether the declaration is tight enough.
    """
    method = hcal.calibrators.get_calibrator(header["name"])
    spec = choose_spec(method.state_specs, header["params"], set(arrays))
    share = rng.choice([0.2, 1.0])
    for declared in spec.fields:
        name = declared.name
        if name in arrays and rng.random() < share:
            arrays[name] = _drawn(declared, np.shape(arrays[name]), header["n_classes"], rng)
    return "within the declaration"


def _drawn(declared: Any, shape: tuple[int, ...], n_classes: int, rng: Rng) -> Any:
    symbols = dict.fromkeys(string.ascii_uppercase, shape[0] if shape else 0) | {"K": n_classes}
    low, high = (
        float(dimension(b, symbols)) if isinstance(b, str) else float(b)
        for b in (declared.low, declared.high)
    )
    if declared.dtype == "int64":
        return np.sort(rng.integers(int(low), int(high) + 1, size=shape), axis=None).reshape(shape)
    size = 10.0 ** rng.uniform(-30, np.log10(max(abs(low), abs(high), 1e-30)), size=shape)
    drawn = np.clip(size * rng.choice([-1.0, 1.0], size=shape), low, high)
    ends = rng.choice([low, high, min(max(0.0, low), high), min(max(1.0, low), high)], size=shape)
    drawn = np.where(rng.random(shape) < rng.choice([0.0, 0.5, 1.0]), ends, drawn)
    if declared.order is not None:
        drawn = np.sort(drawn)
        if low == 0 and len(drawn) and rng.random() < 0.9:
            drawn[0] = 0.0
    if declared.total is not None:
        drawn = np.abs(drawn) + (drawn.sum() == 0)
        drawn /= drawn.sum()
    return np.asarray(drawn, dtype=np.float64).reshape(shape)


# -- the header -------------------------------------------------------------------------------------------

_ANY = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    60_000_000,
    2**40,
    10**30,
    0.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
]
_ANY += [[], [1], {}, {"a": 1}, "paper", "default", "order", "probs", "log_probs", "logits", [0.1, 2.0]]


def _header(header: Any, arrays: Arrays, rng: Rng) -> str:
    """Change one entry of the header; return what was done."""
    what = str(
        rng.choice(["n_classes", "n_classes", "param", "param", "param", "name", "schema", "missing", "any"])
    )
    if what == "n_classes":
        header[what] = int(rng.choice([2, 3, 5, 9, header[what] + 1, header[what] - 1, 10**6, 10**12, 2**62]))
    elif what == "param":
        _parameter(header["params"], rng)
    elif what == "name":
        header[what] = str(rng.choice([*hcal.list_calibrators(), "gone", "", "x" * 5000, "a\nb"]))
    elif what == "schema":
        header[what] = [0, -1, 1, 3, 10**9, "2", None, 2.0, True, [2]][int(rng.integers(10))]
    elif what == "missing":
        del header[str(rng.choice(sorted(header)))]
    else:
        header[str(rng.choice(sorted(header)))] = _ANY[int(rng.integers(len(_ANY)))]
    return f"header {what}"


def _parameter(params: dict[str, Any], rng: Rng) -> None:
    if rng.random() < 0.1:
        params[str(rng.choice(["extra", "seed", "random_state", "self", "", "y" * 4000]))] = 1
    elif rng.random() < 0.1:
        del params[str(rng.choice(sorted(params)))]
    else:
        params[str(rng.choice(sorted(params)))] = _ANY[int(rng.integers(len(_ANY)))]
