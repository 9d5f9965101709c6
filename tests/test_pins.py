"""The pins have hashes, cover what the project asks for, and the workflows install nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from helpers import ROOT
from tools import pins

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = pins.read_pins((ROOT / "constraints.txt").read_text())


def test_every_pin_has_hashes_of_the_version_that_is_pinned() -> None:
    text = (ROOT / "constraints-hashed.txt").read_text()
    assert pins.read_pins(text) == PINNED, "run make hashes"
    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", block, re.MULTILINE), block.splitlines()[0]


def test_pins_cover_what_the_project_asks_for() -> None:
    requirements = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        requirements += extra
    written = [re.split(r"[\[<>=!; ]", requirement)[0] for requirement in requirements]
    names = {name.lower().replace("_", "-") for name in written}
    assert names - {"hcal"} <= set(PINNED), (
        f"not in constraints.txt: {sorted(names - {'hcal'} - set(PINNED))}"
    )


def test_the_oldest_versions_are_those_that_the_project_allows() -> None:
    oldest = pins.read_pins((ROOT / "constraints-oldest.txt").read_text())
    extras = PROJECT["optional-dependencies"]
    shipped = [words for name, words in extras.items() if name not in ("test", "test-all", "docs")]
    for requirement in [*PROJECT["dependencies"], *(word for words in shipped for word in words)]:
        match = re.fullmatch(r"([\w.-]+)(?:\[[\w,]*\])?>=([\d.]+)", requirement)
        if match is None:
            assert requirement.startswith("hcal["), requirement
            continue
        name = match[1].lower().replace("_", "-")
        assert f"{oldest[name]}.".startswith(f"{match[2]}."), requirement


def test_hcal_alone_needs_ten_packages() -> None:
    names = [re.split(r"[<>=]", want)[0] for want in PROJECT["dependencies"]]
    assert names == [
        "numpy",
        "scipy",
        "scikit-learn",
        "joblib",
        "jinja2",
        "narwhals",
        "filelock",
        "safetensors",
        "typer",
        "rich",
    ]


def test_hashes_are_those_of_files_that_a_supported_python_installs() -> None:
    files = {
        "a": "some_thing-1.2-py3-none-any.whl",
        "b": "some-thing-1.2.tar.gz",
        "c": "some_thing-1.2-cp310-cp310-win_amd64.whl",
        "d": "some_thing-1.2-cp312-cp312-win_amd64.whl",
        "e": "some_thing-1.2.1-py3-none-any.whl",
        "f": "some_thing_more-1.2-py3-none-any.whl",
    }
    page = "".join(
        f'<a href="x/{file}#sha256={key * 64}">{file}</a>' for key, file in files.items()
    )
    assert pins.hashes_of(page, "some-thing", "1.2") == ["a" * 64, "b" * 64, "d" * 64]


def test_an_audit_that_looked_nothing_up_is_no_audit() -> None:
    pinned = {"a": "1", "b": "2"}
    assert pins.verdict(pinned, [{}, {}])[0] == 0
    assert pins.verdict(pinned, [{}])[0] == 3
    assert pins.verdict({}, [])[0] == 3
    with_a_fault = {"vulns": [{"id": "CVE-1"}]}
    assert pins.verdict(pinned, [{}, with_a_fault]) == (1, ["b==2: CVE-1"])


@pytest.mark.parametrize("name", ["test", "nightly", "release"])
def test_workflows_pin_their_actions_and_install_by_hash(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
    for line in re.findall(r"pip install .*", text):
        assert "--no-deps" in line or "--require-hashes" in line, line
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: (?:\w+=1 )?make ([a-z -]+)$", text, re.MULTILINE):
        for one in target.split():
            assert re.search(rf"^(\w+ )*{one}( \w+)*:", makefile, re.MULTILINE), one
    assert 'HASHED: "1"' in text


def test_every_promise_of_the_security_page_names_a_test_that_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        tests = re.findall(r"`(tests/[\w/.]+)`", row.split("|")[-2])
        assert tests, row
        assert all(Path(ROOT / name).exists() for name in tests), row
