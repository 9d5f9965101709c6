"""Install the wheel where nothing else is, and run every example with what its error messages name.

    python tools/fresh.py                    # every example, then the extra "all"; `make examples-fresh`
    python tools/fresh.py onnx_network all   # some of them

An example begins with hcal alone. Where it ends with an error that says ``pip install ...``, that command is
run, with the pins of constraints.txt, and the example again. The environments are copies of one with hcal
alone; their files are linked, so that a copy costs no space.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
#: Smaller than the real thing, to be run often.
ARGUMENTS = {"large_parquet": ["300000"]}
_TRIES = 4


def hint(stderr: str) -> list[str]:
    """Return what the last ``pip install`` of an error message installs; empty where there is none."""
    found = re.findall(r"pip install (.+)$", stderr.strip(), flags=re.MULTILINE)
    return shlex.split(found[-1]) if found else []


def quiet(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command away from this repository and its sources."""
    outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [str(w) for w in words], cwd=folder, env=outside, capture_output=True, text=True, check=False
    )


def install(python: Path, *what: str | Path) -> None:
    done = quiet(python, "-m", "pip", "install", "--quiet", "-c", PINS, *what, folder=python.parent)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(map(str, what))}: {done.stderr.strip()}")


def base_environment(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and install it alone; return the environment and the wheel."""
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT],
                   check=True, capture_output=True)  # fmt: skip
    wheel = next(folder.glob("*.whl"))
    base = folder / "base"
    subprocess.run([sys.executable, "-m", "venv", base], check=True)
    torch = next(line for line in PINS.read_text().splitlines() if line.startswith("torch=="))
    install(base / "bin" / "python", torch)  # first and by its pin: any other build brings gigabytes
    install(base / "bin" / "python", wheel)
    return base, wheel


def copy(base: Path, name: str) -> Path:
    shutil.copytree(base, base.parent / name, symlinks=True, copy_function=os.link)
    return base.parent / name / "bin" / "python"


def run_example(base: Path, name: str) -> str:
    """Run one example, installing what it names; return a line about it, or raise."""
    python, named, start = copy(base, name), [], time.perf_counter()
    for _ in range(_TRIES):
        done = quiet(python, ROOT / "examples" / f"{name}.py", *ARGUMENTS.get(name, []), folder=base.parent)
        if done.returncode == 0:
            shown = ", ".join(Path(n).name for n in named) or "nothing"
            return f"{name:22} {time.perf_counter() - start:4.0f} s  installed: {shown}"
        wanted = hint(done.stderr)
        if not wanted:
            break
        install(python, *wanted)
        named += wanted
    raise RuntimeError(f"{name} does not run in a fresh environment:\n{done.stderr.strip()[-2000:]}")


def run_all_extras(base: Path, wheel: Path) -> str:
    """Install every extra at once and ask pip whether it fits together."""
    python = copy(base, "all")
    install(python, f"{wheel}[all]")
    checked = quiet(python, "-m", "pip", "check", folder=base.parent)
    if checked.returncode:
        raise RuntimeError(f"hcal[all]: {checked.stdout.strip()}")
    command = quiet(python, "-m", "hcal", "--version", folder=base.parent)
    return f"{'hcal[all]':22}         {checked.stdout.strip()}; {command.stdout.strip()}"


def main() -> int:
    known = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    wanted = sys.argv[1:] or [*known, "all"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        base, wheel = base_environment(Path(folder))
        for name in wanted:
            try:
                told = run_all_extras(base, wheel) if name == "all" else run_example(base, name)
            except RuntimeError as error:
                failed, told = failed + 1, f"FAILED {error}"
            print(told, flush=True)
            shutil.rmtree(base.parent / name, ignore_errors=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
