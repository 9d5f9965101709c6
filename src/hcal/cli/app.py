"""The command line as a whole: importing a module of commands registers them."""

from __future__ import annotations

from hcal.cli import compare, decide, demo, estimate, measure, models, refit, view, watch
from hcal.cli.options import app

__all__ = ["app"]
