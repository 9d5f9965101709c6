"""The report in a real browser: headless Chromium, driven by selenium. ``make test-browser`` installs it."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver: make test-browser"
    ),
]
WIDTHS = {"wide": 1200, "phone": 390}


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
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 40 classes: enough for the search box."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 40, 1500)
    logits = 2.5 * (rng.normal(size=(1500, 40)) + 2.5 * np.eye(40)[y])
    calibrator = hcal.make_calibrator("ts").fit(logits[:700], y[:700])
    path = tmp_path_factory.mktemp("report") / "report.html"
    hcal.reporting.write_report(
        path,
        logits[700:],
        y[700:],
        calibrator,
        class_names=[f"kind {chr(97 + k % 26)}{k}" for k in range(40)],
    )
    return path


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
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def _visible(driver: Any, selector: str) -> list[Any]:
    return [e for e in driver.find_elements("css selector", selector) if e.is_displayed()]


@pytest.mark.parametrize("width", WIDTHS)
def test_it_loads_without_errors_or_requests_and_fits_its_width(
    driver: Any, report: Path, width: str, tmp_path: Path
) -> None:
    _open(driver, report, WIDTHS[width])
    assert _requests(driver) == [report.as_uri()]
    assert driver.get_log("browser") == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width]
    assert driver.find_element("css selector", ".verdict h2").is_displayed()
    height = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": WIDTHS[width], "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    folder = Path(os.environ.get("HCAL_SCREENSHOTS", tmp_path))
    picture = folder / f"report-{width}.png"
    picture.write_bytes(base64.b64decode(shot["data"]))
    assert picture.stat().st_size > 50_000  # a blank page of this size compresses to a few kilobytes


def _background(driver: Any) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_dark_follows_the_system_and_the_button_overrules_it(driver: Any, report: Path) -> None:
    _open(driver, report, scheme="light")
    light = _background(driver)
    driver.find_element("id", "theme").click()
    dark = _background(driver)
    assert dark != light
    driver.execute_script("localStorage.removeItem('hcal-theme')")
    _open(driver, report, scheme="dark")
    assert _background(driver) == dark
    driver.find_element("id", "theme").click()
    assert _background(driver) == light
    driver.execute_script("localStorage.removeItem('hcal-theme')")


def test_the_bins_can_be_switched(driver: Any, report: Path) -> None:
    _open(driver, report)
    assert driver.find_element("id", "by_width").is_displayed()
    views = ("by_width", "by_mass", "isotonic", "smooth")
    for chosen in views[1:]:
        button = driver.find_element("css selector", f'[data-view="{chosen}"]')
        button.click()
        assert [v for v in views if driver.find_element("id", v).is_displayed()] == [chosen]
        assert button.get_attribute("aria-pressed") == "true"


def test_classes_can_be_found_ordered_and_shown(driver: Any, report: Path) -> None:
    _open(driver, report)
    assert len(_visible(driver, ".stamp-card")) == 15
    driver.find_element("id", "all").click()
    assert len(_visible(driver, ".stamp-card")) == 40
    find = driver.find_element("id", "find")
    find.send_keys("kind c")
    found = [e.get_attribute("data-name") for e in _visible(driver, ".stamp-card")]
    assert sorted(found) == ["kind c2", "kind c28"]
    assert driver.find_element("id", "found").text == "2 of 2 shown"
    find.clear()
    find.send_keys("17")  # a number finds the class of that number, among others whose names hold it
    assert [e.get_attribute("data-k") for e in _visible(driver, ".stamp-card")] == ["17"]
    find.clear()
    find.send_keys(" ")
    driver.find_element("css selector", '#order option[value="number"]').click()
    assert [e.get_attribute("data-k") for e in _visible(driver, ".stamp-card")] == [str(k) for k in range(40)]
    assert driver.get_log("browser") == []


def test_explanations_open_on_keyboard_focus(driver: Any, report: Path) -> None:
    _open(driver, report)
    tip = driver.find_element("css selector", ".metrics .tip")
    content = "return getComputedStyle(arguments[0], '::after').content"
    assert driver.execute_script(content, tip) == "none"
    driver.execute_script("arguments[0].focus()", tip)
    assert "15 equal-width bins" in driver.execute_script(content, tip)


_CONTRAST = """
const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
  .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const back = (e) => { for (; e; e = e.parentElement) { const b = getComputedStyle(e).backgroundColor;
  if (!/, 0\\)$|transparent/.test(b)) return b; } return "rgb(255,255,255)"; };
const bad = [];
for (const e of document.querySelectorAll("p,h1,h2,h3,td,th,dt,dd,li,button,summary,figcaption,b")) {
  if (!e.offsetParent || !e.textContent.trim()) continue;
  const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push(`${e.tagName} ${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
}
return bad;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(driver: Any, report: Path, scheme: str) -> None:
    _open(driver, report, scheme=scheme)
    assert driver.execute_script(_CONTRAST) == []


def test_it_prints_without_its_controls(driver: Any, report: Path) -> None:
    _open(driver, report)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert _visible(driver, "#theme, #print, #find") == []
    assert driver.find_element("css selector", ".verdict h2").is_displayed()
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_script_everything_but_the_controls_is_there(driver: Any, report: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(report.as_uri())
        assert len(_visible(driver, "section")) == 10
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
