"""The report in a real browser: headless Chromium, driven by selenium. ``make browser`` installs it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver: make browser"
    ),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports on 40 classes with a calibrator, on two classes, and on 250 rows out of fold."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 40, 1500)
    signal = 2.5 * np.eye(40)[y]
    logits = 2.5 * (rng.normal(size=(1500, 40)) + signal)
    folder = tmp_path_factory.mktemp("report")
    pages = {name: folder / f"{name}.html" for name in ("many", "two", "small")}
    calibrator = hcal.make_calibrator("ts").fit(logits[:700], y[:700])
    hcal.report(calibrator, logits[700:], y[700:], pages["many"])
    risk, sick = two_classes()
    cost = {"fn": 10, "fp": 1}
    hcal.report(None, risk, sick, pages["two"], input="probs", cost=cost)
    scores = np.log(risk / (1 - risk)) + 3
    hcal.report("platt", scores[:250], sick[:250], pages["small"], cross_fit=True)
    return pages


def two_classes() -> tuple[np.ndarray, np.ndarray]:
    """P(positive), too extreme, and outcomes."""
    rng = np.random.default_rng(3)
    score = rng.normal(-4, 1.5, 3000)
    rate = 1 / (1 + np.exp(-score))
    sick = (rng.random(3000) < rate).astype(int)
    return 1 / (1 + np.exp(-1.5 * score)), sick


def _open(driver: Any, path: Path, width: int = 1200, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(path.as_uri())


def _requests(driver: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in sent if not url.startswith("data:")]


def _visible(driver: Any, selector: str) -> list[Any]:
    return [e for e in driver.find_elements("css selector", selector) if e.is_displayed()]


#: Labels of charts that lie on each other; what is hidden has no size.
_OVERPRINTED = """
const bad = [];
for (const svg of document.querySelectorAll("svg")) {
  const boxes = [...svg.querySelectorAll("text")].map(
    (t) => [t.textContent, t.getBoundingClientRect()]);
  for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
    if (a.width && b.width && !beside && a.top < b.bottom - 2 && b.top < a.bottom - 2)
      bad.push(boxes[i][0] + " on " + boxes[j][0]);
  }
}
return bad;
"""
_CONTRAST = """
const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
  .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const back = (e) => { for (; e; e = e.parentElement) {
  const b = getComputedStyle(e).backgroundColor;
  if (!/, 0(\\.\\d+)?\\)$|transparent/.test(b)) return b; } return "rgb(255,255,255)"; };
const bad = [];
const texts = "p,h1,h2,h3,td,th,dt,dd,li,button,summary,figcaption,b,code";
for (const e of document.querySelectorAll(texts)) {
  if (!e.offsetParent || !e.textContent.trim()) continue;
  const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const shown = e.textContent.slice(0, 30);
  if (ratio < 4.5) bad.push(`${e.tagName} ${e.className} ${ratio.toFixed(2)} ${shown}`);
}
return bad;
"""


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_width_load_nothing_and_can_be_read(
    driver: Any, reports: dict[str, Path], width: int, scheme: str, tmp_path: Path
) -> None:
    for name, path in reports.items():
        _open(driver, path, width, scheme)
        assert _requests(driver) == [path.as_uri()]
        assert driver.get_log("browser") == []
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, name
        assert driver.execute_script(_CONTRAST) == []
        assert driver.execute_script(_OVERPRINTED) == []
        assert len(_visible(driver, ".chip")) == 3
        height = driver.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        picture = (
            Path(os.environ.get("HCAL_SCREENSHOTS", tmp_path)) / f"{name}-{width}-{scheme}.png"
        )
        picture.write_bytes(base64.b64decode(shot["data"]))
        assert (
            picture.stat().st_size > 50_000
        )  # a blank page of this size compresses to a few kilobytes


def _background(driver: Any) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_dark_follows_the_system_and_the_button_overrules_it(
    driver: Any, reports: dict[str, Path]
) -> None:
    _open(driver, reports["two"], scheme="light")
    light = _background(driver)
    driver.find_element("id", "theme").click()
    dark = _background(driver)
    assert dark != light
    driver.execute_script("localStorage.removeItem('hcal-theme')")
    _open(driver, reports["two"], scheme="dark")
    assert _background(driver) == dark
    driver.find_element("id", "theme").click()
    assert _background(driver) == light
    driver.execute_script("localStorage.removeItem('hcal-theme')")


def test_views_open_rules_open_commands_are_copied(driver: Any, reports: dict[str, Path]) -> None:
    _open(driver, reports["many"])
    views = [
        e.get_attribute("data-view") for e in driver.find_elements("css selector", "[data-view]")
    ]
    assert [v for v in views if driver.find_element("id", v).is_displayed()] == ["view-equal-width"]
    for chosen in views[1:]:
        button = driver.find_element("css selector", f'[data-view="{chosen}"]')
        button.click()
        assert [v for v in views if driver.find_element("id", v).is_displayed()] == [chosen]
        assert button.get_attribute("aria-pressed") == "true"
    assert not _visible(driver, ".verdict .fine")
    driver.find_element("css selector", ".verdict summary").click()
    assert _visible(driver, ".verdict .fine")
    copy = driver.find_element("css selector", "[data-copy]")
    copy.click()
    for _ in range(50):  # the browser copies in its own time
        chosen = driver.execute_script("return getSelection().toString()")
        if done := copy.text == "Copied" or chosen.startswith("hcal "):
            break
        time.sleep(0.1)
    assert done
    tip = driver.find_element("css selector", ".metrics .tip")
    content = "return getComputedStyle(arguments[0], '::after').content"
    assert driver.execute_script(content, tip) == "none"
    driver.execute_script("arguments[0].focus()", tip)
    assert "15 equal-width bins" in driver.execute_script(content, tip)
    assert driver.get_log("browser") == []


def test_it_prints_and_can_be_read_without_script(driver: Any, reports: dict[str, Path]) -> None:
    _open(driver, reports["many"])
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert _visible(driver, "#theme, #print, [data-copy]") == []
    assert driver.find_element("css selector", ".verdict h2").is_displayed()
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(reports["many"].as_uri())
        assert len(_visible(driver, "section")) == 8
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# -- what if ----------------------------------------------------------------------------------------


def _answer(driver: Any, name: str) -> str:
    return str(driver.find_element("css selector", f'[data-answer="{name}"]').text)


def _type(driver: Any, field: str, text: str) -> None:
    element = driver.find_element("id", field)
    element.clear()
    element.send_keys(text)


def test_the_slider_answers_from_the_file_as_numpy_counts(
    driver: Any, reports: dict[str, Path]
) -> None:
    risk, sick = two_classes()
    _open(driver, reports["two"])
    for threshold in (0.01, 0.05, 0.3):
        _type(driver, "threshold-value", str(threshold))
        taken = risk >= threshold
        caught = int((taken & (sick == 1)).sum())
        false = int(taken.sum()) - caught
        missed = int(sick.sum()) - caught
        counts = {"tp": caught, "fp": false, "fn": missed, "tn": 3000 - caught - false - missed}
        # A cut stands for at most a few rows between two thresholds of the slider.
        for name, count in counts.items():
            counted = int(_answer(driver, name).replace(",", ""))
            assert abs(counted - count) <= 15, (name, threshold)
        assert _answer(driver, "at") == str(threshold)
        recall = float(_answer(driver, "recall").split()[0])
        assert recall == pytest.approx(100 * caught / sick.sum(), abs=2)
        for name in ("share", "precision", "recall", "cost", "benefit"):
            assert "–" in _answer(driver, name)  # with an interval
    assert _requests(driver) == [reports["two"].as_uri()]
    assert driver.get_log("browser") == []


def test_the_slider_moves_by_keys_and_its_costs_find_the_cheapest_threshold(
    driver: Any, reports: dict[str, Path]
) -> None:
    from selenium.webdriver.common.keys import Keys

    _open(driver, reports["two"])
    slider = driver.find_element("id", "threshold")
    before = float(_answer(driver, "at"))
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert float(_answer(driver, "at")) > before
    assert "taken" in slider.get_attribute("aria-valuetext")
    slider.send_keys(Keys.HOME)
    assert _answer(driver, "fn") == "0"
    driver.find_element("id", "least-cost").click()
    cheap = float(_answer(driver, "at"))
    _type(driver, "cost-fn", "1")
    driver.find_element("id", "least-cost").click()
    assert float(_answer(driver, "at")) > cheap  # misses cost less, so fewer rows are taken


def test_every_control_has_a_name_and_is_reached_by_the_tab_key(
    driver: Any, reports: dict[str, Path]
) -> None:
    from selenium.webdriver.common.keys import Keys

    _open(driver, reports["two"])
    unnamed = driver.execute_script(_UNNAMED)
    assert unnamed == []
    reached = set()
    for _ in range(80):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(driver.execute_script("return document.activeElement.id"))
    assert {"theme", "print", "threshold", "threshold-value", "cost-fn", "least-cost"} <= reached


_UNNAMED = """
return [...document.querySelectorAll("button, input, summary, svg, [tabindex]")]
  .filter((e) => e.offsetParent || e.tagName === "svg")
  .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label")))
  .filter((e) => !(e.labels && e.labels.length))
  .map((e) => e.outerHTML.slice(0, 120));
"""


def test_lines_and_dots_say_their_numbers_to_pointer_and_keys(
    driver: Any, reports: dict[str, Path]
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    _open(driver, reports["two"])
    chart = driver.find_element("css selector", '#now svg[aria-label^="Decision curve"]')
    readout = chart.find_element("xpath", "../p")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(driver).move_to_element(chart).perform()
    assert "at a threshold of" in readout.text
    chart.send_keys(Keys.ARROW_RIGHT)
    first = readout.text
    chart.send_keys(Keys.ARROW_RIGHT)
    assert readout.text != first
    assert "model" in readout.text


def test_tables_are_sorted_and_searched(driver: Any, reports: dict[str, Path]) -> None:
    _open(driver, reports["many"])
    table = driver.find_element("css selector", "#classes table.sortable")
    heads = table.find_elements("css selector", ".sort")
    heads[1].click()
    rows = (
        "return [...arguments[0].tBodies[0].rows].filter((r) => !r.hidden)"
        ".map((r) => r.cells[%d].innerText)"
    )
    counts = [int(text) for text in driver.execute_script(rows % 1, table)]
    assert counts == sorted(counts, reverse=True)
    heads[1].click()
    assert [int(t) for t in driver.execute_script(rows % 1, table)] == sorted(counts)
    driver.find_element("css selector", "#classes input[type=search]").send_keys("class 7")
    assert driver.execute_script(rows % 0, table) == ["class 7"]


def test_print_keeps_the_answers_and_their_threshold(driver: Any, reports: dict[str, Path]) -> None:
    _open(driver, reports["two"])
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert _visible(driver, ".controls, .search") == []
    assert float(_answer(driver, "at")) > 0
    assert _visible(driver, ".answers dd")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
