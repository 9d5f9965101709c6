"""What every command is made of: options that belong together are one parameter, errors are one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any

import typer

from hcal.cli import console
from hcal.cli.files import Ask
from hcal.cli.options import READING, SCALE, SHOWN
from hcal.cli.scale import Scale


@dataclass(frozen=True)
class Shown:
    """What the options say of the output: a person's, a machine's, or none."""

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
class Options:
    """Mark a parameter of a command that several options make: their annotations and defaults, by name."""

    make: Callable[..., Any]
    parts: dict[str, tuple[Any, Any]]


def reading(names: str, **others: Any) -> Options:
    """Return the options behind an :class:`Ask`, by their names; ``others`` are worded for one command."""
    parts = {name: READING[name] for name in names.split()}
    return Options(Ask, parts | {name: (option, None) for name, option in others.items()})


BY_BLOCKS = Options(Scale, SCALE)
OUTPUT = Options(Shown, SHOWN)


def command(app: typer.Typer, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: marked parameters become their options, and what goes wrong one sentence."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        shown: list[Parameter] = []
        made: dict[str, Options] = {}
        for name, parameter in signature(function, eval_str=True).parameters.items():
            marks = [m for m in getattr(parameter.annotation, "__metadata__", ()) if isinstance(m, Options)]
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
