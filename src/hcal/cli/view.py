"""``hcal view``: a page on this machine for people who do not type Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hcal.cli import console
from hcal.cli.options import command


@command("hcal view", "hcal view scores.csv")
def view(
    *,
    file: Annotated[
        Path | None, Argument(help="a .csv or .parquet to begin with", metavar="FILE")
    ] = None,
    port: Annotated[int, Option(help="of 127.0.0.1; a free one by default")] = 0,
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="open the page in the browser")
    ] = True,
) -> None:
    """Show in the browser what calibration does to a file: choose columns, see the report, download."""
    from hcal.view import serve

    serve(file, port=port, browser=browser, ready=_say)


def _say(url: str) -> None:
    """Print the address of the page."""
    console.out().print(f"the page is at [bold]{url}[/]\nCtrl-C ends it")
