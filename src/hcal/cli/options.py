"""What several commands share: options that say which rows are read, and the decorator that makes a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Exit, Option, Typer, echo

from hcal._version import __version__
from hcal.cli import console

if TYPE_CHECKING:
    from hcal.io import Batches, DataFile, Request, RowSource


#: The peak memory of a command, as a multiple of the bytes of the scores that it reads.
_PEAK = 10


Method = Annotated[
    str | None, Option(help="a calibrator by its registry name \\[default: pool; ts for questions]")
]
Model = Annotated[Path | None, Option("--model", "-m", help="a calibrator that hcal fit wrote")]
ModelFile = Annotated[Path, Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")]
Output = Annotated[Path, Option("--output", "-o", help="the file to write; type by extension")]
Positive = Annotated[str | None, Option(help="the positive class of two, by name or number")]
_FILES = ".npz .npy .csv .parquet .feather .jsonl; a folder or a pattern of files"


@dataclass(frozen=True)
class Files:
    """The files of a command and how to read them; all fields but the first are those of :class:`hcal.io.Request`."""

    file: Annotated[list[Path], Argument(help=_FILES, metavar="FILE")]
    input: Annotated[
        str | None, Option(help="logits, probs or log_probs, if the file does not say")
    ] = None
    labels: Annotated[Path | None, Option(help="a second file with the labels y")] = None
    scores: Annotated[
        str | None, Option(help="columns: a pattern 'logit_*', or names with commas")
    ] = None
    label: Annotated[str | None, Option(help="the column of labels, numbers or names")] = None
    id: Annotated[str | None, Option(help="a column that names the rows; apply copies it")] = None
    groups: Annotated[
        str | None, Option(help="a column of groups; rows of a group depend on each other")
    ] = None
    by: Annotated[
        str | None, Option(help="columns of subgroups to report on, separated by commas")
    ] = None
    weight: Annotated[str | None, Option(help="a column of weights; 2 counts the row twice")] = None
    time: Annotated[
        str | None, Option(help="a column of dates or numbers: when a row was made")
    ] = None
    classes: Annotated[
        str | None, Option(help="names separated by commas, in the order of the columns")
    ] = None
    option_score: Annotated[
        str | None, Option("--score", help="of an option or a sequence: sum, length, mean, …")
    ] = None
    unit: Annotated[
        str | None, Option(help="of numbers: percent, or the ends of a scale such as 0-10")
    ] = None
    unlabelled: Annotated[str, Option(help="drop: leave out rows without a label")] = "error"
    unreadable: Annotated[str, Option(help="drop: leave out confidences that cannot be read")] = (
        "error"
    )
    ranges: Annotated[str, Option(help="middle: read a stated '70-80 %' as 75 %")] = "error"
    ignore_index: Annotated[
        int | None, Option(help="leave out rows, or pixels, with this label")
    ] = None

    def request(self, calibrator: Any = None) -> Request:
        """Return how the rows are asked for; what the options leave open is as in the calibrator's fit."""
        from hcal.io import Request

        names = names_of(self.classes)
        given = vars(self) | {"classes": None if names is None else tuple(names)}
        asked = Request(**{name: value for name, value in given.items() if name != "file"})
        if calibrator is None:
            return asked
        from hcal.fit_record import fitted_request

        return asked.for_model(fitted_request(calibrator))

    def read(self, calibrator: Any = None, **options: Any) -> DataFile:
        """Read all rows, with columns and classes in the order of the calibrator if there is one."""
        from hcal.fit_record import fitted_names
        from hcal.io import read

        order = fitted_names(calibrator)
        data = read(self.file, self.request(calibrator), order=order, peak=_PEAK, **options)
        for note in data.notes:
            console.say("note", "cyan", note)
        return data

    def batches(self, rows: int | None, calibrator: Any = None, **options: Any) -> Batches:
        """Return the rows block by block, with columns and classes in the order of the calibrator if there is one."""
        from hcal.fit_record import fitted_names
        from hcal.io import batches

        order = fitted_names(calibrator)
        return batches(self.file, self.request(calibrator), rows=rows, order=order, **options)

    @property
    def several(self) -> bool:
        """Whether this is a folder, a pattern or several files, which are read block by block."""
        from hcal.io.reading import by_blocks

        return by_blocks(self.file)

    def of(self, path: Path) -> Files:
        """Return the same options for another file."""
        return replace(self, file=[path], labels=None)

    def options(self) -> str:
        """Return the options as text, for a command that reads the same file."""
        given = {n: v for n, v in vars(self).items() if n != "file" and v not in (None, "error")}
        flags = {name: name.removeprefix("option_").replace("_", "-") for name in given}
        return " ".join(f"--{flags[name]} '{value}'" for name, value in given.items())


@dataclass(frozen=True)
class Blocks:
    """How to work on more rows than memory holds: the rows of a block, and the processes that share the work."""

    batch_rows: Annotated[
        int | None, Option(min=1, help="read this many rows at a time, to save memory")
    ] = None
    workers: Annotated[
        int | None, Option(min=1, help="number of processes; the result is the same")
    ] = None
    scheduler: Annotated[
        str | None, Option(help="address of a Dask scheduler: its workers share the work")
    ] = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.scheduler is not None:
            raise ValueError(
                "--workers are of this machine, --scheduler has its own: give one of them"
            )

    def asked(self, files: Files) -> bool:
        """Whether rows are read block by block: because of an option, or because there are several files."""
        return files.several or any(value is not None for value in vars(self).values())

    @contextmanager
    def working(self, text: str, total: int | None, *, quiet: bool) -> Iterator[dict[str, Any]]:
        """Yield the runner of the pieces (None for this process), and a function that advances a progress bar."""
        from hcal.passes import Processes
        from hcal.progress import progress, silent

        with ExitStack() as stack:
            runner: Any = None if self.workers in (None, 1) else Processes(self.workers or 1)
            if self.scheduler is not None:
                from hcal.integrations import dask

                runner = stack.enter_context(dask.Runner(self.scheduler))
            if quiet:
                stack.enter_context(silent())
            advance = stack.enter_context(progress(console.name(text), total or 0))
            yield {"runner": runner, "advance": advance}


@dataclass(frozen=True)
class Opened:
    """The rows of a command as a source, and the first of them (or all) as they were read."""

    source: RowSource
    data: DataFile


@contextmanager
def opened(
    files: Files, blocks: Blocks, calibrator: Any, doing: str, *, quiet: bool
) -> Iterator[Opened]:
    """Open the rows of a command, block by block where that was asked for, and show the progress of the work."""
    from hcal.io.blocks import rows_of
    from hcal.io.sources import source_of_rows

    if blocks.asked(files):
        found = files.batches(blocks.batch_rows, calibrator)
        found.check_labels()
        with blocks.working(f"{doing} {found.name}", found.n_rows, quiet=quiet) as work:
            yield Opened(found.as_source(**work), found.first)
        return
    data = files.read(calibrator)
    data.labels()
    with console.working(f"{doing} {console.shape_of(data)}", quiet=quiet):
        yield Opened(source_of_rows(rows_of(data)), data)


@dataclass(frozen=True)
class Shown:
    """Whether the output is for a person, for a program (JSON), or not printed."""

    quiet: Annotated[
        bool, Option("--quiet", "-q", help="print nothing but errors and warnings")
    ] = False
    json: Annotated[bool, Option("--json", help="print one JSON object; NaN is null")] = False

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.json

    def show(self, found: Any, show: Callable[[], Any]) -> None:
        """Print the result as JSON if the user asked for it; else call ``show``, unless the command is quiet."""
        if self.json:
            console.print_json(found() if callable(found) else found)
        elif not self.quiet:
            show()


app = Typer(
    help="Turn the scores of any trained classifier into probabilities that can be trusted.",
    epilog="Start with: hcal demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="print the version")] = False) -> None:
    if version:
        echo(f"hcal {__version__}")
        raise Exit


def command(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; each dataclass among its parameters becomes options, and errors become one sentence.

    ``Annotated[Files, "weight"]`` leaves the option ``--weight`` out.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        shown: list[Parameter] = []
        made: dict[str, tuple[Any, list[str]]] = {}
        for name, parameter in signature(function, eval_str=True).parameters.items():
            kind = getattr(parameter.annotation, "__origin__", parameter.annotation)
            if not is_dataclass(kind):
                shown.append(parameter)
                continue
            left_out = getattr(parameter.annotation, "__metadata__", ())
            hints = get_type_hints(kind, include_extras=True)
            kept = [f for f in fields(kind) if f.name not in left_out]
            made[name] = kind, [f.name for f in kept]
            for f in kept:
                default = Parameter.empty if f.default is MISSING else f.default
                shown.append(
                    parameter.replace(name=f.name, annotation=hints[f.name], default=default)
                )

        def run(**given: Any) -> None:
            with console.friendly():
                for name, (kind, parts) in made.items():
                    given[name] = kind(**{part: given.pop(part) for part in parts})
                function(**given)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        told = ["Examples:", *(f"  [cyan]{example}[/]" for example in examples)]
        app.command(epilog="\n\n".join(told))(run)
        return function

    return register


def names_of(text: str | None) -> list[str] | None:
    """Return a list of names that are separated by commas.

    >>> names_of("cat, dog"), names_of(None)
    (['cat', 'dog'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def class_number(name: str | None, names: Any) -> int:
    """Return the number of the class with this name or number; class 1 by default.

    >>> class_number("sick", ["well", "sick"]), class_number("0", None), class_number(None, None)
    (1, 0, 1)
    """
    known = ["0", "1"] if names is None else [str(n) for n in names]
    for texts in (known, ["0", "1"]):
        if (name or "1") in texts:
            return texts.index(name or "1")
    raise ValueError(f"--positive {name}: no such class; there are {', '.join(known)}")


def load_model(path: Path | None, *, multilabel: bool = False) -> Any:
    """Return the calibrator of a file, None without a file; refuse a multilabel one unless it is allowed."""
    from hcal.methods.files import load

    calibrator = None if path is None else load(path)
    if not multilabel and getattr(calibrator, "name", "") == "multilabel":
        raise ValueError(
            f"{path} has several labels a row: apply, evaluate and info read it, other commands do not"
        )
    return calibrator


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Refuse, before the work begins, an output in a missing folder or one that would replace an input."""
    from hcal.io.finding import check_output as check

    check(output, inputs)
