"""How many rows a fit needs: the default beside temperature scaling and no calibration, from 30 rows on.

Of the calibration rows of a task so many are drawn, three times (once from 3000 on); the NLL on its test
rows is compared with the better of uncalibrated and temperature scaling. Constants of the default were
chosen with ``--on calibration``: the same, scored on the calibration rows that were not drawn.

    python -m studies.learning_curve run
    python -m studies.learning_curve page
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hcal.reporting import svg
from studies import joint, tabular_board

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "learning_curve.csv"
PAGE = ROOT / "docs" / "few-rows.md"
FIGURE = ROOT / "docs" / "assets" / "few-rows.svg"
#: How many rows, and how often they are drawn.
DRAWS = {30: 3, 100: 3, 300: 3, 1000: 3, 3000: 1, 5000: 1}
SIZES = tuple(DRAWS)
METHODS = ("uncal", "ts", "h")
#: A dozen of the tables: every kind of classifier, two classes and more, most rows first.
TABLES = (
    "bank_gnb",
    "bank_lgbm",
    "bank_mlp",
    "credit_logreg",
    "credit_rf",
    "magic_hgb",
    "spambase_svc",
    "wine_good_rf",
    "letter_mlp",
    "letter_rf",
    "pendigits_lgbm",
    "thyroid_mlp",
)
FIELDS = ["task", "kind", "k", "rows", "draw", "method", "nll"]
Row = dict[str, Any]


def load(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
    """Return calibration scores and labels, test scores and labels, and what the scores are."""
    network = task in joint.TASKS
    cal, y_cal, test, y_test = joint.load(task) if network else tabular_board.load(task)
    return cal, y_cal, test, y_test, "logits" if network else "probs"


def kind(task: str, k: int) -> str:
    """Return the group of a task."""
    return "networks" if task in joint.TASKS else "tables, two classes" if k == 2 else "tables, more classes"


def cells(task: str, methods: Sequence[str], on: str) -> list[Row]:
    """Fit the methods on every draw of one task."""
    cal, y_cal, test, y_test, given = load(task)
    out: list[Row] = []
    for rows in (n for n in SIZES if n <= len(y_cal) - 50 * (on == "calibration")):
        for draw in range(DRAWS[rows]):
            order = np.random.default_rng([rows, draw]).permutation(len(y_cal))
            drawn, left = order[:rows], order[rows:]
            seen = (cal[left], y_cal[left]) if on == "calibration" else (test, y_test)
            about = {"task": task, "kind": kind(task, cal.shape[1]), "k": cal.shape[1], "rows": rows}
            for method in methods:
                value = nll(method, given, cal[drawn], y_cal[drawn], *seen)
                out.append({**about, "draw": draw, "method": method, "nll": f"{value:.8g}"})
    return out


def nll(
    method: str, given: str, cal: np.ndarray, y_cal: np.ndarray, test: np.ndarray, y_test: np.ndarray
) -> float:
    """Return the NLL of one fit; a probability of 0 counts as 1e-15."""
    import hcal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probs = hcal.make_calibrator(method, input=given).fit(cal, y_cal).predict_proba(test)
    return float(-np.log(np.maximum(probs[np.arange(len(y_test)), y_test], 1e-15)).mean())


def run(args: argparse.Namespace) -> None:
    """Run every task, into the file at the end of each."""
    from hcal.io.atomic import atomic_path

    tasks = args.tasks.split(",") if args.tasks else [*joint.TASKS, *TABLES]
    kept = [r for r in read(args.out) if r["task"] not in tasks] if args.out.exists() else []
    for task in tasks:
        kept += cells(task, args.methods.split(","), args.on)
        with atomic_path(args.out) as temporary, temporary.open("w", newline="") as f:
            writer = csv.DictWriter(f, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(kept, key=lambda r: [str(r[name]).zfill(9) for name in FIELDS[:-1]]))
        print(task, file=sys.stderr, flush=True)


def read(path: Path) -> list[Row]:
    """Return the rows of a results file."""
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def ratios(rows: Sequence[Row], method: str = "h") -> dict[tuple[str, str, int], float]:
    """Return (kind, task, rows) -> median over draws of a method's NLL, over the better of the other two.

    The better of uncalibrated and temperature scaling is known only afterwards, from the same test rows; each
    has its median over the draws.

    >>> few = [{"kind": "k", "task": "t", "rows": 30, "method": m, "nll": v} for m, v in
    ...        (("uncal", 1.0), ("ts", 0.5), ("h", 0.6))]
    >>> ratios(few)
    {('k', 't', 30): 1.2}
    """
    found: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for r in rows:
        cell = found.setdefault((r["kind"], r["task"], int(r["rows"])), {})
        cell.setdefault(r["method"], []).append(float(r["nll"]))
    medians = {at: {m: float(np.median(v)) for m, v in cell.items()} for at, cell in found.items()}
    return {at: cell[method] / min(cell["uncal"], cell["ts"]) for at, cell in medians.items()}


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the table of the groups as Markdown: median over tasks, those above 1.01, and the worst."""
    by = {method: ratios(rows, method) for method in ("h", "ts", "uncal")}
    kinds = list(dict.fromkeys(at[0] for at in by["h"]))
    head = ["tasks", "rows", "number of tasks", "`h`", "above 1.01", "worst", "`ts`", "above 1.01", "worst"]
    out = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in ("all", *kinds):
        for size in SIZES:
            chosen = {
                m: np.array([v for (kind, _, n), v in found.items() if n == size and name in ("all", kind)])
                for m, found in by.items()
            }
            if chosen["h"].size:
                shown = [f for m in ("h", "ts") for f in _shown(chosen[m])]
                out.append("| " + " | ".join([name, f"{size}", f"{chosen['h'].size}", *shown]) + " |")
    return out


def _shown(values: np.ndarray) -> list[str]:
    return [f"{np.median(values):.3f}", f"{int((values > 1.01).sum())}", f"{values.max():.3f}"]


def by_task(rows: Sequence[Row]) -> list[str]:
    """Return the table of every task as Markdown."""
    found = ratios(rows)
    out = ["| task | " + " | ".join(f"{n}" for n in SIZES) + " |", "|---" * (1 + len(SIZES)) + "|"]
    for kind, task in sorted({at[:2] for at in found}):
        values = [found.get((kind, task, n)) for n in SIZES]
        out.append(f"| {task} | " + " | ".join("" if v is None else f"{v:.3f}" for v in values) + " |")
    return out


def figure(rows: Sequence[Row]) -> str:
    """Return the curves as an SVG: a thin line a task, a thick one for the median of all."""
    found = ratios(rows)
    frame = svg.Frame(54, 14, 480, 260, across=svg.Axis(np.log(25), np.log(6000)), upward=svg.Axis(-0.4, 0.2))
    parts = []
    for level in (0.7, 0.8, 0.9, 1.0, 1.1, 1.2):
        y = frame.y(float(np.log(level)))
        parts += [svg.line(frame.left, y, frame.left + frame.width, y, "one" if level == 1 else "grid")]
        parts += [svg.text(frame.left - 6, y + 4, f"{level:.1f}", anchor="end")]
    for n in SIZES:
        parts.append(svg.text(frame.x(float(np.log(n))), frame.top + frame.height + 16, f"{n}"))
    tasks = sorted({at[:2] for at in found})
    for kind, task in tasks:
        parts.append(
            _curve(frame, {n: found[kind, task, n] for n in SIZES if (kind, task, n) in found}, "task")
        )
    median = {n: float(np.median([v for at, v in found.items() if at[2] == n])) for n in SIZES}
    parts.append(_curve(frame, median, "median"))
    parts.append(svg.text(frame.left + frame.width / 2, frame.top + frame.height + 34, "calibration rows"))
    style = (
        "text{font:12px sans-serif;fill:#777}.grid{stroke:#8884}.one{stroke:#777}"
        ".task{fill:none;stroke:#4477aa66}.median{fill:none;stroke:#cc3311;stroke-width:3}"
    )
    words = "NLL over the better of uncalibrated and temperature scaling, against calibration rows"
    drawn = svg.drawing(
        560, 316, [f"<style>{style}</style>", *parts], title="Learning curve", description=words
    )
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _curve(frame: svg.Frame, values: dict[int, float], name: str) -> str:
    bound = np.clip(np.log(list(values.values())), *frame.y_range)
    points = zip((frame.x(float(np.log(n))) for n in values), map(frame.y, bound.tolist()), strict=True)
    return svg.path(list(points), name)


def page(args: argparse.Namespace) -> None:
    """Write the tables between the markers of docs/few-rows.md, and the figure beside it."""
    rows, text = read(args.out), PAGE.read_text(encoding="utf-8")
    for mark, lines in (("groups", summary(rows)), ("tasks", by_task(rows))):
        before, _, rest = text.partition(f"<!-- {mark} -->\n")
        text = (
            f"{before}<!-- {mark} -->\n"
            + "\n".join(lines)
            + "\n<!-- end -->"
            + rest.partition("<!-- end -->")[2]
        )
    PAGE.write_text(text, encoding="utf-8")
    FIGURE.write_text(figure(rows) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--tasks", default="", help="names with commas; all by default")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--on", choices=["test", "calibration"], default="test", help="rows that are scored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    {"run": run, "page": page}[args.command](args)


if __name__ == "__main__":
    main()
