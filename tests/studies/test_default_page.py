"""The numbers on the pages about the default calibrator are those of the kept results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers import DATA, ROOT
from studies import joint


def between(path: Path, marker: str) -> list[str]:
    text = path.read_text().partition(f"<!-- {marker} -->\n")[2].partition("<!-- end -->")[0]
    return text.strip().splitlines()


def test_the_table_is_the_one_of_the_results() -> None:
    rows = joint.read(ROOT / "results" / "joint.csv")
    assert between(ROOT / "docs" / "default.md", "joint") == joint.markdown(rows, "h")


def test_the_default_wins_among_methods_that_keep_the_argmax() -> None:
    """What the page claims: lowest joint, no argmax changed, no failure, groups within 0.02."""
    rows = joint.read(ROOT / "results" / "joint.csv")
    values = {f: joint.task_means(rows, f) for f in ["joint", *joint.GROUPS, "changed", "nll_ratio"]}
    mean = {
        f: {m: np.mean([v.mean() for v in t.values()]) for m, t in by.items()} for f, by in values.items()
    }
    assert mean["changed"]["h"] == 0
    assert max(v.max() for v in values["nll_ratio"]["h"].values()) <= 1.005
    others = [m for m in mean["joint"] if "/" not in m and m != "h" and mean["changed"][m] == 0]
    assert {"ts", "ets", "ec"} <= set(others)
    for other in others:
        _, _, high = joint.paired(values["joint"]["h"], values["joint"][other], np.random.default_rng(0))
        assert high < 0, other
        for group in joint.GROUPS:
            assert mean[group]["h"] <= mean[group][other] + 0.02, (group, other)


def test_what_the_page_says_of_the_parts() -> None:
    """Neither the pool's joint nor h in training differs beyond the interval; lifting P(top) buys scores."""
    rows = joint.read(ROOT / "results" / "joint.csv")
    values = joint.task_means(rows, "joint")
    for part in ("h/events alone", "h/last curve with h in training"):
        _, low, high = joint.paired(values["h"], values[part], np.random.default_rng(0))
        assert low <= 0 <= high, part
    score, top = (
        {m: np.mean([v.mean() for v in t.values()]) for m, t in joint.task_means(rows, group).items()}
        for group in ("score", "top")
    )
    assert score["h"] < score["h/events alone"]
    assert score["h/lift 1"] < score["h"]
    assert top["h/lift 1"] > top["h"]


def test_readme_shows_the_stored_figures() -> None:
    rows = joint.read(ROOT / "results" / "joint.csv")
    fields = [joint.task_means(rows, f) for f in ("joint", *joint.GROUPS, "changed")]
    mean = {m: [np.mean([v.mean() for v in f[m].values()]) for f in fields] for m in fields[0]}
    lines = (ROOT / "README.md").read_text().split("<!-- joint")[1].split("<!-- tables")[0].splitlines()
    shown = [line for line in lines[1:] if line.startswith("| `")]
    assert len(shown) == 6
    for line in shown:
        method = line.split("`")[1]
        *errors, changed = mean[method]
        assert line.endswith("| " + " | ".join([*(f"{e:.3f}" for e in errors), f"{changed:.0f}"]) + " |")
    others = {m: v for m, v in mean.items() if not m.startswith("h") and v[-1] == 0}
    assert min(others, key=lambda m: others[m][0]) == "diag"  # "the next that keeps the argmax"


def test_nearly_calibrated_networks_are_not_spoiled() -> None:
    rows = joint.read(ROOT / "results" / "joint.csv")
    for group in joint.GROUPS:
        by_split = joint.task_means(rows, group)["h"]["cifar10_wideresnet"]
        assert np.median(by_split) <= 1.10, group


@pytest.mark.data
def test_a_stored_cell_is_what_the_script_computes() -> None:
    if not (DATA / "agnews_gpt2.npz").exists():
        pytest.skip("needs the shared data: agnews_gpt2.npz is not in ../shared/data or HCAL_DATA")
    stored = [
        r
        for r in joint.read(ROOT / "results" / "joint.csv")
        if r["task"] == "agnews_gpt2" and r["split"] == "0" and r["method"] in ("ts", "h")
    ]
    fresh = {r["method"]: r for r in joint.cell("agnews_gpt2", 0, ["ts", "h"])}
    assert len(stored) == 2
    for row in stored:
        # Iterative solvers on another machine: the fourth digit of a mean of ratios may move.
        for name in (*joint.GROUPS, "joint"):
            assert float(row[name]) == pytest.approx(fresh[row["method"]][name], rel=5e-3), name
