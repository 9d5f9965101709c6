"""Every code block of the documentation and the README runs, and every printed output is compared.

Rules of a page: its ``python`` blocks share one namespace and one empty working directory; ``bash`` blocks
run in the same directory. A ``text`` block right after a block is its output, word for word. Lines of a
``bash`` block that start with ``pip`` or ``git clone`` need a network and are not run; targets of ``make``
must exist. A comment ``<!-- not run: reason -->`` before a block exempts it. ``cal.npz`` and ``test.npz``, a
user's own files, are there from the start.

To rewrite the outputs after a change: ``HCAL_UPDATE_DOCS=1 pytest tests/test_docs.py``; then read the diff.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from helpers import synthetic, wait_for_release
from warm_process import warm_folder

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(
    r"(?P<exempt><!-- not run: [^\n]+ -->\s*\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^ *```\s*?$"
    r"(?P<gap>\s*)(?P<output>^ *```text\n(?P<expected>.*?)^ *```\s*?$)?",
    re.MULTILINE | re.DOTALL,
)
RUN = {"python", "bash"}
#: Languages that show something without being a program.
SHOWN = {"text", "toml", "yaml", "json", "bibtex", "cff"}


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
    found = []
    for m in FENCE.finditer(text):
        indent = len(m["indent"])
        body = "".join(
            line[indent:] if line.strip() else line for line in m["body"].splitlines(keepends=True)
        )
        line = text.count("\n", 0, m.start("body")) + 1
        span = m.span("expected") if m["output"] else (-1, -1)
        found.append(Block(m["language"], body, line, m["expected"], span, m["exempt"] is not None))
    return found


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_folder(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


def run_bash(block: Block, folder: Path, *first: Path) -> str:
    lines = []
    for line in block.body.splitlines():
        target = re.match(r"make ([a-z-]+)", line)
        if target:
            assert re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif not re.match(r"(python3? -m )?pip |git clone ", line):
            lines.append(line)
    env = dict(os.environ, NO_COLOR="1", COLUMNS="100", TERM="dumb", MPLBACKEND="Agg")
    env["PATH"] = os.pathsep.join(map(str, [*first, Path(sys.executable).parent, env["PATH"]]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"line {block.line}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def tidy(output: str) -> str:
    return "\n".join(line.rstrip() for line in output.strip("\n").splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for seed, name in enumerate(("cal", "test")):
        logits, y = synthetic(400, 4, seed=seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits, y=y)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    changes = []
    for block in blocks(text):
        assert block.language in RUN | SHOWN, (
            f"{page.name}:{block.line}: language {block.language!r} is not run"
        )
        if block.exempt or block.language not in RUN:
            continue
        printed = tidy(
            run_python(block, page, namespace)
            if block.language == "python"
            else run_bash(block, tmp_path, warm)
        )
        if block.expected is None:
            continue
        if os.environ.get("HCAL_UPDATE_DOCS"):
            changes.append((block.span, printed + "\n"))
        else:
            assert printed == tidy(block.expected), f"{page.name}:{block.line} prints something else"
    for (start, end), new in reversed(changes):
        text = text[:start] + new + text[end:]
    if changes:
        page.write_text(text, encoding="utf-8")


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_checker_itself_sees_blocks_outputs_and_exemptions() -> None:
    page = "a\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n<!-- not run: why -->\n```bash\nfalse\n```\n"
    first, second = blocks(page)
    assert (first.language, first.expected, first.exempt) == ("python", "1\n", False)
    assert (second.language, second.exempt) == ("bash", True)
    assert run_python(first, Path("p"), {}) == "1\n"
    with pytest.raises(AssertionError, match="exit 1"):
        run_bash(second, Path("."))


def test_method_cards_say_what_the_code_does() -> None:
    import hcal
    from hcal.calibrators import get_calibrator

    page = (ROOT / "docs" / "method-cards.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [^|]+ \| `(\w+)` \| (.+?) \|$", page, re.MULTILINE))
    for name in rows:
        method = get_calibrator(name)
        facts = (method().preserves or "nothing", method.weighted, hasattr(method, "_graph"))
        expected = f"{facts[0]} | {'yes' if facts[1] else 'no'} | {'yes' if facts[2] else 'no'}"
        assert rows[name] == expected, name
        assert f"## `{name}`: {method.title}" in page
    wait_for_release(set(hcal.list_calibrators()) - set(rows), "a card in docs/method-cards.md")


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = (p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.name != "README.md")
    missing = [page for page in pages if f": {page}\n" not in listed]
    assert missing == [], "decisions: run python tools/navigation.py; other pages: mkdocs.yml"


def test_the_map_of_the_code_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "hcal"
    walks = text[text.index("## A walk") :]
    for path in set(re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", walks)):
        assert (package / path).is_file(), path
    for room, files in re.findall(r"^\| `([a-z]+/)` \|[^|]*\| (.*) \|$", text, re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.py)`", files):
            assert (package / room / name).is_file(), room + name
    rooms = {p.name for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms == {room[:-1] for room in re.findall(r"^\| `([a-z]+/)`", text, re.MULTILINE)}
