"""``hcal decide``: choose a threshold on labelled rows, or decide unlabelled rows by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from hcal.cli import console
from hcal.cli.measure import parse_cost
from hcal.cli.options import (
    Model,
    Positive,
    WithBy,
    WithGroups,
    WithLabels,
    WithWeight,
    check_output,
    class_called,
    class_number,
    command,
    file_facts,
    load_model,
)
from hcal.io.files import open_regular, parse_json

if TYPE_CHECKING:
    from hcal.decisions.abstention import Abstention
    from hcal.decisions.rules import Rule
    from hcal.decisions.threshold_curve import Costs
    from hcal.decisions.thresholding import CostTable, Thresholds
    from hcal.io import DataFile
    from hcal.methods.base import Calibrator
    from hcal.numerics import FloatArray, NumpyArray
    from hcal.results import Result

#: A longer file is cut off, so it is no valid table of costs.
_LARGEST_TABLE: Final = 2**26


def probabilities(data: DataFile, calibrator: Calibrator | None) -> FloatArray:
    """Return the probabilities (N, K) of a model for the rows of a file, or those that the file holds or implies."""
    import numpy as np

    from hcal.fit_record import predict_with_segments
    from hcal.inputs import to_probs

    if calibrator is None:
        return to_probs(data.values, data.kind)
    probs = predict_with_segments(calibrator, data.values, data.segments)
    return to_probs(np.asarray(probs), "probs")


def text_names(data: DataFile) -> list[str] | None:
    """Return the names of a file's classes as text, so that labels that are integers count as positions."""
    return None if data.classes is None else [str(name) for name in data.classes]


def costs_of(text: str | None) -> Costs | None:
    """Return the costs of a text: ``fn=20,fp=1``, or the name of a JSON file that holds a table of K x K costs."""
    if text is None or "=" in text:
        return parse_cost(text)
    path = Path(text)
    if not path.is_file():
        raise ValueError(
            f"--cost takes fn=20,fp=1 or a JSON file with a table of costs, got {text!r}"
        )
    with open_regular(path) as file:
        content = file.read(_LARGEST_TABLE)
    try:
        table: Costs = parse_json(content, path.name)
    except ValueError as error:
        raise ValueError(f"{error}: write the table as [[0, 1], [20, 0]]") from None
    return table


@command(
    "decide",
    "hcal decide test.npz --model model.hcal --cost 'fn=20,fp=1' --save rule.json",
    "hcal decide new.csv --model model.hcal --rule rule.json -o decisions.csv",
    "hcal decide answers.npz --error 0.02",
)
@dataclass(frozen=True, kw_only=True)
class Decide(WithWeight, WithBy, WithGroups, WithLabels):
    """Choose the threshold for a cost, a capacity, a precision or a recall, or decide new rows by one."""

    schema = "hcal/decide/1"

    model: Model = None
    cost: Annotated[
        str | None, Option(help="costs of errors, fn=20,fp=1, or a JSON file of K x K costs")
    ] = None
    capacity: Annotated[
        float | None, Option(help="the share of rows that can be acted on, such as 0.05")
    ] = None
    precision: Annotated[float | None, Option(help="the least precision")] = None
    recall: Annotated[float | None, Option(help="the least recall")] = None
    error: Annotated[
        float | None, Option(help="answer, or give no answer: at most this share of wrong answers")
    ] = None
    threshold: Annotated[float | None, Option(help="a known threshold; needs no labels")] = None
    rule: Annotated[Path | None, Option(help="a rule that --save wrote; needs no labels")] = None
    save: Annotated[Path | None, Option(help="write the chosen rule to this JSON file")] = None
    output: Annotated[
        Path | None, Option("--output", "-o", help="write a decision for each row to this file")
    ] = None
    confidence: Annotated[float, Option(help="level of the intervals")] = 0.95
    positive: Positive = None

    def run(self) -> None:
        """Choose or read a rule, decide the rows by it, and print how many of each there are."""
        import hcal

        for path in (self.output, self.save):
            check_output(path, *self.file, self.model, self.rule)
        chosen = self._aim()
        calibrator = load_model(self.model)
        data = self.read(calibrator)
        probs = probabilities(data, calibrator)
        result = None
        if chosen:
            doing = f"choosing a threshold on {console.shape_of(data)}"
            with console.working(doing, quiet=self.silent):
                result = self._chosen(data, probs)
            _save(self.save, result)
        rule = self._stated_rule(data) if result is None else result.rule
        decisions = hcal.decide(probs, rule, classes=text_names(data))
        if self.output is not None:
            _write(self.output, data, probs, decisions)
        counts = _counts(decisions)
        content = {**file_facts(data), "rows": len(decisions), "decided": counts}
        content["result"] = None if result is None else result.to_dict()
        self.show(content, lambda: self._show(data.name, result, counts))

    def _aim(self) -> bool:
        """Whether the rule is chosen here, by an aim; refuse no way to decide, and more than one."""
        aims = (self.cost, self.capacity, self.precision, self.recall, self.error)
        chosen = [value for value in aims if value is not None]
        rules = [value for value in (self.threshold, self.rule) if value is not None]
        if len(chosen) + len(rules) != 1:
            raise ValueError(
                "give one of --cost, --capacity, --precision, --recall, --error, which need "
                "labels, and --threshold, --rule, which do not"
            )
        if self.save is not None and not chosen:
            raise ValueError(
                "--save keeps a rule that was chosen here: give --cost, or another aim"
            )
        return bool(chosen)

    def _chosen(self, data: DataFile, probs: FloatArray) -> Thresholds | CostTable | Abstention:
        """Return the thresholds for the aim, or the confidence below which no answer is given."""
        import hcal

        if self.error is not None:
            return _abstained(data, probs, self.error, self.confidence, self.positive)
        return hcal.thresholds(
            probs,
            data.labels(),
            cost=costs_of(self.cost),
            capacity=self.capacity,
            precision=self.precision,
            recall=self.recall,
            sample_weight=data.weight,
            groups=data.groups,
            confidence=self.confidence,
            positive=class_called(self.positive, text_names(data)),
            classes=text_names(data),
        )

    def _stated_rule(self, data: DataFile) -> Rule:
        """Return the rule of a file, or of a known threshold."""
        from hcal.decisions.deciding import as_rule

        if self.rule is not None:
            return as_rule(self.rule)
        assert self.threshold is not None
        return as_rule(self.threshold, class_number(self.positive, data.classes))

    def _show(self, name: str, result: Result | None, counts: dict[str, int]) -> None:
        """Print the choice, or how many rows were decided for each class, and the files."""
        console.out().print(f"[bold]{console.name(name)}[/], {sum(counts.values()):,} rows")
        if result is not None:
            console.show_lines(result)
        else:
            lines = [f"{_decided(name)}: {count:,}" for name, count in counts.items()]
            console.show_lines("\n".join(lines))
        for path in (self.save, self.output):
            if path is not None:
                console.out().print(f"wrote [bold]{console.name(console.title_of(path))}[/]")


def _abstained(
    data: DataFile, probs: FloatArray, error: float, confidence: float, positive: str | None
) -> Abstention:
    """Choose the confidence below which no answer is given; --positive says which class is a right answer."""
    import hcal

    if data.weight is not None:
        raise ValueError("--error counts independent rows: leave out --weight")
    return hcal.abstain_below(
        probs,
        data.labels(),
        error=error,
        confidence=confidence,
        groups=data.groups,
        positive=None if positive is None else class_called(positive, text_names(data)),
        classes=text_names(data),
    )


def _save(path: Path | None, result: Result) -> None:
    """Write a result to a temporary name and rename it."""
    from hcal.io import atomic_path

    if path is None:
        return
    with atomic_path(path) as temporary:
        temporary.write_text(result.to_json() + "\n", encoding="utf-8")


def _write(output: Path, data: DataFile, probs: FloatArray, decisions: NumpyArray) -> None:
    """Write the ids, the probabilities and the decisions of all rows."""
    from hcal.io.writing import write_blocks

    with write_blocks(output, len(probs), classes=data.classes) as write:
        texts = ["" if decision is None else decision for decision in decisions.tolist()]
        write(probs, ids=data.ids, kept={"decision": texts})


def _counts(decisions: NumpyArray) -> dict[str, int]:
    """Return how many rows were decided for each class."""
    from collections import Counter

    counted = Counter(
        "" if decision in (None, -1) else str(decision) for decision in decisions.tolist()
    )
    return dict(sorted(counted.items()))


def _decided(name: str) -> str:
    return f"decided {name}" if name else "no answer"
