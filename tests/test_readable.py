"""The code reads like a page: names say what a value is, lines are short, and a name means one thing.

Ruff checks the rest: functions of at most ten branches and six parameters, and usual names.
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import ROOT

PACKAGE = ROOT / "src" / "hcal"
FILES = sorted(PACKAGE.rglob("*.py"))
#: Words that say nothing about what a value is, and how many of them 1,000 lines of code may have.
VAGUE = frozenset({
    "found", "told", "own", "each", "asked", "known", "given", "held", "many", "some", "made",
    "whole", "there", "here", "more", "said", "shown", "wanted", "reach", "every", "thing",
    "things", "stuff",
})  # fmt: skip
MOST_VAGUE = {"src": 5, "tests": 10, "studies": 10, "benchmarks": 10, "tools": 10, "examples": 10}
#: How often the word ``Any`` may stand in the package: a type says what a value is. Lower it, and never raise it.
MOST_ANY = 60
#: No line of code is wider; docstrings and comments may be as wide as ruff allows.
WIDTH = 100
#: Modules that offer the same operations: for arrays, tensors and recorded formulas; an engine each.
SAME_OPERATIONS = (
    {"xp.py", "xp_torch.py", "integrations/recording.py"},
    {f"h_calibration/{name}.py" for name in ("definition", "loss", "_numba", "_triton")},
    {"h_calibration/_mixture_numba.py", "h_calibration/_mixture_triton.py"},
    {
        f"{name}.py"
        for name in ("h_calibration/_mixture_numba", "h_calibration/_numba", "pool/_numba")
    },
)
#: A command, a function for Dask or Spark and one for a library of metrics are called like the function that they call.
NAMESAKES = (
    "cli/",
    "integrations/dask.py",
    "integrations/dense.py",
    "integrations/evaluate.py",
    "integrations/spark.py",
)


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(path: Path) -> dict[int, str]:
    """Return the lines that are neither blank, nor a comment, nor part of a docstring, by their numbers."""
    text = path.read_text(encoding="utf-8")
    documentation = docstring_lines(ast.parse(text))
    lines = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and number not in documentation:
            lines[number] = line
    return lines


def vague_names(path: Path) -> Counter[str]:
    """Return how often each vague word is a name of this file; attributes of other objects do not count."""
    text = path.read_text(encoding="utf-8")
    documentation = docstring_lines(ast.parse(text))
    names: Counter[str] = Counter()
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.start[0] in documentation or token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        if is_name and token.string in VAGUE and before != ".":
            names[token.string] += 1
        before = token.string
    return names


@pytest.mark.parametrize("folder", MOST_VAGUE)
def test_names_say_what_a_value_is(folder: str) -> None:
    n_lines = 0
    by_file = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        n_lines += len(code_lines(path))
        by_file[path.relative_to(ROOT).as_posix()] = vague_names(path)
    total = sum(sum(names.values()) for names in by_file.values())
    most_first = sorted(by_file.items(), key=lambda item: -sum(item[1].values()))
    assert 1000 * total <= MOST_VAGUE[folder] * n_lines, (total, most_first[:10])


def test_the_check_for_vague_names_sees_them(tmp_path: Path) -> None:
    code = '"""found"""\nfound = given.own  # held\ndef each(rows):\n    """Return some."""\n'
    path = tmp_path / "a.py"
    path.write_text(code, encoding="utf-8")
    assert vague_names(path) == Counter(found=1, given=1, each=1)
    assert list(code_lines(path)) == [2, 3]


@pytest.mark.parametrize("folder", MOST_VAGUE)
def test_no_line_of_code_is_wide(folder: str) -> None:
    wide = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for number, line in code_lines(path).items():
            if len(line) > WIDTH:
                wide.append(f"{path.relative_to(ROOT).as_posix()}:{number}")
    assert wide == []


def test_types_say_what_a_value_is() -> None:
    counts = {
        path.relative_to(PACKAGE).as_posix(): len(re.findall(r"\bAny\b", path.read_text("utf-8")))
        for path in FILES
    }
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    assert sum(counts.values()) <= MOST_ANY, most_first[:10]


# -- a name means one thing -----------------------------------------------------------------------


def defined(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public names of a module with what they are: functions, classes, aliases, constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, f"{type(node).__name__} {id(node)}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = ast.unparse(node.value)
            for target in targets:
                if isinstance(target, ast.Name) and not value.startswith(("TypeVar", "ParamSpec")):
                    yield target.id, value


def is_namesake(path: str) -> bool:
    return path.startswith(NAMESAKES)


def modules_that_disagree() -> dict[str, list[str]]:
    """Return the public names, and the private classes, that mean different things in several modules."""
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for path in FILES:
        place = path.relative_to(PACKAGE).as_posix()
        for name, value in defined(ast.parse(path.read_text(encoding="utf-8"))):
            is_private_value = name.startswith("_") and not name.strip("_")[:1].isupper()
            if not is_private_value and not name.strip("_").isupper():
                meanings[name][place] = value
    wrong = {}
    for name, places in meanings.items():
        elsewhere = {place for place in places if not is_namesake(place)}
        same = len({places[place] for place in elsewhere}) <= 1
        if not same and not any(elsewhere <= modules for modules in SAME_OPERATIONS):
            wrong[name] = sorted(elsewhere)
    return wrong


def test_a_name_means_one_thing() -> None:
    assert modules_that_disagree() == {}
