"""Every code block of the documentation and the README runs, and every printed output is compared.

Rules of a page: its ``python`` blocks share one namespace and one empty working directory; ``bash`` blocks
run in the same directory. A ``text`` block right after a block is its output, word for word; numbers in it
may differ in the last digit. Lines of a ``bash`` block that start with ``pip`` or ``git`` need a network
and are not run; targets of ``make`` must exist. A comment ``<!-- not run: reason -->`` before a block
exempts it. ``cal.npz`` and ``test.npz``, a user's own files, are there from the start.

To rewrite the outputs after a change: ``HCAL_UPDATE_DOCS=1 pytest tests/test_docs.py``; then read the diff.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from helpers import ROOT, synthetic

MADE = {"api", "gallery"}  # folders that `make docs` writes
DOCS = ROOT / "docs"
WRITTEN = [page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in MADE]
PAGES = sorted([ROOT / "README.md", *WRITTEN])
#: What sphinx-gallery writes: a page for each program.
GALLERY_PAGES = ROOT / "docs" / "gallery"
DECISIONS = ROOT / "docs" / "decisions"
FENCE = re.compile(
    r"(?P<exempt><!-- not run: [^\n]+ -->\s*\n)?"
    r"^(?P<indent> *)```(?P<language>[\w{}-]+)[^\n]*\n(?P<body>.*?)^ *```\s*?$"
    r"(?P<gap>\s*)(?P<output>^ *```text\n(?P<expected>.*?)^ *```\s*?$)?",
    re.MULTILINE | re.DOTALL,
)
RUN = {"python", "bash"}
#: Languages that show something without being a program.
SHOWN = {
    *("text", "{toctree}", "{eval-rst}", "{figure}", "r", "julia", "javascript"),
    *("toml", "yaml", "json", "bibtex", "cff", "latex"),
}
#: Tables of constants: they have a module, and no page.
NOT_IN_THE_REFERENCE = {"LEVELS", "METRICS"}
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@dataclass
class Block:
    """One program of a page and what it prints."""

    language: str
    body: str
    line: int
    expected: str | None
    span: tuple[int, int]
    exempt: bool


def blocks(text: str) -> list[Block]:
    code_blocks = []
    for m in FENCE.finditer(text):
        indent = len(m["indent"])
        lines = m["body"].splitlines(keepends=True)
        body = "".join(
            text_line[indent:] if text_line.strip() else text_line for text_line in lines
        )
        line = text.count("\n", 0, m.start("body")) + 1
        span = m.span("expected") if m["output"] else (-1, -1)
        exempt = m["exempt"] is not None
        code_blocks.append(Block(m["language"], body, line, m["expected"], span, exempt))
    return code_blocks


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> str:
    out = io.StringIO()
    lines_above = "\n" * (block.line - 1)
    code = compile(lines_above + block.body, str(page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)  # a page may show a fit that warns
        exec(code, namespace)
    return out.getvalue()


def needs_a_shell(line: str) -> bool:
    """Say whether a line has a pipe, a redirection, a variable or a pattern outside quotes."""
    unquoted = re.sub(r"'[^']*'", "", line)
    return re.search(r"[|<>&$;]|(?<!['\w])\*", unquoted) is not None


def run_bash(block: Block, folder: Path) -> str:
    """Run the lines: ``hcal ...`` in this process, anything with more of a shell in bash."""
    from hcal.cli.app import app

    printed = ""
    env = {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb", "MPLBACKEND": "Agg"}
    for line in block.body.replace("\\\n", " ").splitlines():
        target = re.match(r"make ([a-z-]+)", line)
        if target:
            assert re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif re.match(r"(python3? -m )?pip |git |\s*(#|$)", line):
            continue
        elif line.startswith("hcal ") and not needs_a_shell(line):
            words = shlex.split(line, comments=True)
            done = CliRunner().invoke(app, words[1:], env=env)
            assert done.exit_code == 0, (
                f"line {block.line}: {line}: exit {done.exit_code}\n{done.output}"
            )
            printed += done.stdout
        else:
            programs = str(Path(sys.executable).parent)
            path = os.pathsep.join([programs, os.environ["PATH"]])
            shell = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                cwd=folder,
                env=os.environ | env | {"PATH": path},
                capture_output=True,
                text=True,
            )
            assert shell.returncode == 0, (
                f"line {block.line}: {line}: exit {shell.returncode}\n{shell.stderr}"
            )
            printed += shell.stdout
    return printed


def tidy(output: str) -> str:
    return "\n".join(line.rstrip() for line in output.strip("\n").splitlines())


def is_same(printed: str, expected: str) -> bool:
    """Compare word for word; a decimal number may differ by one in the last digit that the page shows."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", expected):
        return False
    for ours, page in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        digits = len(page.partition(".")[2].partition("e")[0])
        scale = 10.0 ** int(page.partition("e")[2] or 0)
        if abs(float(ours) - float(page)) > 1.01 * 10.0**-digits * scale:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("COLUMNS", "80")  # tables are as wide as the terminal
    for seed, name in enumerate(("cal", "test")):
        logits, y = synthetic(400, 4, seed=seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits, y=y)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    changes = []
    for block in blocks(text):
        assert block.exempt or block.language in RUN | SHOWN, (
            f"{page.name}:{block.line}: is not run"
        )
        if block.exempt or block.language not in RUN:
            continue
        is_python = block.language == "python"
        printed = tidy(
            run_python(block, page, namespace) if is_python else run_bash(block, tmp_path)
        )
        if block.expected is not None and os.environ.get("HCAL_UPDATE_DOCS"):
            changes.append((block.span, printed + "\n"))
        elif block.expected is not None and not is_same(printed, tidy(block.expected)):
            pytest.fail(f"{page.name}:{block.line} prints\n{printed}\nand says\n{block.expected}")
    for (start, end), new in reversed(changes):
        text = text[:start] + new + text[end:]
    if changes:
        page.write_text(text, encoding="utf-8")


def test_links_lead_somewhere() -> None:
    broken = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
            path = page.parent / target
            if path.parent == GALLERY_PAGES and path.stem != "index":
                path = ROOT / "examples" / "gallery" / f"{path.stem}.py"
            is_outside = re.match(r"[a-z]+:", target)
            if not is_outside and path.name != "index.rst" and not path.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def code_in_prose(page: Path) -> list[str]:
    """Return what stands between backticks outside of programs; of the calls of 0.3, only what replaces them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if page.name == "migration.md":
        text = re.sub(r"^\| .+? \| ", "", text, flags=re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def public(name: str) -> object:
    """Return what a dotted name such as ``hcal.metrics.nll`` stands for."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ImportError:
        return getattr(public(module), attribute)


def wrong_arguments(code: str) -> list[str]:
    """Return the arguments of calls of hcal that the functions do not have."""
    try:
        tree = ast.parse(code.replace("…", "..."))
    except SyntaxError:
        return []
    wrong = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if not re.fullmatch(r"hcal(\.\w+)+", name):
            continue
        parameters = inspect.signature(public(name)).parameters  # type: ignore[arg-type]
        open_ended = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
        words = [word.arg for word in call.keywords if word.arg not in (None, *parameters)]
        wrong += [f"{name}({word}=)" for word in words if not open_ended]
    return wrong


def test_names_arguments_options_and_files_in_prose_exist() -> None:
    import typer

    from hcal.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {}
    for name, command in commands.items():
        options[name] = {"--help"}
        for parameter in command.params:
            options[name] |= set(parameter.opts)
    folders = "benchmarks|docs|examples|results|src|studies|tests|tools"
    broken = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for code in code_in_prose(page):
            wrong = [f"{page.name}: {argument}" for argument in wrong_arguments(code)]
            if re.fullmatch(rf"({folders})/[\w./-]+", code) and not (ROOT / code).exists():
                wrong.append(f"{page.name}: {code}")
            command = re.match(r"hcal (\w+)", code)
            if command and command[1] in options:
                options_in_prose = set(re.findall(r"(?<!\S)--[a-z-]+", code))
                wrong += [
                    f"{page.name}: {code}: {o}" for o in options_in_prose - options[command[1]]
                ]
            broken += wrong
    assert broken == []
    assert wrong_arguments('hcal.evaluate(p, y, ci=0.95, metrics=["nll"])') == [
        "hcal.evaluate(ci=)"
    ]


def test_every_public_name_has_a_page_and_no_other() -> None:
    listed = public_names_with_a_page()
    assert len(listed) == len(set(listed))
    for name in listed:
        assert not any(part.startswith("_") for part in name.split(".")), name

    modules = {
        "h_calibration",
        "integrations",
        "language_models",
        "maps",
        "methods",
        "metrics",
        "__version__",
    }
    assert set(hcal.__all__) - modules <= set(listed)
    metrics = {f"metrics.{name}" for name in hcal.metrics.__all__}
    without_a_page = {f"metrics.{name}" for name in NOT_IN_THE_REFERENCE}
    same_at_the_top = {f"metrics.{name}" for name in hcal.__all__}
    assert metrics - without_a_page <= set(listed) | same_at_the_top


def test_every_page_of_a_public_name_has_an_example() -> None:
    names = public_names_with_a_page()
    assert [name for name in names if ">>>" not in (public(f"hcal.{name}").__doc__ or "")] == []


def public_names_with_a_page() -> list[str]:
    """Return the names in the tables of the API reference, without `hcal.`."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\.\. autosummary::\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return re.findall(r"^   ([\w.]+)$", "".join(tables), re.MULTILINE)


def test_pages_are_short_and_decisions_few() -> None:
    words = {str(page): len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert {name: count for name, count in words.items() if count > 1500} == {}
    assert sum(words.values()) <= 32_000
    texts = [p.read_text(encoding="utf-8") for p in sorted(DECISIONS.glob("[0-9]*.md"))]
    assert len(texts) <= 15
    assert all(len(text.strip().splitlines()) <= 12 for text in texts)
    expected = list(range(1, len(texts) + 1))
    assert [int(text.split()[1]) for text in texts] == expected


#: Words of earlier versions that a reader could not know.
PRIVATE = re.compile(
    r"\bjudg(e|es|ed|ing)\b|\blift(s|ed|ing)?\b|\bcrews?\b|\bwish(es)?\b|\bstanding\b|\bstory\b"
    r"|\bstand-ins?\b|\bthe opening\b|\bchang\w* (of )?sides?\b|where \w+ scores lie"
    r"|\brooms?\b|\bhouse\b|\b(a|the) watch\b",
    re.IGNORECASE,
)


def test_no_page_uses_private_words() -> None:
    uses = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            uses += [f"{page.name}:{number}: {m[0]}" for m in PRIVATE.finditer(line)]
    assert uses == []


def test_no_page_of_a_public_name_uses_private_words() -> None:
    pages = {name: public(f"hcal.{name}").__doc__ or "" for name in public_names_with_a_page()}
    assert {name: m[0] for name, text in pages.items() if (m := PRIVATE.search(text))} == {}


def test_the_page_of_methods_lists_every_method_and_what_it_keeps() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE))
    assert sorted(rows) == hcal.list_calibrators()
    for name, keeps in rows.items():
        assert keeps.startswith("order") == (hcal.make_calibrator(name).preserves == "order"), name


def test_no_message_uses_private_words() -> None:
    for path in (ROOT / "src" / "hcal").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        messages = [node for node in constants if isinstance(node.value, str)]
        expressions = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
        documented = {id(node.value) for node in expressions}
        uses = []
        for message in messages:
            if id(message) not in documented:
                uses += [match[0] for match in PRIVATE.finditer(message.value)]
        assert uses == [], path


def test_the_map_of_the_code_names_what_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "hcal"
    for path in set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", text)):
        assert (package / path).exists() or (ROOT / path).exists(), path
    folders = {path.name for path in package.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= {name[:-1] for name in re.findall(r"`([a-z_]+/)`", text)}


def test_the_page_on_migration_has_every_old_word_beside_the_new_one() -> None:
    from hcal.methods import base
    from hcal.renamed import GONE

    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    section = page.partition("## From hcal 0.3")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)
    words = renamed_arguments()
    assert ("evaluate", "ci", "confidence") in words
    for function, old, new in words:
        new_calls = [after for before, after in rows if function in before and f"{old}=" in before]
        assert new_calls, f"{function}({old}=) is not on the page"
        assert any(new in after for after in new_calls), f"{function}({old}=): {new}"
    for name in [*GONE, *base._MOVED]:
        assert any(f"{name}" in before for before, _ in rows), name


def renamed_arguments() -> set[tuple[str, str, str]]:
    """Return function or class, old and new word of every decorator ``renamed`` in the package."""
    words = set()
    for path in (ROOT / "src" / "hcal").rglob("*.py"):
        for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = getattr(scope, "body", [])
            for node in body if isinstance(body, list) else []:
                for call in getattr(node, "decorator_list", []):
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "renamed":
                        is_method = isinstance(scope, ast.ClassDef) and node.name == "__init__"
                        name = scope.name if is_method else node.name
                        for word in call.keywords:
                            new = ast.literal_eval(word.value).partition("=")
                            replacement = (new[2] or new[0]).partition("(")[0]
                            words.add((name, word.arg, replacement))
    return words


def test_the_checker_itself_sees_blocks_outputs_and_exemptions() -> None:
    page = "a\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    page += "\n<!-- not run: why -->\n```bash\nfalse\n```\n"
    first, second = blocks(page)
    assert first.language == "python"
    assert first.expected == "1\n"
    assert first.exempt is False
    assert second.language == "bash"
    assert second.exempt is True
    assert run_python(first, Path("p"), {}) == "1\n"
    with pytest.raises(AssertionError, match="exit 1"):
        run_bash(second, Path("."))
    assert is_same("ECE 0.021 of 3", "ECE 0.020 of 3")
    assert not is_same("ECE 0.022 of 3", "ECE 0.020 of 3")
    assert not is_same("ECE 0.020 of 4", "ECE 0.020 of 3")
    assert PRIVATE.search("It changes side")
    assert not PRIVATE.search("`hcal watch` says so; `Shoulder lifter`")
