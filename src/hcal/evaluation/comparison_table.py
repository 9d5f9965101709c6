"""The table that :func:`hcal.compare` returns: means over tasks, paired differences, text in four formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from hcal.evaluation.ranking import LEVEL, Ranking, fewest_tasks, holm, pairs_of_tasks
from hcal.evaluation.result import number_text
from hcal.metrics import get_metric
from hcal.metrics.scores import collapse_reasons
from hcal.numerics import Float64
from hcal.results import Result, rich_text
from hcal.text import JsonObject, spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group


#: What a row says of a method beside its metrics.
_BESIDE: Final = ("fit_s", "predict_s", "collapsed", "warnings", "error")


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
    n: int | None = None  # test rows

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
            rows=self.n,
        )
        gain = {"phi": old - self.scores["nll"]} if old is not None and "nll" in self.scores else {}
        return replace(self, scores={**self.scores, **gain}, collapse=tuple(reasons))


@dataclass(frozen=True)
class PairedDifference:
    """The difference of a method to the best one in a metric.

    Attributes
    ----------
    change : float
    low, high : float
        Its interval. Those of all pairs of methods hold together at 95 %; NaN where there is none.
    p_value : float
        Of no difference, with Holm's correction over all pairs of methods, because the same rows choose the best one.
        NaN where there is no test.
    """

    change: float
    low: float
    high: float
    p_value: float


class Comparison(Result):
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

    schema: ClassVar[str] = "hcal/compare/1"

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
        failed = [cell for cell in cells if cell.error]
        row = Cell("all", cells[0].label, cells[0].name, n_classes=cells[0].n_classes)
        if failed:
            count = f"{len(failed)} of {len(cells)} tasks failed, the first is {failed[0].task}"
            return replace(row, error=f"{count}: {failed[0].error}")

        shared = [name for name in cells[0].scores if all(name in cell.scores for cell in cells)]
        messages: list[str] = []
        reasons: list[str] = []
        for cell in cells:
            messages += [f"{cell.task}: {message}" for message in cell.warnings]
            reasons += [f"{cell.task}: {reason}" for reason in cell.collapse]
        return replace(
            row,
            scores={name: float(np.mean([cell.scores[name] for cell in cells])) for name in shared},
            fit_s=sum(cell.fit_s for cell in cells),
            predict_s=sum(cell.predict_s for cell in cells),
            warnings=tuple(dict.fromkeys(messages)),
            collapse=tuple(reasons),
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
        """Return the difference of every method to the best one in a metric.

        On one task, its test rows (or whole groups of them) are resampled, the same ones for every method. The interval
        is the difference ± z standard deviations of its replicates: the bias that a bootstrap adds to a binned error
        does not cancel in percentiles. Of several tasks nothing is resampled: the tasks are the units. The test is
        Wilcoxon's signed-rank test, exact for few tasks, and the interval is Student's. From how many tasks on there is
        a test at all depends on the number of methods: :func:`~hcal.evaluation.ranking.fewest_tasks`.

        Returns
        -------
        dict of PairedDifference
            By label; empty if ``compare`` was called with ``resamples=0`` for one task.
        """
        if len(self.tasks) > 1:
            return self._differences_over_tasks(metric)
        rows = {r.label: r for r in self.results if metric in r.drawn and not r.collapsed}
        if not rows:
            return {}
        best = self.best(metric)
        drawn = {label: np.asarray(row.drawn[metric]) for label, row in rows.items()}
        pairs: dict[tuple[str, str], float] = {}
        for first, second in combinations(rows, 2):
            change = rows[first].scores[metric] - rows[second].scores[metric]
            spread = float((drawn[first] - drawn[second]).std(ddof=1))
            pairs[first, second] = _normal_p_value(change, spread)
        corrected = holm(pairs)
        z = float(ndtri(1 - LEVEL / (2 * max(len(pairs), 1))))
        differences = {}
        for label, row in rows.items():
            change = row.scores[metric] - rows[best].scores[metric]
            margin = z * float((drawn[label] - drawn[best]).std(ddof=1))
            p_value = _of_pair(corrected, label, best)
            differences[label] = PairedDifference(change, change - margin, change + margin, p_value)
        return differences

    def _differences_over_tasks(self, metric: str) -> dict[str, PairedDifference]:
        """Return the mean differences to the best method, with tests and intervals over tasks."""
        losses = self._losses(metric)
        if not losses:
            return {}
        best = self.best(metric)
        corrected = pairs_of_tasks(losses)
        n_pairs = max(len(corrected), 1)
        n_tasks = len(self.tasks)
        quantile = float(stdtrit(n_tasks - 1, 1 - LEVEL / (2 * n_pairs)))
        sign = _sign(metric)
        differences = {}
        for label, values in losses.items():
            changes = sign * (values - losses[best])
            change = float(changes.mean())
            margin = quantile * float(changes.std(ddof=1)) / np.sqrt(n_tasks)
            p_value = _of_pair(corrected, label, best)
            if not corrected:
                margin = p_value = np.nan
            differences[label] = PairedDifference(change, change - margin, change + margin, p_value)
        return differences

    def _losses(self, metric: str) -> dict[str, Float64]:
        """Return one value of a metric a task for each method that has all, signed so that lower is better."""
        sign = _sign(metric)
        losses = {}
        for row in self.results:
            cells = [cell for cell in self.cells if cell.label == row.label]
            if metric in row.scores and not row.collapsed:
                losses[row.label] = sign * np.array([cell.scores[metric] for cell in cells])
        return losses

    def ranking(self, metric: str) -> Ranking:
        """Return mean ranks over tasks and the critical-difference diagram (``.plot()``) of a metric.

        Collapsed methods, and those that failed on a task, are left out.
        """
        losses = self._losses(metric)
        if not losses:
            raise ValueError(f"no method has a value of {metric!r}")
        return Ranking.of(metric, losses)

    def ties(self, metric: str) -> set[str]:
        """Return the best method in a metric and those that do not differ significantly from it.

        Where too few tasks allow no test, it is the best method alone.
        """
        if not self._has(metric):
            return set()
        several = len(self.tasks) > 1
        differences = self.differences("nll" if metric == "phi" and not several else metric)
        tied = {label for label, d in differences.items() if d.p_value >= LEVEL}
        return tied | {self.best(metric)}

    # -- for machines -----------------------------------------------------------------------------

    def to_records(self) -> list[JsonObject]:
        """Return one row a method: its metrics, the times, and why there are none."""
        rows = []
        for result in self.results:
            facts = {name: getattr(result, name) for name in _BESIDE}
            rows.append({"method": result.label, **result.scores, **facts})
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame: a row a method, a column a metric, then the times and notes."""
        frame = super().to_frame().set_index("method")
        frame.index.name = None
        return frame

    def _content(self) -> JsonObject:
        methods = {row.pop("method"): row for row in self.to_records()}
        return {"tasks": self.tasks, "metrics": self.metrics, "methods": methods}

    def _headline(self) -> list[str]:
        count = f"{len(self.results):,} methods on {len(self.tasks):,} tasks"
        if len(self.tasks) == 1:
            count = f"{len(self.results):,} methods on one task"
        best = [f"{name} {self.best(name)}" for name in self.metrics if self._has(name)]
        return [
            f"{count}; the best in {', '.join(best)}." if best else f"{count}; none has a value."
        ]

    def _has(self, metric: str) -> bool:
        """Say whether a method that counts has a value of a metric."""
        return any(metric in row.scores and not row.collapsed for row in self.results)

    def __str__(self) -> str:
        return rich_text(self, self._width())

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

    def to_markdown(self, columns: Sequence[str] | None = None, digits: int | None = None) -> str:
        """Return the table as Markdown; columns and digits as for :meth:`to_latex`."""
        head, rows = self._text(_bold_markdown, columns, digits)
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_latex(self, columns: Sequence[str] | None = None, digits: int | None = None) -> str:
        """Return the table as LaTeX (booktabs); the best of each column and its ties in bold.

        Parameters
        ----------
        columns : sequence of str, optional
            Metrics, "phi", "mean_confidence" and "fit_s", in the order to show; by default those of the table.
        digits : int, optional
            Digits after the point of every number.
        """
        head, rows = self._text(_bold_latex, columns, digits)
        body = [" & ".join(_latex(cell) for cell in line) + r" \\" for line in (head, *rows)]
        begin = f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
        middle = [r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
        return "\n".join([begin, *middle, r"\end{tabular}"]) + "\n"

    def _columns(self) -> list[str]:
        """Return the columns of the text: metrics, each with its level by chance, and what belongs beside them."""
        levels = {name for row in self.results for name in row.scores if is_chance(name)}
        columns = []
        for name in [*self.metrics, "nll", "brier"]:
            columns.append(name)
            if chance_column(name) in levels:
                columns.append(chance_column(name))
        return list(dict.fromkeys([*columns, "phi", "mean_confidence", "fit_s"]))

    def _width(self) -> int:
        return 24 + 16 * len(self._columns())  # a table that wraps its numbers cannot be read

    def _text(
        self,
        bold: Callable[[str], str],
        columns: Sequence[str] | None = None,
        digits: int | None = None,
    ) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows of the table as text, with ties emphasised."""
        if isinstance(columns, str):
            raise ValueError(f"columns is a list of names, got {columns!r}")
        names = self._columns() if columns is None else list(columns)
        columns_of_all = {*self._columns(), *(name for row in self.results for name in row.scores)}
        unknown = [name for name in names if name not in columns_of_all]
        if unknown:
            listed = ", ".join(sorted(columns_of_all))
            raise ValueError(f"{unknown[0]!r} is not a column; they are {listed}")
        if digits is not None and (not isinstance(digits, int) or not 0 <= digits <= 15):
            raise ValueError(f"digits must be an integer from 0 to 15, got {digits!r}")
        metrics = [name for name in names if name not in _FACTS and not is_chance(name)]
        emphasised = {name: self.ties(name) for name in metrics}
        lines = []
        for row in self.results:
            cells = [row.label]
            for name in names:
                text = _number(row, name, digits)
                cells.append(bold(text) if row.label in emphasised.get(name, ()) else text)
            lines.append(cells)
        return ["method", *(_title(name) for name in names)], lines

    @property
    def notes(self) -> list[str]:
        """Failures, collapsed methods and warnings, one line each."""
        lines = []
        for row in self.results:
            lines += [f"{row.label} failed: {row.error}"] if row.error else []
            lines += [f"{row.label}: collapsed: {reason}" for reason in row.collapse]
            messages = [message.removeprefix(f"{row.name}: ") for message in row.warnings]
            lines += [f"{row.label}: {message}" for message in messages]
        return lines

    def _explanations(self) -> list[str]:
        """Return what the table's numbers and its bold print mean."""
        lines = []
        n_tasks = len(self.tasks)
        compared = sum(1 for row in self.results if row.scores and not row.collapsed)
        if n_tasks > 1:
            lines.append(f"means over {n_tasks} tasks: {', '.join(self.tasks)}")
        if 1 < n_tasks < fewest_tasks(compared):
            lines.append(
                f"bold: the best of a column. No test: {n_tasks} tasks cannot tell {compared} "
                f"methods apart; from {fewest_tasks(compared)} tasks on they can"
            )
        elif n_tasks > 1:
            lines.append(
                "bold: the best of a column, and what a signed-rank test over tasks (Holm, 5 %) "
                "cannot tell from it"
            )
        elif any(row.drawn for row in self.results):
            lines.append(
                "bold: the best of a column, and what a paired test on resampled rows (Holm, 5 %) "
                "cannot tell from it"
            )
        if any(is_chance(name) for name in self._columns()):
            lines.append(
                "by chance: what the error before it would be of a calibrated model of the "
                "same sharpness"
            )
        if any("phi" in row.scores for row in self.results):
            lines.append("phi: post-hoc improvement, NLL before − NLL after; positive is better")
        return lines

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head, rows = self._text(_bold_rich)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(
            head
        ):  # no column is cut, also where the terminal is narrower than the table
            width = max(len(name), *(len(Text.from_markup(row[i]).plain) for row in rows))
            table.add_column(name, justify="right" if i else "left", no_wrap=True, min_width=width)
        for label, *cells in rows:
            table.add_row(Text(label), *cells)
        lines = self._explanations()
        return Group(table, *(Text(line) for line in (*lines, *self.notes)))


def chance_column(metric: str) -> str:
    """Return the name of the column that holds what a metric shows by chance.

    >>> chance_column("ece_ew"), is_chance("chance(ece_ew)"), is_chance("ece_ew")
    ('chance(ece_ew)', True, False)
    """
    return f"chance({metric})"


def is_chance(column: str) -> bool:
    """Say whether a column holds what a metric shows by chance."""
    return column.startswith("chance(")


def _title(column: str) -> str:
    """Return how a table calls a column."""
    return "by chance" if is_chance(column) else _FACTS.get(column, column)


#: Columns that are no metric, and how a table calls them.
_FACTS: Final = {"mean_confidence": "confidence", "fit_s": "fit s"}


def _number(row: Cell, name: str, digits: int | None) -> str:
    """Return a number of a row as text, "–" where there is none."""
    value = row.fit_s if name == "fit_s" else row.scores.get(name)
    if value is None or np.isnan(value):
        return "–"
    if digits is not None:
        return f"{value:.{digits}f}"
    return f"{value:.2f}" if name == "fit_s" else number_text(value)


def _bold_markdown(text: str) -> str:
    return f"**{text}**"


def _bold_latex(text: str) -> str:
    return f"\\textbf{{{text}}}"


def _bold_rich(text: str) -> str:
    return f"[bold]{text}[/bold]"


def _normal_p_value(change: float, spread: float) -> float:
    """Return the two-sided p-value of a change that is normal around 0; 1 for two copies of a method."""
    if spread > 0:
        return float(2 * ndtr(-abs(change) / spread))
    return float(change == 0)


def _of_pair(corrected: Mapping[tuple[str, str], float], label: str, best: str) -> float:
    """Return the p-value of a method and the best one; 1 for the best one itself."""
    if label == best:
        return 1.0
    return corrected.get((label, best), corrected.get((best, label), np.nan))


def _sign(metric: str) -> int:
    return -1 if metric == "phi" or not get_metric(metric).lower_is_better else 1


def _latex(cell: str) -> str:
    return cell.replace("–", "--").replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")
