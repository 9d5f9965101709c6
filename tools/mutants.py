"""Sample mutants of the source and report which share of them the tests kill.

pip install coverage; python tools/mutants.py --count 300 --seed 0 [--part metrics] [--workers 2]

A mutant is one small change of one file: another comparison, operator, constant or boundary. It is killed if a test
fails that runs its line; for a line of compiled code, one that runs its file; for a line that runs at import, any of
its part. The tests run in a copy of the project, so no file of it is changed. Triton's kernels need a GPU and
are left out.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
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
#: The tests of a mutant may take so many times what they took without; a mutant that loops for ever is killed.
LIMIT_FACTOR = 5
#: What the tests import and a run of few tests would spend most of its time on.
SLOW_IMPORTS = ("numba", "pandas", "pyarrow", "scipy.stats", "sklearn.linear_model", "torch")
FORK = get_context("fork")
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that can be changed: outside of annotations, assertions about types and messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        aside = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        aside += [node] if isinstance(node, ast.Raise | ast.JoinedStr) else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            aside.append(node)
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
        node.value = other_constant(node.value)
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return f"{before}  ->  {ast.unparse(node).splitlines()[0]}"


def other_constant(value: Any) -> Any:
    """Return another number: one more, or twice as much of a float that one more would be rounded to."""
    if isinstance(value, bool):
        return not value
    return value + 1 if value + 1 != value else 2 * value


class Mutant(NamedTuple):
    """The change of one of the ``places`` of a file, which is named relative to the project."""

    file: Path
    place: int


def sample(tree: Path, part: str, count: int, seed: int) -> list[Mutant]:
    """Return some of all mutants of a part."""
    mutants = []
    for file in sorted((tree / "src" / "hcal" / part).glob("*.py")):
        if not file.name.endswith("_triton.py"):
            n_places = len(places(ast.parse(file.read_text(encoding="utf-8"))))
            mutants += [Mutant(file.relative_to(tree), place) for place in range(n_places)]
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


@dataclass(frozen=True)
class Measured:
    """What the tests of a part did without any mutant."""

    seconds: dict[str, float]  # of each test function
    tests_of_line: dict[tuple[str, int], set[str]]  # by file and line; "" is the import
    limit: float  # seconds that the tests of a mutant may take; longer counts as killed

    def selected(self, target: Path, lines: range) -> list[str]:
        """Return the tests that run the lines, the quick ones first, and the doctests of the file.

        Lines in compiled code are known to nobody: all tests that run a function of the file. All tests of the part
        where a line runs at import, and for no lines, which do.
        """
        covering: set[str] = set()
        if lines:
            tests_of_file = {
                line: tests
                for (file, line), tests in self.tests_of_line.items()
                if file == str(target)
            }
            covering = covering.union(*(tests_of_file.get(line, set()) for line in lines))
            covering = covering or covering.union(*tests_of_file.values()) - {""}
        if "" in covering:
            covering = set()
        by_time = sorted(covering or self.seconds, key=lambda test: self.seconds[test])
        return [str(target), *by_time]


class LinesOfTests:
    """A plugin of pytest that notes which lines each test function runs, and how long it takes."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._coverage.switch_context(function_of(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[function_of(report.nodeid)] += report.duration


def function_of(test: str) -> str:
    """Return the name of a test without its parameters."""
    return test.partition("[")[0]


def measure(tree: Path, part: str) -> Measured:
    """Run the tests of a part, which must pass, and note which lines each of them runs; in a forked process."""
    coverage = Coverage(data_file=None, source=[str(tree / "src" / "hcal" / part)])
    plugin = LinesOfTests(coverage)
    output = tree / "output.txt"
    start = time.perf_counter()
    with coverage.collect():
        status = run_pytest(tree, PARTS[part], output, plugins=[plugin])
    limit = LIMIT_FACTOR * (time.perf_counter() - start)
    if status:
        raise SystemExit(f"the tests of {part} fail without any mutant:\n{output.read_text()}")

    content = coverage.get_data()
    tests_of_line = {}
    for file in content.measured_files():
        relative = str(Path(file).relative_to(tree))
        for line, tests in content.contexts_by_lineno(file).items():
            tests_of_line[relative, line] = set(tests)
    return Measured(dict(plugin.seconds), tests_of_line, limit)


def run_pytest(tree: Path, tests: list[str], output: Path, plugins: Sequence[object] = ()) -> int:
    """Run pytest in this process, which was forked for it: what is slow to import is there already."""
    os.chdir(tree)
    paths = [str(tree / name) for name in ("src", "tests", ".")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with output.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    return pytest.main([*OPTIONS, *tests], plugins=plugins)


def lines_of_statement(tree: ast.Module, node: ast.AST) -> range:
    """Return the lines of the smallest statement around a node; of a loop or a branch those of its head.

    None if it is not in the body of a function: what runs at import counts for every test, not for the one that
    happened to import the file.
    """
    around = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                around += [one for one in ast.walk(statement) if isinstance(one, ast.stmt)]
    around = [one for one in around if any(inner is node for inner in ast.walk(one))]
    if not around:
        return range(0)
    smallest = max(around, key=lambda one: one.lineno)
    last = smallest.end_lineno or smallest.lineno
    body = getattr(smallest, "body", None)
    return range(smallest.lineno, body[0].lineno if body else last + 1)


def tried(tree: Path, mutant: Mutant, measured: Measured) -> bool:
    """Run the tests of one mutant in a copy of the project, print the verdict, return whether it is killed."""
    target = tree / mutant.file
    original = target.read_text(encoding="utf-8")
    written = target.stat().st_mtime_ns
    parsed = ast.parse(original)
    node = places(parsed)[mutant.place]
    lines = lines_of_statement(parsed, node)
    changed = change(node)
    text = ast.unparse(ast.fix_missing_locations(parsed)) + "\n"
    target.write_text(text, encoding="utf-8")
    try:
        failure = first_failure(tree, measured.selected(mutant.file, lines), measured.limit)
    finally:
        target.write_text(original, encoding="utf-8")
        os.utime(target, ns=(written, written))  # so what numba compiled of it stays valid
    title = "killed  " if failure else "SURVIVED"
    place = f"{mutant.file}:{getattr(node, 'lineno', lines.start)}"
    print(title, place, changed, failure, sep="  ", flush=True)
    return bool(failure)


def first_failure(tree: Path, tests: list[str], limit: float) -> str:
    """Run tests in a copy of the project until one fails; return its line of pytest's report, "" if all pass."""
    output = tree / "output.txt"
    process = FORK.Process(target=lambda: sys.exit(run_pytest(tree, tests, output)))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return "too slow"
    if process.exitcode == 0:
        return ""
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("FAILED", "ERROR")):
            return line[:120]
    return f"exit status {process.exitcode}"


def tried_in_copies(trees: list[Path], mutants: list[Mutant], measured: Measured) -> list[bool]:
    """Return which mutants are killed; each copy of the project tries its share of them."""
    killed = []
    with ProcessPoolExecutor(len(trees), mp_context=FORK) as pool:
        shares = [
            pool.submit(tried_in_copy, tree, mutants[i :: len(trees)], measured)
            for i, tree in enumerate(trees)
        ]
        for share in shares:
            killed += share.result()
    return killed


def tried_in_copy(tree: Path, mutants: list[Mutant], measured: Measured) -> list[bool]:
    return [tried(tree, mutant, measured) for mutant in mutants]


def counted(title: str, killed: list[bool]) -> str:
    """Return a line with the share of the mutants that are killed, and its standard error."""
    share = sum(killed) / max(len(killed), 1)
    error = math.sqrt(share * (1 - share) / max(len(killed), 1))
    return f"{title:18} {sum(killed):3} of {len(killed):3} killed: {share:.1%} ± {error:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300, help="mutants of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    parts = options.part or list(PARTS)
    for name in SLOW_IMPORTS:
        import_module(name)
    killed: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trees = [copied(Path(folder).resolve() / str(i)) for i in range(options.workers)]
        for part in parts:
            with ProcessPoolExecutor(1, mp_context=FORK) as process:
                measured = process.submit(measure, trees[0], part).result()
            mutants = sample(trees[0], part, options.count // len(parts), options.seed)
            killed[part] = tried_in_copies(trees, mutants, measured)
            print(counted(part, killed[part]), flush=True)
    print()
    for part in parts:
        print(counted(part, killed[part]))
    print(counted("all", [one for part in parts for one in killed[part]]))


if __name__ == "__main__":
    main()
