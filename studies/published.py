"""The paper's own numbers as a results file, so that pages compare like with like.

``paper_tables.csv`` holds the published values per task, method and metric; the paper's source holds the
printed tables, from which the two CARS rows are read to show where they differ from the values behind them.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Final

from hcal.bench.catalog import PAPER_METHODS, PAPER_METRICS
from hcal.bench.store import STATUS, Cell, Key, Results
from hcal.bench.tasks import PAPER_TASKS

#: The method name of the paper's own rows.
PAPER_H: Final = "h (paper)"
#: Ends the name of a task whose numbers are those printed in the paper.
PRINTED: Final = " (printed)"
#: Off the task that we can re-run, these metrics are enough for the page.
_KEPT: Final = ("ece_s1", "tcwece", "dkde_ce", "nll")
_OURS: Final = {theirs: ours for ours, theirs in (PAPER_METRICS | {"nll": "NLL"}).items()}
_METHOD: Final = {theirs: ours for ours, theirs in PAPER_METHODS.items()}


def read_published(
    path: Path, tex: Path | None = None, full: tuple[str, ...] = ("resnet110_c10",)
) -> Results:
    """Read the paper's results.

    Parameters
    ----------
    path : Path
        ``paper_tables.csv``: method, task, metric, pre, post.
    tex : Path, optional
        The paper's source, for the printed CARS rows.
    full : tuple of str
        Tasks of which every metric is kept.

    Returns
    -------
    Results
    """
    cells: dict[Key, Cell] = {}
    with path.open(newline="", encoding="utf-8") as f:
        rows = csv.DictReader(f)
        if missing := {"method", "task", "metric", "pre", "post"} - set(rows.fieldnames or ()):
            raise ValueError(f"{path.name} has no column {min(missing)!r}")
        for row in rows:
            metric = _OURS[row["metric"]]
            if row["task"] in full or metric in _KEPT:
                method = PAPER_H if row["method"].startswith("h-calibration") else _METHOD[row["method"]]
                cell = _cell(cells, Key(row["task"], method, 0))
                cell.pre[metric], cell.post[metric] = float(row["pre"]), float(row["post"])
    if tex is not None:
        for key, value in printed_rows(tex.read_text(encoding="utf-8")).items():
            _cell(cells, key).post["ece_s1"] = value
    return Results(cells.values())


def _cell(cells: dict[Key, Cell], key: Key) -> Cell:
    note = {STATUS: {"status": "ok", "source": "Huang et al., TPAMI 2025"}}
    return cells.setdefault(key, Cell(key, notes=note))


def printed_rows(source: str) -> dict[Key, float]:
    """Return the CARS rows of the paper's printed table of ECE^s (r = 1), label tab:sweepece1.

    Parameters
    ----------
    source : str
        The paper's LaTeX source.

    Returns
    -------
    dict of Key to float
    """
    body = source[source.index(r"\label{tab:sweepece1}") :]
    lines = body[: body.index(r"\end{tabular}")].splitlines()
    header = next(line for line in lines if line.startswith("Dataset"))
    methods = [name.strip() for name in header.rstrip("\\ ").split("&")[2:]]
    names = {task.model: name for name, task in PAPER_TASKS.items() if task.dataset == "CARS"}
    out = {}
    for line in (x for x in lines if x.startswith("CARS")):
        cells = [re.sub(r"\\textcolor\{\w+\}|[{}\\]", "", c).strip() for c in line.split("&")]
        for method, value in zip(methods, cells[2:], strict=False):
            ours = {"Uncal": "uncal", "Ours": PAPER_H}.get(method) or _METHOD[method]
            out[Key(names[cells[1]] + PRINTED, ours, 0)] = float(value)
    return out
