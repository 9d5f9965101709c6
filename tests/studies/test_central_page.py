"""The page of the central experiment says what its results say: a made-up file with a known answer."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hcal.bench.store import read_results
from helpers import ROOT
from studies import central_page, findings
from studies.central_results import LEVELS, RIVALS, SCHEDULES, STARTS, Experiment, read_entries
from studies.central_table import COLUMNS
from studies.figures import robustness_value

OBJECTIVES = ("h", *RIVALS)


FOUR = (("a", 4), ("b", 10), ("c", 100), ("d", 100))


def made_up(path: Path, factor: float = 0.8, tasks: Sequence[tuple[str, int]] = FOUR) -> Path:
    """Four tasks; the top-label error of h is ``factor`` that of NLL and equal to the others'."""
    rows = []
    for number, (task, k) in enumerate(tasks):
        base = 0.01 * (number + 1)
        common = {"task": task, "n_classes": k, "n_cal": 100, "n_test": 100, "accuracy": 0.75, "brier": 0.4}
        errors = {"cwece_a": base, "tcwece": base, "nll": 1.0, "mean_confidence": 0.8}
        rows.append(
            {**common, **errors, "objective": "uncal", "seed": 0, "ece_ew": base, "dece": base, "ks": base}
        )
        for objective in OBJECTIVES:
            top = (
                base * (1 / factor if objective == "nll" else 1) * (1 + 0.01 * number * (objective == "nll"))
            )
            for schedule in SCHEDULES:
                for start in STARTS:
                    for seed in range(3):
                        for selector in ("top-label", "class-wise", "nll"):
                            near = start == "published" and selector == "class-wise" and k == 100
                            rows.append(
                                {
                                    **common,
                                    **errors,
                                    "objective": objective,
                                    "schedule": schedule,
                                    "start": start,
                                    "seed": seed,
                                    "selector": selector,
                                    "map": "ensemble-128",
                                    "epoch": 1,
                                    "epochs": 9,
                                    "selected_by": 0.1,
                                    "ece_ew": top,
                                    "dece": top,
                                    "ks": top,
                                    "mean_confidence": 0.02 if near else 0.8,
                                    "nll": 4.0 if near else 1.0,
                                }
                            )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Experiment:
    return Experiment(read_entries(made_up(tmp_path / "central.csv")))


def test_ratios_and_wins_are_those_of_the_file(data: Experiment) -> None:
    found = data.ratio("nll", "early-stop", "identity", "top-label")
    assert math.exp(found.value) == pytest.approx(0.8 / 1.015, rel=0.005)
    assert found.verdict == "lower"
    assert data.ratio("brier", "early-stop", "identity", "top-label").value == 0
    assert data.wins("nll", "to-the-end", "published", "top-label") == (4, 0, 4)
    assert data.wins("brier", "to-the-end", "published", "top-label") == (0, 0, 4)


def test_tasks_are_split_by_classes_and_by_their_error(data: Experiment) -> None:
    parts = data.parts()
    assert parts["K ≤ 10"] == ["a", "b"]
    assert parts["K > 10"] == ["c", "d"]
    assert parts["ECE before > 0.025"] == ["c", "d"]


def test_tables_are_a_kind_and_those_of_one_data_set_count_as_one(tmp_path: Path) -> None:
    tasks = (("a", 4), ("b", 10), ("car_rf", 4), ("car_mlp", 4), ("yeast_rf", 10))
    data = Experiment(read_entries(made_up(tmp_path / "central.csv", tasks=tasks)))
    parts = data.parts()
    assert parts["networks"] == ["a", "b"]
    assert parts["tables"] == ["car_mlp", "car_rf", "yeast_rf"]
    found = data.differences("nll", "early-stop", "identity", "top-label", parts["tables"])
    expected = [math.log(0.8 / 1.03) / 2 + math.log(0.8 / 1.02) / 2, math.log(0.8 / 1.04)]
    assert found == pytest.approx(expected, rel=1e-6)
    assert data.wins("nll", "early-stop", "identity", "top-label") == (4, 0, 4)
    assert data.described() == "2 networks, 3 tables of 2 data sets"


def test_a_cell_says_how_many_tasks_it_compares(tmp_path: Path) -> None:
    path = made_up(tmp_path / "central.csv")
    lines = [x for x in path.read_text().splitlines() if not x.startswith(("c,focal,", "d,focal,"))]
    path.write_text("\n".join(x for x in lines if ",to-the-end," not in x or x[0] in "ab") + "\n")
    data = Experiment(read_entries(path))
    stopped = central_page.ratio_table(data, "early-stop", "identity")
    assert str(stopped.row("top-label, all tasks (4)").values[2]).endswith(" (2)")
    unstopped = [r.label for r in central_page.ratio_table(data, "to-the-end", "identity").rows]
    assert "top-label, all tasks (2)" in unstopped
    assert not [label for label in unstopped if "K > 10" in label]  # nothing ran, nothing is said


def test_constants_are_shown_against_the_papers(tmp_path: Path) -> None:
    path = made_up(tmp_path / "constants.csv")
    path.write_text(path.read_text().replace(",nll,early", ",h:window=100,early"))
    data = Experiment(read_entries(path))
    table = central_page.constants_table(data)
    assert [r.label for r in table.rows] == ["window=100"]
    assert table.rows[0].values == [f"{1.015 / 0.8:.3f}", "1.000", "1.000"]
    entries = read_entries(made_up(tmp_path / "central.csv"))
    words = central_page.constants_words(data, Experiment(entries))
    assert words.endswith("2 %: window=100 (top-label × 1.27).")
    # where the seeds of the main run differ by more, nothing is said of a constant
    twice = [
        replace(e, scores={m: 2 * v for m, v in e.scores.items()}) if e.seed == 1 else e for e in entries
    ]
    words = central_page.constants_words(data, Experiment(twice))
    assert "× 2.00 (top-label)" in words
    assert words.endswith("2 %: none.")


def test_near_uniform_choices_are_counted_under_every_objective(data: Experiment) -> None:
    for objective in OBJECTIVES:
        assert data.collapsed(objective, "early-stop", "published", "class-wise") == (6, 12)
        assert data.collapsed(objective, "early-stop", "identity", "class-wise") == (0, 12)
    assert data.untrained(["a", "b"], "identity", "class-wise") == (
        60,
        60,
    )  # the file says epoch 1 throughout


def test_tasks_that_training_spoils_are_named(tmp_path: Path) -> None:
    entries = read_entries(made_up(tmp_path / "central.csv"))
    assert central_page.spoiled_words(Experiment(entries)) == ""
    sharper = [
        replace(e, scores={**e.scores, "nll": 3.0}) if (e.task, e.objective) == ("b", "h") else e
        for e in entries
    ]
    words = central_page.spoiled_words(Experiment(sharper))
    assert "doubles: b (h × 3.0, NLL × 1.0, Brier × 1.0, focal × 1.0, label smoothing × 1.0)." in words


def test_a_row_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    path = made_up(tmp_path / "central.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *lines[-5:]]) + "\n")
    assert len(read_entries(path)) == len(lines) - 1


def test_the_page_has_its_paragraph_tables_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "docs").mkdir()
    page, picture = central_page.write_page(made_up(tmp_path / "central.csv"), tmp_path / "docs" / "c.md")
    text = page.read_text()
    assert "top-label error against NLL × 0.79 [0.77, 0.80] (lower)" in text
    assert "h 6 of 12, NLL 6 of 12" in text
    assert text.count("### Error of h / error of the rival") == 4
    assert picture.stat().st_size > 5000


def test_the_page_is_the_results_and_the_readme_quotes_it(tmp_path: Path) -> None:
    results, page = ROOT / "results" / "central.csv", ROOT / "docs" / "central-experiment.md"
    made, _ = central_page.write_page(results, tmp_path / page.name)
    assert made.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    said = re.search(r"\(× [\d.]+ \[[\d., ]+\]", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    assert f"against NLL {said.group()[1:]}" in page.read_text(encoding="utf-8")


def test_what_the_theory_says_of_the_window() -> None:
    assert "by less than 2 % on four tasks" in (ROOT / "studies" / "theory.md").read_text(encoding="utf-8")
    small = read_results(ROOT / "results" / "ablations.csv")
    kept = small.select(tasks=[t for t in small.tasks if small.seeds(t, "M=100/top")])
    assert len(kept.tasks) == 4
    constants = Experiment(read_entries(ROOT / "results" / "constants.csv"))
    assert [e.n_classes for e in constants.before.values()] == [100]
    for setting, objective in (("M=100", "h:window=100"), ("M=400", "h:window=400")):
        for level in findings.LEVELS:
            ratio = robustness_value(kept, setting, level) / robustness_value(kept, "paper-constants", level)
            assert abs(ratio - 1) < 0.02, (setting, level)
        for level in LEVELS:
            (ratio,) = np.exp(constants.differences(objective, "early-stop", "identity", level))
            assert abs(ratio - 1) < 0.05, (setting, level)
