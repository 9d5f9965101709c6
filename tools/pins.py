"""The pins of ``constraints.txt``: their hashes, their licences, and what is known against them.

    python tools/pins.py hashes     # writes constraints-hashed.txt from the package index
    python tools/pins.py licences   # writes docs/licences.md from the installed packages
    python tools/pins.py audit      # asks pip-audit about every pin

``make hashes``, ``make licences`` and ``make audit`` do the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
HASHED = ROOT / "constraints-hashed.txt"
PAGE = ROOT / "docs" / "licences.md"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
# The Pythons of pyproject.toml; files for others would only make the list long.
TAGS = re.compile(r"-(py3|py2\.py3|py2\.py3-none|cp31[1-3]|cp3\d+-abi3)|-abi3-|\.tar\.gz$")
LICENCE_SHORT = 60  # a longer text is the licence itself, not its name


def read_pins(text: str) -> dict[str, str]:
    """Return ``{name: version}`` of a constraints file, names as in wheels' metadata."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if name}


def canonical(name: str) -> str:
    """Return a package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


class _Links(HTMLParser):
    """The (file name, sha256) pairs of one page of a simple index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = re.search(r"([^/]+)#sha256=([0-9a-f]{64})", dict(attrs).get("href") or "")
        if tag == "a" and link:
            self.found.append((link[1], link[2]))


def hashes_of(page: str, name: str, version: str) -> list[str]:
    """Return the hashes of the files of one version that a supported Python can install."""
    links = _Links()
    links.feed(page)
    start = re.compile(rf"{name.replace('-', '[-_.]')}-{re.escape(version)}(-|\.tar)", re.IGNORECASE)
    return sorted({digest for file, digest in links.found if start.match(file) and TAGS.search(file)})


def write_hashes(pins: dict[str, str]) -> None:
    """Write every pin with the hashes of its files: ``pip install --require-hashes`` refuses all else."""
    lines = ["# Made by `make hashes` from constraints.txt: a file whose hash is not here is not installed."]
    for name, version in pins.items():
        with urllib.request.urlopen(f"{INDEX.rstrip('/')}/{name}/", timeout=60) as answer:
            found = hashes_of(answer.read().decode(), name, version)
        if not found:
            raise SystemExit(f"{name}=={version}: no file of it on the index")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{h}" for h in found)]))
    HASHED.write_text("\n".join(lines) + "\n")


def runtime_names() -> tuple[list[str], list[str]]:
    """Return what the package needs, and what its extras for users add."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("all", "test", "docs")}
    return _names(project["dependencies"]), _names(w for wanted in extras.values() for w in wanted)


def _names(wanted: Iterable[str]) -> list[str]:
    return [canonical(Requirement(want).name) for want in wanted]


def with_dependencies(names: Iterable[str], known: set[str]) -> list[str]:
    """Return packages with all that they need in turn, as far as it is pinned, sorted."""
    todo, found = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in found or name not in known:
            continue
        found.add(name)
        wanted = (Requirement(r) for r in _metadata(name).requires or [])
        todo += [canonical(r.name) for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return sorted(found)


def _metadata(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed: run make test once, which installs every pin") from None


def licence_of(name: str) -> str:
    """Return the name of an installed package's licence, as its metadata says it."""
    said = _metadata(name).metadata
    short = said.get("License-Expression") or ""
    if not short and len(said.get("License") or "") <= LICENCE_SHORT:
        short = (said.get("License") or "").strip()
    classes = [c.split(" :: ")[-1] for c in said.get_all("Classifier") or [] if c.startswith("License ::")]
    return short or ", ".join(classes) or "see the package"


def licence_page(pins: dict[str, str]) -> str:
    """Return the page: what a user installs, with version and licence of each."""
    core, extra = runtime_names()
    needed = with_dependencies(core, set(pins))
    added = [name for name in with_dependencies(extra, set(pins)) if name not in needed]
    head = (
        "# Licences\n\nhcal is under Apache-2.0. What it needs, at the versions that the tests run with "
        "(`constraints.txt`), and the licence that each states of itself. Made by `make licences`.\n"
    )
    return "\n".join([head, *_table("Always", needed, pins), *_table("With the extras", added, pins)])


def _table(title: str, names: Sequence[str], pins: dict[str, str]) -> Iterator[str]:
    yield f"## {title}\n\n| package | version | licence |\n|---|---|---|"
    yield from (f"| {name} | {pins[name]} | {licence_of(name)} |" for name in names)
    yield ""


def audit() -> int:
    """Ask the advisory database about every hashed pin; 0: nothing known, 1: something, 3: not asked.

    ``pip-audit`` itself exits with 0 where it could look nothing up.
    """
    asked = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "-f", "json", "-r", str(HASHED)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if "No module named pip_audit" in done.stderr:
        return _not_audited("pip-audit is not installed (make audit installs it)")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _not_audited((done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1])
    code, lines = verdict(found)
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


def verdict(found: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the exit code and the lines to print for pip-audit's answer."""
    skipped = [d["name"] for d in found if "skip_reason" in d]
    bad = [
        f"{d['name']}=={d['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'no version'}"
        for d in found
        for v in d.get("vulns", [])
    ]
    if bad:
        return 1, bad
    if skipped or not found:
        names = ", ".join(skipped[:3])
        return 3, [f"not audited: {len(skipped)} of {len(found)} pins could not be looked up: {names}"]
    return 0, [f"{len(found)} pins, nothing known against any of them"]


def _not_audited(why: str) -> int:
    print(f"not audited: {why}", file=sys.stderr)
    return 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("hashes", "licences", "audit"))
    command = parser.parse_args(argv).command
    pins = read_pins(PINS.read_text(encoding="utf-8"))
    if command == "audit":
        return audit()
    if command == "hashes":
        write_hashes(pins)
    else:
        PAGE.write_text(licence_page(pins), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
