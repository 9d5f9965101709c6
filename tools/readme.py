"""Write what is measured into README.md: the demo's numbers, and the tables of ``results/``.

python tools/readme.py            # both; `make readme`
python tools/readme.py tables     # only the tables: no demo is run

A table stands between ``<!-- table: FILE -->`` and ``<!-- end -->``: FILE is a Markdown table in results/
that a study wrote.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = {
    "accuracy": "accuracy",
    "mean confidence": "mean_confidence",
    "ECE (`ece_ew`)": "ece_ew",
    "NLL": "nll",
    "Brier": "brier",
}


def with_demo(text: str) -> str:
    """Return the README with the numbers of a demo that is run now."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hcal", "demo", "--json", "-o", folder]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    before, after = found["before"], found["after"]
    for row, key in ROWS.items():
        line = f"| {row} | {before[key]:.3f} | {after[key]:.3f} |"
        text = re.sub(rf"^\| {re.escape(row)} \|.*$", line, text, flags=re.MULTILINE)
    said = f"right {before['accuracy']:.1%} of the time but claims {before['mean_confidence']:.1%}"
    return re.sub(r"right [\d.]+% of the time but claims [\d.]+%", said, text)


def with_tables(text: str) -> str:
    """Return the README with the tables of ``results/`` as they are now."""

    def table(match: re.Match[str]) -> str:
        body = (ROOT / "results" / match[1]).read_text(encoding="utf-8").strip()
        return f"<!-- table: {match[1]} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- table: (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = ROOT / "README.md"
    text = with_tables(page.read_text(encoding="utf-8"))
    page.write_text(text if "tables" in sys.argv else with_demo(text), encoding="utf-8")
