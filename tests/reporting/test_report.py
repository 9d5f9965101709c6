"""The report: its numbers are the library's, its verdict follows its rule, its page needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.certificates.sentences import points
from hcal.cli.app import app
from hcal.reporting import Source, build_report, measure_report
from hcal.reporting.charts import Axis, probability_axis
from hcal.reporting.content import HEADLINE, RESAMPLES, Content
from hcal.reporting.page import render, verdict_of
from hcal.reporting.sentences import number
from hcal.reporting.tables import decision_thresholds
from helpers import measured_report as measured
from helpers import synthetic


@cache
def page() -> str:
    return render(measured())


# -- the page ---------------------------------------------------------------------------------------

VOID = {"meta", "link", "br", "input", "img", "hr"}


class _Checker(HTMLParser):
    """Collects what a page asks for, and complains about elements that do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.asks, self.ids = [], [], []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        for name in ("src", "href", "action", "data", "srcset"):
            if name in attributes:
                self.asks.append(str(attributes[name]))
        self.ids += [str(attributes["id"])] if "id" in attributes else []
        assert tag != "svg" or attributes.get("aria-label")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained() -> None:
    checker = _Checker()
    checker.feed(page())
    assert checker.open == []
    assert all(a.startswith(("data:", "#")) for a in checker.asks), checker.asks
    assert len(checker.ids) == len(set(checker.ids))
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|https?://", page())


def test_the_policy_admits_the_pages_own_script_and_style_and_nothing_else() -> None:
    header = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page())
    assert header
    policy = dict(rule.split(" ", 1) for rule in header[1].split("; "))
    for element in ("script", "style"):
        texts = re.findall(rf"<{element}>(.*?)</{element}>", page(), re.DOTALL)
        assert len(texts) == len(re.findall(rf"<{element}\b", page())) == 1
        digest = base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()
        assert policy.pop(f"{element}-src") == f"'sha256-{digest}'"
    assert policy.pop("img-src") == "data:"
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    assert not re.search(
        r"<[^>]*\s(style|on\w+)=", page()
    )  # what a hash does not cover would be dead


def test_every_part_is_there_with_two_classes_and_more() -> None:
    common = {"verdict", "headline", "now", "reliability", "metrics", "map", "data"}
    parts = set(re.findall(r'<section id="(\w+)"', page()))
    assert parts == common | {"classes"}
    parts = set(re.findall(r'<section id="(\w+)"', render(binary())))
    assert parts == common | {"clinical"}


def test_the_numbers_are_the_librarys() -> None:
    content = measured()
    assert content.after is not None
    logits, y = synthetic(4000, seed=1)
    raw = hcal.softmax(logits)
    assert content.before.evaluation["nll"] == pytest.approx(hcal.metrics.nll(raw, y))
    expected = hcal.metrics.ece_ew(content.after.probs, y)
    assert content.after.evaluation["ece_ew"] == pytest.approx(expected)
    assert f"{100 * hcal.metrics.ece_ew(raw, y):.1f}\N{NO-BREAK SPACE}%" in page()
    for name in hcal.list_metrics():
        assert f"<code>{name}</code>" in page()
    evaluation = hcal.evaluate(raw, y, metrics=HEADLINE, confidence=0.95, resamples=RESAMPLES)
    low, high = evaluation.interval("nll") or (0, 0)
    assert f"{low:.4f} – {high:.4f}" in page()
    for text in ("ab" * 32, "Temperature scaling (ts)", "torch", hcal.__version__, "4,000"):
        assert text in page()


def test_without_a_calibrator_there_is_no_after() -> None:
    logits, y = synthetic(500)
    text = build_report(logits, y)
    assert "After calibration" not in text
    assert '<section id="map"' not in text
    assert "The model is over-confident by" in text
    assert "hcal fit CAL.npz -o model.hcal" in text


def test_names_are_text_never_markup() -> None:
    logits, y = synthetic(200, 2)
    evil = "<script>alert(1)</script>"
    text = build_report(logits, y, classes=[evil, '"quoted" & co'], source=Source(evil))
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    with pytest.raises(ValueError, match="classes has 1 names for 2 classes"):
        build_report(logits, y, classes=["one"])


def test_a_thousand_classes_are_one_table() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1500, 1000)).astype(np.float32) * 4
    y = rng.integers(0, 900, 1500)
    text = build_report(logits, y)
    [table] = re.findall(r"<caption>Classes</caption>(.*?)</table>", text, re.DOTALL)
    assert table.count('scope="row"') == 1000
    assert len(text) < 1_000_000
    assert f"No row is of {1000 - len(np.unique(y))} of 1,000 classes" in text
    assert not re.search(r"\d,\d{3},\d{3} (labelled )?rows", text)  # no "5,100,000 rows would tell"


def test_classes_that_are_proven_wrong_come_first() -> None:
    content = measure_report(*synthetic(4000, 6, seed=1))
    table = re.search(r"<caption>Classes</caption>(.*?)</table>", render(content), re.DOTALL)
    certificate = content.final.evaluation.certificate
    assert table is not None
    assert certificate is not None
    assert certificate.classes is not None
    order = [int(k) for k in re.findall(r'scope="row">class (\d+)', table[1])]
    proven = [float(certificate.classes.at_least[k]) for k in order]
    assert proven == sorted(proven, reverse=True)
    assert "by at least" in table[1]


def test_thresholds_are_certified_on_the_page() -> None:
    content = measured(1.0)
    text = render(content)
    share = 100 * (content.final.probs.max(1) >= 0.9).mean()
    assert f"<td>0.9</td><td>{share:.1f}\N{NO-BREAK SPACE}%</td>" in text


# -- two classes ------------------------------------------------------------------------------------


@cache
def binary() -> Content:
    """4 % positives; the scores state too much."""
    rng = np.random.default_rng(0)
    score = rng.normal(-4.2, 1.8, (2, 6000))
    rate = 1 / (1 + np.exp(-score))
    y = (rng.random((2, 6000)) < rate).astype(int)
    calibrator = hcal.make_calibrator("platt").fit(score[0] + 1, y[0])
    options: dict[str, Any] = {
        "threshold": 0.3,
        "cost": {"fn": 10, "fp": 1},
        "classes": ["well", "sick"],
    }
    source = Source("t.npz", "", "logits", "ab")
    return measure_report(score[1] + 1, y[1], calibrator, source=source, **options)


def test_two_classes_are_told_by_the_name_of_the_positive_one() -> None:
    content = binary()
    text = render(binary())
    assert "P(sick) is" in verdict_of(content).headline
    rate = content.before.evaluation.positive
    assert rate is not None
    assert rate.observed == pytest.approx((content.y == 1).mean())
    expected = content.before.probs[:, 1].mean()
    assert rate.stated == pytest.approx(expected)
    assert f"states a sick rate of {number(rate.stated, True)} on average" in text
    assessment = content.final.evaluation.assessment
    assert assessment is not None
    expected = 0.1 * np.sqrt(rate.observed * (1 - rate.observed))
    assert assessment.tolerance == pytest.approx(expected)
    assert points(assessment.bound) in verdict_of(content).headline
    assert "P(sick) in" in text
    assert "Decision curve" in text


def mean_cost(p: np.ndarray, y: np.ndarray, threshold: float) -> float:
    """Return the cost of a row: 10 for a missed positive, 1 for a false alarm."""
    missed = y & (p < threshold)
    false_alarm = ~y & (p >= threshold)
    return float((10 * missed + false_alarm).mean())


def f1_score(y: np.ndarray, decided: np.ndarray) -> float:
    return float(2 * (y & decided).sum() / (y.sum() + decided.sum()))


def test_thresholds_are_where_decisions_are() -> None:
    content = binary()
    p = content.final.probs[:, 1]
    y = content.y == 1
    table = content.final.evaluation.certificate.headline.table
    reasons = decision_thresholds(content, table)
    assert reasons[0.3] == "yours"
    assert reasons[1 / 11] == "fp / (fp + fn)"
    [cheapest] = [at for at, why in reasons.items() if why == "least cost (fn 10, fp 1)"]
    candidates = (*reasons, *np.unique(p))
    costs = [mean_cost(p, y, threshold) for threshold in candidates]
    assert mean_cost(p, y, cheapest) == pytest.approx(min(costs))
    best = next(at for at, why in reasons.items() if why == "largest F1")
    f1 = [f1_score(y, p >= threshold) for threshold in np.unique(p)]
    assert f1_score(y, p >= best) == pytest.approx(max(f1))
    top = next(at for at, why in reasons.items() if why == "top 5 % of rows")
    assert (p >= top).mean() == pytest.approx(0.05, abs=2e-4)
    with pytest.raises(ValueError, match="cost must be"):
        measure_report([-1.0, 2.0], [0, 1], cost={"fn": 1})


def test_costs_have_the_rule_of_thresholds() -> None:
    scores, y = [-1.0, 2.0], [0, 1]
    assert "</html>" in render(measure_report(scores, y, cost={"fn": 1, "fp": 0}))
    for cost in ({"fn": 0, "fp": 0}, {"fn": np.nan, "fp": 1}, {"fn": np.inf, "fp": 1}):
        with pytest.raises(ValueError, match="costs must be finite"):
            measure_report(scores, y, cost=cost)


def test_rare_positives_are_drawn_on_an_axis_that_fits() -> None:
    assert probability_axis(np.array([0.001, 0.4])) == Axis()
    assert probability_axis(np.linspace(0.01, 0.17, 99)) == Axis(0.0, 0.2)
    axis = probability_axis(np.r_[np.full(90, 1e-3), np.full(10, 0.09)])
    assert axis.log is True
    assert axis.high == 0.1
    assert Axis(0, 1).ticks() == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert Axis(-17, 0).ticks() == [-15, -10, -5, 0]


def test_another_class_frequency_is_told_with_the_command_that_corrects_it() -> None:
    rng = np.random.default_rng(0)

    def rows(rate: float, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
        y = (rng.random(n) < rate).astype(int)
        return rng.normal(2 * y - 1, 1.2), y

    calibrator = hcal.make_calibrator("platt").fit(*rows(0.5))
    assert measure_report(*rows(0.5), calibrator).shift == 0
    content = measure_report(
        *rows(0.1), calibrator, source=Source("t.npz", "", "logits", "ab", "m.hcal")
    )
    assert content.shift > 0.1
    verdict = verdict_of(content)
    assert any("class frequencies of these rows differ" in a for a in verdict.alarms)
    assert verdict.chips["What to do"] == "correct for the class frequencies of these rows"
    assert "hcal apply m.hcal t.npz -o probs.npz --prior estimate" in render(content)


def test_small_data_can_be_cross_fitted(tmp_path: Path) -> None:
    logits, y = synthetic(250, 2, seed=4)
    verdict = hcal.report("platt", logits, y, tmp_path / "r.html", cross_fit=True)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "each row predicted by a fit without it" in text
    assert any("Corrected for optimism" in s for s in verdict.sentences)
    assert not any("used to fit" in a for a in verdict.alarms)
    with pytest.raises(ValueError, match="or pass cross_fit=True"):
        hcal.report("platt", logits, y, tmp_path / "r.html")
    np.savez(tmp_path / "rows.npz", logits=logits, y=y)
    source = hcal.io.batches(tmp_path / "rows.npz", rows=50)
    with pytest.raises(ValueError, match="needs all rows at once"):
        hcal.report(None, source, None, tmp_path / "r.html", cross_fit=True)
    with pytest.raises(TypeError, match=r"'batch_rows': since 0.4 .*hcal.io.batches"):
        hcal.report(None, logits, y, tmp_path / "r.html", batch_rows=50)  # type: ignore[call-arg]


def test_files_by_blocks_have_the_numbers_of_all_rows(tmp_path: Path, monkeypatch: Any) -> None:
    from hcal.certificates import survey

    logits, y = synthetic(3000, 3, scale=1.0, seed=5)
    np.savez(tmp_path / "rows.npz", logits=logits, y=y)
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 1000)
    source = hcal.io.batches(tmp_path / "rows.npz", rows=700)
    verdict = hcal.report(None, source, None, tmp_path / "r.html")
    assert verdict.headline.startswith("3,000 rows cannot tell")  # the proof counts all rows
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "seeded sample of 1,000 of 3,000 rows" in text
    assert f"{hcal.metrics.nll(hcal.softmax(logits), y):.4f}" in text


# -- segments, groups, few rows ---------------------------------------------------------------------


def countries(
    n: int = 16_000, off: float = 0.18, wrong: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P(positive), labels and countries: half of the wrong ones state too much, the others too little."""
    rng = np.random.default_rng(0)
    country = np.arange(n) % 8
    truth = rng.uniform(0.3, 0.7, n)
    y = (rng.random(n) < truth).astype(int)
    shift = np.where(country < wrong, np.where(country % 2, off, -off), 0.0)
    return truth + shift, y, np.array([f"C{c}" for c in country])


def test_segments_whose_errors_cancel_are_in_every_part_of_the_verdict(tmp_path: Path) -> None:
    p, y, country = countries()
    path = tmp_path / "r.html"
    verdict = hcal.report(None, p, y, path, input="probs", by=country)
    assert verdict.grade == "bad"
    count = "8 of 8 segments, with 16,000 of 16,000 rows"
    texts = [verdict.headline, verdict.chips["How sure"], " ".join(verdict.sentences)]
    for text in [*texts, " ".join(verdict.alarms), path.read_text(encoding="utf-8")]:
        assert count in text
    assert verdict.to_dict()["segments"]["count"] == verdict.segments_off == 8
    assert not hcal.require(verdict, ["segments_off<1"]).passed
    alone = hcal.report(None, p, y, path, input="probs")
    assert alone.segments is None
    # One wrong segment of eight: care, and it is named.
    p, y, country = countries(wrong=1)
    one = hcal.report(None, p, y, path, input="probs", by=country)
    assert one.grade in ("care", "few")
    assert "1 of 8 segments, with 2,000 of 16,000 rows" in one.headline
    assert "segment C0" in one.chips["How far off"]
    # None is off: the page says so, and the grade stays.
    p, y, country = countries(wrong=0)
    fine = hcal.report(None, p, y, path, input="probs", by={"country": country})
    assert fine.alarms == ()
    assert "None of the 8 segments is proven to be off" in " ".join(fine.sentences)
    assert "Segment by segment: country" in path.read_text(encoding="utf-8")
    assert "more rows would tell" in path.read_text(encoding="utf-8")


def test_segments_of_files_are_in_the_verdict_too(tmp_path: Path, monkeypatch: Any) -> None:
    from hcal.certificates import survey

    p, y, country = countries(4000)
    rows = zip(p, y, country, strict=True)
    lines = ["p,y,country", *(",".join(map(str, row)) for row in rows)]
    for part in (0, 1):
        first = 1 + 2000 * part
        text = "\n".join([lines[0], *lines[first : first + 2000]])
        (tmp_path / f"{part}.csv").write_text(text)
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 1000)
    options = ["--scores", "p", "--input", "probs", "--label", "y", "--by", "country", "--json"]
    answer = json.loads(_run("report", tmp_path / "*.csv", *options, "-o", tmp_path / "r.html"))
    assert answer["grade"] == "bad"
    assert answer["segments"]["count"] == 8
    assert answer["segments"]["rows"] == 4000
    assert "8 of 8 segments, with 4,000 of 4,000 rows" in answer["headline"]


def test_segments_on_the_page_are_worst_first() -> None:
    logits, y = synthetic(4000, 4, scale=1.0, seed=1)
    logits[:600] *= 4
    site = np.where(np.arange(4000) < 600, "<north>", "south")
    text = build_report(logits, y, by=site)
    table = text[text.index('<section id="segments"') :]
    assert table.index("&lt;north&gt;") < table.index(">south<")
    assert "proven too high" in table


def test_rows_of_groups_get_a_verdict_that_counts_groups() -> None:
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(400), 10)
    risk = np.repeat(rng.uniform(0.1, 0.9, 400), 10)
    y = (np.repeat(rng.random(400), 10) < risk).astype(int)
    content = measure_report(risk, y, input="probs", groups=patient)
    verdict = verdict_of(content)
    assessment = content.final.evaluation.assessment
    assert assessment is not None
    independent = measure_report(risk, y, input="probs").final.evaluation
    assert independent.assessment is not None
    assert assessment.bound > independent.assessment.bound
    assert "no test" in " ".join(verdict.sentences)
    assert not verdict.alarms
    assert "counted by whole groups" in render(content)
    low, high = content.final.evaluation.interval("nll") or (0.0, 0.0)
    other = independent.interval("nll") or (0.0, 0.0)
    assert high - low > 1.5 * (other[1] - other[0])
    few = measure_report(risk, y, input="probs", groups=patient % 5)
    assert verdict_of(few).grade == "few"
    assert "nothing is proven" in " ".join(verdict_of(few).alarms).lower()
    assert "</html>" in render(few)


def test_few_rows_still_make_a_page() -> None:
    for n in (1, 2, 20):
        for k in (2, 3):
            assert "</html>" in build_report(*synthetic(n, k))
    # all right, and certain
    calibrator = hcal.make_calibrator("uncal").fit(*synthetic(50, 3))
    y = [0, 1, 2] * 5
    assert "</html>" in build_report(np.eye(3)[y] * 1e4, y, calibrator)


@pytest.mark.slow
def test_a_page_on_two_hundred_thousand_rows_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(-4, 1.8, 200_000)
    rate = 1 / (1 + np.exp(-score))
    y = (rng.random(200_000) < rate).astype(int)
    calibrator = hcal.make_calibrator("platt").fit(1.5 * score[:20_000], y[:20_000])
    segment = rng.integers(0, 300, 200_000)
    options = {"by": segment, "cost": {"fn": 10, "fp": 1}}
    hcal.report(calibrator, 1.5 * score, y, tmp_path / "r.html", **options)
    assert (tmp_path / "r.html").stat().st_size < 1_000_000


# -- the command ------------------------------------------------------------------------------------


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_writes_the_page_and_says_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "task.npz"
    model = tmp_path / "m.hcal"
    out = tmp_path / "report.html"
    (logits_cal, y_cal), (logits_test, y_test) = synthetic(seed=1), synthetic(600, seed=2)
    np.savez(file, logits_cal=logits_cal, y_cal=y_cal, logits_test=logits_test, y_test=y_test)
    _run("fit", file, "-o", model, "--method", "ts", "-q")
    answer = json.loads(_run("report", file, "--model", model, "-o", out, "--json"))
    assert answer["grade"] in ("good", "care", "few", "bad")
    text = out.read_text(encoding="utf-8")
    assert answer["headline"] in text
    assert f"hcal report {file} --model {model} -o report.html" in text
    assert answer["alarms"] == []
    output = _run("report", file, "--model", model, "-o", out)
    assert "open it in any browser" in output
    assert _run("report", file, "-o", out, "-q") == ""


def test_judging_on_the_calibration_rows_is_told(tmp_path: Path) -> None:
    file = tmp_path / "cal.npz"
    model = tmp_path / "m.hcal"
    logits, y = synthetic()
    np.savez(file, logits=logits, y=y)
    _run("fit", file, "-o", model, "--method", "ts", "-q")
    answer = json.loads(_run("report", file, "--model", model, "-o", tmp_path / "r.html", "--json"))
    assert sum("were used to fit the calibrator" in alarm for alarm in answer["alarms"]) == 1
    assert answer["grade"] == "few"
    assert answer["headline"] == "Cannot be told from rows that the calibrator learned from"
    page = tmp_path / "r.html"
    command = ["report", str(file), "--model", str(model), "-o", str(page), "-q"]
    result = CliRunner().invoke(app, command)
    assert result.stderr.startswith("warning: About 100 % of the 400 rows were used to fit")
    result = CliRunner().invoke(app, ["evaluate", str(file), "--model", str(model)])
    assert "were used to fit the calibrator: evaluate it on others" in result.output.replace(
        "\n", " "
    )
