"""One quantity has one number on a page: headline, chips, cards, sentences, tables, charts, slider and JSON agree."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.evaluation.result import Difference
from hcal.reporting import measure_report
from hcal.reporting.content import Content
from hcal.reporting.page import render, verdict_of
from helpers import measured_report, synthetic

#: A number as the page writes it, with its unit.
NUMBER = r"([−+-]?[\d,]*\.?\d+(?:e-\d+)?(?: %| points)?)"


def _binary(n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    score = rng.normal(-2, 1.8, n)
    rate = 1 / (1 + np.exp(-score))
    return score, (rng.random(n) < rate).astype(int)


def two_classes() -> Content:
    calibrator = hcal.make_calibrator("platt").fit(1.5 * _binary()[0], _binary()[1])
    score, y = _binary(seed=1)
    return measure_report(1.5 * score, y, calibrator, threshold=0.3, cost={"fn": 10, "fp": 1})


def two_classes_as_they_are() -> Content:
    score, y = _binary(2000, seed=2)
    return measure_report(2 * score, y, classes=["well", "sick"], positive="well")


def four_classes() -> Content:
    calibrator = hcal.make_calibrator("ts").fit(*synthetic(2000, 4, seed=2))
    return measure_report(*synthetic(3000, 4, seed=1), calibrator)


def segments() -> Content:
    score, y = _binary(4000, seed=3)
    country = np.arange(4000) % 4
    shift = np.array([1.5, -1.5, 0.0, 0.0])[country]
    return measure_report(score + shift, y, by=country)


def groups() -> Content:
    score, y = _binary(2000, seed=4)
    return measure_report(score, y, groups=np.arange(2000) // 4)


def cross_fitted() -> Content:
    return measure_report(*synthetic(300, 2, seed=4), "platt", cross_fit=True)


def classes_that_cancel() -> Content:
    """The predicted class is right as often as it says, but class 0 is overstated and class 1 understated."""
    p, y = cancelling_classes(9000)
    return measure_report(p, y, input="probs")


def cancelling_classes(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    top = rng.integers(0, 3, n)
    p = np.full((n, 3), 0.2)
    p[np.arange(n), top] = 0.6
    truth = np.array([0.42, 0.78, 0.6])[top]
    right = rng.random(n) < truth
    other = (top + 1 + (rng.random(n) < 0.5)) % 3
    return p, np.where(right, top, other)


WORLDS: list[Callable[[], Content]] = [
    two_classes,
    two_classes_as_they_are,
    four_classes,
    segments,
    groups,
    cross_fitted,
    classes_that_cancel,
]


@cache
def content_of(world: Callable[[], Content]) -> Content:
    return world()


def text_of(page: str) -> str:
    """Return what a page says: its text and the words of its charts, each element on a line."""
    page = re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r'<svg[^>]*aria-label="([^"]*)"[^>]*>', r"\n\1\n", page)
    page = re.sub(r"</?(b|span|i|code)\b[^>]*>", " ", page)
    page = html.unescape(re.sub(r"<[^>]+>", "\n", page)).replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t]+", " ", page))


def agrees(text: str, value: float) -> bool:
    """Say whether a number on the page is the value, rounded as the page rounds it."""
    digits = text.removesuffix(" %").removesuffix(" points").replace(",", "").replace("−", "-")
    scale = 1 if digits == text.replace(",", "").replace("−", "-") else 100
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return abs(float(digits) - scale * value) <= 0.5000001 * 10.0**-decimals


def stated_in(text: str, patterns: list[str]) -> list[str]:
    """Return every number that stands where one of the patterns says."""
    return [number for pattern in patterns for number in re.findall(pattern, text)]


def places(content: Content) -> dict[str, tuple[float, list[str], int]]:
    """Return for each quantity its value, where the page states it, and in how many places at least."""
    evaluation = content.final.evaluation
    side = "after" if content.after is not None else ""
    card = rf"\n{side}\s*{NUMBER}" if side else rf"\n{NUMBER}"
    before_in_row = rf"(?:{NUMBER.replace('(', '(?:', 1)}\n(?:[^\n]* by chance\n)?)?"
    row = rf"\n{before_in_row}" if side else r"\n"
    numbers: dict[str, tuple[float, list[str], int]] = {}
    for name, title in (("nll", "NLL"), ("brier", "Brier score"), ("accuracy", "Accuracy")):
        before = r"(?:\nbefore [^\n]*)?" if side else ""
        patterns = [rf"\n{title}{before}{card}", rf" {name} ?{row}{NUMBER}\n"]
        numbers[name] = (evaluation[name], patterns, 2)
    before = r"(?:\nbefore [^\n]*)?" if side else ""
    numbers["ece_ew"] = (
        evaluation["ece_ew"],
        [
            rf"\nCalibration error \(ECE\){before}{card}",
            rf" ece_ew ?{row}{NUMBER}\n",
            rf"calibration error \(ECE\) (?:falls|rises) from [^\n]*? to {NUMBER}",
            rf"calibration error \(ECE\) stays at {NUMBER}",
        ],
        2,
    )
    numbers["nll"][1].append(rf"base rates: NLL {NUMBER} against")
    assessment = evaluation.assessment
    if assessment is not None and assessment.estimate is not None:
        numbers["estimate"] = (
            assessment.estimate,
            [rf"about {NUMBER} on average \(estimate\)", rf"Estimated {NUMBER} off on average"],
            0 if assessment.estimate < 0.001 else 2,  # "less than 0.1 points"
        )
    if assessment is not None:
        numbers["tolerance"] = (
            assessment.tolerance,
            [
                rf"within the tolerance of {NUMBER}",
                rf"\(tolerance {NUMBER}\)",
                rf"proven, {NUMBER} is the tolerance",
                rf"off by more than {NUMBER} on average",
            ],
            1,
        )
        numbers["bound"] = (
            assessment.bound,
            [rf"is right within {NUMBER}", rf"at most {NUMBER},? (?:is )?proven"],
            1,
        )
    return numbers


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_every_place_of_a_quantity_states_the_same_number(world: Callable[[], Content]) -> None:
    content = content_of(world)
    text = text_of(render(content))
    values = verdict_of(content).to_dict()["values"]
    for name, (value, patterns, least) in places(content).items():
        numbers = stated_in(text, patterns)
        assert len(numbers) >= least, (name, numbers)
        assert [n for n in numbers if not agrees(n, value)] == [], (name, value)
        assert values.get(name, value) == value


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_stated_and_observed_rates_are_those_of_the_cards(world: Callable[[], Content]) -> None:
    content = content_of(world)
    text = text_of(render(content))
    evaluation = content.final.evaluation
    rate = evaluation.positive
    stated = evaluation.mean_confidence if rate is None else rate.stated
    patterns = [rf"After [^\n]*? it states {NUMBER} on average"]
    if content.after is None:
        patterns = [
            rf"The model states a [^\n]* rate of {NUMBER} on average",
            rf"it states {NUMBER} on average and is right",
        ]
    title = r"Mean confidence" if rate is None else r"Mean P\([^\n]*\)"
    patterns.append(rf"\n{title}(?:\nbefore [^\n]*)?\n(?:after )?\s*{NUMBER}")
    numbers = stated_in(text, patterns)
    assert len(numbers) == 2
    assert [n for n in numbers if not agrees(n, stated)] == []
    if rate is not None:
        observed = stated_in(text, [rf"average; {NUMBER} was observed", rf"\nobserved {NUMBER}"])
        assert len(observed) == 2
        assert [n for n in observed if not agrees(n, rate.observed)] == []


@pytest.mark.parametrize("world", [two_classes, two_classes_as_they_are], ids=["costs", "plain"])
def test_the_slider_counts_what_the_table_of_thresholds_states(
    world: Callable[[], Content],
) -> None:
    content = content_of(world)
    page = render(content)
    attribute = re.search(r'data-curve="([^"]*)"', page)
    assert attribute is not None
    curve = json.loads(html.unescape(attribute[1]))
    rows = curve["d"][0]
    events = curve["c"][0]
    risk = content.final.probs[:, content.options.positive]
    table = page[page.index("<caption>Thresholds</caption>") :]
    cells = []
    for line in table[:9000].split("<tr>"):
        row = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", line)]
        if len(row) >= 5:
            cells.append([cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row])
    assert len(cells) >= 5
    checked = 0
    for at, _, share, rate, caught, *_ in cells:
        above = [i for i, p in enumerate(curve["p"]) if p >= float(at)]
        cut = above[0] if above else None
        is_stored = np.isclose(curve["t"], float(at), rtol=1e-6).any()
        exact = float(at) in (0.3, 0.5) or is_stored
        if cut is None or not exact or (risk == float(at)).any():
            continue
        assert agrees(share, curve["d"][cut] / rows)
        event_rate = curve["c"][cut] / curve["d"][cut]
        assert agrees(rate.split(" (")[0], event_rate)
        assert agrees(caught, curve["c"][cut] / events)
        checked += 1
    assert checked or world is two_classes_as_they_are


def test_classes_that_are_off_are_in_every_part_of_the_verdict() -> None:
    content = content_of(classes_that_cancel)
    verdict = verdict_of(content)
    assert verdict.classes is not None
    assert {part.name for part in verdict.classes.classes} >= {"class 0", "class 1"}
    assert verdict.grade == "bad"
    assert verdict.classes.share_proven > 0.5
    count = verdict.classes.count
    text = text_of(render(content))
    for part in (verdict.headline, verdict.chips["How sure"], " ".join(verdict.sentences), text):
        assert count in part
    assert count in " ".join(verdict.alarms)
    off = len(verdict.classes.classes)
    assert f"{off} of 3 are proven to be off by more than the class's tolerance" in text
    plain = verdict.to_dict()["classes"]
    assert plain["count"] == off
    assert plain["of_classes"] == 3
    assert not hcal.require(verdict, ["classes_off<1"]).passed
    assert not hcal.require(verdict, ["grade>=few"]).passed


def test_rows_of_classes_that_are_off_count_once() -> None:
    p, y = cancelling_classes(9000)
    certificate = hcal.certify(p, y)
    assert certificate.classes is not None
    union = np.zeros(len(p), dtype=bool)
    for k, window in certificate.classes.refutations.items():
        low, high = window.claims
        union |= (p[:, k] >= low) & (p[:, k] <= high)
    verdict = verdict_of(content_of(classes_that_cancel))
    assert verdict.classes is not None
    assert verdict.classes.rows == union.sum()


def test_many_small_classes_that_are_off_add_up() -> None:
    """Forty classes of one hundred are overstated: none holds more than 1 % of the rows, together they hold 40 %."""
    rng = np.random.default_rng(0)
    n, k = 40_000, 100
    top = np.arange(n) % k
    p = np.full((n, k), 0.3 / (k - 1))
    p[np.arange(n), top] = 0.7
    truth = np.where(top < 40, 0.35, 0.7 + 0.7 * 0.35 / 1.05)
    right = rng.random(n) < np.minimum(truth, 0.95)
    wrong = (top + 1 + rng.integers(0, k - 1, n)) % k
    y = np.where(right, top, wrong)
    verdict = verdict_of(measure_report(p.astype(np.float32), y, input="probs"))
    assert verdict.grade in ("care", "bad")
    assert verdict.classes is not None
    assert verdict.classes.share_proven > 0.05


def test_a_sample_is_called_a_sample_beside_numbers_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcal.certificates import survey

    logits, y = synthetic(4000, 3, scale=1.5, seed=5)
    np.savez(tmp_path / "rows.npz", logits=logits, y=y)
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 1000)
    content = measure_report(hcal.io.batches(tmp_path / "rows.npz", rows=700), None)
    text = text_of(render(content))
    ece = hcal.metrics.ece_ew(hcal.softmax(logits), y)
    numbers = stated_in(
        text, [rf"\nCalibration error \(ECE\)\n{NUMBER}", rf" ece_ew ?\n{NUMBER}\n"]
    )
    assert len(numbers) == 2
    assert [n for n in numbers if not agrees(n, ece)] == []
    assert "the calibration error (ECE) is" not in text
    assert "the calibration error (ECE) of the sample is" in text
    assert "What follows is of the sample of 1,000 rows." in text


# -- calibrators that do harm -----------------------------------------------------------------------


def harm(name: str) -> Any:
    """Return a calibrator that was fitted on other scores, so that it makes these ones worse."""
    score, y = _binary(3000, seed=7)
    scale = {"too much": 0.2, "too little": 5.0}[name]
    return hcal.make_calibrator("platt").fit(scale * score, y)


@pytest.mark.parametrize("name", ["too much", "too little"])
def test_a_calibrator_that_does_harm_is_in_every_part_of_the_verdict(name: str) -> None:
    content = measure_report(*_binary(3000, seed=8), harm(name))
    verdict = verdict_of(content)
    assert verdict.grade == "bad"
    assert {"nll", "brier"} <= set(verdict.worse)
    assert re.search(
        r"after calibration: (calibration made NLL|the predictor has)", verdict.headline
    )
    assert verdict.chips["What to do"] == "try another method"
    alarms = " ".join(verdict.alarms)
    assert "NLL is worse after calibration than before, beyond chance: " in alarms
    assert "The Brier score is worse after calibration than before" in alarms
    assert not hcal.require(verdict, ["worse<1"]).passed


def test_a_lower_accuracy_is_care_at_best_and_the_headline_says_so() -> None:
    content = measured_report(n=8000)
    assert content.after is not None
    assert verdict_of(content).grade == "good"
    evaluation = content.after.evaluation
    accuracy = Difference(before=0.66, change=-0.05, low=-0.06, high=-0.04)
    differences = evaluation.differences | {"accuracy": accuracy}
    lower = replace(evaluation, differences=differences)
    verdict = verdict_of(replace(content, after=replace(content.after, evaluation=lower)))
    assert verdict.grade == "care"
    assert verdict.headline.endswith("but calibration made accuracy worse, beyond chance")
    assert verdict.chips["What to do"] == "try another method"
    assert verdict.worse == ("accuracy",)
