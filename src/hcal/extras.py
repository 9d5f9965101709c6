"""What is not installed, said in one line with the command that installs it from where hcal came."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit


def missing(what: str, package: str, extra: str) -> ImportError:
    """Return the error for a package that an extra brings and ``what`` needs, such as ``"reading .xlsx"``.

    >>> str(missing("reading .xlsx", "openpyxl", "excel")).split(":")[0]
    'reading .xlsx needs openpyxl'
    """
    verb = "need" if what.endswith("s") else "needs"
    return ImportError(f"{what} {verb} {package}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where this hcal was installed."""
    try:
        told = json.loads(distribution("hcal").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError, OSError):
        told = {}
    return f"pip install {_target(told if isinstance(told, dict) else {}, extra)}"


def _target(told: dict[str, object], extra: str) -> str:
    """Return what pip is to be told: a folder or file with the extra, a repository, or the name alone."""
    url = told.get("url")
    if not isinstance(url, str) or not url:
        return f"'hcal[{extra}]'"
    vcs, folder = told.get("vcs_info"), told.get("dir_info")
    if isinstance(vcs, dict):
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        at = f"@{revision}" if revision else ""
        return f"'hcal[{extra}] @ {vcs.get('vcs', 'git')}+{url}{at}'"
    if not url.startswith("file:"):
        return f"'hcal[{extra}] @ {url}'"
    path = unquote(urlsplit(url).path)
    editable = isinstance(folder, dict) and bool(folder.get("editable"))
    return f"{'-e ' if editable else ''}'{path}[{extra}]'"


def load_extra(what: str, module: str, extra: str) -> Any:
    """Return a module that an extra brings and ``what`` needs, or say how to install it.

    >>> load_extra("reading .xlsx", "no_such_package.part", "excel")
    Traceback (most recent call last):
    ...
    ImportError: reading .xlsx needs no_such_package: pip install ...
    """
    try:
        return import_module(module)
    except ImportError:
        raise missing(what, module.partition(".")[0], extra) from None


def pyplot() -> Any:
    """Return matplotlib's pyplot, or say what to install."""
    return load_extra("plots", "matplotlib.pyplot", "plot")
