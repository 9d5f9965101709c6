"""The report: its numbers are the library's, its verdict follows its rule, its page needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.reporting import Source, build_report, measure_report
from hcal.reporting.charts import percent
from hcal.reporting.page import render
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
        self.open: list[str] = []
        self.asks: list[str] = []
        self.ids: list[str] = []
        self.unnamed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.asks += [str(given[a]) for a in ("src", "href", "action", "data", "srcset") if a in given]
        self.ids += [str(given["id"])] if "id" in given else []
        if tag == "svg" and not given.get("aria-label"):
            self.unnamed.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()


def test_the_page_is_well_formed_and_self_contained() -> None:
    checker = _Checker()
    checker.feed(page())
    assert checker.open == []
    assert all(a.startswith(("data:", "#")) for a in checker.asks), checker.asks
    assert checker.unnamed == []
    assert len(checker.ids) == len(set(checker.ids))
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|https?://", page())


def test_the_policy_admits_the_pages_own_script_and_style_and_nothing_else() -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page())
    assert found
    policy = dict(rule.split(" ", 1) for rule in found[1].split("; "))
    for element in ("script", "style"):
        texts = re.findall(rf"<{element}>(.*?)</{element}>", page(), re.DOTALL)
        assert len(texts) == len(re.findall(rf"<{element}\b", page())) == 1
        digest = base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()
        assert policy.pop(f"{element}-src") == f"'sha256-{digest}'"
    assert policy.pop("img-src") == "data:"
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page())  # what a hash does not cover would be dead


@pytest.mark.parametrize(
    "part",
    [
        "verdict",
        "headline",
        "now",
        "reliability",
        "confidence",
        "classes",
        "metrics",
        "map",
        "data",
        "method",
    ],
)
def test_every_part_is_there(part: str) -> None:
    assert f'<section id="{part}"' in page()


def test_the_curves_without_bins_are_the_librarys() -> None:
    content, html = measured(), page()
    assert content.after is not None
    parts = hcal.reliability(content.after.probs, content.y, level="top-label", binning="corp")[0].parts
    assert parts is not None
    assert f"{parts.miscalibration:.4f} (miscalibration) − {parts.discrimination:.4f}" in html
    smooth = percent(hcal.metrics.smece(content.after.probs, content.y), 2)
    assert f"After: the smooth calibration error is {smooth}." in html


def test_the_numbers_are_the_librarys() -> None:
    content = measured()
    assert content.after is not None
    logits, y = synthetic(4000, seed=1)
    raw = hcal.softmax(logits)
    assert content.before.metrics["nll"] == pytest.approx(hcal.metrics.nll(raw, y))
    assert content.after.metrics["ece_ew"] == pytest.approx(hcal.metrics.ece_ew(content.after.probs, y))
    assert f"{100 * hcal.metrics.ece_ew(raw, y):.1f}\N{NO-BREAK SPACE}%" in page()
    for name in hcal.list_metrics():
        assert f"<code>{name}</code>" in page()
    low, high = hcal.evaluate(raw, y, ["nll"], 0.95).interval("nll") or (0, 0)
    assert f"{low:.4f} – {high:.4f}" in page()


def test_method_parameters_versions_and_checksum_are_on_the_page() -> None:
    for text in ("ab" * 32, "Temperature scaling (ts)", "Version of torch", hcal.__version__, "4,000"):
        assert text in page()


def test_without_a_calibrator_there_is_no_after() -> None:
    logits, y = synthetic(500)
    text = build_report(logits, y)
    assert "After calibration" not in text
    assert '<section id="map"' not in text
    assert "The model is over-confident by" in text


def test_names_are_text_never_markup() -> None:
    logits, y = synthetic(200, 2)
    evil = "<script>alert(1)</script>"
    text = build_report(logits, y, class_names=[evil, '"quoted" & co'], source=Source(evil))
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    with pytest.raises(ValueError, match="1 class names for 2 classes"):
        build_report(logits, y, class_names=["one"])


def test_a_thousand_classes_fit_in_a_page_that_opens() -> None:
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(1500, 1000)).astype(np.float32) * 4, rng.integers(0, 900, 1500)
    text = build_report(logits, y)
    assert text.count('class="stamp-card"') == 1000
    assert len(re.findall(r'class="stamp-card"[^>]*hidden', text)) == 1000 - 15
    assert len(text) < 2_000_000
    assert f"No row of {1000 - len(np.unique(y))} of 1000 classes" in text


def test_classes_that_are_proven_wrong_come_first() -> None:
    content = measure_report(*synthetic(4000, 6, seed=1))
    text = render(content)
    order = [int(k) for k in re.findall(r'data-k="(\d+)"', text)]
    certificate = content.final.headline.certificate
    assert certificate is not None
    assert certificate.classes is not None
    proven = [float(certificate.classes.at_least[k]) for k in order]
    assert proven == sorted(proven, reverse=True)
    assert "Classes that are proven wrong" in text
    assert "stamp-band" in text


def test_thresholds_are_certified_on_the_page() -> None:
    content = measured(1.0)
    text = render(content)
    conf = content.final.probs.max(1)
    share = 100 * (conf >= 0.9).mean()
    assert f"<td>0.9</td><td>{share:.1f}\N{NO-BREAK SPACE}%</td>" in text
    assert "Risk against coverage" in text
    assert "hcal watch" in text


def test_groups_are_on_the_page_worst_first() -> None:
    logits, y = synthetic(4000, 4, scale=1.0, seed=1)
    logits[:600] *= 4
    site = np.where(np.arange(4000) < 600, "<north>", "south")
    text = build_report(logits, y, groups=site)
    assert text.index("&lt;north&gt;") < text.index(">south<")
    assert "proven too high" in text


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("n", [1, 2, 20])
def test_few_rows_still_make_a_page(n: int, k: int) -> None:
    logits, y = synthetic(n, k)
    assert "</html>" in build_report(logits, y)


def test_all_right_and_certain_makes_a_page() -> None:
    calibrator = hcal.make_calibrator("uncal").fit(*synthetic(50, 3))
    assert "</html>" in build_report(np.eye(3)[[0, 1, 2] * 5] * 1e4, [0, 1, 2] * 5, calibrator)


# -- the command ------------------------------------------------------------------------------------


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_writes_the_page_and_says_the_verdict(tmp_path: Path) -> None:
    file, model, out = tmp_path / "task.npz", tmp_path / "m.hcal", tmp_path / "report.html"
    (logits_cal, y_cal), (logits_test, y_test) = synthetic(seed=1), synthetic(600, seed=2)
    np.savez(file, logits_cal=logits_cal, y_cal=y_cal, logits_test=logits_test, y_test=y_test)
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\ndog\n")
    _run("fit", file, "-o", model, "--method", "ts", "-q")
    found = json.loads(_run("report", file, "--model", model, "-o", out, "--names", names, "--json"))
    assert found["grade"] in ("good", "care", "few", "bad")
    text = out.read_text(encoding="utf-8")
    assert found["headline"] in text
    assert "<h3>cat</h3>" in text
    assert found["alarms"] == []
    said = _run("report", file, "--model", model, "-o", out)
    assert "open it in any browser" in said
    assert _run("report", file, "-o", out, "-q") == ""


def test_judging_on_the_calibration_rows_is_told(tmp_path: Path) -> None:
    file, model = tmp_path / "cal.npz", tmp_path / "m.hcal"
    logits, y = synthetic()
    np.savez(file, logits=logits, y=y)
    _run("fit", file, "-o", model, "--method", "ts", "-q")
    found = json.loads(_run("report", file, "--model", model, "-o", tmp_path / "r.html", "--json"))
    assert any("learned from" in alarm for alarm in found["alarms"])
    result = CliRunner().invoke(
        app, ["report", str(file), "--model", str(model), "-o", str(tmp_path / "r.html"), "-q"]
    )
    assert result.stderr.startswith("warning: These are the rows that the calibrator learned from")
    result = CliRunner().invoke(app, ["evaluate", str(file), "--model", str(model), "-q"])
    assert "warning: these are the rows that the calibrator learned from" in result.stderr
