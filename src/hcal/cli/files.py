"""What the commands share: from names of files and columns to scores, labels and calibrators."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hcal.cli import console
from hcal.cli.opening import check_score
from hcal.cli.options import names_of

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.inputs import InputKind
    from hcal.io import Batches, DataFile, Part, Request

T = TypeVar("T")

#: What people write for values that JSON spells otherwise.
_WORDS = {"None": None, "none": None, "True": True, "False": False}


@dataclass(frozen=True)
class Ask:
    """A file and what the options say of it."""

    file: list[Path]
    input: str | None = None
    labels: Path | None = None
    scores: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    weight: str | None = None
    classes: str | None = None
    score: str = "sum"

    def read(self, *, part: Part = "test", kind: str | None = None) -> DataFile:
        """Read all of it; ``kind`` is that of a model, where one decides."""
        from hcal.io import read

        return read(self.file, self.request(kind), part=part)

    @property
    def several(self) -> bool:
        """Whether it is a folder, a pattern or a store: read as one set of rows by blocks."""
        from hcal.io.reading import is_many

        together = len(self.file) > 1 and any(path.suffix.lower() != ".jsonl" for path in self.file)
        return together or any(is_many(path) for path in self.file)

    def check_memory(self, times: int, kind: str | None = None) -> None:
        """Raise before anything starts where all rows, at ``times`` their bytes, would not fit in memory."""
        from contextlib import suppress

        from hcal.io.limits import check_memory
        from hcal.io.reading import declared_bytes

        declared = 0
        with suppress(ValueError, OSError, ImportError):  # whoever reads it will say
            declared = declared_bytes(self.file, self.request(kind))
        check_memory(self.file[0].name, times * declared)

    def batches(
        self, rows: int | None, *, part: Part = "test", kind: str | None = None, order: Any = None
    ) -> Batches:
        """Read it by blocks; ``kind`` and ``order`` of classes are those of a model, where one decides."""
        from hcal.io import batches

        return batches(self.file, self.request(kind), rows=rows, part=part, order=order)

    def request(self, kind: str | None = None) -> Request:
        """Return what the options say of the file; ``kind`` is that of a model, where one decides."""
        from hcal.io import Request

        names = names_of(self.classes)
        return Request(
            self.scores, self.label, self.id, self.group, self.weight, input=kind or self.input,
            option_score=check_score(self.score), classes=None if names is None else tuple(names),
            labels=self.labels,
        )  # fmt: skip


def calibrator_and_data(model: Path | None, ask: Ask) -> tuple[Calibrator | None, DataFile]:
    """Return the model, if there is one, and the rows as it wants them."""
    from hcal.calibrators.files import load

    if model is None:
        return None, ask.read()
    calibrator = load(model)
    return calibrator, read_for(calibrator, model, ask)


def read_for(calibrator: Calibrator, model: Path, ask: Ask) -> DataFile:
    """Read the kind of scores that the calibrator was fitted on, its classes in the order of the fit."""
    data = as_fitted(calibrator, model, ask, lambda kind: ask.read(kind=kind))
    return data.in_order_of(getattr(calibrator, "class_names_", None))


def as_fitted(calibrator: Calibrator, model: Path, ask: Ask, read: Callable[[InputKind], T]) -> T:
    """Read the kind of scores that the calibrator was fitted on; say so where the file has another."""
    if ask.input is not None and ask.input != calibrator.input:
        raise ValueError(
            f"{model.name} was fitted on {calibrator.input}, so --input {ask.input} cannot be right"
        )
    try:
        return read(calibrator.input)
    except ValueError as error:
        raise type(error)(f"{error} ({model.name} was fitted on {calibrator.input})") from None


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


def shape_of(data: DataFile) -> str:
    """Return name, shape and part of what was read, for a progress line."""
    shape = " × ".join(f"{n:,}" for n in data.values.shape)
    return f"{data.name} ({shape}{f', {data.part} part' if data.part else ''})"


def check_output(output: Path, *read: Path | None) -> None:
    """Refuse, before the work begins, an output without a folder or one that would replace what is read."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {output.parent}")
    console.refuse_inputs(output, *read)
