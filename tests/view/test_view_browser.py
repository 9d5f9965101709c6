"""``hcal view`` end to end in headless Chromium: upload, choose, fit, slide, download, and what is refused."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.view.work import ColumnChoice

pytest.importorskip("uvicorn")
pd = pytest.importorskip("pandas")

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
ROWS = 1500


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def driver(downloads: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def table() -> Any:
    """Risks that are too extreme, outcomes by name, and columns that are neither."""
    rng = np.random.default_rng(5)
    score = rng.normal(-1, 2, ROWS)
    churned = rng.random(ROWS) < 1 / (1 + np.exp(0.3 - score / 2))
    return pd.DataFrame(
        {
            "customer": np.arange(ROWS) + 10_000,
            "country": rng.choice(["DE", "FR", "IT"], ROWS),
            "risk": 1 / (1 + np.exp(-score)),
            "churned": np.where(churned, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def files(table: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"churn.{name}" for name in ("csv", "parquet")}
    table.to_csv(paths["csv"], index=False)
    table.to_parquet(paths["parquet"])
    return paths


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that the command serves in a process of its own."""
    command = [sys.executable, "-m", "hcal", "view", "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", server.stdout.readline())
    assert match is not None
    wait_for(lambda: answers(match[0]))
    yield match[0]
    server.terminate()
    server.communicate(timeout=20)


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise TimeoutError("the page did not come so far")


def picture(driver: Any, name: str, width: int, scheme: str, tmp_path: Path) -> Path:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width, name
    height = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path = Path(os.environ.get("HCAL_SCREENSHOTS", tmp_path)) / f"{name}-{width}-{scheme}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    return path


def pictures(driver: Any, name: str, tmp_path: Path) -> None:
    for width in (1200, 390):
        for scheme in ("light", "dark"):
            assert picture(driver, name, width, scheme, tmp_path).stat().st_size > 8_000
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def upload(driver: Any, url: str, path: Path) -> None:
    driver.get(url)
    driver.find_element("id", "file").send_keys(str(path))
    wait_for(lambda: driver.find_elements("id", "preview"), 30)


def choose(driver: Any, scores: str, label: str) -> None:
    from selenium.webdriver.support.ui import Select

    box = driver.find_element("css selector", f'input[name=scores][value="{scores}"]')
    if not box.is_selected():
        box.click()
    Select(driver.find_element("name", "label")).select_by_visible_text(label)
    driver.find_element("name", "classes").send_keys("no, yes")
    driver.find_element("css selector", 'form[action$="work"] button').click()


def finished(driver: Any) -> bool:
    return bool(driver.find_elements("css selector", "#headline, .error:not([hidden])"))


def in_report(driver: Any) -> None:
    driver.switch_to.frame(driver.find_element("tag name", "iframe"))
    wait_for(lambda: driver.find_elements("id", "threshold"), 30)


def test_from_a_file_to_a_report_a_slider_and_downloads(
    driver: Any, url: str, files: dict[str, Path], downloads: Path, table: Any, tmp_path: Path
) -> None:
    driver.get(url)
    pictures(driver, "view-begin", tmp_path)
    upload(driver, url, files["csv"])
    heads = [e.text for e in driver.find_elements("css selector", "#preview th")]
    assert heads == list(table.columns)
    assert "10000" in driver.find_element("id", "preview").text
    pictures(driver, "view-choose", tmp_path)

    choose(driver, "risk", "churned")
    wait_for(lambda: finished(driver))
    assert driver.find_element("id", "headline").text
    pictures(driver, "view-report", tmp_path)
    in_report(driver)
    assert "before" in driver.page_source
    assert "after" in driver.page_source
    before = driver.find_element("css selector", '[data-answer="at"]').text
    from selenium.webdriver.common.keys import Keys

    driver.find_element("id", "threshold").send_keys(*[Keys.ARROW_RIGHT] * 5)
    after = driver.find_element("css selector", '[data-answer="at"]').text
    assert float(after) > float(before)
    driver.switch_to.default_content()

    for name in ("get-report", "get-calibrated", "get-model"):
        driver.find_element("id", name).click()
    names = ("report.html", "churn-calibrated.csv", "model.hcal")
    wait_for(lambda: all((downloads / name).exists() for name in names), 30)
    calibrated = pd.read_csv(downloads / "churn-calibrated.csv")
    assert calibrated["customer"].tolist() == table["customer"].tolist()
    model = hcal.load(downloads / "model.hcal")
    expected = model.predict_proba(table["risk"].to_numpy())
    np.testing.assert_allclose(calibrated[["probs_no", "probs_yes"]], expected, atol=1e-9)
    assert "Calibration report" in (downloads / "report.html").read_text()


def test_nothing_is_asked_of_another_host(driver: Any, url: str) -> None:
    import json

    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    of_pages = [address for address in sent if address.startswith("http")]
    assert of_pages
    assert all(address.startswith(url) for address in of_pages), of_pages
    assert [e for e in driver.get_log("browser") if "Content Security" in e["message"]] == []


def test_two_tabs_have_two_files(driver: Any, url: str, files: dict[str, Path]) -> None:
    upload(driver, url, files["csv"])
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    upload(driver, url, files["parquet"])
    second = driver.current_window_handle
    choose(driver, "risk", "churned")
    driver.switch_to.window(first)
    # A wrong choice in one tab is told there, and does not end the work in the other.
    choose(driver, "customer", "churned")
    wait_for(lambda: finished(driver))
    assert "churn.csv" in driver.title
    words = driver.find_element("css selector", ".error").text
    assert "from 0 to 1, and row 0 is 1e+04" in words
    driver.switch_to.window(second)
    wait_for(lambda: finished(driver))
    assert "churn.parquet" in driver.title
    assert driver.find_element("id", "headline").text
    driver.close()
    driver.switch_to.window(first)


def status(url: str, data: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(url, data, {"Host": headers.pop("Host", "127.0.0.1")})
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        return int(urllib.request.urlopen(request, timeout=20).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_who_has_no_token_or_another_name_gets_nothing(url: str) -> None:
    token = url.rstrip("/").rpartition("/")[2]
    assert status(url) == 200
    assert status(url.replace(token, "x" * len(token))) == 404
    assert status(url.replace(f"{token}/", "")) == 404
    assert status(url, Host="attacker.example") == 400
    assert status(f"{url}999/") == 404
    assert status(f"{url}1/..%2f..%2fetc%2fpasswd") == 404


def test_200_megabytes_are_refused_by_the_page_and_by_the_server(
    driver: Any, url: str, tmp_path: Path
) -> None:
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    driver.get(url)
    driver.find_element("id", "file").send_keys(str(large))
    refused = wait_for(lambda: driver.find_element("id", "refused").text, 20)
    assert "larger than 100 MB: start hcal view FILE" in refused
    # Whoever sends it all the same is told so before the body is read.
    import http.client

    host, port = url.split("/")[2].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    path = "/" + url.split("/", 3)[3]
    connection.putrequest("POST", f"{path}upload")
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", str(200 * 2**20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_choice_without_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="choose the columns of the scores"):
        ColumnChoice((), "y", "probs", "pool").request()
    with pytest.raises(ValueError, match="has a comma"):
        ColumnChoice(("a,b",), "y", "probs", "pool").request()
