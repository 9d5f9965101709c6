"""The command line as a whole: importing a module of commands registers them."""

from __future__ import annotations

from typing import Annotated

import typer

from hcal._version import __version__
from hcal.cli import demo, measure, models  # noqa: F401
from hcal.cli.options import app

__all__ = ["app"]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass
