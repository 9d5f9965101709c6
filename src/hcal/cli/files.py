"""What the commands share: from names of files and columns to scores, labels and calibrators."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcal.cli import console
from hcal.cli.opening import check_score
from hcal.cli.options import names_of

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.data import DataFile, Part

#: What people write for values that JSON spells otherwise.
_WORDS = {"None": None, "none": None, "True": True, "False": False}


@dataclass(frozen=True)
class Ask:
    """A file and what the options say of it."""

    file: list[Path]
    kind: str | None = None
    labels: Path | None = None
    scores: str | None = None
    label: str | None = None
    id: str | None = None
    group: str | None = None
    weight: str | None = None
    classes: str | None = None
    score: str = "sum"

    def read(self, *, part: Part = "test", kind: str | None = None) -> DataFile:
        """Read it; ``kind`` is that of a model, where one decides."""
        from hcal.data import Columns, read_data

        columns = Columns(self.scores, self.label, self.id, self.group, self.weight)
        return read_data(
            self.file, part=part, kind=kind or self.kind, labels=self.labels, columns=columns,
            classes=names_of(self.classes), score=check_score(self.score),
        )  # fmt: skip


def calibrator_and_data(model: Path | None, ask: Ask) -> tuple[Calibrator | None, DataFile]:
    """Return the model, if there is one, and the rows as it wants them."""
    from hcal.calibrators.files import load

    if model is None:
        return None, ask.read()
    calibrator = load(model)
    return calibrator, read_for(calibrator, model, ask)


def read_for(calibrator: Calibrator, model: Path, ask: Ask) -> DataFile:
    """Read the kind of scores that the calibrator was fitted on; say so where the file has another."""
    if ask.kind is not None and ask.kind != calibrator.input:
        raise ValueError(
            f"{model.name} was fitted on {calibrator.input}, so --input {ask.kind} cannot be right"
        )
    try:
        data = ask.read(kind=calibrator.input)
    except ValueError as error:
        raise type(error)(f"{error} ({model.name} was fitted on {calibrator.input})") from None
    return data.in_order_of(getattr(calibrator, "class_names_", None))


def parse_params(pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs; a value is JSON where it can be, None, True or False, else text.

    Examples
    --------
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
