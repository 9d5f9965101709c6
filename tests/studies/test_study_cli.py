"""``python -m studies``: each command does what it says, on made-up results."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hcal.bench.store import read_results
from helpers import ROOT, SHARED
from studies.__main__ import app

RUN = CliRunner()


def test_published_numbers_are_those_that_are_kept(tmp_path: Path) -> None:
    tables, tex = SHARED / "paper_tables.csv", SHARED / "paper" / "h-calibration.tex"
    if not tables.exists():
        pytest.skip("needs ../shared")
    out = tmp_path / "published.csv"
    done = RUN.invoke(app, ["published", str(tables), "--tex", str(tex), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert read_results(out).cells == read_results(ROOT / "results" / "published.csv").cells


def test_an_unknown_ablation_is_one_sentence(tmp_path: Path) -> None:
    asked = [
        "ablations",
        "nonsense",
        "--tasks",
        "synthetic:temperature-k3-n200",
        "-o",
        str(tmp_path / "r.csv"),
    ]
    done = RUN.invoke(app, asked)
    assert done.exit_code != 0
    assert "unknown ablation 'nonsense'; valid: all, objective" in " ".join(done.output.split())
