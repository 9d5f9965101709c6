"""How the source is laid out: packages import downward, no module remembers a call, names say one thing.

The order of the packages is listed here and nowhere else; docs/architecture.md draws it.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from helpers import ROOT

PACKAGE = ROOT / "src" / "hcal"
#: Lowest first: what stands here may import what stands before it, inside functions too.
ORDER = (
    "_version",
    "extras",
    "text",
    "results",
    "renamed",
    "xp",
    "xp_torch",
    "numerics",
    "frames",
    "compiled",
    "passes",
    "progress",
    "inputs",
    "class_names",
    "columns",
    "ageing",
    "row_segments",
    "rows",
    "leakage",
    "fit_record",
    "io",
    "maps",
    "solvers",
    "metrics",
    "methods",
    "h_calibration",
    "pool",
    "segments",
    "language_models",
    "certificates",
    "evaluation",
    "decisions",
    "reporting",
    "operation",
    "integrations",
    "view",
    "cli",
)
#: ``import hcal`` re-exports everything: only what stands above all may use it.
FACADE_USERS = {"cli"}
#: Imports upward, inside a function, and why.
UPWARD = {
    (
        "io/reading.py",
        "hcal.language_models.files.read_answers",
    ): "a file of answers is read like any other, and what answers mean is not a matter of files",
    (
        "xp.py",
        "hcal.xp_torch",
    ): "the operations for tensors are imported when the first tensor comes",
    (
        "methods/base.py",
        "hcal.integrations.torch.predict_on_device",
    ): "tensors are predicted where they are",
    (
        "io/doors.py",
        "hcal.integrations.dask.rows",
    ): "Dask collections are rows too, and who passes them has Dask",
    (
        "evaluation/comparison.py",
        "hcal.integrations.dask.Runner",
    ): "who runs the cells is the caller's choice",
}
#: Lines of a file, and the few that may have more.
LONGEST = 650
LONG_FILES: dict[str, int] = {}
#: The containers that are written after import: registries, and names that are imported when first used.
REGISTRIES = {
    ("__init__.py", "globals()"),
    ("io/__init__.py", "globals()"),
    ("methods/registry.py", "_registered"),
    ("metrics/registry.py", "METRICS"),
}
#: Names of earlier versions that told a reader nothing.
SAY_NOTHING = {
    *("few", "see", "look", "loud", "tell", "new", "counted", "is_elsewhere"),
    *("Wish", "Ask", "Recipe", "Driver", "Crew", "Setting", "Standing"),
}
OUTSIDE = {"studies", "benchmarks", "tests", "tools", "examples", "conftest", "helpers"}
MUTATORS = {
    "append",
    "add",
    "update",
    "clear",
    "pop",
    "setdefault",
    "extend",
    "insert",
    "remove",
    "discard",
}
CONTAINERS = {
    *("dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter"),
    *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
}
LITERAL_CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def nodes(tree: ast.AST, *types: type[ast.AST]) -> Iterator[Any]:
    """Yield the nodes of these types, at any depth."""
    return (node for node in ast.walk(tree) if isinstance(node, types))


@cache
def sources() -> dict[str, ast.Module]:
    """Return the files of the package, parsed, by their path in it."""
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {}
    for path in paths:
        trees[path.relative_to(PACKAGE).as_posix()] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def part_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def hcal_imports(tree: ast.Module) -> set[str]:
    """Return every module or name of hcal that a file imports, dotted, inside functions and for types too."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"relative import of {node.module}"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in modules if name.split(".")[0] == "hcal"}


def test_packages_import_downward_and_leave_privates_alone() -> None:
    wrong = []
    for path, tree in sources().items():
        part = part_of(path)
        if path in ("__init__.py", "__main__.py"):
            continue
        assert part in ORDER, f"{part} is not in the order of this test"
        for name in hcal_imports(tree):
            parts = name.split(".")[1:]
            if not parts or parts[0] not in ORDER:
                wrong += (
                    [f"{path}: {name}: import it from its package"]
                    if part not in FACADE_USERS
                    else []
                )
            elif ORDER.index(parts[0]) > ORDER.index(part) and (path, name) not in UPWARD:
                wrong.append(f"{path}: {part} is below {parts[0]}")
            elif parts[0] not in (part, "_version") and any(p.startswith("_") for p in parts):
                wrong.append(f"{path}: {name} is private")
    assert wrong == []


def test_files_are_neither_long_nor_logic_in_disguise() -> None:
    for path, tree in sources().items():
        text = (PACKAGE / path).read_text(encoding="utf-8").splitlines()
        assert len(text) <= LONG_FILES.get(path, LONGEST), f"{path} has {len(text)} lines"
        wide = [line for line in text if len(line.split("  # type: ignore")[0]) > 120]
        assert wide == [], path
        if path.endswith("__init__.py"):
            defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            assert defined <= {"__getattr__", "__dir__", "main"}, f"{path} holds logic"


def test_the_package_needs_nothing_that_is_not_shipped() -> None:
    for path, tree in sources().items():
        names = set()
        for node in nodes(tree, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        for node in nodes(tree, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
        assert not names & OUTSIDE, path
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/hcal"]}


def test_tests_mirror_the_source_and_their_names_are_unique() -> None:
    tests = ROOT / "tests"
    folders = {path.name for path in tests.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= {*ORDER, "studies", "fuzz", "metamorphic", "released"}
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names), (
        "two test modules of one name cannot be imported together"
    )


def test_what_programs_import_of_the_package_is_there() -> None:
    """Inside functions too, which no other test may call."""
    imported = set()
    for folder in ("studies", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            imported |= hcal_imports(ast.parse(path.read_text(encoding="utf-8"))) - {"hcal"}
    missing = [name for name in sorted(imported) if not _exists(name)]
    assert missing == []


def _exists(dotted: str) -> bool:
    """Say whether a module binds a name at its top, or a package has a module of that name."""
    module, _, name = dotted.rpartition(".")
    place = PACKAGE.parent.joinpath(*module.split("."))
    if (place / name).is_dir() or (place / f"{name}.py").is_file():
        return True
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file():
        return False
    tree = sources()[file.relative_to(PACKAGE).as_posix()]
    strings = {node.value for node in nodes(tree, ast.Constant) if isinstance(node.value, str)}
    names = {*bound(tree.body)}
    return name in names or ("__getattr__" in names and name in strings)


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, those under ``if`` and ``try`` included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (node.id for node in nodes(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from bound([*node.body, *getattr(node, "orelse", [])])
            yield from bound([s for h in getattr(node, "handlers", []) for s in h.body])


# -- no hidden state --------------------------------------------------------------------------------


def containers(tree: ast.Module) -> set[str]:
    """Return the names at the top of a module that hold something that can be written to."""
    names = set()
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        is_container = isinstance(value, LITERAL_CONTAINERS)
        if isinstance(value, ast.Call):
            called = ast.unparse(value.func).split(".")[-1]
            is_container = called.split("[")[0] in CONTAINERS
        if is_container:
            names |= set(bound([node]))
    return names


def is_method_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def writes(function: ast.AST) -> Iterator[str]:
    """Yield the names that a function stores into, by index, by a method or in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value)
        elif is_method_call(node) and node.func.attr in MUTATORS:
            yield ast.unparse(node.func.value)
        elif isinstance(node, ast.Global):
            yield from node.names


def is_cache_of_data(function: ast.FunctionDef) -> bool:
    """Say whether a function remembers its results for anything but names, numbers and types."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    cached = any("cache" in text.split("(")[0].split(".")[-1] for text in decorators)
    cached &= not any("cached_property" in ast.unparse(d) for d in function.decorator_list)
    plain = {
        "str",
        "int",
        "bool",
        "float",
        "type",
        "str | None",
        "int | None",
        "tuple[int, ...]",
        "tuple[str, ...]",
    }
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    annotations = [ast.unparse(a.annotation) if a.annotation else "" for a in arguments]
    return cached and not plain.issuperset(annotations)


def remembered(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a module keeps from one call for the next."""
    changeable = containers(tree) | {"globals()"}
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        arguments = {argument.arg for argument in nodes(function.args, ast.arg)}
        names = nodes(function, ast.Name)
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        declared = set()
        for statement in nodes(function, ast.Global):
            declared |= set(statement.names)
        for name in set(writes(function)):
            if name in declared or (name in changeable and name not in (arguments | local)):
                yield name
        if is_cache_of_data(function):
            yield f"{function.name} is cached"


def test_no_module_remembers_a_call() -> None:
    memories = set()
    for path, tree in sources().items():
        memories |= {(path, name) for name in remembered(path, tree)}
    assert sorted(memories - REGISTRIES) == []


def test_the_check_for_hidden_state_sees_it() -> None:
    code = """
from functools import cache
_SEEN = {}
LIST: list[int] = []
def f(x): _SEEN[id(x)] = x
def g(x): LIST.append(x)
def h(x):
    global COUNT
    COUNT = x
@cache
def k(x: Array): return x
@cache
def fine(name: str): return name
def also_fine(LIST): LIST.append(1)
"""
    assert set(remembered("a.py", ast.parse(code))) == {"_SEEN", "LIST", "COUNT", "k is cached"}


# -- names ------------------------------------------------------------------------------------------


def test_names_say_something() -> None:
    for path, tree in sources().items():
        defined = {node.name for node in nodes(tree, ast.FunctionDef, ast.ClassDef)}
        assert {name for name in defined if name.strip("_") in SAY_NOTHING} == set(), path


def test_what_decides_a_draw_is_called_random_state() -> None:
    for path, tree in sources().items():
        if path.startswith("cli/") or path.split("/")[-1].startswith("_"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                arguments = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                assert "seed" not in arguments, (path, node.name)
