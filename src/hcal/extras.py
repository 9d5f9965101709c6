"""Optional dependencies: import them, or raise an error with the command that installs them."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where hcal itself was installed (pip keeps a record)."""
    try:
        source = json.loads(distribution("hcal").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError, OSError):
        source = {}
    url = str(source.get("url", ""))
    if source.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    if vcs := source.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"pip install 'hcal[{extra}]{url and f' @ {url}'}'"


def load_extra(what: str, module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency that ``what`` needs, or raise an error that says how to install it.

    >>> load_extra("reading .xlsx", "no_such_package.part", "excel")
    Traceback (most recent call last):
    ...
    ImportError: reading .xlsx needs no_such_package: pip install ...
    """
    try:
        return import_module(module)
    except ImportError:
        verb = "need" if what.endswith("s") else "needs"
        raise ImportError(
            f"{what} {verb} {module.partition('.')[0]}: {install_command(extra)}"
        ) from None


def pyplot() -> ModuleType:
    """Return matplotlib's pyplot, or raise an error that says how to install it."""
    return load_extra("plots", "matplotlib.pyplot", "plot")
