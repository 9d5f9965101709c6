"""What every result of hcal can do: plain values, JSON, a table, a picture where one exists, and a short repr.

A result class inherits from :class:`Result`, names its layout in ``schema``, and says the rest in up to four methods:

* ``_content()`` returns what ``to_dict`` and ``to_json`` hold; by default the fields of the dataclass;
* ``to_records()`` returns the rows of ``to_frame`` and of the table in a notebook; by default one row of plain numbers;
* ``_headline()`` returns at most a few lines for ``repr``; by default the class and its plain numbers;
* ``_draw(figure)`` draws on a matplotlib figure, where the result has a picture; a notebook then shows it. A picture of
  one panel is that of :class:`OnePanel`.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hcal.extras import load_extra, pyplot
from hcal.text import JsonObject, printable, without_nan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Lines of a ``repr``, and rows and columns of a table in a notebook.
REPR_LINES, HTML_ROWS, HTML_COLUMNS = 4, 40, 12


class Result:
    """A base class for the results of hcal's functions.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, repr=False)
    ... class Gap(Result):
    ...     schema: ClassVar[str] = "hcal/gap/1"
    ...     mean: float
    ...     rows: int
    >>> gap = Gap(0.25, 100)
    >>> gap, gap.to_dict()
    (Gap: mean 0.25, rows 100, {'schema': 'hcal/gap/1', 'mean': 0.25, 'rows': 100})
    """

    #: The name and version of the layout of ``to_dict``: ``"hcal/<name>/1"``.
    schema: ClassVar[str]

    # -- for machines -----------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Return everything as plain values: numbers, text, lists and dictionaries."""
        content = {name: plain(value) for name, value in self._content().items()}
        return {"schema": self.schema, **content}

    def to_json(self, indent: int | None = 1) -> str:
        """Return everything as JSON; a number that does not exist (NaN) or is infinite becomes null."""
        return json.dumps(without_nan(self.to_dict()), indent=indent, allow_nan=False)

    def to_records(self) -> list[JsonObject]:
        """Return the rows of :meth:`to_frame`, one dictionary a row."""
        return [_numbers(self.to_dict())]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame; :meth:`to_records` gives its rows without pandas."""
        pandas = load_extra("to_frame()", "pandas", "frames")
        frame: pd.DataFrame = pandas.DataFrame(self.to_records())
        return frame

    # -- for people -------------------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join(self._headline())

    def __repr__(self) -> str:
        lines = list(self._headline())
        if len(lines) > REPR_LINES:
            lines = [*lines[: REPR_LINES - 1], "… print() shows everything"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        lines = "<br>".join(html.escape(printable(line)) for line in self._headline())
        picture = self._picture()
        return f"<p>{lines}</p>{html_table(self.to_records()) if picture is None else picture}"

    def _picture(self) -> str | None:
        """Return the picture as HTML; None where there is none, or where matplotlib is missing.

        The figure is not one of pyplot's, which a notebook would show a second time.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return None
        figure = Figure(layout="constrained")
        if not self._draw(figure):
            return None
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
        return f'<img alt="{type(self).__name__}" src="data:image/png;base64,{encoded}">'

    # -- what a class says of itself --------------------------------------------------------------

    def _content(self) -> JsonObject:
        names = getattr(self, "__dataclass_fields__", vars(self))
        return {name: getattr(self, name) for name in names if name != "schema"}

    def _headline(self) -> list[str]:
        numbers = [f"{name} {short(value)}" for name, value in _numbers(self.to_dict()).items()]
        return [f"{type(self).__name__}: {', '.join(numbers[:HTML_COLUMNS])}"]

    def _draw(self, figure: Figure) -> bool:
        """Draw on a matplotlib figure and return True; False where the result has no picture."""
        return False


class OnePanel:
    """Stands before :class:`Result` in a class whose picture is one panel, drawn by ``_draw_on`` and of ``_size``."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        matplotlib Axes
        """
        if ax is None:
            ax = pyplot().subplots(figsize=self._size, layout="constrained")[1]
        self._draw_on(ax)
        return ax

    @property
    def _size(self) -> tuple[float, float]:
        """The width and the height of the picture in inches."""
        return 6.0, 3.8

    def _draw(self, figure: Figure) -> bool:
        figure.set_size_inches(*self._size)
        self._draw_on(figure.add_subplot())
        return True

    def _draw_on(self, ax: Axes) -> None:
        raise NotImplementedError


def plain(value: object) -> object:
    """Return a value as numbers, text, lists and dictionaries; NaN stays NaN.

    >>> plain({1: np.array([0.5, 1.0]), "rows": (np.int64(3), None)})
    {'1': [0.5, 1.0], 'rows': [3, None]}
    """
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, str | int | float | None) else str(value)


def _numbers(content: Mapping[str, object]) -> dict[str, str | int | float]:
    """Return the entries that are numbers or text, without the schema."""
    simple = str | int | float
    return {
        name: value
        for name, value in content.items()
        if isinstance(value, simple) and name != "schema"
    }


def short(value: object) -> str:
    """Return a value as a table in a notebook writes it; nothing for None, lists and dictionaries.

    >>> short(0.123456), short(3), short(None), short([1, 2])
    ('0.1235', '3', '', '')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(value) if isinstance(value, str | int) else ""


def html_table(records: Iterable[Mapping[str, object]]) -> str:
    """Return records as a small HTML table: plain entries alone, and the first rows of many.

    >>> html_table([{"metric": "nll", "value": 0.25}])[:46]
    '<table><thead><tr><th>metric</th><th>value</th'
    """
    rows = list(records)
    heads = list(dict.fromkeys(name for row in rows for name in row))
    heads = [name for name in heads if any(short(row.get(name)) for row in rows)][:HTML_COLUMNS]
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(_html_row(row, heads) for row in rows[:HTML_ROWS])
    rest = len(rows) - HTML_ROWS
    remaining = f"<p>… and {rest:,} more rows: to_frame() has them</p>" if rest > 0 else ""
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>{remaining}"


def _html_row(row: Mapping[str, object], heads: Iterable[str]) -> str:
    cells = [f"<td>{html.escape(short(row.get(name)))}</td>" for name in heads]
    return f"<tr>{''.join(cells)}</tr>"


def rich_text(renderable: object, width: int) -> str:
    """Return what rich renders, as plain text of at most the given width.

    The console writes to memory and ignores notebooks, where rich would show its own copy.

    >>> rich_text("[bold]one[/bold]", 80)
    'one'
    """
    from rich.console import Console

    console = Console(
        file=io.StringIO(), record=True, width=width, highlight=False, force_jupyter=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())
