"""Write the numbers of ``hcal demo`` into the README (``make readme``); a test compares the two."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
ROWS = {
    "accuracy": "accuracy",
    "mean confidence": "mean_confidence",
    "ECE (`ece_ew`)": "ece_ew",
    "NLL": "nll",
    "Brier": "brier",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hcal", "demo", "--json", "-o", folder]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    before, after = found["before"], found["after"]
    text = README.read_text(encoding="utf-8")
    for row, name in ROWS.items():
        line = f"| {row} | {before[name]:.4f} | {after[name]:.4f} |"
        text = re.sub(rf"^\| {re.escape(row)} \|.*$", line, text, flags=re.MULTILINE)
    said = f"right {before['accuracy']:.1%} of the time but says {before['mean_confidence']:.1%}"
    text = re.sub(r"right [\d.]+% of the time but says [\d.]+%", said, text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
