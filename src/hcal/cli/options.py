"""What several commands share. A command is a dataclass: its fields are its options, and ``run`` does its work.

Typer reads the types of fields from classes that may stand in another module. So this module holds types and not
their names: it does without ``from __future__ import annotations``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeVar, overload

from typer import Argument, BadParameter, Context, Exit, Option, Typer, echo

from hcal._version import __version__
from hcal.cli import console
from hcal.progress import logger
from hcal.text import JsonObject, quoted

if TYPE_CHECKING:
    from hcal.class_names import ClassName
    from hcal.io import Batches, DataFile, Request, RowSource
    from hcal.language_models import JointConfidence
    from hcal.methods.base import Calibrator
    from hcal.operation.gates import Gated
    from hcal.passes import Advance, Runner

#: The peak memory of a command, as a multiple of the bytes of the scores that it reads.
_PEAK: Final = 10
_FILES: Final = (
    ".npz .npy .csv .parquet .feather .jsonl; a folder or a pattern of files; - is standard input"
)
#: The titles under which ``--help`` lists the options that several commands share.
_ROWS: Final = "Rows of the file"
_WORK: Final = "More rows than memory holds"
_SHOWN: Final = "Every command"

Format = Literal["csv", "jsonl", "parquet", "feather", "npz", "npy", "onnx", "json", "sql", "mjs"]
Method = Annotated[
    str | None, Option(help="a calibrator by its registry name \\[default: pool; ts for questions]")
]
Model = Annotated[Path | None, Option("--model", "-m", help="a calibrator that hcal fit wrote")]
ModelFile = Annotated[Path, Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")]
Output = Annotated[
    Path,
    Option("--output", "-o", help="the file to write; type by extension; - is standard output"),
]
Positive = Annotated[str | None, Option(help="the positive class of two, by name or number")]
Metrics = Annotated[str | None, Option(help="names separated by commas; default: all")]
SampleRows = Annotated[int | None, Option(help="learn from a random sample of this many rows")]
#: The exit code of a command whose result does not meet a requirement, or that ends in an alarm.
FAILED: Final = 3


def _read_config(context: Context, path: Path | None) -> Path | None:
    """Take from a file what the command line leaves open."""
    from hcal.cli.config import read_config

    return None if path is None else read_config(context, path)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What every command takes."""

    #: The name and version of what ``--json`` prints, where it is no result of a public function.
    schema: ClassVar[str] = ""
    #: The type of the file that ``-o -`` writes, where there is one alone.
    output_type: ClassVar[str | None] = None

    config: Annotated[
        Path | None,
        Option(
            "--config",
            is_eager=True,
            callback=_read_config,
            rich_help_panel=_SHOWN,
            help="a TOML file with options of commands, such as hcal.toml",
        ),
    ] = None
    format: Annotated[
        Format | None,
        Option(rich_help_panel=_SHOWN, help="the type of standard input or output, -"),
    ] = None
    quiet: Annotated[
        bool, Option("--quiet", "-q", rich_help_panel=_SHOWN, help="print only errors and warnings")
    ] = False
    json: Annotated[
        bool, Option("--json", rich_help_panel=_SHOWN, help="print one JSON object; NaN is null")
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        Option(
            rich_help_panel=_SHOWN,
            help="which notes are shown; warnings and errors always are \\[default: info]",
        ),
    ] = None

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.json

    @property
    def least_level(self) -> str:
        """The level from which on notes are shown."""
        return self.log_level or ("warning" if self.quiet else "info")

    @property
    def streams(self) -> list[str]:
        """The options that stand for standard input or output."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [
            name
            for name, value in values.items()
            if console.STANDARD in (value if isinstance(value, list) else [value])
        ]

    def run(self) -> None:
        """Do the work of the command."""
        raise NotImplementedError

    def show(self, content: Mapping[str, object], text: Callable[[], object]) -> None:
        """Print the content as JSON if the user asked for it; else call ``text``, unless the command is quiet."""
        if self.json:
            schema = self.schema or content["schema"]
            console.print_json({"schema": schema} | dict(content) | {"schema": schema})
        elif not self.quiet:
            text()


@dataclass(frozen=True, kw_only=True)
class ModelFirst(Command):
    """The model is the first argument. This stands last among the classes that a command inherits."""

    model: ModelFile


@dataclass(frozen=True, kw_only=True)
class Files(Command):
    """The files of a command and how to read them, as :class:`hcal.io.Request` says it."""

    file: Annotated[list[Path], Argument(help=_FILES, metavar="FILE")]
    input: Annotated[
        str | None,
        Option(rich_help_panel=_ROWS, help="logits, probs or log_probs, if the file does not say"),
    ] = None
    scores: Annotated[
        str | None,
        Option(rich_help_panel=_ROWS, help="columns: a pattern 'logit_*', or names with commas"),
    ] = None
    label: Annotated[
        str | None, Option(rich_help_panel=_ROWS, help="the column of labels, numbers or names")
    ] = None
    id: Annotated[
        str | None,
        Option(rich_help_panel=_ROWS, help="a column that names the rows; apply copies it"),
    ] = None
    classes: Annotated[
        str | None,
        Option(
            rich_help_panel=_ROWS, help="names separated by commas, in the order of the columns"
        ),
    ] = None
    option_score: Annotated[
        str | None,
        Option(
            "--score",
            rich_help_panel=_ROWS,
            help="of an option or a sequence: sum, length, mean, …",
        ),
    ] = None
    unit: Annotated[
        str | None,
        Option(
            rich_help_panel=_ROWS, help="of numbers: percent, or the ends of a scale such as 0-10"
        ),
    ] = None
    unlabelled: Annotated[
        str, Option(rich_help_panel=_ROWS, help="drop: leave out rows without a label")
    ] = "error"
    unreadable: Annotated[
        str, Option(rich_help_panel=_ROWS, help="drop: leave out confidences that cannot be read")
    ] = "error"
    ranges: Annotated[
        str, Option(rich_help_panel=_ROWS, help="middle: read a stated '70-80 %' as 75 %")
    ] = "error"
    ignore_index: Annotated[
        int | None, Option(rich_help_panel=_ROWS, help="leave out rows, or pixels, with this label")
    ] = None

    def request(self, calibrator: "Calibrator | None" = None) -> "Request":
        """Return how rows are read; what the options leave open is as in the calibrator's fit."""
        from hcal.fit_record import fitted_request
        from hcal.io import Request

        names = names_of(self.classes)
        request = Request(
            scores=self.scores,
            label=self.label,
            id=self.id,
            # Only commands that can use them have these options.
            groups=getattr(self, "groups", None),
            by=getattr(self, "by", None),
            weight=getattr(self, "weight", None),
            time=getattr(self, "time", None),
            labels=getattr(self, "labels", None),
            input=self.input,
            unit=self.unit,
            option_score=self.option_score,
            classes=None if names is None else tuple(names),
            unlabelled=self.unlabelled,
            unreadable=self.unreadable,
            ranges=self.ranges,
            ignore_index=self.ignore_index,
        )
        return request if calibrator is None else request.for_model(fitted_request(calibrator))

    def read(
        self, calibrator: "Calibrator | None" = None, *, part: Literal["cal", "test"] = "test"
    ) -> "DataFile":
        """Read all rows, with columns and classes in the order of the calibrator if there is one."""
        from hcal.fit_record import fitted_names
        from hcal.io import read

        order = fitted_names(calibrator)
        return read(self.file, self.request(calibrator), order=order, peak=_PEAK, part=part)

    @property
    def several(self) -> bool:
        """Whether this is a folder, a pattern or several files, which are read block by block."""
        from hcal.io.reading import by_blocks

        return by_blocks(self.file)


@dataclass(frozen=True, kw_only=True)
class WithLabels(Files):
    """Labels may stand in a second file."""

    labels: Annotated[
        Path | None, Option(rich_help_panel=_ROWS, help="a second file with the labels y")
    ] = None


@dataclass(frozen=True, kw_only=True)
class WithGroups(Files):
    """Rows may depend on each other."""

    groups: Annotated[
        str | None,
        Option(
            rich_help_panel=_ROWS, help="a column of groups; rows of a group depend on each other"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WithBy(Files):
    """Rows may belong to subgroups."""

    by: Annotated[
        str | None,
        Option(
            rich_help_panel=_ROWS, help="columns of subgroups to report on, separated by commas"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WithWeight(Files):
    """Rows may have weights."""

    weight: Annotated[
        str | None,
        Option(rich_help_panel=_ROWS, help="a column of weights; 2 counts the row twice"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EachRowOnce(Files):
    """Every row counts once, also where the model was fitted with weights."""

    def request(self, calibrator: "Calibrator | None" = None) -> "Request":
        """Return how rows are read: without the weights of the calibrator's fit."""
        request = super().request(calibrator)
        if request.weight is not None:
            name = quoted(request.weight)
            logger.info("every row counts once: the weights of the fit, %s, are not read", name)
        return replace(request, weight=None)


@dataclass(frozen=True, kw_only=True)
class WithTime(Files):
    """Rows may have a time."""

    time: Annotated[
        str | None,
        Option(rich_help_panel=_ROWS, help="a column of dates or numbers: when a row was made"),
    ] = None


@dataclass(frozen=True)
class Opened:
    """The rows of a command as a source, and the first of them (or all) as they were read."""

    source: "RowSource"
    data: "DataFile"


def _refuse_workers(value: int | None) -> int | None:
    """Refuse the name that an option had before."""
    if value is not None:
        raise BadParameter("--workers is now --jobs")
    return value


@dataclass(frozen=True, kw_only=True)
class InBlocks(Files):
    """Rows may be more than memory holds: how many are read at a time, and the processes that share the work."""

    batch_rows: Annotated[
        int | None,
        Option(min=1, rich_help_panel=_WORK, help="read this many rows at a time, to save memory"),
    ] = None
    jobs: Annotated[
        int | None,
        Option(min=1, rich_help_panel=_WORK, help="number of processes; the result is the same"),
    ] = None
    workers: Annotated[int | None, Option(hidden=True, callback=_refuse_workers)] = None
    scheduler: Annotated[
        str | None,
        Option(
            rich_help_panel=_WORK, help="address of a Dask scheduler: its workers share the work"
        ),
    ] = None

    @property
    def by_blocks(self) -> bool:
        """Whether rows are read block by block: because of an option, or because there are several files."""
        options = (self.batch_rows, self.jobs, self.scheduler)
        return self.several or any(value is not None for value in options)

    def batches(
        self, calibrator: "Calibrator | None" = None, *, part: Literal["cal", "test"] = "test"
    ) -> "Batches":
        """Return the rows block by block, with columns and classes in the order of the calibrator if there is one."""
        from hcal.fit_record import fitted_names
        from hcal.io import batches

        order = fitted_names(calibrator)
        request = self.request(calibrator)
        return batches(self.file, request, rows=self.batch_rows, order=order, part=part)

    @contextmanager
    def working(
        self, text: str, total: int | None = None
    ) -> "Iterator[tuple[Runner | None, Advance]]":
        """Yield the runner of the pieces (None for this process), and a function that advances a progress bar."""
        from hcal.passes import Processes

        if self.jobs is not None and self.scheduler is not None:
            raise ValueError(
                "--jobs are of this machine, --scheduler has its own: give one of them"
            )
        with ExitStack() as stack:
            runner: Runner | None = None if self.jobs in (None, 1) else Processes(self.jobs or 1)
            if self.scheduler is not None:
                from hcal.integrations import dask

                runner = stack.enter_context(dask.Runner(self.scheduler))
            advance = stack.enter_context(console.working(text, total, quiet=self.silent))
            yield runner, advance

    @contextmanager
    def opened(
        self, calibrator: "Calibrator | None", doing: str, *, part: Literal["cal", "test"] = "test"
    ) -> Iterator[Opened]:
        """Open labelled rows, by blocks where that was asked for, and show the progress of the work."""
        from hcal.io.blocks import rows_of
        from hcal.io.sources import source_of_rows

        if self.by_blocks:
            batches = self.batches(calibrator, part=part)
            batches.check_labels()
            work = self.working(f"{doing} {batches.name}", batches.n_rows)
            with work as (runner, advance):
                yield Opened(batches.as_source(runner=runner, advance=advance), batches.first)
            return
        data = self.read(calibrator, part=part)
        data.labels()
        with console.working(f"{doing} {console.shape_of(data)}", quiet=self.silent):
            yield Opened(source_of_rows(rows_of(data)), data)


def _finish(command: Command | None, **_: object) -> None:
    """Run a command whose options were read; each error becomes one sentence."""
    if command is None:
        return
    with console.friendly(command.least_level):
        if not command.streams:
            command.run()
            return

        from hcal.cli.streams import standard_streams

        with standard_streams(command, command.streams) as ready:
            ready.run()


app = Typer(
    help="Turn the scores of any trained classifier into probabilities that can be trusted.",
    epilog="Start with: hcal demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    result_callback=_finish,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="print the version")] = False) -> None:
    if version:
        echo(f"hcal {__version__}")
        raise Exit


C = TypeVar("C", bound=Command)


def command(name: str, *examples: str) -> Callable[[type[C]], type[C]]:
    """Register a command by its name, with examples for its help."""
    lines = ["Examples:", *(f"  [cyan]{example}[/]" for example in examples)]
    return app.command(name, epilog="\n\n".join(lines))


def names_of(text: str | None) -> list[str] | None:
    """Return a list of names that are separated by commas.

    >>> names_of("cat, dog"), names_of(None)
    (['cat', 'dog'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def class_number(name: str | None, names: "Sequence[ClassName] | None") -> int:
    """Return the number of the class with this name or number; the second class by default.

    >>> class_number("sick", ["well", "sick"]), class_number("0", None), class_number(None, ["1", "2"])
    (1, 0, 1)
    """
    if name is None:  # also where another class is named 1
        return 1
    class_names = ["0", "1"] if names is None else [str(n) for n in names]
    for texts in (class_names, ["0", "1"]):
        if name in texts:
            return texts.index(name)
    raise ValueError(f"--positive {name}: no such class; there are {', '.join(class_names)}")


def class_called(name: str | None, names: "Sequence[ClassName] | None") -> "ClassName":
    """Return the class with this name or number as public functions take it: by its name, if it has one.

    >>> class_called("1", [2, 1]), class_called("1", None)
    (1, 1)
    """
    number = class_number(name, names)
    return number if names is None else names[number]


@overload
def load_model(path: Path, *, multilabel: bool = False) -> "Calibrator": ...


@overload
def load_model(path: Path | None, *, multilabel: bool = False) -> "Calibrator | None": ...


def load_model(path: Path | None, *, multilabel: bool = False) -> "Calibrator | None":
    """Return the calibrator of a file, None without a file; refuse a multilabel one unless it is allowed."""
    from hcal.methods.files import load

    calibrator = None if path is None else load(path)
    if getattr(calibrator, "name", "") == "joint":
        raise ValueError(
            f"{path} joins several confidences of an answer: apply and info read it, other "
            "commands do not"
        )
    if not multilabel and getattr(calibrator, "name", "") == "multilabel":
        raise ValueError(
            f"{path} has several labels a row: apply, evaluate and info read it, other commands "
            "do not"
        )
    return calibrator


def joint_model(path: Path) -> "JointConfidence | None":
    """Return the joined confidences of a model file; None where it holds another model."""
    from hcal.io.model_file import read_model
    from hcal.language_models import JointConfidence
    from hcal.methods.files import load

    holds_joint = read_model(path)[0].get("name") == "joint"
    joint: object = load(path) if holds_joint else None
    return joint if isinstance(joint, JointConfidence) else None


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Refuse, before the work begins, an output in a missing folder or one that would replace an input."""
    from hcal.io.files import check_output as check

    check(output, inputs)


def file_facts(data: "DataFile") -> JsonObject:
    """Return what JSON says of the file that was read."""
    return {
        "file": console.title_of(data.path),
        "part": data.part or None,
        "input": data.kind,
        "class_names": None if data.classes is None else list(data.classes),
    }


def with_file(command: C, path: Path) -> C:
    """Return a command with the same options for another file."""
    if isinstance(command, WithLabels):
        return replace(command, file=[path], labels=None)
    return replace(command, file=[path])  # type: ignore[call-arg]


def stated_options(files: Files) -> str:
    """Return the options that say how rows are read, as text for a command that reads the same file."""
    names = ("input", "scores", "label", "id", "groups", "by", "weight", "time", "classes", "unit",
             "unlabelled", "unreadable", "ranges", "ignore_index", "labels")  # fmt: skip
    values = {name: getattr(files, name, None) for name in names}
    values["score"] = files.option_score
    stated = {name: value for name, value in values.items() if value not in (None, "error")}
    return " ".join(f"--{name.replace('_', '-')} '{value}'" for name, value in stated.items())


# -- requirements that a result must meet -----------------------------------------------------------


def _check_form(texts: list[str] | None) -> list[str] | None:
    """Refuse text that is no requirement, before anything is read: a wrong command."""
    if not texts:
        return texts

    from hcal.operation.gates import Requirement

    for text in texts:
        try:
            Requirement.parse(text)
        except ValueError as error:
            raise BadParameter(str(error)) from None
    return texts


@dataclass(frozen=True, kw_only=True)
class Requiring(Files):
    """What the result must be like; otherwise the command ends with the exit code 3."""

    require: Annotated[
        list[str] | None,
        Option(
            help="such as 'ece_ew<0.02', 'change(nll)<0' or, of a report, 'grade>=good'; "
            "repeatable; exit code 3 if it is not met",
            callback=_check_form,
        ),
    ] = None

    def expect(self, *, grade: bool = False, model: bool = True) -> None:
        """Refuse requirements that this command cannot check, before the work begins."""
        if not self.require:
            return

        from hcal.operation.gates import Requirement, missing_words

        for text in self.require:
            name = Requirement.parse(text).name
            if (name == "grade" and not grade) or (name.startswith("change(") and not model):
                raise ValueError(missing_words(name, [name[7:-1]]))

    def checks(self, result: "Gated") -> JsonObject:
        """Return the checks for the command's JSON; nothing without a requirement."""
        if not self.require:
            return {}

        from hcal.operation.gates import require

        return {"requirements": require(result, self.require).checks}

    def check(self, result: "Gated") -> None:
        """End the command with the exit code 3, and a line for each requirement, where one is not met."""
        if not self.require:
            return

        from hcal.operation.gates import require

        failures = require(result, self.require).failures
        for failure in failures:
            console.say("failed", "red", failure)
        if failures:
            raise Exit(FAILED)
