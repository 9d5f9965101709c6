"""From names of files and columns to rows and calibrators: what every command begins with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcal.cli import console

if TYPE_CHECKING:
    from hcal.io import Batches, DataFile, Part, Request

#: Peak of memory of a command over the bytes of the scores it reads.
_PEAK = 10
#: What people write for values that JSON spells otherwise.
_WORDS = {"None": None, "none": None, "True": True, "False": False}


def names_of(text: str | None) -> list[str] | None:
    """Return names with commas between them as a list.

    >>> names_of("cat, dog"), names_of(None)
    (['cat', 'dog'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True)
class Files:
    """Files, and what the options say of them."""

    file: list[Path]
    input: str | None = None
    labels: Path | None = None
    scores: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    weight: str | None = None
    classes: str | None = None
    score: str | None = None
    unit: str | None = None
    unlabelled: str = "error"
    unreadable: str = "error"
    ranges: str = "error"
    ignore_index: int | None = None

    def request(self, calibrator: Any = None) -> Request:
        """Return how the rows are asked for; what is left open, as the calibrator was fitted."""
        from hcal.io import Request

        names = names_of(self.classes)
        asked = Request(
            self.scores, self.label, self.id, self.group, self.weight, input=self.input, unit=self.unit,
            option_score=self.score, classes=None if names is None else tuple(names), labels=self.labels,
            unlabelled=self.unlabelled, unreadable=self.unreadable, ranges=self.ranges,  # type: ignore[arg-type]
            ignore_index=self.ignore_index,
        )  # fmt: skip
        if calibrator is None:
            return asked
        remembered = {"input": calibrator.input, **calibrator.info_.get("request", {})}
        return asked.for_model(remembered)

    def read(self, calibrator: Any = None, *, part: Part = "test", keep: bool = False) -> DataFile:
        """Read all rows, with the columns and classes that the calibrator wants where there is one."""
        from hcal.io import read

        data = read(
            self.file, self.request(calibrator), part=part, keep=keep, order=_order(calibrator), peak=_PEAK
        )
        for note in data.notes:
            console.say("note", "cyan", note)
        return data

    def batches(
        self, rows: int | None, calibrator: Any = None, *, part: Part = "test", keep: bool = False
    ) -> Batches:
        """Return the rows block by block, as the calibrator wants them where there is one."""
        from hcal.io import batches

        return batches(
            self.file, self.request(calibrator), rows=rows, part=part, order=_order(calibrator), keep=keep
        )

    @property
    def several(self) -> bool:
        """Whether it is a folder, a pattern or many files, which are read block by block."""
        from hcal.io.reading import by_blocks

        return by_blocks(self.file)

    def options(self) -> str:
        """Return the options again, for a command that reads the same file."""
        given = {n: v for n, v in vars(self).items() if n != "file" and v not in (None, "error")}
        return " ".join(f"--{name.replace('_', '-')} '{value}'" for name, value in given.items())


def _order(calibrator: Any) -> Any:
    return getattr(calibrator, "class_names_", None)


@dataclass(frozen=True)
class Blocks:
    """How rows are worked on that memory does not hold: rows of a block, and who shares the work."""

    batch_rows: int | None = None
    workers: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        for option, value in (("--batch-rows", self.batch_rows), ("--workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        if self.workers is not None and self.scheduler is not None:
            raise ValueError("--workers are of this machine, --scheduler has its own: give one of them")

    def asked(self, files: Files) -> bool:
        """Whether rows are read block by block: an option says so, or there are many files."""
        return files.several or (self.batch_rows, self.workers, self.scheduler) != (None, None, None)

    @contextmanager
    def working(self, text: str, total: int | None, *, quiet: bool) -> Iterator[dict[str, Any]]:
        """Yield who runs the pieces, and a bar to advance by rows."""
        from hcal.progress import progress, silent

        with self._runner() as runner:
            if quiet:
                with silent():
                    yield {"runner": runner}
                return
            with progress(console.name(text), total or 0, unit="rows") as advance:
                yield {"runner": runner, "advance": advance}

    @contextmanager
    def _runner(self) -> Iterator[Any]:
        if self.scheduler is not None:
            from hcal.integrations import dask

            with dask.Runner(self.scheduler) as runner:
                yield runner
        elif self.workers is not None and self.workers > 1:
            from hcal.passes import Processes

            yield Processes(self.workers)
        else:
            yield None


def load_model(path: Path | None) -> Any:
    """Return the calibrator of a file; None without one."""
    from hcal.calibrators.files import load

    return None if path is None else load(path)


def new_calibrator(
    method: str | None, data: DataFile, params: dict[str, Any], *, multilabel: bool = False
) -> Any:
    """Return the method that was asked for, for the kind of rows that a file holds."""
    from hcal.calibrators import make_calibrator
    from hcal.calibrators.multilabel import MultilabelCalibrator
    from hcal.calibrators.multiple_choice import MultipleChoiceCalibrator

    if multilabel:
        return MultilabelCalibrator(method or "pool", input=data.kind, **params)
    if not data.questions:
        return make_calibrator(method or "pool", **params, input=data.kind)
    unknown = sorted(set(params) - {"min_questions"})
    if unknown:
        raise ValueError(f"questions have no parameter {unknown[0]!r}; they have min_questions")
    return MultipleChoiceCalibrator(method or "ts", **params)


def for_prior(calibrator: Any, prior: str | None, scores: Any) -> Any:
    """Return the calibrator for the class frequencies that --prior names."""
    if prior is None:
        return calibrator
    if prior == "estimate":
        return calibrator.with_prior_from(scores)
    try:
        frequencies = [float(part) for part in prior.split(",")]
    except ValueError:
        raise ValueError(f"--prior takes numbers with commas, or 'estimate', got {prior!r}") from None
    return calibrator.with_prior(frequencies)


def parse_params(pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs; a value is JSON where it can be, None, True or False, else text.

    >>> parse_params(["bins=30", "preserve=None", "events=top-label"])
    {'bins': 30, 'preserve': None, 'events': 'top-label'}
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--param expects name=value, got {pair!r}")
        try:
            params[name] = _WORDS[value] if value in _WORDS else json.loads(value)
        except json.JSONDecodeError:
            params[name] = value
    if "input" in params:
        raise ValueError("say what the file holds with --input, not --param input=…")
    return params


def class_number(name: str | None, names: Any) -> int:
    """Return the class that a name or a number means; class 1 by default.

    >>> class_number("sick", ["well", "sick"]), class_number("0", None), class_number(None, None)
    (1, 0, 1)
    """
    if name is None:
        return 1
    texts = None if names is None else [str(n) for n in names]
    if texts is not None and name in texts:
        return texts.index(name)
    if name in ("0", "1"):
        return int(name)
    known = "0, 1" if texts is None else ", ".join(texts)
    raise ValueError(f"--positive {name}: no such class; there are {known}")


def shape_of(data: DataFile) -> str:
    """Return name, shape and part of what was read, for a progress line."""
    shape = " × ".join(f"{n:,}" for n in data.values.shape)
    return f"{data.name} ({shape}{f', {data.part} part' if data.part else ''})"


def check_output(output: Path | None, *read: Path | None) -> None:
    """Refuse, before the work begins, an output without a folder or one that would replace what is read."""
    if output is None:
        return
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {output.parent}")
    for path in read:
        if path is not None and _same_file(output, path):
            raise ValueError(f"the output {output} is also an input: choose another name")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist
        return os.path.realpath(one) == os.path.realpath(other)


def of_file(files: Files, path: Path) -> Files:
    """Return the same options for another file."""
    return replace(files, file=[path], labels=None)


def save_picture(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, atomically, in the format of the extension."""
    from hcal.io import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
