"""``hcal compare``: methods × metrics on the rows of a file, as a table and a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hcal
from hcal.cli.files import Ask
from hcal.evaluation.comparison_table import Comparison
from hcal.io import DataFile


def compare_file(
    ask: Ask,
    test: Path | None,
    *,
    methods: list[str] | None,
    metrics: list[str] | None,
    folds: int,
    jobs: int | None,
    progress: bool | None,
) -> Comparison:
    """Compare methods on a file with two parts, on two files, or out of fold on one.

    ``test`` is the file to judge on; by default the test part of the first, or folds where it has no parts.
    """
    learn = ask.read(part="cal")
    judge = _judged_on(ask, test, learn)
    rows: dict[str, Any] = {"folds": folds, "groups": learn.groups}
    if judge is not None:
        rows = {"test_logits": judge.values, "test_y": judge.labels()}
    return hcal.compare(
        learn.values, learn.labels(), **rows, methods=methods, metrics=metrics, input=learn.kind,
        n_jobs=jobs, progress=progress,
    )  # fmt: skip


def _judged_on(ask: Ask, test: Path | None, learn: DataFile) -> DataFile | None:
    if test is not None:
        data = replace(ask, file=[test], labels=None, group=None).read(kind=learn.kind)
    elif learn.part:
        data = replace(ask, group=None).read(kind=learn.kind)
    else:
        return None
    return data.in_order_of(learn.classes)
