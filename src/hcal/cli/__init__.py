"""The command line: ``hcal --help`` lists its commands."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; the entry point that ``pip install`` puts on the path."""
    signal.signal(signal.SIGTERM, _stop)
    from hcal.cli.app import app

    app(prog_name="hcal")


def _stop(*_: object) -> None:
    """End a command on SIGTERM as on Ctrl-C, so that temporary files are removed, with the exit status 143."""
    raise KeyboardInterrupt(128 + signal.SIGTERM)
