"""How many rows a fit needs: the default beside temperature scaling and no calibration, from 30 rows on.

Of the calibration rows of a task so many are drawn, five times; the NLL on its test rows is compared with
the better of uncalibrated and temperature scaling, each draw with its own. Constants of the default were
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

from studies import joint, tabular_board

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "learning_curve.csv"
PAGE = ROOT / "docs" / "few-rows.md"
SIZES = (30, 100, 300, 1000, 3000, 5000)
DRAWS = 5
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
    if task in joint.TASKS:
        return *joint.load(task), "logits"
    return *tabular_board.load(task), "probs"


def kind(task: str, k: int) -> str:
    """Return the group of a task."""
    return "networks" if task in joint.TASKS else "tables, two classes" if k == 2 else "tables, more classes"


def cells(task: str, methods: Sequence[str], on: str) -> list[Row]:
    """Fit the methods on every draw of one task."""
    cal, y_cal, test, y_test, given = load(task)
    out: list[Row] = []
    for rows in (n for n in SIZES if n <= len(y_cal) - 50 * (on == "calibration")):
        for draw in range(1 if rows == len(y_cal) else DRAWS):
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
