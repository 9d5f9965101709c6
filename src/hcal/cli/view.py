"""``hcal view``: a page on this machine for people who do not type Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hcal.cli import console
from hcal.cli.options import Command, command


@command("view", "hcal view", "hcal view scores.csv")
@dataclass(frozen=True, kw_only=True)
class View(Command):
    """Show in the browser what calibration does to a file: choose columns, see the report, download."""

    file: Annotated[
        Path | None, Argument(help="a .csv or .parquet to begin with", metavar="FILE")
    ] = None
    port: Annotated[int, Option(help="of 127.0.0.1; a free one by default")] = 0
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="open the page in the browser")
    ] = True

    def run(self) -> None:
        """Serve the page until Ctrl-C."""
        from hcal.view import serve

        serve(self.file, port=self.port, browser=self.browser, ready=_say)


def _say(url: str) -> None:
    """Print the address of the page."""
    console.out().print(f"the page is at [bold]{url}[/]\nCtrl-C ends it")
