"""Arguments and options that several commands take, worded once."""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer


def _methods(incomplete: str) -> list[str]:
    from hcal.calibrators import list_calibrators

    return [name for name in list_calibrators() if name.startswith(incomplete)]


MethodOpt = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="a calibrator by its registry name \\[default: h; ts for questions]",
        autocompletion=_methods,
    ),
]
DataArg = Annotated[
    list[Path],
    typer.Argument(
        help=".npz .npy .csv .parquet .feather .jsonl .xlsx .safetensors .pt, Zarr, numpy pickle .p, .jsonl "
        "of lm-evaluation-harness (these may be several); a folder or a pattern of files",
        metavar="FILE",
    ),
]
OptionScoreOpt = Annotated[
    str,
    typer.Option("--score", help="of an option, in .jsonl samples: sum, length or mutual-information"),
]
InputOpt = Annotated[
    str | None, typer.Option("--input", help="logits, probs or log_probs; needed where the file does not say")
]
LabelsOpt = Annotated[Path | None, typer.Option("--labels", help="a second file with the labels y")]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and warnings")]
JsonOpt = Annotated[bool, typer.Option("--json", help="print one JSON object for machines")]
ModelOpt = Annotated[Path | None, typer.Option("--model", "-m", help="a calibrator that hcal fit wrote")]

ScoresOpt = Annotated[
    str | None,
    typer.Option("--scores", help="the columns of scores: a pattern 'logit_*', or names with commas"),
]
LabelOpt = Annotated[str | None, typer.Option("--label", help="the column of labels, numbers or names")]
IdOpt = Annotated[
    str | None, typer.Option("--id", help="a column that names the rows: no score; apply carries it along")
]
GroupOpt = Annotated[str | None, typer.Option("--group", help="a column of the file: judge every group")]
WeightOpt = Annotated[str | None, typer.Option("--weight", help="a column of weights: 2 is the row twice")]
ClassesOpt = Annotated[
    str | None,
    typer.Option("--classes", help="names of the classes with commas, in the order of the columns"),
]
BatchRowsOpt = Annotated[
    int | None,
    typer.Option("--batch-rows", help="read so many rows at a time: for files that memory does not hold"),
]
WorkersOpt = Annotated[
    int | None, typer.Option("--workers", help="processes that share the work; the answer is the same")
]
SchedulerOpt = Annotated[
    str | None, typer.Option("--scheduler", help="address of a Dask scheduler whose workers share the work")
]

#: The options that say what is read, worded and defaulted once.
READING: Final[dict[str, tuple[Any, Any]]] = {
    "file": (DataArg, Parameter.empty),
    "input": (InputOpt, None),
    "labels": (LabelsOpt, None),
    "score": (OptionScoreOpt, "sum"),
    "scores": (ScoresOpt, None),
    "label": (LabelOpt, None),
    "id": (IdOpt, None),
    "group": (GroupOpt, None),
    "weight": (WeightOpt, None),
    "classes": (ClassesOpt, None),
}
#: The options that say how rows are worked on where memory does not hold them.
SCALE: Final[dict[str, tuple[Any, Any]]] = {
    "batch_rows": (BatchRowsOpt, None),
    "workers": (WorkersOpt, None),
    "scheduler": (SchedulerOpt, None),
}
SHOWN: Final[dict[str, tuple[Any, Any]]] = {"quiet": (QuietOpt, False), "json": (JsonOpt, False)}


def names_of(text: str | None) -> list[str] | None:
    """Return names with commas between them as a list.

    >>> names_of("cat, dog"), names_of(None)
    (['cat', 'dog'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
