"""Run every fuzzer of this folder: ``python tests/fuzz --count 2000 --seed 0``, which is ``make fuzz``.

A fuzzer is a module with ``main(count, seed) -> int`` that returns 0 where nothing was found. All run, whatever
one finds; the exit status is 1 if any found something.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def fuzzers() -> list[str]:
    """Return the names of the modules of this folder that are fuzzers and not their helpers."""
    names = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith(("_", "test_")))
    return [name for name in names if hasattr(importlib.import_module(name), "main")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzers and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="cases of each fuzzer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one fuzzer, by its name")
    given = parser.parse_args(arguments)
    known = fuzzers()
    if given.only is not None and given.only not in known:
        parser.error(f"unknown fuzzer {given.only!r}; there are {', '.join(known)}")
    found = []
    for name in known if given.only is None else [given.only]:
        began = time.monotonic()
        code = importlib.import_module(name).main(given.count, given.seed)
        said = "FOUND" if code else "nothing found"
        print(f"{name}: {said}, {time.monotonic() - began:.0f} s", flush=True)
        found += [name] if code else []
    return 1 if found else 0


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    sys.exit(main())
