"""Tables as text: terminal, Markdown, LaTeX, HTML."""

from __future__ import annotations

import html
import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hcal.bench.tables import ResultTable, Row
from hcal.io.atomic import atomic_path

FORMATS: Final = ("terminal", "markdown", "latex", "html")


def render_tables(tables: Sequence[ResultTable], format: str, *, width: int | None = None) -> str:
    """Return tables as text.

    In the terminal a table that is wider than ``width`` is cut into parts that fit.

    >>> print(render_tables([ResultTable("T", "task", ["ts"], [Row("a", [0.5], ["best"])])], "markdown"))
    ### T
    <BLANKLINE>
    | task | ts |
    |---|---:|
    | a | **0.5000** |
    <BLANKLINE>
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "terminal":
        size = width or shutil.get_terminal_size((120, 40)).columns
        return "\n".join(_terminal(t, size) for t in tables)
    if format == "html":
        return _html_page(tables)
    return "\n".join({"markdown": _markdown, "latex": _latex}[format](t) for t in tables)


def write_text(path: Path, text: str) -> None:
    """Write a page in UTF-8, whatever the locale, whole or not at all.

    >>> import tempfile
    >>> page = Path(tempfile.mkdtemp()) / "a.md"
    >>> write_text(page, "†")
    >>> page.read_bytes()
    b'\\xe2\\x80\\xa0'
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {path.parent}")
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def cell_text(row: Row, i: int) -> str:
    """Return one value as text, without marks.

    >>> cell_text(Row("a", [0.25, None, -0.001], digits=2), 1), cell_text(Row("a", [-0.001], digits=2), 0)
    ('–', '0.00')
    """
    value = row.values[i]
    if value is None:
        return "–"
    text = value if isinstance(value, str) else f"{value:.{row.digits}f}"
    if text.startswith("-") and not text.strip("-0."):  # a number that shows only zeros
        text = text[1:]
    return text + ("†" if row.flags and row.flags[i] and row.kind == "task" else "")


def _mark(row: Row, i: int) -> str:
    return row.marks[i] if row.marks else ""


# -- terminal -----------------------------------------------------------------------------------------


def _terminal(table: ResultTable, width: int) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=False, no_color=True, highlight=False)
    label = max([len(r.label) for r in table.rows] + [len(table.corner)])
    sizes = [
        max([len(c)] + [len(cell_text(r, i)) + 1 for r in table.rows]) + 2
        for i, c in enumerate(table.columns)
    ]
    first = True
    for part in _parts(sizes, width - label - 4):
        console.print(_terminal_part(table, part, title=table.title if first else ""))
        first = False
    for note in table.notes:
        console.print(note, markup=False)
    return buffer.getvalue()


def _parts(sizes: list[int], room: int) -> list[list[int]]:
    """Cut columns into runs that fit the room; at least one column each."""
    parts: list[list[int]] = [[]]
    used = 0
    for i, size in enumerate(sizes):
        if parts[-1] and used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(i)
        used += size
    return parts


def _terminal_part(table: ResultTable, columns: list[int], title: str) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    head = Text(title) if title else None
    out = RichTable(title=head, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.add_column(Text(table.corner), no_wrap=True)
    for i in columns:
        out.add_column(Text(table.columns[i]), justify="right", no_wrap=True)
    suffix = {"best": "¹", "second": "²", "": " "}
    for row in table.rows:
        out.add_row(Text(row.label), *(Text(cell_text(row, i) + suffix[_mark(row, i)]) for i in columns))
    return out


# -- Markdown, LaTeX, HTML ------------------------------------------------------------------------------


# An underscore inside a word is one in Markdown, so the names of metrics stay readable.
_MD: Final = str.maketrans(
    {"\\": r"\\", "|": r"\|", "*": r"\*", "`": r"\`", "[": r"\[", "<": "&lt;", "\n": " ", "\r": " "}
)


def _markdown(table: ResultTable) -> str:
    wrap = {"best": ("**", "**"), "second": ("_", "_"), "": ("", "")}
    head = [c.translate(_MD) for c in [table.corner, *table.columns]]
    lines = [f"### {table.title.translate(_MD)}", "", "| " + " | ".join(head) + " |"]
    lines.append("|---|" + "---:|" * len(table.columns))
    for row in table.rows:
        cells = [
            wrap[_mark(row, i)][0] + cell_text(row, i).translate(_MD) + wrap[_mark(row, i)][1]
            for i in range(len(row.values))
        ]
        label = ("↳ " if row.kind == "beside" else "") + row.label.strip().translate(_MD)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    notes = [n.replace("¹ best, ² second", "**best**, _second_") for n in table.notes]
    return "\n".join([*lines, "", *[f"{n}.  " for n in notes], *([""] if notes else [])])


_TEX: Final = str.maketrans(
    {c: rf"\{c}" for c in "{}$_%&#"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"\n": " ", "\r": " ", "^": r"\^{}", "†": r"$^\dagger$", "–": "--", "·": r"$\cdot$"}
)


def _latex(table: ResultTable) -> str:
    wrap = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    head = " & ".join(c.translate(_TEX) for c in [table.corner, *table.columns])
    lines = [r"\begin{table*}[htbp]", r"\centering", rf"\caption{{{table.title.translate(_TEX)}}}"]
    lines += [r"\resizebox{\linewidth}{!}{%", rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\hline"]
    lines += [head + r" \\", r"\hline"]
    previous = "task"
    for row in table.rows:
        if row.kind == "summary" and previous != "summary":
            lines.append(r"\hline")
        previous = row.kind
        cells = [wrap[_mark(row, i)] % cell_text(row, i).translate(_TEX) for i in range(len(row.values))]
        label = (r"\quad " if row.kind == "beside" else "") + row.label.strip().translate(_TEX)
        lines.append(" & ".join([label, *cells]) + r" \\")
    notes = [
        n.replace("¹ best, ² second", "bold best, underlined second").translate(_TEX) for n in table.notes
    ]
    lines += [r"\hline", r"\end{tabular}}", *[rf"\par\footnotesize {n}." for n in notes], r"\end{table*}", ""]
    return "\n".join(lines)


_CSS: Final = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1a1a1a }
div { overflow-x: auto }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding: .4rem 0 }
th, td { padding: .15rem .55rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
thead th { border-bottom: 1px solid #888 }
tr.beside td { color: #666; font-size: 12px }
tr.beside td:first-child { padding-left: 1.5rem }
tr.summary td { border-top: 1px solid #ccc; font-weight: 600 }
.best { color: #a33f00; font-weight: 700 }
.second { color: #00578a; text-decoration: underline }
p { color: #555; margin: .1rem 0; font-size: 12px }
"""


def _html_page(tables: Sequence[ResultTable]) -> str:
    body = "\n".join(_html(t) for t in tables)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hcal bench</title>'
        f"<style>{_CSS}</style><body>\n{body}\n</body></html>\n"
    )


def _html(table: ResultTable) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in [table.corner, *table.columns])
    lines = [
        f"<div><table><caption>{html.escape(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>"
    ]
    for row in table.rows:
        cells = []
        for i in range(len(row.values)):
            mark = f' class="{_mark(row, i)}"' if _mark(row, i) else ""
            cells.append(f"<td{mark}>{html.escape(cell_text(row, i))}</td>")
        label = html.escape(row.label.strip())
        lines.append(f'<tr class="{row.kind}"><td>{label}</td>{"".join(cells)}</tr>')
    notes = [n.replace("¹ best, ² second", "orange best, underlined second") for n in table.notes]
    lines.append("</tbody></table></div>" + "".join(f"<p>{html.escape(n)}.</p>" for n in notes))
    return "\n".join(lines)
