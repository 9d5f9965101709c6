"""The command line: ``hcal --help`` lists its commands."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; the entry point that ``pip install`` puts on the path."""
    from hcal.cli.app import app
    from hcal.cli.console import stop

    signal.signal(signal.SIGTERM, stop)
    app(prog_name="hcal")
