"""Write what is measured into README.md: the demo's numbers and picture, and the board of ``results/pool_boards.csv``.

python tools/readme.py            # all; `make readme`
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
    """Return the README with the numbers of a demo that is run now; its picture goes to the docs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hcal", "demo", "--json", "-o", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        demo = json.loads(done.stdout)
        draw(Path(folder), ROOT / "docs" / "assets" / "before-after.svg")
    before = demo["before"]
    after = demo["after"]
    for row, key in ROWS.items():
        line = f"| {row} | {before[key]:.3f} | {after[key]:.3f} |"
        text = re.sub(rf"^\| {re.escape(row)} \|.*$", line, text, flags=re.MULTILINE)
    claim = f"right {before['accuracy']:.1%} of the time but claims {before['mean_confidence']:.1%}"
    return re.sub(r"right [\d.]+% of the time but claims [\d.]+%", claim, text)


def draw(demo: Path, path: Path) -> None:
    """Draw how often the demo's network is right for each confidence, before and after calibration."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import numpy as np

    import hcal
    from docs.gallery_style import STYLE

    task = np.load(demo / "digits.npz")
    logits = task["logits_test"]
    y = task["y_test"]
    calibrator = hcal.load(demo / "model.hcal")
    panels = {
        "The network as it is": hcal.softmax(logits),
        "Calibrated by hcal": calibrator.predict_proba(logits),
    }
    mpl.use("svg")
    mpl.rcParams.update(STYLE)
    figure, row = plt.subplots(1, 2, figsize=(8.6, 3.9), sharex=True, sharey=True)
    for axes, (title, probs) in zip(row, panels.items(), strict=True):
        right = probs.argmax(axis=1) == y
        confidence = 100 * probs.max(axis=1)
        edges = np.linspace(30, 100, 8)
        part = np.digitize(confidence, edges[1:-1])
        filled = [number for number in range(7) if (part == number).sum() >= 10]
        stated = np.array([confidence[part == number].mean() for number in filled])
        observed = np.array([100 * right[part == number].mean() for number in filled])
        axes.plot([20, 100], [20, 100], color="0.6", linewidth=1, linestyle="--")
        axes.vlines(stated, observed, stated, color="C1", linewidth=5, alpha=0.35)
        axes.plot(stated, observed, marker="o", color="C0")
        summary = f"says {confidence.mean():.0f} % on average,\nis right {100 * right.mean():.0f} %"
        axes.text(24, 88, summary, va="top")
        axes.set_title(title)
        axes.set_xlabel("how sure it says it is, %")
    row[0].set_ylabel("how often it is right, %")
    row[0].set_xlim(20, 103)
    row[0].set_ylim(20, 103)
    # On GitHub's dark pages a drawing without paper could not be read.
    figure.savefig(path, facecolor="white", metadata={"Date": None})


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
    order = {title: place for place, title in enumerate(TITLES)}
    methods = sorted({method for method, _, _ in cells}, key=lambda method: order.get(method, 99))
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
    sys.path.insert(0, str(ROOT))
    page = ROOT / "README.md"
    text = with_board(page.read_text(encoding="utf-8"))
    page.write_text(text if "board" in sys.argv else with_demo(text), encoding="utf-8")
