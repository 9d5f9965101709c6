"""An ASGI app on a real port of this machine, for tests, and requests to it without another package."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    text: str
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Client:
    """Requests to one server."""

    address: str

    def get(self, path: str) -> Answer:
        return self.send(urllib.request.Request(self.address + path))

    def post(self, path: str, content: Any) -> Answer:
        """Post JSON, or an iterator of bytes in pieces without a declared length."""
        body = content if isinstance(content, Iterator) else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data=body, headers=headers)
        return self.send(request)

    def send(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read().decode(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), dict(error.headers))


@contextmanager
def serving(app: Any) -> Iterator[Client]:
    """Serve an app on a free port until the block ends."""
    import uvicorn

    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Client(f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(timeout=30)
