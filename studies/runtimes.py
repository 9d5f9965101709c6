"""How far every runtime of an exported calibrator is from ``predict_proba``, by method, kind of scores and columns.

``python -m studies.runtimes`` writes results/runtimes.csv and from it studies/runtimes.md, in half an hour;
``python -m studies.runtimes page`` writes the page alone. tests/integrations/test_runtimes.py runs a part of it. The
JSON is read by the reader of docs/howto/deploy.md, word for word.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hcal
from hcal.inputs import InputKind
from hcal.integrations.sql import DialectName, as_sql
from hcal.integrations.sql_text import quoted_name
from hcal.methods.base import Calibrator
from hcal.numerics import Float64, IntArray, log_softmax, softmax
from studies import postgres
from studies.drawing import write_text
from studies.records import RESULTS, ROOT, read_rows, stamped, write_rows

FILE = RESULTS / "runtimes.csv"
PAGE = ROOT / "studies" / "runtimes.md"
KINDS: tuple[InputKind, ...] = ("logits", "probs", "log_probs")
Columns = Literal["one", "two", "four"]
COLUMNS: tuple[Columns, ...] = ("one", "two", "four")
#: Smaller searches for the methods whose default one is long: what they learn does not matter here.
QUICK: dict[str, dict[str, Any]] = {
    "dec": {"max_critics": 4},
    "diag": {"hidden": (2,)},
    "dir": {"penalty": (0.1, 1e-3), "folds": 2},
    "gp": {"inducing": 4, "samples": 10, "max_iterations": 5},
    "h": {"maps": "piecewise-10", "epochs": 20},
    "ms": {"penalty": (0.1, 1e-3), "folds": 2},
}
#: Reads a calibrator that was exported to a folder, and predicts: (calibrator, scores, folder) → probabilities.
Runtime = Callable[[Calibrator, Float64, Path], Float64 | None]


@dataclass(frozen=True)
class Case:
    """A fitted calibrator, and scores of new rows."""

    method: str
    kind: InputKind
    columns: Columns
    prior: bool
    calibrator: Calibrator
    scores: Float64


@dataclass(frozen=True)
class Difference:
    """The largest difference of a runtime to numpy, over all classes and rows."""

    runtime: str
    method: str
    kind: str
    columns: str
    prior: bool
    difference: float


def cases(methods: Iterable[str], kinds: Iterable[InputKind] = KINDS) -> Iterator[Case]:
    """Yield every method, kind and number of columns, with and without other class frequencies."""
    for method in methods:
        for kind in kinds:
            for n_classes in (2, 4):
                calibrator = fitted(method, kind, n_classes)
                moved = calibrator.with_prior(np.arange(1, n_classes + 1))
                scores = new_scores(kind, n_classes)
                for prior, chosen in ((False, calibrator), (True, moved)):
                    if n_classes == 2:
                        yield Case(method, kind, "one", prior, chosen, one_column(scores, kind))
                    columns: Columns = "two" if n_classes == 2 else "four"
                    yield Case(method, kind, columns, prior, chosen, scores)


@cache
def fitted(method: str, kind: InputKind, n_classes: int) -> Calibrator:
    """Return a method fitted on 200 rows of a rare first class."""
    logits, y = _draw(200, n_classes, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = hcal.make_calibrator(method, input=kind, **QUICK.get(method, {}))
        return calibrator.fit(of_kind(logits, kind), y)


def new_scores(kind: InputKind, n_classes: int) -> Float64:
    """Return scores of 100 new rows; some are further out than those of the fit, with a sure or an open top."""
    logits = _draw(100, n_classes, seed=1)[0]
    logits[:10] *= 4
    logits[10:20] /= 10
    logits[10:20, 0] -= 15
    return of_kind(logits, kind)


def of_kind(logits: Float64, kind: InputKind) -> Float64:
    """Return logits as scores of a kind."""
    if kind == "logits":
        return logits
    return softmax(logits) if kind == "probs" else log_softmax(logits)


def one_column(scores: Float64, kind: InputKind) -> Float64:
    """Return the scores (N,) of the second class."""
    return scores[:, 1] - scores[:, 0] if kind == "logits" else scores[:, 1]


def _draw(n_rows: int, n_classes: int, seed: int) -> tuple[Float64, IntArray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n_rows, n_classes)) * 1.5
    logits[:, 0] -= 2.0
    below = softmax(logits).cumsum(axis=1)
    y = (below > rng.random((n_rows, 1))).argmax(axis=1)
    return 2.5 * logits, y


# -- runtimes ---------------------------------------------------------------------------------------------


@cache
def guide_reader() -> Callable[[Any, Any], Float64]:
    """Return ``predict`` of the guide on deployment."""
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    code = next(block for block in blocks if "OPERATIONS" in block).split("model = json.loads")[0]
    names: dict[str, Any] = {"np": np}
    exec(code, names)
    predict: Callable[[Any, Any], Float64] = names["predict"]
    return predict


def by_json(calibrator: Calibrator, scores: Float64, folder: Path) -> Float64:
    """Predict by the JSON and the guide's reader."""
    path = folder / "model.json"
    hcal.export(calibrator, path)
    model = json.loads(path.read_text(encoding="utf-8"))
    with np.errstate(all="ignore"):
        return guide_reader()(model, scores)


def by_module(calibrator: Calibrator, scores: Float64, folder: Path) -> Float64:
    """Predict by the PyTorch module, in float64."""
    import torch

    from hcal.integrations.torch import CalibrationHead

    probs: Float64 = CalibrationHead(calibrator)(torch.from_numpy(scores)).numpy()
    return probs


def by_onnx(calibrator: Calibrator, scores: Float64, folder: Path) -> Float64:
    """Predict by onnxruntime, in float64."""
    import onnxruntime

    path = folder / "model.onnx"
    alone = scores.ndim == 1
    hcal.export(calibrator, path, width="float64", one_column=alone)
    session = onnxruntime.InferenceSession(str(path))
    rows = scores[:, None] if alone else scores
    probs: Float64 = session.run(None, {"scores": rows})[0]
    return probs


def by_javascript(calibrator: Calibrator, scores: Float64, folder: Path) -> Float64:
    """Predict by the ES module in node."""
    hcal.export(calibrator, folder / "model.mjs")
    (folder / "scores.json").write_text(json.dumps(scores.tolist()), encoding="utf-8")
    program = """
        import { readFileSync } from "node:fs";
        import { predict } from "./model.mjs";
        const scores = JSON.parse(readFileSync("scores.json", "utf-8"));
        console.log(JSON.stringify(predict(scores)));
    """
    (folder / "run.mjs").write_text(program, encoding="utf-8")
    done = subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, check=True)
    return np.array(json.loads(done.stdout), dtype=np.float64)


def by_sql(
    dialect: DialectName, calibrator: Calibrator, scores: Float64, folder: Path
) -> Float64 | None:
    """Return what a query makes of a table of scores, with an odd name for its columns; None where there is no SQL."""
    table = scores.reshape(len(scores), -1)
    names = [f'score "{k}"; --' for k in range(table.shape[1])]
    try:
        query = as_sql(calibrator, dialect=dialect, table="the scores", columns=names)
    except ValueError:
        return None
    run = run_duckdb if dialect == "duckdb" else run_sqlite
    return run(query, names, table)


def run_duckdb(query: str, names: list[str], table: Float64) -> Float64:
    """Return the probabilities of a query in DuckDB, in the order of the rows."""
    import duckdb
    import pandas as pd

    frame = pd.DataFrame(table, columns=names)
    frame["row"] = np.arange(len(frame))
    with duckdb.connect() as database:
        database.register("the scores", frame)
        result = database.execute(query).df().sort_values("row")
    probs: Float64 = result[[name for name in result if name.startswith("probs_")]].to_numpy()
    return probs


def run_sqlite(query: str, names: list[str], table: Float64) -> Float64:
    """Return the probabilities of a query in SQLite, in the order of the rows; NULL becomes NaN."""
    columns = ["row", *names]
    listed = ", ".join(f"{quoted_name(name)} REAL" for name in columns)
    marks = ", ".join("?" * len(columns))
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f'CREATE TABLE "the scores" ({listed})')
        rows = [[i, *row] for i, row in enumerate(table.tolist())]
        database.executemany(f'INSERT INTO "the scores" VALUES ({marks})', rows)
        cursor = database.execute(query)
        results = [name for name, *_ in cursor.description]
        rows = sorted(cursor.fetchall())  # by the number of the row, the first column
    places = [i for i, name in enumerate(results) if name.startswith("probs_")]
    return np.array([[row[i] for i in places] for row in rows], dtype=np.float64)


#: Each runtime, and the largest difference to numpy that is allowed.
RUNTIMES: dict[str, tuple[Runtime, float]] = {
    "json": (by_json, 1e-13),
    "module": (by_module, 1e-11),
    "onnx": (by_onnx, 1e-11),
    "javascript": (by_javascript, 1e-13),
    "duckdb": (partial(by_sql, "duckdb"), 1e-14),
    "sqlite": (partial(by_sql, "sqlite"), 1e-14),
}


def measure(runtime: str, case: Case, folder: Path) -> Difference | None:
    """Return the largest difference of a runtime to ``predict_proba``; None if it does not know the method."""
    predict = RUNTIMES[runtime][0]
    expected = case.calibrator.predict_proba(case.scores)
    actual = predict(case.calibrator, case.scores, folder)
    if actual is None:
        return None
    largest = float(np.abs(actual - expected).max())
    return Difference(runtime, case.method, case.kind, case.columns, case.prior, largest)


def by_postgres(
    psql: postgres.Psql, calibrator: Calibrator, scores: Float64, folder: Path
) -> Float64 | None:
    """Predict by the query in PostgreSQL; None where there is no SQL."""
    table = scores.reshape(len(scores), -1)
    names = [f"s{k}" for k in range(table.shape[1])]
    try:
        query = as_sql(calibrator, dialect="postgres", table="the scores", columns=names)
    except ValueError:
        return None
    return postgres.probs_in_postgres(psql, query, table)


# -- the page ---------------------------------------------------------------------------------------------

#: How the page calls the runtimes.
TITLES = {
    "json": "JSON",
    "module": "PyTorch",
    "onnx": "ONNX",
    "javascript": "JavaScript",
    "duckdb": "DuckDB",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
}
_HEAD = """# Every runtime against numpy

The largest difference of a probability to `predict_proba`, over 100 new rows, one column, two and
four classes, and with other class frequencies (ONNX: one column and four classes, without). A
dash: SQL does not have the method, because it sorts. Written by `python -m studies.runtimes` from
[results/runtimes.csv](../results/runtimes.csv), hcal {version}, commit {commit}.
"""


def page(rows: list[dict[str, str]]) -> str:
    """Return the table runtime × method × kind of scores."""
    largest: dict[tuple[str, str, str], float] = {}
    for row in rows:
        cell = (row["method"], row["kind"], row["runtime"])
        largest[cell] = max(largest.get(cell, 0.0), float(row["difference"]))
    runtimes = [name for name in TITLES if any(row["runtime"] == name for row in rows)]
    heads = ["method", "kind", *(TITLES[name] for name in runtimes)]
    lines = [_HEAD.format(**rows[0]), f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method, kind in dict.fromkeys((row["method"], row["kind"]) for row in rows):
        values = [largest.get((method, kind, runtime)) for runtime in runtimes]
        cells = ["–" if value is None else f"{value:.0e}" for value in values]
        lines.append(f"| {' | '.join([f'`{method}`', kind, *cells])} |")
    return "\n".join(lines) + "\n"


def is_for_onnx(case: Case) -> bool:
    """Whether a graph is made of a case: each takes seconds, and one column and four show both shapes of a formula."""
    return case.columns != "two" and not case.prior


def measured(runtimes: Iterable[str]) -> list[dict[str, Any]]:
    """Return the difference of every runtime in every case."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(hcal.list_calibrators()):
            for runtime in runtimes:
                if runtime == "onnx" and not is_for_onnx(case):
                    continue
                difference = measure(runtime, case, Path(folder))
                if difference is not None:
                    rows.append(stamped(asdict(difference)))
    return rows


def main() -> None:
    """Write the results and the page."""
    if sys.argv[1:] != ["page"]:
        missing = postgres.missing()
        if missing is not None or shutil.which("node") is None:
            raise SystemExit(f"not installed: {missing or 'node'}")
        with postgres.server() as psql:
            RUNTIMES["postgres"] = (partial(by_postgres, psql), 1e-14)
            write_rows(FILE, measured(RUNTIMES))
    write_text(PAGE, page(read_rows(FILE)))


if __name__ == "__main__":
    main()
