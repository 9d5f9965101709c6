"""Write what is measured into README.md: the demo's numbers and the board of ``results/pool_boards.csv``.

python tools/readme.py            # both; `make readme`
python tools/readme.py board      # only the board: no demo is run
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
ROWS = {
    "accuracy": "accuracy",
    "mean confidence": "mean_confidence",
    "ECE (`ece_ew`)": "ece_ew",
    "NLL": "nll",
    "Brier": "brier",
}
TITLES = {
    "pool": "`pool`, the default",
    "pool:none": "`pool`, predictions free (`preserve=None`)",
    "pool:accuracy": '`pool`, predictions kept (`preserve="accuracy"`)',
    "h": "`h`, the paper's method",
    "ts": "`ts`, temperature scaling",
}


def with_demo(text: str) -> str:
    """Return the README with the numbers of a demo that is run now."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hcal", "demo", "--json", "-o", folder]
        found = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )
    before, after = found["before"], found["after"]
    for row, key in ROWS.items():
        line = f"| {row} | {before[key]:.3f} | {after[key]:.3f} |"
        text = re.sub(rf"^\| {re.escape(row)} \|.*$", line, text, flags=re.MULTILINE)
    said = f"right {before['accuracy']:.1%} of the time but claims {before['mean_confidence']:.1%}"
    return re.sub(r"right [\d.]+% of the time but claims [\d.]+%", said, text)


def board(path: Path) -> str:
    """Return the table: mean joint error of the networks, mean win rates of the tables."""
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    counts: dict[str, set[str]] = defaultdict(set)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            counts[row["kind"]].add(row["task"])
            for column in ("joint", "wins_brier", "wins_nll"):
                if row[column]:
                    cells[row["method"], row["kind"], column].append(float(row[column]))
    n = {kind: len(tasks) for kind, tasks in counts.items()}
    lines = [
        f"| method | {n['network']} networks: error left | {n['binary']} tables, 2 classes: "
        f"Brier / log-loss wins | {n['multiclass']} tables, 3 and more: Brier / log-loss wins |",
        "|---|---|---|---|",
    ]
    methods = sorted(
        {m for m, _, _ in cells}, key=lambda m: list(TITLES).index(m) if m in TITLES else 99
    )
    for method in methods:
        joint = cells.get((method, "network", "joint"))
        line = (
            f"| {TITLES.get(method, f'`{method}`')} | {fmean(joint):.3f} |"
            if joint
            else f"| `{method}` | |"
        )
        for kind in ("binary", "multiclass"):
            wins = [cells.get((method, kind, column)) for column in ("wins_brier", "wins_nll")]
            line += " " + " / ".join(f"{fmean(w):.3f}" for w in wins if w) + " |"
        lines.append(line)
    return "\n".join(lines)


def with_board(text: str) -> str:
    """Return the README with the board of the kept results."""
    table = board(ROOT / "results" / "pool_boards.csv")
    return re.sub(
        r"(<!-- board -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{table}\n{m[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    page = ROOT / "README.md"
    text = with_board(page.read_text(encoding="utf-8"))
    page.write_text(text if "board" in sys.argv else with_demo(text), encoding="utf-8")
