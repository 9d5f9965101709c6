"""What may import what: rooms import downward only, privates stay inside, the wheel holds the package alone.

The order of the rooms is listed here and nowhere else; docs/architecture.md draws it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from helpers import ROOT

PACKAGE = ROOT / "src" / "hcal"
#: What all may use and none owns. ``runtime`` uses nothing of the package, ``inputs`` only ``runtime``.
EVERYWHERE = (
    "_version",
    "numerics",
    "extras",
    "partial",
    "passes",
    "progress",
    "xp",
    "text",
    "leakage",
    "runtime",
    "inputs",
)
#: Lowest first: a room imports those before it, inside functions too.
ORDER = (
    *EVERYWHERE,
    "io",
    "objective",
    "maps",
    "solvers",
    "metrics",
    "calibrators",
    "certificates",
    "evaluation",
    "reporting",
    "integrations",
    "bench",
    "cli",
)
#: The façade ``import hcal`` re-exports all rooms: only what stands above them may use it.
FACADE_USERS = {"cli"}
#: (file, module): why a private name of another room is imported. None should be.
PRIVATE_ALLOWED: dict[tuple[str, str], str] = {}

#: Files of more than 400 lines -> how many they may have.
LONG_FILES = {
    "calibrators/h/_compiled.py": 600,  # one kernel that numba compiles as a whole
}

#: What tests at the top are about: the door, and the project as a whole.
OF_THE_WHOLE = ("inputs", "leakage", "docs", "guides", "layers", "names", "pins", "project")

OUTSIDE = {"studies", "benchmarks", "tests", "tools", "examples", "conftest", "helpers"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def hcal_imports(path: Path) -> set[str]:
    """Return every module or name of hcal that a file imports, dotted, inside functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: a relative import hides its room"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "hcal"}


ROOMS = [p for p in sorted(PACKAGE.rglob("*.py")) if p.parent != PACKAGE or p.name == "inputs.py"]


def _id(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_the_top_of_the_package_is_a_door_and_rooms() -> None:
    assert {p.name for p in PACKAGE.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "_version.py",
        "inputs.py",
        *(
            f"{name}.py"
            for name in EVERYWHERE
            if name not in ("_version", "runtime", "inputs") and (PACKAGE / f"{name}.py").exists()
        ),
    }
    assert {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"} == {
        room for room in ORDER if room == "runtime" or room not in EVERYWHERE
    }


@pytest.mark.parametrize("path", ROOMS, ids=_id)
def test_rooms_import_downward(path: Path) -> None:
    room = room_of(path)
    for name in hcal_imports(path):
        other = name.split(".")[1] if "." in name else ""
        if other in ORDER:
            assert ORDER.index(other) <= ORDER.index(room), f"{room} is below {other}: {name}"
        else:
            assert room in FACADE_USERS, f"{name} comes through the façade: import it from its room"


@pytest.mark.parametrize("path", ROOMS, ids=_id)
def test_private_names_stay_in_their_room(path: Path) -> None:
    for name in hcal_imports(path):
        parts = name.split(".")[1:]
        if (
            parts
            and parts[0] not in (room_of(path), *EVERYWHERE)
            and (_id(path), name) not in PRIVATE_ALLOWED
        ):
            assert not any(part.startswith("_") for part in parts), name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=_id)
def test_no_package_file_holds_logic(path: Path) -> None:
    """Imports, ``__all__`` and the lazy look-up of names; what a room does stands in its modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert defined <= {"__getattr__", "__dir__"} | ({"main"} if room_of(path) == "cli" else set())


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=_id)
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONG_FILES.get(_id(path), 400)


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


def test_tests_mirror_the_source_and_their_names_are_unique() -> None:
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= {*ORDER, "studies", "fuzz", "golden"}
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names), "two test modules of one name cannot be imported together"
    assert {p.stem for p in (ROOT / "tests").glob("test_*.py")} <= {f"test_{what}" for what in OF_THE_WHOLE}


def names_of(module: str) -> set[str]:
    """Return what a module of the package binds at its top, and the modules in its folder."""
    place = PACKAGE.parent.joinpath(*module.split("."))
    text = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")
    found = {p.stem for p in place.glob("*") if p.is_dir() or p.suffix == ".py"}
    todo: list[ast.AST] = list(ast.parse(text).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("folder", ["studies", "benchmarks", "examples"])
def test_what_programs_import_of_the_package_is_there(folder: str) -> None:
    """Inside functions too, which no other test may call: a benchmark once asked for names that had moved."""
    names = {name for path in (ROOT / folder).rglob("*.py") for name in hcal_imports(path)} - {"hcal"}
    asked = [name.rpartition(".") for name in sorted(names)]
    known = {module: names_of(module) for module, _, _ in asked}
    assert not [(module, name) for module, _, name in asked if name not in known[module]]


def test_every_study_is_a_program_or_used_by_one() -> None:
    used = {"__init__", "__main__"}
    texts = {p.stem: p.read_text(encoding="utf-8") for p in (ROOT / "studies").glob("*.py")}
    used |= {name for name, text in texts.items() if '__name__ == "__main__"' in text}
    others = (p.read_text(encoding="utf-8") for p in (ROOT / "benchmarks").glob("*.py"))
    joined = "\n".join([*texts.values(), *others])
    for name in set(texts) - used:
        assert f"studies.{name}" in joined or f"from studies import {name}" in joined, name
