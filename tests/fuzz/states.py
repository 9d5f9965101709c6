"""Tampered monitor states by the thousand: each is refused in one line, or goes on with finite evidence.

``python tests/fuzz --only states --count 2000 --seed 0``. A case is a function of (seed, number) alone.
"""

from __future__ import annotations

import copy
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hcal

VALUES = (
    None,
    True,
    -1,
    0,
    3,
    2.5,
    -0.5,
    1e308,
    1e-320,
    2**70,
    "",
    "x",
    "\x1b[31m",
    [],
    {},
    [[1]],
    {"row": 1},
)


def tamper(state: dict[str, Any], rng: np.random.Generator) -> str:
    """Return the JSON of a state with one or two values replaced, dropped or doubled, or a damaged text."""
    tampered = copy.deepcopy(state)
    for _ in range(int(rng.integers(1, 3))):
        part: Any = tampered
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = keys[int(rng.integers(len(keys)))]
            if isinstance(part[key], dict | list) and rng.random() < 0.7:
                part = part[key]
                continue
            kind = rng.random()
            if kind < 0.15:
                del part[key]
            elif kind < 0.25 and isinstance(part, list):
                part.append(part[key])
            else:
                part[key] = copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
            break
    text = json.dumps(tampered)
    at = int(rng.integers(len(text)))
    return text[:at] if rng.random() < 0.05 else text


def check(path: Path, p: np.ndarray, y: np.ndarray) -> str:
    """Return what was not as promised; empty if nothing."""
    try:
        monitor = hcal.Monitor.load(path)
    except ValueError as error:
        return (
            ""
            if len(str(error).splitlines()) == 1 and "\x1b" not in str(error)
            else f"unclear: {error!r}"
        )
    try:
        monitor.update(p, y)
    except ValueError:
        return ""  # of other classes
    finite = math.isfinite(monitor.log_evidence) and "\x1b" not in str(monitor)
    return "" if finite and monitor.prometheus() else f"evidence {monitor.log_evidence}"


def main(count: int, seed: int) -> int:
    """Run the cases and print what is not as promised."""
    rng = np.random.default_rng(0)
    n_faults = 0
    p = rng.dirichlet([1, 1, 1], size=300)
    y = (p.cumsum(1) > rng.random((300, 1))).argmax(1)
    monitor = hcal.Monitor()
    monitor.update(p, y, name="a.csv", digest="1", date="2026-01-01")
    monitor.update(p, (y + 1) % 3)
    state = monitor.state
    path = Path(tempfile.mkdtemp()) / "state.json"
    for number in range(count):
        path.write_text(tamper(state, np.random.default_rng([seed, number])))
        try:
            fault = check(path, p[:150], y[:150])
        except Exception as error:  # whatever comes out is the finding
            fault = f"{type(error).__name__}: {error}"
        if fault:
            n_faults += 1
            print(f"state {number}: {fault[:200]}")
    return 1 if n_faults else 0
