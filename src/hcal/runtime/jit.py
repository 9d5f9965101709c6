"""Compiled kernels: a decorator that keeps them on disk only where that is safe.

numba's cache is pickle: who can write into its folder can run code in this process. Kernels are kept only in
a folder that nobody else can write to; elsewhere, and where nothing can be written at all, every process
compiles them anew, and one warning says so.
"""

from __future__ import annotations

import os
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Kernel = Callable[..., Any]


def jit(**options: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a kernel: the GIL released, kept on disk where that is safe."""
    from numba import njit

    def decorate(function: Kernel) -> Kernel:
        kernel: Any = njit(nogil=True, **options)(function)
        if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
            return kernel  # type: ignore[no-any-return]
        why = _keep_on_disk(kernel)
        if why:
            _say_once(why)
            kernel = njit(nogil=True, **options)(function)
        return kernel  # type: ignore[no-any-return]

    return decorate


def _keep_on_disk(kernel: Any) -> str:
    """Turn numba's cache on; return why it must stay off, or nothing."""
    try:
        kernel.enable_caching()
    except RuntimeError:  # numba's "cannot cache function": neither the install nor HOME can be written to
        return "no folder can be written to"
    _forgive_full_disks(kernel)
    folder = Path(kernel.stats.cache_path)
    source = Path(kernel.py_func.__code__.co_filename)
    # whoever owns the source is trusted already: it is run
    trusted = {source.stat().st_uid} if source.exists() else set()
    stranger = writable_by_others(folder, trusted=trusted)
    return f"others can write to {stranger}" if stranger else ""


def _forgive_full_disks(kernel: Any) -> None:
    """Let a kernel that cannot be written be used all the same: numba would raise at its first call."""
    on_disk = getattr(kernel, "_cache", None)
    write = getattr(on_disk, "save_overload", None)
    if on_disk is None or write is None:  # another numba: its own errors stand
        return

    def save_overload(signature: Any, data: Any) -> None:
        try:
            write(signature, data)
        except OSError as error:
            on_disk.disable()
            _say_once(error.strerror or str(error))

    on_disk.save_overload = save_overload


def writable_by_others(folder: Path, *, trusted: set[int] | frozenset[int] = frozenset()) -> Path | None:
    """Return the first of a folder and its parents that another user could change, or None.

    A folder is safe if this user, root or somebody ``trusted`` owns it and nobody else may write to it; one
    above it may also be open to all if it is sticky, as /tmp is.

    >>> import tempfile
    >>> own = Path(tempfile.mkdtemp())
    >>> writable_by_others(own)
    >>> own.chmod(0o777)
    >>> writable_by_others(own) == own.resolve()
    True
    """
    if not hasattr(os, "geteuid"):  # Windows: the user's profile is the user's own by its access list
        return None
    owners = trusted | {0, os.geteuid()}
    place = folder.resolve()
    for where in (place, *place.parents):
        facts = where.stat()
        shared = facts.st_mode & stat.S_IWOTH or (
            facts.st_mode & stat.S_IWGRP and not _private_group(facts.st_gid)
        )
        sticky = where != place and facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in owners or (shared and not sticky):
            return where
    return None


def _private_group(group: int) -> bool:
    """Whether a group is root's, or this user's alone, as the umask 002 of many systems takes for granted."""
    import grp
    import pwd

    if group == 0:
        return True
    try:
        user, facts = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return facts.gr_name == user.pw_name and set(facts.gr_mem) <= {user.pw_name}


_said = threading.Event()


def _say_once(why: str) -> None:
    if _said.is_set():
        return
    _said.set()
    warnings.warn(
        f"compiled kernels are not kept on disk ({why}): every process spends some seconds on "
        "compiling them. Set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )
