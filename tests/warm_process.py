"""A warm ``hcal``: commands of the pages run in forks of one process that has the libraries loaded.

Starting Python and importing scikit-learn takes a second, and the pages call the command seventy times.
A fork has everything that a new process has but the imports: its own arguments, folder, environment and
streams. ``python tests/warm_process.py serve SOCKET`` waits for calls; the script that :func:`warm_folder`
makes sends its arguments and its three streams there and ends with the command's exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOADED = (
    "hcal.cli.app",
    "hcal.cli.report",
    "hcal.evaluation",
    "matplotlib.pyplot",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.isotonic",
)
CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
    line.connect({address!r})
    call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(call).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(call)
    sys.exit(int(line.recv(16) or b"255"))
"""


@contextlib.contextmanager
def warm_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder with a warm ``hcal``, for the front of the PATH."""
    # Addresses of sockets must be short: not in pytest's folder.
    address = tempfile.mktemp(prefix="hcal-", suffix=".socket")
    script = folder / "hcal"
    script.write_text(CLIENT.format(python=sys.executable, address=address))
    script.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, "serve", address], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield folder
    finally:
        server.terminate()
        server.communicate()
        Path(address).unlink(missing_ok=True)


def serve(address: str) -> None:
    """Fork for every call, one after the other, until nobody is left to ask."""
    for module in LOADED:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(address)
        door.listen()
        door.settimeout(5)
        print("ready", flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            try:
                line, _ = door.accept()
            except TimeoutError:
                continue
            with line:
                size, streams, _, _ = socket.recv_fds(line, 8, 3)
                call = b""
                while len(call) < int.from_bytes(size, "big"):
                    call += line.recv(1 << 20)
                pid = os.fork()
                if pid == 0:
                    door.close()
                    _run(*json.loads(call), streams)
                for stream in streams:
                    os.close(stream)
                line.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _run(arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    code: object = 1
    try:
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
        # What the old objects know of the server's streams (can they be sought in?) is not true of these.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["hcal", *arguments]
        from hcal.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[2])
