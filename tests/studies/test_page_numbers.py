"""Every number in the prose of the paper's pages comes from a results file, or is a definition that is listed here.

The tables of these pages are generated, and ``test_paper_studies.py`` compares them line by line. Here, a sentence with
a measured number is computed from the results and must stand on its page, word for word. All other numbers of a page
must be those of ``DEFINITIONS``, so a number that changes on a page, or a new one, makes a test fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from helpers import ROOT
from studies import (
    central,
    differences,
    learning_curve,
    limit,
    paper,
    published,
    records,
    selector_trap,
    sensitivity,
    whose_lead,
)

#: A number: digits with signs, points and separators, not a part of a name such as ResNet-110.
NUMBER = re.compile(r"(?<![\w^-])\d*\.?\d+(?:,\d{3})*")
Rows = Sequence[Mapping[str, str]]


def page_text(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def prose(name: str) -> str:
    """Return the text of a page without tables, programs, comments and targets of links, with single spaces."""
    text = page_text(name)
    for pattern in (r"```.*?```", r"<!-- (\w+): begin -->.*?<!-- \1: end -->", r"`[^`]*`"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    return " ".join(re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).split())


def rows_of(module: Any) -> Rows:
    """Return the rows of a study's results file, which must not be empty."""
    rows = records.read_rows(module.FILE)
    assert rows, f"{module.FILE.name} is missing or empty"
    return rows


# -- sentences with measured numbers ------------------------------------------------------------------


def central_sentences() -> list[str]:
    experiment = central.experiment_of()
    top_label = central.LEVELS[0]
    lower = sum(experiment.task_ratio(task, top_label) < 1 for task in central.TASKS)
    assert (lower, len(central.TASKS), len(set(central.TASKS.values()))) == (6, 10, 5)
    assert experiment.n_seeds() == 2
    change = 1 - experiment.ratio(top_label)[0]

    ends = [experiment.ratio(central.LEVELS[place])[1:3] for place in (1, 3)]
    farthest = np.abs(np.array(ends) - 1).max()

    old_rows = records.read_rows(central.OLD_FILE)
    old_tasks = {row["task"] for row in old_rows}
    ratios = [central.old_ratio(start, old_rows) for start in ("identity", "published")]
    identity, start = [f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high, _ in ratios]
    return [
        f"at most {central.EPOCHS:,} epochs from the identity",
        "There are ten networks of five data sets and two seeds.",
        f"lower on six networks of ten, by {change:.0%} in the mean".replace("%", " %"),
        f"proper scores lie within {farthest:.0%} of 1".replace("%", " %"),
        f"On {len(old_tasks)} tasks with tables and generated data",
        f"of {identity} from the identity and {start} from the published start",
        f"has all {len(paper.METRICS)} metrics;",
    ]


def selector_sentences() -> list[str]:
    points = {row["point"]: row for row in rows_of(selector_trap)}
    start = points["1"]
    flat = {
        name: float(value)
        for name, value in points["0.1"].items()
        if name != "commit" and name != "version"
    }
    # Every row of the flat predictor is less sure than it is right, so the error is the whole gap.
    accuracy = flat["ece_ew"] + flat["mean_confidence"]
    assert flat["cwece_a"] / float(start["cwece_a"]) == pytest.approx(1 / 3, abs=0.02)
    assert flat["dkde_ce"] / float(start["dkde_ce"]) == pytest.approx(1 / 30, abs=0.002)

    old_rows = records.read_rows(central.OLD_FILE)
    objectives = {row["objective"] for row in old_rows} - {"uncal"}
    collapses = {central.old_collapses(old_rows, objective) for objective in objectives}
    assert len(collapses) == 1
    ((collapsed, fits),) = collapses

    leads = rows_of(whose_lead)
    assert lead_over_others(leads, "tCWECE") == pytest.approx(4, abs=0.1)
    assert lead_over_others(leads, "DKDE_CE") == pytest.approx(25, abs=0.5)
    return [
        "At s = 0.1 the class-wise error is a third of temperature scaling's and the canonical "
        f"error a thirtieth, while the mean confidence is {flat['mean_confidence']:.0%} at an "
        f"accuracy of {accuracy:.0%}".replace("%", " %"),
        f"in {collapsed} of {fits} fits, under every objective",
        "On these nine tasks h-calibration leads by a factor of four and of "
        "twenty-five, on the other "
        "six it does not lead",
    ]


def lead_over_others(rows: Rows, metric: str) -> float:
    """Return the ARE of the best other method over that of h-calibration, where h-calibration has an ensemble."""
    part = {"metric": metric, "configuration": "ensemble"}
    ratios = {row["method"]: float(row["are"]) for row in rows if part.items() <= row.items()}
    of_paper = ratios.pop(whose_lead.OWN)
    return min(ratios.values()) / of_paper


def theory_sentences() -> list[str]:
    rows = rows_of(sensitivity)
    assert sensitivity.largest_change(rows, "scale") < 0.005
    clusters = sensitivity.errors_of(rows, "cifar10_resnet110", "clusters", "ece_s1")
    least, most = (f"{error:.4f}".lstrip("0") for error in (min(clusters), max(clusters)))
    assert max(sensitivity.CONSTANTS, key=lambda name: spread(rows, name)) == "clusters"

    wrong, calibrated = pooled_example()
    assert wrong["pooled loss / r"] == calibrated["pooled loss / r"]
    assert 3 < wrong["CWECE_a"] / calibrated["CWECE_a"] < 4
    return [
        f"The number of clusters C matters most: on ResNet-110 the error lies between {least} and "
        f"{most}.",
        "The pooled loss is that of a calibrated predictor; the class-wise "
        "error is more than three "
        "times as large.",
    ]


def pooled_example() -> list[dict[str, float]]:
    """Return the rows of the generated table of what the pooled objective cannot see, by its column titles."""
    table = page_text("studies/theory.md").split("<!-- pooled: begin -->")[1].split("<!--")[0]
    lines = [line.strip().strip("|").split(" | ") for line in table.split("\n") if "|" in line]
    titles = [title.strip() for title in lines[0]]
    return [dict(zip(titles[1:], map(float, cells[1:]), strict=True)) for cells in lines[2:]]


def spread(rows: Rows, constant: str) -> float:
    """Return the largest error of ResNet-110 over the least, within the values of a constant that do not break it."""
    errors = sensitivity.errors_of(rows, "cifar10_resnet110", constant, "ece_s1")
    usual = errors[:-1] if constant == "epsilon" else errors
    return max(usual) / min(usual)


def paper_sentences() -> list[str]:
    rows = rows_of(differences)
    converged = differences.ratios(rows, "k-means until nothing moves", "top_label", "ece_s1")
    slow = "published loss, leave-one-class-out passes"
    passes = differences.ratios(rows, slow, "top_label", "ece_s1")
    mean, worst = np.exp(np.log(converged).mean()), converged.max()
    seconds = {
        (row["task"], row["variant"]): float(row["seconds"])
        for row in rows
        if row["task"] in differences.SLOW
    }
    first, second = (seconds[task, slow] / seconds[task, "hcal"] for task in differences.SLOW)
    return [
        f"it makes the top-label error {mean - 1:.0%} worse on average and "
        f"{worst - 1:.0%} worse on "
        "one task.".replace("%", " %"),
        f"are {1 - np.exp(np.log(passes).mean()):.0%} better at the top label on two tasks, at "
        f"{first:.0f} and {second:.0f} times the training time".replace("%", " %"),
    ]


def reproduction_sentences() -> list[str]:
    chosen = [
        row
        for row in rows_of(published)
        if (row["task"], row["select"]) == ("densenet40_c10", "top_label")
    ]
    assert all(float(row["score"]) < 0 for row in chosen)
    errors = [float(row["ece_s1"]) for row in chosen]
    assert len(errors) == len(published.MODES)
    least, most = (f"{error:.4f}".lstrip("0") for error in (min(errors), max(errors)))
    return [
        "On DenseNet-40 the epochs that it chooses for each map and loss have test errors between "
        f"{least} and {most}.",
        f"has every method and all {len(paper.METRICS)} metrics.",
    ]


def default_sentences() -> list[str]:
    """Return the sentences on the limit and on the learning curve; other tests have the rest of this page."""
    gaps = rows_of(limit)
    over_bins, over_classes = (
        limit.root_mean_square([row for row in gaps if row["kind"] == kind])
        for kind in ("confidence", "class")
    )
    by_task = {
        task: limit.root_mean_square(
            [row for row in gaps if (row["kind"], row["task"]) == ("class", task)]
        )
        for task in limit.TASKS
    }
    worst = max(by_task, key=lambda task: by_task[task])
    assert worst == "agnews_gpt2"
    joint = [limit.ratio(gaps, kind, "joint") for kind in ("drawn", "real")]
    canonical = [limit.ratio(gaps, kind, "canonical") for kind in ("drawn", "real")]

    curve = rows_of(learning_curve)
    networks, tables = (
        {row["task"] for row in curve if row["group"] == group} for group in learning_curve.SIZES
    )
    assert len(networks) == 10
    enough = {group: learning_curve.rows_saved(curve, group) for group in learning_curve.SIZES}
    most = {group: sizes[-1] for group, sizes in learning_curve.SIZES.items()}
    return [
        f"has a root mean square of {over_bins:.2f} standard errors over bins "
        f"of the confidence and "
        f"{over_classes:.2f} over classes.",
        f"The largest of a network is {by_task[worst]:.2f}, over the four classes of AG News.",
        f"the joint error is still {joint[0]:.3f}, with real labels {joint[1]:.3f}; alone is "
        f"{canonical[0]:.3f} and {canonical[1]:.3f}.",
        f"On ten networks the default with {enough['networks']:,} rows has a lower NLL than",
        f"with {most['networks']:,}: a fifth of the labels.",
        f"On {len(tables)} tables it needs half: {enough['tables']:,} rows instead of "
        f"{most['tables']:,}.",
    ]


def readme_sentences() -> list[str]:
    measured = paper.ours(rows_of(paper))
    ratios = [
        measured[task, "h", "ece_s1"] / measured[task, "ts", "ece_s1"] for task in paper.TASKS
    ]
    assert ratios[0] == pytest.approx(0.5, abs=0.01)
    assert ratios[1] > 1
    confirmed = re.search(r"\| (\d+) confirmed on both tasks", page_text("docs/reproduction.md"))
    assert confirmed is not None
    return [
        f"its metrics and {confirmed[1]} of its 20 comparison methods are confirmed on both",
        "as described, has half the ECE^s of temperature scaling on one and not on the other.",
        "Five of the six numbers that it prints for its method come out within 5 %",
    ]


SENTENCES: Mapping[str, Callable[[], list[str]]] = {
    "docs/central-experiment.md": central_sentences,
    "docs/why-not-the-papers-selector.md": selector_sentences,
    "docs/theory.md": theory_sentences,
    "docs/paper.md": paper_sentences,
    "docs/reproduction.md": reproduction_sentences,
    "docs/default.md": default_sentences,
    "README.md": readme_sentences,
}
#: The other numbers of each page, in their order: years, numbers of theorems, constants of definitions, sizes of data.
DEFINITIONS: Mapping[str, str] = {
    "docs/central-experiment.md": "0.2",
    "docs/why-not-the-papers-selector.md": "100 1 1 0 0.2 15 64 128",
    "docs/theory.md": "2025 0 1 2 3 4 5 6 7 1 7 1 1 1 0 2 3 200 4 0 15 1 1 2 1 2 0.9 3 2",
    "docs/paper.md": "2025 25",
    "docs/reproduction.md": "2 15 1 2 0 3 5,000 10,000 0.002 0.003",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_with_a_measured_number_is_computed(name: str) -> None:
    for sentence in SENTENCES[name]():
        assert sentence in prose(name), sentence


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_other_number_is_a_definition(name: str) -> None:
    text = prose(name)
    for sentence in SENTENCES[name]():
        text = text.replace(sentence, "")
    assert NUMBER.findall(text) == DEFINITIONS[name].split()
