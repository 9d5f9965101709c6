"""A PostgreSQL server of its own in a temporary folder, for those who have PostgreSQL installed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hcal.numerics import Float64

#: The programs that are needed.
PROGRAMS = ("initdb", "pg_ctl", "psql")
#: Runs statements, and returns what they print.
Psql = Callable[[str], str]


def missing() -> str | None:
    """Return the first program that is not installed."""
    return next((program for program in PROGRAMS if shutil.which(program) is None), None)


@dataclass(frozen=True)
class Programs:
    """Runs programs in a folder, as a user that the server accepts."""

    folder: Path
    user: dict[str, Any]

    def __call__(self, *command: str, text: str | None = None) -> str:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, cwd=self.folder, **self.user
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return done.stdout


@dataclass(frozen=True)
class Session:
    """Runs statements on a server."""

    run: Programs

    def __call__(self, text: str) -> str:
        login = ["psql", "-h", str(self.run.folder), "-U", "tester", "-d", "postgres"]
        return self.run(*login, "-qAt", "-v", "ON_ERROR_STOP=1", text=text)


@contextmanager
def server() -> Iterator[Psql]:
    """Start a server, yield a function that runs statements in it, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="hcal-postgres-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    run = Programs(folder, user)
    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "tester", "--auth=trust")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield Session(run)
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


def probs_in_postgres(psql: Psql, query: str, table: Float64) -> Float64:
    """Return the probabilities of a query over the table "the scores" with the columns s0, s1, …."""
    names = [f"s{k}" for k in range(table.shape[1])]
    cells = [[str(i), *(f"'{x!r}'::float8" for x in row)] for i, row in enumerate(table.tolist())]
    rows = ", ".join(f"({', '.join(row)})" for row in cells)
    listed = ", ".join(["row", *names])
    statement = re.sub(r";\n-- To test.*", "", query, flags=re.DOTALL)
    output = psql(
        f'DROP TABLE IF EXISTS "the scores" CASCADE;\n'
        f'CREATE TABLE "the scores" AS SELECT * FROM (VALUES {rows}) t({listed});\n'
        f"CREATE TEMP VIEW result AS {statement};\n"
        "SELECT * FROM result ORDER BY row;"
    )
    lines = [line.split("|") for line in output.splitlines()]
    return np.array([[float(x or "nan") for x in line[1 + len(names) :]] for line in lines])
