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
    modules = [path.stem for path in HERE.glob("*.py")]
    names = sorted(name for name in modules if not name.startswith(("_", "test_")))
    return [name for name in names if hasattr(importlib.import_module(name), "main")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzers and say how long each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="cases of each fuzzer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one fuzzer, by its name")
    options = parser.parse_args(arguments)
    targets = fuzzers()
    if options.only is not None and options.only not in targets:
        parser.error(f"unknown fuzzer {options.only!r}; there are {', '.join(targets)}")
    failed = []
    for name in targets if options.only is None else [options.only]:
        began = time.monotonic()
        code = importlib.import_module(name).main(options.count, options.seed)
        outcome = "FOUND" if code else "nothing found"
        print(f"{name}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
        failed += [name] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    sys.exit(main())
