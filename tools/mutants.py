"""Sample mutants of the source and report which share of them the tests kill.

python tools/mutants.py --count 300 --seed 0 [--part metrics]

A mutant is one small change of one file: another comparison, operator, constant or boundary. It is killed
if the tests of its part (``tests/<part>``) fail with it. The file is restored in every case. A mutant whose
line no test runs survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Part of the source -> the tests that hold it.
PARTS = {
    "objective": ["tests/objective"],
    "maps": ["tests/maps", "tests/calibrators"],
    "metrics": ["tests/metrics"],
    "certificates": ["tests/certificates"],
    "calibrators/pool": ["tests/calibrators"],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.USub: ast.UAdd,
}  # fmt: skip
LIMIT = 600  # seconds that the tests of one mutant may take; longer counts as killed


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that can be changed: outside of annotations, assertions about types and messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        aside = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        aside += [node] if isinstance(node, ast.Raise | ast.JoinedStr) else []
        aside += [node.test] if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else []
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


def mutants(part: str, rng: random.Random) -> list[tuple[Path, int]]:
    """Return every (file, place) of a part, shuffled."""
    files = sorted((ROOT / "src" / "hcal" / part).rglob("*.py"))
    found = [(f, i) for f in files for i in range(len(places(ast.parse(f.read_text(encoding="utf-8")))))]
    rng.shuffle(found)
    return found


def pass_with(*tests: str) -> bool:
    """Run tests until the first failure; return whether all passed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return not subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LIMIT).returncode


def is_killed(file: Path, place: int, tests: list[str]) -> tuple[bool, str]:
    """Run the tests of a part with one mutant in place."""
    text = file.read_text(encoding="utf-8")
    tree = copy.deepcopy(ast.parse(text))
    node = places(tree)[place]
    told = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}  {change(node)}"
    try:
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
        return not pass_with(*tests, str(file)), told
    except subprocess.TimeoutExpired:
        return True, told
    finally:
        file.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    options = parser.parse_args()
    parts, killed, tried = options.part or list(PARTS), Counter[str](), Counter[str]()
    for part in parts:
        if not pass_with(*PARTS[part]):
            sys.exit(f"the tests of {part} fail without any mutant")
        for file, place in mutants(part, random.Random(options.seed))[: options.count // len(parts)]:
            dead, told = is_killed(file, place, PARTS[part])
            tried[part], killed[part] = tried[part] + 1, killed[part] + dead
            print("killed  " if dead else "SURVIVED", told, flush=True)
    for part in parts:
        print(f"{part:18} {killed[part]:3} of {tried[part]:3} killed")
    share = killed.total() / max(tried.total(), 1)
    print(f"{'all':18} {killed.total():3} of {tried.total():3} killed: {share:.1%}")


if __name__ == "__main__":
    main()
