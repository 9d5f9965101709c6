"""The pins have hashes, the dependencies licences, and SECURITY.md promises what a test holds."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest

from helpers import ROOT


@pytest.fixture(scope="module")
def pins() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pins", ROOT / "tools" / "pins.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_pin_has_hashes_of_the_version_that_is_pinned(pins: ModuleType) -> None:
    text = (ROOT / "constraints-hashed.txt").read_text()
    hashed = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))
    assert hashed == pins.read_pins((ROOT / "constraints.txt").read_text()), "run make hashes"
    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", block, re.MULTILINE), block.splitlines()[0]


def test_the_licences_are_of_the_pinned_versions_and_permit_use(pins: ModuleType) -> None:
    rows = re.findall(r"^\| ([\w-]+) \| (\S+) \| (.+) \|$", (ROOT / "docs/licences.md").read_text(), re.M)
    listed = {name: version for name, version, _ in rows if name != "package"}
    pinned = pins.read_pins((ROOT / "constraints.txt").read_text())
    assert listed == {name: pinned[name] for name in listed}, "run make licences"
    core, extra = pins.runtime_names()
    assert {*core, *extra} <= set(listed), "run make licences"
    for name, _, licence in rows:
        assert not re.search(r"(?<!L)GPL|see the package", licence), f"{name}: {licence}"


def test_hashes_are_those_of_files_that_a_supported_python_installs(pins: ModuleType) -> None:
    files = {
        "a": "some_thing-1.2-py3-none-any.whl",
        "b": "some-thing-1.2.tar.gz",
        "c": "some_thing-1.2-cp310-cp310-win_amd64.whl",
        "d": "some_thing-1.2-cp312-cp312-win_amd64.whl",
        "e": "some_thing-1.2.1-py3-none-any.whl",
        "f": "some_thing_more-1.2-py3-none-any.whl",
    }
    page = "".join(f'<a href="x/{file}#sha256={key * 64}">{file}</a>' for key, file in files.items())
    assert pins.hashes_of(page, "some-thing", "1.2") == ["a" * 64, "b" * 64, "d" * 64]


def test_an_audit_that_looked_nothing_up_is_no_audit(pins: ModuleType) -> None:
    known = {"name": "a", "version": "1", "vulns": []}
    assert pins.verdict([known])[0] == 0
    assert pins.verdict([])[0] == 3
    code, [line] = pins.verdict([known, {"name": "b", "skip_reason": "not found"}])
    assert code == 3
    assert line == "not audited: 1 of 2 pins could not be looked up: b"
    bad = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    assert pins.verdict([known, bad]) == (1, ["c==2: CVE-1, fixed in 3"])


def test_every_promise_of_the_security_page_names_a_test_that_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        tests = re.findall(r"`(tests/[\w/.]+)`", row.split("|")[-2])
        assert tests, row
        assert all((ROOT / name).exists() for name in tests), row
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
