"""The command line: ``hcal --help`` lists its commands."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; the entry point that ``pip install`` puts on the path."""
    # SIGTERM ends a command like Ctrl-C does: temporary files are removed. The exit status is 143.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from hcal.cli.app import app

    app(prog_name="hcal")
