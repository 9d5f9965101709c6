"""What may import what: the package imports no study, and the wheel holds the package alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conftest import ROOT

OUTSIDE = {"studies", "benchmarks", "tests", "tools", "examples", "conftest"}


def imported(path: Path) -> set[str]:
    """Return the top-level names that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "hcal").rglob("*.py")), ids=lambda p: p.stem)
def test_the_package_imports_nothing_that_is_not_shipped(path: Path) -> None:
    assert not imported(path) & OUTSIDE
    assert not {name for name in OUTSIDE - {"tests"} if f'"{name}.' in path.read_text(encoding="utf-8")}


def test_the_wheel_is_the_package() -> None:
    import tomllib

    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/hcal"]}


def test_every_study_is_a_program_or_used_by_one() -> None:
    used = {"__init__", "__main__"}
    texts = {p.stem: p.read_text(encoding="utf-8") for p in (ROOT / "studies").glob("*.py")}
    used |= {name for name, text in texts.items() if '__name__ == "__main__"' in text}
    joined = "\n".join(texts.values())
    for name in set(texts) - used:
        assert f"studies.{name}" in joined or f"from studies import {name}" in joined, name
