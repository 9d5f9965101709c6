"""``hcal estimate``: what accuracy, recall, cost, … of rows without labels are expected to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hcal.cli import console
from hcal.cli.decide import costs_of, probabilities, text_names
from hcal.cli.options import (
    Metrics,
    Model,
    Positive,
    WithBy,
    WithLabels,
    WithWeight,
    class_number,
    command,
    file_facts,
    load_model,
    names_of,
)

if TYPE_CHECKING:
    from hcal.io import DataFile


@command(
    "estimate",
    "hcal estimate next-month.csv --model model.hcal --rule rule.json --by country",
    "hcal estimate new.npz --model model.hcal --metrics accuracy,auc",
)
@dataclass(frozen=True, kw_only=True)
class Estimate(WithWeight, WithBy, WithLabels):
    """Estimate accuracy, recall, cost and other metrics of rows without labels."""

    model: Model = None
    metrics: Metrics = None
    rule: Annotated[Path | None, Option(help="a rule that hcal decide --save wrote")] = None
    threshold: Annotated[float | None, Option(help="decide positive from here on")] = None
    cost: Annotated[
        str | None, Option(help="costs of errors, fn=20,fp=1, or a JSON file of K x K costs")
    ] = None
    confidence: Annotated[float, Option(help="level of the intervals")] = 0.95
    positive: Positive = None

    def run(self) -> None:
        """Print the estimates."""
        import hcal

        if self.rule is not None and self.threshold is not None:
            raise ValueError(
                "--rule and --threshold both say how rows are decided: give one of them"
            )
        calibrator = load_model(self.model)
        data = self.read(calibrator)
        with console.working(f"estimating {console.shape_of(data)}", quiet=self.silent):
            estimates = hcal.estimate(
                probabilities(data, calibrator),
                names_of(self.metrics),
                rule=self.threshold if self.rule is None else self.rule,
                cost=costs_of(self.cost),
                by=data.by or None,
                sample_weight=data.weight,
                positive=self._positive(data),
                classes=text_names(data),
                confidence=self.confidence,
            )
        self.show(
            estimates.to_dict() | file_facts(data),
            lambda: _show(console.name(data.name), str(estimates)),
        )

    def _positive(self, data: DataFile) -> int | None:
        """Return the number of the positive class; None leaves it to the rule."""
        return None if self.positive is None else class_number(self.positive, data.classes)


def _show(name: str, text: str) -> None:
    console.out().print(f"[bold]{name}[/]")
    console.show_lines(text)
