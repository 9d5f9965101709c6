"""Tampered model files by the thousand: each is refused in one line, or predicts probabilities.

``python tests/fuzz/models.py --count 5000 --seed 0``. A case is a function of (seed, number) alone, so that a
failure can be repeated with ``--only NUMBER``. Cases run in a child process with limits on memory and
time: a signal, another exception or a large allocation is seen, named and counted, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

# What one file may take beyond what the process has after a first round: the largest tampered file has 4 MB.
MEMORY = 400_000_000
SECONDS = 30


class Verdict(NamedTuple):
    """How one case ended; ``fault`` is empty when as promised."""

    number: int
    kind: str
    outcome: str
    fault: str


# -- the parent: children, counts -------------------------------------------------------------------------


def run(count: int, seed: int, *options: str, start: int = 0) -> Iterator[Verdict]:
    """Yield the verdicts of cases start..start+count; a dead child is a verdict, and the next one goes on."""
    stop = start + count
    while start < stop:
        last = start
        for verdict in _child(start, stop, seed, options):
            yield verdict
            last = verdict.number + 1
        start = last if last > start else start + 1


def _child(start: int, stop: int, seed: int, options: tuple[str, ...]) -> Iterator[Verdict]:
    command = [sys.executable, __file__, "--child", f"{start}:{stop}", "--seed", str(seed), *options]
    seen = start
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            verdict = Verdict(*json.loads(line))
            seen = verdict.number + 1
            yield verdict
        code = process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()[-300:]
    if seen < stop:
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        yield Verdict(seen, "?", "died", f"{name}: {said}")


# -- the child: one case after another --------------------------------------------------------------------


def child(start: int, stop: int, seed: int, fresh: bool, methods: str) -> None:
    """Print a verdict a line."""
    import mutations
    import numpy as np

    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    models = mutations.originals(fresh, methods.split(","))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.hcal"
        _warm_up(models, path)
        _limit_memory()
        for number in range(start, stop):
            case = mutations.tamper(models, np.random.default_rng([seed, number]))
            path.write_bytes(case.content)
            outcome, fault = judged(case, path)
            print(json.dumps(Verdict(number, case.kind, outcome, fault)), flush=True)


def _warm_up(models: Any, path: Path) -> None:
    """Let imports and compiled kernels take their memory before it is limited."""
    import hcal

    for original in models:
        path.write_bytes(original.content)
        predict_probes(hcal.load(path))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system: then only signals and exceptions are seen
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def judged(case: Any, path: Path) -> tuple[str, str]:
    """Return the outcome of a case and what was not as promised."""
    import numpy as np

    import hcal

    _alarm(SECONDS)
    try:
        try:
            calibrator = hcal.load(path)
        except ValueError as error:
            return "refused", _unclear(str(error), path)
        answers = predict_probes(calibrator)
        fault = next((f for f in map(_improbable, answers) if f), "")
        if fault or case.sealed or not case.damaged:
            return "predicts", fault
        same = all(map(np.array_equal, answers, case.answers)) if case.answers else False
        return "predicts", "" if same else "a damaged file was accepted and predicts otherwise"
    except BaseException as error:  # whatever comes out is the finding
        return "failed", f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        _alarm(0)


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _unclear(message: str, path: Path) -> str:
    if "\n" in message or len(message) > 600:
        return f"the refusal is not one line: {message[:100]!r}"
    return "" if str(path) in message else f"the refusal does not name the file: {message[:100]!r}"


def probes(n_classes: int, kind: str) -> Any:
    """Return scores of all scales, with ties and zeros, in the kind that a calibrator takes."""
    import numpy as np

    rng = np.random.default_rng(n_classes)
    scales = np.array([1e-4, 0.1, 1.0, 3.0, 10.0, 100.0, 1e4, 0.0])
    z = rng.normal(size=(len(scales), n_classes)) * scales[:, None]
    z[2, 1] = z[2, 0]
    if kind == "logits":
        return z
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p if kind == "probs" else np.log(np.maximum(p, 1e-300))


def predict_probes(calibrator: Any) -> list[Any]:
    import numpy as np

    if calibrator.n_classes_ > 5000:  # the probes would be larger than the file
        return []
    x = probes(calibrator.n_classes_, calibrator.input)
    return [calibrator.predict_proba(x), calibrator.predict_proba(x.astype(np.float32))]


def _improbable(p: Any) -> str:
    import numpy as np

    if not np.isfinite(p).all():
        return "a probability is not finite"
    slack = 4 * np.finfo(p.dtype).eps
    if p.min() < 0 or p.max() > 1 + slack:
        return f"a probability is {p.min() if p.min() < 0 else p.max()!r}"
    off = float(np.abs(p.sum(axis=1, dtype=np.float64) - 1).max())
    return "" if off < 1e-5 else f"a row sums to 1 ± {off:.3g}"


# -- the command ------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run, print counts and faults; 1 if there is any fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="tamper with newly fitted models too")
    parser.add_argument("--methods", default="", help="some methods only, separated by commas")
    parser.add_argument("--only", type=int, help="one case, by its number")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        start, stop = map(int, given.child.split(":"))
        child(start, stop, given.seed, given.fresh, given.methods)
        return 0
    began, faults, counts = time.time(), 0, Counter[tuple[str, str]]()
    start, count = (0, given.count) if given.only is None else (given.only, 1)
    options = ["--fresh"] * given.fresh + [f"--methods={given.methods}"]
    for verdict in run(count, given.seed, *options, start=start):
        counts[verdict.kind.partition(":")[0], verdict.outcome] += 1
        if verdict.fault:
            faults += 1
            print(f"case {verdict.number} ({verdict.kind}): {verdict.outcome}: {verdict.fault}", flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:<24}" + "  ".join(f"{o} {n}" for (k, o), n in sorted(counts.items()) if k == kind))
    total = Counter[str]()
    for (_, outcome), n in counts.items():
        total[outcome] += n
    words = ", ".join(f"{n} {outcome}" for outcome, n in sorted(total.items()))
    took = time.time() - began
    print(f"{sum(total.values())} files (seed {given.seed}): {words}; {faults} faults; {took:.0f} s")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
