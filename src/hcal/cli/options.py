"""The options that several commands take, worded once, and what turns a function into a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hcal.cli import console
from hcal.cli.files import Blocks, Files


def _methods(incomplete: str) -> list[str]:
    from hcal.calibrators import list_calibrators

    return [name for name in list_calibrators() if name.startswith(incomplete)]


def _text(flag: str, help: str, default: Any = None, kind: Any = str | None) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(flag, help=help)], default


MethodOpt = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="a calibrator by its registry name \\[default: pool; ts for questions]",
        autocompletion=_methods,
    ),
]
ModelOpt = Annotated[Path | None, typer.Option("--model", "-m", help="a calibrator that hcal fit wrote")]
OutputOpt = Annotated[Path, typer.Option("--output", "-o", help="the file to write; type by extension")]
PlotOpt = Annotated[Path | None, typer.Option("--plot", help="write the picture, .png or .svg")]
PositiveOpt = Annotated[
    str | None, typer.Option("--positive", help="the positive class of two, by name or number")
]

#: What says which rows are read. Every name is a field of :class:`hcal.cli.files.Files`.
READING: dict[str, tuple[Any, Any]] = {
    "file": (
        Annotated[
            list[Path],
            typer.Argument(
                help=".npz .npy .csv .parquet .feather .jsonl or a numpy pickle .p; "
                "a folder or a pattern of files",
                metavar="FILE",
            ),
        ],
        Parameter.empty,
    ),
    "input": _text("--input", "logits, probs or log_probs; needed where the file does not say"),
    "labels": _text("--labels", "a second file with the labels y", kind=Path | None),
    "scores": _text("--scores", "the columns of scores: a pattern 'logit_*', or names with commas"),
    "label": _text("--label", "the column of labels, numbers or names"),
    "id": _text("--id", "a column that names the rows; apply carries it along"),
    "group": _text("--group", "a column: rows of one group depend on each other"),
    "weight": _text("--weight", "a column of weights: 2 is the row twice"),
    "classes": _text("--classes", "names of the classes with commas, in the order of the columns"),
    "score": _text("--score", "of an option, in .jsonl samples: sum, length or mutual-information"),
    "unit": _text("--unit", "percent, where probabilities go up to 100"),
    "unlabelled": _text("--unlabelled", "drop: leave out rows without a label", "error", str),
    "unreadable": _text("--unreadable", "drop: leave out confidences that cannot be read", "error", str),
    "ignore_index": _text("--ignore-index", "leave out rows, or pixels, with this label", kind=int | None),
    "ranges": _text("--ranges", "middle: read a stated '70-80 %' as 75 %", "error", str),
}
BLOCKS: dict[str, tuple[Any, Any]] = {
    "batch_rows": _text(
        "--batch-rows", "read so many rows at a time, for files beyond memory", kind=int | None
    ),
    "workers": _text("--workers", "processes that share the work; the answer is the same", kind=int | None),
    "scheduler": _text("--scheduler", "address of a Dask scheduler whose workers share the work"),
}
SHOWN: dict[str, tuple[Any, Any]] = {
    "quiet": (
        Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and warnings")],
        False,
    ),
    "json": (Annotated[bool, typer.Option("--json", help="print one JSON object; NaN is null")], False),
}


@dataclass(frozen=True)
class Shown:
    """Whether a person reads the output, a program, or nobody."""

    quiet: bool
    json: bool

    @property
    def silent(self) -> bool:
        """Whether nothing is said while the work goes on."""
        return self.quiet or self.json

    def show(self, found: Callable[[], Any], show: Callable[[], Any]) -> None:
        """Print what was found as JSON where that was asked for, or show it where anything is to be shown."""
        if self.json:
            console.print_json(found())
        elif not self.quiet:
            show()


@dataclass(frozen=True)
class Group:
    """Marks a parameter of a command that several options make."""

    make: Callable[..., Any]
    parts: dict[str, tuple[Any, Any]]


def reading(leave_out: str = "") -> Group:
    """Return the options that say which rows are read, but for some."""
    return Group(Files, {name: part for name, part in READING.items() if name not in leave_out.split()})


IN_BLOCKS, OUTPUT = Group(Blocks, BLOCKS), Group(Shown, SHOWN)


def command(app: typer.Typer, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: a parameter that marks a group becomes its options, and errors become one sentence."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        shown: list[Parameter] = []
        made: dict[str, Group] = {}
        for name, parameter in signature(function, eval_str=True).parameters.items():
            marks = [m for m in getattr(parameter.annotation, "__metadata__", ()) if isinstance(m, Group)]
            parts = {name: (parameter.annotation, parameter.default)}
            if marks:
                made[name], parts = marks[0], marks[0].parts
            shown += [
                Parameter(part, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
                for part, (annotation, default) in parts.items()
            ]

        def run(**given: Any) -> None:
            with console.friendly():
                for name, mark in made.items():
                    given[name] = mark.make(**{part: given.pop(part) for part in mark.parts})
                function(**given)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        told = ["Examples:", *(f"  [cyan]{example}[/]" for example in examples)]
        app.command(epilog="\n\n".join(told))(run)
        return function

    return register
