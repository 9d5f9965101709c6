"""The command line: ``hcal --help`` lists its commands."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point that ``pip install`` puts on the path."""
    from hcal.cli.app import app

    app(prog_name="hcal")
