"""Build the wheel and the sdist, check both, and show what a user gets.

    python tools/package.py            # needs build and twine: `make package` brings them

Fails where the wheel holds anything but the package, or where metadata or README would not render.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def foreign(names: list[str]) -> list[str]:
    """Return the files of a wheel that are neither the package nor its metadata."""
    return [n for n in names if not n.startswith("hcal/") and ".dist-info/" not in n]


def contents(names: list[str]) -> str:
    """Return a line for every folder of a wheel with the number of its files."""
    counts = Counter("/".join(name.split("/")[:2]) if name.count("/") > 1 else name for name in names)
    return "\n".join(f"{count:4}  {name}" for name, count in sorted(counts.items()))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder, str(ROOT)], check=True)
        made = sorted(Path(folder).iterdir())
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)], check=True)
        wheel = next(p for p in made if p.suffix == ".whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        for path in made:
            print(f"{path.name}: {path.stat().st_size:,} bytes")
        print(contents(names))
        if odd := foreign(names):
            print(f"not of the package: {', '.join(odd)}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
