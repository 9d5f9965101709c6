"""The result of ``hcal.evaluate``: metrics with explanations, as text, tables and JSON."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, ClassVar

from hcal.certificates import Certificate, EventCertificate
from hcal.certificates.sentences import group_sentences, share, subgroup_table
from hcal.evaluation.assessment import Assessment, p_words
from hcal.metrics.clinical import Clinical
from hcal.metrics.registry import LEVELS, Metric
from hcal.metrics.resampling import Interval
from hcal.metrics.testing import CalibrationTest
from hcal.results import Result, rich_text
from hcal.text import JsonObject, one_line, printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

_LEVEL_TITLES = {
    "top-label": "top-label: is the predicted class right as often as it says?",
    "class-wise": "class-wise: is each class's probability right?",
    "canonical": "canonical: is the whole vector right?",
    "score": "scores: calibration and sharpness together",
}
#: How many metrics the ``repr`` of an evaluation names.
_HEADLINE_METRICS = 4
#: What ``to_dict`` holds beside the metrics and the certificate.
_FACTS = (
    "n",
    "k",
    "accuracy",
    "mean_confidence",
    "nll",
    "sharpness",
    "collapsed",
    "warnings",
    "confidence",
    "test",
    "vector_test",
    "assessment",
    "positive",
    "changed",
    "how",
    "sample_rows",
)


@dataclass(frozen=True)
class MetricResult:
    """One metric of an evaluation: its value, what it is, and its interval where there is one.

    ``chance`` is what a perfectly calibrated model of the same sharpness would show on as many rows: of plug-in errors
    alone, and of independent rows.
    """

    value: float
    metric: Metric
    interval: Interval | None = None
    chance: float | None = None

    @property
    def words(self) -> str:
        """The name and the value, with what chance alone would show."""
        words = f"{self.metric.name} {number_text(self.value)}"
        return words if self.chance is None else f"{words} ({number_text(self.chance)} by chance)"


@dataclass(frozen=True)
class Difference:
    """A metric compared with the baseline: the baseline's value, the change from it, and a paired interval."""

    before: float
    change: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PositiveRate:
    """The positive class of two: its name, its mean predicted probability, and its observed frequency."""

    name: str
    stated: float
    observed: float


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The evaluation of one predictor. ``print`` it, show it in a notebook, or take its ``values``.

    Attributes
    ----------
    results : dict of MetricResult
    n, k : int
        Rows and classes.
    accuracy, mean_confidence, nll, sharpness : float
        Always computed, whichever metrics you choose: an error means little without them.
    collapse : tuple of str
        Why the predictor counts as collapsed, in words; empty if it does not.
    notes : tuple of str
    confidence : float or None
    test, vector_test : CalibrationTest or None
        Of the top label, and of the whole vector.
    certificate : Certificate or None
    assessment : Assessment or None
        The verdict that follows from the tests and the certificate; the report shows the same one.
    clinical : Clinical or None
        With two classes: slope, intercept, O:E, ICI, AUC and net benefit, with intervals.
    positive : PositiveRate or None
        With two classes: the positive class's name, mean predicted probability and observed frequency.
    differences : dict of Difference
        The change of each metric from the baseline, if one was given.
    before : Evaluation or None
        After ``evaluate(calibrator, scores, y)``: the evaluation before calibration.
    changed : int or None
        How many predicted classes the calibrator changed.
    how : dict of str
        Where the rows are not in memory, what each metric was computed from: ``"all rows"``,
        ``"all rows, within …"`` or ``"sample"``. Empty where all of them are.
    sample_rows : int or None
        The size of that sample.

    Examples
    --------
    >>> import hcal
    >>> result = hcal.evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 1], metrics="score")
    >>> result["accuracy"], result.collapsed
    (0.5, False)
    """

    schema: ClassVar[str] = "hcal/evaluate/1"

    results: dict[str, MetricResult]
    n: int
    k: int
    accuracy: float
    mean_confidence: float
    nll: float
    sharpness: float
    collapse: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    confidence: float | None = None
    test: CalibrationTest | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    vector_test: CalibrationTest | None = None
    certificate: Certificate | None = None
    assessment: Assessment | None = None
    positive: PositiveRate | None = None
    clinical: Clinical | None = None
    before: Evaluation | None = None
    changed: int | None = None
    how: dict[str, str] = field(default_factory=dict)
    sample_rows: int | None = None

    @property
    def sampling(self) -> list[str]:
        """Which numbers come from all rows, and which from how large a sample; empty where all rows are in memory."""
        if self.sample_rows is None:
            return []
        sample = f"seeded sample of {self.sample_rows:,} of {self.n:,} rows"
        names_by_words: dict[str, list[str]] = {}
        for name, words in self.how.items():
            names_by_words.setdefault(words, []).append(name)
        sentences = [
            f"{sample if words == 'sample' else words}: {', '.join(names)}"
            for words, names in names_by_words.items()
        ]
        if self.confidence is not None:
            sentences.append(f"intervals: of the {sample}, so wider than those of all rows")
        return sentences

    @property
    def collapsed(self) -> bool:
        """Whether the predictor is collapsed (near-uniform, or ruined while class-wise errors fell)."""
        return bool(self.collapse)

    @property
    def warnings(self) -> list[str]:
        """Warnings that a reader must know before using the numbers."""
        collapsed = [
            f"COLLAPSED PREDICTOR: {r}. Low class-wise errors mean nothing here."
            for r in self.collapse
        ]
        return collapsed + list(self.notes)

    @property
    def groups(self) -> tuple[EventCertificate, ...]:
        """The certificate of every group, the worst first; empty without groups."""
        return () if self.certificate is None else self.certificate.subgroups

    def __getitem__(self, name: str) -> float:
        return self.results[name].value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the interval of a metric, or None if it has none.

        Returns
        -------
        (low, high) or None
        """
        interval = self.results[name].interval
        return None if interval is None else (interval.low, interval.high)

    # -- for machines -----------------------------------------------------------------------------

    @property
    def values(self) -> dict[str, float]:
        """The value of each metric by its name."""
        return {name: result.value for name, result in self.results.items()}

    @property
    def by_chance(self) -> dict[str, float]:
        """What a perfectly calibrated model of the same sharpness would show on as many rows, by metric.

        Only plug-in errors have such a level: noise alone makes them positive. It is empty with ``groups``, because
        the labels of rows that depend on each other cannot be drawn one by one.
        """
        return {
            name: result.chance
            for name, result in self.results.items()
            if result.chance is not None
        }

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name: the metrics, and their changes by calibration."""
        changes = {f"change({name})": change.change for name, change in self.differences.items()}
        return {**self.values, **changes}

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary a metric: name, level, value, interval, chance level, differences."""
        return [self._record(name, result) for name, result in self.results.items()]

    def _record(self, name: str, result: MetricResult) -> JsonObject:
        record = {"metric": name, "level": result.metric.level, "value": result.value}
        record["chance"] = result.chance
        if self.confidence is not None:
            interval = result.interval or Interval(nan, nan, "")
            record["low"] = interval.low
            record["high"] = interval.high
            record["interval"] = interval.kind
        difference = self.differences.get(name)
        if difference is not None:
            record["baseline"] = difference.before
            record["change"] = difference.change
            record["change_low"] = difference.low
            record["change_high"] = difference.high
        if self.before is not None:
            record["baseline_chance"] = self.before.by_chance.get(name)
        return record

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with one row a metric."""
        return super().to_frame().set_index("metric")

    def _content(self) -> JsonObject:
        content = {name: getattr(self, name) for name in _FACTS}
        content["certificate"] = self.certificate
        content["clinical"] = self.clinical
        content["groups"] = [group.group_row() for group in self.groups]
        content["metrics"] = {record.pop("metric"): record for record in self.to_records()}
        return content

    # -- for people -------------------------------------------------------------------------------

    def _title(self) -> str:
        stated = f"mean confidence {self.mean_confidence:.4f}"
        if (rate := self.positive) is not None:
            stated = f"P({rate.name}) stated {share(rate.stated)}, observed {share(rate.observed)}"
        facts = f"{stated}, accuracy {self.accuracy:.4f}, sharpness {self.sharpness:.4f}"
        return f"{self.n:,} rows, {self.k} classes: {facts}"

    def _headline(self) -> list[str]:
        """Return the size and the first metrics of the evaluation, and what a reader must know."""
        names = list(self.results)[:_HEADLINE_METRICS]
        numbers = ", ".join(self.results[name].words for name in names)
        if len(self.results) > len(names):
            numbers += f", and {len(self.results) - len(names)} more metrics"
        verdict = [] if self.assessment is None else [self.assessment.how_far]
        return [self._title(), numbers, *(f"warning: {w}" for w in self.warnings), *verdict]

    def _columns(self) -> dict[str, Callable[[str], str]]:
        """Return the columns of the table by their heads: each makes a text of a metric's name."""
        results = self.results
        differences = self.differences
        level = f"{self.confidence or 0:.0%}"
        columns: dict[str, Callable[[str], str]] = {
            "metric": str,
            "value": lambda name: number_text(self[name]),
        }
        if self.by_chance:
            columns["by chance"] = lambda name: number_text(results[name].chance)
        if self.confidence is not None:
            columns[f"{level} interval"] = lambda name: _range(results[name].interval)
        if differences:
            columns["baseline"] = self._baseline_text
            columns["change"] = self._change_text
        if differences and self.confidence is not None:
            columns[f"{level} of change"] = lambda name: _range(differences.get(name))
        if not differences and self.confidence is None:
            columns["what it says"] = lambda name: results[name].metric.explain
        return columns

    def _baseline_text(self, name: str) -> str:
        """Return the baseline's value of a metric; nothing for a metric without one."""
        difference = self.differences.get(name)
        return "" if difference is None else number_text(difference.before)

    def _change_text(self, name: str) -> str:
        difference = self.differences.get(name)
        return "" if difference is None else number_text(difference.change, "+")

    def by_level(self) -> list[tuple[str, list[str]]]:
        """Return the question that each level asks, with the names of its metrics."""
        groups = [
            (level, [name for name, r in self.results.items() if r.metric.level == level])
            for level in LEVELS
        ]
        titles = _LEVEL_TITLES
        if self.positive is not None:
            name = one_line(str(self.positive.name))
            titles = titles | {"top-label": f"P({name}): does it happen as often as it says?"}
        return [(titles[level], names) for level, names in groups if names]

    def _closing(self) -> list[str]:
        lines = []
        if (t := self.test) is not None:
            lines.append(
                f"calibration test ({t.statistic}, {t.resamples} resamplings): {p_words(t)}"
            )
        if self.assessment is not None:
            lines += self.assessment.sentences
        if self.clinical is not None:
            c = self.clinical
            lines.append(
                f"slope {c.slope}, in the large {c.in_the_large}, O:E {c.observed_expected}, ICI "
                f"{c.ici}, AUC {c.auc}; hcal.clinical has more"
            )
        if self.certificate is not None and self.groups:
            lines += group_sentences(self.groups)
            lines += subgroup_table(self.groups, self.certificate.limit)
        return lines + [f"warning: {w}" for w in self.warnings]

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table()
        columns = self._columns()
        for head in columns:
            words = head == "what it says"
            table.add_column(
                head, justify="left" if words or head == "metric" else "right", no_wrap=not words
            )
        for title, names in self.by_level():
            table.add_section()
            table.add_row(Text(title.rsplit(":", 1)[0], style="italic"))
            for name in names:
                table.add_row(*(text(name) for text in columns.values()))
        closing = [Text(printable(line)) for line in self._closing()]
        return Group(Text(printable(self._title()), style="bold"), table, *closing)

    def __str__(self) -> str:
        return rich_text(self, self._width())

    def _width(self) -> int:
        # Narrower than this, numbers would be cut: then lines may wrap.
        narrowest = 80 if len(self._columns()) < 6 else 110
        return min(max(shutil.get_terminal_size((120, 40)).columns, narrowest), 120)


def number_text(value: float | None, sign: str = "") -> str:
    """Format a number for a table; small ones in scientific notation, and None as an empty string."""
    if value is None:
        return ""
    return f"{value:{sign}.2e}" if 0 < abs(value) < 1e-3 else f"{value:{sign}.4f}"


def _range(interval: Interval | Difference | None) -> str:
    if interval is None or interval.low is None:
        return ""
    return f"{number_text(interval.low)} … {number_text(interval.high)}"
