"""Names: one meaning each, words that say something, ``random_state`` for what decides a draw."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from helpers import ROOT

PACKAGE = ROOT / "src" / "hcal"
#: Commands are named as users type them, and those are the words of the library.
COMMANDS = {"cli/app.py", "cli/bench.py"}
#: Name -> why two public things may share it.
SHARED_NAMES = {
    "Driver": "who runs pieces of work, and Dask's",
    "certify": "of arrays, and of Dask's collections",
    "evaluate": "of arrays, and of Dask's collections",
    "fit": "on dense outputs, and on Dask's collections",
    "predict_proba": "of dense outputs, and of Dask's collections",
    "load": "a calibrator, and a metric as the library of that name does",
}
#: Files whose parameter ``seed`` is not a ``random_state`` -> why.
SEEDS = {
    "bench/cell.py": "a seed is a column of the results file",
    "bench/store.py": "a seed is a column of the results file",
    "bench/methods.py": "a seed is a column of the results file",
    "cli/app.py": "the option --seed of the demo",
}
SAY_NOTHING = {"few", "see", "look", "loud", "tell", "new"}
#: Words of the default calibrator's own vocabulary.
SPOKEN_IN_H = {"few", "see", "look"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the public modules; private ones hold engines, which answer to the name of what they compute."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if path.name != "__init__.py" and not any(part.startswith("_") for part in Path(name).parts):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield functions, classes and names of types that a module defines for others."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and not _is_type_variable(node.value):
            # Constants are spelled in capitals and belong to their module; an array type is what it says.
            names = (t.id for t in node.targets if isinstance(t, ast.Name) and not t.id.isupper())
            yield from (name for name in names if ast.unparse(node.value) != "NDArray[np.float64]")


def _is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "TypeVar"


def test_a_public_name_means_one_thing() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules():
        for name in () if module in COMMANDS else defined(tree):
            if not name.startswith("_"):
                homes[name].add(module)
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {n: p for n, p in shared.items() if n not in SHARED_NAMES} == {}


def test_names_say_something() -> None:
    found = {(module, name) for module, tree in modules() for name in defined(tree) if name in SAY_NOTHING}
    assert {name for module, name in found if not module.startswith("calibrators/h/")} == set()
    assert {name for _, name in found} <= SPOKEN_IN_H


def test_what_decides_a_draw_is_called_random_state() -> None:
    found = set()
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                found |= {module for a in arguments if a.arg == "seed"}
    assert found <= set(SEEDS), sorted(found - set(SEEDS))
