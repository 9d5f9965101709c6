"""The table that :func:`hcal.compare` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hcal.evaluation.collapse import collapse_reasons
from hcal.metrics import get_metric
from hcal.extras import load_extra

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Group


@dataclass(frozen=True)
class MethodResult:
    """One row."""

    label: str  # what the user calls it, and its registry name
    name: str
    scores: Mapping[str, float] = field(default_factory=dict)  # metrics on the test rows
    fit_s: float = float("nan")  # wall-clock seconds
    predict_s: float = float("nan")
    warnings: tuple[str, ...] = ()  # what fit and predict warned of
    #: Why the predictions count as collapsed (near uniform: class-wise errors look good, the probabilities
    #: are of no use); empty if they do not.
    collapse: tuple[str, ...] = ()
    error: str = ""  # empty, or why there are no scores

    @property
    def collapsed(self) -> bool:
        """Whether there is a reason to call it collapsed."""
        return bool(self.collapse)

    def judged(self, before: MethodResult, n_classes: int) -> MethodResult:
        """Return the same row with ``collapse`` decided against the uncalibrated one.

        Examples
        --------
        >>> far = MethodResult("a", "a", {"nll": 4.2, "accuracy": 0.75, "mean_confidence": 0.016})
        >>> far.judged(MethodResult("uncal", "uncal", {"nll": 1.0}), 100).collapsed
        True
        """
        if not self.scores:
            return self
        known = {name: self.scores[name] for name in ("accuracy", "mean_confidence", "nll")}
        reasons = collapse_reasons(**known, n_classes=n_classes, nll_before=before.scores.get("nll"))
        return replace(self, collapse=tuple(reasons))


class Comparison:
    """Methods × metrics with times; prints as a table, the best of each column in bold.

    Parameters
    ----------
    results : sequence of MethodResult
    metrics : sequence of str
        The columns to show.

    Examples
    --------
    >>> table = Comparison([MethodResult("ts", "ts", {"nll": 0.2}, 0.1, 0.0)], ["nll"])
    >>> table.best("nll"), table["ts"]["nll"], table.errors
    ('ts', 0.2, {})
    """

    def __init__(self, results: Sequence[MethodResult], metrics: Sequence[str]) -> None:
        self.results = list(results)
        self.metrics = list(metrics)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[MethodResult]:
        return iter(self.results)

    def __getitem__(self, label: str) -> Mapping[str, float]:
        for result in self.results:
            if result.label == label:
                return result.scores
        raise KeyError(f"{label!r} is not in this table; it has {', '.join(r.label for r in self.results)}")

    @property
    def errors(self) -> dict[str, str]:
        """The methods that failed, and why."""
        return {r.label: r.error for r in self.results if r.error}

    @property
    def warnings(self) -> dict[str, tuple[str, ...]]:
        """What each method warned of."""
        return {r.label: r.warnings for r in self.results if r.warnings}

    def best(self, metric: str) -> str:
        """Return the label of the best method by a metric, collapsed ones left out."""
        good = [r for r in self.results if metric in r.scores and not r.collapsed]
        if not good:
            raise ValueError(f"no method has a value of {metric!r}")
        sign = 1 if get_metric(metric).lower_is_better else -1
        return min(good, key=lambda r: sign * r.scores[metric]).label

    def sorted(self, metric: str) -> Comparison:
        """Return the table from best to worst by a metric; methods without a value of it last."""
        sign = 1 if get_metric(metric).lower_is_better else -1
        if not any(metric in r.scores or r.error for r in self.results):
            raise ValueError(f"no method has a value of {metric!r}")
        order = sorted(self.results, key=lambda r: sign * r.scores.get(metric, sign * float("inf")))
        return Comparison(order, self.metrics)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return ``{label: {metric: value, "fit_s", "predict_s", "collapsed", "warnings", "error"}}``."""
        return {
            r.label: {
                **r.scores,
                "fit_s": r.fit_s,
                "predict_s": r.predict_s,
                "collapsed": r.collapsed,
                "warnings": list(r.warnings),
                "error": r.error,
            }
            for r in self.results
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: a row a method, a column a metric, then the times and notes."""
        pandas = load_extra("to_frame()", "pandas", "frames")
        frame: pd.DataFrame = pandas.DataFrame.from_dict(self.to_dict(), orient="index")
        extra = ["mean_confidence", "fit_s", "predict_s", "collapsed", "error"]
        return frame.reindex(columns=[*dict.fromkeys([*self.metrics, "nll", "brier", *extra])])

    def plot(self) -> Figure:
        """Draw a panel a metric with a bar a method; the dotted line is the state before."""
        from hcal.evaluation.comparison_drawing import draw_comparison

        return draw_comparison(self.results, self.metrics)

    def _columns(self) -> list[str]:
        return list(dict.fromkeys([*self.metrics, "nll", "brier", "mean_confidence"]))

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method")
        columns = self._columns()
        for name in [*columns, "fit s", "predict s"]:
            table.add_column(name, justify="right", no_wrap=True)
        sound = any(r.scores and not r.collapsed for r in self.results)
        best = {m: self.best(m) for m in self.metrics} if sound else {}
        for r in self.results:
            cells = [_cell(r.scores.get(c), bold=best.get(c) == r.label) for c in columns]
            table.add_row(Text(r.label), *cells, _seconds(r.fit_s), _seconds(r.predict_s))
        return Group(table, *(Text(note) for r in self.results for note in _notes(r)))

    def __str__(self) -> str:
        from rich.console import Console

        # Wide enough for every column: a table that wraps its numbers cannot be read.
        console = Console(width=40 + 16 * len(self._columns()), highlight=False, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())  # type: ignore[operator]


def _cell(value: float | None, *, bold: bool) -> str:
    if value is None:
        return "–"
    text = f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2e}"
    return f"[bold]{text}[/bold]" if bold else text


def _seconds(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _notes(result: MethodResult) -> list[str]:
    """What the reader must know of a row, one line each."""
    if result.error:
        return [f"{result.label} failed: {result.error}"]
    said = [f"collapsed: {reason}" for reason in result.collapse]
    said += [message.removeprefix(f"{result.name}: ") for message in result.warnings]
    return [f"{result.label}: {message}" for message in said]
