"""The command line: ``hcal fit | apply | evaluate | report | demo | bench``."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point that ``pip install`` puts on the path."""
    from hcal.cli.app import app

    app(prog_name="hcal")
