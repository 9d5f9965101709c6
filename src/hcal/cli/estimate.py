"""``hcal estimate``: what accuracy, recall, cost, … of rows without labels are expected to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hcal.cli import console, options
from hcal.cli.decide import costs_of, probabilities, text_names
from hcal.cli.options import Files, Model, Positive, Shown, command, names_of


@command(
    "hcal estimate next-month.csv --model model.hcal --rule rule.json --by country",
    "hcal estimate new.npz --model model.hcal --metrics accuracy,auc",
)
def estimate(
    *,
    files: Annotated[Files, "groups", "time"],
    model: Model = None,
    metrics: Annotated[str | None, Option(help="names separated by commas")] = None,
    rule: Annotated[Path | None, Option(help="a rule that hcal decide --save wrote")] = None,
    threshold: Annotated[float | None, Option(help="decide positive from here on")] = None,
    cost: Annotated[
        str | None, Option(help="costs of errors, fn=20,fp=1, or a JSON file of K x K costs")
    ] = None,
    confidence: Annotated[float, Option(help="level of the intervals")] = 0.95,
    positive: Positive = None,
    shown: Shown,
) -> None:
    """Estimate accuracy, recall, cost and other metrics of rows without labels."""
    import hcal

    if rule is not None and threshold is not None:
        raise ValueError("--rule and --threshold both say how rows are decided: give one of them")
    calibrator = options.load_model(model)
    data = files.read(calibrator)
    estimates = hcal.estimate(
        probabilities(data, calibrator),
        names_of(metrics),
        rule=threshold if rule is None else rule,
        cost=costs_of(cost),
        by=data.by or None,
        sample_weight=data.weight,
        positive=options.class_number(positive, data.classes),
        classes=text_names(data),
        confidence=confidence,
    )

    def show() -> None:
        console.out().print(f"[bold]{console.name(data.name)}[/]")
        console.show_lines(estimates)

    shown.show(estimates.to_dict, show)
