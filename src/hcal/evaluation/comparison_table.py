"""The table that :func:`hcal.compare` returns: means over tasks, paired differences, text in four formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.special import ndtr, ndtri

from hcal.evaluation.assessment import collapse_reasons
from hcal.evaluation.result import Printed, number_text
from hcal.extras import load_extra
from hcal.metrics import get_metric
from hcal.numerics import Float64
from hcal.text import spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group

#: Level of the intervals of differences. Methods with a corrected p-value of at least 1 − LEVEL tie with the best.
LEVEL: Final = 0.95


@dataclass(frozen=True)
class Cell:
    """The results of one method on one task or, as a row of the table, on all tasks."""

    task: str
    label: str  # what the user calls the method, and its registry name
    name: str
    scores: Mapping[str, float] = field(default_factory=dict)  # metrics on the test rows
    n_classes: int = 2
    fit_s: float = float("nan")  # wall-clock seconds
    predict_s: float = float("nan")
    warnings: tuple[str, ...] = ()  # of fit and predict
    drawn: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # metrics on resampled test rows
    #: Why the predictions count as collapsed (nearly uniform: class-wise errors look good although the
    #: probabilities are useless); empty if they do not.
    collapse: tuple[str, ...] = ()
    error: str = ""  # empty, or why there are no scores

    @property
    def collapsed(self) -> bool:
        """Whether the predictions count as collapsed."""
        return bool(self.collapse)

    def against(self, before: Cell) -> Cell:
        """Return the cell with its collapse and its improvement (phi) relative to the uncalibrated cell.

        >>> far = Cell("t", "a", "a", {"nll": 4.2, "accuracy": 0.75, "mean_confidence": 0.016}, 100)
        >>> far.against(Cell("t", "uncal", "uncal", {"nll": 1.0})).collapsed
        True
        """
        if not self.scores:
            return self
        missing = float("nan")
        old = before.scores.get("nll")
        reasons = collapse_reasons(
            accuracy=self.scores.get("accuracy", missing),
            mean_confidence=self.scores.get("mean_confidence", missing),
            nll=self.scores.get("nll", missing),
            n_classes=self.n_classes,
            nll_before=old,
        )
        gain = {"phi": old - self.scores["nll"]} if old is not None and "nll" in self.scores else {}
        return replace(self, scores={**self.scores, **gain}, collapse=tuple(reasons))


@dataclass(frozen=True)
class PairedDifference:
    """The difference of a method to the best one in a metric, its interval, and the p-value of no difference."""

    change: float
    low: float
    high: float
    p_value: float  # Holm's correction over the methods of the table


class Comparison(Printed):
    """Methods × metrics, averaged over tasks; prints as a table, the best of each column in bold.

    ``phi`` is CalArena's post-hoc improvement (arXiv 2605.30188), here of NLL: that of the uncalibrated
    scores less that of the method, on the same test rows; positive is better.

    Parameters
    ----------
    cells : sequence of Cell
        Each method on each task.
    metrics : sequence of str
        The columns to show.

    Examples
    --------
    >>> table = Comparison([Cell("toy", "ts", "ts", {"nll": 0.2}, 2, 0.1, 0.0)], ["nll"])
    >>> table.best("nll"), table["ts"]["nll"], table.errors
    ('ts', 0.2, {})
    """

    def __init__(self, cells: Sequence[Cell], metrics: Sequence[str]) -> None:
        before = {c.task: c for c in cells if c.label == "uncal"}
        self.cells = [c.against(before.get(c.task, c)) for c in cells]
        self.metrics = list(metrics)
        self.tasks = list(dict.fromkeys(c.task for c in cells))
        labels = dict.fromkeys(c.label for c in cells)
        self.results = [self._row([c for c in self.cells if c.label == label]) for label in labels]

    def _row(self, cells: list[Cell]) -> Cell:
        """Average the cells of one method over the tasks; a method that failed on one of them has no mean."""
        if len(self.tasks) == 1:
            return cells[0]
        failed = [c for c in cells if c.error]
        row = Cell("all", cells[0].label, cells[0].name, n_classes=cells[0].n_classes)
        if failed:
            told = f"{len(failed)} of {len(cells)} tasks failed, the first is {failed[0].task}"
            return replace(row, error=f"{told}: {failed[0].error}")
        names = [n for n in cells[0].scores if all(n in c.scores for c in cells)]
        drawn = [n for n in cells[0].drawn if all(n in c.drawn for c in cells)]
        return replace(
            row,
            scores={n: float(np.mean([c.scores[n] for c in cells])) for n in names},
            drawn={n: _mean_drawn(np.asarray([c.drawn[n] for c in cells])) for n in drawn},
            fit_s=sum(c.fit_s for c in cells),
            predict_s=sum(c.predict_s for c in cells),
            warnings=tuple(dict.fromkeys(f"{c.task}: {w}" for c in cells for w in c.warnings)),
            collapse=tuple(f"{c.task}: {r}" for c in cells for r in c.collapse),
        )

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.results)

    def __getitem__(self, label: str) -> Mapping[str, float]:
        for result in self.results:
            if result.label == label:
                return result.scores
        raise KeyError(
            f"{label!r} is not in this table; it has {', '.join(r.label for r in self.results)}"
        )

    def task(self, name: str) -> Comparison:
        """Return the table of one task."""
        if name not in self.tasks:
            raise KeyError(f"{name!r} is not a task of this table; it has {', '.join(self.tasks)}")
        return Comparison([c for c in self.cells if c.task == name], self.metrics)

    @property
    def errors(self) -> dict[str, str]:
        """The methods that failed, and why."""
        return {r.label: r.error for r in self.results if r.error}

    # -- who is best ------------------------------------------------------------------------------

    def best(self, metric: str) -> str:
        """Return the label of the best method by a metric, collapsed ones left out."""
        good = [r for r in self.results if metric in r.scores and not r.collapsed]
        if not good:
            raise ValueError(f"no method has a value of {metric!r}")
        sign = _sign(metric)
        return min(good, key=lambda r: sign * r.scores[metric]).label

    def sorted(self, metric: str) -> Comparison:
        """Return the table from best to worst by a metric; methods without a value of it last."""
        sign = _sign(metric)
        if not any(metric in r.scores or r.error for r in self.results):
            raise ValueError(f"no method has a value of {metric!r}")
        order = sorted(self.results, key=lambda r: sign * r.scores.get(metric, sign * float("inf")))
        other = Comparison(self.cells, self.metrics)
        other.results = order
        return other

    def differences(self, metric: str) -> dict[str, PairedDifference]:
        """Return the difference of every method to the best one in a metric, from a paired bootstrap.

        The interval is the difference ± z standard deviations of its replicates: the bias that a bootstrap
        adds to a binned error does not cancel in percentiles. The test asks whether the difference is 0;
        Holm's correction covers all methods of the table. Of several tasks, tasks are drawn as well as rows.

        Returns
        -------
        dict of PairedDifference
            By label; empty if ``compare`` was called with ``resamples=0``.
        """
        rows = {r.label: r for r in self.results if metric in r.drawn and not r.collapsed}
        if not rows:
            return {}
        best = rows[self.best(metric)]
        found: dict[str, tuple[float, float]] = {}
        for label, r in rows.items():
            spread = np.asarray(r.drawn[metric]) - np.asarray(best.drawn[metric])
            found[label] = r.scores[metric] - best.scores[metric], float(spread.std(ddof=1))
        p = {
            label: float(2 * ndtr(-abs(c) / sd)) if sd else float(c == 0)
            for label, (c, sd) in found.items()
        }
        del p[best.label]
        corrected = holm(p) | {best.label: 1.0}
        z = float(ndtri((1 + LEVEL) / 2))
        return {
            label: PairedDifference(change, change - z * sd, change + z * sd, corrected[label])
            for label, (change, sd) in found.items()
        }

    def ties(self, metric: str) -> set[str]:
        """Return the best method in a metric and those that do not differ significantly from it."""
        if not any(metric in r.scores and not r.collapsed for r in self.results):
            return set()
        found = self.differences("nll" if metric == "phi" else metric)
        return {label for label, d in found.items() if d.p_value >= 1 - LEVEL} | {self.best(metric)}

    # -- for machines -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return ``{label: {metric: value, …, "fit_s", "predict_s", "collapsed", "warnings", "error"}}``."""
        facts = ("fit_s", "predict_s", "collapsed", "warnings", "error")
        return {
            r.label: {**r.scores, **{name: getattr(r, name) for name in facts}}
            for r in self.results
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: a row a method, a column a metric, then the times and notes."""
        pandas = load_extra("to_frame()", "pandas", "frames")
        frame: pd.DataFrame = pandas.DataFrame.from_dict(self.to_dict(), orient="index")
        return frame

    def to_csv(self) -> str:
        """Return every cell as tidy csv text: task, method, metric, value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["task", "method", "metric", "value"])
        for cell in self.cells:
            if not cell.scores:
                continue
            numbers = {**cell.scores, "fit_s": cell.fit_s, "predict_s": cell.predict_s}
            names = [spreadsheet_text(cell.task), spreadsheet_text(cell.label)]
            writer.writerows([*names, name, f"{value:.10g}"] for name, value in numbers.items())
        return out.getvalue()

    # -- for people -------------------------------------------------------------------------------

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        head, rows = self._text(lambda cell: f"**{cell}**")
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_latex(self) -> str:
        """Return the table as LaTeX (booktabs); the best of each column and its ties in bold."""
        head, rows = self._text(lambda cell: f"\\textbf{{{cell}}}")
        first, *body = (
            " & ".join(_latex(cell) for cell in line) + r" \\" for line in (head, *rows)
        )
        begin = f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
        lines = [begin, r"\toprule", first, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def _columns(self) -> list[str]:
        return list(dict.fromkeys([*self.metrics, "nll", "brier", "phi", "mean_confidence"]))

    def _width(self) -> int:
        return 40 + 16 * len(self._columns())  # a table that wraps its numbers cannot be read

    def _text(self, bold: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows of the table as text, with ties emphasised."""
        columns = {m: self.ties(m) if m != "mean_confidence" else set() for m in self._columns()}

        def cells(r: Cell) -> list[str]:
            texts = {m: number_text(r.scores.get(m)) or "–" for m in columns}
            marked = [bold(text) if r.label in columns[m] else text for m, text in texts.items()]
            return [r.label, *marked, "–" if r.fit_s != r.fit_s else f"{r.fit_s:.2f}"]

        names = ("confidence" if m == "mean_confidence" else m for m in columns)
        return ["method", *names, "fit s"], [cells(r) for r in self.results]

    @property
    def notes(self) -> list[str]:
        """Failures, collapsed methods and warnings, one line each."""
        found = []
        for r in self.results:
            found += [f"{r.label} failed: {r.error}"] if r.error else []
            found += [f"{r.label}: collapsed: {reason}" for reason in r.collapse]
            found += [f"{r.label}: {message.removeprefix(f'{r.name}: ')}" for message in r.warnings]
        return found

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head, rows = self._text(lambda cell: f"[bold]{cell}[/bold]")
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(
            head
        ):  # no column is cut, also where the terminal is narrower than the table
            width = max(len(name), *(len(Text.from_markup(row[i]).plain) for row in rows))
            table.add_column(name, justify="right" if i else "left", no_wrap=True, min_width=width)
        for label, *cells in rows:
            table.add_row(Text(label), *cells)
        told = []
        if len(self.tasks) > 1:
            told.append(f"means over {len(self.tasks)} tasks: {', '.join(self.tasks)}")
        if any(r.drawn for r in self.results):
            told.append(
                "bold: the best of a column, and what a paired test (Holm, 5 %) cannot tell from it"
            )
        if any("phi" in r.scores for r in self.results):
            told.append("phi: post-hoc improvement, NLL before − NLL after; positive is better")
        return Group(table, *(Text(line) for line in (*told, *self.notes)))


def _mean_drawn(values: Float64) -> list[float]:
    """Average replicates (tasks, B) over resampled tasks, which are the same for every method."""
    tasks = np.random.default_rng(0).integers(0, len(values), values.shape[::-1])
    return [float(v) for v in np.take_along_axis(values.T, tasks, axis=1).mean(axis=1)]


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number by Holm's step-down rule.

    >>> holm({"a": 0.01, "b": 0.03, "c": 0.04})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    order = sorted(p, key=lambda label: p[label])
    steps = np.arange(len(p), 0, -1) * np.array([p[label] for label in order])
    return dict(zip(order, np.maximum.accumulate(np.minimum(steps, 1.0)).tolist(), strict=True))


def _sign(metric: str) -> int:
    return -1 if metric == "phi" or not get_metric(metric).lower_is_better else 1


def _latex(cell: str) -> str:
    return cell.replace("–", "--").replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
