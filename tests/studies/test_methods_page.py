"""The numbers of studies/published-settings.md that a user gets are those of the kept results."""

from __future__ import annotations

import re

import pytest

from hcal.bench.store import Results, read_results
from helpers import ROOT
from studies import spread
from studies.paired import mean_replicates

PAGE = ROOT / "studies" / "published-settings.md"
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").partition("## Numbers")[2].splitlines()
    if line.startswith("| `") and line.count("|") == 6
]


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(ROOT / "results" / "shared.csv")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0].strip("`"))
def test_the_last_column_is_the_default_of_the_kept_run(line: list[str], results: Results) -> None:
    shown = re.findall(r"\.\d+", line[3] if line[4].startswith("the same") else line[4])[:3]
    method = line[0].strip("`")
    for text, metric in zip(shown, ("ece_ew", "cwece_a", "nll"), strict=True):
        value = results.value("cifar10_resnet110", method, metric)
        assert float(text) == pytest.approx(value, abs=0.51 * 10.0 ** (1 - len(text))), metric


def test_every_method_has_its_line() -> None:
    assert len(LINES) == 23


def test_what_the_pages_say_of_seeds_and_of_dec(results: Results) -> None:
    task = "cifar10_resnet110"
    seeded = ("imax", "lece", "ts_lece", "ms", "dir", "gp", "diag", "dec")
    for metric, most in (("nll", "dec"), ("ece_ew", "lece")):
        found = {m: results.values(task, m, metric) for m in seeded}
        assert all(len(values) == 5 for values in found.values())
        spread = {m: max(values) - min(values) for m, values in found.items()}
        assert max(spread, key=lambda m: spread[m]) == most
        assert metric == "nll" or spread["gp"] < 1e-4
    above = [t for t in results.tasks if results.value(t, "dec", "nll") > results.value(t, "ts", "nll")]
    assert task in above
    assert len(above) > 0.6 * len(results.tasks)


def test_what_the_faq_says_of_the_noise_of_an_error(results: Results) -> None:
    assert (
        "standard deviation of ECE is about 0.2 percentage points" in (ROOT / "docs" / "faq.md").read_text()
    )
    for method in ("uncal", "ts", "h"):
        drawn = mean_replicates(results, "cifar10_resnet110", method, "ece_ew")
        assert drawn is not None
        assert drawn.std() == pytest.approx(0.002, abs=0.0005)


def test_the_spread_is_that_of_the_kept_run() -> None:
    rows = spread.read(spread.RESULTS)
    assert {r["random_state"] for r in rows} == {"0", "1", "2", "3", "4"}
    lece = [r for r in rows if r["method"] == "lece"]
    nll, ece = ([float(r[m]) for r in lece] for m in ("nll", "ece_ew"))
    assert max(nll) - min(nll) < 0.002  # what the page says of lece
    assert (round(min(ece), 3), round(max(ece), 3)) == (0.011, 0.033)
    text = PAGE.read_text(encoding="utf-8")
    assert spread.between(text, spread.MARKS, f"\n{spread.table(rows)}\n") == text
