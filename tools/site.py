"""Check the built site: every link leads to a page and an anchor that exist, and no page loads anything from outside.

python tools/site.py site
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Tags and attributes that make a browser fetch a file as soon as it opens the page.
LOADS = {
    ("audio", "src"), ("iframe", "src"), ("img", "src"), ("img", "srcset"), ("script", "src"),
    ("source", "src"), ("source", "srcset"), ("video", "src"),
}  # fmt: skip
#: Relations of a <link> that fetch nothing.
POINTS = {"canonical", "index", "search", "next", "prev", "author", "copyright"}


@dataclass
class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one tag contributes."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") not in POINTS:
            self.loads.append(values["href"])
        self.loads.extend(value for name, value in values.items() if (tag, name) in LOADS)


def read(path: Path) -> Page:
    """Return the parsed page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def outside(address: str) -> bool:
    """Say whether an address leaves the site."""
    return bool(re.match(r"([a-z][a-z0-9+.-]*:|//)", address)) and not address.startswith("data:")


def broken_link(site: Path, name: Path, address: str, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link inside the site, or None."""
    if address.startswith("data:"):
        return None
    parts = urlsplit(address)
    target = name
    if parts.path:
        target = (name.parent / unquote(parts.path)).resolve()
    if not target.exists():
        return f"{name.relative_to(site)}: {address}: no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{name.relative_to(site)}: {address}: no such anchor"
    return None


def problems(site: Path) -> list[str]:
    """Return one line for everything that is wrong with the site."""
    site = site.resolve()
    static = site / "_static"
    names = [path for path in sorted(site.rglob("*.html")) if static not in path.parents]
    pages = {path: read(path) for path in names}
    lines = []
    for name, page in pages.items():
        lines += [
            f"{name.relative_to(site)}: loads {address}"
            for address in page.loads
            if outside(address)
        ]
        for address in [*page.links, *page.loads]:
            line = None if outside(address) else broken_link(site, name, address, pages)
            if line:
                lines.append(line)
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        fetched = re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", text)
        lines += [f"{sheet.relative_to(site)}: loads {address}" for address in fetched]
    return sorted(set(lines))


if __name__ == "__main__":
    built = Path(sys.argv[1])
    wrong = problems(built)
    print("\n".join(wrong))
    if wrong:
        sys.exit(f"{len(wrong)} problems in {built}")
