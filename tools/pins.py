"""The pins of ``constraints.txt``: their hashes, what they are made of, and what is known against them.

python tools/pins.py hashes     # writes constraints-hashed.txt from the package index
python tools/pins.py sbom       # writes sbom.json (CycloneDX) from the installed packages
python tools/pins.py audit      # asks the advisory database (osv.dev) about every pin
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
HASHED = ROOT / "constraints-hashed.txt"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
# The Pythons of pyproject.toml; files for others would only make the list long.
TAGS = re.compile(r"-(py3|py2\.py3|cp31[1-3]|cp3\d+-abi3)|-abi3-|\.tar\.gz$")
#: The index's build for Linux needs gigabytes of CUDA libraries: there, people choose a build themselves.
MARKERS = {
    "torch": '; platform_system != "Linux"',
    "triton": '; platform_system == "Linux"',
    "xgboost-cpu": '; platform_system != "Darwin"',
}


def read_pins(text: str) -> dict[str, str]:
    """Return ``{name: version}`` of a constraints file, names as the index spells them."""
    pairs = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def hashes_of(page: str, name: str, version: str) -> list[str]:
    """Return the hashes of the files of one version that a supported Python can install."""
    links = re.findall(r'href="[^"]*?([^/"]+)#sha256=([0-9a-f]{64})"', page)
    start = re.compile(
        rf"{name.replace('-', '[-_.]')}-{re.escape(version)}(-|\.tar)", re.IGNORECASE
    )
    wheels = [(digest, file) for file, digest in links if start.match(file)]
    return sorted({digest for digest, file in wheels if TAGS.search(file)})


def write_hashes() -> None:
    """Write every pin with the hashes of its files: ``pip install --require-hashes`` refuses all else."""
    lines = [
        "# Made by `make hashes` from constraints.txt: a file whose hash is not here is not "
        "installed."
    ]
    for name, version in read_pins(PINS.read_text()).items():
        with urllib.request.urlopen(f"{INDEX.rstrip('/')}/{name}/", timeout=60) as answer:
            hashes = hashes_of(answer.read().decode(), name, version)
        if not hashes:
            raise SystemExit(f"{name}=={version}: no file of it on the index")
        first = f"{name}=={version}{MARKERS.get(name, '')}"
        lines.append(" \\\n    ".join([first, *(f"--hash=sha256:{h}" for h in hashes)]))
    HASHED.write_text("\n".join(lines) + "\n")


def licence_of(name: str) -> str:
    """Return the licence that an installed package states of itself."""
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        return "not installed here"
    classifiers = facts.get_all("Classifier") or []
    licences = [text for text in classifiers if text.startswith("License ::")]
    classes = [text.split(" :: ")[-1] for text in licences]
    stated = (facts.get("License") or "").strip().splitlines()
    if facts.get("License-Expression"):
        return facts["License-Expression"]
    return ", ".join(classes) or (stated or ["see the package"])[0]


def write_sbom() -> None:
    """Write a CycloneDX list of every pin with its licence."""
    parts = []
    for name, version in read_pins(PINS.read_text()).items():
        licence = {"license": {"name": licence_of(name)}}
        part = {"type": "library", "name": name, "version": version}
        parts.append(part | {"purl": f"pkg:pypi/{name}@{version}", "licenses": [licence]})
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}
    (ROOT / "sbom.json").write_text(json.dumps(bill, indent=1) + "\n")


def verdict(pins: dict[str, str], answers: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the exit code and the lines for the database's answer, which has one entry a pin."""
    if len(answers) != len(pins) or not pins:
        return 3, [f"not audited: {len(answers)} answers for {len(pins)} pins"]
    bad = []
    for (name, version), entry in zip(pins.items(), answers, strict=True):
        if entry.get("vulns"):
            numbers = ", ".join(fault["id"] for fault in entry["vulns"])
            bad.append(f"{name}=={version}: {numbers}")
    return (1, bad) if bad else (0, [f"{len(pins)} pins, nothing known against any of them"])


def audit() -> int:
    """Ask the OSV database about every pin; 0: nothing known, 1: something, 3: it could not be asked."""
    pins = read_pins(PINS.read_text())
    queries = []
    for name, version in pins.items():
        queries.append({"package": {"ecosystem": "PyPI", "name": name}, "version": version})
    try:
        body = json.dumps({"queries": queries}).encode()
        with urllib.request.urlopen(
            "https://api.osv.dev/v1/querybatch", body, timeout=60
        ) as answer:
            answers = json.load(answer)["results"]
    except (OSError, ValueError, KeyError) as error:
        print(f"not audited: {error}", file=sys.stderr)
        return 3
    code, lines = verdict(pins, answers)
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    command = {"hashes": write_hashes, "sbom": write_sbom, "audit": audit}[sys.argv[1]]
    sys.exit(command())
