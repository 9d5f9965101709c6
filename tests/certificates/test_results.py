"""The promises of the studies, on the numbers that benchmarks/certificates.py wrote."""

from __future__ import annotations

import csv

import pytest

from helpers import ROOT

PATH = ROOT / "results" / "certificates.csv"


def _rows(study: str) -> list[dict[str, str]]:
    with PATH.open(newline="") as f:
        return [row for row in csv.DictReader(f) if row["study"] == study]


def _values(study: str, name: str, **where: str) -> list[float]:
    chosen = [r for r in _rows(study) if r["name"] == name and all(r[k] == v for k, v in where.items())]
    assert chosen, f"no {name} of {study} in results/certificates.csv"
    return [float(r["value"]) for r in chosen]


@pytest.mark.parametrize("name", ["top_fails_p_value", "class_fails_p_value"])
def test_no_cell_fails_more_often_than_it_says(name: str) -> None:
    values = _values("cells", name)
    assert min(values) > 0.05 / len(values)  # a binomial test of each cell, Bonferroni over cells


def test_ours_is_three_times_tighter_than_the_papers() -> None:
    ours, markov = (_values("cells", n, n="20000") for n in ("overall_width", "markov_width"))
    assert all(m > 3 * o for o, m in zip(ours, markov, strict=True))


def test_the_planted_group_is_found() -> None:
    assert _values("groups", "found_planted")[0] >= 0.95
    assert _values("groups", "any_false")[0] <= 0.05


def test_the_watch_keeps_its_promise() -> None:
    assert _values("watch", "false_alarms")[0] <= 0.05
    assert _values("watch", "median_delay")[0] <= 2000


def test_the_real_networks_are_certified_after_h() -> None:
    """All with 10,000 rows but the long-tailed one, whose test rows have other class frequencies."""
    after = [r for r in _rows("tasks") if r["name"] == "smooth" and r["world"].endswith(" after")]
    large = {r["world"]: float(r["value"]) for r in after if int(r["n"]) == 10_000}
    shifted = large.pop("cifar10lt_resnet110 after")
    assert max(large.values()) < 0.03, large
    assert shifted > 0.03
    assert _values("tasks", "at_least", world="cifar10lt_resnet110 after")[0] > 0.03  # really off


def test_the_uncalibrated_networks_are_refuted() -> None:
    assert all(v > 0 for w in ("cifar10_resnet110", "cifar100_resnet110", "agnews_gpt2")
               for v in _values("tasks", "at_least", world=f"{w} before"))  # fmt: skip
