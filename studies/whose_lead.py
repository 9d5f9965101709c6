"""Where the paper's lead in class-wise and canonical errors comes from, from its own tables alone.

    python -m studies.whose_lead     # results/whose_lead.csv, the table of docs/why-not-the-papers-selector.md

On nine of its 15 tasks, the published class-wise configuration is an ensemble of 64 or 128 members: the maps that start
near the uniform predictor. The average relative error (ARE) of a method is the mean over tasks of its error divided by
the error before calibration.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from studies.drawing import replace_between
from studies.records import RESULTS, ROOT, read_rows, stamped, write_rows
from studies.tasks import DATA

FILE: Final = RESULTS / "whose_lead.csv"
PAGE: Final = ROOT / "docs" / "why-not-the-papers-selector.md"
MARKS: Final = ("<!-- lead: begin -->", "<!-- lead: end -->")
METRICS: Final = {"tCWECE": "tCWECE", "DKDE_CE": "DKDE-CE"}
OWN: Final = "h-calibration"
#: The tasks whose published class-wise configuration is an ensemble of 64 or 128 members.
ENSEMBLES: Final = (
    "resnet110_c100",
    "resnet50_cars",
    "resnet101_cars",
    "resnet101scratch_cars",
    "resnet50NTSNet_birds",
    "resnet152_imgnet",
    "densenet161_imgnet",
    "pnasnet5large_imgnet",
    "swintiny_imgnet",
)

Errors = dict[tuple[str, str, str], float]


def relative_errors(shared: Path) -> Errors:
    """Return error / error before calibration, by method, task and metric, of the paper's tables."""
    errors: dict[tuple[str, str, str], tuple[str, str]] = {}
    for name in ("paper_tables.csv", "paper_tables_densenet40.csv"):
        for row in read_rows(shared / name):
            method = OWN if row["method"].startswith(OWN) else row["method"]
            errors[method, row["task"], row["metric"]] = (row["pre"], row["post"])
    return {key: float(post) / float(pre) for key, (pre, post) in errors.items() if pre}


def average_relative_errors(
    relative: Mapping[tuple[str, str, str], float], tasks: Iterable[str], metric: str
) -> dict[str, float]:
    """Return the ARE of every method that has a value on all of the tasks, the best first."""
    tasks = tuple(tasks)
    averages = {}
    for method in {method for method, _, _ in relative}:
        keys = [(method, task, metric) for task in tasks]
        if all(key in relative for key in keys):
            averages[method] = statistics.fmean(relative[key] for key in keys)
    return dict(sorted(averages.items(), key=lambda pair: pair[1]))


def result_rows(shared: Path) -> list[dict[str, object]]:
    """Return the ARE and the rank of every method, on both sets of tasks."""
    relative = relative_errors(shared)
    all_tasks = {task for _, task, _ in relative}
    parts = {"ensemble": ENSEMBLES, "other": tuple(sorted(all_tasks - set(ENSEMBLES)))}
    rows = []
    for metric in METRICS:
        for part, tasks in parts.items():
            averages = average_relative_errors(relative, tasks, metric)
            for rank, (method, value) in enumerate(averages.items(), start=1):
                facts = {
                    "metric": metric,
                    "configuration": part,
                    "tasks": len(tasks),
                    "rank": rank,
                    "method": method,
                    "are": value,
                }
                rows.append(stamped(facts))
    return rows


def table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the table of the page: the paper's method, and the best other one."""
    lines = [
        "| metric | published configuration | tasks | h-calibration: ARE | rank | best other "
        "method | its ARE |",
        "|---|---|---:|---:|---:|---|---:|",
    ]
    names = {"ensemble": "ensemble-64 or -128", "other": "another map"}
    for metric, title in METRICS.items():
        for part, name in names.items():
            chosen = [r for r in rows if (r["metric"], r["configuration"]) == (metric, part)]
            of_paper = next(row for row in chosen if row["method"] == OWN)
            best = next(row for row in chosen if row["method"] != OWN)
            lines.append(
                f"| {title} | {name} | {of_paper['tasks']} | {float(str(of_paper['are'])):.3f} | "
                f"{of_paper['rank']} | {best['method']} | {float(str(best['are'])):.3f} |"
            )
    return lines


def main() -> None:
    """Compute, write and show."""
    rows = result_rows(DATA.parent)
    write_rows(FILE, rows)
    lines = table(read_rows(FILE))
    replace_between(PAGE, MARKS, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
