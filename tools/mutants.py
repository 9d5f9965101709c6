"""Sample mutants of the source and report which share of them the tests kill.

pip install coverage; python tools/mutants.py --count 300 --seed 0 [--part metrics] [--workers 2]

A mutant is one small change of one file: another comparison, operator, constant or boundary. It is killed if a test
fails that runs its line (all tests of its part, where the line is run at import or is compiled). The tests run in a
copy of the project, so no file of it is changed. Triton's kernels need a GPU and are left out.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[1]
#: Part of the source -> the tests that hold it.
PARTS = {
    "h_calibration": ["tests/h_calibration", "tests/methods/test_contract.py"],
    "maps": ["tests/maps", "tests/methods/test_contract.py"],
    "metrics": ["tests/metrics"],
    "certificates": ["tests/certificates"],
    "pool": ["tests/pool", "tests/methods/test_contract.py"],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.USub: ast.UAdd}
for one, other in (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.And, ast.Or),
    (ast.BitAnd, ast.BitOr),
):
    SWAPS |= {one: other, other: one}
LIMIT = 600  # seconds that the tests of one mutant may take; longer counts as killed


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that can be changed: outside of annotations, assertions about types and messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        aside = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        aside += [node] if isinstance(node, ast.Raise | ast.JoinedStr) else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            aside.append(node.test)
        skipped |= {id(inner) for one in aside if one is not None for inner in ast.walk(one)}
    nodes = (node for node in ast.walk(tree) if id(node) not in skipped)
    return [node for node in nodes if variants(node)]


def variants(node: ast.AST) -> list[str]:
    """Return the kinds of change that a node admits."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp):
        return ["operator"] if type(node.op) in SWAPS else []
    if isinstance(node, ast.Compare):
        return ["comparison"] if type(node.ops[0]) in SWAPS else []
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        return ["constant"]
    return ["branch"] if isinstance(node, ast.If | ast.IfExp) else []


def change(node: ast.AST) -> str:
    """Change one node in place and return what was done."""
    before = ast.unparse(node).splitlines()[0]
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return f"{before}  ->  {ast.unparse(node).splitlines()[0]}"


def sample(part: str, count: int, seed: int) -> list[tuple[Path, int]]:
    """Return some of all (file, place) of a part."""
    modules = (ROOT / "src" / "hcal" / part).glob("*.py")
    files = sorted(file for file in modules if file.name != "_triton.py")
    mutants = []
    for file in files:
        n_places = len(places(ast.parse(file.read_text(encoding="utf-8"))))
        mutants += [(file, place) for place in range(n_places)]
    random.Random(seed).shuffle(mutants)
    return mutants[:count]


def copied(place: Path) -> Path:
    """Return a copy of the tracked files of the project, the shared data beside it."""
    command = ["git", "ls-files"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = done.stdout
    for name in listed.splitlines():
        (place / "hcal" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / "hcal" / name)
    if (ROOT.parent / "shared").exists():
        (place / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return place / "hcal"


def run(tree: Path, *words: str) -> bool:
    """Run pytest in a copy until the first failure; return whether all passed."""
    paths = os.pathsep.join(str(tree / name) for name in ("src", "tests", "."))
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, *words[:-1], *pytest]
    done = subprocess.run(
        [*command, *words[-1].split()],
        cwd=tree,
        capture_output=True,
        timeout=LIMIT,
        env=os.environ | {"PYTHONPATH": paths},
    )
    return done.returncode == 0


def tests_of_lines(tree: Path, part: str) -> dict[str, dict[int, list[str]]]:
    """Return which tests run each line, by file; the tests of the part must pass."""
    (tree / "coverage.ini").write_text("[run]\ndynamic_context = test_function\n", encoding="utf-8")
    measured = [
        "-m",
        "coverage",
        "run",
        "--rcfile=coverage.ini",
        f"--source=src/hcal/{part}",
        " ".join(PARTS[part]),
    ]
    if not run(tree, *measured):
        sys.exit(f"the tests of {part} fail without any mutant")
    data = Coverage(data_file=str(tree / ".coverage"))
    data.load()
    content = data.get_data()
    return {file: content.contexts_by_lineno(file) for file in content.measured_files()}


def selected(contexts: list[str], part: str, tree: Path) -> str:
    """Return the tests that run a line, as pytest names them; all tests of the part where none is known."""
    files = {}
    for name in PARTS[part]:
        for file in [tree / name, *(tree / name).rglob("test_*.py")]:
            files[file.stem] = file
    tests = []
    for context in contexts:
        module, _, test = context.rpartition(".")
        if module.rpartition(".")[2] not in files:
            return " ".join(PARTS[part])
        tests.append(f"{files[module.rpartition('.')[2]].relative_to(tree)}::{test}")
    return " ".join(sorted(tests)) or " ".join(PARTS[part])


def is_killed(
    tree: Path, part: str, file: Path, place: int, lines: dict[str, dict[int, list[str]]]
) -> tuple[bool, str]:
    """Run the tests of one mutant."""
    target = tree / file.relative_to(ROOT)
    text = target.read_text(encoding="utf-8")
    parsed = ast.parse(text)
    node = places(parsed)[place]
    number = getattr(node, "lineno", 0)
    description = f"{file.relative_to(ROOT)}:{number}  {change(node)}"
    functions = [n for n in ast.walk(parsed) if isinstance(n, ast.FunctionDef)]
    spans = [(function.body[0].lineno, function.end_lineno or 0) for function in functions]
    inside = any(first <= number <= last for first, last in spans)
    # What runs at import counts for every test, not for the one that happened to import the file.
    lines_of_file = lines.get(str(target).replace(str(tree), "", 1), {})
    contexts = lines_of_file.get(number, []) if inside else []
    try:
        target.write_text(ast.unparse(ast.fix_missing_locations(parsed)) + "\n", encoding="utf-8")
        passed = run(tree, f"{selected(contexts, part, tree)} {target.relative_to(tree)}")
        return not passed, description
    except subprocess.TimeoutExpired:
        return True, description
    finally:
        target.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300, help="mutants of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    parts = options.part or list(PARTS)
    killed = Counter[str]()
    tried = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        trees = [copied(Path(folder) / str(i)) for i in range(options.workers)]
        for part in parts:
            lines = {}
            for file, contexts in tests_of_lines(trees[0], part).items():
                lines[file.replace(str(trees[0]), "", 1)] = contexts
            chosen = sample(part, options.count // len(parts), options.seed)

            def work(
                tree: Path, part: str = part, lines: Any = lines, chosen: Any = chosen
            ) -> list[tuple[bool, str]]:
                mine = chosen[trees.index(tree) :: len(trees)]
                tests = []
                for file, place in mine:
                    tests.append(is_killed(tree, part, file, place, lines))
                    print("killed  " if tests[-1][0] else "SURVIVED", tests[-1][1], flush=True)
                return tests

            with ThreadPoolExecutor(len(trees)) as pool:
                results = [one for tests in pool.map(work, trees) for one in tests]
            tried[part], killed[part] = len(results), sum(dead for dead, _ in results)
    for part in parts:
        print(f"{part:18} {killed[part]:3} of {tried[part]:3} killed")
    share = killed.total() / max(tried.total(), 1)
    print(f"{'all':18} {killed.total():3} of {tried.total():3} killed: {share:.1%}")


if __name__ == "__main__":
    main()
