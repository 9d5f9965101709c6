"""``hcal decide``: choose a threshold on labelled rows, or decide unlabelled rows by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from hcal.cli import console, options
from hcal.cli.measure import parse_cost
from hcal.cli.options import Files, Model, Positive, Shown, command
from hcal.io.files import open_regular, parse_json

if TYPE_CHECKING:
    from hcal.io import DataFile

#: A longer file is cut off, so it is no valid table of costs.
_LARGEST_TABLE: Final = 2**26


def probabilities(data: DataFile, calibrator: Any) -> Any:
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


def costs_of(text: str | None) -> Any:
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
        return parse_json(content, path.name)
    except ValueError as error:
        raise ValueError(f"{error}: write the table as [[0, 1], [20, 0]]") from None


@command(
    "hcal decide test.npz --model model.hcal --cost 'fn=20,fp=1' --save rule.json",
    "hcal decide new.csv --model model.hcal --rule rule.json -o decisions.csv",
    "hcal decide answers.npz --error 0.02",
)
def decide(
    *,
    files: Annotated[Files, "time"],
    model: Model = None,
    cost: Annotated[
        str | None, Option(help="costs of errors, fn=20,fp=1, or a JSON file of K x K costs")
    ] = None,
    capacity: Annotated[
        float | None, Option(help="the share of rows that can be acted on, such as 0.05")
    ] = None,
    precision: Annotated[float | None, Option(help="the least precision")] = None,
    recall: Annotated[float | None, Option(help="the least recall")] = None,
    error: Annotated[
        float | None, Option(help="answer, or give no answer: at most this share of wrong answers")
    ] = None,
    threshold: Annotated[float | None, Option(help="a known threshold; needs no labels")] = None,
    rule: Annotated[Path | None, Option(help="a rule that --save wrote; needs no labels")] = None,
    save: Annotated[Path | None, Option(help="write the chosen rule to this JSON file")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="write a decision for each row to this file")
    ] = None,
    confidence: Annotated[float, Option(help="level of the intervals")] = 0.95,
    positive: Positive = None,
    shown: Shown,
) -> None:
    """Choose the threshold for a cost, a capacity, a precision or a recall, or decide new rows by one."""
    import hcal
    from hcal.decisions import ThresholdRule, read_rule

    for path in (output, save):
        options.check_output(path, *files.file, model, rule)
    criteria = {
        "cost": costs_of(cost),
        "capacity": capacity,
        "precision": precision,
        "recall": recall,
    }
    aims = {**criteria, "error": error}
    chosen = [name for name, value in aims.items() if value is not None]
    ways = [*chosen, *(["threshold"] if threshold is not None else [])]
    ways += ["rule"] if rule is not None else []
    if len(ways) != 1:
        raise ValueError(
            "give one of --cost, --capacity, --precision, --recall, --error, which need labels, and "
            "--threshold, --rule, which do not"
        )
    if save is not None and not chosen:
        raise ValueError("--save keeps a rule that was chosen here: give --cost, or another aim")
    calibrator = options.load_model(model)
    data = files.read(calibrator)
    probs = probabilities(data, calibrator)
    names = text_names(data)
    number = options.class_number(positive, data.classes)
    if chosen:
        with console.working(
            f"choosing a threshold on {console.shape_of(data)}", quiet=shown.silent
        ):
            result: Any = None
            if error is not None:
                result = _abstained(data, probs, error, confidence, positive)
            else:
                result = hcal.thresholds(
                    probs, data.labels(), **criteria, sample_weight=data.weight, groups=data.groups,
                    confidence=confidence, positive=number, classes=names,
                )  # fmt: skip
        _save(save, result)
        applied: Any = result.rule
    else:
        result = None
        applied = read_rule(rule) if rule is not None else ThresholdRule(threshold or 0.0, number)
    decisions = hcal.decide(probs, applied, classes=names)
    if output is not None:
        _write(output, data, probs, decisions)
    counts = _counts(decisions)
    content = {"file": str(data.path), "rows": len(decisions), "decided": counts}
    if result is not None:
        content["result"] = result.to_dict()

    def show() -> None:
        console.out().print(f"[bold]{console.name(data.name)}[/], {len(decisions):,} rows")
        if result is not None:
            console.show_lines(result)
        else:
            listed = [f"{_decided(name)}: {count:,}" for name, count in counts.items()]
            console.show_lines("\n".join(listed))
        for path in (save, output):
            if path is not None:
                console.out().print(f"wrote [bold]{console.name(path)}[/]")

    shown.show(content, show)


def _abstained(
    data: DataFile, probs: Any, error: float, confidence: float, positive: str | None
) -> Any:
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
        positive=None if positive is None else options.class_number(positive, data.classes),
        classes=text_names(data),
    )


def _save(path: Path | None, result: Any) -> None:
    """Write a result to a temporary name and rename it."""
    from hcal.io import atomic_path

    if path is None:
        return
    with atomic_path(path) as temporary:
        temporary.write_text(result.to_json() + "\n", encoding="utf-8")


def _write(output: Path, data: DataFile, probs: Any, decisions: Any) -> None:
    """Write the ids, the probabilities and the decisions of all rows."""
    from hcal.io.writing import write_blocks

    with write_blocks(output, len(probs), classes=data.classes) as write:
        texts = ["" if decision is None else decision for decision in decisions.tolist()]
        write(probs, ids=data.ids, kept={"decision": texts})


def _counts(decisions: Any) -> dict[str, int]:
    """Return how many rows were decided for each class."""
    from collections import Counter

    counted = Counter(
        "" if decision in (None, -1) else str(decision) for decision in decisions.tolist()
    )
    return dict(sorted(counted.items()))


def _decided(name: str) -> str:
    return f"decided {name}" if name else "no answer"
