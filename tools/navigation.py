"""Write the section of decisions in mkdocs.yml from docs/decisions: ``python tools/navigation.py``."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "  - Decisions:\n"


def section() -> str:
    """Return the lines of the navigation, one a decision, under its title."""
    lines = []
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").replace('"', "'")
        lines.append(f'      - "{title}": decisions/{path.name}\n')
    return HEAD + "".join(lines)


if __name__ == "__main__":
    page = ROOT / "mkdocs.yml"
    before = page.read_text(encoding="utf-8").split(HEAD)[0]
    page.write_text(before + section(), encoding="utf-8")
